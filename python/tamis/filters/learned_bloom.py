"""`tamis.LearnedBloom`: a classifier, and filters for the keys that it cannot recognize."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._checks import check_int, rate_or_budget, shown
from tamis._types import Key, Keys
from tamis.errors import BuildError
from tamis.filters.contract import Filter
from tamis.filters.ribbon import Ribbon
from tamis.filters.scored import Scored, with_scores
from tamis.learned.classifier import Model, Scorer, scorer
from tamis.learned.training import ClassifierKind, train
from tamis.planning import learned_bloom as planning
from tamis.planning.kinds import KINDS

_ANY_RATE_STEP = 0.25
"""Step of the rates of filters that can have any rate, in halvings."""

_PROBE = 4096
"""Keys of the filters that measure the bits for halving the rate."""

_ATTEMPTS = 20

_LOGIT_MARGIN = 2.0**-12
"""How far an external classifier's logit for a row may differ between calls (alone, in a batch, on
another number of threads) without its key being rejected: hundreds of roundings of a float32."""

_REGION = 96
"""Bits of a border and a fraction, per region."""


class LearnedBloom(_native.LearnedBloom, Scored):
    """A learned Bloom filter: static, and smaller if a classifier can recognize the keys.

    A classifier scores a key, or its ``features``. The range of scores is divided into regions. A
    region has a filter of its keys, accepts everything, or accepts nothing if it has no keys; so no
    key is ever rejected. ``form`` is ``"partitioned"`` into ``regions`` (PLBF), ``"simple"`` (one
    threshold, one backup filter) or ``"sandwiched"`` (the same behind a filter of all keys).
    ``expected_fpr`` holds for queries like the ``nonmembers``.

    >>> members = [f"user-{i}" for i in range(2000)]
    >>> others = [f"{i}.example.com" for i in range(4000)]
    >>> f = LearnedBloom.build(members, nonmembers=others, kind="logistic", fpr=0.001)
    >>> bool(f.contains(members).all()), "7.example.com" in f
    (True, False)

    References: Kraska et al. 2018; Mitzenmacher 2018; Vaidya et al. 2021; Sato, Matsui 2023.
    """

    _kind = "learned"

    @classmethod
    def build(
        cls,
        keys: Keys,
        *,
        nonmembers: Any,
        model: Any = None,
        kind: ClassifierKind | None = None,
        features: Any = None,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        form: planning.Form = "partitioned",
        regions: int = 6,
        filter: type[Filter] = Ribbon,
        seed: int = 0,
        key: bytes | None = None,
        **arguments: Any,
    ) -> Self:
        """Build a filter of these keys; its size includes the classifier.

        - ``features``: one row per key; by default, the keys themselves are scored.
        - ``nonmembers``: absent keys like the queried ones, or their features.
        - ``model``: a `tamis.learned.Model`, or any object with ``predict_proba`` (which is neither
          saved nor counted). It must not have been trained on these nonmembers, and must score a
          row alike in every call, up to rounding: keys near a border are in both regions.
        - ``kind``: instead of ``model``, the kind of model to train on every other nonmember; the
          others are used to plan.
        - ``filter``: the class of the filters; its ``build`` gets the other ``arguments``.
        """
        fpr, bits_per_key = rate_or_budget(fpr, bits_per_key)
        regions = check_int("regions", regions, 256, minimum=1)
        if not (isinstance(filter, type) and issubclass(filter, Filter)):
            raise TypeError(
                f"filter must be a class of filters, such as Ribbon, not {shown(filter)}"
            )
        inputs = keys if features is None else features
        if (model is None) == (kind is None):
            raise ValueError("pass exactly one of model or kind")
        if kind is not None:
            model = train(inputs, nonmembers[::2], kind=kind, seed=seed)
            nonmembers = nonmembers[1::2]
        classifier = scorer(model)
        keys, scores = with_scores(classifier, keys, features)
        scored = _native.ScoredKeys(keys, scores, seed, key)
        parts = planning.segments(scored.scores, classifier.scores(nonmembers))
        budget = None
        if bits_per_key is not None:
            count = len(scored.in_front())
            budget = math.floor(bits_per_key * count)
            _check_budget(bits_per_key, count, classifier.size_in_bits)
        described = KINDS[filter._kind]
        any_rate = described.layer is not None and described.continuous
        step = _ANY_RATE_STEP if any_rate else 1.0
        mixed = described.fractional is not None
        halving = _halving(filter, arguments)
        left = None if budget is None else float(budget - classifier.size_in_bits - _REGION)
        for attempt in range(_ATTEMPTS):
            bits = None if left is None else max(left, 0.0) / halving
            plan = planning.plan(
                parts, form=form, regions=regions, fpr=fpr, bits=bits, step=step, mixed=mixed
            )
            found = cls._of(_build_regions(classifier, plan, scored, filter, arguments))
            found._scorer = classifier
            if left is None or budget is None or found.size_in_bits <= budget:
                return found
            # Doubled, because the plan changes only when a whole step of a rate no longer fits.
            left -= max(found.size_in_bits - budget, halving) * 2**attempt
        raise BuildError(
            f"bits_per_key must be at least {found.bits_per_key:.2f} for {filter.__name__} filters "
            f"of this few keys, not {bits_per_key}"
        )

    @property
    def borders(self) -> tuple[float, ...]:
        """The scores between the regions."""
        return tuple(self._borders)

    @property
    def regions(self) -> tuple[tuple[float, float], ...]:
        """The fraction of nonmembers in each region, and the rate of its filter."""
        return tuple((region.share, region.rate) for region in self._regions)

    def contains(self, keys: Keys, features: Any = None) -> npt.NDArray[np.bool_]:
        """Return for each key whether it may be in the set; ``features`` has one row per key."""
        keys, scores = with_scores(self._resolved_scorer(), keys, features)
        return self._contains_scored(keys, scores)

    def _contains_one(self, key: Key) -> bool:
        return self._contains_text(key)

    def _describe(self) -> str:
        behind = " behind a filter" if self._front else ""
        return f"{len(self._borders) + 1} regions{behind}"


def _check_budget(bits_per_key: float, keys: int, model_bits: int) -> None:
    needed = (model_bits + _REGION) / max(keys, 1)
    if bits_per_key < needed:
        raise ValueError(
            f"bits_per_key must be above {needed:.2f}, the size of the model for {keys} keys, "
            f"not {bits_per_key}; or use a smaller model"
        )


def _halving(filter: type[Filter], arguments: dict[str, Any]) -> float:
    """Return how many bits per key halving the rate adds in this class."""
    few, many = 4, 12
    distinct = _native.Distinct(range(_PROBE))
    small, large = (
        filter._plan_kernel(distinct, fpr=2.0**-halvings, **arguments).size_in_bits / _PROBE
        for halvings in (few, many)
    )
    return (large - small) / (many - few)


def _build_regions(
    classifier: Model | Scorer,
    plan: planning.LearnedPlan,
    scored: _native.ScoredKeys,
    filter: type[Filter],
    arguments: dict[str, Any],
) -> _native.Handle:
    exact = isinstance(classifier, Model)  # scores a key bit for bit alike, alone or in a batch
    regions = scored.by_region(plan.borders, 0.0 if exact else _LOGIT_MARGIN)
    everything = scored.in_front()

    def built(keys: _native.Distinct, halvings: float) -> _native.Handle | None:
        if not len(keys) or not halvings:
            return None
        return filter._plan_kernel(keys, fpr=plan.rate(halvings), **arguments)

    return LearnedBloom._join(
        everything,
        classifier._handle if isinstance(classifier, Model) else None,
        built(everything, plan.front),
        plan.borders,
        plan.shares,
        [built(keys, halvings) for keys, halvings in zip(regions, plan.halvings, strict=True)],
        [len(keys) > 0 for keys in regions],
    )
