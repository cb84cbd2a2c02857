"""What one question costs: nanoseconds per key, absent and present, of each kind of filter.

    .venv/bin/python benches/checks.py

Batches of integers, hashing included, at 10 bits per key, one thread; the best of seven rounds, in
each of which all filters take their turn. The rows are those of `tamis.planning.costs.CHECKS`,
where the figures of a quiet machine were written down.
"""

import os

os.environ["RAYON_NUM_THREADS"] = "1"

import argparse
import time

import numpy as np

import tamis

SIZES = (10_000, 100_000, 1_000_000)
ROUNDS = 7
LEAST = 200_000
"""Questions of a round: fewer would time the call rather than the check."""


def filters(keys: np.ndarray):
    for layout in ("blocked", "standard"):
        yield f"bloom, {layout}", tamis.Bloom.build(keys, bits_per_key=10, layout=layout)
    yield "cuckoo", tamis.Cuckoo.build(keys, bits_per_key=10)
    yield "quotient", tamis.Quotient.build(keys, bits_per_key=10)
    for arity in (3, 4):
        yield f"fuse, {arity}-wise", tamis.Fuse.build(keys, bits_per_key=10, arity=arity)
    yield "ribbon", tamis.Ribbon.build(keys, bits_per_key=10)
    yield "telescoping", tamis.Telescoping.build(keys, bits_per_key=10, seed=1)
    yield "adaptive cuckoo", tamis.AdaptiveCuckoo.build(keys, bits_per_key=10, seed=1)
    yield "windowed", tamis.Windowed.build(keys, bits_per_key=10)
    yield "stable", tamis.StableBloom.build(keys, fpr=0.01, bits=10 * len(keys))


def nanoseconds(f, keys: np.ndarray) -> float:
    times = -(-LEAST // len(keys))
    start = time.perf_counter_ns()
    for _ in range(times):
        f.contains(keys)
    return (time.perf_counter_ns() - start) / (times * len(keys))


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    rng = np.random.default_rng(1)
    found = {}
    for size in SIZES:
        keys, absent = rng.integers(0, 2**62, (2, size))
        absent += 2**62
        built = dict(filters(keys))
        for _ in range(ROUNDS):
            for name, f in built.items():
                for kind, questions in (("absent", absent), ("present", keys)):
                    place = found.setdefault((name, kind), {})
                    now = nanoseconds(f, questions)
                    place[size] = min(now, place.get(size, now))
    print(f"{'filter':<18}{'asked for':<10}" + "".join(f"{size:>12,}" for size in SIZES))
    for (name, kind), times in found.items():
        print(f"{name:<18}{kind:<10}" + "".join(f"{each:>12.1f}" for each in times.values()))


if __name__ == "__main__":
    main()
