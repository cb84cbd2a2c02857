"""The time of a lookup: nanoseconds per key, absent and present, of each kind of filter.

    .venv/bin/python benches/checks.py

Batches of integers, hashing included, at 10 bits per key, one thread; the best of many short
rounds, in each of which all filters take turns with new queries. The rows are the options of
`tamis.planning.kinds`, followed by the time a model takes to score a key.
"""

import os

os.environ["RAYON_NUM_THREADS"] = "1"

import argparse
import time

import numpy as np

from tamis.filters import CLASSES
from tamis.learned import train
from tamis.planning import kinds
from tamis.planning.kinds import KINDS

SIZES = kinds.SIZES
ROUNDS = 60
BATCH = 10_000
"""Queries of a round: few, so that a round is seldom interrupted on a busy machine."""


def filters(keys: np.ndarray):
    for kind in KINDS.values():
        for option in kind.options:
            size = {"bits_per_key": 10}
            if kind.name == "stable":
                size = {"fpr": 0.01, "bits": 10 * len(keys)}
            yield option.name, CLASSES[kind.name].build(keys, seed=1, **size, **option.arguments)


def nanoseconds(call, count: int) -> float:
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / count


def scores(rng: np.random.Generator) -> None:
    """Print the time of a linear model per byte of text, and per column of a table."""
    text = ["".join(map(chr, rng.integers(97, 123, 40))) for _ in range(2000)]
    rows = rng.normal(0, 1, (2000, 20))
    for name, data, parts in (("byte of a text", text, 40), ("column of a table", rows, 20)):
        model = train(data[:1000], data[1000:], kind="logistic")
        times = [nanoseconds(lambda m=model, d=data: m.scores(d), 2000) for _ in range(ROUNDS)]
        print(f"a model, for each {name}: {min(times) / parts:.1f} ns")


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    rng = np.random.default_rng(1)
    found = {}
    for size in SIZES:
        keys, absent = rng.integers(0, 2**62, (2, size))
        absent += 2**62
        built = dict(filters(keys))
        for turn in range(ROUNDS):
            start = turn * BATCH % size
            for name, f in built.items():
                for kind, questions in (("absent", absent), ("present", keys)):
                    part = questions[start : start + BATCH]
                    place = found.setdefault((name, kind), {})
                    now = nanoseconds(lambda f=f, part=part: f.contains(part), len(part))
                    place[size] = min(now, place.get(size, now))
    print(f"{'filter':<18}{'queries':<10}" + "".join(f"{size:>12,}" for size in SIZES))
    for (name, kind), times in found.items():
        print(f"{name:<18}{kind:<10}" + "".join(f"{each:>12.1f}" for each in times.values()))
    scores(rng)


if __name__ == "__main__":
    main()
