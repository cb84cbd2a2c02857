"""`tamis.stores.Memory`, a store in memory, and `tamis.stores.Hashes`, a table of hashes alone."""

from __future__ import annotations

import secrets
import threading
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Any

from tamis import _native
from tamis._native import encode_hashes
from tamis.stores._encoding import decode_hashes
from tamis.stores._keyvalue import changes_without_journal, epoch_number
from tamis.stores._lease import LocalLease
from tamis.stores.contract import (
    Changes,
    Commit,
    Hasher,
    HashRows,
    PlainKey,
    Store,
    Value,
    attach_error,
    batches,
    lease_error,
)


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
        self._notes: dict[str, bytes] = {}
        self._history = secrets.token_hex(8)
        self._epoch = f"1.{self._history}"
        self._lease = LocalLease()
        self._hasher: Hasher | None = None
        self._name: bytes | None = None

    def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        return [self._values.get(key) for key in keys]

    def put_many(self, keys: Sequence[PlainKey], values: Sequence[Value], owner: str) -> Commit:
        """Write distinct keys and their hashes."""
        with self._lock:
            self._check_lease(owner)
            if self._hasher is None:
                raise attach_error()
            existed = [key in self._values for key in keys]
            before = self._epoch
            for encoded in self._encoded_hashes(
                [k for k, was in zip(keys, existed, strict=True) if not was]
            ):
                insort(self._hashes, encoded)
            self._values.update(zip(keys, values, strict=True))
            return self._commit(existed, before, not all(existed))

    def delete_many(self, keys: Sequence[PlainKey], owner: str) -> Commit:
        """Delete distinct keys and their hashes."""
        with self._lock:
            self._check_lease(owner)
            if self._hasher is None:
                raise attach_error()
            existed = [key in self._values for key in keys]
            before = self._epoch
            gone = [key for key, was in zip(keys, existed, strict=True) if was]
            for key, encoded in zip(gone, self._encoded_hashes(gone), strict=True):
                del self._values[key]
                del self._hashes[bisect_left(self._hashes, encoded)]
            return self._commit(existed, before, bool(gone))

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return the epoch and the keys at that epoch, in batches."""
        with self._lock:
            keys = list(self._values)
            return self._epoch, batches(keys)

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

    def epoch(self) -> str:
        """Return the current epoch."""
        return self._epoch

    def changes(
        self, since: str, until: str | None = None, limit: int | None = None
    ) -> Changes | None:
        """Return no changes if the epochs are equal; otherwise `None`, as there is no journal."""
        return changes_without_journal(since, self._epoch if until is None else until)

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
                self._notes[name] = value
            return self._notes.get(name)

    def close(self) -> None:
        """Do nothing; the keys remain for the next guard."""

    def _encoded_hashes(self, keys: Sequence[PlainKey]) -> list[bytes]:
        assert self._hasher is not None
        return encode_hashes(self._hasher(keys)) if keys else []

    def _check_lease(self, owner: str) -> None:
        if self._lease.holder != owner:
            raise lease_error(self._lease.holder)

    def _commit(self, existed: list[bool], before: str, changed: bool) -> Commit:
        if changed:
            self._epoch = f"{epoch_number(self._epoch) + 1}.{self._history}"
        return Commit(existed, before, self._epoch)


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
