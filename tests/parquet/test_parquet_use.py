"""Engines, budgets, sources, and files that differ."""

import datetime
import itertools
import os
import threading

import numpy as np
import pytest
from edge_values import arrow
from frames import GOLDEN

import tamis
from tamis.parquet import RowGroup, SkippingIndex, manifest
from tamis.parquet.column_types import column_type
from tamis.parquet.predicate import predicates

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from lakes import TYPES, UTC, agrees, build, full_scan, users  # noqa: E402

fs = pytest.importorskip("pyarrow.fs")


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
    ix.allocate(memory=ix._state.min_bytes + 500, utility="accesses")
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
    least, full = ix._state.min_bytes, ix.size_in_bytes
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


def test_a_kind_that_cannot_be_cut_is_refused(lake):
    """Such an index could be built, and not opened again."""
    with pytest.raises(ValueError, match=r"kind must be .*truncated.*, not 'sliced'"):
        SkippingIndex.build(lake / "*.parquet", columns=["user"], kind="sliced")


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
    ix.allocate(memory=ix._state.min_bytes)
    ix.remove(lake / "*.parquet")
    assert (len(ix), ix.scan({"user": "user 5"}).num_rows) == (0, 0)
    assert ix.add(lake / "1.parquet") == 1
    with pytest.raises(FileNotFoundError, match="no files of the index"):
        ix.remove(lake / "0.parquet")


def test_what_outgrows_its_memory_stays_as_it_was(lake):
    ix = build(lake)
    ix.allocate(memory=ix._state.min_bytes)
    pq.write_table(users(0, 500), lake / "new.parquet", row_group_size=10)
    ix.scan({"user": "user 5"}, limit=1)
    before = ix.accesses.tolist()
    with pytest.raises(ValueError, match="4 files with 80 row groups"):
        ix.refresh()
    assert ix.accesses.tolist() == before
    ix.allocate(memory=ix._state.min_bytes, utility="accesses")
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
        ix.allocate(memory=ix._state.min_bytes + 5000)
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
