"""Each filter on a million keys and a million questions, as one table: ``python -m tamis.demo``.

Rates are predicted by the plan, expected of the filter as it was built, and measured on keys that
are not in the set; times are of this machine, now.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import tamis
from tamis.filters.bloom import Layout
from tamis.filters.ribbon import Layout as RibbonLayout
from tamis.planning import adaptive_cuckoo, bloom, cuckoo, fuse, quotient, ribbon

COLUMNS = ("filter", "bits/key", "predicted", "expected", "measured", "build ns", "ask ns", "in ns")


def main() -> None:
    """Build, ask and print."""
    parser = argparse.ArgumentParser(prog="python -m tamis.demo", description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys, and questions")
    parser.add_argument("--fpr", type=float, default=0.01, help="the rate to ask for")
    parser.add_argument("--seed", type=int, default=0, help="of the keys")
    options = parser.parse_args()
    if options.keys < 1:
        parser.error(f"argument --keys: {options.keys}; at least one is wanted")
    try:
        print(f"{options.keys:,} random 64-bit keys, rate asked for: {options.fpr:g}\n")
        print(f"{COLUMNS[0]:<20}" + "".join(f"{name:>11}" for name in COLUMNS[1:]))
        for cells in rows(options.keys, options.fpr, options.seed):
            print(f"{cells[0]:<20}" + "".join(f"{cell:>11}" for cell in cells[1:]))
    except ValueError as error:
        parser.error(str(error))
    print("\nEvery key was found. ns are per key: build and ask as one NumPy column, `in` alone.")


def rows(keys: int, fpr: float, seed: int) -> Iterator[tuple[str, ...]]:
    """Measure each filter in turn."""
    numbers = np.random.default_rng(seed).integers(0, 2**63, 2 * keys, dtype=np.uint64)
    present, absent = numbers[:keys], numbers[keys:] | np.uint64(2**63)
    for name, build, predict in shapes():
        f, build_time = timed(partial(build, present, fpr=fpr))
        answers, ask_time = timed(partial(f.contains, absent))
        if not f.contains(present).all():
            raise AssertionError(f"{name} denies a key that is there")
        few = absent[:100_000].tolist()
        _, in_time = timed(partial(ask_each, f, few))
        yield (
            name,
            f"{f.bits_per_key:.2f}",
            f"{predict(f):.5%}",
            f"{f.expected_fpr:.5%}",
            f"{answers.mean():.5%}",
            f"{build_time / keys:.1f}",
            f"{ask_time / keys:.1f}",
            f"{in_time / len(few):.1f}",
        )


def shapes() -> Iterator[tuple[str, Callable[..., Any], Callable[[Any], float]]]:
    """Name each filter, and say how it is built and what its plan predicts."""
    layouts: tuple[Layout, ...] = ("blocked", "standard", "segmented")
    for layout in layouts:
        yield (
            f"Bloom, {layout}",
            partial(tamis.Bloom.build, layout=layout),
            lambda f: bloom.rate(f.layout, len(f), bloom.Size(f.size_in_bits, f.hashes)),
        )
    for arity in (3, 4):
        yield (
            f"Fuse, {arity}-wise",
            partial(tamis.Fuse.build, arity=arity),
            lambda f: fuse.rate(fuse.size(f.arity, len(f), fpr=2.0**-f.fingerprint_bits)),
        )
    yield (
        "Quotient",
        tamis.Quotient.build,
        lambda f: quotient.rate(len(f), quotient.Size(f.quotients, f.remainder_bits)),
    )
    yield (
        "Telescoping",
        tamis.Telescoping.build,
        lambda f: quotient.rate(len(f), quotient.Size(f.quotients, f.remainder_bits)),
    )
    yield (
        "Cuckoo",
        tamis.Cuckoo.build,
        lambda f: cuckoo.rate(len(f), cuckoo.size(len(f), fingerprint_bits=f.fingerprint_bits)),
    )
    yield (
        "AdaptiveCuckoo",
        tamis.AdaptiveCuckoo.build,
        lambda f: adaptive_cuckoo.rate(len(f), f._size),
    )
    ribbons: tuple[RibbonLayout, ...] = ("interleaved", "columns")
    for name in ribbons:
        yield (
            f"Ribbon, {name}",
            partial(tamis.Ribbon.build, layout=name),
            lambda f: ribbon.rate(f.columns),
        )


def ask_each(f: Any, keys: list[int]) -> None:
    """Ask one question at a time."""
    for key in keys:
        key in f  # noqa: B015


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call returns, and the median of its nanoseconds over three calls."""
    times = []
    for _ in range(3):
        start = time.perf_counter_ns()
        result = call()
        times.append(time.perf_counter_ns() - start)
    return result, statistics.median(times)


if __name__ == "__main__":
    main()
