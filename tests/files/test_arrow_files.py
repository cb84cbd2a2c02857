"""Arrow files and streams that claim more memory or rows than they are worth."""

import contextlib
import io
import resource
import struct
import subprocess
import sys

import pytest

import tamis
from tamis.cli._input import Source

pa = pytest.importorskip("pyarrow")
ipc = pytest.importorskip("pyarrow.ipc")

MEMORY = 100  # megabytes that reading may take


def written(form, table, compression=None):
    buffer = io.BytesIO()
    options = ipc.IpcWriteOptions(compression=compression)
    make = ipc.new_stream if form == "stream" else ipc.new_file
    with make(buffer, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytearray(buffer.getvalue())


def read(tmp_path, data):
    (tmp_path / "a.arrow").write_bytes(data)
    batches = list(Source(str(tmp_path / "a.arrow"), format="arrow").read_keys())
    return [key for batch in batches for key in batch.to_pylist()]


TEXT = [f"value {i}" for i in range(1000)]


@pytest.mark.parametrize("form", ["stream", "file"])
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_honest_files_are_read(tmp_path, form, compression):
    table = pa.table({"c": TEXT})
    assert read(tmp_path, written(form, table, compression)) == TEXT
    coded = pa.table({"c": pa.array(TEXT * 2).dictionary_encode()})
    assert read(tmp_path, written(form, coded, compression)) == TEXT * 2
    batches = pa.Table.from_batches(table.to_batches() * 3)
    assert read(tmp_path, written(form, batches, compression)) == TEXT * 3


@pytest.mark.parametrize("form", ["stream", "file"])
@pytest.mark.parametrize("size", [4 * 1001, sum(map(len, TEXT))])
def test_buffers_that_claim_far_more_are_refused(tmp_path, form, size):
    data = written(form, pa.table({"c": TEXT}), "zstd")
    magic = struct.pack("<I", 0xFD2FB528)  # of Zstandard, after the length of the buffer
    at = data.index(struct.pack("<q", size) + magic)
    data[at : at + 8] = struct.pack("<q", 1 << 40)
    with pytest.raises(tamis.FormatError, match=r"a buffer of \d+ bytes claims to have 1099511"):
        read(tmp_path, data)


@pytest.mark.parametrize("form", ["stream", "file"])
def test_batches_that_claim_far_more_rows_are_refused(tmp_path, form):
    """A column of nulls has no buffers, so that nothing else says how many there are."""
    data = written(form, pa.table({"c": pa.nulls(123_457)}))
    changed = data.replace(struct.pack("<q", 123_457), struct.pack("<q", 1 << 60))
    assert changed != data
    with pytest.raises(tamis.FormatError, match=r"claims to have 1152921504606846976 rows"):
        read(tmp_path, changed)


BOMB = """
import resource, sys
import pyarrow as pa, pyarrow.ipc as ipc
from tamis.cli._input import Source
path, form, step = sys.argv[1:]
if step == "write":
    buffer = pa.py_buffer(bytes(400 << 20))
    zeros = pa.table({"c": pa.Array.from_buffers(pa.int64(), 50 << 20, [None, buffer])})
    make = ipc.new_stream if form == "stream" else ipc.new_file
    with make(path, zeros.schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(zeros)
else:
    def memory():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    before = memory()
    try:
        list(Source(path).read_keys())
    except ValueError as error:
        assert "claims to have 419430400" in str(error), error
    else:
        raise AssertionError("it was read")
    print(memory() - before)
"""


@pytest.mark.parametrize("form", ["stream", "file"])
def test_a_bomb_takes_no_memory(tmp_path, form):
    """Zeros compress a thousandfold and more, so that a small file could take any memory."""
    run = [sys.executable, "-c", BOMB, tmp_path / "bomb", form]
    subprocess.run([*run, "write"], check=True)
    assert (tmp_path / "bomb").stat().st_size < 100_000
    done = subprocess.run([*run, "read"], check=True, capture_output=True, text=True)
    assert int(done.stdout) < MEMORY


@pytest.mark.parametrize("form", ["stream", "file"])
def test_a_body_that_is_not_there_takes_no_memory(tmp_path, form):
    """The length of a body is in its message, and in the footer of a file."""
    data = written(form, pa.table({"c": list(range(1000))}))
    length = struct.pack("<q", 8000)
    assert length in data
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for claimed in (1 << 40, -5, 2**62):
        with pytest.raises((ValueError, OSError)):
            read(tmp_path, data.replace(length, struct.pack("<q", claimed)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY << 10


@pytest.mark.parametrize("form", ["stream", "file"])
def test_changed_and_cut_files_are_refused_or_read(tmp_path, form):
    data = written(form, pa.table({"c": TEXT[:50]}), "zstd")
    for at in range(0, len(data), 5):
        for value in (0, 255, data[at] ^ 1, data[at] ^ 128):
            changed = bytearray(data)
            changed[at] = value
            refused_or_read(tmp_path, changed)
        refused_or_read(tmp_path, data[:at])


def refused_or_read(tmp_path, data):
    with contextlib.suppress(ValueError, TypeError, OSError, pa.ArrowException):
        read(tmp_path, data)
