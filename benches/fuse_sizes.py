"""How often fuse filters of the planned size are solved at the first attempt, and with fewer slots.

    python benches/fuse_sizes.py --quick
    python benches/fuse_sizes.py --trials 400 --most 1000000

For each number of keys: the slots per key and segments planned by ``planning/fuse.py``, the
fraction of seeds whose first attempt succeeds, and the fewest slots per key, in as many segments,
with which nine of ten do. The last line of each arity is the planner's formula for many segments,
fitted to these.
"""

from __future__ import annotations

import argparse

import numpy as np

import tamis
from tamis import _native
from tamis.planning import fuse as planning

SIZES = (1_500, 3_000, 6_000, 11_500, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000)
WANTED = 0.9


def solved(arity: int, keys: int, length: int, segments: int, trials: int) -> float:
    """Return the fraction of seeds with which the first attempt succeeds."""
    numbers = np.arange(keys)
    size = planning.FuseSize(arity, 8, length, segments)
    first = 0
    for seed in range(trials):
        distinct = _native.Distinct(numbers, seed)
        f = tamis.Fuse._of(tamis.Fuse._build(size, distinct))
        first += f._attempts == 1
    return first / trials


def fewest(arity: int, keys: int, segments: int, trials: int) -> float:
    """Return the fewest slots per key with which enough first attempts succeed, by bisection."""
    low, high = int(keys * planning.FITS[arity].many / segments), int(1.6 * keys / segments)
    while low + 1 < high:
        middle = (low + high) // 2
        if solved(arity, keys, middle, segments, trials) >= WANTED:
            high = middle
        else:
            low = middle
    return high * segments / keys


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trials", type=int, default=200, help="seeds, fewer for large sets")
    parser.add_argument("--max-keys", type=int, default=200_000, help="keys of the largest set")
    parser.add_argument("--quick", action="store_true", help="40 seeds, up to 20,000 keys")
    arguments = parser.parse_args()
    trials = 40 if arguments.quick else arguments.trials
    max_keys = 20_000 if arguments.quick else arguments.max_keys
    for arity, fit in planning.FITS.items():
        print(f"\n{arity}-wise       keys  segments  slots/key  solved at once        fewest")
        found = []
        for keys in (keys for keys in SIZES if keys <= max_keys):
            *_, length, segments = planning.size(keys, fpr=2**-8, arity=arity)
            seeds = max(20, min(trials, trials * 50_000 // keys))
            share = solved(arity, keys, length, segments, seeds)
            error = np.sqrt(max(share * (1 - share), 1 / seeds) / seeds)
            least = fewest(arity, keys, segments, seeds)
            planned = length * segments / keys
            print(
                f"{keys:>17,} {segments:>9} {planned:>10.4f} "
                f"{share:>9.2f} ± {error:.2f} {least:>13.4f}",
                flush=True,
            )
            if segments > arity:
                found.append((keys, least))
        if len(found) < 2:
            continue
        keys_, fewest_ = np.array(found).T
        slope, offset = np.polyfit(np.log(keys_), np.log(fewest_ - fit.many), 1)
        print(
            f"fitted: {fit.many} + {np.exp(offset):.2f}·n^{slope:.3f}, "
            f"planned: {fit.many} + {fit.many_factor}·n^-{fit.many_power}"
        )


if __name__ == "__main__":
    main()
