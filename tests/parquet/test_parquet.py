"""`tamis.parquet.SkippingIndex`: no row is missed, whatever changes, is damaged or is cut."""

import datetime
import decimal
import itertools
import os
import threading

import numpy as np
import pytest
from edge_values import TYPES as KEY_TYPES
from edge_values import arrow, scaled
from frames import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import SOAK

import tamis

pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")
pq = pytest.importorskip("pyarrow.parquet")
fs = pytest.importorskip("pyarrow.fs")

from tamis.parquet import RowGroup, SkippingIndex, manifest  # noqa: E402
from tamis.parquet.column_types import ACCEPTED, column_type  # noqa: E402
from tamis.parquet.predicate import Predicate, predicates  # noqa: E402

UTC = datetime.UTC

TYPES = {name: row for name, row in KEY_TYPES.items() if column_type(row[0])}


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


def test_columns_are_queried_together(lake):
    ix = build(lake, columns=["user", "n"])
    for where in ({"user": "user 5", "n": 5}, {"user": "user 5", "n": [102, 6, 7]}, {"n": 2999}):
        agrees(ix, lake, where)
    assert len(ix.row_groups({"n": 2999})) == 1  # the zones know
    assert ix.row_groups({"user": "nobody", "n": 6}) == []


@pytest.mark.parametrize("name", TYPES)
def test_every_type_finds_its_rows(tmp_path, name):
    kind, values = TYPES[name]
    column, nothing = arrow(values, kind), pa.nulls(1, kind)
    groups = [[column[i : i + 1], nothing, column[i : i + 1]] for i in range(len(values))]
    rows = [each for group in [*groups, [nothing] * 3] for each in group]
    numbers = [10 * i + j for i in range(len(groups) + 1) for j in range(3)]
    table = pa.table({"c": pa.chunked_array(rows), "n": numbers})
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


@pytest.mark.parametrize("first", ["nulls", "values"])
@pytest.mark.parametrize("name", TYPES)
def test_a_file_may_have_nothing_but_nulls(tmp_path, name, first):
    """Writers that infer types, such as pandas, have no type for such a column."""
    kind, values = TYPES[name]
    paths = {each: tmp_path / f"{int(each != first)}.parquet" for each in ("nulls", "values")}
    pq.write_table(pa.table({"c": pa.nulls(3), "n": [0, 1, 2]}), paths["nulls"])
    pq.write_table(pa.table({"c": arrow(values, kind), "n": range(len(values))}), paths["values"])
    with pytest.raises(TypeError, match="but 'c' is null"):
        SkippingIndex.build(paths["nulls"], columns=["c"])
    ix = build(tmp_path, columns=["c"])
    # A file that is not indexed yet.
    pq.write_table(pa.table({"c": pa.nulls(2), "n": [8, 9]}), tmp_path / "new.parquet")
    for index in (ix, SkippingIndex.open(tmp_path / "index.tamis")):
        for refreshed in (False, True):
            assert sorted(index.scan({"c": None})["n"].to_pylist()) == [0, 1, 2, 8, 9]
            for i, value in enumerate(values):
                assert index.scan({"c": value})["n"].to_pylist() == [i]
                assert index.dataset({"c": [value]}).to_table()["n"].to_pylist() == [i]
            assert index.refresh() == int(not refreshed)


@pytest.mark.parametrize("name", TYPES)
def test_a_value_has_the_key_of_its_column(name):
    kind, values = TYPES[name]
    column = arrow(values, kind)
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
    for i, value in enumerate(values):
        scalar = column[i]
        for equal in (*equal_values(value), *([scalar] if scalar.as_py() == value else [])):
            [[key]] = Predicate.of("c", column_type(kind), equal).keys
            assert (tamis.hash_keys([key]) == tamis.hash_keys(column[i : i + 1])).all()


def equal_values(value):
    """The same value in other forms."""
    yield value
    if isinstance(value, decimal.Decimal):
        sign, digits, exponent = value.as_tuple()
        for zeros in (1, 2, 7, 200):
            yield decimal.Decimal((sign, digits + zeros * (0,), exponent - zeros))
        if not value:
            yield from map(
                decimal.Decimal, ("0", "-0", "0.00", "-0.0", "0E+9", "0E-200", "0E+99999")
            )
    if isinstance(value, datetime.datetime) and value.tzinfo and 1 < value.year < 9999:
        yield value.astimezone(UTC)
        yield value.astimezone(datetime.timezone(datetime.timedelta(hours=14)))


@settings(max_examples=1000 if SOAK else 100)
@given(st.integers(1, 38), st.data())
def test_a_decimal_has_the_key_of_its_column(digits, data):
    kind = pa.decimal128(digits, data.draw(st.integers(0, digits)))
    unscaled = data.draw(st.integers(1 - 10**digits, 10**digits - 1))
    value = scaled(unscaled, kind.scale)
    [[key]] = Predicate.of("c", "decimal", value).keys
    assert (tamis.hash_keys([key]) == tamis.hash_keys(pa.array([value], kind))).all()


@pytest.mark.parametrize("text", ["0.00", "0", "-0.0", "0E+9", "0E-100"])
def test_a_decimal_zero_is_found(tmp_path, text):
    table = pa.table({"a": pa.array(map(decimal.Decimal, ("0.00", "1.50")), pa.decimal128(9, 2))})
    pq.write_table(table, tmp_path / "a.parquet")
    ix = SkippingIndex.build(tmp_path, columns=["a"])
    where = {"a": decimal.Decimal(text)}
    assert len(ix.row_groups(where)) == 1
    assert ix.scan(where).num_rows == ix.dataset(where).count_rows() == 1


@pytest.mark.parametrize("text", ["1E+2000000", "-1E+2000000", "1E-2000000", "1E+999999999999"])
def test_a_decimal_of_millions_of_digits_matches_nothing(tmp_path, text):
    table = pa.table({"a": pa.array([decimal.Decimal("9e6"), None], pa.decimal128(9, 2))})
    pq.write_table(table, tmp_path / "a.parquet")
    ix = SkippingIndex.build(tmp_path, columns=["a"])
    value = decimal.Decimal(text)
    assert ix.row_groups({"a": value}) == []
    assert ix.scan({"a": [value, 9_000_000]}).num_rows == 1
    assert ix.dataset({"a": value}).count_rows() == 0
    assert ix.dataset({"a": [value, None]}).count_rows() == 1


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
        {"d": decimal.Decimal("1e2000000")},
        {"d": decimal.Decimal("-1e999999")},
        {"d": decimal.Decimal("1e-999999")},
        {"d": decimal.Decimal("1." + "0" * 5000 + "1")},
        {"t": late},
        {"t": np.datetime64(2**62, "D")},
    ):
        assert ix.scan(where).num_rows == 0
        assert ix.dataset(where).to_table().num_rows == 0
    assert ix.scan({"d": decimal.Decimal("1." + "0" * 5000)}).num_rows == 1
    assert ix.scan({"i": [300, 1]}).num_rows == 1
    assert ix.scan({"t": np.datetime64("1970-01-01T00:00:01")}).num_rows == 1
    for unit in ("D", "h", "m", "ms", "us", "ns"):
        assert ix.scan({"t": np.datetime64("1970-01-01", unit)}).num_rows == 1
    assert ix.scan({"d": decimal.Decimal("1.000")}).num_rows == 1


def test_zero_is_one_value_whatever_its_scale(tmp_path):
    rows = pa.table({"d": pa.array([0, 1, 2, 3], pa.decimal128(9, 2))})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=1)
    ix = SkippingIndex.build(tmp_path, columns=["d"])
    for zero in ("0", "0.00", "-0.0", "0e50", "0e-999999"):
        assert ix.scan({"d": decimal.Decimal(zero)}).num_rows == 1


def test_bad_arguments_are_named(lake):
    ix = build(lake)
    with pytest.raises(ValueError, match="indexed columns 'user', not 'nobody'"):
        ix.row_groups({"nobody": 1})
    with pytest.raises(TypeError, match="where must be a dict of columns"):
        ix.row_groups("user")
    with pytest.raises(ValueError, match=r"limit must be .* not -1"):
        ix.scan({"user": "user 5"}, limit=-1)
    with pytest.raises(ValueError, match="for 3 files with 30 row groups, not 10"):
        ix.allocate(memory=10)
    with pytest.raises(FileNotFoundError, match="source matches no files"):
        SkippingIndex.build(lake / "*.nothing", columns="user")
    with pytest.raises(ValueError, match="columns must be among user, n, not 'x'"):
        SkippingIndex.build(lake, columns="x")
    with pytest.raises(ValueError, match="distinct names"):
        SkippingIndex.build(lake, columns=["n", "n"])
    pq.write_table(pa.table({"f": [1.5]}), lake / "floats.pq")
    with pytest.raises(TypeError, match=r"of type text, binary.*'f' is double"):
        SkippingIndex.build(lake / "floats.pq", columns=["f"])
    pq.write_table(pa.table({"user": [5]}), lake / "other.parquet")
    with pytest.raises(TypeError, match=r"column user must be text .* is int64 in .*other.parquet"):
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
    with pytest.raises(FileNotFoundError, match="source matches no files"):
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
    with pytest.raises(ValueError, match=r"built over .*0/\*\.parquet, .*other0, and without it"):
        SkippingIndex.open(lake / "index.tamis")
    ix = SkippingIndex.open(lake / "index.tamis", source=[lake / "*.parquet", other])
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
    for length in (0, 10, 300):
        path.write_bytes(content[:length])
        with pytest.raises(tamis.FormatError, match="not a skipping index"):
            SkippingIndex.open(path)
    for length in (len(content) // 2, len(content) - 1):  # the sources are at the beginning
        path.write_bytes(content[:length])
        agrees(SkippingIndex.open(path), lake, where)
        ix = SkippingIndex.open(path, source=lake / "*.parquet")
        agrees(ix, lake, where)
        assert ix.refresh() == 3
        agrees(SkippingIndex.open(path), lake, where)


@st.composite
def histories(draw):
    """What may happen to a lake and its index, with small numbers to make it happen."""
    step = st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3), st.integers(0, 40), st.booleans()),
        st.tuples(st.just("delete"), st.integers(0, 3)),
        st.tuples(st.just("remove"), st.integers(0, 3)),
        st.tuples(st.just("add"), st.integers(0, 3)),
        st.tuples(st.just("flip"), st.floats(0, 0.999)),
        st.tuples(st.just("allocate"), st.floats(0, 1)),
        st.tuples(st.sampled_from(["refresh", "open", "save"])),
    )
    return draw(st.lists(step, min_size=2, max_size=8))


def small(seed):
    """A table of which equal seeds give equal rows and all seeds equal lengths."""
    rng = np.random.default_rng(seed)
    names = [None if i == 0 else f"u{i:02}" for i in rng.integers(0, 20, 40).tolist()]
    return pa.table({"user": names, "n": rng.integers(0, 50, 40)})


def rows_of(files, where):
    """All rows that are as asked, as texts in order."""
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    return sorted(str(row) for row in rows if all(row[c] in wanted for c, wanted in where.items()))


@settings(max_examples=300 if SOAK else 12)
@given(histories(), st.integers(0, 2**32))
def test_whatever_happens_no_row_is_missed(tmp_path_factory, history, seed):
    folder = tmp_path_factory.mktemp("lake")
    path = folder / "index.tamis"
    files = [folder / f"{i}.parquet" for i in range(4)]
    plain = {"row_group_size": 8, "use_dictionary": False, "compression": "none"}
    for i in range(2):
        pq.write_table(small(seed + i), files[i], **plain)
    ix = SkippingIndex.build(folder / "*.parquet", columns=["user", "n"], path=path)
    out = set()
    for what, *rest in history:
        if what == "write":
            file, salt, keep = files[rest[0]], rest[1], rest[2]
            before = file.stat() if file.exists() else None
            pq.write_table(small(seed + salt), file, **plain)
            if keep and before and before.st_size == file.stat().st_size:
                os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        elif what == "delete":
            files[rest[0]].unlink(missing_ok=True)
        elif what in ("remove", "add"):
            file = files[rest[0]]
            there = file.exists() and (what == "add" or file not in out)
            if there:
                getattr(ix, what)(file)
                out = out - {file} if what == "add" else out | {file}
            else:
                with pytest.raises(FileNotFoundError):
                    getattr(ix, what)(folder / "9.parquet")
        elif what == "flip":
            whole = path.read_bytes()
            flipped(path, int(rest[0] * len(whole)))
            ix = SkippingIndex.open(path)
        elif what == "allocate":
            least = ix._state.least_bytes
            ix.allocate(memory=least + int(rest[0] * 2000), utility="accesses")
        elif what == "refresh":
            ix.refresh()
        elif what == "open":
            ix = SkippingIndex.open(path, hybrid=True)
        elif ix.stats.damaged == 0:
            ix.scan({"user": "u01"})
            if ix.stats.damaged == 0:
                ix.save()
        there = [file for file in files if file.exists() and file not in out]
        for where in ({"user": ["u01"]}, {"user": ["u02", "u03"], "n": list(range(25))}):
            expected = rows_of(there, where)
            assert sorted(str(row) for row in ix.scan(where).to_pylist()) == expected
            found = ix.dataset(where)
            assert sorted(str(row) for row in found.to_table().to_pylist()) == expected
            assert found.count_rows() == len(expected)
        if what == "flip":
            ix.refresh()  # else a second flip could leave nothing
        if what == "allocate":
            ix.allocate()  # else the index could outgrow what it was given


def test_other_engines_read_the_dataset(lake):
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    ix = build(lake)
    where = {"user": ["user 5", "user 6"]}
    expected = full_scan(lake.glob("*.parquet"), where)
    rows = ix.dataset(where)
    assert rows.count_rows() == len(expected)
    fetched = duckdb.sql("select user, n from rows where n < 1500 order by n").fetchall()
    few = [row for row in expected if row["n"] < 1500]
    assert fetched == [(row["user"], row["n"]) for row in few]
    assert duckdb.sql("select count(*) from rows").fetchall() == [(len(expected),)]
    frame = polars.scan_pyarrow_dataset(rows).filter(polars.col("n") < 1500).collect()
    assert frame.sort("n").to_dicts() == few
    assert polars.scan_pyarrow_dataset(rows).select(polars.len()).collect().item() == len(expected)
    assert ix.dataset().count_rows() == 3000


def test_a_limit_reads_the_most_used_first(lake):
    utility = np.arange(30.0)
    ix = build(lake, utility=utility)
    assert ix.row_groups({"user": "user 5"})[0] == RowGroup(str(lake / "2.parquet"), 9)
    found = ix.scan({"user": "user 5"}, limit=2)
    assert found.num_rows == 2
    assert ix.stats.read == 2
    assert min(found["n"].to_pylist()) > 2700
    assert ix.scan({"user": "user 5"}, limit=0).num_rows == 0
    assert ix.stats.read == 2
    assert ix.scan({"user": "user 5"}, limit=1000).num_rows == 29
    assert ix.scan({"user": "user 5"}, columns=["n"], limit=1).column_names == ["n"]


def test_counts_the_row_groups_that_it_decides_about(lake):
    ix = build(lake, columns=["user", "n"])

    def counts():
        return ix.stats.queries, ix.stats.considered, ix.stats.skipped

    where = {"n": [250, 1250, 2250]}  # in row groups 2, 12 and 22 of 30
    needed = len(ix.row_groups(where))
    assert needed >= 3
    assert counts() == (1, 30, 30 - needed)
    assert ix.stats.skip_rate == 1 - needed / 30
    ix.dataset(where)
    assert counts() == (2, 60, 2 * (30 - needed))
    assert ix.scan(where).num_rows == 3
    assert counts() == (3, 90, 3 * (30 - needed))
    assert ix.stats.read == needed
    # With a limit, those up to the last that was read; the others were not decided about.
    skipped, read = ix.stats.skipped, ix.stats.read
    assert ix.scan(where, limit=2)["n"].to_pylist() == [250, 1250]
    assert ix.stats.considered == 90 + 13
    assert ix.stats.skipped - skipped == 13 - (ix.stats.read - read)
    assert ix.scan(where, limit=0).num_rows == 0
    assert ix.stats.considered == 90 + 13
    assert ix.scan(where, limit=1000).num_rows == 3
    assert ix.stats.considered == 90 + 13 + 30
    # A file that has changed is read whole, without a decision.
    pq.write_table(users(0, 1500), lake / "0.parquet", row_group_size=100)
    ix.row_groups(where)
    assert ix.stats.considered == 90 + 13 + 30 + 20


def test_use_becomes_utility(lake):
    ix = build(lake)
    for _ in range(3):
        ix.scan({"user": "user 5"}, limit=1)
    used = np.flatnonzero(ix.accesses)
    assert used.tolist() == [0]
    ix.record([RowGroup(str(lake / "1.parquet"), 4)], rows=50)
    ix.record([RowGroup("elsewhere", 1), RowGroup(str(lake / "1.parquet"), 99)])
    ix.allocate(memory=ix._state.least_bytes + 500, utility="accesses")
    order = np.argsort(-ix.utility)
    assert order[:2].tolist() == [14, 0]
    # The mean of the rows: 50 of 100, and a hundredth of all spread evenly.
    assert ix.utility[14] == pytest.approx(0.5 + 0.01 * 0.53 / 30, rel=1e-3)
    assert ix.collection.kept[14] > ix.collection.kept[5]
    ix.save()
    assert SkippingIndex.open(lake / "index.tamis").utility == pytest.approx(ix.utility)
    with pytest.raises(ValueError, match="numbers or 'accesses', not 'use'"):
        ix.allocate(utility="use")


def test_a_column_says_the_utility_of_each_row(tmp_path):
    table = users(0, 400).append_column("weight", [np.arange(400) // 100 * 1.5])
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    ix = SkippingIndex.build(tmp_path, columns=["user"], utility="weight", path=tmp_path / "i")
    assert ix.utility.tolist() == [0, 1.5, 3, 4.5]
    pq.write_table(table.slice(300, 100), tmp_path / "b.parquet")
    ix.refresh()
    assert ix.utility.tolist() == [0, 1.5, 3, 4.5, 4.5]


@pytest.mark.parametrize("kind", ["ribbon", "segmented", "truncated"])
def test_memory_is_kept_to_and_no_row_lost(lake, kind):
    ix = build(lake, kind=kind, columns=["user", "n"])
    least, full = ix._state.least_bytes, ix.size_in_bytes
    rates = []
    for share in (1, 0.5, 0.2, 0):
        ix.allocate(memory=int(least + share * (full - least)))
        assert ix.size_in_bytes <= least + share * (full - least)
        rates.append(ix.expected_fpr)
        agrees(ix, lake, {"user": "user 5"})
    assert rates == sorted(rates)
    assert rates[-1] == 1.0
    hybrid = SkippingIndex.open(lake / "index.tamis", memory=least, hybrid=True)
    assert len(hybrid.row_groups({"user": "nobody at all"})) == 0
    assert hybrid.collection.tail_reads > 0


def test_equal_files_give_equal_bytes(lake):
    whole = []
    for threads in (1, 4):
        build(lake, threads=threads, progress=False)
        whole.append((lake / "index.tamis").read_bytes())
    assert whole[0] == whole[1]


def test_progress_is_shown_where_somebody_looks(lake, capsys):
    build(lake)
    assert capsys.readouterr().err == ""
    build(lake, progress=True)
    shown = capsys.readouterr().err
    assert "reading row groups" in shown
    assert "100%" in shown


def test_sources(lake):
    (lake / "deep" / "er").mkdir(parents=True)
    pq.write_table(users(0, 10), lake / "deep" / "er" / "x[1].parquet")
    pq.write_table(users(0, 10), lake / "_hidden.parquet")
    pq.write_table(users(0, 10), lake / ".also.parquet")

    def names(source):
        ix = SkippingIndex.build(source, columns="user")
        return sorted(os.path.relpath(path, lake) for path in ix.files)

    three, deep = ["0.parquet", "1.parquet", "2.parquet"], "deep/er/x[1].parquet"
    assert names(lake) == [*three, deep]
    assert names(lake / "[0-9].parquet") == three
    assert names(lake / "[!0].parquet") == three[1:]
    assert names(lake / "?.parquet") == three
    assert names(str(lake / "**" / "x*.parquet")) == [deep]
    assert names(lake / "*" / "*" / "*.parquet") == [deep]
    assert names([lake / "0.parquet", lake / "1.parquet", lake / "0.parquet"]) == three[:2]
    assert names(lake / deep) == [deep]
    assert names(f"file://{lake}/[0-9].parquet") == three
    assert names([f"file://{lake}/0.parquet", f"file://{lake}/deep"]) == [*three[:1], deep]
    with pytest.raises(TypeError, match="source must be a path, a pattern or a list"):
        SkippingIndex.build([5], columns="user")


def test_any_file_system_of_pyarrow(lake):
    below = fs.SubTreeFileSystem(str(lake), fs.LocalFileSystem())
    ix = SkippingIndex.build("*.parquet", columns=["user"], path=lake / "i", filesystem=below)
    assert ix.files == ["0.parquet", "1.parquet", "2.parquet"]
    expected = full_scan(lake.glob("*.parquet"), {"user": "user 5"})
    with pytest.raises(ValueError, match=r"source must be given: .* built over \*\.parquet, and"):
        SkippingIndex.open(lake / "i")
    with pytest.raises(ValueError, match=r"given with filesystem; .* built over \*\.parquet$"):
        SkippingIndex.open(lake / "i", filesystem=below)
    with pytest.raises(ValueError, match="filesystem must be the subtree file system of the index"):
        SkippingIndex.open(lake / "i", source="*.parquet")
    ix = SkippingIndex.open(lake / "i", source="*.parquet", filesystem=below)
    assert ix.scan({"user": "user 5"}).num_rows == len(expected)
    pq.write_table(pa.table({"user": ["user 5"], "n": [7]}), lake / "1.parquet")
    assert ix.scan({"user": "user 5"}).num_rows < len(expected)
    assert ix.stats.stale_files == 1
    for source in (None, "*.parquet"):
        with pytest.raises(
            TypeError, match="filesystem must be a file system of fsspec or pyarrow"
        ):
            SkippingIndex.open(lake / "i", source=source, filesystem=5)


def test_files_may_differ_in_width_and_columns(tmp_path):
    pq.write_table(
        pa.table({"id": pa.array([1, 2], pa.int32()), "n": [0, 1]}), tmp_path / "a.parquet"
    )
    pq.write_table(
        pa.table({"n": [2, 3], "id": pa.array([2, 2**40], pa.int64())}), tmp_path / "b.parquet"
    )
    pq.write_table(pa.table({"n": [4]}), tmp_path / "c.parquet")
    ix = SkippingIndex.build(tmp_path, columns=["id"])
    for value, rows in ((1, [0]), (2, [1, 2]), (2**40, [3]), (None, [4])):
        assert sorted(ix.scan({"id": value})["n"].to_pylist()) == rows
        assert sorted(ix.dataset({"id": value}).to_table()["n"].to_pylist()) == rows
    assert [os.path.basename(path) for path, _ in ix.row_groups({"id": 1})] == ["a.parquet"]


SOME_DECIMALS = [
    "decimal32(9, 2)",
    "decimal64(18, 0)",
    "decimal128(5, 5)",
    "decimal128(38, 0)",
    "decimal128(38, 19)",
    "decimal128(38, 38)",
]
PAIRS = [
    (one, other)
    for one, other in itertools.permutations(TYPES, 2)
    if column_type(TYPES[one][0]) == column_type(TYPES[other][0])
    and all("decimal" not in name or name in SOME_DECIMALS for name in (one, other))
]


def instant(value):
    """A value to compare: times in the hour that clocks go back equal none in another zone."""
    zoned = isinstance(value, datetime.datetime) and value.tzinfo
    return value.astimezone(UTC) if zoned else value


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_files_may_differ_in_type(tmp_path, one, other):
    rows = []
    for name in (one, other):
        kind, values = TYPES[name]
        if name == "timestamp ns" or "timestamp ns" in (one, other):
            values = [
                v for v in values if isinstance(v, datetime.datetime) and 1677 < v.year < 2262
            ]
        values = [*values, None]
        numbers = range(len(rows), len(rows) + len(values))
        table = pa.table({"c": arrow(values, kind), "n": numbers})
        pq.write_table(table, tmp_path / f"{len(rows)}.parquet", row_group_size=1)
        rows += values
    ix = SkippingIndex.build(tmp_path, columns=["c"], path=tmp_path / "i.tamis")
    for opened in (ix, SkippingIndex.open(tmp_path / "i.tamis")):
        for value in rows:
            expected = [n for n, row in enumerate(rows) if instant(row) == instant(value)]
            assert sorted(opened.scan({"c": value})["n"].to_pylist()) == expected
            found = opened.dataset({"c": [value]})
            assert sorted(found.to_table()["n"].to_pylist()) == expected
            assert found.count_rows() == len(expected)
            groups = opened.row_groups({"c": value})
            held = {
                n
                for path, g in groups
                for n in pq.ParquetFile(path).read_row_group(g)["n"].to_pylist()
            }
            assert held >= set(expected)
            assert value is None or len(held) < len(rows)


@pytest.mark.parametrize("zone", ["+05:30", "Europe/Paris"])
def test_files_may_differ_in_unit_and_zone(tmp_path, zone):
    """Without nulls, pyarrow compares the least and greatest value of a row group to that asked."""
    early, late = (datetime.datetime(year, 3, 31, 1, 30, tzinfo=UTC) for year in (1969, 2024))
    for name, kind in (("a", pa.timestamp("ns", "UTC")), ("b", pa.timestamp("ms", zone))):
        table = pa.table({"t": pa.array([early, late], kind), "n": range(2)})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    ix = SkippingIndex.build(tmp_path / "a.parquet", columns=["t"], path=tmp_path / "i.tamis")
    ix.add(tmp_path / "b.parquet")
    for opened in (ix, SkippingIndex.open(tmp_path / "i.tamis")):
        for where, rows in ((early, [0, 0]), ([early, late], [0, 0, 1, 1]), ([None, late], [1, 1])):
            assert sorted(opened.scan({"t": where})["n"].to_pylist()) == rows
            found = opened.dataset({"t": where})
            assert found.count_rows() == len(rows)
            assert sorted(found.to_table()["n"].to_pylist()) == rows


def test_a_time_beyond_the_unit_of_other_files_is_not_missed(tmp_path):
    soon, never = datetime.datetime(2024, 1, 1), datetime.datetime(9999, 12, 31)
    pq.write_table(pa.table({"t": pa.array([soon], pa.timestamp("ns"))}), tmp_path / "a.parquet")
    ix = SkippingIndex.build(tmp_path, columns=["t"])
    assert ix.dataset({"t": never}).count_rows() == 0
    pq.write_table(pa.table({"t": pa.array([never], pa.timestamp("us"))}), tmp_path / "b.parquet")
    ix.refresh()
    for where in (never, [soon, never]):
        with pytest.raises(tamis.FormatError, match=r"b\.parquet.*out of bounds"):
            ix.scan({"t": where})
        with pytest.raises(pa.ArrowInvalid, match="out of bounds"):
            ix.dataset({"t": where}).count_rows()
    assert ix.dataset({"t": soon}).count_rows() == 1


@pytest.mark.parametrize("columns", [None, [], ["user", "user"], [5], [["user"]]])
def test_columns_are_names(lake, columns):
    with pytest.raises(ValueError, match="columns must be one or more distinct names, not"):
        SkippingIndex.build(lake, columns=columns)


def test_a_new_file_may_have_a_wider_type(tmp_path):
    pq.write_table(pa.table({"i": pa.array([-1, 5], pa.int64())}), tmp_path / "a.parquet")
    ix = SkippingIndex.build(tmp_path, columns=["i"], path=tmp_path / "i.tamis")
    pq.write_table(pa.table({"i": pa.array([2**63 + 1, 5], pa.uint64())}), tmp_path / "b.parquet")
    for refreshed in (False, True):
        if refreshed:
            ix.refresh()
        for value, count in ((2**63 + 1, 1), (5, 2), (-1, 1), (2**63 - 1, 0)):
            assert ix.scan({"i": value}).num_rows == count
            assert ix.dataset({"i": value}).count_rows() == count


def test_an_index_may_lose_all_files(lake):
    ix = build(lake)
    ix.allocate(memory=ix._state.least_bytes)
    ix.remove(lake / "*.parquet")
    assert (len(ix), ix.scan({"user": "user 5"}).num_rows) == (0, 0)
    assert ix.add(lake / "1.parquet") == 1
    with pytest.raises(FileNotFoundError, match="no files of the index"):
        ix.remove(lake / "0.parquet")


def test_what_outgrows_its_memory_stays_as_it_was(lake):
    ix = build(lake)
    ix.allocate(memory=ix._state.least_bytes)
    pq.write_table(users(0, 500), lake / "new.parquet", row_group_size=10)
    ix.scan({"user": "user 5"}, limit=1)
    before = ix.accesses.tolist()
    with pytest.raises(ValueError, match="4 files with 80 row groups"):
        ix.refresh()
    assert ix.accesses.tolist() == before
    ix.allocate(memory=ix._state.least_bytes, utility="accesses")
    for bad in ([(ix.files[0], 0), 5], [(ix.files[0], 0), (ix.files[0], "one")]):
        with pytest.raises(TypeError):
            ix.record(bad)
    with pytest.raises(ValueError, match="rows must be"):
        ix.record([(ix.files[0], 0)], rows=-1)
    assert ix.accesses.tolist() == before
    agrees(ix, lake, {"user": "user 5"})
    assert len(SkippingIndex.open(lake / "index.tamis")) == 30


def test_answers_while_the_index_changes(lake):
    ix = build(lake)
    expected = len(full_scan(lake.glob("*.parquet"), {"user": "user 5"}))
    stop, wrong = threading.Event(), []

    def ask():
        while not stop.is_set():
            found = ix.scan({"user": "user 5"}).num_rows
            if found != expected:
                wrong.append(found)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(3):
        pq.write_table(pa.table({"user": ["nobody"], "n": [i]}), lake / "unready")
        os.replace(lake / "unready", lake / f"{i + 3}.parquet")
        ix.refresh()
        ix.allocate(memory=ix._state.least_bytes + 5000)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_look_lasts_as_long_as_set(lake):
    build(lake)
    ix = SkippingIndex.open(lake / "index.tamis", recheck=1000)
    before = ix.scan({"user": "user 5"}).num_rows
    pq.write_table(pa.table({"user": ["user 5"], "n": [1]}), lake / "new.parquet")
    assert ix.scan({"user": "user 5"}).num_rows == before
    assert SkippingIndex.open(lake / "index.tamis").scan({"user": "user 5"}).num_rows == before + 1


def test_a_golden_index(tmp_path):
    """The file stays readable: it was written over `users(0, 200)` in row groups of 50."""
    path = GOLDEN / "v1-skipping.tamis"
    opened = manifest.read(str(path))
    assert opened.intact
    assert opened.manifest.columns == {"user": "text", "n": "integer"}
    assert [(file.path, file.groups) for file in opened.manifest.files] == [("a.parquet", 4)]
    assert opened.manifest.rows.tolist() == [50] * 4
    zones = [[2**63 + 25 * i for i in range(4)], [2**63 + 25 * i + 24 for i in range(4)]]
    assert [ends[1].tolist() for ends in (opened.manifest.low, opened.manifest.high)] == zones
    pq.write_table(users(0, 200), tmp_path / "a.parquet", row_group_size=50)
    below = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    ix = SkippingIndex.open(path, source="a.parquet", filesystem=below)
    for i in range(200):
        answer, _ = ix._state.may_match(predicates({"n": i}, ix.columns))
        assert np.flatnonzero(answer).tolist() == [i // 50]
        if i % 17:
            answer, _ = ix._state.may_match(predicates({"user": f"user {i % 97}"}, ix.columns))
            assert answer[i // 50]
    assert ix.scan({"user": "user 5"})["n"].to_pylist() == [5, 199]


def test_columns_may_have_budgets_of_their_own(lake):
    ix = build(lake, columns=["user", "n"], hybrid=False)
    least = ix.size_in_bytes - ix.collection.size_in_bits // 8
    each = {"user": least // 2 + 3000, "n": least // 2 + 1000}
    for open_with in (each, {name: f"{size}B" for name, size in each.items()}):
        ix = SkippingIndex.open(lake / "index.tamis", memory=open_with, hybrid=False)
        assert ix.size_in_bytes <= sum(each.values())
        kept = ix.collection.kept
        assert 8 * 900 < kept[1::2].sum() <= 8 * 1000 + 8 * least
        assert kept[::2].sum() > 1.5 * kept[1::2].sum()
        agrees(ix, lake, {"user": "user 12"})
    with pytest.raises(ValueError, match="memory must have a budget for each of the columns"):
        ix.allocate(memory={"user": 10_000})
    with pytest.raises(ValueError, match=r"memory\['n'\] must be bytes or a size"):
        ix.allocate(memory={"user": 10_000, "n": "much"})
    pq.write_table(users(9000, 100), lake / "new.parquet", row_group_size=100)
    ix.refresh()
    agrees(ix, lake, {"n": 9005})


TEXT = [f"some text {i:04}" for i in range(3000)]
DELTA = {
    "DELTA_BINARY_PACKED": pa.array([i * i for i in range(3000)]),
    "DELTA_LENGTH_BYTE_ARRAY": pa.array(TEXT),
    "DELTA_BYTE_ARRAY": pa.array(TEXT),
}


@pytest.mark.parametrize("encoding", DELTA)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_delta_encodings_are_read(tmp_path, encoding, version):
    """pyarrow cannot read them as dictionaries, as other text is read."""
    column = pa.concat_arrays([pa.nulls(5, DELTA[encoding].type), DELTA[encoding]])
    table = pa.table({"c": column, "n": range(len(column))})
    options = {"use_dictionary": False, "column_encoding": {"c": encoding}}
    pq.write_table(table, tmp_path / "a.parquet", data_page_version=version, **options)
    index = SkippingIndex.build(tmp_path / "a.parquet", columns=["c"])
    value = column[77].as_py()
    assert index.scan({"c": value})["n"].to_pylist() == [77]
    assert index.scan({"c": "absent" if isinstance(value, str) else -1}).num_rows == 0
