"""The LSM experiments that the earlier version of the paper proposes (6.2), with real files.

Sorted runs of 10³ to 10⁶ keys in files; queries for absent keys by Zipf's law. The first
experiment counts reads, the second lookups per second of processor time: Bloom filters with equal
bits per key, Monkey's (Dayan, Athanassoulis, Idreos 2017), a Bloom stack per run, an exact stack
per run, and `tamis.Collection` with stacks that share one memory. See
`experiments.collections.runs`.
"""

from __future__ import annotations

import functools
import tempfile
from typing import Any

import numpy as np
from experiments.evidence import Evidence, Verdict, experiment
from experiments.stacked.setting import legend_below, show, times

import tamis

LOOKS = {
    "Bloom": "tab:blue",
    "Monkey": "tab:green",
    "stacked Bloom": "tab:orange",
    "exact": "tab:purple",
    "split": "black",
}
EXPONENTS = (0.5, 0.75, 1.0, 1.25)


@functools.cache
def looked_up(quick: bool) -> tuple[dict[str, Any], ...]:
    """Look up absent keys in runs on disk; return reads and speed by size and exponent."""
    from experiments.collections import runs as lsm

    sizes = [10**5, 10**4, 10**3, 10**2] if quick else [10**6, 10**5, 10**4, 10**3]
    budgets = (6, 10) if quick else (4, 6, 8, 10, 12)
    cells = [(1.0, bits) for bits in budgets]
    cells += [
        (skew, bits) for skew in EXPONENTS if skew != 1.0 for bits in ((10,) if quick else (6, 10))
    ]
    rows, runs = [], lsm.keys_of(sizes)
    # Between the keys, so that every block that is asked for exists.
    absent = np.random.default_rng(8).permutation(sum(sizes))[: sizes[0]].astype(np.uint64)
    absent = absent * np.uint64(3) + np.uint64(1)
    some = [int(key) for run in runs for key in run[:50]]
    with tempfile.TemporaryDirectory(prefix="tamis-") as folder:
        tree = lsm.Tree(folder, runs)
        for exponent, bits in cells:
            shares = lsm.zipf(len(absent), exponent)
            rng = np.random.default_rng(10)
            asked = tamis.Workload.from_queries(rng.choice(absent, len(absent), p=shares))
            queries = rng.choice(absent, 5_000 if quick else 50_000, p=shares).tolist()
            for name in LOOKS:
                filters = lsm.filters_of(name, runs, asked, bits)
                for key in some:
                    candidates = [i for i, f in enumerate(filters) if f is None or key in f]
                    assert tree.get(key, candidates) == key + 1
                reads, speed = lsm.lookups(tree, filters, queries)
                rows.append(
                    {
                        "filter": name,
                        "zipf": exponent,
                        "bits_per_key": bits,
                        "expected_reads": lsm.wasted(filters, absent, shares),
                        "counted_reads": reads,
                        "lookups_per_cpu_s": speed,
                    }
                )
        tree.close()
    return tuple(rows)


def picture(rows: Any, column: str, label: str, logarithmic: bool) -> Any:
    """Return what draws a column by size at Zipf 1, and by exponent at 10 bits per key."""

    def draw(figure: Any) -> None:
        figure.set_size_inches(9, 4)
        by_size, by_skew = figure.subplots(1, 2, sharey=True)
        for name, colour in LOOKS.items():
            for axes, x, chosen in (
                (by_size, "bits_per_key", lambda row: row["zipf"] == 1.0),
                (by_skew, "zipf", lambda row: row["bits_per_key"] == 10),
            ):
                part = sorted(
                    (row for row in rows if row["filter"] == name and chosen(row)),
                    key=lambda row, x=x: row[x],
                )
                axes.plot(
                    [row[x] for row in part],
                    [row[column] for row in part],
                    color=colour,
                    marker=".",
                    label=name,
                )
        by_size.set(xlabel="bits per key, Zipf 1", ylabel=label)
        by_skew.set(xlabel="Zipf exponent, 10 bits per key")
        if logarithmic:
            by_size.set_yscale("log")
        else:
            by_size.set_ylim(bottom=0)
        legend_below(figure, by_size, 5)

    return draw


def at_ten(rows: Any, column: str) -> dict[str, float]:
    """Return a column at Zipf 1 and 10 bits per key, by filter."""
    return {
        row["filter"]: row[column]
        for row in rows
        if row["zipf"] == 1.0 and row["bits_per_key"] == 10
    }


@experiment("stacked/early_lsm1", title="Earlier version, LSM experiment 1: disk accesses")
def early_lsm1(quick: bool) -> Evidence:
    """Count the reads of runs in files."""
    rows = looked_up(quick)
    reads = at_ten(rows, "expected_reads")
    return Evidence(
        rows,
        [
            Verdict(
                "Stacked filters allow smaller filters of LSM-trees with as many disk accesses "
                "(proposed, not measured).",
                "no number",
                f"{show(reads['stacked Bloom'])} wasted reads per lookup, Bloom "
                f"{show(reads['Bloom'])}, Monkey {show(reads['Monkey'])}",
                f"{show(reads['split'])} shared memory, {show(reads['exact'])} exact per run",
                "goes further",
                "At 10 bits per key and Zipf 1, expected of the filters as built over all absent "
                "keys; reads of the "
                "files are counted in a column of their own. Sharing one memory by marginal price "
                "wins over equal bits.",
            )
        ],
        picture(rows, "expected_reads", "wasted reads per lookup", True),
    )


@experiment("stacked/early_lsm2", title="Earlier version, LSM experiment 2: lookups per second")
def early_lsm2(quick: bool) -> Evidence:
    """Time the same lookups."""
    rows = looked_up(quick)
    speed = at_ten(rows, "lookups_per_cpu_s")
    return Evidence(
        rows,
        [
            Verdict(
                "Several layers do not notably slow down the lookups of an LSM-tree (proposed, not "
                "measured).",
                "no number",
                f"{times(speed['stacked Bloom'] / speed['Bloom'])} of Bloom's "
                f"{speed['Bloom']:,.0f} per CPU second",
                times(speed["split"] / speed["Bloom"]),
                "agrees" if speed["stacked Bloom"] > 0.8 * speed["Bloom"] else "differs",
                "One lookup at a time through Python, with the files in the cache of the system: "
                "CPU times of one run. A "
                "disk would favour stacks by the reads of experiment 1.",
            )
        ],
        picture(rows, "lookups_per_cpu_s", "lookups per CPU second", False),
    )
