"""How much of the absent rows a model must see: training shares from 0.2 to 0.8."""

from __future__ import annotations

from functools import partial

import numpy as np
from experiments.arena import families, grounds, models, plots
from experiments.arena.families import BLOOM, FAMILIES, TooSmall
from experiments.evidence import Evidence, Verdict, experiment

import tamis

SHARES = {True: (0.2, 0.8), False: (0.2, 0.4, 0.6, 0.8)}
BUDGET = 8
SEED = 1
MOST = 100_000
"""Rows of each kind to train with, so that the share matters."""


@experiment("arena/training", title="Training on a share of the absent rows", data=grounds.DATA)
def training(quick: bool) -> Evidence:
    """Rates of learned filters over distinct rows: all, and those that no model has seen."""
    rows = []
    for name in grounds.MAKERS:
        ground = grounds.ground(name, quick)
        for share in SHARES[quick]:
            trained = models.trained(ground, share, MOST)
            unseen = ~np.isin(ground.others, trained.known)
            for family in FAMILIES:
                if family.name not in (BLOOM, "Ribbon") and family.group != "learned":
                    continue
                try:
                    if family.group == "learned":
                        form = family.name.removeprefix("Learned, ")
                        built = families.learned_with(trained, ground, BUDGET, SEED, form)
                    else:
                        stream = grounds.stream(name, "uniform", quick)
                        built = family.build(ground, stream, BUDGET, SEED)
                except (TooSmall, tamis.BuildError):
                    continue
                wrong = built.ask(ground.others)
                is_learned = family.group == "learned"
                rows.append(
                    {
                        "data": name,
                        "budget": BUDGET,
                        "share": share,
                        "family": family.name,
                        "group": family.group,
                        "bits_per_key": round(built.bits() / ground.members, 3),
                        "rate": float(f"{wrong.mean():.4g}"),
                        "rate_unseen": float(f"{wrong[unseen].mean():.4g}"),
                        "rows_unseen": int(unseen.sum()),
                        "training_ms": round(trained.nanoseconds / 1e6) if is_learned else 0,
                    }
                )
    return Evidence(rows, [verdict(rows, quick)], partial(
        plots.draw,
        rows=rows,
        x="share",
        y="rate_unseen",
        label=f"share of the absent rows that train the model, {BUDGET} bits per key",
        percent=True,
        strong=("Learned, partitioned", "Learned, sandwiched", "Learned, simple", "Ribbon"),
    ))  # fmt: skip


def verdict(rows: list[dict], quick: bool) -> Verdict:
    """Compare the least and the largest share, by the partitioned filter."""
    found, against = [], []
    least, most = SHARES[quick][0], SHARES[quick][-1]
    for name in grounds.MAKERS:
        rate = {
            (row["family"], row["share"]): row["rate_unseen"] or 1 / row["rows_unseen"]
            for row in rows
            if row["data"] == name
        }
        ours = "Learned, partitioned"
        if (ours, least) in rate and (ours, most) in rate:
            found.append(f"{name} {rate[ours, least]:.2g} to {rate[ours, most]:.2g}")
            against.append(rate["Ribbon", most] / rate[ours, most])
    return Verdict(
        "Learned filters vary with the data and with the share of it that trains the model.",
        "variable",
        f"rate at a share of {least} to that at {most}: {'; '.join(found)}",
        f"{min(against):.2g} to {max(against):.2g}× lower than Ribbon of the same size at {most}",
        "agrees",
        "On rows that no model has seen. The data matter far more than the share: a linear model "
        "has few weights, and has seen enough rows at the smallest share.",
    )
