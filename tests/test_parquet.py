"""`tamis.parquet.SkippingIndex`: no row is missed, whatever changes, is damaged or is cut."""

import datetime
import decimal
import os

import numpy as np
import pytest

import tamis

pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")
pq = pytest.importorskip("pyarrow.parquet")
fs = pytest.importorskip("pyarrow.fs")

from tamis.parquet import RowGroup, SkippingIndex  # noqa: E402
from tamis.parquet.columns import ACCEPTED, Predicate, family  # noqa: E402

UTC = datetime.UTC


def users(start, count, step=1):
    """A table of users of which each has a few rows, and some rows have none."""
    names = [None if i % 17 == 0 else f"user {i % 97}" for i in range(start, start + count, step)]
    return pa.table({"user": names, "n": np.arange(start, start + count, step)})


@pytest.fixture
def lake(tmp_path):
    """Three files of ten row groups each."""
    for i in range(3):
        pq.write_table(users(1000 * i, 1000), tmp_path / f"{i}.parquet", row_group_size=100)
    return tmp_path


def build(lake, **options):
    options.setdefault("columns", ["user"])
    return SkippingIndex.build(lake / "*.parquet", path=lake / "index.tamis", **options)


def full_scan(files, where):
    """All rows that are as asked, by reading every file: the obvious twin of `scan`."""
    rows = [row for file in sorted(files) for row in pq.ParquetFile(file).read().to_pylist()]
    for column, wanted in where.items():
        wanted = wanted if isinstance(wanted, list) else [wanted]
        rows = [row for row in rows if row.get(column) in wanted]
    return sorted(rows, key=lambda row: row["n"])


def agrees(ix, folder, where):
    """Whether scan, dataset and row groups have every row that a full scan has, and no other."""
    files = [str(path) for path in folder.glob("*.parquet")]
    expected = full_scan(files, where)
    for table in (ix.scan(where), ix.dataset(where).to_table()):
        assert sorted(table.to_pylist(), key=lambda row: row["n"]) == expected
    assert ix.dataset(where).count_rows() == len(expected)
    held = [
        row
        for path, number in ix.row_groups(where)
        for row in pq.ParquetFile(path).read_row_group(number).to_pylist()
    ]
    assert all(row in held for row in expected)


def test_rows_are_found_and_row_groups_skipped(lake):
    ix = build(lake)
    for where in ({"user": "user 5"}, {"user": ["user 5", "user 6"]}, {"user": "nobody"}):
        agrees(ix, lake, where)
    assert ix.row_groups({"user": "nobody"}) == []
    assert ix.row_groups({"user": []}) == []
    assert 0.0 < ix.stats.skip_rate < 1.0
    first = ix.row_groups({"user": "user 5"})[0]
    assert isinstance(first, RowGroup)
    assert first.path.endswith(".parquet")
    assert len(ix) == 30
    assert repr(ix) == "<tamis.parquet.SkippingIndex: 3 files, 30 row groups, columns user>"


def test_a_null_never_prunes(lake):
    ix = build(lake)
    assert len(ix.row_groups({"user": None})) == 30
    assert len(ix.row_groups({"user": ["user 5", None]})) == 30
    agrees(ix, lake, {"user": None})
    agrees(ix, lake, {"user": ["user 5", None]})


def test_columns_are_asked_together(lake):
    ix = build(lake, columns=["user", "n"])
    for where in ({"user": "user 5", "n": 5}, {"user": "user 5", "n": [102, 6, 7]}, {"n": 2999}):
        agrees(ix, lake, where)
    assert len(ix.row_groups({"n": 2999})) == 1  # the zones know
    assert ix.row_groups({"user": "nobody", "n": 6}) == []


TYPES = {
    "string": (pa.string(), ["", "a", "ä" * 9, "longer than eight bytes"]),
    "large_string": (pa.large_string(), ["x", "y"]),
    "string_view": (pa.string_view(), ["x", "longer than twelve bytes"]),
    "binary": (pa.binary(), [b"", b"\xff\x00", b"abcdefghij"]),
    "large_binary": (pa.large_binary(), [b"abc"]),
    "fixed": (pa.binary(4), [b"abcd", b"\0\0\0\0"]),
    "int8": (pa.int8(), [-128, 0, 127]),
    "int64": (pa.int64(), [-(2**63), -1, 0, 2**63 - 1]),
    "uint64": (pa.uint64(), [0, 2**63, 2**64 - 1]),
    "uint16": (pa.uint16(), [0, 65535]),
    "date32": (pa.date32(), [datetime.date(1, 1, 1), datetime.date(2024, 2, 29)]),
    "date64": (pa.date64(), [datetime.date(1969, 12, 31)]),
    "timestamp s": (pa.timestamp("s"), [datetime.datetime(1900, 1, 1)]),
    "timestamp us": (pa.timestamp("us"), [datetime.datetime(2024, 1, 1, 0, 0, 0, 1)]),
    "timestamp ns": (pa.timestamp("ns"), [datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)]),
    "zone": (pa.timestamp("ms", "Europe/Paris"), [datetime.datetime(2024, 6, 1, tzinfo=UTC)]),
    "decimal": (
        pa.decimal128(20, 3),
        [
            decimal.Decimal("0"),
            decimal.Decimal("-1.250"),
            decimal.Decimal("7"),
            decimal.Decimal("1e16"),
        ],
    ),
    "wide decimal": (pa.decimal128(38, 0), [decimal.Decimal(10**37), decimal.Decimal(-(10**30))]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b"]),
}


@pytest.mark.parametrize("name", TYPES)
def test_every_type_finds_its_rows(tmp_path, name):
    kind, values = TYPES[name]
    groups = [[value, None, value] for value in values] + [[None, None, None]]
    table = pa.concat_tables(
        [
            pa.table({"c": pa.array(rows, kind), "n": [10 * i, 10 * i + 1, 10 * i + 2]})
            for i, rows in enumerate(groups)
        ]
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    ix = SkippingIndex.build(tmp_path, columns=["c"], path=tmp_path / "index.tamis")
    ix = SkippingIndex.open(tmp_path / "index.tamis")
    for i, value in enumerate(values):
        assert RowGroup(str(tmp_path / "a.parquet"), i) in ix.row_groups({"c": value})
        found = ix.scan({"c": value}, columns=["n"])["n"].to_pylist()
        assert found == [10 * i, 10 * i + 2]
        assert ix.dataset({"c": [value]}).to_table(columns=["n"])["n"].to_pylist() == found
    every = sorted(ix.scan({"c": values}, columns=["n"])["n"].to_pylist())
    assert every == [n for i in range(len(values)) for n in (10 * i, 10 * i + 2)]


@pytest.mark.parametrize("name", TYPES)
def test_a_value_has_the_key_of_its_column(name):
    kind, values = TYPES[name]
    column = pa.array(values, kind)
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
    for i, value in enumerate(values):
        [[key]] = Predicate.of("c", family(kind), value).keys
        assert (tamis.hash_keys([key]) == tamis.hash_keys(column[i : i + 1])).all()


WRONG = {
    "text": [1, b"a", 1.5, True],
    "binary": ["a", 1, bytearray(b"a")],
    "integer": ["1", True, 1.0, decimal.Decimal(1)],
    "date": [datetime.datetime(2024, 1, 1), "2024-01-01", 5],
    "timestamp": [datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 1, tzinfo=UTC), 5],
    "timestamp with zone": [datetime.datetime(2024, 1, 1), "now", np.datetime64("2024-01-01")],
    "decimal": [1.5, "1", decimal.Decimal("nan"), True],
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_a_value_of_another_type_is_refused(kind):
    for value in WRONG[kind]:
        with pytest.raises(TypeError) as raised:
            Predicate.of("amount", kind, [value])
        for part in ("amount", repr(value), ACCEPTED[kind]):
            assert part in str(raised.value)


def test_values_that_no_column_can_hold_match_nothing(tmp_path):
    table = pa.table(
        {
            "i": pa.array([1, 2], pa.int8()),
            "d": pa.array([1, 2], pa.decimal128(5, 1)),
            "t": pa.array([0, 1], pa.timestamp("s")),
            "n": [0, 1],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    ix = SkippingIndex.build(tmp_path, columns=["i", "d", "t"])
    late = datetime.datetime(1970, 1, 1, 0, 0, 0, 1)
    for where in (
        {"i": 2**70},
        {"i": 300},
        {"d": decimal.Decimal("1.05")},
        {"d": 10**60},
        {"t": late},
    ):
        assert ix.scan(where).num_rows == 0
    assert ix.scan({"i": [300, 1]}).num_rows == 1
    assert ix.scan({"t": np.datetime64("1970-01-01T00:00:01")}).num_rows == 1
    assert ix.scan({"d": decimal.Decimal("1.000")}).num_rows == 1


def test_questions_that_make_no_sense_are_refused(lake):
    ix = build(lake)
    with pytest.raises(ValueError, match="'nobody'; the index has the columns user"):
        ix.row_groups({"nobody": 1})
    with pytest.raises(TypeError, match="a dict of columns"):
        ix.row_groups("user")
    with pytest.raises(ValueError, match="limit is -1"):
        ix.scan({"user": "user 5"}, limit=-1)
    with pytest.raises(ValueError, match="memory is 10 bytes; 3 files with 30 row groups take"):
        ix.allocate(memory=10)
    with pytest.raises(FileNotFoundError, match="no such files"):
        SkippingIndex.build(lake / "*.nothing", columns="user")
    with pytest.raises(ValueError, match="columns has 'x'; the files have user, n"):
        SkippingIndex.build(lake, columns="x")
    with pytest.raises(ValueError, match="each once"):
        SkippingIndex.build(lake, columns=["n", "n"])
    pq.write_table(pa.table({"f": [1.5]}), lake / "floats.pq")
    with pytest.raises(TypeError, match="which is double; columns of text, binary"):
        SkippingIndex.build(lake / "floats.pq", columns=["f"])
    pq.write_table(pa.table({"user": [5]}), lake / "other.parquet")
    with pytest.raises(
        TypeError, match=r"user is int64 in .*other.parquet; in other files it holds text"
    ):
        build(lake)


def test_files_that_change_are_read(lake):
    ix = build(lake)
    changed = lake / "1.parquet"
    agrees(ix, lake, {"user": "late"})
    table = pq.read_table(changed)
    names = table["user"].to_pylist()
    names[30] = "latest!"
    plain = {"row_group_size": 100, "use_dictionary": False, "compression": "none"}
    pq.write_table(table.set_column(0, "user", [names]), changed, **plain)
    agrees(ix, lake, {"user": names[30]})
    ix.refresh()
    # Of the same size and time: the footer tells.
    before = changed.stat()
    names[30] = "newest!"
    pq.write_table(table.set_column(0, "user", [names]), changed, **plain)
    assert changed.stat().st_size == before.st_size
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    agrees(ix, lake, {"user": names[30]})
    assert ix.stats.stale_files == 1
    agrees(SkippingIndex.open(lake / "index.tamis"), lake, {"user": names[30]})
    assert ix.refresh() == 1
    agrees(ix, lake, {"user": names[30]})
    assert ix.stats.stale_files == 0
    assert len(ix.row_groups({"user": names[30]})) == 1
    assert ix.refresh() == 0


def test_files_that_come_and_go(lake):
    ix = build(lake)
    pq.write_table(users(5000, 50), lake / "new.parquet")
    agrees(ix, lake, {"user": "user 60"})
    assert ix.stats.unknown_files == 1
    (lake / "0.parquet").unlink()
    agrees(ix, lake, {"user": "user 60"})
    assert ix.refresh() == 1
    assert len(ix.files) == 3
    agrees(ix, lake, {"user": "user 60"})
    agrees(SkippingIndex.open(lake / "index.tamis"), lake, {"user": "user 60"})
    with pytest.raises(FileNotFoundError, match="no such files"):
        ix.add(lake / "absent.parquet")


def test_files_are_added_and_removed(lake, tmp_path_factory):
    ix = build(lake)
    other = tmp_path_factory.mktemp("other")
    pq.write_table(users(9000, 300), other / "b.parquet", row_group_size=100)
    assert ix.scan({"user": "user 5"}).num_rows == 29
    assert ix.add(other) == 1
    assert len(ix) == 33
    assert ix.scan({"user": "user 5"}).num_rows == 32
    ix.remove(other / "b.parquet")
    assert ix.scan({"user": "user 5"}).num_rows == 29
    ix.remove([lake / "0.parquet"])
    ix = SkippingIndex.open(lake / "index.tamis")
    assert [path[-9:] for path in ix.files] == ["1.parquet", "2.parquet"]
    left = ix.scan({"user": "user 5"}).num_rows
    assert left == len(full_scan([lake / "1.parquet", lake / "2.parquet"], {"user": "user 5"}))
    assert ix.add(lake / "0.parquet") == 1
    agrees(ix, lake, {"user": "user 5"})


def flipped(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << place % 8
    path.write_bytes(content)


def test_whatever_byte_is_damaged_no_row_is_missed(lake):
    build(lake)
    path, where = lake / "index.tamis", {"user": "user 5"}
    whole = path.read_bytes()
    expected = len(full_scan(lake.glob("*.parquet"), where))
    places = sorted(
        {*range(0, len(whole), 997), *range(0, 300, 13), *range(len(whole) - 60, len(whole), 3)}
    )
    damaged = 0
    for place in places:
        flipped(path, place)
        ix = SkippingIndex.open(path)
        groups = ix.row_groups(where)
        held = (
            sum(
                pq.ParquetFile(p).read_row_group(g)["user"].to_pylist().count("user 5")
                for p, g in groups
            )
            if place % 5 == 0
            else expected
        )
        assert held == expected
        assert len(groups) >= 27
        damaged += ix.stats.damaged > 0 or ix.stats.unknown_files > 0
        path.write_bytes(whole)
    assert damaged > len(places) / 2


def test_a_damaged_index_is_made_anew(lake):
    build(lake)
    path, where = lake / "index.tamis", {"user": "user 5"}
    for place in (3, 5000, path.stat().st_size - 5, path.stat().st_size - 400):
        flipped(path, place)
        ix = SkippingIndex.open(path)
        agrees(ix, lake, where)
        ix.refresh()
        assert ix.stats.damaged >= 0
        again = SkippingIndex.open(path)
        agrees(again, lake, where)
        assert (again.stats.damaged, again.stats.unknown_files) == (0, 0)
    content = path.read_bytes()
    for length in (0, 10, 300, len(content) // 2):
        path.write_bytes(content[:length])
        with pytest.raises(tamis.FormatError, match="no skipping index"):
            SkippingIndex.open(path)
        ix = SkippingIndex.open(path, source=lake / "*.parquet")
        agrees(ix, lake, where)
        assert ix.refresh() == 3
        agrees(SkippingIndex.open(path), lake, where)
