"""Which prefixes to load: of all filters, or of those that a change concerns."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._checks import parse_budget
from tamis.collection.growth import (
    RESERVE,
    Growth,
    change_prefixes,
    grow_rows,
    load_all,
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
from tamis.planning.collection.curves import Floats, Ints, Mixed, Weights
from tamis.planning.collection.prices import optimal_price
from tamis.planning.collection.reads import optimal_reads
from tamis.planning.collection.sliced import plan_segments

Budget: TypeAlias = int | tuple[int, ...]
"""Bytes of memory: of all parts together, or of each."""


Budgets: TypeAlias = int | str | list[int] | list[str] | tuple[int | str, ...]
"""The same as an argument, in bytes or as "64MB"."""


def read_budget(budget: Budgets | None, parts: int) -> Budget | None:
    """Read a budget for all parts, or one for each."""
    if isinstance(budget, list | tuple):
        if len(budget) != parts:
            raise ValueError(
                f"budget must be one for all, or one per part, {parts}, not {budget!r}"
            )
        return tuple(parse_budget(each) for each in budget)
    return None if budget is None else parse_budget(budget)


class Planned(NamedTuple):
    """The bits of each filter to load, and what they were planned for."""

    kept: Ints | None = None
    budget: Budget | None = None
    method: Method = "optimal"
    price: float | None = None
    """The logarithm of the price of a bit, where the next plan starts."""
    grown: int = 0
    """Sets added since all prefixes were planned."""
    share: float | None = None
    """The share of all bits that are in memory, of filters by rows."""


class Terms(NamedTuple):
    """What prefixes are planned by."""

    weights: Weights
    """Utilities."""
    present: Weights | None
    """In hybrid mode, the share of present keys among the queries of each set, if it is known."""
    own_bytes: int
    """Memory of the directory, utilities and accesses."""
    parts: int
    salvage: bool

    @property
    def utility(self) -> Floats:
        """Utilities, for planning."""
        return self.weights.astype(np.float64)

    @property
    def shares(self) -> Floats | None:
        """Shares of present keys, for planning."""
        return None if self.present is None else self.present.astype(np.float64)


def plan_prefixes(
    filters: _native.Filters,
    terms: Terms,
    budget: Budget | None,
    method: Method = "optimal",
    *,
    growing: bool = False,
) -> Planned:
    """Return how many bits of each filter to load within a budget in bytes.

    Of filters by rows that are ``growing``, some memory is left for the next sets.
    """
    what = f"{len(filters)} filters"
    if isinstance(budget, tuple):
        return _plan_parts(filters, terms, budget, method)
    rows = sliced_curve(filters) if terms.parts == 1 and not terms.salvage else None
    if rows is not None:
        if method != "optimal":
            raise ValueError(f"method must be 'optimal' for sliced filters, not {method!r}")
        bits = None
        if budget is not None:
            bits = filter_bits(budget, sliced_overhead(rows) + terms.own_bytes, what)
            bits -= bits // RESERVE if growing else 0
        segments = plan_segments(rows, terms.utility, bits, terms.shares)
        kept = segments * (rows.bits // np.maximum(rows.hashes, 1))
        share = float(kept.sum() / max(int(rows.bits.sum()), 1))
        return Planned(kept, budget, method, share=share)
    sizes = filters.sizes(terms.parts)
    curve = rate_curve(sizes)
    if budget is None:
        return Planned(curve.bits, None, method)
    bits = filter_bits(budget, sizes.overhead + terms.own_bytes, what)
    kept, price = _allocated(curve, terms.utility, terms.shares, bits, method)
    return Planned(kept, budget, method, price)


def _plan_parts(
    filters: _native.Filters, terms: Terms, budgets: tuple[int, ...], method: Method
) -> Planned:
    """Plan each part for its own budget, of which sizes and weights take an equal share."""
    sizes = filters.sizes(terms.parts)
    curve, kept = rate_curve(sizes), np.zeros(len(filters), np.int64)
    overhead = -(-(sizes.overhead + terms.own_bytes) // terms.parts)
    for part, budget in enumerate(budgets):
        own = np.arange(part, len(filters), terms.parts)
        bits = filter_bits(budget, overhead, f"{len(own)} filters of part {part}")
        shares = None if terms.shares is None else terms.shares[own]
        kept[own], _ = _allocated(curve.take(own), terms.utility[own], shares, bits, method)
    return Planned(kept, budgets, method)


def _allocated(
    curve: Mixed, utility: Floats, present: Floats | None, bits: int, method: Method
) -> tuple[Ints, float | None]:
    """Return the bits to keep of each filter, and the price of a bit if there is one."""
    if method != "optimal":
        return allocate(method, curve, utility, bits), None
    if present is None:
        return optimal_price(curve, utility, bits)
    return optimal_reads(curve, utility, present, bits)


def load_planned(
    filters: _native.Filters,
    terms: Terms,
    plan: Planned,
    loaded: Prefixes | None = None,
    before: npt.NDArray[np.uint32] | None = None,
) -> Prefixes:
    """Load the bits of a plan."""
    assert plan.kept is not None
    return load_prefixes(
        filters,
        plan.kept,
        terms.weights,
        parts=terms.parts,
        salvage=terms.salvage,
        loaded=loaded,
        before=before,
    )


def grow_prefixes(
    filters: _native.Filters, terms: Terms, planned: Planned, loaded: Prefixes, *, allocate: bool
) -> tuple[Planned, Prefixes]:
    """Plan and load the prefixes of sets that were added, and change those of others."""
    before, growth = len(loaded.filters), None
    added = len(filters) - before
    if loaded.sliced:
        if not allocate:
            kept = np.concatenate([loaded.kept, np.zeros(added, np.int64)])
            return planned, load_planned(filters, terms, planned._replace(kept=kept))
        grown = grow_rows(filters, loaded, terms.weights, planned.share)
        if grown is not None and _fits(grown, terms, planned.budget):
            return planned, grown
    elif not allocate:
        growth = Growth(np.arange(before, len(filters)), np.zeros(added, np.int64))
    elif planned.budget is None:
        growth = load_all(filters, before)
    elif (
        planned.method == "optimal"
        and isinstance(planned.budget, int)
        and may_grow(before, added, planned.grown)
    ):
        new = filters.sizes(terms.parts, before).overhead
        overhead = loaded.overhead + new + terms.own_bytes
        if overhead <= planned.budget:
            bits = 8 * (planned.budget - overhead)
            weights, present = terms.weights, terms.present
            growth = plan_growth(filters, weights, present, loaded.kept, bits, planned.price)
    if growth is not None:
        price = planned.price if growth.price is None else growth.price
        plan = planned._replace(price=price, grown=planned.grown + added)
        try:
            return plan, change_prefixes(filters, loaded, growth, terms.weights)
        except FormatError:
            if not terms.salvage:
                raise
    plan = plan_prefixes(filters, terms, planned.budget, planned.method, growing=True)
    return plan, load_planned(filters, terms, plan, loaded)


def _fits(prefixes: Prefixes, terms: Terms, budget: Budget | None) -> bool:
    """Whether all memory is within a budget for all parts."""
    if budget is None:
        return True
    used = prefixes.overhead + terms.own_bytes + (prefixes.bits + 7) // 8
    return isinstance(budget, int) and used <= budget
