"""Files that `tamis.parquet` must not trust: of strangers, damaged, forged, or part of a table."""

import os
import re
import subprocess
import sys

import pytest

import tamis

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
fs = pytest.importorskip("pyarrow.fs")

from lakes import build, flipped, forge, full_scan, users, with_sources  # noqa: E402

from tamis.parquet import RowGroup, SkippingIndex  # noqa: E402


@pytest.fixture
def lake(tmp_path):
    """Three files of ten row groups each."""
    for i in range(3):
        pq.write_table(users(1000 * i, 1000), tmp_path / f"{i}.parquet", row_group_size=100)
    return tmp_path


TABLES = {
    "Delta": "_delta_log/00000000000000000000.json",
    "Iceberg": "metadata/v1.metadata.json",
    "Hudi": ".hoodie/hoodie.properties",
}


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("name", TABLES)
def test_the_folder_of_a_table_is_refused(tmp_path, name, remote):
    table = tmp_path / "lake" / "table"
    (table / "data").mkdir(parents=True)
    for path in (table / "a.parquet", table / "data" / "b.parquet"):
        pq.write_table(users(0, 100), path)
    filesystem = fs.SubTreeFileSystem("/", fs.LocalFileSystem()) if remote else None
    options = {"columns": ["user"], "path": tmp_path / "i.tamis", "filesystem": filesystem}
    before = SkippingIndex.build(str(tmp_path / "lake"), **options)
    (table / "metadata").mkdir()  # a folder of this name is not yet a table
    assert before.scan({"user": "user 5"}).num_rows == 2
    log = table / TABLES[name]
    log.parent.mkdir(exist_ok=True)
    log.write_text("{}")
    said = rf"folder of a {name} table.*/lake/table has .*current files instead"
    for source in (
        tmp_path / "lake",
        table,
        table / "*.parquet",
        table / "data",
        table / "data" / "*.parquet",
        tmp_path / "lake" / "**" / "*.parquet",
    ):
        with pytest.raises(ValueError, match=said):
            SkippingIndex.build(str(source), **options)
        with pytest.raises(ValueError, match=said):
            SkippingIndex.open(
                tmp_path / "i.tamis", source=str(source), filesystem=filesystem
            ).dataset()
    for query in (before.scan, before.row_groups, before.dataset):
        with pytest.raises(ValueError, match=said):
            query({"user": "user 5"})
    with pytest.raises(ValueError, match=said):
        before.add(str(table))
    files = [str(table / "a.parquet"), str(table / "data" / "b.parquet")]
    ix = SkippingIndex.build(files[:1], **options)
    assert ix.scan({"user": "user 5"}).num_rows == 1
    ix = SkippingIndex.open(tmp_path / "i.tamis", source=files, filesystem=filesystem)
    assert ix.scan({"user": "user 5"}).num_rows == 2
    assert ix.stats.unknown_files == 1


STRANGE = {
    "absolute": {"sources": ["{other}/*.parquet"]},
    "a file": {"sources": ["{other}/secret.parquet"]},
    "system": {"sources": ["/etc"]},
    "root": {"sources": ["/"]},
    "among others": {"sources": ["{lake}/*.parquet", "{other}"]},
    "dots": {"sources": ["{lake}/../other/*.parquet"]},
    "dots and back": {"sources": ["{lake}/x/../../other"]},
    "pattern and dots": {"sources": ["{lake}/../oth*/*.parquet"]},
    "relative": {"sources": ["*.parquet"]},
    "prefix of the name": {"sources": ["{lake}2/*.parquet"]},
    "linked folder": {"sources": ["{lake}/link"]},
    "linked file": {"sources": ["{lake}/link.parquet"]},
    "below a link": {"sources": ["{lake}/link/*.parquet"]},
    "file URI": {"sources": ["{other}"], "uri": "file"},
    "bucket": {"sources": ["bucket/*.parquet"], "uri": "s3", "filesystem": "s3"},
    "bucket as local": {"sources": ["bucket/*.parquet"], "uri": "s3", "filesystem": "local"},
    "scheme": {"sources": ["{lake}"], "uri": "gs", "filesystem": "local"},
    "other file system": {"sources": ["{lake}"], "filesystem": "py::fsspec+http"},
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_stranger_cannot_name_what_is_opened(tmp_path, monkeypatch, name):
    lake, other = tmp_path / "lake", tmp_path / "other"
    for folder in (lake, other, tmp_path / "lake2"):
        folder.mkdir()
        pq.write_table(users(0, 100), folder / "secret.parquet")
    build(lake)
    (lake / "link").symlink_to(other)
    (lake / "link.parquet").symlink_to(other / "secret.parquet")
    changed = dict(STRANGE[name])
    changed["sources"] = [each.format(lake=lake, other=other) for each in changed["sources"]]
    forge(lake / "index.tamis", with_sources(**changed))
    monkeypatch.chdir(other)
    monkeypatch.setattr(os, "scandir", None)
    monkeypatch.setattr("tamis.parquet.file_set.list_remote", None)
    with pytest.raises(
        ValueError, match="source must be given: the index was built over"
    ) as raised:
        SkippingIndex.open(lake / "index.tamis")
    assert changed["sources"][-1] in str(raised.value)
    monkeypatch.undo()
    options = {"source": lake / "secret.parquet", "filesystem": fs.LocalFileSystem()}
    ix = SkippingIndex.open(lake / "index.tamis", **options)
    assert ix.scan({"user": "user 5"}).num_rows == 1
    assert ix.stats.unknown_files == 0


def test_a_link_does_not_lead_out_of_the_folder_of_an_index(tmp_path):
    lake, other = tmp_path / "lake", tmp_path / "other"
    for folder in (lake, lake / "deep", other):
        folder.mkdir()
        pq.write_table(users(0, 100), folder / "a.parquet")
    SkippingIndex.build(lake, columns=["user"], path=lake / "index.tamis")
    where = {"user": "user 5"}
    (lake / "within").symlink_to(lake / "deep")
    assert SkippingIndex.open(lake / "index.tamis").scan(where).num_rows == 3
    (lake / "deep" / "above").symlink_to(lake)
    assert SkippingIndex.open(lake / "index.tamis").scan(where).num_rows == 3
    for target in (other, other / "a.parquet", tmp_path / "nowhere", "/"):
        (lake / "deep" / "b.parquet").symlink_to(target)
        ix = SkippingIndex.open(lake / "index.tamis")
        for query in (ix.scan, ix.row_groups, ix.dataset):
            with pytest.raises(ValueError, match=r"source must be given: .*b.parquet is a link to"):
                query(where)
        (lake / "deep" / "b.parquet").unlink()
    (lake / "deep" / "b.parquet").symlink_to(other / "a.parquet")
    ix = SkippingIndex.open(lake / "index.tamis", source=lake)
    assert ix.scan(where).num_rows == 5


def test_an_index_opens_wherever_its_data_is_below_it(tmp_path, monkeypatch):
    lake, where = tmp_path / "a" / "lake", {"user": "user 5"}
    lake.mkdir(parents=True)
    pq.write_table(users(0, 100), lake / "[1].parquet")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    monkeypatch.chdir(tmp_path / "a")
    for source in (
        lake,
        "lake",
        "lake/*.parquet",
        lake / "[1].parquet",
        tmp_path / "link" / "lake",
    ):
        for path in (
            lake / "i.tamis",
            "i.tamis",
            tmp_path / "i.tamis",
            tmp_path / "link" / "i.tamis",
        ):
            SkippingIndex.build(source, columns=["user"], path=path)
            ix = SkippingIndex.open(path)
            assert ix.scan(where).num_rows == 1
            assert ix.stats.unknown_files == 0
    with monkeypatch.context() as context:
        context.chdir("/")
        assert SkippingIndex.open(tmp_path / "a" / "i.tamis").scan(where).num_rows == 1
    elsewhere = tmp_path / "indexes"
    elsewhere.mkdir()
    SkippingIndex.build("lake", columns=["user"], path=elsewhere / "i.tamis")
    with pytest.raises(ValueError, match=f"built over {lake}, .* own folder, {elsewhere}"):
        SkippingIndex.open(elsewhere / "i.tamis")
    ix = SkippingIndex.open(elsewhere / "i.tamis", source="lake")
    assert ix.scan(where).num_rows == 1
    assert ix.stats.unknown_files == 0
    ix.remove("lake/[[]1].parquet")
    assert SkippingIndex.open(elsewhere / "i.tamis", source="lake").scan(where).num_rows == 0


def footer_alone(path):
    """A file that has lost its data, and has the footer that describes it."""
    whole = path.read_bytes()
    length = 8 + int.from_bytes(whole[-8:-4], "little")
    path.write_bytes(b"PAR1" + whole[-length:])


def write_damaged(path, damage):
    """Write a file that cannot be read; return what the error says."""
    pq.write_table(users(0, 100), path)
    match damage:
        case "empty":
            path.write_bytes(b"")
            return "0"
        case "text":
            path.write_text("user,n\n1,2\n" * 100)
            return "magic"
        case "cut":
            path.write_bytes(path.read_bytes()[:-20])
            return "magic"
        case "footer":
            flipped(path, path.stat().st_size - 5)
            return "footer|metadata|thrift"
        case "no data":
            footer_alone(path)
            return "claims 100 values in bytes [0-9]+ to"
        case "type":
            pq.write_table(pa.table({"user": [5], "n": [5]}), path)
            return "column user must be text as in other files, but is int64"
        case "type of another column":
            pq.write_table(pa.table({"user": ["user 5"], "n": ["five"]}), path)
            return "columns must be as in other files"
        case "name twice":
            pq.write_table(pa.table([["user 5"], [5], [5]], names=["user", "n", "n"]), path)
            return "names of columns must be distinct"


DAMAGES = (
    "empty", "text", "cut", "footer", "no data", "type", "type of another column", "name twice"
)  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_cannot_be_read_does_not_stop_the_others(lake, damage):
    where, bad = {"user": "user 5"}, lake / "bad.parquet"
    ix = build(lake)
    expected = full_scan(lake.glob("*.parquet"), where)
    groups = ix.row_groups(where)
    assert ix.stats.unreadable == {}
    reason = write_damaged(bad, damage)
    pq.write_table(users(5, 1), lake / "good.parquet")
    for refreshed in (False, True):
        if refreshed:
            assert ix.refresh() == 1
            before = (lake / "index.tamis").read_bytes()
            assert ix.refresh() == 0
            assert (lake / "index.tamis").read_bytes() == before
            assert list(ix.stats.unreadable) == [str(bad)]
            assert len(ix.files) == 4
        assert set(groups) | {RowGroup(str(lake / "good.parquet"), 0)} == set(ix.row_groups(where))
        assert list(ix.stats.unreadable) == [str(bad)]
        assert re.search(reason, ix.stats.unreadable[str(bad)], re.I)
        for query in (ix.scan, ix.dataset):
            with pytest.raises(tamis.FormatError, match=r"bad.parquet.*on_error='skip'") as raised:
                query(where)
            assert re.search(reason, str(raised.value), re.I)
        for rows in (
            ix.scan(where, on_error="skip"),
            ix.dataset(where, on_error="skip").to_table(),
        ):
            assert rows.num_rows == len(expected) + 1
    with pytest.raises((tamis.FormatError, TypeError, ValueError), match=r"bad.parquet"):
        build(lake)
    with pytest.raises(ValueError, match="on_error must be 'raise' or 'skip', not 'ignore'"):
        ix.scan(where, on_error="ignore")
    ix.remove(bad)
    assert ix.scan(where).num_rows == len(expected) + 1


def test_a_file_that_becomes_unreadable_is_not_answered_from_its_filters(lake):
    ix = build(lake)
    where = {"user": "user 5"}
    footer_alone(lake / "1.parquet")
    assert all(not path.endswith("1.parquet") for path, _ in ix.row_groups(where))
    assert list(ix.stats.unreadable) == [str(lake / "1.parquet")]
    with pytest.raises(tamis.FormatError, match=r"1.parquet: row group 2 claims"):
        ix.scan(where)
    assert ix.refresh() == 0
    assert len(ix.files) == 2
    with pytest.raises(tamis.FormatError, match=r"1.parquet: row group 2 claims"):
        SkippingIndex.open(lake / "index.tamis").dataset(where)


def test_damaged_data_is_not_indexed(lake):
    ix = build(lake)
    options = {"compression": "zstd", "row_group_size": 50, "use_dictionary": False}
    pq.write_table(users(0, 300), lake / "bad.parquet", **options)
    chunk = pq.read_metadata(lake / "bad.parquet").row_group(3).column(0)
    content = bytearray((lake / "bad.parquet").read_bytes())
    start, length = chunk.data_page_offset, chunk.total_compressed_size
    content[start : start + length] = b"\xff" * length
    (lake / "bad.parquet").write_bytes(content)
    assert ix.refresh() == 0
    assert list(ix.stats.unreadable) == [str(lake / "bad.parquet")]
    assert (len(ix.files), len(ix)) == (3, 30)
    assert len(ix.row_groups({"user": "nobody"})) == 6
    with pytest.raises(tamis.FormatError, match=r"bad.parquet: row group 3: "):
        ix.scan({"user": "user 5"})
    with pytest.raises(tamis.FormatError, match=r"bad.parquet: "):
        build(lake)


def test_a_small_file_takes_little_memory(tmp_path):
    code = f"""
import resource, sys
import pyarrow as pa, pyarrow.parquet as pq
from tamis.parquet import SkippingIndex
rows, path = 40_000_000, {str(tmp_path / "a.parquet")!r}
schema = pa.schema([("i", pa.int64()), ("n", pa.int64())])
batch = pa.record_batch([pa.repeat(5, 1_000_000), pa.nulls(1_000_000, pa.int64())], schema=schema)
options = {{"max_rows_per_page": rows, "data_page_size": 2**30}}
with pq.ParquetWriter(path, schema, **options) as writer:
    writer.write_table(pa.Table.from_batches([batch] * 40), row_group_size=rows)
def used():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = used()
ix = SkippingIndex.build(path, columns=["i", "n"])
assert ix.scan({{"i": 5, "n": 6}}).num_rows == 0
assert ix.scan({{"i": 5}}, limit=7).num_rows == 7
assert ix.scan({{"n": None}}, columns=["n"], limit=7).num_rows == 7
print(used() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (tmp_path / "a.parquet").stat().st_size < 5000
    assert int(done.stdout) < 200  # megabytes; 40 million hashes take 640


def test_an_index_without_files_has_columns(lake):
    build(lake, columns=["user", "n"])
    path, where = lake / "index.tamis", {"user": "user 5", "n": [5, None]}
    intact = path.read_bytes()
    for damaged in (False, True):
        for file in lake.glob("*.parquet"):
            file.unlink()
        path.write_bytes(intact)
        if damaged:
            flipped(path, len(intact) - 1200)
        ix = SkippingIndex.open(path)
        assert (ix.stats.unknown_files, ix.row_groups(where)) == (0, [])
        assert ix.columns == {"user": "text", "n": "integer"}
        assert bool(ix._state.manifest.files) != damaged
        for rows in (ix.scan(where), ix.dataset(where).to_table(), ix.dataset().to_table()):
            assert rows.num_rows == 0
            assert rows.schema.names == ["user", "n"]
            assert rows.schema.types == [pa.string(), pa.int64()]
