"""The prefixes of a collection's filters that are in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._types import Key, Keys
from tamis.collection.allocation_inputs import AllocationInputs
from tamis.errors import FormatError
from tamis.planning.collection import sliced
from tamis.planning.collection.curves import (
    Ints,
    Mixed,
    Ribbon,
    Segmented,
    Truncated,
    Weights,
)


class Prefixes(NamedTuple):
    """The bits of all filters that lookups read."""

    filters: _native.Filters
    residents: list[_native.Resident] | list[_native.Sliced]
    """The prefixes of each part, in order of utility."""
    damaged: Ints
    """Numbers of the filters whose prefixes could not be read."""
    utility: Weights
    """How often each filter is queried."""
    sliced_sets: int = 0
    """How many sets are bit-sliced: the first ones."""
    unsliced: _native.Resident | None = None
    """Prefixes of the sets that were added since."""

    @property
    def loaded(self) -> list[_native.Resident | _native.Sliced]:
        """All prefixes: of each part, and of sets that are not sliced yet."""
        return [*self.residents] if self.unsliced is None else [*self.residents, self.unsliced]

    @property
    def overhead(self) -> int:
        """Bytes of all prefixes in addition to their bits."""
        return sum(each.overhead for each in self.loaded)

    @property
    def bits(self) -> int:
        """Bits of all prefixes."""
        return sum(each.bits for each in self.loaded)

    @property
    def sliced(self) -> bool:
        """Whether they are bit-sliced."""
        return isinstance(self.residents[0], _native.Sliced)

    @property
    def kept(self) -> Ints:
        """Bits of each filter."""
        kept = np.zeros(len(self.filters), np.int64)
        for each in self.loaded:
            each.kept_into(kept)
        return kept

    def candidates(self, key: Key, limit: int, hybrid: bool, part: int) -> npt.NDArray[np.uint32]:
        """Return up to ``limit`` sets of a part that may contain a key, the most queried first."""
        ids = self.residents[part].candidates(key, limit, hybrid)
        if self.unsliced is None:
            return ids
        ids = np.concatenate([ids, self.unsliced.candidates(key, limit, hybrid)])
        return ids[np.lexsort((ids, -self.utility[ids]))][:limit]

    def candidates_many(
        self, keys: Keys, limit: int, hybrid: bool, part: int
    ) -> tuple[Ints, npt.NDArray[np.uint32]]:
        """Look up many keys: key i may be in the sets ``ids[offsets[i]:offsets[i + 1]]``."""
        offsets, ids = self.residents[part].candidates_many(keys, limit, hybrid)
        if self.unsliced is None:
            return offsets, ids
        more, others = self.unsliced.candidates_many(keys, limit, hybrid)
        if not len(others):
            return offsets, ids
        counts = [np.diff(offsets), np.diff(more)]
        which = np.concatenate([np.repeat(np.arange(len(each)), each) for each in counts])
        ids = np.concatenate([ids, others])
        order = np.lexsort((ids, -self.utility[ids], which))
        which, ids = which[order], ids[order]
        starts = np.concatenate([[0], np.cumsum(counts[0] + counts[1])])
        # Both lists are cut off at the limit; so is the merged one.
        within = np.arange(len(ids)) - starts[which] < limit
        offsets = np.concatenate([[0], np.cumsum(np.minimum(np.diff(starts), limit))])
        return offsets, ids[within]


def sliced_curve(filters: _native.Filters) -> Segmented | None:
    """Return the curve of filters that can be bit-sliced, many of a few sizes; otherwise None."""
    if len(filters) < sliced.MIN_SETS:
        return None
    sizes = filters.sizes()
    if not sliced.is_sliceable(sizes.kinds, sizes.bits, sizes.hashes, sizes.counts):
        return None
    return Segmented(sizes.bits, sizes.hashes, sizes.counts)


def sliced_overhead(curve: Segmented) -> int:
    """Return an upper bound of the memory of bit-sliced filters without their bits."""
    lengths = curve.bits // np.maximum(curve.hashes, 1)
    used = np.flatnonzero(curve.keys > 0)
    _, which, classes = np.unique(lengths[used], return_inverse=True, return_counts=True)
    segments = np.zeros(len(classes), np.int64)
    np.maximum.at(segments, which, curve.hashes[used])
    return _native.Sliced.max_overhead(classes.tolist(), len(lengths), int(segments.sum()))


def load_sliced(
    filters: _native.Filters, curve: Segmented, segments: Ints, utility: Weights
) -> _native.Sliced:
    """Load the first segments of each filter, bit-sliced."""
    layout = sliced.lay_out(curve, segments, utility)
    return filters.sliced(layout.classes, layout.ids, layout.segments, layout.order)


def rate_curve(*sizes: _native.FilterSizes) -> Mixed:
    """Return how the rate of each filter falls with the bits kept."""

    def joined(field: str) -> Ints:
        arrays: list[Ints] = [getattr(each, field) for each in sizes]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    bits, hashes, counts = joined("bits"), joined("hashes"), joined("counts")
    return Mixed.of(
        np.maximum(joined("kinds").astype(np.uint8), 1) - np.uint8(1),
        [
            Segmented(bits, hashes, counts),
            Ribbon(joined("slots"), hashes, joined("widths"), joined("codes"), counts),
            Truncated(bits, hashes, counts),
        ],
    )


def load_prefixes(
    filters: _native.Filters,
    inputs: AllocationInputs,
    kept: Ints,
    loaded: Prefixes | None = None,
    before: npt.NDArray[np.uint32] | None = None,
) -> Prefixes:
    """Load the first ``kept[i]`` bits of each filter i; with ``salvage``, none of damaged ones.

    Prefixes that are ``loaded`` are copied from memory: filter i was number ``before[i]`` there.
    """
    utility, parts, salvage = inputs.weights, inputs.parts, inputs.salvage
    curve = sliced_curve(filters) if parts == 1 else None
    if curve is not None and not salvage:
        segments = kept // np.maximum(curve.bits // np.maximum(curve.hashes, 1), 1)
        bit_sliced = load_sliced(filters, curve, segments, utility)
        return Prefixes(filters, [bit_sliced], np.zeros(0, np.int64), utility, len(filters))
    order = np.argsort(-utility, kind="stable").astype(np.uint32)

    def load(kept: Ints) -> list[_native.Resident]:
        by_part = (order if parts == 1 else order[order % parts == part] for part in range(parts))
        known: list[Any] = [None] * parts if loaded is None else list(loaded.residents)
        return [
            filters.resident(
                ids,
                kept[ids].astype(np.uint64),
                resident if isinstance(resident, _native.Resident) else None,
                before,
            )
            for ids, resident in zip(by_part, known, strict=True)
        ]

    kept, damaged = kept.copy(), np.zeros(0, np.int64)
    try:
        return Prefixes(filters, load(kept), damaged, utility)
    except FormatError:
        if not salvage:
            raise
    damaged = np.sort(_find_damaged(filters, order, kept))
    kept[damaged] = 0
    return Prefixes(filters, load(kept), damaged, utility)


def _find_damaged(filters: _native.Filters, ids: npt.NDArray[np.uint32], kept: Ints) -> Ints:
    """Find the filters whose prefixes are damaged, by bisection."""
    try:
        filters.resident(ids, kept[ids].astype(np.uint64))
    except FormatError:
        if len(ids) == 1:
            return ids.astype(np.int64)
        halves = np.array_split(ids, 2)
        return np.concatenate([_find_damaged(filters, half, kept) for half in halves])
    return np.zeros(0, np.int64)
