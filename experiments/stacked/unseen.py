"""Section 5.1 of Deeds, Hentschel and Idreos 2021: the share of queries for unseen values.

The paper estimates it by leaving one query out, which assumes that queries are independent. Here on
four request traces: a random half of the values are keys, the first half of the log is known, the
second is queried.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from experiments.evidence import Evidence, Verdict, experiment
from experiments.stacked.setting import times

import tamis
from experiments import data

TRACES = ("twitter52", "orm_busy", "web07", "web12")


@experiment(
    "stacked/section5_1",
    title="Section 5.1: the share of unseen queries on real logs",
    data=tuple(f"trace_{name}" for name in TRACES),
)
def section5_1(quick: bool) -> Evidence:
    """Compare the estimates, and the rates that plans predict from them, with what happens."""
    rows: list[dict[str, Any]] = []
    for name in TRACES:
        trace = data.table(f"trace_{name}", ["key"]).column(0).to_numpy()
        values = np.unique(trace)
        known, asked = np.array_split(trace, 2)
        for seed in range(1 if quick else 3):
            rng = np.random.default_rng(seed)
            keys = rng.choice(values, len(values) // 2, replace=False)
            absent = asked[~np.isin(asked, keys)]
            w = tamis.Workload.from_queries(known, keys=keys)
            plan = tamis.plan(len(keys), w, bits_per_key=8)
            built = (plan.build(keys, seed=each) for each in range(2 if quick else 8))
            rate = float(np.mean([f.contains(absent).mean() for f in built]))
            rows.append(
                {
                    "trace": name,
                    "seed": seed,
                    "left_out": np.count_nonzero(w.counts == 1) / w.counts.sum(),
                    "estimate": w.unseen,
                    "actual": 1 - float(np.isin(absent, w.values).mean()),
                    "method": w.unseen_method,
                    "predicted_rate": plan.expected_fpr,
                    "measured_rate": rate,
                }
            )

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        at = np.arange(len(rows))
        for i, (column, label) in enumerate(
            (("left_out", "leaving one out"), ("estimate", "our estimate"), ("actual", "actual"))
        ):
            axes.bar(at + (i - 1) * 0.27, [row[column] for row in rows], 0.27, label=label)
        axes.set_xticks(at, [row["trace"] for row in rows], rotation=30, ha="right", fontsize=8)
        axes.set(ylabel="share of queries for unseen values")
        axes.legend(fontsize=8)

    def worst(column: str, of: str) -> float:
        return max(max(row[column] / row[of], row[of] / row[column]) for row in rows)

    return Evidence(
        rows,
        [
            Verdict(
                "Leaving one query out estimates the share of queries outside the sample.",
                "no number",
                f"off by up to {times(worst('left_out', 'actual'))}",
                f"off by up to {times(worst('estimate', 'actual'))}",
                "differs",
                "Real logs are not independent draws; the larger of leaving one out and a split in "
                "time is closer, and "
                f"predicted rates are within {times(worst('predicted_rate', 'measured_rate'))} of "
                "the measured ones.",
            )
        ],
        draw,
    )
