"""Stability, false negatives against the gap, and Example 4, by simulation with native filters.

.venv/bin/python experiments/streams/simulated.py [--quick]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import tamis
from tamis.planning import stable

P, Q = [0.485, 0.390, 0.125], [0.090, 0.347, 0.563]


def asked_rate(f, start=2**60, count=2_000_000):
    return f.contains(np.arange(start, start + count)).mean()


def stability(insertions):
    """Figure 11: the rate over many insertions, for filters of several sizes."""
    print("\nStability (Fig. 11): rate of a stable Bloom filter, target 0.01")
    print("     bits  insertions  predicted  measured")
    for bits in (2**14, 2**18):
        f = tamis.StableBloom(2000, fpr=0.01, bits=bits)
        done, began, spent = 0, time.perf_counter(), 0.0
        for until in (1000, 10_000, 100_000, 1_000_000, insertions // 10, insertions):
            while done < until:
                step = min(1_000_000, until - done)
                keys = np.arange(done, done + step)
                began = time.perf_counter()
                f.update(keys)
                spent += time.perf_counter() - began
                done += step
            predicted = stable.rate_after(f.size, done)
            print(f"{bits:9,} {done:11,} {predicted:10.5f} {asked_rate(f):9.5f}")
        print(f"          {done / spent:,.0f} insertions per second")


def denied(contains, update, gap, insertions, step=50, warm=None):
    """Return the fraction of keys rejected about ``gap`` insertions after their own."""
    warm = 5 * gap if warm is None else warm
    lost = asked = 0
    for first in range(0, warm + insertions, step):
        update(np.arange(first, first + step))
        if first >= warm:
            then = np.arange(first - gap + step // 2, first - gap + step // 2 + step)
            lost += step - int(contains(then).sum())
            asked += step
    return lost / asked


def gaps(insertions):
    """Figure 13: false negatives against the gap."""
    print("\nFalse negatives against the gap (Fig. 13), 2**16 bits, rate 0.01")
    print("     gap  predicted  measured")
    for gap in (100, 500, 1000, 2000, 5000):
        f = tamis.StableBloom(2000, fpr=0.01, bits=2**16)
        measured = denied(f.contains, f.update, gap, insertions, warm=40_000)
        print(f"{gap:8,} {f.expected_fnr(gap):10.4f} {measured:9.4f}")


class Grouped:
    """The filters of a plan, with keys assigned to groups at random by their fractions."""

    def __init__(self, plan, seed=1):
        self.plan, self.seed = plan, seed
        self.filters = [
            None
            if g.size is None
            else tamis.StableBloom._sized(
                g.size, decrement="adjacent", gap=plan.gap, seed=j, key=None
            )
            for j, g in enumerate(plan.groups)
        ]

    def group(self, keys, shares):
        drawn = tamis.hash_keys(keys, seed=self.seed)[:, 0] / 2.0**64
        return np.searchsorted(np.cumsum(shares)[:-1], drawn)

    def update(self, keys):
        groups = self.group(keys, Q)
        for j, f in enumerate(self.filters):
            if f is not None:
                f.update(keys[groups == j])

    def contains(self, keys, shares=Q):
        groups = self.group(keys, shares)
        out = np.zeros(len(keys), dtype=bool)
        for j, f in enumerate(self.filters):
            mine = groups == j
            out[mine] = self.plan.groups[j].answer if f is None else f.contains(keys[mine])
        return out


def example_4(insertions):
    print("\nExample 4's groups, rate 0.01: false negatives (FNR) and rate (FPR)")
    print("    bits    gap  filter              FNR pred.  measured  FPR pred.  measured  target")
    for bits, gap, most in ((2**16, 2000, 0.39), (2**18, 10_000, 0.45)):
        plain = tamis.StableBloom(gap, fpr=0.01, bits=bits)
        rows = [("stable Bloom", plain, plain.expected_fnr(gap), plain.stable_fpr, "")]
        for method, target in (("paper", ""), ("optimal", f"<= {most}")):
            plan = tamis.plan_stable(P, Q, bits=bits, fpr=0.01, gap=gap, method=method)
            rows.append(
                (f"groups, {method}", Grouped(plan), plan.expected_fnr, plan.expected_fpr, target)
            )
        window = tamis.Windowed(gap, bits_per_key=bits / gap)
        rows.append(("Windowed", window, 0.0, window.highest_fpr, "0, FPR <= 0.01"))
        for name, f, fnr, fpr, target in rows:
            # The oldest key queried must not be older than the gap.
            inside = gap - 75 if isinstance(f, tamis.Windowed) else gap
            measured = denied(f.contains, f.update, inside, insertions, warm=6 * gap)
            absent = np.arange(2**60, 2**60 + 1_000_000)
            rate = (f.contains(absent, P) if isinstance(f, Grouped) else f.contains(absent)).mean()
            print(
                f"{bits:8,} {gap:6,}  {name:18} {fnr:10.4f} {measured:9.4f} {fpr:10.5f} "
                f"{rate:9.5f}  {target}"
            )
    print(*plan.advice, sep="\n")


def throughput(count):
    print("\nThroughput in batches of 2**20 keys, one thread (target for updates: 2e7 per second)")
    keys = np.arange(count)
    yard = tamis.Bloom(count, fpr=0.01, layout="standard")
    for name, work in (
        ("Bloom, standard: update", yard.update),
        *(
            (f"StableBloom, 2**{k} bits: {how}", getattr(f, how))
            for k in (18, 24)
            for f in (tamis.StableBloom(2000 << (k - 16), fpr=0.01, bits=2**k),)
            for how in ("update", "seen_many", "contains")
        ),
        *(
            (f"Windowed, 10**6: {how}", getattr(w, how))
            for w in (tamis.Windowed(10**6, fpr=0.01),)
            for how in ("update", "seen_many", "contains")
        ),
    ):
        best = float("inf")
        for first in range(0, count, 2**20):
            part = keys[first : first + 2**20]
            began = time.perf_counter()
            work(part)
            best = min(best, (time.perf_counter() - began) / len(part))
        print(f"  {name:38} {1 / best:12,.0f} per second")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    stability(10**6 if quick else 10**8)
    gaps(20_000 if quick else 200_000)
    example_4(20_000 if quick else 200_000)
    throughput(2**22 if quick else 2**24)
