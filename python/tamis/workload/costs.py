"""Costs of false positives by value: some wasted reads cost more than others.

Where queries have costs, the negatives worth knowing are those with the highest cost times count,
not the most frequent ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tamis._columns import take
from tamis.workload.counts import ValueCounts, hashes

Floats = npt.NDArray[np.float64]


class QueryCosts:
    """Sums of the costs of queries by value, in as little memory as their counts."""

    def __init__(self, max_distinct: int, keys: Any = None) -> None:
        self._sums = ValueCounts(max_distinct, keys)

    def counting(self, batches: Iterable[Any], costs: Iterator[npt.NDArray[Any]]) -> Iterator[Any]:
        """Yield the batches, each after its costs were added."""
        for batch in batches:
            each = next(costs, None)
            if each is None:
                raise ValueError("costs must have one array for each batch of queries, not fewer")
            self.add(batch, each)
            yield batch

    def add(self, values: Any, costs: npt.NDArray[Any]) -> None:
        """Add the cost of each query of a batch, or the sum of those of each value."""
        before = self._sums.counted
        try:
            self._sums.add(values, costs)
            given = self._sums.counted - before
        except IndexError:
            given = len(values)
        if given != len(costs):
            raise ValueError(f"costs must have one item per query, not {len(costs)} for {given}")

    def order(self, values: Any, counts: npt.NDArray[Any]) -> tuple[Any, npt.NDArray[Any], Floats]:
        """Order values by the cost of their queries; return values, counts and mean costs."""
        sums, found = self._sums.ranked()
        spent = np.zeros(len(counts))
        if len(sums) and len(counts):
            own, given = hashes(found), hashes(values)
            by_hash = np.argsort(own)
            at = by_hash[np.minimum(np.searchsorted(own[by_hash], given), len(own) - 1)]
            # A value whose cost was dropped for lack of capacity had cost next to nothing.
            spent = np.where(own[at] == given, sums[at], 0.0)
        order = np.argsort(-spent, kind="stable")
        costs = spent[order] / counts[order]
        return (take(values, order) if len(order) else values), counts[order], costs
