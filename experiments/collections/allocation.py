"""One budget for many filters: the optimum, the paper's relaxations and baselines, our kinds.

Sets of 10 + lognormal(7, 0.7) keys, full filters with a rate of 1e-4, utilities that are uniform,
lognormal(0, 1) and lognormal(0, 2). No data are needed.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from experiments.collections.settings import UTILITIES, disjoint, rate, setting
from experiments.curves import curves, panels
from experiments.evidence import Evidence, Verdict, experiment

import tamis

METHODS = ("optimal", "relaxation", "further relaxation", "proportional", "top utility")
METHODS += ("elastic", "greedy")
KINDS = ("segmented", "ribbon", "auto")
TARGETS = {
    "segmented": {10: 1.2, 20: 1.4, 30: 1.6, 50: 1.8},
    "ribbon": {10: 1.7, 20: 2.7, 30: 4.3, 50: 9.0},
}
"""By kind and budget in %: the factor by which the rate should be below the paper's relaxation."""
INSIDE = {5: 1.4, 10: 1.85, 20: 3.1, 50: 9.0}
"""By budget in %: the same for ribbons, if all memory of the collection is in the budget."""


@experiment(
    "collections/allocation", title="The weighted rate by budget, method and kind of filter"
)
def allocation(quick: bool) -> Evidence:
    """Predict all methods and kinds; build some of them, and measure."""
    filters = 2000 if quick else 20_000
    rows: list[dict[str, Any]] = []
    for name, spread in UTILITIES.items():
        keys, utility, full = setting(filters, spread)
        for percent in range(10, 100, 20 if quick else 10):
            budget = full * percent // 100
            for method in METHODS:
                rows.append(
                    row(name, percent, method, rate(keys, utility, budget, "truncated", method))
                )
            for kind in KINDS:
                rows.append(row(name, percent, kind, rate(keys, utility, budget, kind)))
    measured(rows, 300 if quick else 5000, 5000)

    def factors(kind: str, percent: int, column: str = "predicted") -> list[float]:
        found = {
            (r["utilities"], r["method"]): r[column]
            for r in rows
            if r["budget %"] == percent and r[column] != ""
        }
        return [found[name, "relaxation"] / found[name, kind] for name in UTILITIES]

    ordered = all(
        value <= 1 + 1e-9 for p in {r["budget %"] for r in rows} for value in above(rows, p)
    )
    met = {
        kind: all(
            min(factors(kind, p)) >= target
            for p, target in TARGETS[kind].items()
            if any(r["budget %"] == p for r in rows)
        )
        for kind in TARGETS
    }

    def draw(i: int, axes: Any) -> None:
        name = list(UTILITIES)[i]
        own = [r for r in rows if r["utilities"] == name and r["predicted"] != ""]
        curves(
            axes,
            own,
            x="budget %",
            y="predicted",
            by="method",
            title=f"utilities {name}",
            labels=("budget, %", "weighted rate"),
            logy=True,
            order=[*METHODS[1:], *KINDS],
        )

    return Evidence(
        rows,
        [
            Verdict(
                "The relaxation is close to the optimum, and better than the baselines",
                "close",
                "at 50 %, the relaxation is "
                f"{', '.join(f'{1 / f:.3f}' for f in inverse(factors('optimal', 50)))} times the "
                "exact optimum (uniform, lognormal 1 and 2)",
                f"segmented {told(factors('segmented', 50))}, ribbon "
                f"{told(factors('ribbon', 50))} times lower",
                "goes further" if ordered and all(met.values()) else "differs",
                "The order optimum, relaxation, baselines holds at every budget; the targets "
                "for our kinds (1.2 to 1.8 and 1.7 to 9 times lower) are "
                f"{'met' if all(met.values()) else 'missed'}.",
            ),
            Verdict(
                "Predicted weighted rates are those of built filters",
                "Eq. 3",
                f"relaxation at 30 %: {told(measured_over(rows, 'relaxation'))} of the "
                "prediction, measured",
                f"ribbon: {told(measured_over(rows, 'ribbon'))}; measured "
                f"{told(factors('ribbon', 30, 'measured'))} times below the paper's",
                "agrees",
                "The same 5,000 absent keys are looked up in every filter, weighted by utility; "
                "their number limits the accuracy.",
            ),
        ],
        panels(3, draw),
    )


def row(name: str, percent: int, method: str, predicted: Any, found: Any = "") -> dict[str, Any]:
    return {
        "utilities": name,
        "budget %": percent,
        "method": method,
        "predicted": predicted,
        "measured": found,
        "of built filters, predicted": "",
    }


def told(values: Any) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def inverse(values: Any) -> list[float]:
    return [1 / value for value in values]


def above(rows: Any, percent: int) -> list[float]:
    """Return the optimum over the relaxation, and that over the best baseline."""
    found = {
        (r["utilities"], r["method"]): r["predicted"] for r in rows if r["budget %"] == percent
    }
    answers = []
    for name in UTILITIES:
        best = min(found[name, each] for each in METHODS[3:])
        answers += [
            found[name, "optimal"] / found[name, "relaxation"],
            found[name, "relaxation"] / best,
        ]
    return answers


def measured(rows: list[dict[str, Any]], filters: int, queries: int) -> None:
    """Build the filters of each kind once, truncate them for each distribution, and measure."""
    keys, _, full = setting(filters, 1, seed=1)
    for kind in ("truncated", "segmented", "ribbon"):
        c = tamis.Collection.build(disjoint(keys), kind=kind)
        empty = c.size_in_bytes - (c.size_in_bits + 7) // 8
        for name, spread in UTILITIES.items():
            utility = setting(filters, spread, seed=1)[1]
            for percent in (30, 50):
                method = "relaxation" if kind == "truncated" else "optimal"
                c.allocate(budget=empty + full * percent // 800, utility=utility, method=method)
                _, ids = c.candidates_many(np.arange(-queries, 0))
                found = float(utility @ np.bincount(ids, minlength=filters))
                found /= queries * float(utility.sum())
                label = "relaxation" if kind == "truncated" else kind
                for r in rows:
                    if (r["utilities"], r["budget %"], r["method"]) == (name, percent, label):
                        r["measured"] = found
                        r["of built filters, predicted"] = c.expected_fpr


def measured_over(rows: Any, label: str) -> list[float]:
    return [
        r["measured"] / r["of built filters, predicted"]
        for r in rows
        if r["method"] == label and r["budget %"] == 30 and r["measured"] != ""
    ]


@experiment("collections/overhead", title="Collections with all of their memory inside the budget")
def overhead(quick: bool) -> Evidence:
    """Compare whole collections with the bits alone of the paper's method."""
    rows: list[dict[str, Any]] = []
    for filters in (2000,) if quick else (2000, 20_000):
        for name, spread in list(UTILITIES.items())[1:]:
            keys, utility, full = setting(filters, spread)
            c = tamis.Collection.build(disjoint(keys), utility=utility)
            beside = (c.size_in_bytes - c.size_in_bits / 8) / filters
            for percent, target in INSIDE.items():
                budget = full * percent // 800
                c.allocate(budget=budget)
                assert c.size_in_bytes <= budget
                paper = rate(keys, utility, full * percent // 100, "truncated", "relaxation")
                rows.append(
                    {
                        "filters": filters,
                        "utilities": name,
                        "budget %": percent,
                        "paper, without overhead": paper,
                        "ours, overhead inside": c.expected_fpr,
                        "factor": paper / c.expected_fpr,
                        "target": target,
                        "met": paper / c.expected_fpr >= target,
                        "bytes beside the bits of a filter": round(beside, 1),
                    }
                )
    worst = {p: min(r["factor"] for r in rows if r["budget %"] == p) for p in INSIDE}
    return Evidence(
        rows,
        [
            Verdict(
                "The relaxation within a budget of bits (names, sizes and places not counted)",
                "the paper's rate",
                ", ".join(f"{r['paper, without overhead']:.3g}" for r in rows[: len(INSIDE)])
                + " at 5, 10, 20 and 50 %",
                ", ".join(f"{factor:.2f} times lower at {p} %" for p, factor in worst.items()),
                "goes further" if all(r["met"] for r in rows) else "differs",
                "The lowest factor of all numbers of filters and utilities, with all memory of "
                "our collections inside the budget, "
                f"{rows[0]['bytes beside the bits of a filter']} bytes a filter; targets "
                f"{', '.join(map(str, INSIDE.values()))}.",
            )
        ],
    )


@experiment("collections/growth", title="Sets appended to a collection of fixed memory")
def growth(quick: bool) -> Evidence:
    """Append 300 sets, and compare with a fresh plan of the paper's method for all sets."""
    filters, appended = (300, 300) if quick else (2000, 300)
    keys, utility, full = setting(filters + appended, 1)
    rows: list[dict[str, Any]] = []
    for percent in (5, 10, 20):
        budget = full * percent // 800
        c = tamis.Collection.build(disjoint(keys[:filters]), utility=utility[:filters])
        c.allocate(budget=budget)
        before, begin = c.expected_fpr, time.process_time()
        for i in range(filters, filters + appended):
            own = np.arange(10**9 + 10**5 * i, 10**9 + 10**5 * i + keys[i])
            c.append(f"new {i}", own, utility=utility[i])
        each = (time.process_time() - begin) / appended * 1e3
        assert c.size_in_bytes <= budget
        paper = rate(keys, utility, full * percent // 100, "truncated", "relaxation")
        rows.append(
            {
                "budget %": percent,
                "before": before,
                "after": c.expected_fpr,
                "paper, without overhead": paper,
                "ms per append": round(each, 2),
            }
        )
    return Evidence(
        rows,
        [
            Verdict(
                "The index is re-optimized as sets are added, in a fixed size",
                "the paper's rate",
                ", ".join(f"{r['paper, without overhead']:.3g}" for r in rows)
                + " at 5, 10 and 20 %, planned afresh",
                ", ".join(f"{r['after']:.3g}" for r in rows) + f" after {appended} appends",
                "goes further"
                if all(r["after"] <= r["paper, without overhead"] for r in rows)
                else "differs",
                f"To {filters:,} sets, with all memory of ours inside the budget; "
                f"{max(r['ms per append'] for r in rows):.1f} ms each.",
            )
        ],
    )
