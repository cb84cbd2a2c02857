"""``tamis bench``: every kind of filter on this machine, next to other installed packages.

False-positive rates are predicted by the plan, expected of the filter as built, and measured on
absent keys. Times are medians of three runs; compare their ratios, not their values.
"""

from __future__ import annotations

import importlib
import operator
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import click
import numpy as np

import tamis
from tamis._format import format_rate
from tamis.cli._options import Command, as_json, example
from tamis.cli._output import progress, say, show_json, table
from tamis.filters import CLASSES
from tamis.planning.kinds import KINDS

_COLUMNS = (
    "filter",
    "bits/key",
    "predicted",
    "expected",
    "measured",
    "build ns",
    "query ns",
    "in ns",
)


@click.command("bench", cls=Command, epilog=example("tamis bench --keys 1000000 --fpr 0.01"))
@click.option(
    "--keys", type=click.IntRange(1), default=1_000_000, help="Number of keys, and of queries."
)
@click.option("--fpr", type=float, default=0.01, help="Target false-positive rate.")
@click.option("--seed", type=int, default=0, help="Seed of the keys.")
@as_json
def command(keys: int, fpr: float, seed: int, as_json: bool) -> None:
    """Measure each kind of filter on random keys, and other packages next to tamis.Bloom.

    abloom, rbloom, fastbloom-rs, pybloomfiltermmap3 and pyfusefilter are included if installed.
    `make bench` in a clone of the repository runs longer and measures more.
    """
    with progress("measuring", None):
        filters, peers = list(_rows(keys, fpr, seed)), list(_peers(keys, fpr, seed))
    if as_json:
        show_json(
            {
                "keys": keys,
                "fpr": fpr,
                "filters": [dict(zip(_COLUMNS, row, strict=True)) for row in filters],
                "packages": [dict(zip(_PEER_COLUMNS, row, strict=True)) for row in peers],
            }
        )
        return
    say(f"{keys:,} random 64-bit keys, target false-positive rate {format_rate(fpr)}\n")
    say(table(_COLUMNS, filters))
    say("\nns are per key: build and query with one NumPy array, `in` with one key at a time.")
    say("\nBloom filters of as many strings; × is relative to tamis.Bloom (above 1 is slower)\n")
    say(table(_PEER_COLUMNS, peers))


def _rows(keys: int, fpr: float, seed: int) -> Iterator[tuple[str, ...]]:
    """Measure each filter in turn."""
    numbers = np.random.default_rng(seed).integers(0, 2**63, 2 * keys, dtype=np.uint64)
    present, absent = numbers[:keys], numbers[keys:] | np.uint64(2**63)
    for name, build in _options():
        f, build_time = _timed(partial(build, present, fpr=fpr))
        answers, query_time = _timed(partial(f.contains, absent))
        if not f.contains(present).all():
            raise AssertionError(f"{name} rejects a key that is in the set")
        few = absent[:100_000].tolist()
        _, in_time = _timed(partial(_query_each, f, few))
        yield (
            name,
            f"{f.bits_per_key:.2f}",
            format_rate(f._size.rate(len(f))),
            format_rate(f.expected_fpr),
            format_rate(float(answers.mean())),
            f"{build_time / keys:.1f}",
            f"{query_time / keys:.1f}",
            f"{in_time / len(few):.1f}",
        )


def _options() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield each option of a filter that is built from keys and a rate: its name and builder."""
    for kind in KINDS.values():
        for option in kind.options:
            if kind.sizes is not None:
                cls: Any = CLASSES[kind.name]
                yield option.name, partial(cls.build, **option.arguments)


def _query_each(f: Any, keys: list[Any]) -> None:
    """Look up one key at a time."""
    for key in keys:
        key in f  # noqa: B015


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call, and the median time of three calls in nanoseconds."""
    times = []
    for _ in range(3):
        start = time.perf_counter_ns()
        result = call()
        times.append(time.perf_counter_ns() - start)
    return result, statistics.median(times)


_PEER_COLUMNS = ("package", "bits/key", "measured", "build ns", "in ns", "build ×", "in ×")


def _peers(keys: int, fpr: float, seed: int) -> Iterator[tuple[str, ...]]:
    """Measure the Bloom filters of the installed packages, one string at a time."""
    numbers = np.random.default_rng(seed).integers(0, 2**63, 2 * keys).astype(str).tolist()
    present, absent = numbers[:keys], numbers[keys:][:100_000]
    base: tuple[float, float] | None = None
    for name, build, bits in _packages(fpr):
        f, build_time = _timed(partial(build, present))
        _, in_time = _timed(partial(_query_each, f, absent))
        base = base or (build_time, in_time)
        yield (
            name,
            f"{bits(f) / keys:.2f}",
            format_rate(sum(key in f for key in absent) / len(absent)),
            f"{build_time / keys:.1f}",
            f"{in_time / len(absent):.1f}",
            f"{build_time / base[0]:.2f}",
            f"{in_time / base[1]:.2f}",
        )


def _packages(fpr: float) -> Iterator[tuple[str, Callable[[list[str]], Any], Callable[[Any], int]]]:
    """Yield each installed package, how its filter is built, and how large it is."""

    def updated(make: Callable[..., Any], keys: list[str]) -> Any:
        f = make(len(keys), fpr)
        f.update(keys)
        return f

    yield "tamis", partial(tamis.Bloom.build, fpr=fpr), lambda f: f.size_in_bits
    for package, module, name, attribute in (
        ("abloom", "abloom", "BloomFilter", "bit_count"),
        ("rbloom", "rbloom", "Bloom", "size_in_bits"),
        ("pybloomfiltermmap3", "pybloomfilter", "BloomFilter", "num_bits"),
    ):
        if found := _try_import(module):
            make = getattr(found, name)
            yield package, partial(updated, make), operator.attrgetter(attribute)
    if found := _try_import("fastbloom_rs"):

        def fastbloom(keys: list[str], builder: Any = found.FilterBuilder) -> Any:
            f = builder(len(keys), fpr).build_bloom_filter()
            f.add_str_batch(keys)
            return f

        yield "fastbloom-rs", fastbloom, lambda f: 8 * len(f.get_bytes())
    if found := _try_import("pyfusefilter"):
        yield "pyfusefilter", found.Fuse8, lambda f: 8 * int(f.size_in_bytes())


def _try_import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
