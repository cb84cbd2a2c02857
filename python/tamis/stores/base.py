"""The contract between a guard and its store, and the checks and errors that stores share."""

from __future__ import annotations

import random
import secrets
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


class Changes(NamedTuple):
    """The difference of the sets of keys at two positions, and the later position.

    Each key is listed at most once: a key that came and went in between is not listed. ``more``
    says that the store has changes after ``position``, which the limit of the call left out.
    """

    position: str
    added: list[Any]
    removed: list[Any]
    more: bool = False


class Commit(NamedTuple):
    """The result of a write: which keys were present before it, and the changes.

    ``changes`` lead from the ``since`` of the call to a position that includes the write. They are
    `None` if the store cannot tell them from the write alone; `Store.changes` can.
    """

    existed: list[bool]
    changes: Changes | None


class Reader(Protocol):
    """Reads the values of a store without a thread, for `tamis.AsyncGuard`.

    A reader belongs to the event loop in which it was opened. It makes the same request as
    `Store.get_many`, on connections of its own, and raises the same errors.
    """

    async def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class Store(Protocol):
    """A store that a guard can be put in front of.

    A *position*, an opaque string, identifies one state of the set of keys: a filter of the keys at
    a position, and the `changes` since it, give the keys of now. No position ever identifies two
    states, in a restored backup either. The *index* holds the hash of every key, for filters that
    adapt; a store builds none before `attach`.

    The *lease* is held by one guard at a time. A store that only guards write (``shared`` is false)
    refuses writes without it, so its holder needs no change checks. In a table that others write
    (``shared``), it only decides which guard maintains the index, and everybody writes.

    A store that is unreachable or takes too long raises `tamis.StoreError`, and connects again at a
    later call. A class that derives from `Store` inherits `change_token`, `watch`, `runs`, `sample`
    and `open_reader`.

    A store whose keys are tuples, UUIDs or of certain types also has ``translates_keys = True``,
    ``to_plain(key)``, which returns a caller's key as `PlainKey` or raises `TypeError`, and
    ``from_plain(key)``, the reverse.
    """

    shared: bool
    """Whether others write without a guard; if so, guards check for changes before each "no"."""

    indexes: bool = True
    """Whether the store can index hashes, which filters that adapt need."""

    translates_keys: bool = False
    """Whether `to_plain` and `from_plain` convert keys."""

    def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        ...

    async def open_reader(self) -> Reader | None:
        """Open a reader for the running event loop, or return `None` if the driver has none."""
        return None

    def put_many(
        self, keys: Sequence[PlainKey], values: Sequence[Value], owner: str, since: str = ""
    ) -> Commit:
        """Write distinct keys in one commit; without the lease, if it is needed, `LeaseError`.

        ``since`` is the caller's position: the result has the changes since then.
        """
        ...

    def delete_many(self, keys: Sequence[PlainKey], owner: str, since: str = "") -> Commit:
        """Delete distinct keys in one commit; without the lease, if it is needed, `LeaseError`."""
        ...

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return a position and the keys at that position, in batches, while others write.

        A store without a journal may mix keys of several positions; `changes` then returns `None`.
        """
        ...

    def sample(self, count: int) -> list[Any]:
        """Return a few of the keys, by which guards check their filters.

        By default some of the first batch of `contents`; a store that can draw at random should.
        """
        _, parts = self.contents()
        try:
            first = next(parts, [])
        finally:
            if close := getattr(parts, "close", None):
                close()
        return random.sample(first, min(count, len(first)))

    def changes(self, since: str, limit: int | None = None) -> Changes | None:
        """Return the changes from ``since`` to now, or `None` if the store does not know them.

        ``limit`` is about how many changes to return at most; `Changes.more` says that there are
        more. A store that would have to wait for a write may return none of them, with ``more``.
        """
        ...

    def change_token(self) -> object:
        """Return a token that is cheaper to read than `changes`, or `None` if there is none.

        While the token is equal, so is the set of keys.
        """
        return None

    def watch(self, wake: Callable[[], None]) -> Callable[[], None] | None:
        """Call ``wake`` from a thread when keys may have changed or a lost connection is back.

        Return a function that ends this, or `None` if the store has no such signal.
        """
        return None

    def attach(self, owner: str, hasher: Hasher, name: bytes) -> None:
        """Index keys with this hasher from now on; rebuild the index if it had another name.

        It requires the lease. The index follows the `changes` and commits that were returned to
        this guard: it lists the keys at the position of the last of them.
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


def position_number(position: str) -> int:
    """Return the number of a position."""
    return int(position.partition(".")[0])


def lost_position() -> str:
    """Return a position that equals no other, for a store that lost its own."""
    return f"0.{secrets.token_hex(16)}"


def commit_of(
    keys: Sequence[PlainKey], existed: list[bool], adding: bool, since: str, before: str, after: str
) -> Commit:
    """Return the result of a write that led from one position to another, with nothing between."""
    if since != before:
        return Commit(existed, None)
    changed = [key for key, was in zip(keys, existed, strict=True) if was != adding]
    return Commit(existed, Changes(after, changed, []) if adding else Changes(after, [], changed))


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


def check_found(table: str, keys: Sequence[PlainKey], found: Iterable[Any]) -> None:
    """Raise `StoreError` if the table's rows with these keys have other texts as keys."""
    asked = {*keys}
    for key in found:
        if key.__class__ is bytes and key not in asked:
            raise StoreError(
                f"the key column of {table!r} was changed since the store was opened: it takes "
                f"texts for equal that have different bytes, such as {key!r}"
            )


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
        else check_number("timeout", timeout, what, above=0, maximum=MAX_SECONDS)
    )


def lease_error(holder: str | None) -> LeaseError:
    """Return the error for a write without the lease; the holder may be unknown, ``""``."""
    who = "no guard holds it" if holder is None else "another guard holds it"
    return LeaseError(f"nothing was written: this guard does not hold the store's lease ({who})")
