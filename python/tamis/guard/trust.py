"""Whether the filter's "no" can be trusted: lease, epoch, replay, rebuild and snapshot.

A filter matches one epoch of its store, that is, one state of the set of keys. `Trust` owns the
filter of a guard and the epoch it matches. When the store moves on, it replays the changes from the
store's journal; if the journal does not reach back far enough, or the filter cannot take the
changes, it rebuilds the filter in the background. Until then the guard sends every query to the
store.

A "no" of the filter counts in three cases, which the proof in docs/guard.md is about: the guard
holds the lease, and nobody else writes (`_take_lease`); the store said after the query began that
the filter is level with it (`_confirm`); or it said so at most ``max_staleness`` ago (`_is_level`).
The first and the last are deadlines, which the gate compares with the time in native code. Whatever
the filter cannot follow closes the gate (`_distrust`).

A put whose outcome is unknown, because the connection broke for example, stays in the filter. It
may also arrive late, after the filter was rebuilt. So before the next write, and before a rebuild,
the guard gives its lease back and takes one under another name (`settle`): the store refuses what
still arrives under the old one.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

from tamis._clock import is_native, now
from tamis._locks import Locked
from tamis._native import Gate
from tamis._types import FilePath
from tamis.errors import CapacityError, LeaseError, StoreError
from tamis.guard import snapshot as snapshots
from tamis.guard.background import Task
from tamis.guard.filling import adapts, build_filter, check_filter, insert, reseeded
from tamis.guard.following import Follower
from tamis.guard.identity import (
    find_key,
    index_name,
    index_seed,
    load_snapshot,
    store_identity,
)
from tamis.guard.keys import apply_by_type
from tamis.guard.logs import Log
from tamis.guard.regions import Regions, Remote, RemoteWithout
from tamis.guard.sharing import Sharing
from tamis.guard.statistics import Counters
from tamis.stores.contract import Changes, Commit, HashRows, PlainKey, Store

OnFailure = Literal["raise", "filter"]

_PIECE = 512
"""Changes to replay at a time: a query that finds no more than these waits for them."""

_PAUSE = 0.02
"""Seconds until a store that would have had to wait for a write is checked for changes again."""

_RETRY = 0.5
"""Seconds until a lease that could not be renewed is renewed again, while it lasts."""


class Trust:
    """The filter of a guard, and whether it matches the store.

    Locks are taken in this order: ``regions``, then ``committing``, then ``changing``. A query
    takes them only if it need not wait.
    """

    def __init__(
        self,
        store: Store,
        filter: Any,
        counters: Counters,
        *,
        log: Log,
        key: bytes | None,
        lease: float,
        snapshot: FilePath | None,
        max_staleness: float = 0.0,
        on_failure: OnFailure = "raise",
        share: bool = False,
        read_only: bool = False,
    ) -> None:
        """Try to take the lease, then load the snapshot or, failing that, read the store's keys."""
        self.store, self.log = store, log
        self.rebuild_seconds = 0.0
        """How long rebuilds took, all together."""
        self.owner = secrets.token_hex(16)
        self.regions = Regions()
        self.remote = Remote(store, lambda: now() < self._granted_until)
        self.changing = threading.RLock()
        """Held while the filter changes."""
        self.committing = threading.RLock()
        """Held from a commit until its epoch is recorded, so that epochs are seen in order."""
        self.trusted = False
        self.attached = False
        """Whether the store indexes keys by this filter's hash."""
        self.behind = False
        """Whether the index may have keys that the filter does not have yet."""
        self.epoch = ""
        self.replays = 0
        """How often changes of others were applied to a filter."""
        self.snapshot = snapshot
        self._closing = threading.Event()
        self._counters, self._seconds = counters, lease
        self._max_staleness, self._on_failure = max_staleness, on_failure
        self._state = threading.Lock()
        """Held, for an instant, while deadlines change."""
        self._lease_until = self._renew_at = 0.0
        self._granted_until = 0.0
        """As ``lease_until``, but from the grant on, when the filter may still be behind."""
        self._level_at = -math.inf
        self._token: object = None
        self.unsettled: dict[PlainKey, HashRows] = {}
        """Keys whose puts failed with an unknown outcome, and their hashes; see `settle`."""
        self._rebuilds = Task("rebuild its filter", self.rebuild, log, delayed=True)
        self._follows = Task("follow the store", self.follow, log)
        self._renewals = Task("renew its lease", self._renew, log)
        self._follower: Follower | None = None
        self._share, self._read_only = share, read_only
        self._sharing: Sharing | None = None
        self._key = key if filter is None else find_key(store, filter, key)
        self._only_snapshots = filter is None
        self._take_lease()
        try:
            if filter is None:
                self._open_snapshot()
            else:
                self._open(filter)
            if max_staleness:
                self._follower = Follower(self, max_staleness)
            if share:
                self._sharing = Sharing(self, lease)
        except BaseException:
            if not read_only:
                store.release(self.owner)
            raise

    def _open(self, filter: Any) -> None:
        empty = filter.inserts and len(filter) == 0
        loaded = self._load_snapshot(filter)
        if empty:
            if loaded is not None:
                filter = reseeded(filter, loaded[0].seed)
            elif getattr(filter, "_seed_is_random", False):
                # A hash of its own would make the store write its index anew.
                filter = reseeded(filter, index_seed(self.store))
        self._empty = zlib.compress(filter.to_bytes(), 1) if empty else None
        if loaded is not None:
            filter = loaded[0]
        self.gate = Gate(filter, filter.seed, self._key)
        if loaded is None or not self._follow_from(loaded[1]):
            self.rebuild()

    def _open_snapshot(self) -> None:
        """Use the filter of the snapshot, which another guard writes; wait for it if need be."""
        assert self.snapshot is not None
        if self._key is None:
            self._key = self.store.note("key")
        end = now() + self._seconds
        while (loaded := self._load_snapshot(None)) is None:
            if now() > end:
                raise FileNotFoundError(
                    f"snapshot must be a file that a guard with the lease has written, not "
                    f"{os.fsdecode(self.snapshot)!r}: waited for it for {self._seconds:g} s"
                )
            self._closing.wait(_PAUSE)
        self._empty = None
        filter = loaded[0]
        self._key = None if filter.seed is not None else self._key
        self.gate = Gate(filter, filter.seed, self._key)
        if not self._follow_from(loaded[1]):
            self._distrust("the store's journal does not reach back to the snapshot")

    @property
    def filter(self) -> Any:
        """The current filter."""
        return self.gate.filter

    @property
    def _rebuilding(self) -> threading.Thread | None:
        """The thread that rebuilds the filter, or did last."""
        return self._rebuilds.thread

    @property
    def closed(self) -> bool:
        """Whether the guard was closed."""
        return self._closing.is_set()

    def check_process(self) -> None:
        """Raise an error in a child of the process that opened the guard."""
        if self.gate.forked:
            raise RuntimeError(
                "this guard was opened in the parent process, whose lease and connections it "
                "holds: open another one after the fork"
            )

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the guard is closed")

    # Queries.

    def refresh(self) -> bool:
        """Return whether the filter's "no" counts now; if not, start to bring it up to date.

        The gate has checked that this is the process of the guard.
        """
        self._check_open()
        if not self.trusted:
            self._rebuilds.start()
            return False
        if not self.store.shared and self._renew_if_due():
            return True
        return self._confirm()

    def _confirm(self) -> bool:
        """Ask the store whether the filter is level with it; replay a few changes if it is not."""
        at, epoch, token = now(), self.epoch, self._look()
        # The store may come back with the token of a state before writes of this guard.
        if (token, epoch) == self._token:
            if self._max_staleness:
                self._is_level(at, token, epoch)
            return True
        if not self.behind and self.store.epoch() == epoch:
            self._is_level(at, token, epoch)
            return True
        with self._all_locked(wait=False) as locked:
            if not locked:
                return False
            level = self._replay(None, _PIECE)
            if level:
                self._is_level(at, token)
        if not level and self.trusted:
            self._follows.start()
        return level

    def follow(self) -> None:
        """Bring the filter level with the store, in pieces between which others can write."""
        self.check_process()
        while self.trusted and not self.closed:
            if not self.store.shared and not self.behind and now() < self._renew_at:
                return  # the lease keeps others from writing
            at, epoch, token = now(), self.epoch, self._look()
            if (token, epoch) == self._token:
                self._is_level(at, token, epoch)
                return
            with self._all_locked():
                before = self.epoch
                if self._replay(None, _PIECE):
                    self._is_level(at, token)
                    return
            if self.trusted and self.epoch == before:
                self._closing.wait(_PAUSE)
        if not self.closed:
            self._rebuilds.start()

    def _look(self) -> object:
        self.gate.count_look()
        return self.store.look()

    def _is_level(self, at: float, token: object, epoch: str | None = None) -> None:
        """Record that the filter had all keys of the store at a time, when this was its token.

        ``epoch`` is the filter's then; by default the current one, if all locks are held.
        """
        with self._state:
            self._token = token, self.epoch if epoch is None else epoch
            self._level_at = max(at, self._level_at)
            self._set_deadline()

    def _set_deadline(self) -> None:
        """Tell the gate until when the filter's "no" counts without a look at the store."""
        if not self.trusted:
            self.gate.close()
            return
        until = self._level_at + self._max_staleness if self._max_staleness else 0.0
        if not self.store.shared and not self.behind:
            until = max(until, self._renew_at)
        self.gate.open_until(max(until, 0.0) if is_native() else 0.0)

    def store_failed(self) -> None:
        """Let queries notice that the store is down, unless the filter is to answer as it can."""
        if self._on_failure == "raise":
            with self._state:
                self._level_at, self._renew_at = -math.inf, 0.0
                self._set_deadline()

    # The lease.

    @property
    def lease_until(self) -> float:
        """When the lease expires; 0 if this guard does not hold it."""
        return self._lease_until

    @lease_until.setter
    def lease_until(self, until: float) -> None:
        with self._state:
            self._lease_until = until
            self._renew_at = until - self._seconds / 2 if until else 0.0
            if hasattr(self, "gate"):
                self._set_deadline()

    def holds_lease(self) -> bool:
        """Return whether this guard holds the lease."""
        return now() < self._lease_until

    def _renew_if_due(self) -> bool:
        """Return whether the filter answers by the lease; renew that once half of it is over.

        A write that is under way delays that. On a shared table, a lease that expired is taken
        again in the background, as others may have left much to index.
        """
        if now() < self._renew_at and not self.behind:
            return True
        if not self._lease_until:
            return False
        held = self.holds_lease()
        if self.store.shared and not held:
            self._renewals.start()
            return False
        if self._on_failure == "filter" and held and not self.behind:
            # While the lease lasts, no query has to wait for a store that is down.
            with self._state:
                self._renew_at = min(now() + _RETRY, self._lease_until)
                self._set_deadline()
            self._renewals.start()
            return True
        with self._all_locked(wait=False) as locked:
            if locked and not self._take_lease(_PIECE):
                return False
        return self.trusted and not self.behind and self.holds_lease()

    def may_adapt(self) -> bool:
        """Return whether the filter may adapt by the store's index, which takes the lease."""
        try:
            return self._renew_if_due() and self.attached and self.trusted and not self.behind
        except StoreError:
            return False

    def require_lease(self) -> None:
        """Take the lease if necessary; raise `LeaseError` if another guard holds it."""
        self.check_process()
        self._check_open()
        if self._read_only:
            raise LeaseError("cannot write: this guard is read-only")
        if self.unsettled:
            self.settle()
        if now() < self._renew_at:
            return
        with self._all_locked():
            if not self._take_lease():
                refusal = getattr(self.store, "lease_refusal", None) or (
                    "another guard holds the store's lease; close that guard, or wait until its "
                    f"lease expires (this guard's lease lasts {self._seconds:g} s)"
                )
                raise LeaseError(f"cannot write: {refusal}")

    def _renew(self) -> None:
        """Renew the lease, or take it again after it expired."""
        with self._all_locked():
            if self._lease_until:
                self._take_lease()

    def _take_lease(self, limit: int | None = None) -> bool:
        """Take or renew the lease, with all locks held; ``limit`` is how much to replay at most."""
        start = now()
        if self._read_only or not self.store.lease(self.owner, self._seconds):
            self._lose_lease()
            return False
        self._granted_until = start + self._seconds
        if self.epoch:
            expired = start >= self._lease_until
            if expired:
                # Another guard may have written in the meantime, and indexed with its own hash.
                self.behind = True
                self._attach()
            # Even if the lease never expired: a server that crashed may have lost recent writes.
            due = self.trusted and (expired or not self.store.shared)
            if due and not self._catch_up(limit) and self.trusted:
                self._follows.start()
        self.lease_until = start + self._seconds
        return True

    def _lose_lease(self) -> None:
        self.lease_until, self.attached = 0.0, False
        self._granted_until = 0.0

    # The epoch.

    def commit(
        self,
        write: Callable[[str], Commit],
        keys: Sequence[PlainKey] = (),
        new: Sequence[int] = (),
    ) -> Commit:
        """Run ``write`` with this guard's owner token and move to the epoch of its commit.

        ``keys`` are those of a put; ``new`` are the indices of those that it inserted.
        """
        try:
            with self.committing:
                commit = write(self.owner)
                # Changes that others committed before this write come first.
                if commit.before == self.epoch or self._replay_before(commit, keys, new):
                    self.epoch = commit.after
        except LeaseError:
            self._lose_lease()
            raise
        return commit

    def _replay_before(self, commit: Commit, keys: Sequence[PlainKey], new: Sequence[int]) -> bool:
        """Replay what others committed before a put; keys that they deleted are stored again.

        The put is committed: an error that says that nothing was written must not leave this.
        """
        try:
            if not self._replay(commit.before):
                return False
            known = set(range(len(keys))).difference(new)
            again = [keys[i] for i in known if not commit.existed[i]]
            again = [key for key in again if key not in self.unsettled]
            if self.filter.deletes:  # otherwise it still has them
                self._apply(self.filter, Changes(commit.before, again, []), self.attached)
        except (CapacityError, LeaseError, TypeError, ValueError) as error:
            return self._distrust(f"the filter cannot take the store's changes: {error}")
        return True

    def _catch_up(self, limit: int | None = None) -> bool:
        """Replay up to the present, with all locks held; return whether the filter is level."""
        at, token = now(), self._look()
        if self.store.epoch() != self.epoch:
            if not self._replay(None, limit):
                return False
        else:
            self.behind = False
        self._is_level(at, token)
        return True

    def _replay(self, until: str | None, limit: int | None = None) -> bool:
        """Apply the store's changes since the filter's epoch, up to another or to the present.

        Return whether these are all. With a ``limit`` there may be more.
        """
        self.behind = True
        changes = self.store.changes(self.epoch, until, limit)
        if changes is None:
            return self._distrust("the store changed, and its journal does not cover the changes")
        try:
            self._apply(self.filter, changes, self.attached)
        except CapacityError as error:
            if not changes.more:
                return self._distrust(f"the filter cannot take the store's changes: {error}")
            # The index has later keys too, from which the filter must not grow yet.
            return self._replay(until)
        except (LeaseError, TypeError) as error:
            return self._distrust(f"the filter cannot take the store's changes: {error}")
        self.epoch, self.behind = changes.epoch, changes.more
        return not changes.more

    def _apply(self, filter: Any, changes: Changes, attached: bool) -> None:
        """Insert and remove what changed. Keys of unsettled puts are in the filter already.

        Changes that are applied in part, as a signal interrupts this or the index cannot be read,
        must not be applied once more: a second removal of a key takes the slot of another.
        """
        try:
            self._change(filter, changes, attached)
        except (CapacityError, LeaseError, TypeError):
            raise  # the caller gives the filter up
        except BaseException as error:
            if filter is self.filter:
                self._distrust(f"the store's changes were applied in part: {error!r}")
            raise

    def _change(self, filter: Any, changes: Changes, attached: bool) -> None:
        added = []
        for key in changes.added:
            hashes = self.unsettled.pop(key, None)
            if hashes is None:
                added.append(key)
            else:
                self.remote.end_put(hashes)
        with self.changing:
            self.replays += 1
            if added:
                # The index has these hashes already, but the filter does not.
                before = RemoteWithout(self.remote, self.hashes(added)) if attached else None
                insert(filter, added, None if changes.more else before)
            self._remove(filter, changes.removed, attached)

    def _distrust(self, reason: str) -> bool:
        with self._state:
            if self.trusted:
                self.log.warning(
                    "all queries go to the store until the filter is rebuilt: %s", reason
                )
            self.trusted = False
            if hasattr(self, "gate"):
                self._set_deadline()
        self._rebuilds.start()
        return False

    # Puts whose outcome is unknown.

    def doubt(self, keys: Sequence[PlainKey], hashes: HashRows) -> None:
        """Keep keys in the filter that were inserted for a put with an unknown outcome."""
        for i, key in enumerate(keys):
            self.unsettled[key] = hashes[i : i + 1]
            self.remote.begin_put(self.unsettled[key])

    def settle(self) -> None:
        """Find out which puts with an unknown outcome failed, and remove their keys.

        First the lease is given back and taken under another name, so that none of them can still
        be carried out.
        """
        with self._all_locked():
            if not self.unsettled:
                return
            self._lose_lease()
            self.store.release(self.owner)
            self.owner = secrets.token_hex(16)
            for hashes in self.unsettled.values():
                self.remote.end_put(hashes)
            self._take_lease()
            keys = list(self.unsettled)
            values = self.store.get_many(keys)
            self.unsettled.clear()
            self.remove([key for key, value in zip(keys, values, strict=True) if value is None])

    # Rebuilding.

    def rebuild(self) -> None:
        """Build the filter from the store's keys, or check it if the guard was given a full one.

        Queries continue meanwhile, from the old filter or the store; writes wait.
        """
        self.check_process()
        if self._share and self.adopt():
            return
        if self._only_snapshots:
            raise StoreError("the guard with the lease has not written a newer snapshot yet")
        start = now()
        with self._all_locked():
            self.settle()
            if self.holds_lease():
                self._attach()
            if self._empty is None:
                filter, epoch = self.filter, check_filter(self.filter, self.store)
            else:
                filter, epoch = build_filter(self._empty, self._key, self.store)
            # Apply what changed while the keys were read, before the filter is in use.
            while True:
                at, token = now(), self._look()
                changes = self.store.changes(epoch)
                if changes is None:
                    break
                try:
                    self._apply(filter, changes, False)
                except (CapacityError, LeaseError, TypeError):
                    changes = None
                    break
                epoch = changes.epoch
                if not changes.more:
                    break
                if self._closing.wait(_PAUSE):
                    return
            self._counters.count(rebuilds=1)
            self.rebuild_seconds += now() - start
            self.log.info("rebuilt the filter from %d keys in %.3g s", len(filter), now() - start)
            if filter is not self.filter:
                self.gate.replace(filter)
            self.epoch, self.behind = epoch, False
            if changes is None:
                self._distrust("the store changed while its keys were read")
                return
            self.trusted = True
            self._rebuilds.succeeded()
            self._is_level(at, token)

    def _all_locked(self, *, wait: bool = True) -> Locked:
        """Lock everything; without ``wait``, if nobody else holds a part of it."""
        return self.regions.locked(wait=wait, also=[self.committing])

    # The filter's hash, and removals, which replays share with the guard.

    def hashes(self, keys: Sequence[Any]) -> HashRows:
        """Hash keys as the filter does."""
        return self.gate.batch(list(keys)).hashes

    def remove(self, keys: list[Any], before: tuple[int, int] | None = None) -> None:
        """Remove keys, which the store no longer has, from a filter that supports it.

        ``before`` is for an adaptive quotient filter: its capacity and the count of replays before
        the delete was committed, with the locks of all regions that the keys' runs may be in. If
        the filter has not grown since and no replay has changed it, each key has a slot, which no
        other removal can have taken. Then the store's index is only needed where the slots that a
        key fits differ.
        """
        with self.changing:
            filter = self.filter
            if before != (filter.capacity, self.replays) or not self.attached:
                self._remove(filter, keys, self.attached)
            elif keys:
                with suppress(LeaseError):  # of the remote: the keys stay
                    filter._remove_owned(keys, self.remote)

    def _remove(self, filter: Any, keys: list[Any], attached: bool) -> None:
        if not filter.deletes or not keys:
            return
        remote = (self.remote,) if adapts(filter) and attached else ()
        if hasattr(filter, "remove_many") and (remote or not adapts(filter)):
            with suppress(LeaseError):  # of the remote: the keys stay
                apply_by_type(lambda some: filter.remove_many(some, *remote), keys)
            return
        for key in keys:
            # A filter that grew after the key left the store has dropped it already. Without the
            # index, an adaptive filter may not know which slot is the key's, and keeps it.
            with suppress(KeyError, LeaseError, ValueError):
                filter.remove(key, *remote)

    def _attach(self) -> None:
        """Make the store index keys by this filter's hash."""
        self.store.attach(self.owner, self.hashes, index_name(self.filter, self._key))
        self.attached = True

    # The snapshot.

    def _load_snapshot(self, filter: Any) -> tuple[Any, str] | None:
        return load_snapshot(
            self.snapshot, self.store, filter, self._key, self.log, mapped=self._share
        )

    def adopt(self) -> bool:
        """Use the filter of the snapshot, which another process wrote; return whether that works.

        The guard that holds the lease keeps its own filter, which has what it is about to write.
        """
        loaded = None if self.holds_lease() else self._load_snapshot(self.filter)
        if loaded is None:
            return False
        filter, epoch = loaded
        if index_name(filter, self._key) != index_name(self.filter, self._key):
            return False  # of a guard that hashes in another way
        with self._all_locked():
            if self.holds_lease() or self.unsettled or self.closed:
                return False
            at, token = now(), self._look()
            changes = self.store.changes(epoch)
            if changes is None or changes.more:
                return False
            try:
                self._apply(filter, changes, False)
            except (CapacityError, LeaseError, TypeError):
                return False
            self.gate.replace(filter)
            self.epoch, self.behind, self.trusted = changes.epoch, False, True
            self._rebuilds.succeeded()
            self._is_level(at, token)
            return True

    def try_lease(self) -> bool:
        """Return whether this guard holds the lease; take it if nobody does."""
        if self._read_only:
            return False
        if not self.holds_lease():
            with self._all_locked():
                return self._take_lease()
        return True

    def save(self) -> None:
        """Write the snapshot, unless the filter cannot be trusted now."""
        if self.snapshot is None:
            raise ValueError("snapshot must be a path, not None, to save the guard")
        self.check_process()
        with self._all_locked():
            if self.trusted:
                snapshots.save(self.snapshot, self.filter, store_identity(self.store), self.epoch)

    def close(self) -> None:
        """Wait for work in the background, write the snapshot and release the lease.

        The lease is released even if the snapshot cannot be written, on a full disk for example.
        """
        self._closing.set()
        try:
            if self._sharing is not None:
                self._sharing.close()
            if self._follower is not None:
                self._follower.close()
            for task in (self._rebuilds, self._follows, self._renewals):
                task.close()
            shared = self._read_only or (self._share and not self.holds_lease())
            if self.snapshot is not None and self.trusted and not shared:
                with self._all_locked():
                    self.settle()
                    if self.trusted and self._catch_up():
                        self.save()
        finally:
            self.gate.close()
            if not self._read_only:
                self.store.release(self.owner)

    def _follow_from(self, epoch: str) -> bool:
        """Trust the filter of a snapshot if the store can say what changed since its epoch."""
        with self._all_locked():
            if self.holds_lease():
                self._attach()
            at, token = now(), self._look()
            changes = self.store.changes(epoch)
            try:
                if changes is None or changes.more:
                    return False
                self._apply(self.filter, changes, self.attached)
            except (CapacityError, LeaseError, TypeError):
                return False
            self.epoch, self.trusted = changes.epoch, True
            self._is_level(at, token)
            return True
