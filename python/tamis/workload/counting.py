"""Count values by their hashes, from data that need not fit in memory.

Values are identified by the high half of their hash. Of n values, some two collide with probability
n²/2⁶⁵ (1 in 15,000 for 5·10⁷) and are then counted as one.

If there are more than ``room`` distinct values, the counts are those of Misra and Gries (1982),
merged as in Agarwal et al. (2012): the largest count that does not fit is subtracted from all, and
values without a positive count are dropped. Every count is then too low by at most the sum of what
was subtracted, which is at most the number of queries divided by ``room``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._columns import column, join, take

Hashes = npt.NDArray[np.uint64]

_PENDING = 1 << 21
"""Distinct values collected before a merge, so that small batches are not merged one by one."""


def hashes(keys: Any) -> Hashes:
    """Return 64 bits of each key's hash."""
    return np.ascontiguousarray(_native.hash_keys(keys)[:, 0])


class ValueCounts:
    """Distinct values and their counts; each merge leaves at most ``room`` of them.

    Values that are among ``keys`` are not counted; ``removed`` is how often they occurred.
    """

    def __init__(self, room: int, keys: Any = None) -> None:
        self.room = room
        self.error: float = 0
        self.removed: float = 0
        self.total: float = 0
        self.counted = 0
        self._keys = np.sort(hashes(keys)) if keys is not None else np.zeros(0, np.uint64)
        self._parts: list[tuple[Hashes, npt.NDArray[Any], Any]] = []
        self._merged = 0
        self._waiting = 0

    def add(self, values: Any, counts: npt.NDArray[Any] | None = None) -> None:
        """Count the values of a batch: each once, or as often as ``counts`` says."""
        values = column(values)
        if len(values) == 0:
            return
        found = hashes(values)
        self.counted += len(found)
        order = np.argsort(found)
        found = found[order]
        starts = _starts(found)
        found = found[starts]
        if counts is None:
            counts = np.diff(starts, append=len(order))
        else:
            counts = np.add.reduceat(counts[order], starts)
        keep = ~self._is_key(found)
        self.removed += counts[~keep].sum().item()
        self.total += counts[keep].sum().item()
        if not keep.any():
            return
        found, counts, first = found[keep], counts[keep], order[starts[keep]]
        self._parts.append((found, counts, take(values, first)))
        self._waiting += len(found)
        if self._waiting > max(_PENDING, self._merged):
            self._merge()

    def ranked(self) -> tuple[npt.NDArray[Any], Any]:
        """Return the counts, largest first, and their values; ties are in the order of hashes."""
        self._merge()
        if not self._parts:
            return np.zeros(0, np.int64), []
        _, counts, values = self._parts[0]
        falling = counts.max(initial=0) - counts
        if counts.dtype.kind in "iu" and falling.max(initial=0) < 2**16:
            falling = falling.astype(np.uint16)  # radix sort, several times faster
        order = np.argsort(falling, kind="stable")
        return counts[order], take(values, order)

    def _merge(self) -> None:
        if len(self._parts) > 1:
            found = np.concatenate([part[0] for part in self._parts])
            counts = np.concatenate([part[1] for part in self._parts])
            values = join([part[2] for part in self._parts])
            order = np.argsort(found)
            found = found[order]
            starts = _starts(found)
            counts = np.add.reduceat(counts[order], starts)
            self._parts = [(found[starts], counts, take(values, order[starts]))]
        if self._parts and len(self._parts[0][0]) > self.room:
            self._parts = [self._reduce(*self._parts[0])]
        self._merged = len(self._parts[0][0]) if self._parts else 0
        self._waiting = 0

    def _reduce(
        self, found: Hashes, counts: npt.NDArray[Any], values: Any
    ) -> tuple[Hashes, npt.NDArray[Any], Any]:
        """Subtract the largest count that does not fit from all counts."""
        at = len(counts) - self.room - 1
        least = np.partition(counts, at)[at]
        self.error += least.item()
        keep = np.flatnonzero(counts > least)
        return found[keep], counts[keep] - least, take(values, keep)

    def _is_key(self, found: Hashes) -> npt.NDArray[np.bool_]:
        if not len(self._keys):
            return np.zeros(len(found), np.bool_)
        at = np.searchsorted(self._keys, found)
        nearest = self._keys[np.minimum(at, len(self._keys) - 1)]
        return np.equal(nearest, found)


def _starts(ordered: Hashes) -> npt.NDArray[np.int64]:
    """Return where each run of equal hashes starts."""
    return np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))).astype(np.int64)
