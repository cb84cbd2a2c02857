"""What a guard asks of a store, and how keys and values are written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tamis.errors import LeaseError

PlainKey: TypeAlias = bytes | int
"""A key as guards hand it to stores: text as UTF-8, any integer as an `int`."""

Value: TypeAlias = bytes | str
"""A value, given back as it was put."""

HashRows: TypeAlias = npt.NDArray[np.uint64]
"""Hashes as `tamis.hash_keys` makes them: one row of two words per key."""

Hasher: TypeAlias = Callable[[Sequence[Any]], HashRows]
"""From keys to their hashes."""

BATCH = 4096
"""Keys that are read from a store, or hashed for its index, at a time."""


class Commit(NamedTuple):
    """What a write did: which of its keys were there before, and the epochs around it."""

    existed: list[bool]
    before: str
    after: str


class Changes(NamedTuple):
    """The keys that came and went between two epochs, and the later of the two."""

    epoch: str
    added: list[Any]
    removed: list[Any]


class Store(Protocol):
    """A store that a guard can stand in front of.

    An *epoch* names one state of the set of keys: ``"<count>.<random>"``, another after each change
    of the set, and never one that was given to a different state. The *lease* lets one guard at a
    time write; what is written without it is refused. The *index* holds the hash of every key.
    """

    shared: bool
    """Whether others write without a guard: then the epoch is asked before each "no"."""

    def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        ...

    def put_many(self, keys: Sequence[PlainKey], values: Sequence[Value], owner: str) -> Commit:
        """Write distinct keys with their hashes in one commit; `LeaseError` without the lease."""
        ...

    def delete_many(self, keys: Sequence[PlainKey], owner: str) -> Commit:
        """Remove distinct keys and their hashes in one commit; `LeaseError` without the lease."""
        ...

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return an epoch and the keys at it, in batches.

        A store without a journal may give keys of several epochs; `changes` is then `None`.
        """
        ...

    def run(self, lo: int, hi: int) -> HashRows:
        """Return all indexed hashes whose first word is from ``lo`` to ``hi``, both included."""
        ...

    def scan(self) -> Iterator[HashRows]:
        """Go through all indexed hashes."""
        ...

    def epoch(self) -> str:
        """Return the present epoch."""
        ...

    def changes(self, since: str, until: str | None = None) -> Changes | None:
        """Return what changed between two epochs, or `None` where the store cannot tell."""
        ...

    def attach(self, owner: str, hasher: Hasher, name: bytes) -> None:
        """Keep the index with this function from now on; made anew if it had another name."""
        ...

    def lease(self, owner: str, seconds: float) -> bool:
        """Take or renew the lease for so long; `False` if another holds it."""
        ...

    def release(self, owner: str) -> None:
        """Give the lease back if it is this owner's."""
        ...

    def note(self, name: str, value: bytes | None = None) -> bytes | None:
        """Return what was noted under a name, after noting ``value`` if there is one."""
        ...

    def close(self) -> None:
        """Close what the store opened."""
        ...


def plain_key(key: Any) -> PlainKey:
    r"""Return a key in the form that stores take.

    >>> plain_key("é"), plain_key(b"a"), plain_key(5)
    (b'\xc3\xa9', b'a', 5)
    """
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes):
        return bytes(key)
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        return int(key)
    raise TypeError(f"a key is {key!r} (of type {type(key).__name__}); str, bytes or int is wanted")


def encode_key(key: PlainKey) -> bytes:
    """Write a key as bytes in which text and integers differ.

    >>> encode_key(b"1"), encode_key(1)
    (b'b1', b'i1')
    """
    return b"b" + key if isinstance(key, bytes) else b"i%d" % key


def decode_key(data: bytes) -> PlainKey:
    """Undo `encode_key`."""
    return data[1:] if data[:1] == b"b" else int(data[1:])


def encode_value(value: Value) -> bytes:
    """Write a value as bytes that tell whether it was text."""
    return b"b" + value if isinstance(value, bytes) else b"s" + value.encode()


def decode_value(data: bytes) -> Value:
    """Undo `encode_value`.

    >>> decode_value(encode_value("é")), decode_value(encode_value(b"x"))
    ('é', b'x')
    """
    return data[1:] if data[:1] == b"b" else data[1:].decode()


def encode_hashes(hashes: HashRows) -> list[bytes]:
    """Write each hash as sixteen bytes that sort as the numbers do."""
    data = hashes.astype(">u8").tobytes()
    return [data[i : i + 16] for i in range(0, len(data), 16)]


def decode_hashes(data: Sequence[bytes]) -> HashRows:
    """Undo `encode_hashes`."""
    words = np.frombuffer(b"".join(data), dtype=">u8").reshape(-1, 2)
    return words.astype(np.uint64)


def batches(items: Sequence[Any], size: int = BATCH) -> Iterator[list[Any]]:
    """Cut a sequence into lists of at most so many."""
    return (list(items[i : i + size]) for i in range(0, len(items), size))


def lease_error(holder: str | None) -> LeaseError:
    """Make the error of a write without the lease."""
    who = "nobody holds it" if holder is None else "another guard holds it"
    return LeaseError(f"the store's lease is not this guard's ({who}), so nothing was written")
