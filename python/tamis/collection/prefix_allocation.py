"""How many bits of each filter to load: of all filters, or after sets are added."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._checks import parse_budget
from tamis.collection.allocation_inputs import AllocationInputs
from tamis.collection.prefixes import (
    Prefixes,
    load_prefixes,
    rate_curve,
    sliced_curve,
    sliced_overhead,
)
from tamis.collection.storage import filter_bits
from tamis.errors import FormatError
from tamis.planning.collection.allocation import Method, allocate
from tamis.planning.collection.curves import Floats, Ints, Mixed, Weights
from tamis.planning.collection.prices import optimal_price
from tamis.planning.collection.reads import optimal_reads
from tamis.planning.collection.sliced import is_sliceable, plan_segments

Budget: TypeAlias = int | tuple[int, ...]
"""Bytes of memory: of all parts together, or of each."""


Budgets: TypeAlias = int | str | list[int] | list[str] | tuple[int | str, ...]
"""A `Budget` as an argument: in bytes, or as "64MB"."""


def read_budget(budget: Budgets | None, parts: int) -> Budget | None:
    """Read a budget for all parts, or one for each."""
    if isinstance(budget, list | tuple):
        if len(budget) != parts:
            raise ValueError(
                f"budget must be one size, or one size for each of {parts} parts, not {budget!r}"
            )
        return tuple(parse_budget(each) for each in budget)
    return None if budget is None else parse_budget(budget)


class Allocation(NamedTuple):
    """The bits of each filter to load, and the budget and method that they were planned by."""

    kept: Ints | None = None
    budget: Budget | None = None
    method: Method = "optimal"
    price: float | None = None
    """The logarithm of the price of a bit, where the next plan starts."""
    grown: int = 0
    """Sets added since all prefixes were planned."""
    share: float | None = None
    """The share of all bits that are in memory, for bit-sliced filters."""

    @property
    def bits_to_load(self) -> Ints:
        """The bits of each filter, before they are loaded."""
        assert self.kept is not None
        return self.kept

    def loaded(self) -> Allocation:
        """Return the allocation without the bits, which the loaded prefixes have."""
        return self._replace(kept=None)


def plan_prefixes(
    filters: _native.Filters,
    inputs: AllocationInputs,
    budget: Budget | None,
    method: Method = "optimal",
    *,
    growing: bool = False,
) -> Allocation:
    """Return how many bits of each filter to load within a budget in bytes.

    If bit-sliced filters are ``growing``, some memory is left for the next sets.
    """
    what = f"{len(filters)} filters"
    if isinstance(budget, tuple):
        return _plan_parts(filters, inputs, budget, method)
    sliced = sliced_curve(filters) if inputs.parts == 1 and not inputs.salvage else None
    if sliced is not None:
        if method != "optimal":
            raise ValueError(f"method must be 'optimal' for sliced filters, not {method!r}")
        bits = None
        if budget is not None:
            bits = filter_bits(budget, sliced_overhead(sliced) + inputs.own_bytes(filters), what)
            bits -= bits // RESERVE if growing else 0
        segments = plan_segments(sliced, inputs.utility, bits, inputs.shares)
        kept = segments * (sliced.bits // np.maximum(sliced.hashes, 1))
        share = float(kept.sum() / max(int(sliced.bits.sum()), 1))
        return Allocation(kept, budget, method, share=share)
    sizes = filters.sizes(inputs.parts)
    curve = rate_curve(sizes)
    if budget is None:
        return Allocation(curve.bits, None, method)
    bits = filter_bits(budget, sizes.overhead + inputs.own_bytes(filters), what)
    kept, price = _allocated(curve, inputs.utility, inputs.shares, bits, method)
    return Allocation(kept, budget, method, price)


def _plan_parts(
    filters: _native.Filters, inputs: AllocationInputs, budgets: tuple[int, ...], method: Method
) -> Allocation:
    """Plan each part for its own budget, of which sizes and weights take an equal share."""
    sizes = filters.sizes(inputs.parts)
    curve, kept = rate_curve(sizes), np.zeros(len(filters), np.int64)
    overhead = -(-(sizes.overhead + inputs.own_bytes(filters)) // inputs.parts)
    for part, budget in enumerate(budgets):
        own = np.arange(part, len(filters), inputs.parts)
        bits = filter_bits(budget, overhead, f"{len(own)} filters of part {part}")
        shares = None if inputs.shares is None else inputs.shares[own]
        kept[own], _ = _allocated(curve.take(own), inputs.utility[own], shares, bits, method)
    return Allocation(kept, budgets, method)


def _allocated(
    curve: Mixed, utility: Floats, present: Floats | None, bits: int, method: Method
) -> tuple[Ints, float | None]:
    """Return the bits to keep of each filter, and the price of a bit if there is one."""
    if method != "optimal":
        return allocate(method, curve, utility, bits), None
    if present is None:
        return optimal_price(curve, utility, bits)
    return optimal_reads(curve, utility, present, bits)


def grow_prefixes(
    filters: _native.Filters,
    inputs: AllocationInputs,
    allocation: Allocation,
    loaded: Prefixes,
    *,
    allocate: bool,
) -> tuple[Allocation, Prefixes]:
    """Plan and load the prefixes of sets that were added, and change other prefixes to fit."""
    before, growth = len(loaded.filters), None
    added = len(filters) - before
    if loaded.sliced:
        if not allocate:
            kept = np.concatenate([loaded.kept, np.zeros(added, np.int64)])
            return allocation, load_prefixes(filters, inputs, kept)
        grown = grow_sliced(filters, loaded, inputs.weights, allocation.share)
        if grown is not None and _fits(grown, inputs, allocation.budget):
            return allocation, grown
    elif not allocate:
        growth = Growth(np.arange(before, len(filters)), np.zeros(added, np.int64))
    elif allocation.budget is None:
        growth = load_in_full(filters, before)
    elif (
        allocation.method == "optimal"
        and isinstance(allocation.budget, int)
        and may_grow(before, added, allocation.grown)
    ):
        new = filters.sizes(inputs.parts, before).overhead
        overhead = loaded.overhead + new + inputs.own_bytes(filters)
        if overhead <= allocation.budget:
            bits = 8 * (allocation.budget - overhead)
            weights, present = inputs.weights, inputs.present
            growth = plan_growth(filters, weights, present, loaded.kept, bits, allocation.price)
    if growth is not None:
        price = allocation.price if growth.price is None else growth.price
        plan = allocation._replace(price=price, grown=allocation.grown + added)
        try:
            return plan, change_prefixes(filters, loaded, growth, inputs.weights)
        except FormatError:
            if not inputs.salvage:
                raise
    plan = plan_prefixes(filters, inputs, allocation.budget, allocation.method, growing=True)
    return plan, load_prefixes(filters, inputs, plan.bits_to_load, loaded)


def _fits(prefixes: Prefixes, inputs: AllocationInputs, budget: Budget | None) -> bool:
    """Whether all memory is within a budget for all parts."""
    if budget is None:
        return True
    used = prefixes.overhead + inputs.own_bytes(prefixes.filters) + (prefixes.bits + 7) // 8
    return isinstance(budget, int) and used <= budget


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
