"""Saving a file: whole under its name or not at all, whatever fails, and nothing else touched."""

import errno
import os
import pickle
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from failing import fail_at

import tamis
from tamis import _files
from tamis.guard import snapshot
from tamis.report import Report

KEY = bytes(range(100, 116))

FILTER = tamis.Bloom.build(range(10), fpr=0.1)


def saves(tmp_path):
    """What is saved to a path, by name: an older state, a newer one, and how to read one back."""
    old, new = (tamis.Ribbon.build(range(n), fpr=0.01) for n in (10, 20_000))
    sets = tamis.Collection.build({"a": range(50)}), tamis.Collection.build({"b": range(9000)})
    texts = [tamis.text.SearchIndex.build({"a": word}) for word in ("one", "two " * 9000)]
    yield "filter", old.save, new.save, tamis.load
    yield "collection", sets[0].save, sets[1].save, tamis.Collection.open
    yield "text", texts[0].save, texts[1].save, tamis.text.SearchIndex.open
    yield (
        "snapshot",
        lambda path: snapshot.save(path, old, b"store", "1"),
        lambda path: snapshot.save(path, new, b"store", "2"),
        lambda path: snapshot.load(path, None),
    )
    yield "report", Report("old").save, Report("new").lines("x" * 20_000).save, Path.read_text
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    counts = [tamis.Workload.from_counts(list(range(n)), [1] * n) for n in (5, 5000)]
    yield "workload", counts[0].save, counts[1].save, tamis.Workload.load
    folder = tmp_path / "lake"
    folder.mkdir()
    pq.write_table(pa.table({"user": range(5000)}), folder / "a.parquet")
    indexes = [
        tamis.parquet.SkippingIndex.build(folder, columns=["user"], path=tmp_path / f"{i}", fpr=fpr)
        for i, fpr in enumerate((0.1, 0.001))
    ]
    read = partial(tamis.parquet.SkippingIndex.open, source=folder)
    yield "index", indexes[0].save, indexes[1].save, read


NAMES = ["filter", "collection", "text", "snapshot", "report", "workload", "index"]


@pytest.fixture(params=NAMES)
def saving(request, tmp_path):
    """A file with the older state in a folder of its own, its bytes, and how to save the newer."""
    prepared = {name: rest for name, *rest in saves(tmp_path)}
    assert list(prepared) == NAMES
    save_old, save_new, read = prepared[request.param]
    (tmp_path / "here").mkdir()
    path = tmp_path / "here" / "saved"
    save_old(path)
    read(path)
    return path, path.read_bytes(), save_new, read


@pytest.mark.parametrize("name", ["open", "fchmod", "fsync", "close", "replace"])
def test_a_call_that_fails_leaves_a_whole_file_and_no_other(saving, name, monkeypatch):
    path, before, save, read = saving
    for count in (1, 2, 3):
        with monkeypatch.context() as patch:
            calls = fail_at(patch, name, count)
            with suppress(OSError):
                save(path)
                assert 0 < len(calls) < count, f"{name} was not called, or its error was lost"
        assert [p.name for p in path.parent.iterdir()] == ["saved"]
        # Once it is renamed, only flushing the folder can fail: then the newer state is there.
        if len(calls) < count or (name in ("open", "fsync", "close") and count > 1):
            assert path.read_bytes() != before
        else:
            assert path.read_bytes() == before
        read(path)


WITHOUT_SPACE = """
import resource, signal, sys
sys.path[:0] = {paths!r}
import test_saving
from pathlib import Path
folder = Path(sys.argv[1])
saves = {{name: rest for name, *rest in test_saving.saves(folder)}}
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for name, (save_old, save_new, read) in saves.items():
    here = folder / name
    here.mkdir()
    path = here / "saved"
    save_new(path)
    full = path.stat().st_size
    save_old(path)
    before = path.read_bytes()
    for limit in sorted({{0, 1, 64, 4096, full // 2, full - 1}}):
        if limit >= full:
            continue
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            save_new(path)
        except OSError as error:
            assert "File too large" in str(error), (name, error)
        else:
            raise AssertionError(f"{{name}}: {{full}} bytes in a file of {{limit}}")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        assert [p.name for p in here.iterdir()] == ["saved"], name
        assert path.read_bytes() == before, name
    read(path)
    save_new(path)
    assert path.stat().st_size == full
"""


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    """A limit on the size of files stops native writes too, anywhere in the file."""
    script = WITHOUT_SPACE.format(paths=sys.path)
    subprocess.run([sys.executable, "-c", script, tmp_path], check=True)


def test_a_temporary_file_is_private_before_its_first_byte(tmp_path, monkeypatch):
    """Another user who opens it before it has the target's permissions could read the filter."""
    created = []

    def spied(path, *arguments, **named):
        descriptor = os_open(path, *arguments, **named)
        if str(path).endswith(".saving"):
            created.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    os_open = os.open
    monkeypatch.setattr(os, "open", spied)
    path = tmp_path / "f"
    old = os.umask(0o022)
    try:
        FILTER.save(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        for mode in (0o600, 0o640, 0o666):
            path.chmod(mode)
            FILTER.save(path)
            assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        os.umask(old)
    assert created == [0o644, 0o600, 0o600, 0o600]


def test_only_regular_files_are_replaced(tmp_path):
    fifo, folder = tmp_path / "fifo", tmp_path / "folder"
    os.mkfifo(fifo)
    folder.mkdir()
    (tmp_path / "link").symlink_to(fifo)
    for path in (fifo, tmp_path / "link"):
        with pytest.raises(OSError, match=f"not a regular file: {str(path)!r}"):
            FILTER.save(path)
    with pytest.raises(IsADirectoryError, match=f"{str(folder)!r}"):
        FILTER.save(folder)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fifo", "folder", "link"]


def test_a_socket_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(OSError, match="not a regular file: 'socket'"):
            FILTER.save("socket")
        assert stat.S_ISSOCK(os.stat("socket").st_mode)


def test_a_device_is_not_replaced(tmp_path, monkeypatch):
    path, true = tmp_path / "device", os.stat
    path.write_bytes(b"")

    def as_device(name, **kwargs):
        found = true(name, **kwargs)
        if os.fspath(name) == str(path):
            return os.stat_result((stat.S_IFCHR | 0o666, *found[1:]))
        return found

    monkeypatch.setattr(os, "stat", as_device)
    with pytest.raises(OSError, match="not a regular file"):
        FILTER.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["device"]
    assert path.read_bytes() == b""


def test_links_are_followed(tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    link.symlink_to(target)
    for _ in range(2):  # a link to nothing, and one to a file
        FILTER.save(link)
        assert link.is_symlink()
        assert target.read_bytes() == FILTER.to_bytes()
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match="loop"):
        FILTER.save(loop)
    nowhere = tmp_path / "no" / "where"
    with pytest.raises(FileNotFoundError, match=f"{str(nowhere)!r}$"):
        FILTER.save(nowhere)


KILLED = """
import os, signal, sys, tamis
f = tamis.Bloom.build(range(10), fpr=0.1)
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
f.save(sys.argv[1])
"""


def test_what_a_killed_save_left_is_swept(tmp_path):
    path = tmp_path / "f"
    killed = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert re.fullmatch(_files.TEMPORARY, left.name)
    FILTER.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_no_other_file_is_swept(tmp_path):
    old = time.time() - 10**6
    others = [".tamis-0123456789abcdef", ".tamis-notes.saving", ".tamis-0123456789abcdeg.saving"]
    for name in others:
        (tmp_path / name).write_bytes(b"mine")
        os.utime(tmp_path / name, (old, old))
    folder, fifo, link = (tmp_path / f".tamis-{digit * 16}.saving" for digit in "012")
    folder.mkdir()
    os.mkfifo(fifo)
    link.symlink_to(tmp_path / others[0])
    before = sorted(p.name for p in tmp_path.iterdir())
    FILTER.save(tmp_path / "f")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*before, "f"])


def test_a_save_under_way_is_not_swept(tmp_path):
    """Not even one that has not written for long: its lock tells that it is alive."""
    seen = []

    def write(descriptor):
        os.write(descriptor, b"slowly")
        os.utime(descriptor, (0, 0))
        FILTER.save(tmp_path / "other")
        seen.extend(p.name for p in tmp_path.iterdir())

    _files.save_atomically(tmp_path / "slow", write)
    assert len(seen) == 2
    assert (tmp_path / "slow").read_bytes() == b"slowly"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "slow"]


def test_a_folder_that_cannot_be_listed_takes_a_save(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "scandir", refuse)
    FILTER.save(tmp_path / "f")
    assert tamis.load(tmp_path / "f").contains(range(10)).all()


@pytest.mark.parametrize(
    "use",
    [
        tamis.Workload.load,
        tamis.Collection.open,
        tamis.load,
        tamis.Bloom(10, fpr=0.1).save,
    ],
)
def test_a_number_is_no_path(use, tmp_path):
    """It would be a descriptor that somebody else uses, and would be closed."""
    (tmp_path / "theirs").write_bytes(b"theirs")
    with open(tmp_path / "theirs", "rb") as theirs:
        with pytest.raises(TypeError, match="path must be the path of a file, not "):
            use(theirs.fileno())
        assert theirs.read() == b"theirs"


def test_the_folder_is_flushed_after_the_rename(tmp_path, monkeypatch):
    """Else a crash of the machine may undo the rename."""
    path, done = tmp_path / "f", []
    fsync, replace = os.fsync, os.replace

    def flush(descriptor):
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        if done[-1] == "folder":
            assert os.path.samestat(os.fstat(descriptor), os.stat(tmp_path))
        fsync(descriptor)

    def rename(*paths):
        done.append("rename")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "replace", rename)
    tamis.Bloom.build([1], fpr=0.1).save(path)
    assert done == ["file", "rename", "folder"]


def test_temporary_files_of_other_users_are_kept(tmp_path, monkeypatch):
    """Their saves may still run, on a file system where locks are not seen."""
    left = tmp_path / ".tamis-0123456789abcdef.saving"
    left.write_bytes(b"")
    f = tamis.Bloom.build([1], fpr=0.1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: left.stat().st_uid + 1)
        f.save(tmp_path / "f")
        assert left.exists()
    f.save(tmp_path / "f")
    assert not left.exists()


@pytest.mark.parametrize(
    "filter_",
    [
        tamis.Bloom(100, fpr=0.01, key=KEY),
        tamis.Cuckoo(100, fpr=0.01, key=KEY),
        tamis.Quotient(100, fpr=0.01, key=KEY),
        tamis.Ribbon.build([], fpr=0.01, key=KEY),
        tamis.Fuse.build([], fpr=0.01, key=KEY),
    ],
    ids=lambda filter_: type(filter_).__name__,
)
def test_an_empty_filter_with_a_secret_key_is_not_pickled(filter_):
    with pytest.raises(TypeError, match="cannot be pickled, because the pickle would contain"):
        pickle.dumps(filter_)
    assert KEY not in filter_.to_bytes()
