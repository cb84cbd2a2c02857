"""`tamis.AdaptiveStacked`: a stack that learns the questions while it answers them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self, SupportsIndex

import numpy as np
import numpy.typing as npt

from tamis import _native, filters
from tamis._types import Key, Keys, Remote
from tamis.errors import FormatError
from tamis.filters.contract import Contract, random_seed
from tamis.filters.stacked import BuiltLayer, built_layers
from tamis.planning.adaptive_stacked import (
    FEW,
    LEAST_SAMPLED,
    PROMISING,
    AdaptivePlan,
    Counts,
    LayerKind,
    Sizing,
    Wish,
    next_step,
    plan_adaptive,
)
from tamis.planning.arguments import MOST_KEYS, whole
from tamis.planning.kinds import KINDS
from tamis.planning.plan import Layer
from tamis.planning.stacked.lifetime import fitted, seen

if TYPE_CHECKING:
    from tamis.workload import Workload

_LEAST_SHARE = 2.0**-40


class Observed(NamedTuple):
    """Questions for absent keys that were counted, and the false positives among them."""

    negatives: int
    false_positives: int

    @property
    def fpr(self) -> float:
        """The share of false positives."""
        return self.false_positives / self.negatives if self.negatives else 0.0


class AdaptiveStacked(_native.AdaptiveStacked, Contract):
    """A stacked filter that needs to know only how skewed the questions are, not what they ask.

    It begins with its first layer. Absent keys that pass, told to it by `adapt`, are collected in
    a second layer; when that is full, a scan of the stored hashes (the *remote*) builds the third,
    and so on. If later false positives come half as often again as expected, the layers above the
    first are given up and learnt anew; if that does not help, it fits a new shape to what it saw
    and plans again. No stored key is denied at any time.

    ``workload`` may be a shape alone, such as `Workload.zipf`. ``sizing="eventual"`` plans the
    stack that is best in the end; ``"lifetime"`` three layers that are soon there and best on
    average over ``lifetime`` questions for absent keys. ``layer`` is ``"quotient"`` (keys can be
    removed), ``"bloom"``, or the better of the two.

    >>> import tamis
    >>> from tamis.stores import Hashes
    >>> shape = tamis.Workload.zipf(exponent=1.2, universe=10_000)
    >>> wishes = {"sizing": "lifetime", "lifetime": 20_000, "seed": 1}
    >>> f = AdaptiveStacked.build(range(1000), shape, bits_per_key=9, **wishes)
    >>> stored = Hashes(range(1000), seed=1)
    >>> asked = tamis.traces.zipf(20_000, exponent=1.2, universe=10_000)
    >>> for start in range(0, 20_000, 100):
    ...     some = asked[start : start + 100]
    ...     changed = f.adapt_many(some[f.contains(some)], stored)
    >>> len(f.layers), f.expected_fpr < f.layers[0].rate, bool(f.contains(range(1000)).all())
    (3, True, True)

    Reference: Deeds, Hentschel, Idreos 2021, section 6.
    """

    inserts = True
    _kind = "adaptive_stacked"

    def __new__(
        cls,
        capacity: SupportsIndex,
        workload: Workload,
        *,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        sizing: Sizing = "eventual",
        lifetime: int | None = None,
        layer: LayerKind = "auto",
        seed: int | None = None,
        key: bytes | None = None,
    ) -> Self:
        """Make an empty filter for ``capacity`` keys; ``seed`` is random unless it is given."""
        capacity = whole("capacity", capacity, MOST_KEYS)
        plan = plan_adaptive(Wish(capacity, sizing, lifetime, layer, fpr, bits_per_key), workload)
        seed = random_seed(seed, key)
        first = _empty(plan.stack.layers[0], max(capacity, FEW), capacity, seed, key)
        return cls._of(_started(first, plan, capacity))

    @classmethod
    def build(
        cls,
        keys: Keys,
        workload: Workload,
        *,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        sizing: Sizing = "eventual",
        lifetime: int | None = None,
        layer: LayerKind = "auto",
        capacity: SupportsIndex | None = None,
        seed: int | None = None,
        key: bytes | None = None,
    ) -> Self:
        """Build the first layer of these keys; ``capacity`` is for keys to come, if that is more.

        >>> import tamis
        >>> shape = tamis.Workload.zipf(exponent=1.0, universe=1000)
        >>> len(AdaptiveStacked.build([1, 2, 2, 3], shape, fpr=0.01))
        3
        """
        distinct = _native.Distinct(keys, random_seed(seed, key), key)
        room = max(len(distinct), whole("capacity", capacity or 0, MOST_KEYS))
        plan = plan_adaptive(Wish(room, sizing, lifetime, layer, fpr, bits_per_key), workload)
        one = plan.stack.layers[0]
        first = _class(one)._build_kernel(_size(one, max(room, FEW)), distinct, room)
        return cls._of(_started(first, plan, room))

    @classmethod
    def _of(cls, handle: _native.Handle) -> Self:
        made = super()._of(handle)
        try:
            _read(made._plan)
        except ValueError as error:
            raise FormatError(str(error)) from None
        return made

    def add(self, key: Key, remote: Remote | None = None) -> None:
        """Insert a key. The remote is not needed, and is there for all adaptive filters alike."""
        super().add(key)

    def update(self, keys: Keys, remote: Remote | None = None) -> None:
        """Insert many keys, or none of them."""
        super().update(keys)

    def remove(self, key: Key, remote: Remote | None = None) -> None:
        """Take one insertion of the key back; `KeyError` if it is surely absent.

        Its trace in the layers above the first stays until those are built anew. Not while another
        thread adapts: a key that has left the store and not the filter must not meet a new layer.
        A guard sees to that.
        """
        super().remove(key)

    def adapt(self, key: Key, remote: Remote) -> bool:
        """Learn that a key is absent which was taken for a stored one; whether it was collected."""
        keys: Any = [key]  # of any one kind
        return bool(self.adapt_many(keys, remote)[0])

    def adapt_many(self, keys: Keys, remote: Remote) -> npt.NDArray[np.bool_]:
        """Learn that keys are absent; for each, whether it was collected.

        Keys that are denied already are passed over. Where a layer is full, or the rate too high,
        the stored hashes are scanned in this call, part by part; other threads go on meanwhile.
        """
        collected = self._observe(keys)
        self._advance(remote)
        return collected

    def _advance(self, remote: Remote) -> None:
        """Take the step that is due, if one is."""
        plan, state = self.plan, self._state
        if state.building:
            return
        counts = Counts(
            layers=state.layers,
            items=state.collected,
            room=state.room,
            collecting=state.collecting,
            asked=state.window_negatives,
            wrong=state.window_false_positives,
            strikes=state.strikes,
        )
        match next_step(plan, counts, lambda: self.expected_fpr):
            case "grow":
                self._grow(state.version, counts, remote)
            case "drop":
                self._drop_behind_first(state.version, *_negatives(plan, 1))
            case "remodel":
                self._remodel(state, counts, remote)
            case "content":
                self._begin_window(state.version)

    def _grow(self, version: int, counts: Counts, remote: Remote) -> None:
        """Build the layer of keys behind the one that was filled."""
        plan, index = self.plan, counts.layers + 1
        passing = math.prod(layer.rate for layer in self._layers[1::2])
        keys = max(len(self), self.capacity, FEW) * passing
        layer = _empty(plan.stack.layers[index], max(1, math.ceil(keys)))
        known = seen(plan.shape, counts.collecting).psi if index == 2 else self.psi
        self._scanned(version, layer, remote, min(known, 1.0), *_negatives(plan, index + 1))

    def _remodel(self, state: _native.AdaptiveState, counts: Counts, remote: Remote) -> None:
        """Plan again for the shape of what was seen, and begin anew with another first layer.

        Where too little was seen, observe for a while; where a new plan promises no lower rate,
        stay with the old one and expect what was observed.
        """
        from tamis.workload import Workload

        version, rate, sample = state.version, counts.wrong / counts.asked, self._sample
        if len(sample) >= LEAST_SAMPLED:
            share = min(max(self.layers[0].rate / 2.0**state.sample_shift, _LEAST_SHARE), 1.0)
            kind: LayerKind = "quotient" if self.deletes else "bloom"  # what it can do stays
            wish = replace(self.plan.wish, layer=kind)
            plan = plan_adaptive(wish, Workload(fitted(sample, share)))
            if plan.mean_fpr < PROMISING * rate:
                keys = max(len(self), self.capacity)
                layer = _empty(plan.stack.layers[0], max(keys, FEW), keys)
                self._scanned(version, layer, remote, 0.0, *_negatives(plan, 1), plan.to_json())
                return
        if counts.layers == 1:
            self._drop_behind_first(version, *_negatives(self.plan, 1))
        elif len(sample) < LEAST_SAMPLED and counts.strikes:
            self._drop_behind_first(version, None, 0)
        else:
            known, others = self.known_fpr, self.fpr_bound
            psi = (others - rate) / (others - known) if others > known else self.psi
            self._begin_window(version, psi)

    def _scanned(
        self,
        version: int,
        layer: _native.Handle,
        remote: Remote,
        psi: float,
        negatives: _native.Handle | None,
        room: int,
        plan: bytes | None = None,
    ) -> None:
        """Fill a layer of keys by a scan, and let it answer; unless another is quicker."""
        ticket = self._begin_layer(version, layer, plan is not None)
        if ticket is None:
            return
        try:
            for hashes in remote.scan():
                self._fill(ticket, hashes)
            self._finish(ticket, psi, negatives, room, plan)
        finally:
            self._abandon(ticket)  # which is late if it is finished

    @property
    def deletes(self) -> bool:  # type: ignore[override]
        """Whether keys can be removed: the layers are quotient filters."""
        return self.plan.stack.layers[0].kind == "quotient"

    @property
    def plan(self) -> AdaptivePlan:
        """The layers that it is to have, and how long it collects for each."""
        return _read(self._plan)

    @property
    def workload(self) -> Workload:
        """The shape of the questions that it is planned for: the one given, or one fitted since."""
        from tamis.workload import Workload

        return Workload(self.plan.shape)

    @property
    def layers(self) -> tuple[BuiltLayer, ...]:
        """The layers that answer, from the first."""
        found = built_layers(self._layers)
        return found[: len(found) - 1 + len(found) % 2]

    @property
    def collecting(self) -> BuiltLayer | None:
        """The layer of negatives that is being filled, if there is one; it answers nothing yet."""
        found = built_layers(self._layers)
        return None if len(found) % 2 else found[-1]

    @property
    def psi(self) -> float:
        """The share of the questions that its layers of negatives are expected to know (ψ)."""
        return self._state.psi

    @property
    def observed(self) -> Observed:
        """Questions for absent keys, and false positives, up to the last adaptation."""
        state = self._state
        return Observed(state.negatives, state.false_positives)

    @property
    def rebuilds(self) -> int:
        """How often the layers above the first were begun anew."""
        return self._state.rebuilds

    def _describe(self) -> str:
        wanted = len(self.plan.stack.layers)
        return f"{len(self.layers)} of {wanted} {self.layers[0].kind} layers"


_read = lru_cache(maxsize=64)(AdaptivePlan.from_json)


def _started(first: _native.Handle, plan: AdaptivePlan, capacity: int) -> _native.Handle:
    negatives, room = _negatives(plan, 1)
    return AdaptiveStacked._begin_with(first, negatives, room, plan.to_json(), capacity)


def _negatives(plan: AdaptivePlan, index: int) -> tuple[_native.Handle | None, int]:
    """Return the empty layer of negatives at an index, and for how many it is; none if none is."""
    if index >= len(plan.stack.layers):
        return None, 0
    layer = plan.stack.layers[index]
    items = max(layer.items, 1)
    return _empty(layer, items), items


def _empty(
    layer: Layer, items: int, capacity: int = 0, seed: int = 0, key: bytes | None = None
) -> _native.Handle:
    """Make an empty layer for these items, of the bits or the fingerprints that are planned."""
    room = capacity if KINDS[layer.kind].continuous else capacity or items
    made: _native.Handle = _class(layer)._empty(_size(layer, items), room, seed, key)
    return made


def _size(layer: Layer, items: int) -> Any:
    """Find the size of a layer for these items: with all planned bits, or planned fingerprints."""
    kind = KINDS[layer.kind]
    if kind.continuous:
        return kind.layer_size(items, bits_per_key=max(layer.bits, 1) / items)
    return kind.layer_size(items, fingerprint_bits=layer.fingerprint or 1)


def _class(layer: Layer) -> Any:
    return filters.CLASSES[layer.kind]
