"""Carries out the effects of the protocol: requests to the store, and changes of the filter.

The protocol says what to do, and this module does it, in the thread of the caller or in one of
`background.py`. An effect that is a request ends in an event, its reply. Events are handled one at
a time; what they say about the deadline is copied to the gate before the next one.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Literal

from tamis._clock import is_native, now
from tamis._native import Batch, Gate
from tamis._types import FilePath
from tamis.errors import CapacityError, LeaseError, StoreError
from tamis.filters.telescoping import AdaptiveQuotient
from tamis.guard import protocol as p
from tamis.guard import snapshot as snapshots
from tamis.guard.background import Follower, Sharer, Task
from tamis.guard.opening import Builder, find_key, index_name, index_seed, reseeded
from tamis.guard.protocol import Goal, Protocol, Verdict
from tamis.guard.replica import Replica, run_regions
from tamis.guard.statistics import Counters, Log
from tamis.stores.base import Changes, PlainKey, Store, Value

OnFailure = Literal["raise", "filter", "pass"]

_AUDIT_INTERVAL, _AUDITED_KEYS = 20.0, 4
"""Seconds between audits while the guard is in use, and keys of each."""

_PAUSE = 0.02
"""Seconds until a store that would have had to wait for a write is checked for changes again."""


class Driver:
    """Drives the protocol of one guard."""

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
        max_staleness: float,
        on_failure: OnFailure,
        share: bool,
        read_only: bool,
    ) -> None:
        """Take the lease if it is free, then load the snapshot or read the store's keys."""
        self.store, self.log, self.snapshot = store, log, snapshot
        self.rebuild_seconds = 0.0
        """Total duration of all rebuilds."""
        self._counters, self._seconds, self._share = counters, lease, share
        self._passes, self._audit_at = on_failure == "pass", now() + _AUDIT_INTERVAL
        self._key = key if filter is None else find_key(store, filter, key)
        self._builder: Builder | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._writes = count(1)
        self._told = not store.shared
        """Whether the last commit said what it changed. Otherwise, as in a shared table, the next
        one may come with changes in any region."""
        self._until: object = None
        self._before = (0, 0)
        self._candidate: tuple[Any, str, bool] = None, "", False
        """A filter that is not in use yet, its position, and whether the index may be used."""
        self.replica = Replica(store, lambda: now() < self.protocol.granted_until)
        self.tasks = {
            "rebuild": Task("rebuild its filter", self.rebuild, log, delayed=True),
            "follow": Task("follow the store", self.follow, log),
            "renew": Task("renew its lease", self._renew, log),
            "audit": Task("audit its filter", self.audit, log),
        }
        self.follower: Follower | None = None
        self.sharer: Sharer | None = None
        first, loaded = self._first_filter(filter)
        self.replica.gate = Gate(first, first.seed, self._key)
        self.protocol = Protocol(
            iter(lambda: secrets.token_hex(16), None),
            shared=store.shared,
            lease=lease,
            max_staleness=max_staleness,
            adapts=first.adapts and store.indexes,
            read_only=read_only,
            answers_when_down=on_failure == "filter",
        )
        try:
            try:
                self._open(loaded)
            except StoreError as error:
                if not self._passes:
                    raise
                self._pass_on(error)
            if max_staleness:
                self.follower = Follower(self, max_staleness)
            if share:
                self.sharer = Sharer(self, lease)
        except BaseException:
            if not read_only:
                store.release(self.protocol.owner)
            raise

    def _open(self, loaded: tuple[Any, str] | None) -> None:
        """Take the lease if it is free, and use the filter of the snapshot, or build one."""
        with self.replica.all_locked():
            self.run(p.LeaseWanted(now()))
            used = loaded is not None and self._bring_in(*loaded, in_one_piece=True, indexed=True)
        if not used and self._builder is not None:
            self.rebuild()
        elif not used:
            self.distrust("the store's journal does not reach back to the snapshot")

    def _first_filter(self, filter: Any) -> tuple[Any, tuple[Any, str] | None]:
        """Return the filter to begin with, and the filter and position of the snapshot, if any."""
        if filter is None:
            loaded = self._wait_for_snapshot()
            return loaded[0], loaded
        found = self._load_snapshot(filter)
        if filter.inserts and len(filter) == 0:
            if found is not None:
                filter = reseeded(filter, found[0].seed)
            elif filter._seed_is_random and filter.adapts:
                # Another hash would make the store rebuild its index.
                with suppress(*[StoreError] if self._passes else []):
                    filter = reseeded(filter, index_seed(self.store))
        self._builder = Builder(self.store, filter, self._key)
        return (filter if found is None else found[0]), found

    def _wait_for_snapshot(self) -> tuple[Any, str]:
        """Return the filter of the snapshot that another guard writes; wait until there is one."""
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
        if loaded[0].seed is not None:
            self._key = None
        return loaded

    # Events and effects.

    def handle(self, event: Any) -> list[p.Effect]:
        """Give the protocol an event, and the gate the deadline that follows from it."""
        with self._lock:
            try:
                effects = self.protocol.handle(event)
                self._set_deadline()
            except BaseException:  # an interrupt: its state may be half of one and half of another
                self.protocol.trusted = False
                self._set_deadline()
                raise
            return effects

    def _set_deadline(self) -> None:
        until = self.protocol.deadline
        if until != self._until:
            gate = self.replica.gate
            gate.close() if until is None else gate.open_until(until if is_native() else 0.0)
            self._until = until

    def run(self, event: Any) -> Verdict:
        """Give the protocol an event, carry out its effects, and return how it ended."""
        verdict = Verdict.DONE
        for effect in self.handle(event):
            if isinstance(effect, Verdict):
                verdict = effect
            else:
                verdict = _CARRY_OUT[type(effect)](self, effect) or verdict
        return verdict

    def _take_lease(self, lease: p.TakeLease) -> Verdict:
        with self.replica.all_locked(wait=lease.goal is not Goal.QUERY) as held:
            if not held:
                return self.run(p.Busy(lease))
            return self.run(p.Leased(lease, self.store.lease(lease.owner, self._seconds)))

    def _attach(self, attach: p.Attach) -> Verdict:
        name = index_name(self.replica.filter, self._key)
        try:
            self.store.attach(attach.lease.owner, self.replica.hashes, name)
        except LeaseError:
            return self.run(p.Leased(attach.lease, granted=False))
        return self.run(p.Attached(attach.lease))

    def _release(self, release: p.Release) -> Verdict:
        self.store.release(release.owner)
        return self.run(p.Released(release, now()))

    def _check_changes(self, check: p.CheckChanges) -> Verdict:
        # A commit has the locks of some regions, so it must not wait for the others either.
        wait = check.goal not in (Goal.QUERY, Goal.COMMIT)
        try:
            self.replica.gate.count_change_check()
            token, nothing = self.store.change_token(), Changes(check.since, [], [])
            if token is not None and token == check.token:
                return self.run(p.ChangesChecked(check, token, nothing))
            if not self.protocol.attached:
                changes = self.store.changes(check.since, check.limit)
                if changes == nothing:
                    return self.run(p.ChangesChecked(check, token, changes))
                with self.replica.all_locked(wait=wait) as held:
                    return self.run(
                        p.ChangesChecked(check, token, changes) if held else p.Busy(check)
                    )
            # The index follows the changes that the store returns, so they are applied at once.
            with self.replica.all_locked(wait=wait) as held:
                if not held:
                    return self.run(p.Busy(check))
                changes = self.store.changes(check.since, check.limit)
                return self.run(p.ChangesChecked(check, token, changes))
        except BaseException:
            self.handle(p.CheckFailed(check))
            raise

    def _apply(self, apply: p.Apply) -> Verdict | None:
        replica, changes, build = self.replica, apply.changes, apply.check.goal is Goal.BUILD
        try:
            if build:
                filter, _, indexed = self._candidate
                replica.change(filter, apply.insert, apply.remove, indexed=indexed)
                self._candidate = filter, changes.position, indexed
                return self.run(p.Applied(apply))
            # The index may have later keys too, from which the filter must not grow.
            indexed = self.protocol.attached and not changes.more
            ghosts = apply.settled if changes.more else [*apply.settled, apply.check.write]
            replica.remote.drop_ghosts(ghosts)
            if apply.own:
                replica.remove_own(apply.remove, self._before, indexed=indexed)
            elif apply.insert or apply.remove:
                replica.change(replica.filter, apply.insert, apply.remove, indexed=indexed)
            return self.run(p.Applied(apply))
        except CapacityError as error:
            return self.run(p.ApplyFailed(apply, str(error), refused=True))
        except (LeaseError, TypeError) as error:
            return self.run(p.ApplyFailed(apply, str(error)))
        except BaseException as error:
            self.run(p.ApplyFailed(apply, f"they were applied in part: {error!r}"))
            raise

    def _drop(self, drop: p.Drop) -> None:
        self.replica.remote.drop_ghosts(drop.keys)
        self.replica.remove(self.replica.filter, drop.keys, indexed=self.protocol.may_use_index)

    def _use(self, use: p.Use) -> Verdict:
        with self._lock:
            self._until = None
            self.replica.replace(self._candidate[0])
        return self.run(p.Used(use))

    def _start(self, start: p.Start) -> None:
        if not self.closed:
            self.tasks[start.task].start()

    def _warn(self, warn: p.Warn) -> None:
        self.log.warning("all queries go to the store until the filter is rebuilt: %s", warn.reason)

    # State.

    @property
    def closed(self) -> bool:
        """Whether the guard was closed."""
        return self._closing.is_set()

    def holds_lease(self) -> bool:
        """Return whether this guard holds the lease."""
        return self.protocol.holds_lease(now())

    @property
    def failures(self) -> dict[str, int]:
        """How often work in the background has failed, by its name."""
        failures = {name: task.failures for name, task in self.tasks.items()}
        if self.follower is not None:
            failures["follow"] += self.follower.failures
        if self.sharer is not None:
            failures["share"] = self.sharer.failures
        return failures

    def check_usable(self) -> None:
        """Raise an error if the guard is closed, or belongs to the parent of this process."""
        if self.replica.gate.forked:
            raise RuntimeError(
                "this guard was opened in the parent process, whose lease and connections it "
                "holds: open another one after the fork"
            )
        if self.closed:
            raise ValueError("the guard is closed")

    # Queries.

    def refresh(self) -> str | None:
        """Return `None` if the filter's "no" counts now, or else why not: one of `REASONS`.

        With ``on_failure="pass"``, the guard's tables may be missing or forbidden: then the query
        goes to the store, which raises an error if it is unreachable.
        """
        self.check_usable()
        at = now()
        self._audit_if_due(at)
        try:
            if self.run(p.Asked(at)) is Verdict.ANSWER:
                return None
        except StoreError as error:
            if not self._passes:
                raise
            self._pass_on(error)
            self._counters.count_error("check")
            return "failed"
        if not self.protocol.trusted:
            return "rebuilding"
        return "behind" if self.protocol.behind else "busy"

    def _pass_on(self, error: StoreError) -> None:
        self.log.warning("queries go to the store, as the guard does not work: %s", error)

    def may_adapt(self) -> bool:
        """Return whether the filter may adapt from the store's index, which requires the lease."""
        return self.run(p.AdaptWanted(now())) is Verdict.READY

    # The audit.

    def _audit_if_due(self, at: float) -> None:
        if at >= self._audit_at and self.protocol.trusted:
            self._audit_at = at + _AUDIT_INTERVAL
            self.tasks["audit"].start()

    def audit(self) -> None:
        """Draw a few keys of the store, and distrust the filter if it denies one of them.

        A key that is deleted meanwhile is none: it is there before a change check and after it.
        """
        keys = self.store.sample(_AUDITED_KEYS)
        denied = self._denied(keys)
        denied = self._denied(self._stored(denied))
        self._counters.count(audits=len(keys))
        if denied := self._stored(denied):
            self._counters.count(audit_failures=len(denied))
            self.distrust(f"an audit found that it denies {denied[0]!r}, which the store has")

    def _denied(self, keys: list[PlainKey]) -> list[PlainKey]:
        """Return the keys that the filter denies after a change check, if it is trusted then."""
        level = bool(keys) and self.run(p.FollowWanted(now())) is Verdict.DONE
        if not level or not self.protocol.trusted:
            return []
        accepted = self.replica.gate.accepted(self.replica.gate.batch(keys))
        return [key for i, key in enumerate(keys) if i not in {*accepted}]

    def _stored(self, keys: list[PlainKey]) -> list[PlainKey]:
        values = self.store.get_many(keys) if keys else []
        return [key for key, value in zip(keys, values, strict=True) if value is not None]

    # Work in the background.

    def follow(self) -> None:
        """Bring the filter level with the store, in pieces between which others can write."""
        if self.replica.gate.forked:
            return
        self._audit_if_due(now())
        while (verdict := self.run(p.FollowWanted(now()))) is not Verdict.DONE:
            if verdict is Verdict.PAUSE and self._closing.wait(_PAUSE):
                return

    def store_failed(self) -> None:
        """Let queries fail while the store is down, unless ``on_failure`` is "filter"."""
        self.run(p.StoreFailed())

    def distrust(self, reason: str) -> None:
        """Let all queries go to the store until the filter is rebuilt."""
        self.run(p.Distrusted(reason))

    def _renew(self) -> None:
        with self.replica.all_locked():
            self.run(p.RenewWanted(now()))

    def try_lease(self) -> bool:
        """Return whether this guard holds the lease; take it if nobody does."""
        if not self.holds_lease():
            with self.replica.all_locked():
                self.run(p.LeaseWanted(now()))
        return self.holds_lease()

    def rebuild(self) -> None:
        """Build the filter from the store's keys, or check it if the guard was given a full one.

        Queries continue meanwhile, from the old filter or the store; writes wait.
        """
        self.check_usable()
        if self._share and self.adopt():
            return
        if self._builder is None:
            raise StoreError("the guard with the lease has not written a newer snapshot yet")
        start = now()
        with self.replica.all_locked():
            self.run(p.RebuildWanted(now()))
            filter, position = self._builder.build(self.replica.filter)
            used = self._bring_in(filter, position, in_one_piece=False, indexed=False)
            self._counters.count(rebuilds=1)
            self.rebuild_seconds += now() - start
            self.log.info("rebuilt the filter from %d keys in %.3g s", len(filter), now() - start)
            if used:
                self.tasks["rebuild"].succeeded()
            elif not self.closed:
                self.distrust("the store changed while its keys were read")

    def _bring_in(self, filter: Any, position: str, *, in_one_piece: bool, indexed: bool) -> bool:
        """Use another filter of the keys at a position, once it is level; all locks are held."""
        self._candidate = filter, position, indexed and self.protocol.attached
        try:
            while not self.closed:
                verdict = self.run(p.Built(self._candidate[1], now(), in_one_piece))
                if verdict in (Verdict.DONE, Verdict.REFUSE):
                    return verdict is Verdict.DONE
                if verdict is Verdict.PAUSE:
                    self._closing.wait(_PAUSE)
            return False
        finally:
            self._candidate = None, "", False

    # The snapshot.

    def _load_snapshot(self, filter: Any) -> tuple[Any, str] | None:
        if self.snapshot is None:
            return None
        try:
            return snapshots.load_for(
                self.snapshot, self.store, filter, self._key, self.log, mapped=self._share
            )
        except StoreError as error:
            if not self._passes:
                raise
            self._pass_on(error)
            return None

    def adopt(self) -> bool:
        """Use the filter of the snapshot that another process wrote; return whether that worked.

        The guard that holds the lease keeps its own filter, with the keys that it is about to
        write.
        """
        replica = self.replica
        loaded = None if self.holds_lease() else self._load_snapshot(replica.filter)
        if loaded is None:
            return False
        if index_name(loaded[0], self._key) != index_name(replica.filter, self._key):
            return False  # written by a guard with another hash
        with replica.all_locked():
            if self.holds_lease() or self.protocol.outcome_unknown or self.closed:
                return False
            if not self._bring_in(*loaded, in_one_piece=True, indexed=False):
                return False
            self.tasks["rebuild"].succeeded()
            return True

    def save(self) -> None:
        """Write the snapshot, if the filter is trusted."""
        if self.snapshot is None:
            raise ValueError("snapshot must be a path, not None, to save the guard")
        with self.replica.all_locked():
            if self.protocol.ghosts and self.protocol.trusted:
                self.run(p.FollowWanted(now()))  # the snapshot should have no ghosts
            if self.protocol.trusted:
                identity = snapshots.store_identity(self.store)
                filter, position = self.replica.filter, self.protocol.position
                snapshots.save(self.snapshot, filter, identity, position)

    # Writes.

    def require_lease(self) -> None:
        """Get ready to write; raise `LeaseError` if another guard holds the lease."""
        self.check_usable()
        if self.protocol.read_only:
            raise LeaseError("cannot write: this guard is read-only")
        if self.protocol.may_write(now()):
            return
        with self.replica.all_locked():
            if self.run(p.WriteWanted(now())) is not Verdict.READY:
                refusal = getattr(self.store, "lease_refusal", None) or (
                    "another guard holds the store's lease; close that guard, or wait until its "
                    f"lease expires (this guard's lease lasts {self._seconds:g} s)"
                )
                raise LeaseError(f"cannot write: {refusal}")

    def put(self, keys: list[PlainKey], values: list[Value], batch: Batch) -> None:
        """Write keys to the filter, and then to the store."""
        self.require_lease()
        write = next(self._writes)
        try:
            regions = batch.regions if self._told else None
            with self.replica.regions.write_locked(regions):
                try:
                    self._insert_ghosts(write, keys, batch)
                    self._commit(write, keys, partial(self.store.put_many, keys, values))
                except BaseException:
                    if write in self.protocol.ghosts.values():  # interrupted before the commit
                        self._write_failed(write, None)
                    raise
        except Exception as error:
            # A store that is down is not tried again now; the next write settles.
            if self.protocol.outcome_unknown and not isinstance(error, StoreError):
                with suppress(Exception):
                    self.require_lease()
            raise

    def delete(self, keys: list[PlainKey], batch: Batch) -> list[bool]:
        """Delete keys from the store, and then from the filter."""
        self.require_lease()
        filter, regions = self.replica.filter, None
        if self._told:
            regions = batch.regions
            if isinstance(filter, AdaptiveQuotient):
                regions = run_regions(filter, regions)
        with self.replica.regions.write_locked(regions):
            return self._commit(next(self._writes), keys, partial(self.store.delete_many, keys))

    def _insert_ghosts(self, write: int, keys: list[PlainKey], batch: Batch) -> None:
        """Insert the keys of a put that the filter does not have yet."""
        new, replica, protocol = self._new_keys(keys, batch), self.replica, self.protocol
        ghosts, hashes = keys, batch.hashes
        if len(new) < len(keys):
            ghosts, hashes = [keys[i] for i in new], hashes[new]
        again = [key for key in keys if protocol.is_ghost(key)]
        if new or again:
            self.handle(p.Began(write, [*ghosts, *again]))
        if not new:
            return
        indexed = protocol.attached and not protocol.behind
        try:
            replica.insert_ghosts(write, ghosts, hashes, indexed=indexed)
        except CapacityError as error:
            self.handle(p.WriteFailed(write, written=False, inserted=False))
            grows = isinstance(replica.filter, AdaptiveQuotient) and not indexed
            if not (self.store.shared or grows):
                raise
            # Others would write the keys anyway; a filter that lacks the index grows when rebuilt.
            self.distrust(f"the filter is full: {error}")
        except BaseException:
            self.handle(p.WriteFailed(write, written=False, inserted=False))
            raise

    def _new_keys(self, keys: list[PlainKey], batch: Batch) -> list[int]:
        """Return the indices of the keys that the filter does not have yet."""
        stored: set[int] = set()
        if accepted := self.replica.gate.accepted(batch):
            values = self.store.get_many([keys[i] for i in accepted])
            stored = {i for i, value in zip(accepted, values, strict=True) if value is not None}
        protocol = self.protocol
        if not (stored or protocol.unsettled or protocol.ghosts):
            return [*range(len(keys))]
        return [i for i, k in enumerate(keys) if i not in stored and not protocol.is_ghost(k)]

    def _commit(
        self, write: int, keys: list[PlainKey], commit: Callable[[str, str], Any]
    ) -> list[bool]:
        """Write to the store and apply the changes that come with the commit."""
        with self.replica.committing:
            at, since, self._before = now(), self.protocol.position, self.replica.version
            try:
                existed, changes = commit(self.protocol.owner, since)
            except (LeaseError, TypeError, ValueError) as error:  # nothing was written
                if isinstance(error, LeaseError):
                    self.handle(p.LeaseLost())
                self._write_failed(write, written=False)
                raise
            except BaseException:
                self._write_failed(write, None)
                raise
            self._told = changes is not None and not self.store.shared
            try:
                if self.run(p.Committed(write, at, since, changes, keys)) is Verdict.PASS:
                    self._write_failed(write, written=True, keys=len(keys))
                self.replica.remote.drop_ghosts([write])
            except (CapacityError, LeaseError, TypeError, ValueError) as error:
                # An error that would say that nothing was written must not escape.
                self.distrust(f"the filter cannot take the store's changes: {error}")
            except StoreError:
                # And the next change check will tell.
                self._write_failed(write, written=True, keys=len(keys))
            return list(existed)

    def _write_failed(self, write: int, written: bool | None, keys: int = 0) -> None:
        ghosts = [key for key, which in self.protocol.ghosts.items() if which == write]
        if written is not False and ghosts:
            self.replica.keep_ghosts(write, ghosts)
        self.replica.remote.drop_ghosts([write])
        self.run(p.WriteFailed(write, written, keys=keys))

    def close(self) -> None:
        """Wait for background tasks, write the snapshot and release the lease.

        The lease is released even if the snapshot cannot be written, on a full disk for example.
        """
        self._closing.set()
        try:
            for thread in (self.sharer, self.follower, *self.tasks.values()):
                if thread is not None:
                    thread.close()
            reads = self.protocol.read_only or (self._share and not self.holds_lease())
            if self.snapshot is not None and self.protocol.trusted and not reads:
                with self.replica.all_locked(), suppress(*[StoreError] if self._passes else []):
                    if self.protocol.outcome_unknown:
                        self.run(p.WriteWanted(now()))
                    self.save()
        finally:
            self.handle(p.Closed())
            if not self.protocol.read_only:
                with suppress(*[StoreError] if self._passes else []):
                    self.store.release(self.protocol.owner)


_CARRY_OUT: dict[type, Callable[[Driver, Any], Verdict | None]] = {
    p.TakeLease: Driver._take_lease,
    p.Attach: Driver._attach,
    p.Release: Driver._release,
    p.CheckChanges: Driver._check_changes,
    p.Apply: Driver._apply,
    p.Drop: Driver._drop,
    p.Use: Driver._use,
    p.Start: Driver._start,
    p.Warn: Driver._warn,
}
