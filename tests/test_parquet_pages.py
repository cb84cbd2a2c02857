"""Parquet files whose page headers claim more memory than the file is worth."""

import subprocess
import sys

import numpy as np
import pytest

import tamis

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from tamis._pages import chunk_start  # noqa: E402
from tamis.cli._input import Source  # noqa: E402
from tamis.parquet import SkippingIndex  # noqa: E402


def integer(value, width=0):
    """An integer in the compact protocol of Thrift, in at least this many bytes."""
    value, out = value << 1 ^ value >> 63, bytearray()
    while value > 127 or len(out) + 1 < width:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def read_integer(data, at):
    value = shift = 0
    while data[at] & 128:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    value |= data[at] << shift
    return value >> 1 ^ -(value & 1), at + 1


def forge(path, uncompressed=None, values=None, column=0):
    """Make the first page of a chunk claim this many bytes or values.

    Its header stays as long as it was: the checksum of the page makes room.
    """
    data = bytearray(path.read_bytes())
    start = chunk_start(pq.read_metadata(path).row_group(0).column(column))
    fields, at = [], start
    for _ in range(4):  # the type, the sizes, the checksum
        assert data[at] == 0x15
        value, at = read_integer(data, at + 1)
        fields.append(value)
    kind, real, compressed, _ = fields
    struct = data[at] + 0x10  # the next field but one, without the checksum
    count, end = read_integer(data, at + 2)
    head = b"".join(
        b"\x15" + integer(each)
        for each in (kind, real if uncompressed is None else uncompressed, compressed)
    )
    head += bytes([struct, 0x15])
    head += integer(count if values is None else values, end - start - len(head))
    assert len(head) == end - start
    data[start:end] = head
    path.write_bytes(data)


@pytest.fixture
def forged(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"s": [f"value {i % 9}" for i in range(300)], "n": np.arange(300)})
    pq.write_table(table, path, compression="zstd", write_page_checksum=True, use_dictionary=["s"])
    return path


def test_forging_keeps_a_file_readable(forged):
    forge(forged)
    assert pq.read_table(forged)["s"].to_pylist() == [f"value {i % 9}" for i in range(300)]


@pytest.mark.parametrize(
    ("column", "claims", "said"),
    [
        (0, {"uncompressed": 2**31 - 1}, "a page of .* bytes claims to have 2147483647"),
        (1, {"uncompressed": 2**31 - 1}, "a page of .* bytes claims to have 2147483647"),
        (0, {"uncompressed": -1}, "a page of .* bytes claims to have -1"),
        (0, {"values": 2**31 - 1}, "claims to have 2147483647 values"),
    ],
)
def test_claims_are_refused(forged, column, claims, said):
    index = SkippingIndex.build(forged, columns=["s", "n"], path=forged.parent / "i")
    forge(forged, column=column, **claims)
    before = pa.total_allocated_bytes()
    with pytest.raises(tamis.FormatError, match=rf"a.parquet: row group 0: .*{said}"):
        SkippingIndex.build(forged, columns=["s", "n"])
    with pytest.raises(tamis.FormatError, match=said):
        index.scan({"s": "value 5"})
    assert pa.default_memory_pool().max_memory() - before < 100 << 20


BOMB = """
import resource, sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
import tamis
from tamis.parquet import SkippingIndex
path = sys.argv[1]
if sys.argv[2] == "write":
    options = dict(compression="zstd", use_dictionary=False, data_page_size=2**30)
    options |= dict(max_rows_per_page=2**30, row_group_size=2**30)
    pq.write_table(pa.table({"n": np.zeros(10_000_000, np.int64)}), path, **options)
else:
    def memory():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    before = memory()
    for read in (
        lambda: SkippingIndex.build(path, columns=["n"]),
        lambda: tamis.Workload.load(path),
    ):
        try:
            read()
        except tamis.FormatError as error:
            assert "bytes claims to have 80000" in str(error), error
        else:
            raise AssertionError("it was read")
    print(memory() - before)
"""


def test_a_page_that_decompresses_to_far_more_is_refused(tmp_path):
    """It is 10,000 times as large as the file, so a larger file could take any memory."""
    path = tmp_path / "bomb.parquet"
    run = [sys.executable, "-c", BOMB, path]
    subprocess.run([*run, "write"], check=True)
    assert path.stat().st_size < 50_000
    done = subprocess.run([*run, "read"], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 100  # megabytes


def test_one_long_value_in_every_row_is_refused(tmp_path):
    """Its dictionary is small, but the text of all rows is not."""
    path, where = tmp_path / "a.parquet", {"n": 7}
    rows = 20_000
    long = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["x" * 500_000])
    table = pa.table({"s": long, "n": np.arange(rows)})
    pq.write_table(table, path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 300_000
    index = SkippingIndex.build(path, columns=["s", "n"])
    said = "s claims to have 10000000000 bytes of text in 20000 rows"
    for read in (
        lambda: index.scan(where),
        lambda: tamis.Workload.load(path),
        lambda: list(Source(str(path), column="s").read_keys()),
    ):
        with pytest.raises(tamis.FormatError, match=said):
            read()
    assert index.scan(where, columns=["n"]).num_rows == 1
    assert pa.default_memory_pool().max_memory() < 500 << 20


def test_a_workload_of_too_many_rows_is_refused(tmp_path):
    table = pa.table({"count": pa.repeat(1.0, 20_000_000)})
    pq.write_table(table.replace_schema_metadata({"tamis": "{}"}), tmp_path / "w")
    with pytest.raises(tamis.FormatError, match="it claims 20000000 rows in"):
        tamis.Workload.load(tmp_path / "w")
