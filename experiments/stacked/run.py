"""Predicted and measured rates of stacks in the setting of Deeds, Hentschel, Idreos 2021.

    python experiments/stacked/run.py            # 10⁶ keys, 10⁸ negatives; a few minutes
    python experiments/stacked/run.py --quick    # a tenth of both

Negatives are integers whose frequency falls with their rank; the more frequent half is known. The
rate is measured over all of them, weighted by frequency. A filter errs per key, so the variance of
that sum is Σ f²·p·(1 − p), and "sigmas" is the distance of the measured rate from the one expected
of the filter as built. "above" is by how many percent the plan's bits exceed the fewest that any
filter with its rates takes.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import tamis

BATCH = 1 << 22
BITS_PER_KEY = 10
FIRST_NEGATIVE = 1 << 40
FIRST_UNSEEN = 1 << 50


@dataclass
class Row:
    """A filter to measure: the Zipf exponent, the options of the plan, and a target.

    ``target`` is the highest acceptable rate: close to the paper's for Bloom filters, and far below
    it for the best plan of any kind of layers.
    """

    name: str
    exponent: float
    wishes: dict[str, Any]
    target: float | None = None


BLOOM = {"layer": "bloom", "last": "alternating"}
ROWS = [
    Row("plain Bloom", 1.0, {"plain": "bloom"}, 0.0082),
    Row("Bloom, equal rates", 1.0, {**BLOOM, "rates": "equal"}, 0.00175),
    Row("Bloom, varied rates", 1.0, BLOOM, 0.00175),
    Row("cuckoo, alternating", 1.0, {"layer": "cuckoo", "last": "alternating"}),
    Row("quotient, alternating", 1.0, {"layer": "quotient", "last": "alternating"}),
    Row("fuse, alternating", 1.0, {"layer": "fuse", "last": "alternating"}),
    Row("ribbon, exact", 1.0, {"layer": "ribbon", "last": "exact"}),
    Row("auto", 1.0, {}, 4.2e-5),
    Row("Bloom, varied rates", 0.75, BLOOM, 0.0057),
    Row("auto", 0.75, {}, 1.85e-4),
]


def ranks(count: int) -> Iterator[np.ndarray[Any, Any]]:
    """Return the ranks from 1, in batches."""
    for start in range(1, count + 1, BATCH):
        yield np.arange(start, min(start + BATCH, count + 1))


def negatives(count: int) -> Iterator[np.ndarray[Any, Any]]:
    """Return the most frequent negatives, in batches."""
    return (FIRST_NEGATIVE + batch for batch in ranks(count))


def measured(f: tamis.Stacked, stored: int, universe: int, exponent: float) -> tuple[float, float]:
    """Measure the rate over all negatives by frequency, and its standard deviation."""
    mass = wrong = variance = 0.0
    known, unknown = f.known_fpr, f.fpr_bound
    for batch in ranks(universe):
        weights = batch.astype(float) ** -exponent
        mass += weights.sum()
        wrong += weights[f.contains(FIRST_NEGATIVE + batch)].sum()
        p = np.where(batch <= stored, known, unknown)
        variance += (weights**2 * p * (1 - p)).sum()
    return wrong / mass, variance**0.5 / mass


def run(row: Row, n_keys: int, universe: int) -> tuple[tamis.Stacked, int]:
    """Plan, build, measure and print one row; return the filter and its number of negatives."""
    workload = tamis.Workload.zipf(row.exponent, universe=universe, sample=universe // 2)
    wishes = dict(row.wishes)
    if kind := wishes.pop("plain", None):
        workload, wishes = None, {"layer": kind}
    start = time.perf_counter()
    plan = tamis.plan(n_keys, workload, bits_per_key=BITS_PER_KEY, **wishes)
    planning = time.perf_counter() - start
    start = time.perf_counter()
    f = plan.build(np.arange(n_keys), negatives=negatives(plan.negatives))
    building = time.perf_counter() - start
    assert f.contains(np.arange(n_keys)).all()
    rate, sigma = measured(f, plan.negatives, universe, row.exponent)
    target = "" if row.target is None else f"≤ {row.target:g}"
    print(
        f"{row.name:<22} {row.exponent:<5} {len(f.layers):>6} {plan.negatives / n_keys:>8.2f} "
        f"{f.bits_per_key:>7.3f} {plan.bits_per_key / plan.lower_bound - 1:>6.1%} "
        f"{plan.expected_fpr:>10.3g} {f.expected_fpr:>10.3g} {rate:>10.3g} "
        f"{(rate - f.expected_fpr) / max(sigma, 1e-300):>+7.1f} {target:>10} "
        f"{planning:>8.2f} {building:>8.2f}",
        flush=True,
    )
    return f, plan.negatives


def robustness(f: tamis.Stacked, stored: int, count: int) -> None:
    """Fig. 5a: the fraction of queries for known negatives falls to zero."""
    rng = np.random.default_rng(1)
    known = next(negatives(min(stored, BATCH)))
    unseen = rng.integers(FIRST_UNSEEN, 2**62, count)
    answers = [f.contains(known).mean(), f.contains(unseen).mean()]
    print(f"\nWith fewer queries for known negatives ({f!r}):")
    print(f"{'psi':>6} {'predicted':>10} {'measured':>10}")
    for psi in (1.0, 0.75, 0.5, 0.25, 0.0):
        predicted = psi * f.known_fpr + (1 - psi) * f.fpr_bound
        print(f"{psi:>6} {predicted:>10.3g} {psi * answers[0] + (1 - psi) * answers[1]:>10.3g}")


def main() -> None:
    """Run all rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the keys and negatives")
    parser.add_argument("--only", help="only rows with this in their name")
    options = parser.parse_args()
    n_keys, universe = (10**5, 10**7) if options.quick else (10**6, 10**8)
    print(
        f"{n_keys:,} keys, {universe:,} negatives, half of them known, {BITS_PER_KEY} bits per key"
    )
    print(
        f"{'stack':<22} {'Zipf':<5} {'layers':>6} {'stored/n':>8} {'bits':>7} {'above':>6} "
        f"{'planned':>10} "
        f"{'built':>10} {'measured':>10} {'sigmas':>7} {'target':>10} {'plan s':>8} {'build s':>8}"
    )
    stacks = {}
    for row in ROWS:
        if options.only is None or options.only in row.name:
            stacks[row.name, row.exponent] = run(row, n_keys, universe)
    for key in (("Bloom, varied rates", 1.0), ("ribbon, exact", 1.0)):
        if key in stacks:
            robustness(*stacks[key], 3_000_000)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"\npeak memory {peak / 1e9:.2f} GB (target: 4 GB with 5·10⁷ negatives)")


if __name__ == "__main__":
    main()
