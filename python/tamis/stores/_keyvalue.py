"""Shared by the key-value stores: index entries, and epochs without a journal.

Keys and values are written by `encode_key` and `encode_value`. The store also keeps an index with
one entry per key: the key's hash in sixteen bytes, then the key. Entries sort by hash, so a range
of hashes is a range of entries.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from tamis import _native
from tamis.stores._encoding import decode_hashes, decode_key, decode_value
from tamis.stores.contract import Changes, Hasher, HashRows, PlainKey, Value

_HASH_BYTES = 16


def load_values(found: Sequence[bytes | None]) -> list[Value | None]:
    """Return the values that a lookup found, `None` where there was no entry."""
    return [None if data is None else decode_value(data) for data in found]


def index_entries(hasher: Hasher, keys: Sequence[PlainKey]) -> list[bytes]:
    """Return the index entry of each key."""
    return _native.index_entries(hasher(keys), list(keys)) if keys else []


def entry_hashes(entries: Sequence[bytes]) -> HashRows:
    """Return the hashes of index entries."""
    return decode_hashes([entry[:_HASH_BYTES] for entry in entries])


def entry_keys(entries: Sequence[bytes]) -> list[PlainKey]:
    """Return the keys of index entries."""
    return [decode_key(entry[_HASH_BYTES:]) for entry in entries]


def epoch_number(epoch: str) -> int:
    """Return the number of an epoch."""
    return int(epoch.partition(".")[0])


def lost_epoch() -> str:
    """Return an epoch that equals no other, for a store that lost its own."""
    return f"0.{secrets.token_hex(16)}"


def changes_without_journal(since: str, until: str) -> Changes | None:
    """Return no changes between equal epochs; otherwise `None`, as nothing records the changes."""
    return Changes(until, [], []) if since == until else None
