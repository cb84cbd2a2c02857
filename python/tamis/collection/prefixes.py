"""The prefixes of a collection's filters that are in memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis.errors import FormatError
from tamis.planning.collection.curves import Floats, Ints, Mixed, Ribbon, Segmented, Truncated


class Prefixes(NamedTuple):
    """What a lookup reads; replaced as a whole, so that threads can query during `allocate`."""

    filters: _native.Filters
    residents: list[_native.Resident]
    """The prefixes of each part, in order of utility."""
    kept: Ints
    """Bits of each filter."""
    damaged: Ints
    """Numbers of the filters whose prefixes could not be read."""


def rate_curve(filters: _native.Filters) -> Mixed:
    """Return how the rate of each filter falls with the bits kept."""
    sizes = filters.sizes()
    return Mixed.of(
        (np.maximum(sizes.kinds, 1) - 1).astype(np.uint8),
        [
            Segmented(sizes.bits, sizes.hashes, sizes.counts),
            Ribbon(sizes.slots, sizes.hashes, sizes.widths, sizes.codes, sizes.counts),
            Truncated(sizes.bits, sizes.hashes, sizes.counts),
        ],
    )


def load_prefixes(
    filters: _native.Filters, kept: Ints, utility: Floats, *, parts: int, salvage: bool
) -> Prefixes:
    """Load the first ``kept[i]`` bits of each filter i; with ``salvage``, none of damaged ones."""
    order = np.argsort(-utility, kind="stable").astype(np.uint32)

    def load(kept: Ints) -> list[_native.Resident]:
        by_part = (order[order % parts == part] for part in range(parts))
        return [filters.resident(ids, kept[ids].astype(np.uint64)) for ids in by_part]

    kept, damaged = kept.copy(), np.zeros(0, np.int64)
    try:
        return Prefixes(filters, load(kept), kept, damaged)
    except FormatError:
        if not salvage:
            raise
    damaged = np.sort(_find_damaged(filters, order, kept))
    kept[damaged] = 0
    return Prefixes(filters, load(kept), kept, damaged)


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
