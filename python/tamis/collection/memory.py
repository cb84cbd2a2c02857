"""The filters of a collection in memory. A change creates a new `Memory`, or none if it fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis.collection.allocation_inputs import AllocationInputs
from tamis.collection.prefix_allocation import (
    Allocation,
    Budget,
    grow_prefixes,
    plan_prefixes,
)
from tamis.collection.prefixes import Prefixes, load_prefixes, rate_curve
from tamis.collection.storage import BudgetError, save_and_reopen
from tamis.planning.collection.allocation import Method, weighted_rate
from tamis.planning.collection.curves import Floats
from tamis.planning.collection.reads import Reads


class Memory(NamedTuple):
    """The prefixes of all filters, and how they were planned.

    A collection replaces it as a whole, so that threads can query while another one allocates.
    """

    prefixes: Prefixes
    inputs: AllocationInputs
    allocation: Allocation

    @classmethod
    def load(
        cls, filters: _native.Filters, inputs: AllocationInputs, allocation: Allocation
    ) -> Memory:
        """Load the prefixes of an allocation from the file of the filters."""
        prefixes = load_prefixes(filters, inputs, allocation.bits_to_load)
        return cls(prefixes, inputs._replace(unsaved=False), allocation.loaded())

    @classmethod
    def empty(cls, filters: _native.Filters, inputs: AllocationInputs) -> Memory:
        """Load no bits: every filter returns maybe."""
        return cls.load(filters, inputs, Allocation(np.zeros(len(filters), np.int64)))

    @property
    def filters(self) -> _native.Filters:
        """The full filters, in a file."""
        return self.prefixes.filters

    @property
    def overhead(self) -> int:
        """Bytes in addition to the bits of the prefixes."""
        return self.prefixes.overhead + self.inputs.own_bytes(self.filters)

    @property
    def rates(self) -> Floats:
        """Expected false-positive rate of each prefix."""
        return rate_curve(self.filters.sizes()).rate(self.prefixes.kept)

    @property
    def expected_fpr(self) -> float:
        """Expected false-positive rate, weighted by utility."""
        return weighted_rate(self.inputs.utility, self.rates)

    @property
    def expected_reads(self) -> float:
        """Expected fraction of queries that read the rest of a filter, weighted by utility."""
        shares = self.inputs.shares
        shares = np.zeros(len(self.filters)) if shares is None else shares
        reads = Reads(rate_curve(self.filters.sizes()), shares)
        return weighted_rate(self.inputs.utility, reads.rate(self.prefixes.kept))

    def allocated(self, inputs: AllocationInputs, budget: Budget | None, method: Method) -> Memory:
        """Load the prefixes for another budget or other inputs."""
        plan = plan_prefixes(self.filters, inputs, budget, method)
        prefixes = load_prefixes(self.filters, inputs, plan.bits_to_load, self.prefixes)
        return Memory(prefixes, inputs, plan.loaded())

    def extended(
        self,
        filters: _native.Filters,
        utility: npt.ArrayLike | None,
        *,
        hybrid: bool,
        allocate: bool,
        key: bytes | None,
    ) -> Memory:
        """Load the prefixes of filters that were added after the others."""
        inputs = self.inputs.extended(utility, len(filters) - len(self.filters), hybrid=hybrid)

        def grow(filters: _native.Filters) -> Memory:
            plan, prefixes = grow_prefixes(
                filters, inputs, self.allocation, self.prefixes, allocate=allocate
            )
            return Memory(prefixes, inputs, plan.loaded())

        try:
            return grow(filters)
        except BudgetError:
            if filters.size_in_bytes() <= filters.size_in_bytes(saved=True):
                raise
            # The directory of new sets is in memory only until they are written to a file.
            return grow(save_and_reopen(None, filters, inputs.weights, key))

    def without(self, ids: Sequence[int], *, hybrid: bool) -> Memory:
        """Drop sets; the others keep their prefixes."""
        filters = self.filters.without(ids)
        inputs = self.inputs.without(ids, hybrid=hybrid)
        before = np.delete(np.arange(len(self.filters), dtype=np.uint32), ids)
        kept = np.delete(self.prefixes.kept, ids)
        prefixes = load_prefixes(filters, inputs, kept, self.prefixes, before)
        return Memory(prefixes, inputs, self.allocation)
