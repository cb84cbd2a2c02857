"""Figure 5: insertions and queries per second against the load, on Firehose's active set.

Rounds take turns, and the best counts: compare the filters, not the machines. The vacuum filter of
the paper is not on PyPI and has no Rust or Python kernel here; a cuckoo filter with fingerprints of
12 bits stands for it, which it is a variant of: the authors' C++ of both differs by a fifth.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from experiments.adaptive.filters import OURS, SEED
from experiments.curves import curves, panels
from experiments.evidence import Evidence, Verdict, experiment

import tamis
from tamis.stores import Hashes

BATCH = 1 << 14


def _quotient(cls: Any, **options: Any) -> Callable[[int], Any]:
    return lambda capacity: cls(capacity, fpr=2**-8, seed=SEED, **options)


FILTERS: dict[str, Callable[[int], Any]] = {
    "TAF": _quotient(tamis.Telescoping, selectors="block"),
    "exAF": _quotient(tamis.Extending, selectors="block"),
    OURS: _quotient(tamis.Telescoping, selectors="growing"),
    "uTAF": _quotient(tamis.Telescoping, selectors="plain"),
    "RSQF": _quotient(tamis.Quotient),
    "cuckoo, for vacuum": lambda n: tamis.Cuckoo(n, bits_per_key=12.7, seed=SEED),
}


def seconds(f: Any, queries: np.ndarray, remote: Hashes | None) -> float:
    """Query absent keys and adapt, as the paper does; return the processor time."""
    start = time.process_time()
    for at in range(0, len(queries), BATCH):
        part = queries[at : at + BATCH]
        wrong = f.contains(part)
        if remote is not None:
            f.adapt_many(part[wrong], remote)
    return time.process_time() - start


def measured(slots: int, load: float, queries: np.ndarray, rounds: int) -> list[dict[str, Any]]:
    """Fill each filter to a load, then query it; return millions per second of processor time."""
    capacity, n = int(0.95 * slots), int(load * slots)
    keys = tamis.traces.ranked(range(2**40, 2**40 + n), seed=SEED)
    remote = Hashes(keys, seed=SEED)
    inserting: dict[str, list[float]] = {name: [] for name in FILTERS}
    querying: dict[str, list[float]] = {name: [] for name in FILTERS}
    for _ in range(rounds):
        for name, create in FILTERS.items():
            f = create(capacity)
            start = time.process_time()
            f.update(keys)
            inserting[name].append(time.process_time() - start)
            adapts = hasattr(f, "adapt_many")
            querying[name].append(seconds(f, queries, remote if adapts else None))
    return [
        {
            "load": load,
            "filter": name,
            "insert_mops": n / min(inserting[name]) / 1e6,
            "query_mops": len(queries) / min(querying[name]) / 1e6,
        }
        for name in FILTERS
    ]


@experiment("adaptive/figure5", title="Figure 5: insertions and queries per second by load")
def figure5(quick: bool) -> Evidence:
    slots = 1 << (16 if quick else 22)
    loads = (0.25, 0.5, 0.95) if quick else (0.1, 0.25, 0.5, 0.75, 0.85, 0.95)
    queries = tamis.traces.active_set(300_000 if quick else 5_000_000, seed=SEED)
    rows = [row for load in loads for row in measured(slots, load, queries, 3)]
    full = {row["filter"]: row for row in rows if row["load"] == 0.95}

    def relative(what: str, name: str, to: str) -> float:
        return full[name][what] / full[to][what]

    faster = relative("query_mops", "exAF", "TAF")
    verdicts = [
        Verdict(
            "Queries of the exAF are about twice as fast as those of the TAF, which decodes each.",
            "2 times",
            f"{faster:.2f} times at a load of 0.95",
            f"growing: {relative('query_mops', OURS, 'TAF'):.2f} times the TAF, "
            f"{relative('query_mops', OURS, 'RSQF'):.2f} times the RSQF",
            "agrees" if faster > 1.5 else "differs",
            "Here a block whose elements have not moved is queried without decoding, so that the "
            "TAF need not pay for each query; times are of one run, on this machine.",
        ),
        Verdict(
            "The TAF inserts about as fast as the other filters.",
            "similar",
            "at a load of 0.95, relative to the TAF: "
            + ", ".join(
                f"{name} {relative('insert_mops', name, 'TAF'):.2f}"
                for name in ("RSQF", "exAF", "uTAF", "cuckoo, for vacuum")
            ),
            f"growing: {relative('insert_mops', OURS, 'TAF'):.2f} times the TAF",
            "agrees"
            if all(0.5 < relative("insert_mops", name, "TAF") < 2 for name in ("RSQF", "exAF"))
            else "differs",
            "A cuckoo filter with fingerprints of 12 bits stands for the vacuum filter, its "
            "variant, which has no package: the authors' C++ of the two differs by a fifth.",
        ),
    ]

    def draw(i: int, ax: Any) -> None:
        title, what = (("inserts", "insert_mops"), ("queries", "query_mops"))[i]
        labels = "load factor", "millions per second"
        curves(ax, rows, x="load", y=what, by="filter", title=title, labels=labels)
        ax.set_ylim(bottom=0)

    return Evidence(rows, verdicts, panels(2, draw))
