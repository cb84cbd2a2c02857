"""`tamis.StableLearned`: stable Bloom filters behind a classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self, get_args

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._checks import one_of, shown
from tamis._types import Key, Keys
from tamis.filters.scored import Scored, with_scores
from tamis.filters.stable import Decrement
from tamis.learned.classifier import Model, scorer
from tamis.planning import stable
from tamis.planning.stable_learned.group_drift import Drift, compare
from tamis.planning.stable_learned.groups import (
    Group,
    Method,
    StablePlan,
    fnr_at,
    group_shares,
    groups_of,
)
from tamis.planning.stable_learned.scores import plan_scores


@dataclass(frozen=True)
class Swap:
    """The effects of a new model on a filter."""

    moved: float
    """The fraction of the sampled members whose group changes. If added before, they are forgotten
    (unless the counters of the new group accept them) until they are added again."""
    expected_fpr: float
    """The long-run false-positive rate with the new groups."""
    expected_fnr: float
    """The fraction of members rejected at the gap, once the moved ones were added again."""


class Shares(NamedTuple):
    """The fraction of absent keys and of members in a group."""

    nonmembers: float
    members: float


class StableLearned(_native.StableLearned, Scored):
    """A stable learned filter: a classifier assigns each key to one of several stable filters.

    A group of mostly members can have a higher false-positive rate and forget less. Like
    `StableBloom`, it **may reject a key** that was added long ago, and its rate stays at its limit.
    ``model`` is a `tamis.learned.Model`, or any object with ``predict_proba`` (which is not saved).
    It scores the keys, or the ``features`` passed with them. If the plan accepts a whole group,
    members of it are accepted even if they were never added.

    >>> from tamis.learned import train
    >>> users = [f"user-{i * 7919 % 10**6}" for i in range(3000)]
    >>> members, others = users[:2000], users[2000:] + [str(i) for i in range(1000)]
    >>> model = train(members[::2], others[::2], kind="logistic")
    >>> held = model.scores(members[1::2]), model.scores(others[1::2])
    >>> plan = StableLearned.plan(*held, bits=2**14, fpr=0.01, gap=1000, groups=2)
    >>> f = StableLearned(model, plan)
    >>> f.seen("user-77"), f.seen("user-77"), "77" in f
    (False, True, False)

    References: Liu, Zheng, Shen, Chen 2020.
    """

    _kind = "stable_learned"

    def __new__(
        cls,
        model: Any,
        plan: StablePlan,
        *,
        decrement: Decrement = "adjacent",
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Create an empty filter from a plan; see `tamis.StableBloom` for ``decrement``."""
        if not isinstance(plan, StablePlan):
            raise TypeError(f"plan must be a plan of StableLearned.plan, not {shown(plan)}")
        if len(plan.borders) + 1 != len(plan.groups):
            raise ValueError("plan has no borders; make it with StableLearned.plan")
        one_of("decrement", decrement, get_args(Decrement))
        classifier = scorer(model)
        kernel = cls._empty(
            classifier._handle if isinstance(classifier, Model) else None,
            list(plan.borders),
            list(plan.groups),
            decrement == "independent",
            plan.gap,
            seed,
            key,
        )
        made = cls._of(kernel)
        made._scorer = classifier
        return made

    @staticmethod
    def plan(
        member_scores: Any,
        nonmember_scores: Any,
        *,
        bits: int,
        fpr: float,
        gap: int,
        groups: int | None = None,
        method: Method = "optimal",
        model_bits: int = 0,
    ) -> StablePlan:
        """Plan the groups, their borders and their filters from held-out scores.

        With ``groups=1``, there is one stable filter for scores up to a threshold, and all higher
        scores are accepted (s-SLBF). Otherwise there are at most ``groups`` filters (g-SLBF), fewer
        if more do not help. ``model_bits`` is the size of the model, which the advice adds when it
        compares with filters without one. The fewer ``nonmember_scores``, the larger the margin to
        ``fpr``, and the more keys are rejected: without the margin, most plans from a few hundred
        scores exceed ``fpr``.
        """
        return plan_scores(
            member_scores,
            nonmember_scores,
            bits=bits,
            fpr=fpr,
            gap=gap,
            groups=groups,
            method=method,
            model_bits=model_bits,
        )

    @classmethod
    def build(
        cls,
        keys: Keys,
        *,
        nonmembers: Any,
        model: Any,
        bits: int,
        fpr: float,
        features: Any = None,
        gap: int | None = None,
        groups: int | None = None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Plan a filter for keys like these, and insert them in order.

        ``nonmembers`` are absent keys like the queried ones, or their features. The model
        must not have been trained on these keys and nonmembers.
        """
        classifier = scorer(model)
        keys, scores = with_scores(classifier, keys, features)
        plan = cls.plan(
            scores,
            classifier.scores(nonmembers),
            bits=bits,
            fpr=fpr,
            gap=len(scores) if gap is None else gap,
            groups=groups,
            model_bits=classifier.size_in_bits if isinstance(classifier, Model) else 0,
        )
        made = cls(model, plan, seed=seed, key=key)
        made._lookup_scored(keys, scores, True)
        return made

    @property
    def borders(self) -> tuple[float, ...]:
        """The scores between the groups; a score equal to a border belongs to the lower group."""
        return tuple(self._borders)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The planned groups."""
        groups = self._groups
        return groups_of(
            [group.nonmembers for group in groups],
            [group.members for group in groups],
            [_size(group) or group.answer for group in groups],
            self.capacity,
        )

    @property
    def stable_fpr(self) -> float:
        """The limit of `expected_fpr`, as long as scores are distributed as planned."""
        return float(sum(group.nonmembers * group.rate for group in self.groups))

    def expected_fnr(self, gap: float) -> float:
        """Predict the fraction of members rejected ``gap`` insertions after they were added."""
        return fnr_at(self.groups, gap)

    def contains(self, keys: Keys, features: Any = None) -> npt.NDArray[np.bool_]:
        """Return for each key whether it may be in the set; ``features`` has one row per key."""
        return self._lookup(keys, features, insert=False)

    def add(self, key: Key, features: Any = None) -> None:
        """Insert a key."""
        self.seen(key, features)

    def update(self, keys: Keys, features: Any = None) -> None:
        """Insert many keys in order; if one is not a valid key, none is inserted."""
        self._lookup(keys, features, insert=True)

    def seen(self, key: Key, features: Any = None) -> bool:
        """Return whether the key was present, and insert it; ``features`` is a table of one row."""
        if features is None and isinstance(self._resolved_scorer(), Model):
            return self._lookup_text(key, insert=True)
        return bool(self.seen_many([key], features)[0])  # type: ignore[arg-type]

    def seen_many(self, keys: Keys, features: Any = None) -> npt.NDArray[np.bool_]:
        """Insert keys in order; return for each whether it was present before."""
        return self._lookup(keys, features, insert=True)

    def drift(self) -> Drift:
        """Compare the groups that insertions and queries fell into with the plan.

        Queries by `contains` and ``in`` are counted since the filter was made, opened, or its model
        swapped; the counts are not saved. Only the groups matter: scores that move within a group
        change neither the rate nor the rejected members.
        """
        now = self._groups
        return compare(
            self.groups,
            inserted=[group.inserted for group in now],
            queried=[group.queried for group in now],
            accepted=[group.accepted for group in now],
        )

    def swapped(self, model: Any, members: Any, nonmembers: Any) -> tuple[Self, Swap]:
        """Return a filter with another model in front of the same counters, and the effects.

        ``members`` and ``nonmembers`` are recent keys, or their features, that both models can
        score. The new borders give each group its planned fraction of members, so that few keys
        change their group. A key whose group changes is forgotten until it is added again;
        `Swap.moved` is their fraction. The rate becomes `Swap.expected_fpr`; if it is too high,
        plan a new filter.
        """
        classifier = scorer(model)
        before, after = self._resolved_scorer().scores(members), classifier.scores(members)
        absent = classifier.scores(nonmembers)
        for name, scores in (("members", after), ("nonmembers", absent)):
            if len(scores) == 0:
                raise ValueError(f"{name} must not be empty; pass rows of recent keys")
        planned = np.cumsum([group.members for group in self.groups])[:-1]
        borders = np.quantile(after, np.clip(planned, 0, 1)).astype(np.float32)
        for j in range(1, len(borders)):  # keep borders rising even if scores repeat
            borders[j] = max(borders[j], np.nextafter(borders[j - 1], np.float32(2)))
        p = group_shares(absent, borders)
        q = group_shares(after, borders)
        shares = [Shares(*pair) for pair in zip(p.tolist(), q.tolist(), strict=True)]
        kept = classifier._handle if isinstance(classifier, Model) else None
        kernel = self._swapped(kept, borders.tolist(), shares)
        made = self._of(kernel)
        made._scorer = classifier
        old = np.searchsorted(np.array(self.borders, dtype=np.float32), before, side="left")
        moved = float((old != np.searchsorted(borders, after, side="left")).mean())
        return made, Swap(moved, made.stable_fpr, made.expected_fnr(made.capacity))

    def _lookup(self, keys: Keys, features: Any, *, insert: bool) -> npt.NDArray[np.bool_]:
        keys, scores = with_scores(self._resolved_scorer(), keys, features)
        return self._lookup_scored(keys, scores, insert)

    def _contains_one(self, key: Key) -> bool:
        return self._lookup_text(key, insert=False)

    def _describe(self) -> str:
        return f"{len(self.borders) + 1} groups"


def _size(group: _native.ScoreGroup) -> stable.StableSize | None:
    """Return the size of the group's filter, if it has one."""
    if group.cells is None or group.max is None:
        return None
    return stable.StableSize(group.cells, group.max, group.hashes or 0, group.decrements or 0)
