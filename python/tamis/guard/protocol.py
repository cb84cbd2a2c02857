"""The guard's protocol: when the filter's "no" counts. A state machine without I/O.

`Protocol.handle` takes an *event* (a query met a "no", a reply of the store, a write that failed)
and returns *effects* (read the changes, take the lease, apply these changes, answer). It has no
threads, clocks, stores or filters: times come with events, and a driver carries effects out and
reports what happened. `tests/guard/test_guard_protocol.py` drives this same machine through
crashes, lost and repeated replies, and jumps of the clock.

**States.** A *position* names one state of the store's set of keys. The filter matches one:

    filter = keys at `position` + ghosts

A *ghost* is a key that was inserted for a put that is under way, or whose outcome is unknown
(*unsettled*). The machine is *trusted* (this equation holds) or not (every query goes to the store
until the filter is rebuilt); *behind* while the store's index of hashes may list keys that the
filter does not have yet; and has the *lease*, or not.

**The invariant.** A "no" at time t is given only if the filter has every key that the store had at
some moment that is not before the query began, or at most ``max_staleness`` before it.

**Why it holds.** A trusted filter has the keys at its position. It is level with the store in three
ways:

- *Change check.* A check that began at time b returned the changes from the filter's position to
  another one, and they were applied, or there were none. So the filter has the keys of a moment
  after b. The time at which the check began counts, not the time of the reply, which may have been
  delayed. A reply counts only if the filter is still at the position where its changes start, or
  has reached the position where they end in another way; otherwise its changes would be applied
  twice, or a later state would be undone.
- *Lease.* In a store that only guards write, nobody else changes the set until the lease ends,
  counted from before it was requested. The deadline is moved only after a change check that
  followed the grant. Keys of this guard's puts are in the filter before they are written.
- *Staleness.* A change check that began at b lets the filter answer until b + ``max_staleness``.

A put whose outcome is unknown may be carried out late. Its ghosts stay. In a store that only guards
write they are *settled* before the next write or rebuild: the lease is released and taken under
another name, so that the store refuses the late put, and then a change check reports the put if it
was carried out before. Ghosts that remain after the check are not in the store. In a table that
others write, a late put is reported like any write, so a ghost stays until it is reported or the
filter is rebuilt. There a put that was carried out may stay unreported as well: its keys are ghosts
until the next change check.

Changes are applied at most once: the position moves with `Applied`. If that event is missing, for
example after an interrupt, the filter is no longer trusted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from tamis.stores.base import Changes, PlainKey

PIECE = 512
"""Changes to apply at a time: a query that finds no more than these waits for them."""

UNREPORTED = 64
"""Keys that a guard writes to a table that others write before it checks for changes itself."""

_RETRY = 0.5
"""Seconds until a lease that could not be renewed is renewed again, while it lasts."""


class Goal(Enum):
    """The operation that waits for a change check or for the lease."""

    QUERY = auto()
    WRITE = auto()
    FOLLOW = auto()
    """Work in the background."""
    COMMIT = auto()
    """A write that is committed, whose changes the store did not return with it."""
    BUILD = auto()
    """A filter that is not in use yet."""


# Requests to the store, which their replies carry back.


class TakeLease(NamedTuple):
    """Take or renew the lease; reply with `Leased`, or `Busy` if a write is in progress."""

    goal: Goal
    owner: str
    term: int
    """Which of this guard's leases it is; a reply for an earlier one does not count."""
    began: float


class Attach(NamedTuple):
    """Let the store index keys by the filter's hash; reply with `Attached`."""

    lease: TakeLease


class Release(NamedTuple):
    """Release the lease of an owner whose puts must no longer arrive; reply with `Released`."""

    owner: str
    goal: Goal


class CheckChanges(NamedTuple):
    """Read the store's token and, if it differs, its changes: a change check.

    Reply with `ChangesChecked`, `Busy` or `CheckFailed`. If there are changes, the reply is handled
    and its effects are carried out with all locks held; with an index, so is the check.
    """

    goal: Goal
    since: str
    token: object
    """The token that the store had when the filter was level at this position; `None`: unknown."""
    began: float
    limit: int | None = None
    lease: TakeLease | None = None
    write: int | None = None
    keys: Sequence[PlainKey] = ()
    """The keys of this write, if its changes are the only ones of this guard that are not known."""
    reported: frozenset[int] = frozenset()
    """Writes that were committed before this check began, and whose changes it has to report."""
    in_one_piece: bool = False
    """Whether all changes must come in one reply."""
    generation: int = 0
    """The generation of the index when the change check began; 0 if there was no index."""
    number: int = 0
    """Identifies a change check without an index, which is made without locks."""


# Other effects.


class Apply(NamedTuple):
    """Change the filter; reply with `Applied` or `ApplyFailed`, with all locks held.

    For `Goal.BUILD` change the filter that is not in use yet.
    """

    check: CheckChanges
    token: object
    changes: Changes
    insert: list[PlainKey]
    """The keys to insert: the added ones without ghosts, which the filter has already."""
    remove: list[PlainKey]
    settled: list[PlainKey]
    """Ghosts that are in the store now, or are removed."""
    own: bool
    """Whether these are the changes of one delete of this guard, and nothing else."""


class Drop(NamedTuple):
    """Remove ghosts from the filter, with the locks of their write, or all."""

    keys: list[PlainKey]


class Use(NamedTuple):
    """Put the filter of a build in the place of the other; reply with `Used`."""

    check: CheckChanges
    token: object
    position: str


class Start(NamedTuple):
    """Start a task in the background, if it is not running: "rebuild", "follow" or "renew"."""

    task: str


class Warn(NamedTuple):
    """Log why the filter is not trusted."""

    reason: str


class Verdict(Enum):
    """The effect that ends an exchange: the permission for its goal."""

    ANSWER = auto()
    """The filter's "no" counts."""
    PASS = auto()
    """The query has to read the store."""
    READY = auto()
    """The guard may write, adapt or build."""
    REFUSE = auto()
    """It may not, as another guard holds the lease."""
    AGAIN = auto()
    """There are more changes: go on."""
    PAUSE = auto()
    """The store has more changes, but returned none: go on a little later."""
    DONE = auto()


Effect = TakeLease | Attach | Release | CheckChanges | Apply | Drop | Use | Start | Warn | Verdict


# Events.


class Asked(NamedTuple):
    """A query met a "no" that no deadline covers."""

    at: float


class WriteWanted(NamedTuple):
    """A write is to begin; all locks are held."""

    at: float


class AdaptWanted(NamedTuple):
    """The filter could adapt from the store's index."""

    at: float


class FollowWanted(NamedTuple):
    """The filter is to be brought level in the background."""

    at: float


class LeaseWanted(NamedTuple):
    """The lease is to be taken, if nobody holds it; all locks are held."""

    at: float


class RenewWanted(NamedTuple):
    """The lease is to be renewed in the background; all locks are held."""

    at: float


class RebuildWanted(NamedTuple):
    """The filter is to be rebuilt; all locks are held until it is in use."""

    at: float


class Built(NamedTuple):
    """There is another filter, of the keys at a position: rebuilt, or of a snapshot."""

    position: str
    at: float
    in_one_piece: bool = False
    """Whether all changes since then must come in one reply."""


class Leased(NamedTuple):
    """The store granted the lease, or did not."""

    lease: TakeLease
    granted: bool


class Attached(NamedTuple):
    """The store indexes keys by the filter's hash from now on."""

    lease: TakeLease


class Released(NamedTuple):
    """The store refuses the writes of an owner."""

    release: Release
    at: float


class ChangesChecked(NamedTuple):
    """The store's token and changes; `None` if it does not know them."""

    check: CheckChanges
    token: object
    changes: Changes | None


class Busy(NamedTuple):
    """A request of a query or a commit would have to wait for locks.

    So it was not made, or its changes were not applied. After a commit, `WriteFailed` follows.
    """

    request: CheckChanges | TakeLease


class CheckFailed(NamedTuple):
    """A change check raised an error, or was interrupted."""

    check: CheckChanges


class Applied(NamedTuple):
    """The filter has been changed."""

    apply: Apply


class ApplyFailed(NamedTuple):
    """The filter cannot take the changes; it is as before if ``refused``, else unknown."""

    apply: Apply
    reason: str
    refused: bool = False


class Used(NamedTuple):
    """Another filter is in place."""

    use: Use


class Began(NamedTuple):
    """A put is about to insert ghosts into the filter; ``write`` identifies it."""

    write: int
    ghosts: Sequence[PlainKey]


class Committed(NamedTuple):
    """A write is committed, with its changes since a position, if the store returned them."""

    write: int
    at: float
    """When the write began."""
    since: str
    changes: Changes | None
    keys: Sequence[PlainKey]


class WriteFailed(NamedTuple):
    """A write raised an error.

    ``written`` is `False` if surely nothing was written, and `None` if that is unknown. If it is
    `True`, the write was committed, and only its changes are not known.
    """

    write: int
    written: bool | None
    inserted: bool = True
    """Whether its ghosts are in the filter."""
    keys: int = 0
    """How many keys were written."""


class LeaseLost(NamedTuple):
    """The store refused a write as this guard does not hold the lease."""


class StoreFailed(NamedTuple):
    """The store is unreachable, as a check in the background has found."""


class Distrusted(NamedTuple):
    """The filter is wrong, or cannot take changes."""

    reason: str


class Closed(NamedTuple):
    """The guard is closed."""


class Protocol:
    """The state of a guard, and its transitions. Not thread-safe: lock `handle`."""

    def __init__(
        self,
        owners: Iterator[str],
        *,
        shared: bool,
        lease: float,
        max_staleness: float = 0.0,
        adapts: bool = False,
        read_only: bool = False,
        answers_when_down: bool = False,
    ) -> None:
        """``owners`` are names for leases, none of which was ever used before."""
        self.shared, self.read_only = shared, read_only
        self.adapts = adapts
        """Whether the filter needs the store's index."""
        self._owners, self._seconds, self._max_staleness = owners, lease, max_staleness
        self._answers_when_down = answers_when_down
        self.position = ""
        """The position that the filter matches."""
        self.trusted = self.behind = self.closed = False
        self.attached = False
        """Whether the store indexes keys by the filter's hash."""
        self.owner, self.term = next(owners), 0
        self.lease_until = 0.0
        """When the lease ends; 0 if this guard does not hold it."""
        self.granted_until = 0.0
        """As ``lease_until``, but from the grant on, when the filter may still be behind."""
        self.renew_at = 0.0
        """When half of the lease is over."""
        self.ghosts: dict[PlainKey, int] = {}
        """Keys of puts under way, and which put."""
        self.unsettled: dict[PlainKey, None] = {}
        """Keys of puts with an unknown outcome."""
        self.changes = 0
        """How many changes of the set of keys were applied."""
        self._unreported: dict[int, int] = {}
        """Writes to a table that others write whose changes are not known yet, and their keys."""
        self._generation = self._checks = 0
        self._unlocked: set[int] = set()
        """Checks under way that began without an index, but may move one that is attached now."""
        self.outcome_unknown = False
        """Whether there was a write with an unknown outcome, which may be carried out late."""
        self._released = True
        """Whether the store refuses such writes."""
        self._level_at = -math.inf
        self._level_with: tuple[object, str] = None, ""
        self._applying: Apply | None = None
        self._try_at = -math.inf

    def handle(self, event: Any) -> list[Effect]:
        """Take an event and return its effects, in the order in which to carry them out."""
        effects: list[Effect] = _HANDLERS[type(event)](self, event)
        return effects

    @property
    def deadline(self) -> float | None:
        """Until when a "no" counts without a change check: 0 if never; `None` if no "no" counts."""
        if not self.trusted or self.closed:
            return None
        until = self._level_at + self._max_staleness if self._max_staleness else 0.0
        if not self.shared and not self.behind:
            until = max(until, self.renew_at)
        return max(until, 0.0)

    def holds_lease(self, at: float) -> bool:
        """Return whether this guard holds the lease."""
        return at < self.lease_until

    def staleness(self, at: float) -> float:
        """Return for how long the filter may lack keys of the store; infinite if never checked."""
        if not self.shared and not self.behind and self.holds_lease(at):
            return 0.0  # the lease keeps others from writing
        return max(at - self._level_at, 0.0)

    def may_write(self, at: float) -> bool:
        """Return whether a write may begin without `WriteWanted`."""
        return self.shared or (at < self.renew_at and not (self.outcome_unknown or self.behind))

    @property
    def _index(self) -> int:
        """The generation whose checks show that the index is level with the filter; 0: no index."""
        return self._generation if self.attached else 0

    @property
    def may_use_index(self) -> bool:
        """Return whether the store's index lists the keys at the filter's position."""
        return self.attached and self.trusted and not (self.behind or self._unlocked)

    # Queries.

    def _asked(self, event: Asked) -> list[Effect]:
        if not self.trusted:
            return [Start("rebuild"), Verdict.PASS]
        if not self.shared and event.at < self.renew_at and not self.behind:
            return [Verdict.ANSWER]
        if not self.shared and self.lease_until:
            if self._answers_when_down and event.at < self.lease_until and not self.behind:
                # While the lease lasts, no query has to wait for a store that is down.
                self.renew_at = min(event.at + _RETRY, self.lease_until)
                return [Start("renew"), Verdict.ANSWER]
            return [self._take_lease(Goal.QUERY, event.at)]
        return [self._check_changes(Goal.QUERY, event.at, PIECE)]

    def _busy(self, event: Busy) -> list[Effect]:
        request = event.request
        if isinstance(request, TakeLease):
            if self.trusted and not self.behind and request.began < self.lease_until:
                return [Verdict.ANSWER]
            return [self._check_changes(Goal.QUERY, request.began, PIECE)]
        self._unlocked.discard(request.number)
        self._fall_behind()
        return [Start("follow"), Verdict.PASS]

    def _adapt_wanted(self, event: AdaptWanted) -> list[Effect]:
        if not (self.adapts and self.trusted) or self.read_only or self.closed:
            return [Verdict.REFUSE]
        due: list[Effect] = []
        if event.at >= self.renew_at and (self.lease_until or self.shared):
            due = self._try_lease(event.at)
        if self.may_use_index and event.at < self.lease_until:
            return [*due, Verdict.READY]
        if self._unreported:
            due.append(Start("follow"))
        return [*due, Verdict.REFUSE]

    def _try_lease(self, at: float) -> list[Effect]:
        """Let the lease be taken in the background, not too often."""
        if at < self._try_at:
            return []
        self._try_at = at + min(self._seconds / 4, _RETRY)
        return [Start("renew")]

    # Change checks.

    def _check_changes(
        self, goal: Goal, at: float, limit: int | None = None, lease: TakeLease | None = None
    ) -> CheckChanges:
        token, position = self._level_with
        known = token if position == self.position and not self.behind else None
        index, number = self._index, 0
        if self.adapts and not index:
            number = self._checks = self._checks + 1
            self._unlocked.add(number)
        reported = frozenset(self._unreported)
        return CheckChanges(
            goal,
            self.position,
            known,
            at,
            limit,
            lease,
            reported=reported,
            generation=index,
            number=number,
        )

    def _changes_checked(self, event: ChangesChecked) -> list[Effect]:
        check, changes = event.check, event.changes
        self._unlocked.discard(check.number)
        if check.goal is Goal.BUILD:
            return self._changes_checked_for_build(event)
        if not self.trusted:
            return self._end_check(check)
        if check.since != self.position:
            same = changes is not None and changes.position == self.position
            if same and not self.behind and not (changes is None or changes.more):
                return self._level(check, event.token)
            return self._stale(check)
        if changes is None:
            reason = "the store changed, and its journal does not cover the changes"
            return [*self._distrust(reason), *self._end_check(check)]
        moved = changes.more or changes.position != check.since
        if changes.added or changes.removed or moved or check.reported:
            return self._apply(check, event.token, changes, check.keys)
        return self._level(check, event.token)

    def _stale(self, check: CheckChanges) -> list[Effect]:
        """The filter has moved on since the change check began."""
        self._fall_behind()  # the index may have moved to where the filter is not
        if check.goal in (Goal.COMMIT, Goal.WRITE) or check.lease is not None:
            return [
                self._check_changes(check.goal, check.began, None, check.lease)._replace(
                    write=check.write
                )
            ]
        return [Verdict.PASS if check.goal is Goal.QUERY else Verdict.AGAIN]

    def _level(self, check: CheckChanges, token: object) -> list[Effect]:
        """The filter had all keys of the store at a moment after the change check began."""
        self.behind = self.behind and check.generation != self._index
        self._level_at = max(check.began, self._level_at)
        self._level_with = token, self.position
        return self._end_check(check)

    def _end_check(self, check: CheckChanges) -> list[Effect]:
        """Return the effects that end a change check, by its goal and the state it led to."""
        effects: list[Effect] = []
        if check.lease is not None:
            self._extend(check.lease)
            current = check.lease.term == self.term and self._released
            if self.outcome_unknown and current and self.trusted and not self.behind:
                # A check after the release: puts that it did not report were not carried out.
                effects += [Drop([*self.unsettled])] if self.unsettled else []
                self.unsettled.clear()
                self.outcome_unknown = False
        if check.write is not None:
            effects += self._end_write(check.write)
        if self.trusted and self.behind and check.goal is not Goal.FOLLOW:
            effects.append(Start("follow"))
        if not self.trusted and check.goal in (Goal.QUERY, Goal.FOLLOW):
            effects.append(Start("rebuild"))
        if check.goal is Goal.QUERY:
            level = self.trusted and not self.behind
            effects.append(Verdict.ANSWER if level else Verdict.PASS)
        elif check.goal is Goal.FOLLOW:
            effects.append(Verdict.AGAIN if self.trusted and self.behind else Verdict.DONE)
        else:
            effects.append(Verdict.READY if check.goal is Goal.WRITE else Verdict.DONE)
        return effects

    def _check_failed(self, event: CheckFailed) -> list[Effect]:
        self._unlocked.discard(event.check.number)
        # The index may have moved on with changes that did not arrive here.
        self._fall_behind(always=event.check.write is not None)
        return []

    def _fall_behind(self, *, always: bool = False) -> None:
        """Let only checks that begin from now on show that the index is level with the filter."""
        if self.attached or always:
            self.behind = True
            self._generation += 1

    # Changes.

    def _apply(
        self, check: CheckChanges, token: object, changes: Changes, keys: Sequence[PlainKey]
    ) -> list[Effect]:
        """Return the effect that applies changes from the filter's position."""
        added = changes.added
        settled = [key for key in added if key in self.ghosts or key in self.unsettled]
        known = {*settled}
        insert = [key for key in added if key not in known] if known else [*added]
        left: list[PlainKey] = []
        writes = check.reported if check.write is None else {check.write, *check.reported}
        if writes and not changes.more:
            # They were in the store before, or somebody has deleted them again.
            left = [k for k, write in self.ghosts.items() if write in writes and k not in known]
        own = bool(changes.removed) and not (insert or left) and {*changes.removed} <= {*keys}
        apply = Apply(check, token, changes, insert, [*changes.removed, *left], settled + left, own)
        if self._applying is not None:
            reason = "the store's changes were applied in part"
            return [*self._distrust(reason), *self._end_check(check)]
        self._applying = apply
        return [apply]

    def _applied(self, event: Applied) -> list[Effect]:
        check, changes = event.apply.check, event.apply.changes
        self._applying = None
        if check.goal is Goal.BUILD:
            if not changes.more:
                self.trusted = False  # until it is in use, as it has another position
                return [Use(check, event.apply.token, changes.position)]
            return [Verdict.AGAIN if changes.position != check.since else Verdict.PAUSE]
        progress = changes.position != self.position
        self.position = changes.position
        self.changes += len(changes.added) + len(changes.removed)
        self._forget_ghosts(event.apply.settled)
        for key in event.apply.settled if self.unsettled else ():
            self.unsettled.pop(key, None)
        if not changes.more:
            for write in check.reported:
                self._unreported.pop(write, None)
            return self._level(check, event.apply.token)
        self.behind = True
        ends = self._end_check(check)
        return ends if progress or check.goal is not Goal.FOLLOW else [Verdict.PAUSE]

    def _apply_failed(self, event: ApplyFailed) -> list[Effect]:
        check = event.apply.check
        if check.goal is Goal.BUILD:
            return [Verdict.REFUSE]
        if self._applying is not event.apply:
            return []  # it was applied, and then interrupted
        self._applying = None
        if event.refused and event.apply.changes.more:
            # The index has later keys too, from which the filter must not grow yet.
            return [check._replace(limit=None, token=None)]
        reason = f"the filter cannot take the store's changes: {event.reason}"
        return [*self._distrust(reason), *self._end_check(check)]

    def _distrust(self, reason: str) -> list[Effect]:
        """Let no "no" count until the filter is rebuilt."""
        before, self.trusted, self._applying = self.trusted, False, None
        return [*([Warn(reason)] if before else []), Start("rebuild")]

    def _distrusted(self, event: Distrusted) -> list[Effect]:
        return self._distrust(event.reason)

    def _follow_wanted(self, event: FollowWanted) -> list[Effect]:
        if self.closed:
            return [Verdict.DONE]
        if not self.trusted:
            return [Start("rebuild"), Verdict.DONE]
        if not self.shared and not self.behind and event.at < self.renew_at:
            return [Verdict.DONE]  # the lease keeps others from writing
        return [self._check_changes(Goal.FOLLOW, event.at, PIECE)]

    def _store_failed(self, event: StoreFailed) -> list[Effect]:
        if not self._answers_when_down:
            self._level_at, self.renew_at = -math.inf, 0.0
        return []

    # The lease.

    def _take_lease(self, goal: Goal, at: float) -> TakeLease:
        return TakeLease(goal, self.owner, self.term, at)

    def _leased(self, event: Leased) -> list[Effect]:
        lease = event.lease
        if lease.term != self.term:
            return [Verdict.PASS if lease.goal is Goal.QUERY else Verdict.REFUSE]
        if not event.granted:
            self._lose_lease()
            if lease.goal is Goal.QUERY:
                return [self._check_changes(Goal.QUERY, lease.began, PIECE)]
            return [Verdict.REFUSE]
        self.granted_until = max(self.granted_until, lease.began + self._seconds)
        if lease.began >= self.lease_until or (self.adapts and not self.attached):
            # Another guard may have written in the meantime, and indexed with its own hash.
            self.behind = self.behind or self.trusted
            if self.adapts:
                self.attached = False
                return [Attach(lease)]
        return self._granted(lease)

    def _attached_to(self, event: Attached) -> list[Effect]:
        if event.lease.term != self.term:
            return [Verdict.REFUSE]
        self.attached, self.behind = True, self.trusted
        self._generation += 1
        return self._granted(event.lease)

    def _granted(self, lease: TakeLease) -> list[Effect]:
        """Bring the filter level under the lease, before a deadline follows from it.

        Even if the lease never ended: a server that crashed may have lost recent writes.
        """
        if self.trusted and (self.behind or not self.shared):
            limit = PIECE if lease.goal is Goal.QUERY else None
            return [self._check_changes(lease.goal, lease.began, limit, lease)._replace(token=None)]
        self._extend(lease)
        ends = {Goal.QUERY: Verdict.PASS, Goal.FOLLOW: Verdict.DONE}
        return [ends.get(lease.goal, Verdict.READY)]

    def _extend(self, lease: TakeLease) -> None:
        if lease.term == self.term:
            self.lease_until = max(self.lease_until, lease.began + self._seconds)
            self.renew_at = self.lease_until - self._seconds / 2

    def _lose_lease(self) -> None:
        self.term += 1
        self.lease_until = self.granted_until = self.renew_at = 0.0
        self.attached = False

    def _lease_lost(self, event: LeaseLost) -> list[Effect]:
        self._lose_lease()
        return []

    def _lease_wanted(self, event: LeaseWanted) -> list[Effect]:
        if self.closed or self.read_only:
            return [Verdict.REFUSE]
        return [self._take_lease(Goal.WRITE, event.at)]

    def _renew_wanted(self, event: RenewWanted) -> list[Effect]:
        if self.closed or self.read_only or not (self.lease_until or self.shared):
            return [Verdict.REFUSE]
        return [self._take_lease(Goal.FOLLOW, event.at)]

    # Writes.

    def _write_wanted(self, event: WriteWanted) -> list[Effect]:
        if self.may_write(event.at):
            return [Verdict.READY]
        return self._settle(event.at, Goal.WRITE)

    def _settle(self, at: float, goal: Goal) -> list[Effect]:
        """Take the lease; under another name, if a put of the old one may still arrive."""
        if self.outcome_unknown and not self._released:
            self._lose_lease()
            return [Release(self.owner, goal)]
        return [self._take_lease(goal, at)]

    def _released_owner(self, event: Released) -> list[Effect]:
        if event.release.owner == self.owner:
            self.owner, self._released = next(self._owners), True
        return [self._take_lease(event.release.goal, event.at)]

    def _began(self, event: Began) -> list[Effect]:
        for key in event.ghosts:
            self.unsettled.pop(key, None)
            self.ghosts[key] = event.write
        return []

    def _committed(self, event: Committed) -> list[Effect]:
        if not self.trusted:
            return [*self._end_write(event.write), Verdict.DONE]
        unreported = sum(self._unreported.values()) + len(event.keys)
        if self.shared and event.changes is None and unreported < UNREPORTED:
            return [Verdict.PASS]  # a "no" requires a change check, which will report it
        check = self._check_changes(Goal.COMMIT, event.at)._replace(write=event.write, token=None)
        if event.changes is None or event.since != self.position:
            return [check if self._unreported else check._replace(keys=event.keys)]
        if event.changes.position == event.since and not self.ghosts:
            return [Verdict.DONE]
        return self._apply(check, None, event.changes, event.keys)

    def _end_write(self, write: int) -> list[Effect]:
        """The keys of a write are in the store, and the filter was brought level after it."""
        left = [key for key, which in self.ghosts.items() if which == write]
        self._forget_ghosts(left)
        if left and self.trusted and self.behind:
            self._mark_unsettled(left)  # they may still be reported
        return [Drop(left)] if left and self.trusted and not self.behind else []

    def _forget_ghosts(self, keys: Sequence[PlainKey]) -> None:
        for key in keys:
            self.ghosts.pop(key, None)
        if not self.ghosts:
            self.ghosts = {}  # a dictionary that was large stays slow to iterate over

    def is_ghost(self, key: PlainKey) -> bool:
        """Return whether the filter has a key for a put that no change check has reported."""
        return key in self.unsettled or key in self.ghosts

    def _mark_unsettled(self, keys: Sequence[PlainKey]) -> None:
        self.unsettled.update(dict.fromkeys(keys))
        self.outcome_unknown, self._released = not self.shared, False

    def _write_failed(self, event: WriteFailed) -> list[Effect]:
        keys = [key for key, write in self.ghosts.items() if write == event.write]
        if event.written and self.shared:
            self._unreported[event.write] = event.keys
            self._fall_behind(always=True)
            return []
        self._forget_ghosts(keys)
        if event.written is False:
            return [Drop(keys)] if keys and event.inserted else []
        # Also without ghosts: a put of a key that was there may arrive after the key was deleted.
        self._mark_unsettled(keys)
        if event.written:  # the changes that came with it are not known yet
            self._fall_behind(always=True)
        return []

    # Building.

    def _rebuild_wanted(self, event: RebuildWanted) -> list[Effect]:
        unsettled = self.outcome_unknown and not self.shared
        indexes = self.adapts and event.at < self.lease_until
        if indexes:
            self.attached = False  # it may lack keys that the journal lacked
        return self._settle(event.at, Goal.WRITE) if unsettled or indexes else [Verdict.READY]

    def _built(self, event: Built) -> list[Effect]:
        # The index will follow this change check, but the filter that is in use does not.
        self._fall_behind()
        return [
            CheckChanges(
                Goal.BUILD, event.position, None, event.at, None, in_one_piece=event.in_one_piece
            )
        ]

    def _changes_checked_for_build(self, event: ChangesChecked) -> list[Effect]:
        check, changes = event.check, event.changes
        if changes is None or (changes.more and check.in_one_piece):
            return [Verdict.REFUSE]
        apply = Apply(
            check, event.token, changes, [*changes.added], [*changes.removed], [], own=False
        )
        return [apply] if changes.added or changes.removed else self._applied(Applied(apply))

    def _used(self, event: Used) -> list[Effect]:
        check = event.use.check
        self.position, self.trusted, self.behind = event.use.position, True, False
        # Not the later time of another change check, which the filter before may have followed.
        self._level_at, self._level_with = check.began, (event.use.token, self.position)
        self.ghosts.clear()
        self.unsettled.clear()
        self._unreported.clear()
        self.outcome_unknown = self.outcome_unknown and not self._released
        return [Verdict.DONE]

    def _close(self, event: Closed) -> list[Effect]:
        self.closed = True
        return []


_HANDLERS: dict[type, Any] = {
    Asked: Protocol._asked,
    WriteWanted: Protocol._write_wanted,
    AdaptWanted: Protocol._adapt_wanted,
    FollowWanted: Protocol._follow_wanted,
    LeaseWanted: Protocol._lease_wanted,
    RenewWanted: Protocol._renew_wanted,
    RebuildWanted: Protocol._rebuild_wanted,
    Built: Protocol._built,
    Leased: Protocol._leased,
    Attached: Protocol._attached_to,
    Released: Protocol._released_owner,
    ChangesChecked: Protocol._changes_checked,
    Busy: Protocol._busy,
    CheckFailed: Protocol._check_failed,
    Applied: Protocol._applied,
    ApplyFailed: Protocol._apply_failed,
    Used: Protocol._used,
    Began: Protocol._began,
    Committed: Protocol._committed,
    WriteFailed: Protocol._write_failed,
    LeaseLost: Protocol._lease_lost,
    StoreFailed: Protocol._store_failed,
    Distrusted: Protocol._distrusted,
    Closed: Protocol._close,
}
