"""The protocol between a guard and its store, and the checks and errors that stores share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID

import numpy as np
import numpy.typing as npt

from tamis._checks import MAX_SECONDS, check_number, shown
from tamis._types import Key, Keys
from tamis.errors import LeaseError, StoreError

PlainKey: TypeAlias = bytes | int
"""A key as guards pass it to stores: text as UTF-8, any integer as an `int`."""

GivenKey: TypeAlias = Key | UUID | tuple[Key | UUID, ...]
"""A key as callers pass it; a tuple is a key of several columns of an existing table."""

GivenKeys: TypeAlias = Keys | Iterable[UUID] | Iterable[tuple[Key | UUID, ...]]
"""Many keys as callers pass them."""

Value: TypeAlias = Any
"""A value: bytes or text, returned as it was put, or any type of an existing table's column."""

HashRows: TypeAlias = npt.NDArray[np.uint64]
"""Hashes as `tamis.hash_keys` makes them: one row of two words per key."""

Hasher: TypeAlias = Callable[[Sequence[Any]], HashRows]
"""A function from keys to their hashes."""

JOURNAL = 100_000
"""Changes that a journal keeps. A guard that is further behind has to rebuild."""

BATCH = 4096
"""Keys to read from a store, or to hash for its index, at a time."""


class Commit(NamedTuple):
    """The result of a write: which keys were present before it, and the epochs before and after."""

    existed: list[bool]
    before: str
    after: str


class Changes(NamedTuple):
    """The keys added and removed between two epochs, and the later epoch.

    ``more`` says that the store has changes after ``epoch``, which the limit of the call left out.
    """

    epoch: str
    added: list[Any]
    removed: list[Any]
    more: bool = False


class Store(Protocol):
    """A store that a guard can be put in front of.

    An *epoch*, ``"<count>.<random>"``, identifies one state of the set of keys. Each change of the
    set gives a new epoch, and no epoch ever identifies two states. The *lease* lets one guard at a
    time write; the store refuses writes without it. The *index* holds the hash of every key.

    A store that is unreachable or takes too long raises `tamis.StoreError`, and connects again at a
    later call. A class that derives from `Store` inherits `change_token`, `watch` and `runs`.

    A store whose keys are tuples or UUIDs also has ``translates_keys = True``, ``to_plain(key)``,
    which returns a caller's key as `PlainKey`, and ``from_plain(key)``, the reverse.
    """

    shared: bool
    """Whether others write without a guard; if so, guards compare epochs before each "no"."""

    def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        ...

    def put_many(self, keys: Sequence[PlainKey], values: Sequence[Value], owner: str) -> Commit:
        """Write distinct keys and their hashes in one commit; `LeaseError` without the lease."""
        ...

    def delete_many(self, keys: Sequence[PlainKey], owner: str) -> Commit:
        """Delete distinct keys and their hashes in one commit; `LeaseError` without the lease."""
        ...

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return an epoch and the keys at that epoch, in batches.

        A store without a journal may mix keys of several epochs; `changes` then returns `None`.
        """
        ...

    def run(self, lo: int, hi: int) -> HashRows:
        """Return all indexed hashes whose first word is from ``lo`` to ``hi``, both included."""
        ...

    def runs(self, ranges: Sequence[tuple[int, int]]) -> list[HashRows]:
        """Return `run` of each range, in one round trip where the store can."""
        return [self.run(lo, hi) for lo, hi in ranges]

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all indexed hashes, in batches."""
        ...

    def epoch(self) -> str:
        """Return the current epoch; a store that lost it returns a different one each time."""
        ...

    def change_token(self) -> object:
        """Return a token that is cheap to read; while it is equal, so is the set of keys."""
        return self.epoch()

    def watch(self, wake: Callable[[], None]) -> Callable[[], None] | None:
        """Call ``wake`` from a thread when keys may have changed or a lost connection is back.

        Return a function that ends this, or `None` if the store has no such signal.
        """
        return None

    def changes(
        self, since: str, until: str | None = None, limit: int | None = None
    ) -> Changes | None:
        """Return the changes from ``since`` to ``until`` (default: now), or `None` if unknown.

        ``limit`` is about how many changes to return at most; `Changes.more` says that there are
        more. A store that would have to wait for a write may return none of them, with ``more``.
        """
        ...

    def attach(self, owner: str, hasher: Hasher, name: bytes) -> None:
        """Index keys with this hasher from now on; rebuild the index if it had another name."""
        ...

    def lease(self, owner: str, seconds: float) -> bool:
        """Take or renew the lease for this many seconds; return `False` if another owner has it.

        A store that refuses for another reason may explain it in an attribute ``lease_refusal``.
        """
        ...

    def release(self, owner: str) -> None:
        """Release the lease if this owner holds it."""
        ...

    def metadata(self, name: str, value: bytes | None = None) -> bytes | None:
        """Return the metadata of this name; first set it to ``value``, if given."""
        ...

    def close(self) -> None:
        """Close the store's connections and files."""
        ...


_MEMBERS = ("shared", *(name for name in vars(Store) if not name.startswith("_")))


def check_store(store: object) -> None:
    """Raise `TypeError` if an object lacks a member of `Store`."""
    for name in _MEMBERS:
        if not hasattr(store, name):
            raise TypeError(
                "store must be a store of tamis.stores, such as SQLite(path), or an object with "
                f"the members of tamis.stores.Store, not a {type(store).__name__} (which has no "
                f"{name!r})"
            )


def batches(items: Sequence[Any], size: int = BATCH) -> Iterator[list[Any]]:
    """Split a sequence into lists of at most ``size`` items."""
    return (list(items[i : i + size]) for i in range(0, len(items), size))


def store_error(store: str, error: BaseException) -> StoreError:
    """Return the error for a driver's error about the connection or about time."""
    detail = " ".join(str(error).split()) or type(error).__name__
    return StoreError(f"{store} is unreachable or took too long: {detail}")


def schema_error(store: str, error: BaseException) -> StoreError:
    """Return the error for a table that is no longer as it was when the store was opened."""
    detail = " ".join(str(error).split())
    return StoreError(f"{store} was changed since the store was opened: {detail}")


def check_address(name: str, given: Any, kinds: Any, accepted: str) -> Any:
    """Return where a database is, if that has an accepted type: a setting may be missing."""
    if not isinstance(given, kinds):
        raise TypeError(f"{name} must be {accepted}, not {shown(given)}")
    return given


def check_timeout(timeout: float | None) -> float | None:
    """Return a time-out in seconds, which must be positive."""
    what = f"a number of seconds above 0, or None to wait, and at most {MAX_SECONDS}"
    return (
        None
        if timeout is None
        else check_number("timeout", timeout, what, above=0, most=MAX_SECONDS)
    )


def lease_error(holder: str | None) -> LeaseError:
    """Return the error for a write without the lease; the holder may be unknown, ``""``."""
    who = "no guard holds it" if holder is None else "another guard holds it"
    return LeaseError(f"nothing was written: this guard does not hold the store's lease ({who})")


def attach_error() -> LeaseError:
    """Return the error for a write before `Store.attach`, which a guard calls with the lease."""
    return LeaseError("nothing was written: take the lease and call attach before the first write")
