"""The index of `tamis.stores.RocksDB`: the hash of each key, in order, updated in batches.

Hashes are random, so writing an entry of the index costs RocksDB several times as much as writing a
value in key order. As in the SQL stores, a write therefore adds one entry to a *journal*, ``j`` and
a number, which lists the keys that it added or removed; they are also kept in memory (`tail.py`).
After some thousand of them the index is updated, in order and without keys that came and went, by a
batch that also starts a new *generation* of the journal. Entries of earlier generations are ignored
and overwritten.

If a write failed or was interrupted, the journal may differ from the copy in memory, and is read
again before the index is used.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tamis._native import encode_hashes
from tamis.stores.base import Hasher, HashRows, PlainKey
from tamis.stores.encoding import decode_key, pack_keys, unpack_keys
from tamis.stores.tail import MAX_TAIL, JournalRows, Tail, net_changes

_GENERATION = b"mjournal"
"""The entry of the metadata with the current generation."""

_HEAD = struct.Struct(">Q?")
"""The generation, and whether keys were added or removed."""


def unpack_changes(entry: bytes) -> tuple[int, bool, list[PlainKey]]:
    """Return the generation of an entry, whether it added its keys, and the keys."""
    keys = unpack_keys(entry[_HEAD.size :])
    return *_HEAD.unpack_from(entry), [decode_key(key[1:]) for key in keys]


class LazyIndex:
    """Which hashes the index has, and which it will have. The caller holds the store's lock."""

    def __init__(self, db: Any, make_batch: Callable[[], Any]) -> None:
        self.db, self._make_batch = db, make_batch
        found = db.get(_GENERATION)
        self._generation = 0 if found is None else int.from_bytes(found, "big")
        self._slot = 0
        """The number of the next entry of the journal."""
        self.tail = Tail(0, _no_hasher)
        """The changes that the index does not have yet."""
        self._number = 0
        """The number of the last change in the tail."""
        self.stale = False
        """Whether the journal may have changes that the tail does not have."""

    def start(self, hasher: Hasher) -> None:
        """Start with an index of all keys, by this hasher, and an empty journal."""
        self._hasher = hasher
        self._update([], [])

    def resume(self, hasher: Hasher) -> None:
        """Read the journal of an index by this hasher."""
        self._hasher = hasher
        self.reload()

    def reload(self) -> None:
        """Read the tail from the journal."""
        tail, number = Tail(0, self._hasher), 0
        for slot, added, keys in self._read_journal():
            tail.append(number, _rows(number, added, keys))
            number += len(keys)
            self._slot = max(self._slot, slot + 1)
        self.tail, self._number, self.stale = tail, number, False

    def update_if_due(self) -> None:
        """Update the index if that is due before the next write."""
        if self.stale:
            self.reload()
        if len(self.tail) >= MAX_TAIL:
            self._update(*net_changes(self.tail.since(0, "") or []))

    def log(self, batch: Any, added: bool, entries: list[bytes]) -> None:
        """Add the changes of a write, by the entries of its values, to its batch."""
        entry = b"j" + self._slot.to_bytes(4, "big")
        # A write that fails keeps its number, as it may be found in the journal nevertheless.
        self._slot += 1
        batch.put(entry, _HEAD.pack(self._generation, added) + pack_keys(entries))

    def logged(self, added: bool, keys: Sequence[PlainKey]) -> None:
        """Let the tail have the changes of a write that was committed."""
        self.tail.append(self._number, _rows(self._number, added, keys))
        self._number += len(keys)

    def _read_journal(self) -> Iterator[tuple[int, bool, list[PlainKey]]]:
        for entry, value in self.db.items(from_key=b"j"):
            if not entry.startswith(b"j"):
                return
            generation, added, keys = unpack_changes(value)
            if generation == self._generation:
                yield int.from_bytes(entry[1:], "big"), added, keys

    def _update(self, added: Sequence[PlainKey], removed: Sequence[PlainKey]) -> None:
        batch = self._make_batch()
        for hash in self._sorted_hashes(removed):
            batch.delete(b"h" + hash)
        for hash in self._sorted_hashes(added):
            batch.put(b"h" + hash, b"")
        batch.put(_GENERATION, (self._generation + 1).to_bytes(8, "big"))
        self.db.write(batch)
        self._generation += 1
        # Whoever reads the index meanwhile has a view of the last tail, with the same changes.
        self.tail, self._number, self._slot = Tail(0, self._hasher), 0, 0

    def _sorted_hashes(self, keys: Sequence[PlainKey]) -> list[bytes]:
        return sorted(encode_hashes(self._hasher(keys))) if keys else []


def _rows(number: int, added: bool, keys: Sequence[PlainKey]) -> JournalRows:
    """Return changes as rows for the tail, numbered from the one after ``number``."""
    count = len(keys)
    return JournalRows(range(number + 1, number + count + 1), [added] * count, [*keys], "", True)


def _no_hasher(_: Sequence[PlainKey]) -> HashRows:
    raise AssertionError("there is nothing to hash before `attach`")
