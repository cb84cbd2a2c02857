"""`tamis.StableLearned`: an endless stream in fixed memory, with a classifier's help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self, get_args

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._types import Key, Keys
from tamis.filters.scored import Scored, with_scores
from tamis.filters.stable import Decrement
from tamis.learned.classifier import scorer
from tamis.learned.model import Model
from tamis.planning import stable
from tamis.planning.arguments import one_of
from tamis.planning.stable.drift import Drift, compare
from tamis.planning.stable.groups import Group, Method, StablePlan, fnr_at, groups_of
from tamis.planning.stable.scores import plan_scores


@dataclass(frozen=True)
class Swap:
    """What a change of the model does to a filter."""

    moved: float
    """The share of the sampled members whose group changes: those that came before are denied (or
    meet another group's counters) until they come again."""
    expected_fpr: float
    """The rate in the long run with the new shares."""
    expected_fnr: float
    """The share of members that are denied at the gap, once the moved ones have come again."""


class Shares(NamedTuple):
    """The shares of absent keys and of members in a group."""

    nonmembers: float
    members: float


class StableLearned(_native.StableLearned, Scored):
    """A stable learned filter: a classifier sends each key to one of several stable filters.

    Where members look unlike other keys, their group may err more and forget less. Like
    `StableBloom` it **may deny a key** that came long ago, and keeps its rate for ever. ``model``
    is a `tamis.learned.Model` or anything with ``predict_proba`` (which is not saved); it scores
    the keys themselves, or the ``features`` that are given beside them. A group that the plan
    answers "yes" as a whole does so for members that never came, too.

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

    inserts = True
    one_sided = False
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
        """Make the empty filter of a plan; ``decrement`` is that of `tamis.StableBloom`."""
        if len(plan.borders) + 1 != len(plan.groups):
            raise ValueError("plan has no borders; make it with StableLearned.plan")
        one_of("decrement", decrement, get_args(Decrement))
        asked = scorer(model)
        kernel = cls._empty(
            asked._handle if isinstance(asked, Model) else None,
            list(plan.borders),
            list(plan.groups),
            decrement == "independent",
            plan.gap,
            seed,
            key,
        )
        made = cls._of(kernel)
        made._scorer = asked
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
        """Plan groups from held-out scores: how many, the borders between them, their filters.

        ``groups=1`` is one stable filter for scores up to a threshold, above which all is answered
        "yes" (s-SLBF); more are at most that many filters (g-SLBF), fewer where more do not help.
        ``model_bits``, the size of the model, counts where the advice compares with filters that
        need none. The fewer ``nonmember_scores``, the larger the margin to ``fpr``.
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
        """Plan for keys like these (or their features) and insert them in their order.

        ``nonmembers`` are rows of absent keys that will be asked for; the model must not have been
        trained on any of these rows.
        """
        asked = scorer(model)
        keys, scores = with_scores(asked, keys, features)
        plan = cls.plan(
            scores,
            asked.scores(nonmembers),
            bits=bits,
            fpr=fpr,
            gap=len(scores) if gap is None else gap,
            groups=groups,
            model_bits=asked.size_in_bits if isinstance(asked, Model) else 0,
        )
        made = cls(model, plan, seed=seed, key=key)
        made._pass(keys, scores, True)
        return made

    @property
    def borders(self) -> tuple[float, ...]:
        """The scores that divide the groups; a score belongs to the group below its border."""
        return tuple(self._borders)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups as they were planned."""
        groups = self._groups
        return groups_of(
            [group.nonmembers for group in groups],
            [group.members for group in groups],
            [_size(group) or group.answer for group in groups],
            self.capacity,
        )

    @property
    def stable_fpr(self) -> float:
        """The rate that `expected_fpr` comes to and stays at while scores are as planned."""
        return float(sum(group.nonmembers * group.rate for group in self.groups))

    def expected_fnr(self, gap: float) -> float:
        """Predict the share of members that are denied so many insertions after they came."""
        return fnr_at(self.groups, gap)

    def contains(self, keys: Keys, features: Any = None) -> npt.NDArray[np.bool_]:
        """Tell for each key, with its row of features if the model reads those, if it may be in."""
        return self._passed(keys, features, insert=False)

    def add(self, key: Key, features: Any = None) -> None:
        """Insert a key."""
        self.seen(key, features)

    def update(self, keys: Keys, features: Any = None) -> None:
        """Insert many keys in their order, or none of them if one is not a key."""
        self._passed(keys, features, insert=True)

    def seen(self, key: Key, features: Any = None) -> bool:
        """Tell whether the key was there, and insert it; features are a table of one row."""
        if features is None and isinstance(self._asked(), Model):
            return self._pass_text(key, True)
        return bool(self.seen_many([key], features)[0])  # type: ignore[arg-type]

    def seen_many(self, keys: Keys, features: Any = None) -> npt.NDArray[np.bool_]:
        """Tell for each key whether it was there just before it came, and insert it."""
        return self._passed(keys, features, insert=True)

    def drift(self) -> Drift:
        """Compare the groups that insertions and queries fell into with the plan.

        Queries are those of `contains` and ``in`` since the filter was made, opened, or its model
        swapped; their counts are not saved. Only the groups matter: scores that move within one
        change neither the rate nor what is denied.
        """
        now = self._groups
        return compare(
            self.groups,
            inserted=[group.inserted for group in now],
            queried=[group.queried for group in now],
            accepted=[group.accepted for group in now],
        )

    def swapped(self, model: Any, members: Any, nonmembers: Any) -> tuple[Self, Swap]:
        """Return the filter with another model in front of the same counters, and what is lost.

        ``members`` and ``nonmembers`` are rows of recent keys that both models can score. The new
        borders give each group the share of members that it was planned for, so that as few keys
        as possible change their group, and counters keep what they know of the others. A key whose
        group changes is forgotten until it comes again: `Swap.moved` is their share. The rate is
        no longer what was planned, but `Swap.expected_fpr`; make a new filter if it is too high.
        """
        asked = scorer(model)
        before, after = self._asked().scores(members), asked.scores(members)
        absent = asked.scores(nonmembers)
        for name, scores in (("members", after), ("nonmembers", absent)):
            if len(scores) == 0:
                raise ValueError(f"{name} must not be empty; pass rows of recent keys")
        planned = np.cumsum([group.members for group in self.groups])[:-1]
        borders = np.quantile(after, np.clip(planned, 0, 1)).astype(np.float32)
        for j in range(1, len(borders)):  # borders rise, also where scores are few
            borders[j] = max(borders[j], np.nextafter(borders[j - 1], np.float32(2)))
        p = stable.shares(absent, borders)
        q = stable.shares(after, borders)
        shares = [Shares(*pair) for pair in zip(p.tolist(), q.tolist(), strict=True)]
        kept = asked._handle if isinstance(asked, Model) else None
        kernel = self._swapped(kept, borders.tolist(), shares)
        made = self._of(kernel)
        made._scorer = asked
        old = np.searchsorted(np.array(self.borders, dtype=np.float32), before, side="left")
        moved = float((old != np.searchsorted(borders, after, side="left")).mean())
        return made, Swap(moved, made.stable_fpr, made.expected_fnr(made.capacity))

    def _passed(self, keys: Keys, features: Any, *, insert: bool) -> npt.NDArray[np.bool_]:
        keys, scores = with_scores(self._asked(), keys, features)
        return self._pass(keys, scores, insert)

    def _contains_one(self, key: Key) -> bool:
        return self._pass_text(key, False)

    def _describe(self) -> str:
        return f"{len(self.borders) + 1} groups"


def _size(group: _native.ScoreGroup) -> stable.Size | None:
    """Return the size of a group's filter, if it has one."""
    if group.cells is None or group.most is None:
        return None
    return stable.Size(group.cells, group.most, group.hashes or 0, group.decrements or 0)
