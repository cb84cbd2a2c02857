"""Many processes on one host: one writes, all read, and the memory of the filter is paid once."""

import gc
import multiprocessing
import os
import re
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import tamis
from tamis import stores
from tamis._clock import now
from tamis.guard import background, snapshot

WORKERS, STALENESS, CAPACITY = 8, 0.2, 8_000_000

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc"
)


def empty_filter():
    return tamis.Bloom(capacity=CAPACITY, fpr=0.01, seed=4)


FILTER_BYTES = empty_filter().size_in_bits // 8


def pss():
    """The memory of this process in bytes; what n processes share counts as an n-th."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE).group(1))


def mapped(path):
    """The proportional and the private part of the pages that this process maps of a file."""
    found, of_file = {"Pss": 0, "Private_Dirty": 0}, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            of_file = str(path) in line
        elif of_file and (match := re.match(r"(Pss|Private_Dirty):\s+(\d+)", line)):
            found[match.group(1)] += 1024 * int(match.group(2))
    return found


def reader(folder, share, talk):
    """A worker: a read-only guard that follows commands from a pipe."""
    # A small guard first: modules are loaded, and what a fork shares is copied where it is used.
    with tamis.Guard(
        stores.SQLite(":memory:"), tamis.Bloom(capacity=100, fpr=0.01), max_staleness=STALENESS
    ) as small:
        small.put_many((i, "x") for i in range(50))
        small.get_many(range(100))
        small.rebuild()
    gc.collect()
    before = pss()
    talk.send("started")
    talk.recv()
    g = tamis.Guard(
        stores.SQLite(folder / "data.db"), None if share else empty_filter(),
        snapshot=folder / "filter", share=share, read_only=True, max_staleness=STALENESS,
    )  # fmt: skip
    talk.send("open")
    while (command := talk.recv()) is not None:
        if command == "memory":
            talk.send((pss() - before, mapped(folder / "filter"), g.stats))
        else:
            talk.send(g.get_many(command))
    g.close()


@contextmanager
def workers(method, folder, share=True):
    """Eight processes that read."""
    context = multiprocessing.get_context(method)
    pipes, processes = [], []
    for _ in range(WORKERS):
        ours, theirs = context.Pipe()
        process = context.Process(target=reader, args=(folder, share, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        assert all(pipe.recv() == "started" for pipe in pipes)
        for pipe in pipes:
            pipe.send("go")
        assert all(pipe.recv() == "open" for pipe in pipes)
        yield pipes
    finally:
        for pipe in pipes:
            with suppress(BrokenPipeError):
                pipe.send(None)
        for process in processes:
            process.join(30)
            process.kill()
            pipe.close()


def ask(pipes, command):
    for pipe in pipes:
        pipe.send(command)
    return [pipe.recv() for pipe in pipes]


def writer(folder, **options):
    return tamis.Guard(
        stores.SQLite(folder / "data.db"), empty_filter(), snapshot=folder / "filter",
        share=True, **options,
    )  # fmt: skip


def until(condition):
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("did not happen within 60 s")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_one_writes_and_all_read_one_filter(method, tmp_path):
    with writer(tmp_path) as g:
        g.put_many((i, str(i)) for i in range(1000))
        with workers(method, tmp_path) as pipes:
            assert ask(pipes, [5, 999, 5000]) == [["5", "999", None]] * WORKERS
            # A key that was put is denied for at most max_staleness.
            for key in range(2000, 2015):
                g.put(key, str(key))
                put = now()
                while now() < put + STALENESS:
                    time.sleep(0.01)
                assert ask(pipes, [key, key + 10**6]) == [[str(key), None]] * WORKERS
            # The pages of the file are there once for all.
            memory = ask(pipes, "memory")
            assert all(found["Pss"] > 0 for _, found, _ in memory)
            assert sum(found["Pss"] for _, found, _ in memory) < 1.3 * FILTER_BYTES
            assert sum(growth for growth, _, _ in memory) < 0.6 * WORKERS * FILTER_BYTES
            assert {stats.trusted for _, _, stats in memory} == {True}
            # What a worker replays is in pages of its own, until there is a newer snapshot.
            g.put_many((i, str(i)) for i in range(10_000, 10_000 + 500))
            many = list(range(10_000, 10_500))
            time.sleep(STALENESS)
            assert ask(pipes, many) == [[str(i) for i in many]] * WORKERS
            until(
                lambda: all(
                    found["Private_Dirty"] < 100 * 4096 for _, found, _ in ask(pipes, "memory")
                )
            )
            assert ask(pipes, many) == [[str(i) for i in many]] * WORKERS
            assert g.delete(5)
            time.sleep(STALENESS)
            assert ask(pipes, [5, 6]) == [[None, "6"]] * WORKERS


def test_a_snapshot_that_is_not_shared_is_paid_by_each(tmp_path):
    """What the test above would measure without ``share``."""
    with writer(tmp_path) as g:
        g.put_many((i, str(i)) for i in range(1000))
        with workers("fork", tmp_path, share=False) as pipes:
            memory = ask(pipes, "memory")
            assert sum(growth for growth, _, _ in memory) > 0.9 * WORKERS * FILTER_BYTES
            assert {found["Pss"] for _, found, _ in memory} == {0}


def test_a_guard_that_only_reads_never_takes_the_lease(tmp_path):
    path = tmp_path / "data.db"
    with tamis.Guard(stores.SQLite(path), empty_filter(), read_only=True) as g:
        assert not g.driver.holds_lease()
        with pytest.raises(tamis.LeaseError, match="this guard is read-only"):
            g.put("a", "x")
        with pytest.raises(tamis.LeaseError, match="this guard is read-only"):
            g.delete("a")
        with tamis.Guard(stores.SQLite(path), empty_filter()) as other:
            other.put("a", "x")
            assert g.get_many(["a", "b"]) == ["x", None]


def test_a_guard_that_only_reads_leaves_the_snapshot_alone(tmp_path):
    with writer(tmp_path) as g:
        g.put("a", "x")
    before = (tmp_path / "filter").stat()
    with writer(tmp_path, read_only=True) as g:
        assert g.get_many(["a", "b"]) == ["x", None]
    after = (tmp_path / "filter").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_guard_without_a_filter_waits_for_the_snapshot(tmp_path):
    path = tmp_path / "data.db"
    options = {"snapshot": tmp_path / "filter", "share": True, "read_only": True}
    with pytest.raises(FileNotFoundError, match=r"snapshot must be a file .* waited for it"):
        tamis.Guard(stores.SQLite(path), lease=0.1, **options)
    later = threading.Timer(0.3, lambda: writer(tmp_path).put("a", "x"))
    later.start()
    with tamis.Guard(stores.SQLite(path), **options) as g:
        later.join()
        assert g.get_many(["a", "b"]) == ["x", None]
        assert type(g.filter) is tamis.Bloom
        assert g.chosen is None


def test_a_guard_without_a_filter_waits_for_another_snapshot(tmp_path, monkeypatch):
    """If the store cannot say what changed since, queries go to the store until there is one."""
    monkeypatch.setattr(background, "SHARING_INTERVAL", 0.02)
    with writer(tmp_path) as g:
        g.put("a", "x")
        old = (tmp_path / "filter").read_bytes()
        with g.store._writing() as db:
            db.execute("UPDATE tamis_tamis_journal SET token = token + 1")
        options = {"snapshot": tmp_path / "filter", "share": True, "read_only": True}
        with tamis.Guard(stores.SQLite(tmp_path / "data.db"), **options) as h:
            assert not h.stats.trusted
            assert h.get_many(["a", "b"]) == ["x", None]
            assert h.stats.passed == 2
            g.rebuild()
            g.save()
            assert (tmp_path / "filter").read_bytes() != old
            until(lambda: h.stats.trusted)
            assert h.get_many(["a", "b"]) == ["x", None]
            assert h.stats.passed == 2


def test_a_secret_key_is_found_in_the_store(tmp_path):
    key = bytes(range(16))
    f = tamis.Quotient(capacity=100, fpr=0.01, key=key)
    paths = {"snapshot": tmp_path / "filter", "share": True}
    path = tmp_path / "data.db"
    with (
        tamis.Guard(stores.SQLite(path), f, key=key, **paths) as g,
        tamis.Guard(stores.SQLite(path), read_only=True, **paths) as h,
    ):
        g.put("a", "x")
        assert h.get_many(["a", "b"]) == ["x", None]
    # The key stays in the store, also where the next filter has none.
    (tmp_path / "filter").unlink()
    with (
        tamis.Guard(stores.SQLite(path), empty_filter(), **paths) as g,
        tamis.Guard(stores.SQLite(path), read_only=True, **paths) as h,
    ):
        assert h.get_many(["a", "b"]) == ["x", None]


def test_a_snapshot_has_to_be_given(tmp_path):
    with pytest.raises(ValueError, match="pass snapshot=, the file to share"):
        tamis.Guard(stores.SQLite(tmp_path / "data.db"), empty_filter(), share=True)


def test_a_process_that_is_gone_leaves_the_lease_to_another(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "SHARING_INTERVAL", 0.02)
    child = os.fork()
    if child == 0:
        try:
            writer(tmp_path, lease=0.4).put("a", "x")
        finally:
            os._exit(0)  # without releasing the lease
    assert os.waitpid(child, 0)[1] == 0
    with writer(tmp_path, lease=0.4) as g:
        until(g.driver.holds_lease)
        g.put("b", "y")
        assert g.get_many(["a", "b", "c"]) == ["x", "y", None]


def telescoping():
    return tamis.Telescoping(capacity=300, fpr=2**-6, seed=8)


def test_a_filter_that_grew_is_taken_over_instead_of_built(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "SHARING_INTERVAL", 0.02)
    paths = {"snapshot": tmp_path / "filter", "share": True}
    with (
        tamis.Guard(stores.SQLite(tmp_path / "data.db"), telescoping(), **paths) as g,
        tamis.Guard(
            stores.SQLite(tmp_path / "data.db"), telescoping(), read_only=True, **paths
        ) as h,
    ):
        for start in range(0, 3000, 100):
            g.put_many((i, str(i)) for i in range(start, start + 100))
            asked = list(range(start + 100)) + list(range(10**6, 10**6 + 50))
            expected = [str(i) for i in range(start + 100)] + [None] * 50
            assert h.get_many(asked) == expected
        until(lambda: h.filter.capacity == g.filter.capacity and h.stats.trusted)
        assert h.filter.capacity > 2000
        assert h.get_many(range(3000)) == [str(i) for i in range(3000)]


def test_a_newer_snapshot_keeps_what_was_put_after_it(tmp_path, monkeypatch):
    """Taking over a snapshot replays what it lacks, before it is used."""
    monkeypatch.setattr(background, "SHARING_INTERVAL", 1000.0)
    with writer(tmp_path) as g, writer(tmp_path, read_only=True) as h:
        g.put("a", "1")
        g.save()
        g.put("b", "2")
        assert h.driver.adopt()
        assert h.get_many(["a", "b", "c"]) == ["1", "2", None]
        g.delete("a")
        assert h.driver.adopt()
        assert h.get_many(["a", "b", "c"]) == [None, "2", None]
        assert not g.driver.adopt()  # it holds the lease


def test_a_snapshot_with_another_hash_is_not_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "SHARING_INTERVAL", 1000.0)
    other = tamis.Bloom(capacity=CAPACITY, fpr=0.01, seed=5)
    options = {"snapshot": tmp_path / "filter", "share": True, "read_only": True}
    path = tmp_path / "data.db"
    with tamis.Guard(stores.SQLite(path), other, **options) as h, writer(tmp_path) as g:
        g.put("a", "1")
        g.save()
        assert not h.driver.adopt()
        assert h.get_many(["a", "b"]) == ["1", None]


def test_a_snapshot_that_cannot_be_written_keeps_no_guard_from_opening(
    tmp_path, monkeypatch, caplog
):
    def full(*_):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(snapshot, "save_atomically", full)
    g = writer(tmp_path)
    g.put("a", "1")
    assert g.get_many(["a", "b"]) == ["1", None]
    assert "the snapshot could not be shared" in caplog.text
    monkeypatch.undo()
    g.close()


def test_a_damaged_snapshot_is_not_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "SHARING_INTERVAL", 1000.0)
    with writer(tmp_path) as g:
        g.put("a", "1")
    whole = (tmp_path / "filter").read_bytes()
    with writer(tmp_path, read_only=True) as h:
        for damaged in (b"", whole[:50], whole[:2000], whole[:2000] + b"\xff" + whole[2001:]):
            replacement = tmp_path / "next"
            replacement.write_bytes(damaged)
            replacement.rename(tmp_path / "filter")
            assert not h.driver.adopt()
            assert h.get_many(["a", "b"]) == ["1", None]


def test_the_filter_of_a_snapshot_is_mapped_or_read(tmp_path):
    f = tamis.Bloom(capacity=100, fpr=0.01, seed=1)
    f.add("a")
    snapshot.save(tmp_path / "f", f, b"store", "7.x")
    for mapped in (True, False):
        loaded, store, position = snapshot.load(tmp_path / "f", None, mapped=mapped)
        assert ("a" in loaded, store, position) == (True, b"store", "7.x")
        assert loaded.to_bytes() == f.to_bytes()
    with pytest.raises(tamis.FormatError, match=r"snapshot of a guard: open it with tamis\.Guard"):
        tamis.load(tmp_path / "f")


def test_an_offset_must_be_aligned_and_in_the_file(tmp_path):
    f = tamis.Bloom(capacity=100, fpr=0.01, seed=1)
    f.save(tmp_path / "f")
    with pytest.raises(ValueError, match="offset must be a multiple of 64, not 7"):
        tamis._native.open_file(str(tmp_path / "f"), True, None, 7)
    for offset in (64, 1 << 40):
        with pytest.raises(tamis.FormatError):
            tamis._native.open_file(str(tmp_path / "f"), True, None, offset)
