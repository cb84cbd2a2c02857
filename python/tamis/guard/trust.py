"""Whether the filter's "no" can be trusted: lease, epoch, replay, rebuild and snapshot.

A filter matches one epoch of its store, that is, one state of the set of keys. `Trust` owns the
filter of a guard and the epoch it matches. When the store moves on, it replays the changes from the
store's journal; if the journal does not reach back far enough, or the filter cannot take the
changes, it rebuilds the filter in the background. Until then the guard sends every query to the
store.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from tamis._native import hash_keys
from tamis._types import FilePath
from tamis.errors import CapacityError, LeaseError
from tamis.filters import from_bytes
from tamis.guard import snapshot as snapshots
from tamis.guard.clock import now
from tamis.guard.filling import adapts, build_filter, check_filter, insert
from tamis.guard.keys import apply_by_type
from tamis.guard.regions import Regions, Remote, RemoteWithout
from tamis.guard.statistics import Counters
from tamis.stores.contract import Commit, HashRows, Store

_log = logging.getLogger("tamis.guard")

_FIRST_DELAY, _LONGEST_DELAY = 1.0, 60.0
"""Seconds between attempts to rebuild: doubled after each failure, up to the longest."""


class Trust:
    """The filter of a guard, and whether it matches the store.

    Locks are taken in this order: ``regions``, then ``committing``, then ``changing``.
    """

    def __init__(
        self,
        store: Store,
        filter: Any,
        counters: Counters,
        *,
        key: bytes | None,
        lease: float,
        snapshot: FilePath | None,
    ) -> None:
        """Try to take the lease, then load the snapshot or, failing that, read the store's keys."""
        self.store, self.filter = store, filter
        self.owner = secrets.token_hex(16)
        self.regions, self.remote = Regions(), Remote(store)
        self.changing = threading.RLock()
        """Held while the filter changes."""
        self.committing = threading.RLock()
        """Held from a commit until its epoch is recorded, so that epochs are seen in order."""
        self.trusted = False
        self.attached = False
        """Whether the store indexes keys by this filter's hash."""
        self.lease_until = 0.0
        self.epoch = ""
        self.snapshot = snapshot
        self.closed = False
        self._counters, self._seconds = counters, lease
        self._rebuilding: threading.Thread | None = None
        self._rebuild_after, self._rebuild_delay = 0.0, _FIRST_DELAY
        self._key = self._find_key(key)
        empty = filter.inserts and len(filter) == 0
        self._empty = zlib.compress(filter.to_bytes(), 1) if empty else None
        self._take_lease()
        try:
            if not self._load_snapshot():
                self.rebuild()
        except BaseException:
            store.release(self.owner)
            raise

    def is_current(self) -> bool:
        """Return whether the filter matches the store; if not, start to bring it up to date."""
        if not self.trusted:
            self._start_rebuild()
            return False
        if self.holds_lease() and not self.store.shared:
            return True
        return self._catch_up()

    # The lease.

    def holds_lease(self) -> bool:
        """Return whether this guard holds the lease; renew it once half of it is over."""
        left = self.lease_until - now()
        if left > self._seconds / 2:
            return True
        # A lease once held is renewed, even after it expired. A guard without it takes it only to
        # write.
        return self.lease_until > 0 and self._take_lease()

    def require_lease(self) -> None:
        """Take the lease if necessary; raise `LeaseError` if another guard holds it."""
        if not self.holds_lease() and not self._take_lease():
            raise LeaseError(
                "cannot write: another guard holds the store's lease; close that guard, or wait "
                f"until its lease expires (this guard's lease lasts {self._seconds:g} s)"
            )

    def _take_lease(self) -> bool:
        start = now()
        if not self.store.lease(self.owner, self._seconds):
            self._lose_lease()
            return False
        expired = start >= self.lease_until
        self.lease_until = start + self._seconds
        if self.epoch:
            if expired:
                # Another guard may have written in the meantime, and indexed with its own hash.
                with self.regions.locked(), self.committing:
                    self._attach()
            # Even if the lease never expired: a server that crashed may have lost recent writes.
            self.trusted = self.trusted and self._catch_up()
        return True

    def _lose_lease(self) -> None:
        self.lease_until, self.attached = 0.0, False

    # The epoch.

    def commit(self, write: Callable[[str], Commit]) -> Commit:
        """Run ``write`` with this guard's owner token and move to the epoch of its commit."""
        try:
            with self.committing:
                commit = write(self.owner)
                # Changes that others committed before this write come first.
                if commit.before == self.epoch or self._replay(commit.before):
                    self.epoch = commit.after
                return commit
        except LeaseError:
            self._lose_lease()
            raise

    def _catch_up(self) -> bool:
        """Bring the filter to the store's epoch; return whether that succeeded."""
        if self.store.epoch() == self.epoch:
            return True
        with self.regions.locked(), self.committing:
            return self._replay(None)

    def _replay(self, until: str | None) -> bool:
        """Apply the store's changes since the filter's epoch, up to another or to the present."""
        changes = self.store.changes(self.epoch, until)
        if changes is None:
            return self._distrust("the store changed, and its journal does not cover the changes")
        try:
            if changes.added:
                # The index has these hashes already, but the filter does not.
                before = RemoteWithout(self.remote, self.hashes(changes.added))
                with self.changing:
                    insert(self.filter, changes.added, before if self.attached else None)
            self.remove(changes.removed)
        except (CapacityError, TypeError) as error:
            return self._distrust(f"the filter cannot take the store's changes: {error}")
        self.epoch = changes.epoch
        return True

    # Rebuilding.

    def rebuild(self) -> None:
        """Build the filter from the store's keys, or check it if the guard was given a full one.

        Queries continue meanwhile, against the store; writes wait.
        """
        with self.regions.locked():
            if self.holds_lease():
                self._attach()
            if self._empty is None:
                filter, epoch = self.filter, check_filter(self.filter, self.store)
            else:
                filter, epoch = build_filter(self._empty, self._key, self.store)
            self.filter, self.epoch, self.trusted = filter, epoch, True
            self._rebuild_delay = _FIRST_DELAY
            self._counters.count(rebuilds=1)
            # Apply what changed while the keys were read.
            self._catch_up()

    def _distrust(self, reason: str) -> bool:
        if self.trusted:
            _log.warning("all queries go to the store until the filter is rebuilt: %s", reason)
        self.trusted = False
        self._start_rebuild()
        return False

    def _start_rebuild(self) -> None:
        """Start a rebuild in the background, unless one is running or failed too recently."""
        at = now()
        with self.changing:
            busy = self._rebuilding is not None and self._rebuilding.is_alive()
            if busy or self.closed or at < self._rebuild_after:
                return
            self._rebuild_after = at + self._rebuild_delay
            self._rebuild_delay = min(2 * self._rebuild_delay, _LONGEST_DELAY)
            self._rebuilding = threading.Thread(target=self._rebuild_or_log, daemon=True)
            self._rebuilding.start()

    def _rebuild_or_log(self) -> None:
        try:
            self.rebuild()
        except Exception:
            _log.exception("rebuilding the filter failed; queries still go to the store")

    # The filter's hash, and removals, which replays share with the guard.

    def hashes(self, keys: Sequence[Any]) -> HashRows:
        """Hash keys as the filter does."""
        secret: dict[str, Any] = (
            {"seed": self.filter.seed} if self._key is None else {"key": self._key}
        )
        hashes: HashRows = apply_by_type(lambda some: hash_keys(some, **secret), keys)
        return hashes

    def remove(self, keys: list[Any]) -> None:
        """Remove keys, which the store no longer has, from a filter that supports it."""
        if not self.filter.deletes:
            return
        remote = (self.remote,) if adapts(self.filter) and self.attached else ()
        with self.changing:
            for key in keys:
                # A filter that grew after the key left the store has dropped it already.
                with suppress(KeyError):
                    self.filter.remove(key, *remote)

    def _attach(self) -> None:
        """Make the store index keys by this filter's hash."""
        if self._key is not None:
            name = b"key " + hashlib.blake2b(self._key, digest_size=16).digest()
        else:
            name = b"seed %d" % self.filter.seed
        self.store.attach(self.owner, self.hashes, name)
        self.attached = True

    def _find_key(self, key: bytes | None) -> bytes | None:
        """Return the filter's secret key: the one passed in, or the one that the store keeps."""
        if self.filter.seed is not None:
            if key is not None:
                raise ValueError(
                    "key must be None for a filter with a seed instead of a secret key"
                )
            return None
        if key is None:
            key = self.store.note("key")
        if key is None:
            raise ValueError(
                "key must be the filter's secret key, not None: the store does not have the key yet"
            )
        from_bytes(self.filter.to_bytes(), key=key)  # IncompatibleError if it is another key
        return self.store.note("key", key)

    # The snapshot.

    def save(self) -> None:
        """Write the snapshot, unless the filter cannot be trusted now."""
        if self.snapshot is None:
            raise ValueError("snapshot must be a path, not None, for a guard that is to be saved")
        with self.regions.locked(), self.committing:
            if self.trusted:
                snapshots.save(self.snapshot, self.filter, self._store_identity(), self.epoch)

    def close(self) -> None:
        """Wait for a running rebuild, write the snapshot and release the lease.

        The lease is released even if the snapshot cannot be written, on a full disk for example.
        """
        self.closed = True
        try:
            if self._rebuilding is not None:
                self._rebuilding.join()
            if self.snapshot is not None and self.is_current():
                self.save()
        finally:
            self.store.release(self.owner)

    def _store_identity(self) -> bytes:
        """Return the random identifier of the store, by which a snapshot is matched to it."""
        known = self.store.note("identity")
        return known or self.store.note("identity", secrets.token_bytes(16)) or b""

    def _load_snapshot(self) -> bool:
        """Load the snapshot if it is intact and the store can say what changed since."""
        if self.snapshot is None:
            return False
        try:
            filter, store, epoch = snapshots.load(self.snapshot, self._key)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            _log.warning("ignoring the snapshot: %s", error)
            return False
        if type(filter) is not type(self.filter) or store != self._store_identity():
            _log.warning("ignoring the snapshot: it belongs to another filter or store")
            return False
        self.filter, self.epoch, self.trusted = filter, epoch, True
        if self.holds_lease():
            self._attach()
        with self.regions.locked(), self.committing:
            changes = self.store.changes(epoch)
            self.trusted = changes is not None and self._replay(None)
        return self.trusted
