"""Sets that are added to a large collection: few other prefixes change.

A plan for all sets takes time in proportion to their number. Instead, new sets share the bits of a
window of other sets. The price of a bit in the window rises a little above the price in the rest of
the collection, by far less than prices vary because ribbons keep whole columns. Windows are spread
over the collection, so that all sets lose bits in turn.

Bit-sliced filters cannot be changed one by one. New filters are loaded unsliced, with the average
share of their bits, until there are too many of them or the budget is used up. Then all are sliced
again, with some memory left for the next sets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis.collection.prefixes import Prefixes, rate_curve
from tamis.planning.collection.curves import Ints, Weights
from tamis.planning.collection.prices import optimal_price
from tamis.planning.collection.reads import optimal_reads
from tamis.planning.collection.sliced import is_sliceable

WINDOW = 4096
"""Sets that lose bits to new ones."""

RESERVE = 64
"""One part in this many of the sets, and of the memory, is for unsliced sets."""

_STRIDE = 2_654_435_761  # a prime far from multiples of any number of sets: spreads the windows


class Growth(NamedTuple):
    """The sets whose prefixes change, the bits of each, and the price of a bit."""

    ids: Ints
    kept: Ints
    price: float | None = None


def may_grow(before: int, added: int, since_plan: int) -> bool:
    """Whether a window suffices for new sets, after ``since_plan`` others since the last plan."""
    same_numbers = (before - 1).bit_length() == (before + added - 1).bit_length()
    few = added <= WINDOW // 4 and since_plan + added <= before // 8
    return same_numbers and few and before >= 2 * WINDOW


def plan_growth(
    filters: _native.Filters,
    weights: Weights,
    present: Weights | None,
    kept: Ints,
    bits: int,
    near: float | None,
) -> Growth | None:
    """Plan the prefixes of new sets, which follow the ``kept`` ones, with ``bits`` for all.

    Returns None if the window has fewer bits than are needed.
    """
    before, count = len(kept), len(filters)
    start = before * _STRIDE % (before - WINDOW + 1)
    curve = rate_curve(filters.sizes(1, start, start + WINDOW), filters.sizes(1, before, count))
    ids = np.concatenate([np.arange(start, start + WINDOW), np.arange(before, count)])
    had = np.zeros(len(ids), np.int64)
    had[:WINDOW] = kept[start : start + WINDOW]
    share = int(had.sum()) + bits - int(kept.sum())
    if share < 0:
        return None
    utility = weights[ids].astype(np.float64)
    if present is None:
        new, price = optimal_price(curve, utility, share, near)
    else:
        shares = present[ids].astype(np.float64)
        new, price = optimal_reads(curve, utility, shares, share, near)
    changed = (new != had) | (ids >= before)
    return Growth(ids[changed], new[changed], price)


def change_prefixes(
    filters: _native.Filters, loaded: Prefixes, growth: Growth, weights: Weights
) -> Prefixes:
    """Load the prefixes of new sets, and lengthen or shorten others."""
    before, parts = len(loaded.filters), len(loaded.residents)
    by_utility = growth.ids[np.argsort(-weights[growth.ids], kind="stable")]
    kept = np.zeros(len(filters), np.uint64)
    kept[growth.ids] = growth.kept
    residents = []
    for part, resident in enumerate(loaded.residents):
        assert isinstance(resident, _native.Resident)
        ids = by_utility[by_utility % parts == part]
        # A new set comes after all sets of the same or a higher utility.
        others = weights[part:before:parts]
        at = [int(np.count_nonzero(others >= weights[id])) if id >= before else 0 for id in ids]
        own = ids.astype(np.uint32)
        residents.append(filters.changed(resident, own, kept[ids], np.array(at, np.uint32)))
    return Prefixes(filters, residents, loaded.damaged, weights)


def load_in_full(filters: _native.Filters, before: int) -> Growth:
    """Return the growth that loads new filters in full."""
    ids: npt.NDArray[np.int64] = np.arange(before, len(filters))
    return Growth(ids, filters.sizes(1, before).bits)


def grow_sliced(
    filters: _native.Filters, loaded: Prefixes, weights: Weights, share: float | None
) -> Prefixes | None:
    """Load a share of the bits of new sets unsliced; None if all should be sliced again."""
    start = loaded.sliced_sets
    if share is None or len(filters) - start > start // RESERVE:
        return None
    sizes = filters.sizes(1, start)
    kinds, bits, hashes = sizes.kinds, sizes.bits, sizes.hashes
    if kinds.any() and not is_sliceable(kinds, bits, hashes, sizes.counts):
        return None
    segments = np.ceil(hashes * share - 1e-9).astype(np.int64)
    kept = segments * (bits // np.maximum(hashes, 1))
    order = np.argsort(-weights[start:], kind="stable")
    ids = (start + order).astype(np.uint32)
    unsliced = filters.resident(ids, kept[order].astype(np.uint64), loaded.unsliced)
    return loaded._replace(filters=filters, utility=weights, unsliced=unsliced)
