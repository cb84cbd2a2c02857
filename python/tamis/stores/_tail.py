"""The latest changes of an SQL store, which its index of hashes does not have yet.

Hashes are random, so each key that enters or leaves the index changes a page of its own: more than
all else that a write has to do. So the store that holds the lease keeps the latest rows of the
journal in memory, and updates the index by some thousand of them at a time, in order. After a crash
the journal still has them, and the note ``indexed`` says from which row on.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from tamis.stores.contract import HashRows

LONGEST = 4096
"""Rows after which the index is updated."""

Row = tuple[int, bool, Any]
"""A row of the journal: its number, whether a key was added or removed, and the key's column."""

_Hash = tuple[int, int]


class Tail:
    """Rows of the journal after those in the index. It is thread-safe.

    Take a view with `within` *before* reading the index: what the index has of it by then is not
    counted twice, but what was moved to the index before the view would be missed.
    """

    def __init__(self, number: int, hasher: Callable[[Sequence[Any]], HashRows]) -> None:
        """Start after the row of this number, with a function from columns to hashes."""
        self._lock, self._hasher = threading.Lock(), hasher
        self._listed = number  # the number of the last row that the index or this tail has
        self._rows: list[Row] = []
        self._summed = 0  # this many of the rows are summed up in what follows
        self._hashes: list[_Hash] = []  # in order
        # Whether the last row of each was an addition: one may follow another, as SQLite does not
        # log what INSERT OR REPLACE removes.
        self._present: dict[_Hash, bool] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, after: int, rows: Iterable[Row]) -> bool:
        """Add the rows that follow a number; return `False` if others come before them."""
        with self._lock:
            if after > self._listed:
                return False
            if after < self._listed:
                rows = [row for row in rows if row[0] > self._listed]
            self._rows += rows
            if self._rows:
                self._listed = max(self._listed, self._rows[-1][0])
            return True

    def drop(self, number: int) -> None:
        """Drop the rows up to a number, which the index has now."""
        with self._lock:
            self._listed = max(self._listed, number)
            self._rows = [row for row in self._rows if row[0] > number]
            self._hashes, self._present, self._summed = [], {}, 0

    def within(self, lo: int, hi: int) -> View:
        """Return what the rows add and remove whose first word is from ``lo`` to ``hi``."""
        with self._lock:
            if rows := self._rows[self._summed :]:
                self._sum_up(rows)
            hashes = self._hashes[
                bisect_left(self._hashes, (lo, 0)) : bisect_left(self._hashes, (hi + 1, 0))
            ]
            return View(
                [hash for hash in hashes if self._present[hash]],
                [hash for hash in hashes if not self._present[hash]],
            )

    def _sum_up(self, rows: Sequence[Row]) -> None:
        hashes = map(tuple, self._hasher([column for _, _, column in rows]).tolist())
        known = len(self._present)
        self._present.update(zip(hashes, (added for _, added, _ in rows), strict=True))
        self._hashes += islice(self._present, known, None)
        self._hashes.sort()
        self._summed += len(rows)


class View(NamedTuple):
    """Hashes to add to those of the index, and to remove from them."""

    added: list[_Hash]
    removed: list[_Hash]

    def apply(self, stored: HashRows) -> HashRows:
        """Return the hashes of the index with these changes, where it does not have them yet."""
        if not (self.added or self.removed):
            return stored
        return np.concatenate([*self.apply_to_parts(iter([stored]))])

    def apply_to_parts(self, parts: Iterator[HashRows]) -> Iterator[HashRows]:
        """Change the hashes of the index part by part."""
        removed, added = set(self.removed), set(self.added)
        for part in parts:
            hashes = [*map(tuple, part.tolist())]
            added.difference_update(hashes)
            yield part[[hash not in removed for hash in hashes]]
        yield np.array(sorted(added), dtype=np.uint64).reshape(-1, 2)
