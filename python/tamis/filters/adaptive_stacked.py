"""`tamis.AdaptiveStacked`: a stack that learns the questions while it answers them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self, SupportsIndex

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._types import Key, Keys, Remote
from tamis.errors import FormatError
from tamis.filters.contract import Contract, random_seed
from tamis.filters.stacked import Layer, told_layers
from tamis.planning import bloom, quotient
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
from tamis.planning.plan import Layer as PlannedLayer
from tamis.planning.stacked.lifetime import fitted, seen

if TYPE_CHECKING:
    from tamis.workload import Workload

planned = plan_adaptive

_LEAST_SHARE = 2.0**-40


class Observed(NamedTuple):
    """Questions for absent keys that were counted, and the false positives among them."""

    negatives: int
    false_positives: int

    @property
    def fpr(self) -> float:
        """The share of false positives."""
        return self.false_positives / self.negatives if self.negatives else 0.0


class AdaptiveStacked(_native.Deleting, Contract):
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
        plan = planned(Wish(capacity, sizing, lifetime, layer, fpr, bits_per_key), workload)
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
        plan = planned(Wish(room, sizing, lifetime, layer, fpr, bits_per_key), workload)
        one, items = plan.stack.layers[0], max(room, FEW)
        if one.kind == "bloom":
            size = bloom.size(_layout(one), items, bits_per_key=one.bits / items)
            first = _native.bloom_build(_layout(one), *size, distinct)
        else:
            quotients = quotient.quotients(items)
            first = _native.quotient_build(quotients, one.fingerprint or 1, distinct, room)
        return cls._of(_started(first, plan, room))

    @classmethod
    def _of(cls, kernel: _native.Kernel) -> Self:
        try:
            _read(_native.adaptive_stacked_plan(kernel))
        except ValueError as error:
            raise FormatError(str(error)) from None
        return super()._of(kernel)

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
        collected = _native.adaptive_stacked_observe(self._kernel, keys)
        self._advance(remote)
        return collected

    def _advance(self, remote: Remote) -> None:
        """Take the step that is due, if one is."""
        kernel, plan = self._kernel, self.plan
        (version, building, _, _, layers), filled, counted = _native.adaptive_stacked_state(kernel)
        if building:
            return
        counts = Counts(layers, *filled, *counted[:4])
        match next_step(plan, counts, lambda: self.expected_fpr):
            case "grow":
                self._grow(version, counts, remote)
            case "drop":
                _native.adaptive_stacked_drop(kernel, version, *_negatives(plan, 1))
            case "remodel":
                self._remodel(version, counts, remote)
            case "content":
                _native.adaptive_stacked_content(kernel, version)

    def _grow(self, version: int, counts: Counts, remote: Remote) -> None:
        """Build the layer of keys behind the one that was filled."""
        plan, index = self.plan, counts.layers + 1
        negatives = _native.adaptive_stacked_layers(self._kernel)[1::2]
        keys = max(len(self), self.capacity, FEW) * math.prod(rate for *_, rate in negatives)
        layer = _empty(plan.stack.layers[index], max(1, math.ceil(keys)))
        known = seen(plan.shape, counts.collecting).psi if index == 2 else self.psi
        self._scanned(version, layer, remote, min(known, 1.0), *_negatives(plan, index + 1))

    def _remodel(self, version: int, counts: Counts, remote: Remote) -> None:
        """Plan again for the shape of what was seen, and begin anew with another first layer.

        Where too little was seen, observe for a while; where a new plan promises no lower rate,
        stay with the old one and expect what was observed.
        """
        from tamis.workload import Workload

        kernel, rate = self._kernel, counts.wrong / counts.asked
        sample, shift = _native.adaptive_stacked_sample(kernel), self._counted[-1]
        if len(sample) >= LEAST_SAMPLED:
            share = min(max(self.layers[0].rate / 2.0**shift, _LEAST_SHARE), 1.0)
            kind: LayerKind = "quotient" if self.deletes else "bloom"  # what it can do stays
            wish = replace(self.plan.wish, layer=kind)
            plan = planned(wish, Workload(fitted(sample, share)))
            if plan.mean_fpr < PROMISING * rate:
                keys = max(len(self), self.capacity)
                layer = _empty(plan.stack.layers[0], max(keys, FEW), keys)
                self._scanned(version, layer, remote, 0.0, *_negatives(plan, 1), plan.to_json())
                return
        if counts.layers == 1:
            _native.adaptive_stacked_drop(kernel, version, *_negatives(self.plan, 1))
        elif len(sample) < LEAST_SAMPLED and counts.strikes:
            _native.adaptive_stacked_drop(kernel, version, None, 0)
        else:
            known, others = self.known_fpr, self.fpr_bound
            psi = (others - rate) / (others - known) if others > known else self.psi
            _native.adaptive_stacked_content(kernel, version, psi)

    def _scanned(
        self,
        version: int,
        layer: _native.Kernel,
        remote: Remote,
        psi: float,
        negatives: _native.Kernel | None,
        room: int,
        plan: bytes | None = None,
    ) -> None:
        """Fill a layer of keys by a scan, and let it answer; unless another is quicker."""
        kernel = self._kernel
        ticket = _native.adaptive_stacked_begin(kernel, version, layer, plan is not None)
        if ticket is None:
            return
        try:
            for hashes in remote.scan():
                _native.adaptive_stacked_fill(kernel, ticket, hashes)
            _native.adaptive_stacked_finish(kernel, ticket, psi, negatives, room, plan)
        finally:
            _native.adaptive_stacked_abandon(kernel, ticket)  # which is late if it is finished

    @property
    def deletes(self) -> bool:  # type: ignore[override]
        """Whether keys can be removed: the layers are quotient filters."""
        return self.plan.stack.layers[0].kind == "quotient"

    @property
    def plan(self) -> AdaptivePlan:
        """The layers that it is to have, and how long it collects for each."""
        return _read(_native.adaptive_stacked_plan(self._kernel))

    @property
    def workload(self) -> Workload:
        """The shape of the questions that it is planned for: the one given, or one fitted since."""
        from tamis.workload import Workload

        return Workload(self.plan.shape)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers that answer, from the first."""
        found = told_layers(_native.adaptive_stacked_layers(self._kernel))
        return found[: len(found) - 1 + len(found) % 2]

    @property
    def collecting(self) -> Layer | None:
        """The layer of negatives that is being filled, if there is one; it answers nothing yet."""
        found = told_layers(_native.adaptive_stacked_layers(self._kernel))
        return None if len(found) % 2 else found[-1]

    @property
    def known_fpr(self) -> float:
        """The rate for known negatives, all alike; see `Stacked.known_fpr`."""
        return _native.adaptive_stacked_known_rate(self._kernel)

    @property
    def psi(self) -> float:
        """The share of the questions that its layers of negatives are expected to know (ψ)."""
        return _native.adaptive_stacked_state(self._kernel)[0][3]

    @property
    def observed(self) -> Observed:
        """Questions for absent keys, and false positives, up to the last adaptation."""
        return Observed(*self._counted[4:6])

    @property
    def rebuilds(self) -> int:
        """How often the layers above the first were begun anew."""
        return _native.adaptive_stacked_state(self._kernel)[0][2]

    @property
    def _counted(self) -> list[int]:
        return _native.adaptive_stacked_state(self._kernel)[2]

    def _told(self) -> str:
        wanted = len(self.plan.stack.layers)
        return f"{len(self.layers)} of {wanted} {self.layers[0].kind} layers"


_read = lru_cache(maxsize=64)(AdaptivePlan.from_json)


def _started(first: _native.Kernel, plan: AdaptivePlan, capacity: int) -> _native.Kernel:
    negatives, room = _negatives(plan, 1)
    return _native.adaptive_stacked(first, negatives, room, plan.to_json(), capacity)


def _negatives(plan: AdaptivePlan, index: int) -> tuple[_native.Kernel | None, int]:
    """Return the empty layer of negatives at an index, and for how many it is; none if none is."""
    if index >= len(plan.stack.layers):
        return None, 0
    layer = plan.stack.layers[index]
    items = max(layer.items, 1)
    return _empty(layer, items), items


def _empty(
    layer: PlannedLayer, items: int, capacity: int = 0, seed: int = 0, key: bytes | None = None
) -> _native.Kernel:
    """Make an empty layer for so many items, of the bits or the fingerprints that are planned."""
    if layer.kind == "bloom":
        size = bloom.size(_layout(layer), items, bits_per_key=max(layer.bits, 1) / items)
        return _native.bloom(_layout(layer), *size, capacity, seed, key)
    quotients = quotient.quotients(items)
    return _native.quotient(quotients, layer.fingerprint or 1, capacity or items, seed, key)


def _layout(layer: PlannedLayer) -> str:
    return layer.layout or "standard"
