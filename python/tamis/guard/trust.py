"""Whether the filter's "no" can be trusted: lease, epoch, replay, rebuild and snapshot.

A filter matches one epoch of its store, that is, one state of the set of keys. The `Replica` of a
guard has its filter and the epoch it matches. When the store moves on, `Trust` lets it replay the
changes from the store's journal; if the journal does not reach back far enough, or the filter
cannot take the changes, it rebuilds the filter in the background. Until then the guard sends every
query to the store.

A "no" of the filter counts in three cases (proof in docs/guard.md): the guard holds the lease, so
that nobody else writes (`_take_lease`); a change check after the query began found the filter level
with the store (`_confirm`); or a change check at most ``max_staleness`` ago did. The first and the
last are deadlines, which the gate compares with the clock in native code (`Freshness`). A change
that the filter cannot follow closes the gate (`Replica.distrust`).

A put whose outcome is unknown, because the connection broke for example, stays in the filter. It
may also arrive late, after the filter was rebuilt. So before the next write, and before a rebuild,
the guard releases its lease and takes one under another name (`settle`): the store refuses writes
that still arrive under the old name.
"""

from __future__ import annotations

import os
import secrets
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

from tamis._clock import now
from tamis._types import FilePath
from tamis.errors import LeaseError, StoreError
from tamis.guard import snapshot as snapshots
from tamis.guard.background import Task
from tamis.guard.construction import build_filter, check_filter, reseeded
from tamis.guard.follower import Follower
from tamis.guard.freshness import Freshness
from tamis.guard.identity import (
    find_key,
    index_name,
    index_seed,
    load_snapshot,
    store_identity,
)
from tamis.guard.log import Log
from tamis.guard.replica import Replica
from tamis.guard.sharer import Sharer
from tamis.guard.statistics import Counters
from tamis.stores.contract import Commit, PlainKey, Store

OnFailure = Literal["raise", "filter"]

_PIECE = 512
"""Changes to replay at a time: a query that finds no more than these waits for them."""

_PAUSE = 0.02
"""Seconds until a store that would have had to wait for a write is checked for changes again."""


class Trust:
    """Brings the filter of a guard level with its store, under the lease and without it."""

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
        """Total duration of all rebuilds."""
        self.owner = secrets.token_hex(16)
        self.freshness = Freshness(shared=store.shared, lease=lease, max_staleness=max_staleness)
        self.replica = Replica(store, self.freshness, self._distrusted)
        self.snapshot = snapshot
        self._closing = threading.Event()
        self._counters, self._seconds = counters, lease
        self._max_staleness, self._on_failure = max_staleness, on_failure
        self._rebuilds = Task("rebuild its filter", self.rebuild, log, delayed=True)
        self._follows = Task("follow the store", self.follow, log)
        self._renewals = Task("renew its lease", self._renew, log)
        self._follower: Follower | None = None
        self._share, self._read_only = share, read_only
        self._sharer: Sharer | None = None
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
                self._sharer = Sharer(self, lease)
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
                # Another hash would make the store rebuild its index.
                filter = reseeded(filter, index_seed(self.store))
        self._empty = zlib.compress(filter.to_bytes(), 1) if empty else None
        self.replica.open_gate(filter if loaded is None else loaded[0], self._key)
        if loaded is None or not self._follow_from(loaded[1]):
            self.rebuild()

    def _open_snapshot(self) -> None:
        """Use the filter of the snapshot that another guard writes; wait until there is one."""
        assert self.snapshot is not None
        if self._key is None:
            self._key = self.store.metadata("key")
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
        self.replica.open_gate(filter, self._key)
        if not self._follow_from(loaded[1]):
            self.replica.distrust("the store's journal does not reach back to the snapshot")

    @property
    def _rebuilding(self) -> threading.Thread | None:
        """The thread of the current or the last rebuild."""
        return self._rebuilds.thread

    @property
    def closed(self) -> bool:
        """Whether the guard was closed."""
        return self._closing.is_set()

    def check_process(self) -> None:
        """Raise an error in a child of the process that opened the guard."""
        if self.replica.gate.forked:
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
        if not self.freshness.trusted:
            self._rebuilds.start()
            return False
        if not self.store.shared and self._renew_if_due():
            return True
        return self._confirm()

    def _confirm(self) -> bool:
        """Check the store for changes, and replay a few; return whether the filter is level."""
        replica, freshness = self.replica, self.freshness
        at, epoch, token = now(), replica.epoch, replica.check_for_changes()
        if freshness.was_level_with(token, epoch):
            if self._max_staleness:
                freshness.mark_level(at, token, epoch)
            return True
        if not freshness.behind and self.store.epoch() == epoch:
            freshness.mark_level(at, token, epoch)
            return True
        with replica.all_locked(wait=False) as locked:
            if not locked:
                return False
            level = replica.replay(None, _PIECE)
            if level:
                freshness.mark_level(at, token, replica.epoch)
        if not level and freshness.trusted:
            self._follows.start()
        return level

    def follow(self) -> None:
        """Bring the filter level with the store, in pieces between which others can write."""
        self.check_process()
        replica, freshness = self.replica, self.freshness
        while freshness.trusted and not self.closed:
            if not self.store.shared and not freshness.behind and now() < freshness.renew_at:
                return  # the lease keeps others from writing
            at, epoch, token = now(), replica.epoch, replica.check_for_changes()
            if freshness.was_level_with(token, epoch):
                freshness.mark_level(at, token, epoch)
                return
            with replica.all_locked():
                before = replica.epoch
                if replica.replay(None, _PIECE):
                    freshness.mark_level(at, token, replica.epoch)
                    return
            if freshness.trusted and replica.epoch == before:
                self._closing.wait(_PAUSE)
        if not self.closed:
            self._rebuilds.start()

    def store_failed(self) -> None:
        """Let queries fail while the store is down, unless ``on_failure`` is "filter"."""
        if self._on_failure == "raise":
            self.freshness.forget_deadlines()

    # The lease.

    def _renew_if_due(self) -> bool:
        """Return whether the lease lets the filter answer; renew it once half of it is over.

        A write in progress delays the renewal. On a shared table, an expired lease is taken again
        in the background, since the changes of others may take long to index.
        """
        freshness = self.freshness
        if now() < freshness.renew_at and not freshness.behind:
            return True
        if not freshness.lease_until:
            return False
        held = freshness.holds_lease()
        if self.store.shared and not held:
            self._renewals.start()
            return False
        if self._on_failure == "filter" and held and not freshness.behind:
            # While the lease lasts, no query has to wait for a store that is down.
            freshness.delay_renewal()
            self._renewals.start()
            return True
        with self.replica.all_locked(wait=False) as locked:
            if locked and not self._take_lease(_PIECE):
                return False
        return freshness.trusted and not freshness.behind and freshness.holds_lease()

    def may_adapt(self) -> bool:
        """Return whether the filter may adapt from the store's index, which requires the lease."""
        try:
            renewed, freshness = self._renew_if_due(), self.freshness
            return renewed and self.replica.attached and freshness.trusted and not freshness.behind
        except StoreError:
            return False

    def require_lease(self) -> None:
        """Take the lease if necessary; raise `LeaseError` if another guard holds it."""
        self.check_process()
        self._check_open()
        if self._read_only:
            raise LeaseError("cannot write: this guard is read-only")
        if self.replica.unsettled:
            self.settle()
        if now() < self.freshness.renew_at:
            return
        with self.replica.all_locked():
            if not self._take_lease():
                refusal = getattr(self.store, "lease_refusal", None) or (
                    "another guard holds the store's lease; close that guard, or wait until its "
                    f"lease expires (this guard's lease lasts {self._seconds:g} s)"
                )
                raise LeaseError(f"cannot write: {refusal}")

    def _renew(self) -> None:
        """Renew the lease, or take it again after it expired."""
        with self.replica.all_locked():
            if self.freshness.lease_until:
                self._take_lease()

    def _take_lease(self, limit: int | None = None) -> bool:
        """Take or renew the lease, with all locks held; replay at most ``limit`` changes."""
        start = now()
        if self._read_only or not self.store.lease(self.owner, self._seconds):
            self._lose_lease()
            return False
        self.freshness.granted_until = start + self._seconds
        if self.replica.epoch:
            expired = start >= self.freshness.lease_until
            if expired:
                # Another guard may have written in the meantime, and indexed with its own hash.
                self.freshness.behind = True
                self.replica.attach(self.owner)
            # Even if the lease never expired: a server that crashed may have lost recent writes.
            due = self.freshness.trusted and (expired or not self.store.shared)
            if due and not self.replica.catch_up(limit) and self.freshness.trusted:
                self._follows.start()
        self.freshness.lease_until = start + self._seconds
        return True

    def _lose_lease(self) -> None:
        self.freshness.lease_until, self.replica.attached = 0.0, False
        self.freshness.granted_until = 0.0

    # Writes.

    def commit(
        self,
        write: Callable[[str], Commit],
        keys: Sequence[PlainKey] = (),
        new: Sequence[int] = (),
    ) -> Commit:
        """Run ``write`` with this guard's owner token and move to the epoch of its commit.

        ``keys`` are the keys of a put, ``new`` the indices of those that it inserted.
        """
        try:
            with self.replica.committing:
                commit = write(self.owner)
                self.replica.move_on(commit, keys, new)
        except LeaseError:
            self._lose_lease()
            raise
        return commit

    def _distrusted(self, reason: str | None) -> None:
        if reason is not None:
            self.log.warning("all queries go to the store until the filter is rebuilt: %s", reason)
        self._rebuilds.start()

    def settle(self) -> None:
        """Find out which puts with an unknown outcome failed, and remove their keys.

        First the lease is released and taken under another name, so that none of these puts can
        still be carried out.
        """
        replica = self.replica
        with replica.all_locked():
            if not replica.unsettled:
                return
            self._lose_lease()
            self.store.release(self.owner)
            self.owner = secrets.token_hex(16)
            for hashes in replica.unsettled.values():
                replica.remote.end_put(hashes)
            self._take_lease()
            keys = list(replica.unsettled)
            values = self.store.get_many(keys)
            replica.unsettled.clear()
            replica.remove([key for key, value in zip(keys, values, strict=True) if value is None])

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
        replica, start = self.replica, now()
        with replica.all_locked():
            self.settle()
            if self.freshness.holds_lease():
                replica.attach(self.owner)
            if self._empty is None:
                filter, epoch = replica.filter, check_filter(replica.filter, self.store)
            else:
                filter, epoch = build_filter(self._empty, self._key, self.store)
            # Apply the changes since the keys were read, before the filter is in use.
            while (step := replica.step(filter, epoch, attached=False, pieces=True)) is not None:
                epoch = step.epoch
                if not step.more:
                    break
                if self._closing.wait(_PAUSE):
                    return
            self._counters.count(rebuilds=1)
            self.rebuild_seconds += now() - start
            self.log.info("rebuilt the filter from %d keys in %.3g s", len(filter), now() - start)
            if filter is not replica.filter:
                replica.gate.replace(filter)
            if step is not None:
                replica.trust_from(step)
                self._rebuilds.succeeded()
                return
            replica.epoch, self.freshness.behind = epoch, False
            replica.distrust("the store changed while its keys were read")

    # The snapshot.

    def _load_snapshot(self, filter: Any) -> tuple[Any, str] | None:
        return load_snapshot(
            self.snapshot, self.store, filter, self._key, self.log, mapped=self._share
        )

    def adopt(self) -> bool:
        """Use the filter of the snapshot that another process wrote; return whether that worked.

        The guard that holds the lease keeps its own filter, with the keys that it is about to
        write.
        """
        loaded = None if self.freshness.holds_lease() else self._load_snapshot(self.replica.filter)
        if loaded is None:
            return False
        filter, epoch = loaded
        if index_name(filter, self._key) != index_name(self.replica.filter, self._key):
            return False  # written by a guard with another hash
        with self.replica.all_locked():
            if self.freshness.holds_lease() or self.replica.unsettled or self.closed:
                return False
            step = self.replica.step(filter, epoch, attached=False, pieces=False)
            if step is None:
                return False
            self.replica.gate.replace(filter)
            self.replica.trust_from(step)
            self._rebuilds.succeeded()
            return True

    def try_lease(self) -> bool:
        """Return whether this guard holds the lease; take it if nobody does."""
        if self._read_only:
            return False
        if not self.freshness.holds_lease():
            with self.replica.all_locked():
                return self._take_lease()
        return True

    def save(self) -> None:
        """Write the snapshot, if the filter is trusted."""
        if self.snapshot is None:
            raise ValueError("snapshot must be a path, not None, to save the guard")
        self.check_process()
        replica = self.replica
        with replica.all_locked():
            if self.freshness.trusted:
                identity = store_identity(self.store)
                snapshots.save(self.snapshot, replica.filter, identity, replica.epoch)

    def close(self) -> None:
        """Wait for background tasks, write the snapshot and release the lease.

        The lease is released even if the snapshot cannot be written, on a full disk for example.
        """
        self._closing.set()
        try:
            if self._sharer is not None:
                self._sharer.close()
            if self._follower is not None:
                self._follower.close()
            for task in (self._rebuilds, self._follows, self._renewals):
                task.close()
            shared = self._read_only or (self._share and not self.freshness.holds_lease())
            if self.snapshot is not None and self.freshness.trusted and not shared:
                with self.replica.all_locked():
                    self.settle()
                    if self.freshness.trusted and self.replica.catch_up():
                        self.save()
        finally:
            self.replica.gate.close()
            if not self._read_only:
                self.store.release(self.owner)

    def _follow_from(self, epoch: str) -> bool:
        """Trust the filter of a snapshot if the store knows the changes since its epoch."""
        replica = self.replica
        with replica.all_locked():
            if self.freshness.holds_lease():
                replica.attach(self.owner)
            step = replica.step(replica.filter, epoch, attached=replica.attached, pieces=False)
            if step is None:
                return False
            replica.trust_from(step)
            return True
