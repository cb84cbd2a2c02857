"""Stacks against plain filters of the same kind of layer: ratios of times in the same round.

    python benches/stacked.py

Queries: a batch of unknown absent keys and a batch of present keys, for the stack and for a plain
filter like its first layer. Builds: the stack with its negatives, and a plain filter of keys and
negatives together.
"""

import argparse
import statistics
import time
from functools import partial

import numpy as np

import tamis

KEYS, NEGATIVES = 1_000_000, 5_000_000
PLAIN = {
    "bloom": lambda keys, rate: tamis.Bloom.build(keys, fpr=rate, layout="standard"),
    "cuckoo": lambda keys, rate: tamis.Cuckoo.build(keys, fpr=rate),
    "quotient": lambda keys, rate: tamis.Quotient.build(keys, fpr=rate),
    "fuse": lambda keys, rate: tamis.Fuse.build(keys, fpr=rate, arity=4),
    "ribbon": lambda keys, rate: tamis.Ribbon.build(keys, fpr=rate),
}
STACKS = [(kind, "alternating") for kind in PLAIN] + [("fuse", "exact"), ("ribbon", "exact")]


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratio(one, other, rounds):
    """Return the median over rounds of the ratio of two times in a round."""
    one(), other()
    return statistics.median(seconds(one) / seconds(other) for _ in range(rounds))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    keys, absent, negatives = np.split(
        rng.integers(0, 2**62, 2 * KEYS + NEGATIVES), [KEYS, 2 * KEYS]
    )
    keys, negatives = np.unique(keys), np.setdiff1d(negatives, keys)
    both = np.concatenate([keys, negatives])
    present = rng.permutation(keys)
    workload = tamis.Workload.zipf(1.0, universe=2 * NEGATIVES, sample=NEGATIVES)
    print(f"{KEYS:,} keys, {NEGATIVES:,} negatives; stack / plain, median of {options.rounds}")
    print(f"{'stack':<22} {'layers':>6} {'absent':>8} {'present':>8} {'build':>8}")
    for kind, last in STACKS:
        plan = tamis.plan(len(keys), workload, bits_per_key=10, layer=kind, last=last)
        f = plan.build(keys, negatives=negatives)
        # A little above the planned rate, so that rounding does not make fingerprints longer.
        build = partial(PLAIN[kind], rate=min(plan.layers[0].rate * 1.01, 0.99))
        plain = build(keys)
        found = [
            ratio(partial(f.contains, asked), partial(plain.contains, asked), options.rounds)
            for asked in (absent, present)
        ]
        stacked = partial(plan.build, keys, negatives=negatives)
        found.append(ratio(stacked, partial(build, both), max(3, options.rounds // 2)))
        values = " ".join(f"{value:>8.2f}" for value in found)
        print(f"{kind + ', ' + last:<22} {len(f.layers):>6} {values}", flush=True)
    print(f"{'target':<22} {'':>6} {'≤ 1.3':>8} {'≤ 2.2':>8} {'≤ 3':>8}")


if __name__ == "__main__":
    main()
