"""Advice on learned filters: train models on a sample, and plan regions on held-out rows."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np

from tamis._columns import as_list, column, take
from tamis.advice.situation import Choice, Found, RuledOut, Situation, ranked
from tamis.filters import LearnedBloom
from tamis.learned import Model, train
from tamis.planning import learned as planning
from tamis.planning.costs import SCORE_PER_BYTE, SCORE_PER_COLUMN
from tamis.planning.formats import format_duration
from tamis.planning.kinds import KINDS, fingerprint_layer

NAME = LearnedBloom.__name__
SAMPLE = 20_000
"""Members, and non-members, to train and plan with."""

BUCKETS = (512, 4096)
"""Sizes of text models to try; the model is part of the budget."""

_REGIONS = 6
_REGION_BITS = 96


def learned(
    situation: Situation, keys: Any, features: Any, nonmembers: Any, seed: int = 0
) -> Found:
    """Train models on a sample, and plan filters for the best of them."""
    needs = situation.needs
    for need, why in (
        ("stream", "an endless stream fills it, and its rate goes to 1"),
        ("insert", "keys cannot be added after the build"),
        ("delete", "keys cannot be removed"),
        ("adversary", "an adversary who knows the model can find its false positives"),
    ):
        if need in needs:
            return RuledOut(NAME, why)
    if "classifier" not in needs:
        return RuledOut(NAME, "no classifier may be used (needs: 'classifier')")
    rng = np.random.default_rng(seed)
    trained, held = _nonmembers(situation, nonmembers, rng)
    if not isinstance(keys, Sized) or len(trained) + len(held) < 100:
        return RuledOut(
            NAME, "training needs the keys, and a workload with at least a hundred values"
        )
    rows = column(keys) if features is None else features
    members = _sampled(rows, rng)
    found = []
    for model in _models(members, trained, features is not None, seed):
        choice = _predicted(situation, model, members, held)
        if choice is not None:
            found.append(choice)
    if not found:
        return RuledOut(NAME, "the smallest model exceeds the budget")
    best = ranked(situation, found)[0]
    if features is not None:
        best.arguments["features"] = features
    return best


def _models(members: Any, others: Any, table: bool, seed: int) -> list[Model]:
    if table:
        return [
            train(members, others, kind="logistic", levels=levels, seed=seed) for levels in (8, 32)
        ]
    return [
        train(members, others, kind="logistic", buckets=buckets, seed=seed) for buckets in BUCKETS
    ]


def _predicted(situation: Situation, model: Model, members: Any, held: Any) -> Choice | None:
    scoring = situation.scale * _scoring(held)
    absent, inside = model.scores(held), model.scores(members)
    spare = situation.budget - model.size_in_bits - _REGIONS * _REGION_BITS
    halving = fingerprint_layer("ribbon", situation.keys, 8).bits / (8 * max(situation.keys, 1))
    if spare <= 0:
        return None
    parts = planning.segments(inside, absent)
    spare_halvings = spare / halving * len(inside) / max(situation.keys, 1)
    target: dict[str, Any] = (
        {"bits": spare_halvings} if situation.fpr is None else {"fpr": situation.fpr}
    )
    found = planning.plan(parts, regions=_REGIONS, mixed=True, **target)
    bits = model.size_in_bits + _REGIONS * _REGION_BITS
    bits += round(halving * found.filter_bits * situation.keys / max(len(inside), 1))
    worst = found.rate(
        min((each for each, n in zip(found.halvings, found.members, strict=True) if n), default=0.0)
    )
    filters = KINDS["ribbon"].options[0]
    return Choice(
        NAME,
        "learned",
        NAME,
        {"nonmembers": held, "model": model, **situation.sizing},
        expected_fpr=found.expected_fpr,
        fpr_bound=worst,
        bits=bits,
        keys=situation.keys,
        absent_time=scoring + situation.check(filters, present=False),
        present_time=scoring + situation.check(filters, present=True),
        reason=(
            f"A model of {model.size_in_bits / max(situation.keys, 1):.2g} bits per key recognizes "
            f"members; scoring a key takes {format_duration(scoring)}."
        ),
    )


def _scoring(rows: Any) -> float:
    """Predict the seconds that a model takes to score one row."""
    # Tables of NumPy, Arrow, pandas and Polars have a shape of two numbers; texts do not.
    columns = tuple(getattr(rows, "shape", ()))[1:]
    if columns:
        return SCORE_PER_COLUMN * float(columns[0])
    few = as_list(rows[:1000])
    return SCORE_PER_BYTE * sum(len(str(each)) for each in few) / max(len(few), 1)


def _nonmembers(situation: Situation, given: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return absent keys to train and to plan with: as given, or drawn by frequency.

    No value of a workload is in both: a model knows the values that it was trained on, and a plan
    on them would promise too much for others.
    """
    if given is not None:
        rows = _sampled(given, rng)
        return rows[::2], rows[1::2]
    w = situation.workload
    if w is None or w.values is None or w.counts is None or not len(w):
        return [], []
    values, order = column(w.values), rng.permutation(len(w))
    halves = order[::2], order[1::2]
    if len(w) <= SAMPLE and w.unseen >= 1:
        return take(values, halves[0]), take(values, halves[1])
    trained, held = (take(values, _drawn(half, w.counts[half], rng)) for half in halves)
    return trained, held


def _drawn(places: Any, counts: Any, rng: np.random.Generator) -> Any:
    if not counts.sum():
        return places
    return rng.choice(places, min(2 * len(places), SAMPLE // 2), p=counts / counts.sum())


def _sampled(rows: Any, rng: np.random.Generator) -> Any:
    count = len(rows)
    chosen = rng.permutation(count)[:SAMPLE]
    if hasattr(rows, "iloc"):
        return rows.iloc[chosen]
    return take(rows, chosen)
