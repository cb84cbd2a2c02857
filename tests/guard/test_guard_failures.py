"""A store that is down, and writes that fail."""

import threading

import pytest
from faulty import Faulty
from guards import absent_key, quotient, set_lease, telescoping, until

import tamis
from tamis import _native, stores


def test_a_store_that_is_down_raises():
    store = Faulty(shared=True)
    g = tamis.Guard(store, quotient())
    g.put(1, "x")
    store.down = True
    for ask in (lambda: g.get(1), lambda: g.get(absent_key(g)), lambda: g.get_many([1, 2])):
        with pytest.raises(tamis.StoreError):
            ask()
    with pytest.raises(tamis.StoreError):
        g.put(2, "y")
    store.down = False
    assert g.get_many([1, 2]) == ["x", None]
    g.put(2, "y")
    assert g.get(2) == "y"
    assert g.stats.rebuilds == 1


@pytest.mark.parametrize("choice", ["raise", "filter"])
def test_a_guard_with_the_lease_answers_while_the_store_is_down(choice):
    store = Faulty()
    g = tamis.Guard(store, quotient(), lease=1000, on_failure=choice)
    g.put(1, "x")
    key = absent_key(g)
    store.down = True
    assert g.get(key) is None
    with pytest.raises(tamis.StoreError):
        g.get(1)
    # Half of the lease is over, and it cannot be renewed.
    set_lease(g, renew_at=0.0)
    if choice == "raise":
        with pytest.raises(tamis.StoreError):
            g.get(key)
    else:
        assert g.get(key) is None
        assert g.get_many([key, key]) == [None, None]
    # The lease is over: another guard may have written.
    until(lambda: not _alive(g.driver.tasks["renew"]))
    set_lease(g, renew_at=0.001, lease_until=0.001)
    with pytest.raises(tamis.StoreError):
        g.get(key)
    store.down = False
    assert g.get_many([1, key]) == ["x", None]


def _alive(task):
    return task.thread is not None and task.thread.is_alive()


@pytest.mark.parametrize("choice", ["raise", "filter"])
def test_within_max_staleness_the_filter_may_answer_for_a_store_that_is_down(choice, caplog):
    store = Faulty(shared=True)
    with tamis.Guard(store, quotient(), max_staleness=1000, on_failure=choice) as g:
        store.write([1])
        g.driver.follow()
        key = absent_key(g)
        assert g.get(key) is None
        store.down = True
        g.driver.follower.wake()
        if choice == "filter":
            until(lambda: "cannot be followed" in caplog.text)
            assert g.get(key) is None
        else:
            until(lambda: g._gate.current_filter() is None)
            with pytest.raises(tamis.StoreError):
                g.get(key)
        store.down = False
        assert g.get(1) == b"theirs"
        assert g.get(key) is None


def test_a_rebuild_of_a_store_that_is_down_is_logged_once(caplog, monkeypatch):
    monkeypatch.setattr(tamis.guard.background, "_FIRST_DELAY", 0.0)
    store = Faulty(shared=True)
    g = tamis.Guard(store, quotient())
    g.driver.tasks["rebuild"]._delay = 0.0
    store._journal.clear()
    store.write([1])
    store.down = False
    contents, store.contents = store.contents, lambda: (_ for _ in ()).throw(tamis.StoreError("x"))
    for _ in range(5):
        assert g.get(1) == b"theirs"
        g.driver.tasks["rebuild"].thread.join()
    assert caplog.text.count("could not rebuild its filter") == 1
    store.contents = contents
    g.rebuild()
    assert g.get(1) == b"theirs"
    assert g.stats.trusted


def test_a_rebuild_in_another_way_ends_the_delay():
    """The next rebuild in the background does not wait for earlier failures."""
    store = Faulty(shared=True)
    g = tamis.Guard(store, quotient())
    task = g.driver.tasks["rebuild"]
    task._delay, task._after = 60.0, _native.now() + 60.0
    g.rebuild()
    assert task._delay == 1.0
    assert task._after <= _native.now() + 1.0


def test_a_rebuild_that_is_overtaken_delays_the_next_one():
    store = Faulty(shared=True)
    g = tamis.Guard(store, quotient())
    task, changes = g.driver.tasks["rebuild"], store.changes
    store.changes = lambda *_, **__: None
    delays = []
    for _ in range(3):
        task._after = 0.0
        task.start()
        task.thread.join()
        delays.append(task._delay)
    assert delays == [2.0, 4.0, 8.0]
    assert not g.stats.trusted
    store.changes, task._after = changes, 0.0
    task.start()
    task.thread.join()
    assert g.stats.trusted
    assert task._delay == 1.0


@pytest.mark.parametrize("make", [quotient, telescoping])
@pytest.mark.parametrize("error", [OSError, tamis.LeaseError, TypeError, RuntimeError])
def test_failed_puts_leave_nothing_in_the_filter(make, error):
    store = stores.Memory()
    g = tamis.Guard(store, make(), lease=1000)
    g.put("there", "x")
    put_many = store.put_many

    def fails(*_):
        raise error("no")

    for _ in range(50):
        store.put_many = fails
        with pytest.raises(error):
            g.put("again", "y")
        store.put_many = put_many
    assert len(g.filter) == 1
    g.put("again", "y")
    assert len(g.filter) == 2
    assert g.get_many(["there", "again"]) == ["x", "y"]
    assert g.stats.rebuilds == 1


@pytest.mark.parametrize("make", [quotient, telescoping])
@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize("breaks", ["before", "after"])
def test_a_put_with_an_unknown_outcome_is_settled_by_the_next_write(breaks, journal, make):
    store = Faulty()
    g = tamis.Guard(store, make(), lease=1000)
    g.put("there", "x")
    for _ in range(20):
        store.breaks = breaks
        with pytest.raises(tamis.StoreError):
            g.put("unknown", "y")
        assert len(g.filter) == 2  # kept, as the store may have it
        assert g.get("unknown") == ("y" if breaks == "after" else None)
        if not journal:
            del store._journal[:-1]
            store._journal[-1] = ("0.forgotten", [], [])
    g.put("there", "z")
    g.put("other", "z")
    assert g.get_many(["there", "unknown", "other"]) == [
        "z",
        "y" if breaks == "after" else None,
        "z",
    ]
    until(lambda: g.get("never") is None and g.stats.trusted)
    assert len(g.filter) == (3 if breaks == "after" else 2)
    assert g.delete("unknown") == (breaks == "after")
    assert len(g.filter) == 2


def test_a_put_that_arrives_late_is_refused():
    """Its key may have left the filter by then."""
    store = Faulty()
    g = tamis.Guard(store, telescoping(), lease=1000)
    g.put_many((i, "x") for i in range(50))
    store.breaks = "late"
    with pytest.raises(tamis.StoreError):
        g.put("late", "y")
    g.put("there", "x")
    assert len(g.filter) == 51
    assert store.arrive() == 1
    assert g.get_many(["late", "there"]) == [None, "x"]
    # The same with a rebuild in between.
    store.breaks = "late"
    with pytest.raises(tamis.StoreError):
        g.put("late", "y")
    g.rebuild()
    assert store.arrive() == 1
    assert g.get("late") is None
    assert g.get_many(range(50)) == ["x"] * 50


def test_a_rebuild_keeps_a_put_that_may_still_arrive():
    """Also one that failed after the rebuild had settled the others."""
    store = Faulty()
    g = tamis.Guard(store, telescoping(), lease=1000)
    g.put_many((i, "x") for i in range(50))
    contents = store.contents

    def put():
        with pytest.raises(tamis.StoreError):
            g.put("late", "y")

    putter = threading.Thread(target=put)

    def overtaken():
        store.breaks = "late"
        putter.start()
        putter.join(0.2)
        return contents()

    store.contents = overtaken
    g.rebuild()
    putter.join()
    assert store.arrive() == 0
    assert g.get("late") == "y"


def test_growth_keeps_the_slot_of_a_put_that_may_still_arrive():
    store = Faulty()
    g = tamis.Guard(store, tamis.Telescoping(capacity=4, fpr=2**-8, seed=3), lease=1000)
    store.breaks = "late"
    with pytest.raises(tamis.StoreError):
        g.put("late", "y")
    g.filter.grow(g.driver.replica.remote)
    assert store.arrive() == 0
    assert g.get("late") == "y"


def test_a_delete_with_an_unknown_outcome_is_followed():
    for breaks in ("before", "after"):
        store = Faulty()
        g = tamis.Guard(store, telescoping(), lease=1000)
        g.put_many((i, "x") for i in range(50))
        store.breaks = breaks
        with pytest.raises(tamis.StoreError):
            g.delete_many(range(25))
        assert (
            g.get_many(range(50)) == ([None] * 25 if breaks == "after" else ["x"] * 25) + ["x"] * 25
        )
        g.put("next", "y")
        assert len(g.filter) == (26 if breaks == "after" else 51)
