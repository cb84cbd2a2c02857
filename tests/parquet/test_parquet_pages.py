"""Parquet files whose page headers claim more memory than the file is worth."""

import struct
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
        lambda: index.scan(where),  # it was not verified by the first one
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


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def deltas(total, per_block=128, parts=4):
    """The header of blocks of deltas, up to its first value, 0."""
    return varint(per_block) + varint(parts) + varint(total) + b"\0"


TEXT = [f"some text {i:04}" for i in range(3000)]
DELTA = {
    "DELTA_BINARY_PACKED": pa.array([i * i for i in range(3000)]),
    "DELTA_LENGTH_BYTE_ARRAY": pa.array(TEXT),
    "DELTA_BYTE_ARRAY": pa.array(TEXT),
}


def write_delta(path, encoding, compression="none", version="1.0", nulls=False):
    column = DELTA[encoding]
    if nulls:
        column = pa.concat_arrays([pa.nulls(5, column.type), column])
    table = pa.table({"c": column, "n": range(len(column))})
    pq.write_table(
        table,
        path,
        compression=compression,
        use_dictionary=False,
        column_encoding={"c": encoding},
        data_page_version=version,
    )
    return table


@pytest.mark.parametrize("encoding", DELTA)
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip", "lz4", "brotli"])
def test_delta_encodings_are_read(tmp_path, encoding, compression):
    path = tmp_path / "a.parquet"
    for version in ("1.0", "2.0"):
        for nulls in (False, True):
            table = write_delta(path, encoding, compression, version, nulls)
            index = SkippingIndex.build(path, columns=["c"])
            value = table["c"][77].as_py()
            assert index.scan({"c": value})["n"].to_pylist() == [77]
            assert index.scan({"c": "absent" if isinstance(value, str) else -1}).num_rows == 0


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize(
    ("encoding", "claim", "said"),
    [
        (
            "DELTA_LENGTH_BYTE_ARRAY",
            deltas(2**31 - 1, 2**31, 1) + bytes(2),
            "3000 values claims to have 2147483647 deltas",
        ),
        (
            "DELTA_BINARY_PACKED",
            deltas(2**31 - 1, 2**31, 1) + bytes(2),
            "3000 values claims to have 2147483647 deltas",
        ),
        (
            "DELTA_BINARY_PACKED",
            deltas(3000, 2**40, 2**30) + bytes(2),
            "3000 deltas in blocks of 1073741824 parts",
        ),
        # Every text has the one before as its prefix, and adds nothing.
        (
            "DELTA_BYTE_ARRAY",
            varint(2**20) + varint(1) + varint(3000) + varint(2 * 60_000) + bytes(2),
            "bytes of repeated prefixes",
        ),
        ("DELTA_BYTE_ARRAY", deltas(2**31 - 1, 2**31, 1), "claims to have 2147483647 deltas"),
        ("DELTA_BYTE_ARRAY", varint(2**70), "a block of deltas is damaged"),
    ],
    ids=["lengths", "integers", "parts", "prefixes", "prefix lengths", "damage"],
)
def test_delta_encodings_that_claim_more_are_refused(tmp_path, encoding, claim, said, compression):
    path = tmp_path / "a.parquet"
    write_delta(path, encoding, compression)
    index = SkippingIndex.build(path, columns=["c", "n"])
    forge_values(path, claim, compression)
    limit = pa.default_memory_pool().max_memory() + (300 << 20)
    for read in (
        lambda: SkippingIndex.build(path, columns=["c", "n"]),
        lambda: list(Source(str(path), column="c").read_keys()),
        lambda: index.scan({"n": 7}),
    ):
        with pytest.raises(tamis.FormatError, match=said):
            read()
    assert pa.default_memory_pool().max_memory() < limit


def forge_values(path, claim, compression):
    """Replace the first deltas of the first column; the page stays as long as it was."""
    data = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(0).column(0)
    end = chunk_start(chunk) + chunk.total_compressed_size
    at, sizes = chunk_start(chunk), []
    for _ in range(3):
        value, at = read_integer(data, at + 1)
        sizes.append(value)
    _, size, compressed = sizes
    page = bytes(data[end - compressed : end])
    if compression == "zstd":
        page = pa.decompress(page, size, "zstd", asbytes=True)
    page = bytearray(page)
    at = page.index(deltas(3000)[2:-1]) - 2  # after the size of a block, which has two bytes
    page[at:] = claim + bytes(len(page) - at - len(claim))
    if compression == "zstd":
        page = pa.Codec("zstd", compression_level=22).compress(bytes(page), asbytes=True)
        left = compressed - len(page) - 8
        page += struct.pack("<II", 0x184D2A50, left) + bytes(left)  # a frame that is skipped
    assert len(page) == compressed
    data[end - compressed : end] = page
    path.write_bytes(data)
