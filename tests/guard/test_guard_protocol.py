"""The protocol of guards gives a "no" only when it is right, whatever happens around it."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_world import World
from soak import SOAK

from tamis.guard import protocol as p
from tamis.guard.protocol import Goal, Protocol

SETUPS = [
    {"shared": shared, "journal": journal, "staleness": staleness, "adapts": adapts}
    for shared in (False, True)
    for journal in (True, False)
    for staleness in (0.0, 5.0)
    for adapts in (False, True)
]


@settings(max_examples=20_000 if SOAK else 60, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(SETUPS))
def test_a_no_is_given_only_when_it_is_right(chance, setup):
    world = World(chance, **setup)
    for _ in range(60):
        world.step()


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: "-".join(map(str, setup.values())))
def test_a_no_is_given_only_when_it_is_right_in_long_runs(setup):
    """And it is given: by a deadline, and after change checks."""
    world = World(random.Random(5), **setup)
    for _ in range(200_000 if SOAK else 2500):
        world.step()
    assert world.answers["check"] > 5
    if not setup["shared"] or setup["staleness"]:
        assert world.answers["gate"] > 20


# Protocols that are broken on purpose, which the model must notice.


class LevelAtTheReply(Protocol):
    """Counts staleness from when the reply came, not from when the change check began."""

    def _level(self, check, token):
        return super()._level(check._replace(began=self.world.time), token)


class NoNewOwner(Protocol):
    """Settles under the old name, under which the late put still arrives."""

    def _settle(self, at, goal):
        self._released = True
        return [self._take_lease(goal, at)]


class StaleLooks(Protocol):
    """Applies a change check that began before a put."""

    def _changes_checked(self, event):
        if event.check.goal is not Goal.BUILD:
            event = event._replace(check=event.check._replace(since=self.position))
        return super()._changes_checked(event)


class SnapshotWithoutPosition(Protocol):
    """Trusts a snapshot as if it were of the store as it is."""

    def _changes_checked_for_build(self, event):
        changes = event.changes
        if changes is not None:
            event = event._replace(changes=p.Changes(changes.position, [], []))
        return super()._changes_checked_for_build(event)


class TwiceInserted(Protocol):
    """Forgets the ghosts of a put whose outcome is unknown."""

    def _write_failed(self, event):
        return super()._write_failed(event._replace(written=False))


class LeaseFromTheGrant(Protocol):
    """Answers by the lease before a change check has followed the grant."""

    def _granted(self, lease):
        self._extend(lease)
        self.behind = False
        return super()._granted(lease)


class AppliedInPart(Protocol):
    """Goes on after changes were applied in part."""

    def _apply_failed(self, event):
        if event.apply.check.goal is Goal.BUILD:
            return super()._apply_failed(event)
        self._applying = None
        return self._end_check(event.apply.check)


class LeaseOfASharedTable(Protocol):
    """Answers by the lease of a table that others write to."""

    @property
    def deadline(self):
        return max(super().deadline, self.renew_at) if self.trusted else None


class IndexAfterALostLook(Protocol):
    """Uses the index after a check whose reply was lost, with which the index has moved on."""

    def _check_failed(self, event):
        return []


BROKEN = [
    LevelAtTheReply,
    NoNewOwner,
    StaleLooks,
    SnapshotWithoutPosition,
    TwiceInserted,
    LeaseFromTheGrant,
    AppliedInPart,
    LeaseOfASharedTable,
    IndexAfterALostLook,
]


def broken_handler(machine):
    """Let `handle` of a class call its own methods, as those of `Protocol` are in a table."""

    class Broken(machine):
        def handle(self, event):
            method = getattr(self, p._HANDLERS[type(event)].__name__)
            return method(event)

    return Broken


def test_a_protocol_that_is_only_wrapped_is_not_broken():
    run_all(broken_handler(Protocol), seeds=2)


@pytest.mark.parametrize("machine", BROKEN, ids=lambda machine: machine.__name__)
def test_a_broken_protocol_is_noticed(machine):
    """In one of the setups, within as many steps as the test above takes or a few times more."""
    with pytest.raises(AssertionError):
        run_all(broken_handler(machine), seeds=40)


def run_all(machine, seeds):
    for seed in range(seeds):
        for setup in SETUPS:
            world = World(random.Random(seed), machine=machine, **setup)
            for _ in range(1000):
                world.step()


# What takes too many steps to come about at random.


def opened(**options):
    """A protocol with a filter of position "1" that was level at time 100."""
    machine = Protocol((f"owner {i}" for i in range(100)), lease=10.0, **options)
    use(machine, at=100.0)
    return machine


def use(machine, at):
    (check,) = machine.handle(p.Built("1", at))
    (used,) = machine.handle(p.ChangesChecked(check, None, p.Changes("1", [], [])))
    machine.handle(p.Used(used))


def test_a_filter_counts_from_its_own_check():
    """Not from a later change check of the filter that it replaces."""
    machine = opened(shared=True, max_staleness=5.0)
    (build,) = machine.handle(p.Built("1", 101.0))
    (check,) = machine.handle(p.Asked(103.0))
    machine.handle(p.ChangesChecked(check, None, p.Changes("1", [], [])))
    assert machine.deadline == 108.0
    (used,) = machine.handle(p.ChangesChecked(build, None, p.Changes("1", [], [])))
    assert machine.deadline is None  # while the one takes the place of the other
    machine.handle(p.Used(used))
    assert machine.deadline == 106.0


def test_a_reply_for_a_lease_that_was_lost_does_not_count():
    machine = opened(shared=False)
    (lease,) = machine.handle(p.LeaseWanted(100.0))
    machine.handle(p.LeaseLost())
    assert machine.handle(p.Leased(lease, granted=True)) == [p.Verdict.REFUSE]
    assert not machine.holds_lease(100.0)
    assert machine.deadline == 0.0


def test_a_look_from_before_the_release_settles_nothing():
    machine = opened(shared=False)
    (lease,) = machine.handle(p.LeaseWanted(100.0))
    (check,) = machine.handle(p.Leased(lease, granted=True))
    machine.handle(p.Began(1, [b"late"]))
    machine.handle(p.WriteFailed(1, None))
    (release,) = machine.handle(p.WriteWanted(101.0))
    machine.handle(p.Released(release, 101.0))
    machine.handle(p.ChangesChecked(check, None, p.Changes("1", [], [])))
    assert machine.unsettled == {b"late": None}
    assert machine.deadline == 0.0


def test_a_late_put_of_a_key_that_was_there_is_refused():
    """It has no ghost, but the key may be deleted before it arrives."""
    machine = opened(shared=False)
    (lease,) = machine.handle(p.LeaseWanted(100.0))
    (check,) = machine.handle(p.Leased(lease, granted=True))
    machine.handle(p.ChangesChecked(check, None, p.Changes("1", [], [])))
    assert machine.may_write(100.0)
    machine.handle(p.Began(1, []))
    machine.handle(p.WriteFailed(1, None))
    assert not machine.may_write(100.0)
    assert machine.handle(p.WriteWanted(101.0)) == [p.Release("owner 0", Goal.WRITE)]


def test_an_unlocked_look_keeps_the_index_from_use():
    """The store's index follows it, also if it was attached after the change check had begun."""
    machine = opened(shared=True, adapts=True)
    (check,) = machine.handle(p.Asked(100.0))
    (lease,) = machine.handle(p.LeaseWanted(100.0))
    (attach,) = machine.handle(p.Leased(lease, granted=True))
    (after,) = machine.handle(p.Attached(attach.lease))
    machine.handle(p.ChangesChecked(after, None, p.Changes("1", [], [])))
    assert not machine.may_use_index
    machine.handle(p.ChangesChecked(check, None, p.Changes("1", [], [])))
    assert machine.may_use_index


def committed(machine, write, keys, ghosts):
    """Let a write to a table that others write be committed; its changes are not known yet."""
    machine.handle(p.Began(write, ghosts))
    effects = machine.handle(p.Committed(write, 1.0, machine.position, None, keys))
    if effects == [p.Verdict.PASS]:
        machine.handle(p.WriteFailed(write, written=True, keys=len(keys)))
    return effects


def test_a_change_check_reports_the_writes_before_it_and_no_others():
    machine = opened(shared=True)
    assert committed(machine, 1, [b"kept", b"gone"], [b"kept", b"gone"]) == [p.Verdict.PASS]
    assert committed(machine, 2, [b"gone"], []) == [p.Verdict.PASS]  # a delete
    [check] = machine.handle(p.FollowWanted(2.0))
    assert committed(machine, 3, [b"later"], [b"later"]) == [p.Verdict.PASS]
    assert all(map(machine.is_ghost, [b"kept", b"gone", b"later"]))
    [apply] = machine.handle(p.ChangesChecked(check, None, p.Changes("p1", [b"kept"], [])))
    assert (apply.insert, apply.remove) == ([], [b"gone"])
    machine.handle(p.Applied(apply))
    assert [*machine.ghosts] == [b"later"]


def test_many_writes_that_are_not_reported_lead_to_a_change_check():
    machine = opened(shared=True)
    for write in range(p.UNREPORTED - 1):
        assert committed(machine, write, [b"%d" % write], []) == [p.Verdict.PASS]
    [check] = committed(machine, 100, [b"last"], [])
    assert len(check.reported) == p.UNREPORTED - 1
    [alone] = committed(opened(shared=True), 1, range(100), [])
    assert (alone.write, alone.keys) == (1, range(100))
