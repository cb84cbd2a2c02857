"""Which prefixes to load: of all filters, or of those that a change concerns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis.collection.growth import Growth, change_prefixes, load_all, may_grow, plan_growth
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
from tamis.planning.collection.curves import Floats, Ints, Weights
from tamis.planning.collection.prices import optimal_price
from tamis.planning.collection.reads import optimal_reads
from tamis.planning.collection.sliced import plan_segments


class Planned(NamedTuple):
    """The bits of each filter to load, and what they were planned for."""

    kept: Ints | None = None
    budget: int | None = None
    method: Method = "optimal"
    price: float | None = None
    """The logarithm of the price of a bit, where the next plan starts."""
    grown: int = 0
    """Sets added since all prefixes were planned."""


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
    filters: _native.Filters, terms: Terms, budget: int | None, method: Method = "optimal"
) -> Planned:
    """Return how many bits of each filter to load within a budget in bytes."""
    what = f"{len(filters)} filters"
    rows = sliced_curve(filters) if terms.parts == 1 and not terms.salvage else None
    if rows is not None:
        if method != "optimal":
            raise ValueError(f"method must be 'optimal' for sliced filters, not {method!r}")
        bits = None
        if budget is not None:
            bits = filter_bits(budget, sliced_overhead(rows) + terms.own_bytes, what)
        segments = plan_segments(rows, terms.utility, bits, terms.shares)
        return Planned(segments * (rows.bits // np.maximum(rows.hashes, 1)), budget, method)
    sizes = filters.sizes(terms.parts)
    curve = rate_curve(sizes)
    if budget is None:
        return Planned(curve.bits, None, method)
    bits = filter_bits(budget, sizes.overhead + terms.own_bytes, what)
    if method != "optimal":
        return Planned(allocate(method, curve, terms.utility, bits), budget, method)
    if terms.shares is None:
        kept, price = optimal_price(curve, terms.utility, bits)
    else:
        kept, price = optimal_reads(curve, terms.utility, terms.shares, bits)
    return Planned(kept, budget, method, price)


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
    elif not allocate:
        growth = Growth(np.arange(before, len(filters)), np.zeros(added, np.int64))
    elif planned.budget is None:
        growth = load_all(filters, before)
    elif planned.method == "optimal" and may_grow(before, added, planned.grown):
        new = filters.sizes(terms.parts, before).overhead
        overhead = sum(each.overhead for each in loaded.residents) + new + terms.own_bytes
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
    plan = plan_prefixes(filters, terms, planned.budget, planned.method)
    return plan, load_planned(filters, terms, plan, loaded)
