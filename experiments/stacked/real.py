"""Plain and stacked filters of equal size on real data.

    .venv/bin/python experiments/stacked/real.py [--quick]

* A blocklist: the keys are maltrail's, the negatives the domains of the Alexa and Tranco lists.
  The domains are real; their frequencies are modelled, as rank^-1 over the Alexa ranks followed by
  the Tranco domains in random order (that list has no ranks). The planner gets one sample of
  queries, and the filters are measured on another.
* Four request traces: the fraction of queries for unseen values, estimated and actual, and the
  predicted and measured rates, with three random halves of the values as keys.
* A cache: requests to a Twitter cluster. A random half of the objects is the set; the planner gets
  the first half of the requests, and the filters are measured on the second. All data are real.

Rates are measured over the queries for absent keys. "At psi now" is the prediction for the actual
fraction of queries for stored negatives.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

import tamis

sys.path.insert(0, str(Path(__file__).parents[1]))
import data


def compare(keys, seen, asked, bits: float) -> None:
    """Print predicted and measured rates; ``asked`` are queries for absent keys only."""
    w = tamis.Workload.from_queries(seen, keys=keys)
    print(w)
    n = len(tamis._native.Distinct(keys))
    print(f"{len(asked):,} queries for absent keys, at {bits} bits per key:")
    print("filter                     bits/key  predicted  at psi now  measured        ±  layers")
    hashes, counts = np.unique(tamis.hash_keys(asked)[:, 0], return_counts=True)
    for name, workload, wishes in (
        ("plain Bloom", None, {"layer": "bloom"}),
        ("stacked Bloom, equal", w, {"layer": "bloom", "last": "alternating", "rates": "equal"}),
        ("stacked Bloom, varied", w, {"layer": "bloom", "last": "alternating"}),
        ("stacked quotient", w, {"layer": "quotient", "last": "alternating"}),
        ("plain ribbon", None, {"layer": "ribbon"}),
        ("exact last layer", w, {"last": "exact"}),
        ("auto", w, {}),
    ):
        plan = tamis.plan(n, workload, bits_per_key=bits, **wishes)
        f = plan.build(keys)
        assert f.contains(keys).all()
        measured = f.contains(asked).mean()
        # A filter errs per key, not per query: the deviation is that of the keys not stored.
        stored = tamis.hash_keys(w.head(plan.negatives))[:, 0]
        others = counts[~np.isin(hashes, stored)]
        now = plan.rate_at(1 - others.sum() / counts.sum())
        spread = np.sqrt((others.astype(float) ** 2).sum() * plan.fpr_bound) / counts.sum()
        print(
            f"{name:<26} {f.bits_per_key:>8.3f} {plan.expected_fpr:>10.3g} {now:>11.3g}"
            f" {measured:>9.3g} {spread:>8.1g} {len(plan.layers):>7}"
        )


def traces(seeds: int) -> None:
    """Predicted and measured rates where the first half of a trace is known."""
    print("\nTraces: a random half of the values are keys, the second half of the log is queried")
    print("trace       unseen: left out  estimate   actual   rate: predicted  measured  ratio  by")
    for name in ("twitter52", "orm_busy", "web07", "web12"):
        trace = data.table(f"trace_{name}", ["key"]).column(0).to_numpy()
        values = np.unique(trace)
        known, asked = np.array_split(trace, 2)
        for seed in range(3):
            rng = np.random.default_rng(seed)
            keys = rng.choice(values, len(values) // 2, replace=False)
            absent = asked[~np.isin(asked, keys)]
            w = tamis.Workload.from_queries(known, keys=keys)
            plan = tamis.plan(len(keys), w, bits_per_key=8)
            filters = (plan.build(keys, seed=s) for s in range(seeds))
            rate = np.mean([f.contains(absent).mean() for f in filters])
            left_out = np.count_nonzero(w.counts == 1) / w.counts.sum()
            truth = 1 - np.isin(absent, w.values).mean()
            print(
                f"{name:<18} {left_out:>9.4f} {w.unseen:>9.4f} {truth:>8.4f} "
                f"{plan.expected_fpr:>17.3g} {rate:>9.3g} {plan.expected_fpr / rate:>6.2f}"
                f"  {w.unseen_method}",
                flush=True,
            )


def blocklist(queries: int, rng: np.random.Generator) -> None:
    keys = data.table("blocklist_maltrail", ["indicator"]).column(0)
    ranked = data.table("domains_alexa100k", ["domain"]).column(0).to_pylist()
    tranco = data.table("domains_tranco1m", ["domain"]).column(0).to_pylist()
    rest = sorted(set(tranco) - set(ranked))
    domains = np.array([*ranked, *rng.permutation(rest)], dtype=object)
    known = tamis.hash_keys(keys)[:, 0]
    domains = domains[~np.isin(tamis.hash_keys(domains.tolist())[:, 0], known)]
    shares = 1 / np.arange(1, len(domains) + 1)
    shares /= shares.sum()
    seen, asked = (domains[rng.choice(len(domains), queries, p=shares)] for _ in range(2))
    print(f"\nBlocklist: {len(keys):,} keys, {len(domains):,} absent domains, frequencies modelled")
    compare(keys, seen.tolist(), asked.tolist(), 8)


def cache(rng: np.random.Generator) -> None:
    objects = data.table("trace_twitter52", ["key"]).column(0).to_numpy()
    names = np.unique(objects)
    keys = rng.choice(names, len(names) // 2, replace=False)
    half = len(objects) // 2
    asked = objects[half:]
    asked = asked[~np.isin(asked, keys)]
    print(
        f"\nCache: {len(keys):,} of {len(names):,} objects are keys; {len(objects):,} real requests"
    )
    compare(keys, objects[:half], asked, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    traces(2 if quick else 8)
    rng = np.random.default_rng(1)
    cache(rng)
    blocklist(200_000 if quick else 5_000_000, rng)


if __name__ == "__main__":
    main()
