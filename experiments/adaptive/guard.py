"""A guard over SQLite on a real trace: reads saved and reads wasted, by filter.

A random half of the keys of ``trace_twitter52`` is stored. All filters get the same memory per key;
those that adapt use more as they do. The first fifth of the requests is a warm-up; the rest, the
lifetime, is counted. The stacked filter knows the absent keys of the warm-up, the adaptive ones at
most their frequencies.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import tamis

sys.path.insert(0, str(Path(__file__).parents[1]))
import data

BITS_PER_KEY = 11.6
BATCH = 100
SEED = 1
"""The same for all filters: a few keys make most of the requests, so chance matters."""


def requests(quick: bool) -> np.ndarray:
    keys = data.table("trace_twitter52", ["key"])["key"].to_numpy()
    return keys[: 100_000 if quick else None]


def filters(stored: np.ndarray, warm: np.ndarray, absent: int):
    """Yield the filters by name: empty, which the guard fills, or built from the stored keys."""
    n = len(stored)
    yield "Bloom", tamis.Bloom(capacity=n, bits_per_key=BITS_PER_KEY, seed=SEED)
    yield "Quotient", tamis.Quotient(capacity=n, bits_per_key=BITS_PER_KEY, seed=SEED)
    yield "Ribbon", tamis.Ribbon.build(stored, bits_per_key=BITS_PER_KEY, seed=SEED)
    workload = tamis.Workload.from_queries(warm, keys=stored)
    yield "Stacked", tamis.Stacked.build(stored, workload, bits_per_key=BITS_PER_KEY, seed=SEED)
    yield "Telescoping", tamis.Telescoping(capacity=n, fpr=2**-8, seed=SEED)
    yield "Extending", tamis.Extending(capacity=n, fpr=2**-8, seed=SEED)
    shape = tamis.Workload.from_shape(workload.counts, unseen=workload.unseen)
    zipf = tamis.Workload.zipf(exponent=1.0, universe=n)
    life = {"sizing": "lifetime", "lifetime": absent}
    for name, workload, sizing in (
        ("Adaptive stacked, shape of the warm-up, lifetime", shape, life),
        ("Adaptive stacked, shape of the warm-up, eventual", shape, {}),
        ("Adaptive stacked, Zipf 1, lifetime", zipf, life),
        ("Adaptive stacked, Zipf 1, eventual", zipf, {}),
    ):
        yield (
            name,
            tamis.AdaptiveStacked(n, workload, bits_per_key=BITS_PER_KEY, seed=SEED, **sizing),
        )


def query(guard: tamis.Guard, queries: np.ndarray) -> None:
    for start in range(0, len(queries), BATCH):
        guard.get_many(queries[start : start + BATCH])


def describe(filter) -> str:
    """Describe the state of an adaptive stack."""
    if not isinstance(filter, tamis.AdaptiveStacked):
        return ""
    layers, planned = len(filter.layers), len(filter.plan.stack.layers)
    return f"   {layers} of {planned} {filter.layers[0].kind} layers, {filter.rebuilds} rebuilds"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only the first 100,000 requests")
    stream = requests(parser.parse_args().quick)
    universe = np.unique(stream)
    stored = np.random.default_rng(1).permutation(universe)[: len(universe) // 2]
    warm, counted = np.split(stream, [len(stream) // 5])
    absent = int((~np.isin(counted, stored)).sum())
    print(
        f"{len(counted):,} requests counted for {len(universe):,} keys, {len(stored):,} of them "
        f"stored; {absent:,} requests are for absent keys\n"
    )
    print(
        f"{'filter':48s} {'bits/key':>8s} {'reads saved':>11s} {'wasted':>8s} {'of absent':>9s} "
        f"{'adapted':>7s} {'µs/request':>10s}"
    )
    print(f"{'none':48s} {0:8.2f} {0:11,d} {absent:8,d} {1:9.4%} {'–':>7s} {'':>10s}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.db"
        with tamis.Guard(tamis.stores.SQLite(path), tamis.Bloom(len(stored), fpr=0.01)) as guard:
            guard.put_many((key, b"value") for key in stored.tolist())
        for name, filter in filters(stored, warm, absent):
            with tamis.Guard(tamis.stores.SQLite(path), filter) as guard:
                query(guard, warm)
                before = guard.stats
                start = time.perf_counter()
                query(guard, counted)
                seconds = time.perf_counter() - start
                after = guard.stats
                saved = after.reads_saved - before.reads_saved
                wasted = after.false_positives - before.false_positives
                assert saved + wasted == absent
                print(
                    f"{name:48s} {guard.filter.size_in_bits / len(stored):8.2f} {saved:11,d} "
                    f"{wasted:8,d} {wasted / absent:9.4%} {after.adaptations:7,d} "
                    f"{1e6 * seconds / len(counted):10.2f}{describe(guard.filter)}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
