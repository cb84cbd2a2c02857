"""Probes per second: one key looked up in every filter of a collection, next to a baseline.

Filters of 1,000 keys, truncated to several fractions of their bits. The baseline is one random read
per probe in as much memory, by NumPy. Then sets of 20 to 1,000 keys by rows. All times are
processor time of one thread.
"""

import argparse
import statistics
import time

import numpy as np
from measure import print_table

import tamis

TARGET = 2e7


def per_probe(run, probes, rounds=5):
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        run()
        times.append((time.process_time() - begin) / probes * 1e9)
    return statistics.median(times)


def sliced(sets):
    """Sets of 20 to 1,000 keys by rows, at 10 bits per key: one absent key, and batches."""
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.uniform(np.log(20), np.log(1000), sets)).astype(int)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    c = tamis.Collection.build(
        ((str(i), np.arange(starts[i], starts[i + 1])) for i in range(sets)),
        kind="sliced",
        utility=rng.lognormal(0, 1, sets),
        fpr=0.005,
    )
    c.allocate(budget=c.min_budget + 10 * int(sizes.sum()) // 8)

    def one():
        for key in range(-100, 0):
            c.candidates_many([key])

    single = per_probe(one, 100) / 1e3
    batch = per_probe(lambda: c.candidates_many(np.arange(-5000, 0)), 5000 * sets)
    print(f"\n{c}")
    print(
        f"sliced, expected rate {c.expected_fpr:.3g} "
        f"at {c.size_in_bits / sizes.sum():.2f} bits per key"
    )
    print(f"one absent key: {single:.1f} µs of processor time (target 30)")
    print(f"batches: {1 / batch:.2f}·10⁹ set probes per second of processor time (target 4)")
    times = []
    for i in range(101):
        begin = time.process_time()
        c.append(f"new {i}", np.arange(-20 * i - 20, -20 * i))
        times.append(1e3 * (time.process_time() - begin))
    print(
        f"append: {statistics.median(times[1:]):.1f} ms of processor time, "
        f"the first {times[0]:.0f} ms (target 10)"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filters", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="a tenth of the filters")
    arguments = parser.parse_args()
    filters = arguments.filters // (10 if arguments.quick else 1)
    rng = np.random.default_rng(0)
    utility = rng.lognormal(0, 1, filters)
    rows = []
    for kind in ("ribbon", "segmented", "truncated"):
        sets = ((str(i), np.arange(1000 * i, 1000 * i + 1000)) for i in range(filters))
        c = tamis.Collection.build(sets, kind=kind)
        overhead = c.size_in_bytes - c.size_in_bits // 8
        full = int(c.full.sum())
        for share in (0.1, 0.3, 0.5, 1.0):
            c.allocate(budget=overhead + int(share * full / 8) + 1, utility=utility)
            memory = np.ones(c.size_in_bits // 8, np.uint8)
            places = rng.integers(0, len(memory), filters)

            def one(c=c):
                for key in range(-10, 0):
                    c.candidates_many([key])

            def many(c=c):
                c.candidates_many(np.arange(-100, 0))

            def yardstick(memory=memory, places=places):
                memory[places].sum()

            single = per_probe(one, 10 * filters)
            batch = per_probe(many, 100 * filters)
            read = per_probe(yardstick, filters)
            rows.append(
                [
                    kind,
                    f"{share:.0%}",
                    f"{single:.1f}",
                    f"{batch:.1f}",
                    f"{read:.1f}",
                    f"{single / read:.2f}",
                    f"{1e9 / single:.2g}",
                    "yes" if 1e9 / single >= TARGET else "no",
                ]
            )
    header = ["kind", "kept", "one key, ns", "many, ns", "read, ns", "ratio", "probes/s", "2e7"]
    print(f"{filters:,} filters of 1,000 keys")
    print_table(header, rows, left={0})
    sliced(filters)


if __name__ == "__main__":
    main()
