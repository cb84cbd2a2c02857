"""Signal handlers that raise, such as that of Ctrl-C, at every point at which Python runs them.

Python runs them when a function begins, and after a call of C code. A profile function is called at
the same points, so that one that raises stands for them, one point after the other.
"""

import itertools
import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from failing import in_thread
from faulty import Faulty
from servers import redis_url  # noqa: F401

import tamis
from tamis import stores
from tamis._locks import Locked

LIBRARY = str(Path(tamis.__file__).parent)


class Interrupt(BaseException):
    """What the handler raises."""


def interrupted(call, point):
    """Call a function and interrupt it at a point; return whether it came that far."""
    events = itertools.count()

    def profile(frame, event, _):
        code = frame.f_code
        # What is raised in a destructor is not passed on.
        if event in ("call", "c_return") and code.co_filename.startswith(LIBRARY) and (
            code.co_name != "__del__" and next(events) == point
        ):  # fmt: skip
            raise Interrupt

    sys.setprofile(profile)
    try:
        call()
    except Interrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def try_all(locks):
    """Return for each lock whether this thread can take it."""
    taken = [lock.acquire(blocking=False) for lock in locks]
    for lock in itertools.compress(locks, taken):
        lock.release()
    return taken


@pytest.mark.parametrize("wait", [True, False])
def test_locks_are_released_wherever_it_is_interrupted(wait):
    locks, counts = [threading.RLock() for _ in range(3)], [0, 0, 0]

    def hold():
        with Locked(locks, wait=wait, count=(counts, range(3))) as held:
            assert held
            locks[0].acquire()
            locks[0].release()

    for point in itertools.count():
        again = interrupted(hold, point)
        assert in_thread(try_all, locks) == [True] * 3
        if not again:
            break
    assert point > 4
    assert counts[0] > 0


def test_all_locks_or_none_are_taken_without_waiting():
    locks, taken, go_on = (
        [threading.RLock() for _ in range(3)],
        threading.Event(),
        threading.Event(),
    )

    def take():
        with locks[1]:
            taken.set()
            go_on.wait(30)

    # It has to live on: a thread that comes after it may have its number, which owns the lock.
    holder = threading.Thread(target=take)
    holder.start()
    taken.wait(30)
    with Locked(locks, wait=False) as held:
        assert not held
        assert in_thread(try_all, locks) == [True, False, True]
    go_on.set()
    holder.join()
    with Locked(locks, wait=False) as held:
        assert held
        assert in_thread(try_all, locks) == [False] * 3


@pytest.mark.parametrize("kind", ["memory", "shared", "sqlite", "table", "redis"])
def test_a_guard_survives_an_interrupt_anywhere(kind, tmp_path, request):
    """It denies nothing, removes nothing of others, and lets other threads write."""
    if kind == "memory":
        store = stores.Memory()
    elif kind == "shared":
        store = Faulty(shared=True)
    elif kind == "sqlite":
        store = stores.SQLite(":memory:")
    elif kind == "redis":
        store = stores.Redis(request.getfixturevalue("redis_url"), name="interrupts", grace=0)
    else:
        path = tmp_path / "data.db"
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE t (k TEXT PRIMARY KEY, v TEXT)")
        store = stores.SQLite(path, table="t", key="k", value="v", timeout=5)
        with store._reading(), store._connections.lock:
            store._connections.writer().execute("PRAGMA synchronous = OFF")
    g = tamis.Guard(store, tamis.Telescoping(capacity=30, fpr=2**-4, seed=1), lease=1000)
    g.put_many((str(i), "x") for i in range(30))
    model = {str(i): {"x"} for i in range(30)}
    keys = [*model, *(f"absent {i}" for i in range(30))]
    calls = (
        ("put", "new", lambda: g.put("new", "y"), "y"),
        ("delete", "7", lambda: g.delete("7"), None),
        ("put", "7", lambda: g.put("7", "z"), "z"),
        ("delete", "new", lambda: g.delete("new"), None),
        ("get", None, lambda: g.get_many(keys), None),
    )
    for _, key, call, value in calls:
        for point in itertools.count():
            again = interrupted(call, point)
            if key is not None:
                model[key] = model.get(key, {None}) | {value} if again else {value}
            in_thread(lambda: [g.put("other", "x")])
            for name in model:
                found = g.get(name)
                assert found in model[name]
                model[name] = {found}
            if not again:
                break
        assert point > 5
    in_thread(lambda: [g.rebuild()])
    assert len(g.filter) == sum(value is not None for value in store.get_many(
        [name.encode() for name in [*model, "other"]]))  # fmt: skip
    g.close()
