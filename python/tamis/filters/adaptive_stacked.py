"""`tamis.AdaptiveStacked`: a stack that learns the workload from its false positives."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self, SupportsIndex, cast

import numpy as np
import numpy.typing as npt

from tamis import _native, filters
from tamis._checks import MAX_KEYS, check_int
from tamis._types import Key, Keys, Remote
from tamis.errors import FormatError
from tamis.filters.contract import Filter, random_seed
from tamis.planning.adaptive_stacked import (
    FEW,
    MIN_SAMPLED,
    PROMISING,
    AdaptivePlan,
    Counts,
    PlanRequest,
    Sizing,
    next_step,
    plan_adaptive,
)
from tamis.planning.kinds import KINDS, LayerKind
from tamis.planning.plan import Layer
from tamis.planning.stacked.lifetime import fitted, seen

if TYPE_CHECKING:
    from tamis.workload import Workload

_MIN_SHARE = 2.0**-40


class Observed(NamedTuple):
    """The number of queries for absent keys, and of false positives among them."""

    negatives: int
    false_positives: int

    @property
    def fpr(self) -> float:
        """The observed false-positive rate."""
        return self.false_positives / self.negatives if self.negatives else 0.0


class AdaptiveStacked(_native.AdaptiveStacked, Filter):
    """A stacked filter that knows only how skewed the queries are, and learns the rest.

    It starts with its first layer. False positives reported by `adapt` are collected in a second
    layer. When that is full, the third is built from a scan of the stored hashes (the *remote*),
    and so on. If the rate later exceeds the expected one by half, the layers above the first are
    dropped and learned again; if that does not help, a new distribution is fitted to the false
    positives, and the filter is planned again. Stored keys are accepted at all times.

    ``workload`` can be a distribution without values, such as `Workload.zipf`.
    ``sizing="eventual"`` plans the stack with the lowest rate in the end; ``"lifetime"`` plans
    three layers that fill soon, with the lowest mean rate over ``lifetime`` queries for absent
    keys. ``layer`` is ``"quotient"`` (keys can be removed), ``"bloom"``, or by default the better.

    >>> import tamis
    >>> from tamis.stores import Hashes
    >>> shape = tamis.Workload.zipf(exponent=1.2, universe=10_000)
    >>> options = {"sizing": "lifetime", "lifetime": 20_000, "seed": 1}
    >>> f = AdaptiveStacked.build(range(1000), shape, bits_per_key=9, **options)
    >>> stored = Hashes(range(1000), seed=1)
    >>> queries = tamis.traces.zipf(20_000, exponent=1.2, universe=10_000)
    >>> for start in range(0, 20_000, 100):
    ...     some = queries[start : start + 100]
    ...     changed = f.adapt_many(some[f.contains(some)], stored)
    >>> len(f.layers), f.expected_fpr < f.layers[0].rate, bool(f.contains(range(1000)).all())
    (3, True, True)

    Reference: Deeds, Hentschel, Idreos 2021, section 6.
    """

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
        """Create an empty filter for ``capacity`` keys, with a random ``seed`` by default."""
        capacity = check_int("capacity", capacity, MAX_KEYS)
        plan = plan_adaptive(
            PlanRequest(capacity, sizing, lifetime, layer, fpr, bits_per_key), workload
        )
        secret = random_seed(seed, key)
        first = _empty(plan.stack.layers[0], max(capacity, FEW), capacity, secret, key)
        made = cls._of(_started(first, plan, capacity))
        made._seed_is_random = seed is None
        return made

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
        """Build the first layer of these keys; ``capacity`` reserves space for more keys.

        >>> import tamis
        >>> shape = tamis.Workload.zipf(exponent=1.0, universe=1000)
        >>> len(AdaptiveStacked.build([1, 2, 2, 3], shape, fpr=0.01))
        3
        """
        distinct = _native.Distinct(keys, random_seed(seed, key), key)
        capacity = check_int("capacity", 0 if capacity is None else capacity, MAX_KEYS)
        capacity = max(len(distinct), capacity)
        plan = plan_adaptive(
            PlanRequest(capacity, sizing, lifetime, layer, fpr, bits_per_key), workload
        )
        one = plan.stack.layers[0]
        first = _class(one)._build_kernel(_size(one, max(capacity, FEW)), distinct, capacity)
        return cls._of(_started(first, plan, capacity))

    @classmethod
    def _of(cls, handle: _native.Handle) -> Self:
        made = super()._of(handle)
        try:
            _read(made._plan)
        except ValueError as error:
            raise FormatError(str(error)) from None
        return made

    def add(self, key: Key, remote: Remote | None = None) -> None:
        """Insert a key. ``remote`` is unused; other adaptive filters need it."""
        super().add(key)

    def update(self, keys: Keys, remote: Remote | None = None) -> None:
        """Insert many keys; if one is refused, none is inserted."""
        super().update(keys)

    def remove(self, key: Key, remote: Remote | None = None) -> None:
        """Remove one insertion of the key; raise `KeyError` if it is certainly absent.

        The key stays in the layers above the first until they are rebuilt. Do not call this while
        another thread adapts: a layer that is built meanwhile must not miss a key that is still
        in the filter but no longer in the store. A guard takes care of that.
        """
        super().remove(key)

    def remove_many(self, keys: Keys, remote: Remote | None = None) -> npt.NDArray[np.bool_]:
        """Remove one insertion of each key, as `remove` does; `False` if it is certainly absent."""
        return super().remove_many(keys)

    def adapt(self, key: Key, remote: Remote) -> bool:
        """Report a false positive; return whether it was collected."""
        keys: Any = [key]  # of any one kind
        return bool(self.adapt_many(keys, remote)[0])

    def adapt_many(self, keys: Keys, remote: Remote) -> npt.NDArray[np.bool_]:
        """Report false positives; return for each whether it was collected.

        Keys that the filter already rejects are ignored. If a layer is full, or the rate too high,
        this call scans the stored hashes in parts; other threads can continue meanwhile. If the
        scan fails, the collected negatives stay, and the next call scans again.
        """
        collected = self._observe(keys)
        self._advance(remote)
        return collected

    def _adapt_hashes(
        self, hashes: npt.NDArray[np.uint64], remote: Remote
    ) -> npt.NDArray[np.bool_]:
        """Report false positives, as `adapt_many` does, by their hashes."""
        collected = self._observe_hashes(hashes)
        self._advance(remote)
        return collected

    def _advance(self, remote: Remote) -> None:
        """Take the next step, if one is due."""
        plan, state = self.plan, self._state
        if state.building:
            return
        counts = Counts(
            layers=state.layers,
            items=state.collected,
            negatives_capacity=state.negatives_capacity,
            collecting=state.collecting,
            queries=state.window_negatives,
            false_positives=state.window_false_positives,
            strikes=state.strikes,
        )
        match next_step(plan, counts, lambda: self.expected_fpr):
            case "grow":
                self._grow(state.version, counts, remote)
            case "drop":
                self._drop_behind_first(state.version, *_negatives(plan, 1))
            case "remodel":
                self._remodel(state, counts, remote)
            case "as expected":
                self._begin_window(state.version)

    def _grow(self, version: int, counts: Counts, remote: Remote) -> None:
        """Build the layer of keys that follows a full layer of negatives."""
        plan, index = self.plan, counts.layers + 1
        passing = math.prod(layer.rate for layer in self._layers[1::2])
        keys = max(len(self), self.capacity, FEW) * passing
        layer = _empty(plan.stack.layers[index], max(1, math.ceil(keys)))
        known = seen(plan.shape, counts.collecting).psi if index == 2 else self.psi
        self._fill_from_scan(version, layer, remote, min(known, 1.0), *_negatives(plan, index + 1))

    def _remodel(self, state: _native.AdaptiveState, counts: Counts, remote: Remote) -> None:
        """Plan again for the observed distribution, and start with a new first layer.

        If too little was observed, continue to observe; if a new plan promises no lower rate, keep
        the old one and expect the observed rate.
        """
        from tamis.workload import Workload

        version, rate, sample = state.version, counts.false_positives / counts.queries, self._sample
        if len(sample) >= MIN_SAMPLED:
            share = min(max(self.layers[0].rate / 2.0**state.sample_shift, _MIN_SHARE), 1.0)
            kind = self.plan.stack.layers[0].kind  # so that it keeps its abilities
            request = replace(self.plan.request, layer=cast(LayerKind, kind))
            plan = plan_adaptive(request, Workload(fitted(sample, share)))
            if plan.mean_fpr < PROMISING * rate:
                keys = max(len(self), self.capacity)
                layer = _empty(plan.stack.layers[0], max(keys, FEW), keys)
                self._fill_from_scan(
                    version, layer, remote, 0.0, *_negatives(plan, 1), plan.to_json()
                )
                return
        if counts.layers == 1:
            self._drop_behind_first(version, *_negatives(self.plan, 1))
        elif len(sample) < MIN_SAMPLED and counts.strikes:
            self._drop_behind_first(version, None, 0)
        else:
            known, others = self.known_fpr, self.fpr_bound
            psi = (others - rate) / (others - known) if others > known else self.psi
            self._begin_window(version, psi)

    def _fill_from_scan(
        self,
        version: int,
        layer: _native.Handle,
        remote: Remote,
        psi: float,
        negatives: _native.Handle | None,
        negatives_capacity: int,
        plan: bytes | None = None,
    ) -> None:
        """Fill a layer of keys by a scan and activate it, unless another thread was faster."""
        ticket = self._begin_layer(version, layer, plan is not None)
        if ticket is None:
            return
        try:
            for hashes in remote.scan():
                self._fill(ticket, hashes)
            self._finish(ticket, psi, negatives, negatives_capacity, plan)
        finally:
            self._abandon(ticket)  # no effect after _finish

    @property
    def deletes(self) -> bool:  # type: ignore[override]
        """Whether keys can be removed: the layers support deletion."""
        return KINDS[self.plan.stack.layers[0].kind].deletes

    @property
    def plan(self) -> AdaptivePlan:
        """The planned layers, and how long negatives are collected for each."""
        return _read(self._plan)

    @property
    def workload(self) -> Workload:
        """The distribution that it is planned for: the given one, or one fitted since."""
        from tamis.workload import Workload

        return Workload(self.plan.shape)

    @property
    def layers(self) -> tuple[_native.BuiltLayer, ...]:
        """The active layers, in order."""
        found = self._layers
        return tuple(found[: len(found) - 1 + len(found) % 2])

    @property
    def collecting(self) -> _native.BuiltLayer | None:
        """The layer of negatives that is being filled, if any; it does not answer queries yet."""
        found = self._layers
        return None if len(found) % 2 else found[-1]

    @property
    def psi(self) -> float:
        """The expected fraction of queries that are for known negatives (ψ)."""
        return self._state.psi

    @property
    def observed(self) -> Observed:
        """Queries for absent keys and false positives, up to the last adaptation."""
        state = self._state
        return Observed(state.negatives, state.false_positives)

    @property
    def rebuilds(self) -> int:
        """How often the layers above the first were dropped and learned again."""
        return self._state.rebuilds

    def _describe(self) -> str:
        planned = len(self.plan.stack.layers)
        return f"{len(self.layers)} of {planned} {self.layers[0].kind} layers"


_read = lru_cache(maxsize=64)(AdaptivePlan.from_json)


def _started(first: _native.Handle, plan: AdaptivePlan, capacity: int) -> _native.Handle:
    negatives, negatives_capacity = _negatives(plan, 1)
    return AdaptiveStacked._begin_with(
        first, negatives, negatives_capacity, plan.to_json(), capacity
    )


def _negatives(plan: AdaptivePlan, index: int) -> tuple[_native.Handle | None, int]:
    """Return an empty layer of negatives and its capacity; None and 0 if none is planned."""
    if index >= len(plan.stack.layers):
        return None, 0
    layer = plan.stack.layers[index]
    items = max(layer.items, 1)
    return _empty(layer, items), items


def _empty(
    layer: Layer, items: int, capacity: int = 0, seed: int = 0, key: bytes | None = None
) -> _native.Handle:
    """Create an empty layer for these items, with the planned bits or fingerprints."""
    limit = capacity if KINDS[layer.kind].continuous else capacity or items
    made: _native.Handle = _class(layer)._empty(_size(layer, items), limit, seed, key)
    return made


def _size(layer: Layer, items: int) -> Any:
    """Find the size of a layer for these items, with the planned bits or fingerprints."""
    kind = KINDS[layer.kind]
    if kind.continuous:
        return kind.layer_size(items, bits_per_key=max(layer.bits, 1) / items)
    return kind.layer_size(items, fingerprint_bits=layer.fingerprint or 1)


def _class(layer: Layer) -> Any:
    return filters.CLASSES[layer.kind]
