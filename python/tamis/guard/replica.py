"""A filter as a replica of a store's keys: its epoch, and how changes get into it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from tamis._clock import now
from tamis._locks import Locked
from tamis._native import REGIONS, Gate
from tamis.errors import CapacityError, LeaseError
from tamis.filters.telescoping import AdaptiveQuotient
from tamis.guard.construction import adapts, insert
from tamis.guard.freshness import Freshness
from tamis.guard.identity import index_name
from tamis.guard.keys import apply_by_type
from tamis.guard.regions import Regions, Remote, RemoteWithout
from tamis.stores.contract import Changes, Commit, HashRows, PlainKey, Store


class Step(NamedTuple):
    """When a filter was brought up to an epoch, and the store's token then."""

    at: float
    token: object
    epoch: str
    more: bool


class Replica:
    """The filter of a guard, the epoch of the store that it matches, and the locks of both.

    Locks are taken in this order: ``regions``, then ``committing``, then ``changing``. A query
    takes them only if it need not wait.
    """

    gate: Gate
    """The gate of the filter, once there is a filter."""

    def __init__(
        self, store: Store, freshness: Freshness, on_distrust: Callable[[str | None], None]
    ) -> None:
        """``on_distrust`` is called with the reason, or `None` if the filter was not trusted."""
        self.freshness, self.epoch = freshness, ""
        self.remote = Remote(store, lambda: now() < freshness.granted_until)
        self.regions = Regions()
        self.committing = threading.RLock()
        """Held from a commit until its epoch is recorded, so that epochs are seen in order."""
        self.changing = threading.RLock()
        """Held while the filter changes."""
        self.attached = False
        """Whether the store indexes keys by this filter's hash."""
        self.replays = 0
        """How often changes of others were applied to a filter."""
        self.unsettled: dict[PlainKey, HashRows] = {}
        """Keys whose puts failed with an unknown outcome, and their hashes; see `Trust.settle`."""
        self._store, self._on_distrust = store, on_distrust
        self._key: bytes | None = None

    def open_gate(self, filter: Any, key: bytes | None) -> None:
        """Use the first filter; ``key`` is its secret key."""
        self._key = key
        self.gate = self.freshness.gate = Gate(filter, filter.seed, key)

    @property
    def filter(self) -> Any:
        """The current filter."""
        return self.gate.filter

    def all_locked(self, *, wait: bool = True) -> Locked:
        """Take all locks; without ``wait``, only if nobody else holds one of them."""
        return self.regions.locked(wait=wait, also=[self.committing])

    def attach(self, owner: str) -> None:
        """Make the store index keys by this filter's hash, for the owner of the lease."""
        self._store.attach(owner, self.hashes, index_name(self.filter, self._key))
        self.attached = True

    def hashes(self, keys: Sequence[Any]) -> HashRows:
        """Hash keys as the filter does."""
        return self.gate.batch(list(keys)).hashes

    def check_for_changes(self) -> object:
        """Return the store's change token, and count the check."""
        self.gate.count_change_check()
        return self._store.change_token()

    # Changes of the store.

    def move_on(self, commit: Commit, keys: Sequence[PlainKey], new: Sequence[int]) -> None:
        """Move to the epoch of a commit, after the changes that others committed before it."""
        if commit.before == self.epoch or self._replay_before(commit, keys, new):
            self.epoch = commit.after

    def _replay_before(self, commit: Commit, keys: Sequence[PlainKey], new: Sequence[int]) -> bool:
        """Replay the commits of others before a put; keys that they deleted are stored again.

        The put is committed, so errors that mean "nothing was written" must not escape.
        """
        try:
            if not self.replay(commit.before):
                return False
            known = set(range(len(keys))).difference(new)
            again = [keys[i] for i in known if not commit.existed[i]]
            again = [key for key in again if key not in self.unsettled]
            if self.filter.deletes:  # otherwise it still has them
                self._apply(self.filter, Changes(commit.before, again, []), self.attached)
        except (CapacityError, LeaseError, TypeError, ValueError) as error:
            return self.distrust(f"the filter cannot take the store's changes: {error}")
        return True

    def catch_up(self, limit: int | None = None) -> bool:
        """Replay up to the present, with all locks held; return whether the filter is level."""
        at, token = now(), self.check_for_changes()
        if self._store.epoch() != self.epoch:
            if not self.replay(None, limit):
                return False
        else:
            self.freshness.behind = False
        self.freshness.mark_level(at, token, self.epoch)
        return True

    def replay(self, until: str | None, limit: int | None = None) -> bool:
        """Apply the store's changes since the filter's epoch, up to another or to the present.

        Return whether these are all. With a ``limit`` there may be more.
        """
        self.freshness.behind = True
        changes = self._store.changes(self.epoch, until, limit)
        if changes is None:
            return self.distrust("the store changed, and its journal does not cover the changes")
        try:
            self._apply(self.filter, changes, self.attached)
        except CapacityError as error:
            if not changes.more:
                return self.distrust(f"the filter cannot take the store's changes: {error}")
            # The index has later keys too, from which the filter must not grow yet.
            return self.replay(until)
        except (LeaseError, TypeError) as error:
            return self.distrust(f"the filter cannot take the store's changes: {error}")
        self.epoch, self.freshness.behind = changes.epoch, changes.more
        return not changes.more

    def step(self, filter: Any, epoch: str, *, attached: bool, pieces: bool) -> Step | None:
        """Apply the changes since an epoch to a filter that is not trusted yet.

        Return `None` if they are unknown, or too many for the filter, or for one piece if only one
        is allowed.
        """
        at, token = now(), self.check_for_changes()
        changes = self._store.changes(epoch)
        if changes is None or (changes.more and not pieces):
            return None
        try:
            self._apply(filter, changes, attached)
        except (CapacityError, LeaseError, TypeError):
            return None
        return Step(at, token, changes.epoch, changes.more)

    def trust_from(self, step: Step) -> None:
        """Trust the filter, which is level with the store since a step; all locks are held."""
        self.epoch, self.freshness.behind, self.freshness.trusted = step.epoch, False, True
        self.freshness.mark_level(step.at, step.token, step.epoch)

    def distrust(self, reason: str) -> bool:
        """Close the gate until the filter is rebuilt; return `False`."""
        self._on_distrust(reason if self.freshness.distrust() else None)
        return False

    def _apply(self, filter: Any, changes: Changes, attached: bool) -> None:
        """Insert and remove keys.

        If a signal or an unreadable index interrupts this, the changes must not be applied again:
        a second removal of a key would take the slot of another key.
        """
        try:
            self._change(filter, changes, attached)
        except (CapacityError, LeaseError, TypeError):
            raise  # the caller gives the filter up
        except BaseException as error:
            if filter is self.filter:
                self.distrust(f"the store's changes were applied in part: {error!r}")
            raise

    def _change(self, filter: Any, changes: Changes, attached: bool) -> None:
        """Insert and remove keys. Keys of unsettled puts are in the filter already."""
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

    # Keys of this guard's own writes.

    def insert(self, keys: list[PlainKey], hashes: HashRows) -> None:
        """Insert keys for a put, before they are written to the store."""
        remote = self.remote
        with self.changing:
            filter = self.filter
            if len(keys) == 1 or not adapts(filter):
                insert(filter, keys, remote)
                # Only now: the remote must not list a hash that the filter does not hold.
                remote.begin_put(hashes)
                return
            # A filter that grows for the last of these keys needs the hashes of the first ones.
            remote.begin_put(hashes)
            try:
                insert(filter, keys, RemoteWithout(remote, hashes))
            except BaseException:
                remote.end_put(hashes)
                raise

    def mark_unsettled(self, keys: Sequence[PlainKey], hashes: HashRows) -> None:
        """Keep keys in the filter that were inserted for a put with an unknown outcome."""
        for i, key in enumerate(keys):
            self.unsettled[key] = hashes[i : i + 1]
            self.remote.begin_put(self.unsettled[key])

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


def run_regions(filter: Any, regions: list[int]) -> list[int] | None:
    """Return the regions that can share runs with these regions; `None` means all of them.

    A run of a quotient filter may reach into the next region; other filters move keys anywhere.
    """
    small = filter.capacity < REGIONS * 256
    return None if small or not isinstance(filter, AdaptiveQuotient) else Regions.near(regions)
