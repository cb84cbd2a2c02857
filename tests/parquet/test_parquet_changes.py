"""Files that change, and damage: no row is missed."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import SOAK

import tamis
from tamis.parquet import SkippingIndex

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from lakes import agrees, build, flipped, full_scan, users  # noqa: E402


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
            least = ix._state.min_bytes
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
