"""The latest changes of a store, which its index of hashes does not have yet.

Hashes are random, so each key that enters or leaves the index changes another page, which costs
more than the rest of a write. So the store that holds the lease keeps the latest rows of its
journal in memory, and updates the index in order of the hashes, some thousand rows at a time. After
a crash the rows are read from the journal: the metadata ``indexed`` is the last row in the index.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

import numpy as np

from tamis.stores.base import HashRows

MAX_TAIL = 8192
"""Rows after which the index is updated."""

_FEW = 100
"""Hashes that are faster inserted one by one than sorted in with all others."""

_Hash = tuple[int, int]


class JournalRows(NamedTuple):
    """Consecutive rows of the journal, such as the rows of one commit."""

    numbers: Sequence[int]
    added: Sequence[bool]
    """Whether each row says that a key was added, or that it was removed."""
    columns: Sequence[Any]
    """The key of each row, as the column stores it."""
    position: str
    """The position of the last row."""
    exact: bool = False
    """Whether a key that was added was absent before: SQLite does not log rows that a program
    without tamis removes by INSERT OR REPLACE."""

    def after(self, number: int) -> JournalRows:
        """Return the rows with higher numbers."""
        start = bisect_right(self.numbers, number)
        if start == 0:
            return self
        return self._replace(
            numbers=self.numbers[start:], added=self.added[start:], columns=self.columns[start:]
        )


def net_changes(parts: Sequence[JournalRows]) -> tuple[list[Any], list[Any]]:
    """Return the keys that rows of the journal add to the index, and the keys they remove.

    A key that was added and removed again since the index was updated is in neither.
    """
    keys = [*chain.from_iterable(rows.columns for rows in parts)]
    added = [*chain.from_iterable(rows.added for rows in parts)]
    new = added
    if not all(rows.exact for rows in parts):
        signs = (rows.added if rows.exact else repeat(False, len(rows.added)) for rows in parts)
        new = [*chain.from_iterable(signs)]
    last = dict(zip(keys, added, strict=True))
    # Backwards, so that the first row of each key remains.
    came = dict(zip(reversed(keys), reversed(new), strict=True))
    return (
        [key for key, added in last.items() if added],
        [key for key, added in last.items() if not (added or came[key])],
    )


class Tail:
    """Rows of the journal that are not in the index yet. It is thread-safe.

    Take a view with `within` *before* reading the index: rows that are in both are not counted
    twice, but rows that moved to the index before the view was taken would be missed.
    """

    def __init__(self, number: int, hasher: Callable[[Sequence[Any]], HashRows]) -> None:
        """Start after the row of this number, with a function from columns to hashes."""
        self._lock, self._hasher = threading.Lock(), hasher
        self._start = number  # the index has the rows up to this number
        self._listed = number  # the number of the last row that the index or this tail has
        self._parts: list[JournalRows] = []
        self._count = 0  # of the rows in these parts
        self._summed = 0  # this many of the parts are summed up in the next two
        self._hashes: list[_Hash] = []  # in order
        # Whether the last row of each was an addition: one may follow another.
        self._present: dict[_Hash, bool] = {}

    def __len__(self) -> int:
        return self._count

    def append(self, after: int, rows: JournalRows) -> bool:
        """Add the rows that follow a number; return `False` if others come before them."""
        with self._lock:
            if after > self._listed:
                return False
            if after < self._listed:
                rows = rows.after(self._listed)
            if rows.numbers:
                self._parts.append(rows)
                self._count += len(rows.numbers)
                self._listed = rows.numbers[-1]
            return True

    def drop(self, number: int) -> None:
        """Drop the rows up to a number, which the index has now."""
        with self._lock:
            self._start = max(self._start, number)
            self._listed = max(self._listed, number)
            self._parts = [rows.after(number) for rows in self._parts if rows.numbers[-1] > number]
            self._count = sum(len(rows.numbers) for rows in self._parts)
            self._hashes, self._present, self._summed = [], {}, 0

    def since(self, number: int, position: str) -> list[JournalRows] | None:
        """Return the rows after a number, if the last one has this position and none is missing."""
        with self._lock:
            known = self._parts and self._parts[-1].position == position and self._start <= number
            return [rows.after(number) for rows in self._parts] if known else None

    def within(self, lo: int, hi: int) -> View:
        """Return the hashes added and removed whose first word is from ``lo`` to ``hi``."""
        with self._lock:
            if parts := self._parts[self._summed :]:
                self._sum_up(parts)
            hashes = self._hashes[
                bisect_left(self._hashes, (lo, 0)) : bisect_left(self._hashes, (hi + 1, 0))
            ]
            return View(
                [hash for hash in hashes if self._present[hash]],
                [hash for hash in hashes if not self._present[hash]],
            )

    def _sum_up(self, parts: Sequence[JournalRows]) -> None:
        hashes = self._hasher([column for rows in parts for column in rows.columns]).tolist()
        added = [added for rows in parts for added in rows.added]
        known = len(self._present)
        self._present.update(zip(map(tuple, hashes), added, strict=True))
        new = [*islice(self._present, known, None)]
        if len(new) < _FEW:
            for hash in new:
                insort(self._hashes, hash)
        else:
            self._hashes += new
            self._hashes.sort()
        self._summed += len(parts)


class View(NamedTuple):
    """Hashes to add to the index, and to remove from it."""

    added: list[_Hash]
    removed: list[_Hash]

    def apply(self, stored: HashRows) -> HashRows:
        """Return the hashes of the index with these changes, where it does not have them yet."""
        if not (self.added or self.removed):
            return stored
        return np.concatenate([*self.apply_to_parts(iter([stored]))])

    def apply_to_parts(self, parts: Iterator[HashRows]) -> Iterator[HashRows]:
        """Apply the changes to the hashes of the index, which come in parts."""
        removed, added = set(self.removed), set(self.added)
        for part in parts:
            hashes = [*map(tuple, part.tolist())]
            added.difference_update(hashes)
            yield part[[hash not in removed for hash in hashes]]
        yield np.array(sorted(added), dtype=np.uint64).reshape(-1, 2)
