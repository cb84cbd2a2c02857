"""Files that cannot be read or written raise `OSError` as Python's own functions do."""

import errno
import os
import signal
import subprocess
import sys

import pytest

import tamis
from tamis import _files
from tamis.guard import snapshot

TEXTS = {"a": "a sieve", "b": "a drum"}


def build_collection():
    return tamis.Collection.build({"a": range(10), "b": range(5)})


SAVED = {
    "filter": lambda: tamis.Bloom.build(range(10), fpr=0.01),
    "collection": build_collection,
    "text": lambda: tamis.text.SearchIndex.build(TEXTS),
}
OPENERS = {
    "filter": tamis.load,
    "mapped filter": lambda path: tamis.load(path, mmap=True),
    "collection": tamis.Collection.open,
    "text": tamis.text.SearchIndex.open,
    "workload": tamis.Workload.load,
    "skipping index": lambda path: tamis.parquet.SkippingIndex.open(path),
    "snapshot of a guard": lambda path: snapshot.load(path, None),
}


def check(error, number, path):
    assert error.errno == number
    assert error.strerror
    assert error.filename == str(path)


@pytest.mark.parametrize("name", OPENERS)
def test_opening(tmp_path, name):
    with pytest.raises(FileNotFoundError) as caught:
        OPENERS[name](tmp_path / "nowhere")
    check(caught.value, errno.ENOENT, tmp_path / "nowhere")
    with pytest.raises(IsADirectoryError) as caught:
        OPENERS[name](tmp_path)
    check(caught.value, errno.EISDIR, tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError) as caught:
        OPENERS[name](tmp_path / "file" / "more")
    check(caught.value, errno.ENOTDIR, tmp_path / "file" / "more")


@pytest.mark.parametrize("name", OPENERS)
def test_a_pipe_is_refused_at_once(tmp_path, name):
    """To open one would wait for its writer."""
    os.mkfifo(tmp_path / "pipe")
    signal.alarm(60)  # ends the tests if it waits
    try:
        with pytest.raises(OSError, match="not a regular file") as caught:
            OPENERS[name](tmp_path / "pipe")
    finally:
        signal.alarm(0)
    check(caught.value, errno.EINVAL, tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", OPENERS)
def test_opening_what_one_may_not_read(tmp_path, name):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "file").chmod(0)
    with pytest.raises(PermissionError) as caught:
        OPENERS[name](tmp_path / "file")
    check(caught.value, errno.EACCES, tmp_path / "file")


@pytest.mark.parametrize("name", SAVED)
def test_saving(tmp_path, name):
    saved = SAVED[name]()
    with pytest.raises(FileNotFoundError) as caught:
        saved.save(tmp_path / "nowhere" / "file")
    check(caught.value, errno.ENOENT, tmp_path / "nowhere" / "file")
    with pytest.raises(IsADirectoryError) as caught:
        saved.save(tmp_path)
    check(caught.value, errno.EISDIR, tmp_path)


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk(tmp_path, monkeypatch, name):
    """Native writes go to a device that is full."""
    saved = SAVED[name]()
    (tmp_path / "temporary").write_bytes(b"")
    descriptor = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(_files, "_create", lambda *_: (tmp_path / "temporary", descriptor))
    with pytest.raises(OSError, match="No space left on device") as caught:
        saved.save(tmp_path / "file")
    check(caught.value, errno.ENOSPC, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_for_what_is_spilled(tmp_path):
    """The limit on the size of files stops temporary ones too."""
    code = """
import errno, resource, signal, sys
import numpy as np
import tamis
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
for fill in (
    lambda: tamis.Collection.build({"a": np.arange(10_000)}),
    lambda: tamis.Sharded.from_batches([np.arange(2 * 10**6)], fpr=0.1, directory=sys.argv[1]),
):
    try:
        fill()
    except OSError as error:
        assert (error.errno, error.strerror) == (errno.EFBIG, "File too large"), repr(error)
    else:
        raise AssertionError("nothing was spilled")
"""
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)
    assert list(tmp_path.iterdir()) == []
