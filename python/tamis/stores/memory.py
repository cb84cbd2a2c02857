"""`tamis.stores.Memory`, a store in memory, and `tamis.stores.Hashes`, a table of hashes alone."""

from __future__ import annotations

import random
import secrets
import threading
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Any

from tamis import _native
from tamis._native import encode_hashes
from tamis.stores.base import (
    Changes,
    Commit,
    Hasher,
    HashRows,
    PlainKey,
    Store,
    Value,
    batches,
    commit_of,
    lease_error,
)
from tamis.stores.encoding import decode_hashes
from tamis.stores.lease import LocalLease


class Memory(Store):
    """A store in the memory of this process. Several guards may share one.

    >>> import tamis
    >>> g = tamis.Guard(Memory(), tamis.Bloom(capacity=1000, fpr=0.01))
    >>> g.put("ada", b"1815")
    >>> g.get("ada")
    b'1815'
    """

    shared = False

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._values: dict[PlainKey, Value] = {}
        self._hashes: list[bytes] = []
        self._metadata: dict[str, bytes] = {}
        self._history = secrets.token_hex(8)
        self._version = 1
        self._lease = LocalLease()
        self._hasher: Hasher | None = None
        self._name: bytes | None = None

    def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        return [self._values.get(key) for key in keys]

    def put_many(
        self, keys: Sequence[PlainKey], values: Sequence[Value], owner: str, since: str = ""
    ) -> Commit:
        """Write distinct keys."""
        with self._lock:
            self._check_lease(owner)
            existed = [key in self._values for key in keys]
            for encoded in self._encoded_hashes(
                [k for k, was in zip(keys, existed, strict=True) if not was]
            ):
                insort(self._hashes, encoded)
            self._values.update(zip(keys, values, strict=True))
            return self._commit(keys, existed, since, adding=True)

    def delete_many(self, keys: Sequence[PlainKey], owner: str, since: str = "") -> Commit:
        """Delete distinct keys."""
        with self._lock:
            self._check_lease(owner)
            existed = [key in self._values for key in keys]
            gone = [key for key, was in zip(keys, existed, strict=True) if was]
            for encoded in self._encoded_hashes(gone):
                del self._hashes[bisect_left(self._hashes, encoded)]
            for key in gone:
                del self._values[key]
            return self._commit(keys, existed, since, adding=False)

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return the position and the keys at that position, in batches."""
        with self._lock:
            keys = list(self._values)
            return self._position, batches(keys)

    def sample(self, count: int) -> list[Any]:
        """Return a few of the keys, drawn at random."""
        with self._lock:
            return random.sample([*self._values], min(count, len(self._values)))

    def run(self, lo: int, hi: int) -> HashRows:
        """Return the hashes whose first word is from ``lo`` to ``hi``."""
        with self._lock:
            start = bisect_left(self._hashes, lo.to_bytes(8, "big"))
            stop = bisect_left(self._hashes, hi.to_bytes(8, "big") + b"\xff" * 9)
            return decode_hashes(self._hashes[start:stop])

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes."""
        with self._lock:
            return iter([decode_hashes(self._hashes)])

    def changes(self, since: str, limit: int | None = None) -> Changes | None:
        """Return no changes at the same position; otherwise `None`, as there is no journal."""
        position = self._position
        return Changes(position, [], []) if since == position else None

    def attach(self, owner: str, hasher: Hasher, name: bytes) -> None:
        """Index keys with this hasher; rebuild the index if it had another name."""
        with self._lock:
            self._check_lease(owner)
            self._hasher = hasher
            if name != self._name:
                self._hashes = sorted(self._encoded_hashes(list(self._values)))
                self._name = name

    def lease(self, owner: str, seconds: float) -> bool:
        """Take or renew the lease."""
        with self._lock:
            return self._lease.take(owner, seconds)

    def release(self, owner: str) -> None:
        """Release the lease if this owner holds it."""
        with self._lock:
            self._lease.release(owner)

    def metadata(self, name: str, value: bytes | None = None) -> bytes | None:
        """Return the metadata of this name; first set it to ``value``, if given."""
        with self._lock:
            if value is not None:
                self._metadata[name] = value
            return self._metadata.get(name)

    def close(self) -> None:
        """Do nothing; the keys remain for the next guard."""

    def _encoded_hashes(self, keys: Sequence[PlainKey]) -> list[bytes]:
        """Return the hashes of keys for the index, if there is one."""
        return encode_hashes(self._hasher(keys)) if keys and self._hasher is not None else []

    def _check_lease(self, owner: str) -> None:
        if self._lease.holder != owner:
            raise lease_error(self._lease.holder)

    def _commit(
        self, keys: Sequence[PlainKey], existed: list[bool], since: str, *, adding: bool
    ) -> Commit:
        before = self._position
        if not all(was == adding for was in existed):
            self._version += 1
        return commit_of(keys, existed, adding, since, before, self._position)

    @property
    def _position(self) -> str:
        return f"{self._version}.{self._history}"


class Hashes(_native.Hashes):
    """A table of hashes that serves an adaptive filter as its remote, without a store.

    It must hash as the filter does, with the same ``seed`` or ``key``. It is thread-safe. Threads
    that change the filter at the same time must add a key to this table first and to the filter
    second, as a hash that the filter has and the table does not could lose its slot; and remove it
    in the same order.

    >>> stored = Hashes(["ada", "grace"], seed=7)
    >>> stored.add("alan"); stored.remove("ada")
    >>> len(stored), stored.run(0, 2**64 - 1).shape
    (2, (2, 2))
    """

    __slots__ = ()
