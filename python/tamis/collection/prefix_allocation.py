"""How many bits of each filter to load: for all filters, or only the ones that a change affects."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from tamis import _native
from tamis._checks import parse_budget
from tamis.collection.allocation_inputs import AllocationInputs
from tamis.collection.growth import (
    RESERVE,
    Growth,
    change_prefixes,
    grow_sliced,
    load_in_full,
    may_grow,
    plan_growth,
)
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
from tamis.planning.collection.curves import Floats, Ints, Mixed
from tamis.planning.collection.prices import optimal_price
from tamis.planning.collection.reads import optimal_reads
from tamis.planning.collection.sliced import plan_segments

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
