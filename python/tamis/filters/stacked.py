"""`tamis.Stacked`: layers of keys and known negatives in turns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, SupportsIndex, cast

import numpy as np

from tamis import _native
from tamis._types import Keys
from tamis.filters.contract import Contract
from tamis.filters.layers import Spec
from tamis.planning.arguments import MOST_KEYS, whole
from tamis.planning.plan import Plan
from tamis.planning.planner import plan as planned

if TYPE_CHECKING:
    from tamis.workload import Workload

Kind = Literal["bloom", "quotient", "cuckoo", "fuse", "ribbon", "function"]
Stores = Literal["keys", "negatives", "both"]

_KINDS: dict[int, Kind] = {
    1: "bloom",
    2: "quotient",
    3: "cuckoo",
    4: "fuse",
    5: "ribbon",
    6: "function",
}


# With fewer keys, whole blocks and buckets count for more than a budget per key.
_FEW = 64


class Layer(NamedTuple):
    """A layer as it is: what it holds, how much, in how many bits, and its rate now."""

    kind: Kind
    stores: Stores
    items: int
    bits: int
    rate: float


class Stacked(_native.Deleting, Contract):
    """A filter that knows which absent keys are asked for, and seldom errs on those.

    Layers hold keys and known negatives in turns: the second holds the known negatives that the
    first takes for keys, the third the keys that the second takes for negatives, and so on. Or the
    last is a static function over all that reach it, and then no known negative is answered yes.

    `add`, `update` and `remove` are there where the layers of keys have them, see `inserts` and
    `deletes`; elsewhere they raise a `ValueError`.

    >>> import tamis
    >>> asked = tamis.Workload.zipf(exponent=1.0, universe=20_000, sample=10_000)
    >>> known = range(5000, 15_000)  # the most frequent first
    >>> f = Stacked.build(range(1000), asked, negatives=known, bits_per_key=12)
    >>> bool(f.contains(range(1000)).all()), int(f.contains(known).sum())
    (True, 0)
    >>> f.bits_per_key <= 12, f.expected_fpr < f.fpr_bound
    (True, True)

    References: Deeds, Hentschel, Idreos 2021; Schanck 2025 (the exact last layer).
    """

    @classmethod
    def build(
        cls,
        keys: Keys,
        workload: Workload | None = None,
        *,
        bits_per_key: float | None = None,
        fpr: float | None = None,
        negatives: Keys | Iterator[Keys] | None = None,
        capacity: SupportsIndex | None = None,
        seed: int = 0,
        key: bytes | None = None,
        **wishes: Any,
    ) -> Self:
        """Plan for these keys and this workload, and build; ``wishes`` are those of `tamis.plan`.

        ``negatives`` and ``capacity`` are as in `from_plan`. Without a workload, or with one that
        has no head, it is a plain filter.

        >>> len(Stacked.build([1, 2, 2, 3], fpr=0.01))
        3
        """
        distinct = _native.Distinct(keys, seed, key)
        kernel = cls._built(
            distinct, workload=workload, bits_per_key=bits_per_key, fpr=fpr,
            negatives=negatives, capacity=capacity, **wishes,
        )  # fmt: skip
        return cls._of(kernel)

    @classmethod
    def from_plan(
        cls,
        plan: Plan,
        keys: Keys,
        *,
        negatives: Keys | Iterator[Keys] | None = None,
        capacity: SupportsIndex | None = None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Build the filter of these keys with the layers of a plan.

        ``negatives`` are the most frequent ones first, as a column or as an iterator of columns
        that need not fit in memory together; without them, those of the plan's workload. The first
        ``plan.negatives`` of them are used. Layers
        have the plan's rates, and sizes by what reaches them; where that is more than planned and
        would exceed the plan's budget, the last layers get coarser. ``capacity`` is for keys that
        will be added, if that is more than the keys now.
        """
        distinct = _native.Distinct(keys, seed, key)
        return cls._of(cls._built(distinct, plan=plan, negatives=negatives, capacity=capacity))

    @classmethod
    def _built(cls, distinct: _native.Distinct, **arguments: Any) -> _native.Kernel:
        recipe = Recipe.of(len(distinct), **arguments)
        build = StackBuild(recipe, distinct)
        first = build.first()
        return build.finish(first, recipe.sieved(first))

    @property
    def inserts(self) -> bool:  # type: ignore[override]
        """Whether keys can be added: every layer of keys takes insertions."""
        return _native.stacked_facts(self._kernel)[0]

    @property
    def deletes(self) -> bool:  # type: ignore[override]
        """Whether keys can be removed: every layer of keys takes deletions."""
        return _native.stacked_facts(self._kernel)[1]

    @property
    def bounded(self) -> bool:  # type: ignore[override]
        """Whether a key without room is refused: a layer of keys is a cuckoo filter."""
        return self.inserts and any(layer.kind == "cuckoo" for layer in self.layers[::2])

    @property
    def known_fpr(self) -> float:
        """The rate for known negatives, all alike.

        `expected_fpr` is the mean of this and `fpr_bound` with weights ψ and 1 − ψ.
        """
        return _native.stacked_known_rate(self._kernel)

    @property
    def psi(self) -> float:
        """The share of the questions for absent keys that ask for known negatives (ψ)."""
        return _native.stacked_facts(self._kernel)[2]

    @property
    def keys_among_negatives(self) -> int:
        """How many keys were given as negatives too, and were taken out of those."""
        return _native.stacked_facts(self._kernel)[3]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers, from the first."""
        return told_layers(_native.stacked_layers(self._kernel))

    def _told(self) -> str:
        return ", ".join(f"{layer.kind} of {layer.stores}" for layer in self.layers)


def told_layers(layers: list[tuple[int, int, int, float]]) -> tuple[Layer, ...]:
    """Name what kernels tell of their layers, from the first."""
    found = []
    for index, (kind, items, bits, rate) in enumerate(layers):
        stores: Stores = "both" if kind == 6 else "negatives" if index % 2 else "keys"
        found.append(Layer(_KINDS[kind], stores, items, bits, rate))
    return tuple(found)


class Recipe(NamedTuple):
    """What a stack, or each shard of one, is built from beside its keys."""

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
        **wishes: Any,
    ) -> Self:
        """Settle what was left open, for so many keys in all."""
        room = whole("capacity", capacity or 0, MOST_KEYS)
        if plan is None:
            many = max(keys, room)
            plan = planned(max(many, _FEW), workload, **wishes)
            plan = plan if many >= _FEW else replace(plan, budget=None)
        if len(plan.layers) == 1 or keys == 0:
            negatives = []
        elif negatives is None:
            if plan.workload is None:
                raise ValueError(
                    "negatives is None, and the plan has no workload to take them from"
                )
            negatives = plan.workload.head(plan.negatives)
        return cls(plan, negatives, room)

    def sieved(self, first: _native.Kernel) -> _native.Negatives:
        """Pass the negatives through a first layer; only those that it accepts are kept."""
        survivors = _native.Negatives(first)
        wanted = self.plan.negatives
        batches = self.negatives if isinstance(self.negatives, Iterator) else [self.negatives]
        for batch in batches:
            if wanted <= 0:
                break
            few = _first(batch, wanted)
            survivors.add(few)
            wanted -= len(few) if isinstance(few, Sized) else 0
        return survivors


def _first(column: Keys, count: int) -> Keys:
    """Return the first keys of a column, or all of one that cannot be cut."""
    if not isinstance(column, Sized) or len(column) <= count:
        return column
    if hasattr(column, "slice"):  # Arrow's and Polars'
        return cast(Keys, column.slice(0, count))
    return cast(Keys, column[:count]) if isinstance(column, Sequence | np.ndarray) else column


class StackBuild:
    """A stack as it grows: layers so far, and the keys and negatives that reach the next."""

    def __init__(self, recipe: Recipe, keys: _native.Distinct, share: float = 1.0) -> None:
        """Start with these keys, for so large a share of the recipe's capacity."""
        self.all_keys = self.keys = keys
        self.room = max(len(keys), math.ceil(recipe.capacity * share))
        self.specs = [Spec.of(layer) for layer in recipe.plan.layers]
        self.psi = recipe.plan.psi if len(self.specs) > 1 else 0.0
        budget = recipe.plan.budget
        self.budget = None if budget is None else math.floor(budget * max(self.room, 1))
        self.layers: list[_native.Kernel] = []
        self.used = 0

    def first(self) -> _native.Kernel:
        """Build the first layer."""
        self._add(self.specs[0], self.keys, self.room)
        return self.layers[0]

    def finish(self, first: _native.Kernel, survivors: _native.Negatives) -> _native.Kernel:
        """Build the other layers, and join them."""
        self.layers, self.used = [first], _native.Stored(first).size_in_bits
        self.negatives, overlap = survivors.distinct(self.all_keys)
        while len(self.layers) < len(self.specs) and len(self.keys):
            self._make_room()
            index = len(self.layers)
            if index == len(self.specs):
                break
            if self.specs[index].kind == "function":
                self.psi *= self._add_function(survivors)
                break
            if len(self.negatives) == 0 or not self._add_pair():
                break
        psi = self.psi if survivors.given else 0.0
        exhausted = survivors.given > 0 and len(self.negatives) == 0
        return _native.stacked(self.layers, psi, overlap, exhausted, self.room)

    def _add(self, spec: Spec, items: _native.Distinct, room: int) -> None:
        """Build the next layer: as it should be, or coarser until it fits the budget."""
        seen = _native.stacked_seen(len(self.layers), items) if self.layers else items
        while True:
            kernel = spec.build(seen, max(room, len(items)))
            bits = _native.Stored(kernel).size_in_bits
            coarser = None if self._fits(bits) else spec.coarser()
            if coarser is None:
                break
            spec = coarser
        self.layers.append(kernel)
        self.used += bits

    def _add_pair(self) -> bool:
        """Build a layer of negatives and the layer of those keys that it takes for negatives.

        Both or none: a layer of negatives is of no use without the one that corrects it.
        """
        index, used = len(self.layers), self.used
        before, keys = self.layers[:], self.keys
        self._add(self.specs[index], self.negatives, 0)
        self.keys = _native.stacked_survivors(self.layers[index], index, self.keys)
        self._make_room()
        if len(self.specs) > index + 1:
            room = -(-len(self.keys) * self.room // max(len(self.all_keys), 1))
            self._add(self.specs[index + 1], self.keys, room)
        if len(self.layers) < index + 2 or not self._fits(0):
            self.layers, self.used, self.keys = before, used, keys
            return False
        last = self.layers[index + 1]
        self.negatives = _native.stacked_survivors(last, index + 1, self.negatives)
        return True

    def _add_function(self, survivors: _native.Negatives) -> float:
        """Build the last layer of all keys and negatives left; return the share that it knows."""
        index, negatives, known = len(self.layers), self.negatives, 1.0
        spec = self.specs[index]
        while True:
            assigned = _native.stacked_assigned(index, self.keys, negatives)
            kernel = spec.function(assigned)
            bits = _native.Stored(kernel).size_in_bits
            if self._fits(bits):
                break
            assert self.budget is not None
            # The first to come are the most frequent: the others are as unknown as any.
            keep = len(negatives) - max(self.used + bits - self.budget, len(negatives) // 256)
            if keep < 0:
                return 1.0  # without the function, those above answer for all negatives
            negatives = survivors.earliest(self.negatives, keep)
            known = len(negatives) / max(len(self.negatives), 1)
        self.layers.append(kernel)
        self.used += bits
        return known

    def _fits(self, bits: int) -> bool:
        return self.budget is None or self.used + bits <= self.budget

    def _make_room(self) -> None:
        """Make the last layers coarser, or drop them, until what is left to build should fit."""
        while self.budget is not None and len(self.specs) > len(self.layers):
            if self.specs[-1].kind == "function" or self._fits(self._predicted()):
                return
            last = self.specs[-1].coarser()
            if last is not None:
                self.specs[-1] = last
            elif len(self.specs) - len(self.layers) == 1:
                self.specs.pop()
            elif (before := self.specs[-2].coarser()) is not None:
                self.specs[-2] = before
            else:
                del self.specs[-2:]

    def _predicted(self) -> int:
        """Predict the bits of the layers to come."""
        keys, negatives, bits = float(len(self.keys)), float(len(self.negatives)), 0
        for index in range(len(self.layers), len(self.specs)):
            spec = self.specs[index]
            if index % 2:
                bits += spec.bits(int(negatives))
                keys *= spec.rate
            else:
                bits += spec.bits(int(keys))
                negatives *= spec.rate
        return bits
