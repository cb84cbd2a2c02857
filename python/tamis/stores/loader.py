"""`tamis.stores.Loader`: any source that functions can read, such as an API or an object store.

What a guard can promise depends on what the source can tell:

- with ``version``, a "no" is given only while the version is the one that the keys were read at;
- with ``refresh``, keys that others add are found at most that many seconds later;
- with ``put_many`` and ``delete_many``, the guard is the only writer and knows every change.

The metadata are in memory, and so is the index of hashes, which only filters that adapt use. There
is none where others write, so that filters do not adapt there.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tamis._checks import check_number, shown
from tamis._clock import now
from tamis._native import encode_hashes, plain_keys
from tamis.errors import StoreError, TamisError
from tamis.stores.base import (
    BATCH,
    Changes,
    Commit,
    Hasher,
    HashRows,
    PlainKey,
    Store,
    Value,
    commit_of,
    lease_error,
)
from tamis.stores.encoding import decode_hashes
from tamis.stores.lease import LocalLease


class Loader(Store):
    """A source that is read by functions: DynamoDB, object keys, an HTTP API, a cache.

    ``get_many(keys)`` returns the value of each key, `None` where it is absent. ``keys()`` returns
    all keys, in any iterable; it is called for each rebuild of the filter. Text is passed to the
    functions as `str`, unless ``text=False``, and other keys as they are.

    Pass one of these: ``version()``, whose value differs whenever keys may have been added;
    ``refresh``, the number of seconds after which the keys are read again; or ``put_many(keys,
    values)`` and ``delete_many(keys)``, through which the guard alone writes.

    >>> import tamis
    >>> names = {"ada": "1815", "grace": "1906"}
    >>> source = Loader(
    ...     get_many=lambda keys: [names.get(key) for key in keys],
    ...     keys=lambda: names,
    ...     version=lambda: len(names),
    ... )
    >>> with tamis.Guard(source, tamis.Bloom(capacity=1000, fpr=0.01)) as g:
    ...     g.get("ada"), g.get("alan")
    ('1815', None)
    """

    def __init__(
        self,
        *,
        get_many: Callable[[list[Any]], Iterable[Value | None]],
        keys: Callable[[], Iterable[Any]],
        version: Callable[[], object] | None = None,
        refresh: float | None = None,
        put_many: Callable[[list[Any], list[Value]], object] | None = None,
        delete_many: Callable[[list[Any]], object] | None = None,
        text: bool = True,
    ) -> None:
        for name, function in (
            ("get_many", get_many),
            ("keys", keys),
            ("version", version),
            ("put_many", put_many),
            ("delete_many", delete_many),
        ):
            if function is None and name not in ("get_many", "keys"):
                continue
            if not callable(function):
                raise TypeError(f"{name} must be a function, not {shown(function)}")
        if (put_many is None) != (delete_many is None):
            raise ValueError("pass put_many and delete_many together, or neither of them")
        if sum(given is not None for given in (version, refresh, put_many)) != 1:
            raise ValueError(
                "pass exactly one of version=, refresh= or put_many= with delete_many=: without "
                "them a guard could not notice keys that others add"
            )
        if refresh is not None:
            refresh = check_number("refresh", refresh, "a number of seconds above 0", above=0)
        self.shared = put_many is None
        # Keys that are read for an index may differ from the keys that are read for a filter.
        self.indexes = not self.shared
        self._get, self._all, self._version = get_many, keys, version
        self._refresh, self._put, self._remove = refresh, put_many, delete_many
        self._text = text
        self._lock = threading.RLock()
        self._history, self._number, self._read_at = secrets.token_hex(8), 1, 0.0
        self._metadata: dict[str, bytes] = {}
        self._lease = LocalLease()
        self._hashes: list[bytes] = []
        self._hasher: Hasher | None = None
        self._name: bytes | None = None

    # Keys and values.

    def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        with _source_errors("get_many"):
            values = [*self._get(self._to_source(keys))] if keys else []
        if len(values) != len(keys):
            raise StoreError(
                f"get_many must return a value or None for each of the {len(keys)} keys, not "
                f"{len(values)} values"
            )
        return values

    def put_many(
        self, keys: Sequence[PlainKey], values: Sequence[Value], owner: str, since: str = ""
    ) -> Commit:
        """Write distinct keys through the function."""
        with self._lock:
            put = self._writer(owner, self._put)
            existed = [value is not None for value in self.get_many(keys)]
            with _source_errors("put_many"):
                put(self._to_source(keys), list(values))
            return self._commit(keys, existed, since, adding=True)

    def delete_many(self, keys: Sequence[PlainKey], owner: str, since: str = "") -> Commit:
        """Delete distinct keys through the function."""
        with self._lock:
            remove = self._writer(owner, self._remove)
            existed = [value is not None for value in self.get_many(keys)]
            with _source_errors("delete_many"):
                remove(self._to_source(keys))
            return self._commit(keys, existed, since, adding=False)

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return a position and all keys, in batches."""
        with self._lock:
            # Before the keys are read: keys that come meanwhile may be missed, and the version or
            # the time tells.
            self._read_at = now()
            if self._refresh is not None:
                self._number += 1
            position = self._position()

        def read() -> Iterator[list[Any]]:
            with _source_errors("keys"):
                found = iter(self._all())
                while part := list(itertools.islice(found, BATCH)):
                    yield plain_keys(part)

        return position, read()

    def changes(self, since: str, limit: int | None = None) -> Changes | None:
        """Return no changes at the same position; otherwise `None`: the source lists no changes."""
        if self._refresh is not None and now() - self._read_at >= self._refresh:
            return None
        position = self._position()
        return Changes(position, [], []) if since == position else None

    # The index and the lease.

    def attach(self, owner: str, hasher: Hasher, name: bytes) -> None:
        """Index keys with this hasher, in memory."""
        if self.shared:
            raise TypeError("a Loader that others write to has no index of hashes")
        with self._lock:
            self._check_lease(owner)
            if name != self._name:
                _, parts = self.contents()
                self._hashes = sorted(
                    hash for keys in parts for hash in encode_hashes(hasher(keys))
                )
            self._hasher, self._name = hasher, name

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

    def lease(self, owner: str, seconds: float) -> bool:
        """Take or renew the lease, which is of this process."""
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
        """Do nothing: the source is the caller's."""

    def _position(self) -> str:
        if self._version is None:
            return f"{self._number}.{self._history}"
        with _source_errors("version"):
            version = self._version()
        return f"{type(version).__name__} {version!r}"

    def _to_source(self, keys: Sequence[PlainKey]) -> list[Any]:
        """Return keys as the functions take them."""
        if not self._text:
            return list(keys)
        return [_decoded(key) if isinstance(key, bytes) else key for key in keys]

    def _writer(self, owner: str, write: Callable[..., object] | None) -> Callable[..., object]:
        if write is None:
            raise TypeError(
                "cannot write to a Loader that is read-only: pass put_many= and delete_many= "
                "to write through it"
            )
        self._check_lease(owner)
        return write

    def _check_lease(self, owner: str) -> None:
        if self._lease.holder != owner:
            raise lease_error(self._lease.holder)

    def _commit(
        self, keys: Sequence[PlainKey], existed: list[bool], since: str, *, adding: bool
    ) -> Commit:
        before = self._position()
        changed = [key for key, was in zip(keys, existed, strict=True) if was != adding]
        if changed:
            self._number += 1
            if self._hasher is not None:
                for hash in encode_hashes(self._hasher(changed)):
                    if adding:
                        insort(self._hashes, hash)
                    else:
                        del self._hashes[bisect_left(self._hashes, hash)]
        return commit_of(keys, existed, adding, since, before, self._position())


def _decoded(key: bytes) -> str | bytes:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


@contextmanager
def _source_errors(function: str) -> Iterator[None]:
    """Translate any error of a caller's function to `StoreError`."""
    try:
        yield
    except TamisError:
        raise
    except Exception as error:
        raise StoreError(f"{function} of the Loader failed: {error!r}") from error
