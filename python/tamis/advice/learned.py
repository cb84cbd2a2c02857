"""Advice on learned filters: train models on a sample, and plan regions on held-out rows."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np

from tamis._columns import as_list, column, take
from tamis._format import format_duration
from tamis.advice.situation import Choice, Found, RuledOut, Situation, ranked
from tamis.filters import LearnedBloom
from tamis.learned import Model, train
from tamis.planning import learned_bloom as planning
from tamis.planning.kinds import SMALLEST, fingerprint_layer

NAME = LearnedBloom.__name__
SAMPLE = 20_000
"""Members, and non-members, to train with. Half as many other non-members are used to plan."""

BUCKETS = (512, 4096)
"""Sizes of text models to try; the model is part of the budget."""

LEVELS = (8, 32)
"""Levels of each column to try, for models of tables."""

SCORE_PER_BYTE, SCORE_PER_COLUMN = 17e-9, 8e-9
"""Seconds that a linear model takes to score a key, by its text or by its row of a table; from
``benches/checks.py``."""

_HELD_OUT = 3
"""One in this many non-members is used to plan, and the others to train: more rows improve
the model, and a plan needs them only for the shares of a few regions."""

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
    order = rng.permutation(len(rows))
    members = _rows(rows, order[:SAMPLE])
    # A model scores its training rows better than others, so plan with rows drawn from all keys.
    planned = members if len(rows) <= SAMPLE else _rows(rows, order[-SAMPLE:])
    found = []
    for model in _models(members, trained, features is not None, seed):
        choice = _predicted(situation, model, planned, held)
        if choice is not None:
            found.append(choice)
    if not found:
        return RuledOut(NAME, "the smallest model exceeds the budget")
    best = ranked(situation, found)[0]
    if features is not None:
        best.arguments["features"] = features
    return best


def penalty(rows: int) -> float:
    """Return the weight of the squared weights in training, for this many rows.

    It adds half of each squared weight to the sum of the losses: a normal prior of variance 1. With
    the default of `train`, models of a few thousand rows overfit.
    """
    return 1 / max(rows, 1)


def _models(members: Any, others: Any, table: bool, seed: int) -> list[Model]:
    sizes: list[dict[str, Any]] = (
        [{"levels": each} for each in LEVELS] if table else [{"buckets": each} for each in BUCKETS]
    )
    prior = penalty(len(members) + len(others))
    return [
        train(members, others, kind="logistic", penalty=prior, seed=seed, **size) for size in sizes
    ]


def _predicted(situation: Situation, model: Model, members: Any, held: Any) -> Choice | None:
    scoring = situation.scale * _scoring(held)
    absent, inside = model.scores(held), model.scores(members)
    spare = situation.budget - model.size_in_bits - _REGIONS * _REGION_BITS
    halving = fingerprint_layer(SMALLEST.name, situation.keys, 8).bits / (
        8 * max(situation.keys, 1)
    )
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
    filters = SMALLEST.options[0]
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
    """Return absent keys to train with and to plan with: as given, or drawn by frequency.

    No value of a workload is in both: a model scores its training values too well, and a plan made
    with them would predict too low a rate.
    """
    if given is not None:
        trained, held = _split(len(given), rng)
        return _rows(given, trained[:SAMPLE]), _rows(given, held[: SAMPLE // 2])
    w = situation.workload
    if w is None or w.values is None or w.counts is None or not len(w):
        return [], []
    values = column(w.values)
    trained, held = _split(len(w), rng)
    if w.unseen < 1:
        trained = _drawn(trained, w.counts[trained], SAMPLE, rng)
        held = _drawn(held, w.counts[held], SAMPLE // 2, rng)
    return take(values, trained[:SAMPLE]), take(values, held[: SAMPLE // 2])


def _split(count: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return positions to train with, and positions to plan with."""
    order = rng.permutation(count)
    held = np.arange(count) % _HELD_OUT == 0
    return order[~held], order[held]


def _drawn(places: Any, counts: Any, limit: int, rng: np.random.Generator) -> Any:
    """Draw positions by frequency."""
    if not counts.sum():
        return places
    return rng.choice(places, min(2 * len(places), limit), p=counts / counts.sum())


def _rows(rows: Any, places: Any) -> Any:
    return rows.iloc[places] if hasattr(rows, "iloc") else take(rows, places)
