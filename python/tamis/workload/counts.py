"""Counts and costs of values, from data that need not fit in memory.

Values are identified by the high half of their hash. Among n values, two collide with probability
n²/2⁶⁵ (1 in 15,000 for 5·10⁷); they are then counted as one.

If there are more than ``max_distinct`` values, counts are approximate (Misra and Gries 1982, merged
as in Agarwal et al. 2012): the largest count that does not fit is subtracted from all, and values
without a positive count are dropped. Every count is then too low by at most the sum of the
subtracted counts, which is at most the number of queries divided by ``max_distinct``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._columns import column, join, take
from tamis.workload.unseen import Unseen, estimate, estimate_incomplete, leave_one_out

Floats = npt.NDArray[np.float64]
Hashes = npt.NDArray[np.uint64]

_PENDING = 1 << 21
"""Distinct values collected before a merge, so that small batches are not merged one by one."""

_NEVER = np.iinfo(np.int64).max
"""The position of a query that was never made."""


class _Part(NamedTuple):
    """Distinct values: hashes in ascending order, counts, and positions of the first two queries.

    Positions are among the queries that are counted. A value that occurs once has no second.
    """

    hashes: Hashes
    counts: npt.NDArray[Any]
    values: Any
    first: npt.NDArray[np.int64]
    second: npt.NDArray[np.int64]

    def take(self, keep: npt.NDArray[np.int64]) -> _Part:
        values = take(self.values, keep)
        return _Part(
            self.hashes[keep], self.counts[keep], values, self.first[keep], self.second[keep]
        )


def hashes(keys: Any) -> Hashes:
    """Return 64 bits of each key's hash."""
    return np.ascontiguousarray(_native.hash_keys(keys)[:, 0])


class ValueCounts:
    """Distinct values and their counts; each merge leaves at most ``max_distinct`` of them.

    Values that are among ``keys`` are not counted; ``removed`` is how often they occurred.
    """

    def __init__(self, max_distinct: int, keys: Any = None) -> None:
        self.max_distinct = max_distinct
        self.error: float = 0
        self.removed: float = 0
        self.total: float = 0
        self.counted = 0
        self._keys = np.sort(hashes(keys)) if keys is not None else np.zeros(0, np.uint64)
        self._parts: list[_Part] = []
        self._at = 0
        self._merged = 0
        self._waiting = 0

    def add(self, values: Any, counts: npt.NDArray[Any] | None = None) -> None:
        """Count the values of a batch: each once, or as often as ``counts`` says.

        With ``counts``, the order within the batch is unknown: all its queries are assumed to be at
        the start of the batch.
        """
        values = column(values)
        if len(values) == 0:
            return
        hashed = hashes(values)
        self.counted += len(hashed)
        order = np.argsort(hashed, kind="stable")
        hashed = hashed[order]
        starts = _starts(hashed)
        hashed = hashed[starts]
        lengths = np.diff(starts, append=len(order))
        weighted = counts is not None
        counts = lengths if counts is None else np.add.reduceat(counts[order], starts)
        keep = ~self._is_key(hashed)
        self.removed += counts[~keep].sum().item()
        if not keep.any():
            return
        # Positions among all queries counted so far, including those before this batch.
        batch = counts[keep].sum().item()
        if weighted:
            first = np.full(len(hashed), self._at)
            second = np.where(counts > 1, self._at + 1, _NEVER)
        else:
            counted = np.empty(len(order), np.bool_)
            counted[order] = np.repeat(keep, lengths)
            at = self._at + np.cumsum(counted) - 1
            again = order[np.minimum(starts + 1, len(order) - 1)]
            first, second = at[order[starts]], np.where(lengths > 1, at[again], _NEVER)
        self._at += int(batch)
        self.total += batch
        part = _Part(hashed, counts, take(values, order[starts]), first, second)
        self._parts.append(part.take(np.flatnonzero(keep)))
        self._waiting += len(self._parts[-1].hashes)
        if self._waiting > max(_PENDING, self._merged):
            self._merge()

    def ranked(self) -> tuple[npt.NDArray[Any], Any]:
        """Return the counts, largest first, and their values; ties are in the order of hashes."""
        self._merge()
        if not self._parts:
            return np.zeros(0, np.int64), []
        counts, values = self._parts[0].counts, self._parts[0].values
        falling = counts.max(initial=0) - counts
        if counts.dtype.kind in "iu" and falling.max(initial=0) < 2**16:
            falling = falling.astype(np.uint16)  # radix sort, several times faster
        order = np.argsort(falling, kind="stable")
        return counts[order], take(values, order)

    def unseen(self, *, ordered: bool = True) -> Unseen:
        """Estimate the fraction of later queries for other values.

        If batches are not ``ordered`` in time, only the leave-one-out estimate is possible.
        """
        self._merge()
        if not self._parts:
            return Unseen(1.0, "leave-one-out", 0.0)
        part = self._parts[0]
        if not ordered:
            return leave_one_out(part.counts)
        if self.error:
            return estimate_incomplete(part.counts, part.first, int(self.total))
        return estimate(part.counts, part.first, part.second)

    def _merge(self) -> None:
        if len(self._parts) > 1:
            hashed, counts, first, second = (
                np.concatenate([getattr(part, name) for part in self._parts])
                for name in ("hashes", "counts", "first", "second")
            )
            values = join([part.values for part in self._parts])
            order = np.argsort(hashed, kind="stable")  # parts are in the order of time
            hashed, first, second = hashed[order], first[order], second[order]
            starts = _starts(hashed)
            later = first.copy()
            later[starts] = _NEVER
            self._parts = [
                _Part(
                    hashed[starts],
                    np.add.reduceat(counts[order], starts),
                    take(values, order[starts]),
                    first[starts],
                    np.minimum.reduceat(np.minimum(later, second), starts),
                )
            ]
        if self._parts and len(self._parts[0].hashes) > self.max_distinct:
            self._parts = [self._reduce(self._parts[0])]
        self._merged = len(self._parts[0].hashes) if self._parts else 0
        self._waiting = 0

    def _reduce(self, part: _Part) -> _Part:
        """Subtract the largest count that does not fit from all counts."""
        at = len(part.counts) - self.max_distinct - 1
        largest_dropped = np.partition(part.counts, at)[at]
        self.error += largest_dropped.item()
        kept = part.take(np.flatnonzero(part.counts > largest_dropped))
        return kept._replace(counts=kept.counts - largest_dropped)

    def _is_key(self, hashed: Hashes) -> npt.NDArray[np.bool_]:
        if not len(self._keys):
            return np.zeros(len(hashed), np.bool_)
        at = np.searchsorted(self._keys, hashed)
        nearest = self._keys[np.minimum(at, len(self._keys) - 1)]
        return np.equal(nearest, hashed)


class QueryCosts:
    """Sums of the costs of queries by value, in bounded memory.

    With costs, the negatives worth storing have the highest count times cost, not the highest
    count.
    """

    def __init__(self, max_distinct: int, keys: Any = None) -> None:
        self._sums = ValueCounts(max_distinct, keys)

    def add_batches(
        self, batches: Iterable[Any], costs: Iterator[npt.NDArray[Any]]
    ) -> Iterator[Any]:
        """Add the costs of each batch, then yield the batch."""
        for batch in batches:
            each = next(costs, None)
            if each is None:
                raise ValueError("costs must have one array per batch of queries, but has fewer")
            self.add(batch, each)
            yield batch

    def add(self, values: Any, costs: npt.NDArray[Any]) -> None:
        """Add costs: one per query of a batch, or the total of each value."""
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
        sums, summed_values = self._sums.ranked()
        total_costs = np.zeros(len(counts))
        if len(sums) and len(counts):
            summed, wanted = hashes(summed_values), hashes(values)
            by_hash = np.argsort(summed)
            at = by_hash[np.minimum(np.searchsorted(summed[by_hash], wanted), len(summed) - 1)]
            # A missing value was dropped because its total cost was among the lowest.
            total_costs = np.where(summed[at] == wanted, sums[at], 0.0)
        order = np.argsort(-total_costs, kind="stable")
        costs = total_costs[order] / counts[order]
        return (take(values, order) if len(order) else values), counts[order], costs


def check_weights(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return numbers as an array; ValueError if one is negative or not finite."""
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"{name} must be numbers: {error}") from None
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension, not {array.ndim}")
    if array.size and array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be numbers, not of type {array.dtype}")
    if array.dtype.kind == "u" or not array.size:
        array = array.astype(np.int64 if array.dtype.itemsize < 8 else float)
    wrong = np.flatnonzero(~((array >= 0) & np.isfinite(array)))
    if wrong.size:
        at = int(wrong[0])
        raise ValueError(f"{name}[{at}] must be finite and at least 0, not {array[at]}")
    return array


def _starts(ordered: Hashes) -> npt.NDArray[np.int64]:
    """Return where each run of equal hashes starts."""
    return np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))).astype(np.int64)
