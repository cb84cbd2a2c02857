"""Builds stacks layer by layer, each from the keys or negatives that the previous layers accept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self, SupportsIndex, cast

import numpy as np
import numpy.typing as npt

from tamis import _native, filters
from tamis._checks import MAX_KEYS, check_int
from tamis._types import Keys
from tamis.planning import ribbon
from tamis.planning.kinds import KINDS
from tamis.planning.plan import Layer, Plan
from tamis.planning.planner import plan as planned

if TYPE_CHECKING:
    from tamis.workload import Workload

_SIGMAS = 5

_LEFT_OUT = 0.1
"""Share of the negatives that may be left out before layers get coarser instead."""

# Below this number of keys, whole blocks and buckets exceed any budget per key.
_FEW = 64


class Recipe(NamedTuple):
    """The inputs of a stack, or of each of its shards, in addition to the keys."""

    plan: Plan
    negatives: Keys | Iterator[Keys]
    capacity: int

    @classmethod
    def of(
        cls,
        keys: int,
        *,
        plan: Plan | None = None,
        workload: Workload | None = None,
        negatives: Keys | Iterator[Keys] | None = None,
        capacity: SupportsIndex | None = None,
        **options: Any,
    ) -> Self:
        """Fill in the defaults, for ``keys`` keys in total."""
        capacity = check_int("capacity", 0 if capacity is None else capacity, MAX_KEYS)
        if plan is None:
            many = max(keys, capacity)
            plan = planned(max(many, _FEW), workload, **options)
            plan = plan if many >= _FEW else replace(plan, budget=None)
        if len(plan.layers) == 1 or keys == 0:
            negatives = []
        elif negatives is None:
            if plan.workload is None:
                raise ValueError("pass negatives: the plan has no workload to take them from")
            negatives = plan.workload.head(plan.negatives)
        return cls(plan, negatives, capacity)

    def known_share(self, known: int, given: int, keys: npt.NDArray[Any], share: float) -> float:
        """Predict which share of the queries for absent keys are for known negatives (ψ).

        The ``known`` most frequent of the ``given`` negatives are known. Negatives at the ranks
        ``keys`` turned out to be keys, so queries for them are not queries for absent keys. A shard
        gets a ``share`` of all queries. Without a workload, ψ is taken from the plan.
        """
        if self.plan.workload is None:
            return self.plan.psi * (known / given)
        curve, ranks = self.plan.workload.curve, keys.astype(np.int64)
        of_keys = np.asarray(curve.psi(ranks + 1) - curve.psi(ranks)) / share
        absent = 1 - float(of_keys.sum())
        if absent <= 0:
            return 0.0
        found = float(curve.psi(known)) - float(of_keys[ranks < known].sum())
        return min(max(found / absent, 0.0), 1.0)

    def survivors(self, first: _native.Handle) -> _native.Negatives:
        """Return the negatives that the first layer accepts."""
        survivors = _native.Negatives(first)
        missing = self.plan.negatives
        batches = self.negatives if isinstance(self.negatives, Iterator) else [self.negatives]
        for batch in batches:
            if missing <= 0:
                break
            few = _first(batch, missing)
            survivors.add(few)
            missing -= len(few) if isinstance(few, Sized) else 0
        return survivors


def _first(column: Keys, count: int) -> Keys:
    """Return the first keys of a column, or all if it cannot be sliced."""
    if not isinstance(column, Sized) or len(column) <= count:
        return column
    if hasattr(column, "slice"):  # Arrow, Polars
        return cast(Keys, column.slice(0, count))
    return cast(Keys, column[:count]) if isinstance(column, Sequence | np.ndarray) else column


class StackBuilder:
    """A stack under construction: its layers, and the items that reach the next layer."""

    def __init__(self, recipe: Recipe, keys: _native.Distinct, share: float = 1.0) -> None:
        """Start with these keys, and this share of the recipe's capacity and queries."""
        self.recipe, self.share = recipe, share
        self.all_keys = self.keys = keys
        self.capacity = max(len(keys), math.ceil(recipe.capacity * share))
        self.planned = list(recipe.plan.layers)
        budget = recipe.plan.budget
        self.budget = None if budget is None else math.floor(budget * max(self.capacity, 1))
        self.layers: list[_native.Handle] = []
        self.used = 0
        self.passing = 1.0  # the share of later keys that all layers of negatives accept

    def first(self) -> _native.Handle:
        """Build the first layer."""
        self._add(self.planned[0], self.keys, self.capacity)
        return self.layers[0]

    def finish(self, first: _native.Handle, survivors: _native.Negatives) -> _native.Handle:
        """Build the other layers and join all of them."""
        self.layers, self.used = [first], first.size_in_bits
        given = survivors.distinct(self.all_keys)
        # Keys pass the first layer, so every key among the negatives is found here.
        self.negatives = given.without(self.all_keys)
        overlap = given.without(self.negatives)
        ranks = survivors.ranks(overlap)
        known = self._leave_out(survivors, ranks)
        while len(self.layers) < len(self.planned) and len(self.keys):
            self._shrink_to_fit()
            index = len(self.layers)
            if index == len(self.planned):
                break
            if self.planned[index].exact:
                known = self._add_function(survivors)
                break
            if len(self.negatives) == 0 or not self._add_pair():
                break
        psi = 0.0
        if survivors.given:
            psi = self.recipe.known_share(known, survivors.given, ranks, self.share)
        exhausted = survivors.given > 0 and len(self.negatives) == 0
        return _native.Stacked._join(self.layers, psi, len(overlap), exhausted, self.capacity)

    def _add(self, layer: Layer, items: _native.Distinct, capacity: int) -> None:
        """Build the next layer as planned, or coarser if it exceeds the budget."""
        seen = items.at_layer(len(self.layers)) if self.layers else items
        capacity = max(capacity, len(items)) if KINDS[layer.kind].inserts else len(items)
        cls: Any = filters.CLASSES[layer.kind]
        coarser = layer.size(capacity)
        while coarser is not None:
            size = coarser
            kernel = cls._build_kernel(size, seen, capacity)
            coarser = None if self._fits(kernel.size_in_bits) else size.coarser(capacity)
        if len(self.layers) % 2:
            self.passing *= size.rate(len(items))
        self.layers.append(kernel)
        self.used += kernel.size_in_bits

    def _add_pair(self) -> bool:
        """Build a layer of negatives, and a layer of the keys that it accepts.

        Both or none: a layer of negatives must be followed by the layer that corrects it.
        """
        index, used, passing = len(self.layers), self.used, self.passing
        before, keys = self.layers[:], self.keys
        self._add(self.planned[index], self.negatives, 0)
        self.keys = self.keys.accepted_by(self.layers[index], index)
        self._shrink_to_fit()
        if len(self.planned) > index + 1:
            layer = self.planned[index + 1]
            self._add(layer, self.keys, self._capacity_below(layer))
        if len(self.layers) < index + 2 or not self._fits(0):
            self.layers, self.used, self.keys, self.passing = before, used, keys, passing
            return False
        last = self.layers[index + 1]
        self.negatives = self.negatives.accepted_by(last, index + 1)
        return True

    def _capacity_below(self, layer: Layer) -> int:
        """Predict how many keys reach a layer below when the stack is at its capacity.

        Which of the later keys do so is random. A full layer of a bounded kind refuses a key, and
        the stack with it, so it has capacity for five standard deviations more.
        """
        to_come = self.capacity - len(self.all_keys)
        if KINDS[layer.kind].bounded and to_come:
            mean = to_come * self.passing
            return len(self.keys) + math.ceil(mean + _SIGMAS * (math.sqrt(mean) + 1))
        return -(-len(self.keys) * self.capacity // max(len(self.all_keys), 1))

    def _add_function(self, survivors: _native.Negatives) -> int:
        """Build the exact last layer; return how many negatives it knows.

        Where not all fit, negatives after the first that is left out count as unknown.
        """
        index, negatives, known = len(self.layers), self.negatives, survivors.given
        while True:
            assigned = _native.Assigned.at_layer(index, self.keys, negatives)
            size = ribbon.size(len(assigned), fingerprint_bits=1)
            kernel = _native.Function._build(size, assigned)
            bits = kernel.size_in_bits
            if self._fits(bits):
                break
            assert self.budget is not None
            # The earliest negatives are the most frequent.
            keep = len(negatives) - max(self.used + bits - self.budget, len(negatives) // 256)
            if keep < 0:
                return survivors.given  # the layers above answer for all
            negatives = survivors.earliest(self.negatives, keep)
            known = int(survivors.ranks(self.negatives)[keep])
        self.layers.append(kernel)
        self.used += bits
        return known

    def _leave_out(self, survivors: _native.Negatives, keys: npt.NDArray[Any]) -> int:
        """Leave out the least frequent negatives that may not fit; return how many are known.

        By chance, more items than planned reach a layer. Coarser or fewer last layers accept more
        of all known negatives, which usually costs far more than leaving a few out. The number of
        items that reach the later layers is not known yet, so two standard deviations are left
        free. ``keys`` are the ranks of the negatives that turned out to be keys.
        """
        too_many = len(self.negatives)
        if self.budget is None or too_many == 0 or self.planned[-1].exact:
            return survivors.given
        keep = math.ceil((1 - _LEFT_OUT) * too_many)
        if self._enough(too_many, 2) or not self._enough(keep, 2):
            return survivors.given
        while too_many - keep > 1:
            middle = (keep + too_many) // 2
            keep, too_many = (middle, too_many) if self._enough(middle, 2) else (keep, middle)
        known = int(survivors.ranks(self.negatives)[keep])
        shares = [
            self.recipe.known_share(count, survivors.given, keys, self.share)
            for count in (survivors.given, known)
        ]
        before, first = self.planned[:], self.planned[0].rate
        self._shrink_to_fit(2)
        coarser = math.prod(layer.rate for layer in self.planned[::2])
        self.planned = before
        if (shares[0] - shares[1]) * first >= shares[0] * coarser:
            return survivors.given
        self.negatives = survivors.earliest(self.negatives, keep)
        return known

    def _fits(self, bits: int) -> bool:
        return self.budget is None or self.used + bits <= self.budget

    def _enough(self, given: int, sigmas: int = 0) -> bool:
        """Predict whether the layers fit with this many negatives, with a margin of ``sigmas``."""
        bits, variance = self._predicted(given)
        return self._fits(bits + math.ceil(sigmas * math.sqrt(variance)))

    def _shrink_to_fit(self, sigmas: int = 0) -> None:
        """Make the last layers coarser, or drop them, until the planned layers should fit."""
        while self.budget is not None and len(self.planned) > len(self.layers):
            if self.planned[-1].exact or self._enough(len(self.negatives), sigmas):
                return
            last = self.planned[-1].coarser()
            if last is not None:
                self.planned[-1] = last
            elif len(self.planned) - len(self.layers) == 1:
                self.planned.pop()
            elif (before := self.planned[-2].coarser()) is not None:
                self.planned[-2] = before
            else:
                del self.planned[-2:]

    def _predicted(self, given: int) -> tuple[int, float]:
        """Predict the bits of the layers that are not built yet, and their variance.

        ``given`` is the number of negatives that reach the next layer.
        """
        keys, negatives, bits, variance = float(len(self.keys)), float(given), 0, 0.0
        for index in range(len(self.layers), len(self.planned)):
            layer = self.planned[index]
            items = negatives if index % 2 else keys
            added = layer.bits_for(int(items))
            bits += added
            if index > len(self.layers) and items:
                variance += added**2 / items
            if index % 2:
                keys *= layer.rate
            else:
                negatives *= layer.rate
        return bits, variance
