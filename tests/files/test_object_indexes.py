"""Skipping indexes of objects."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from object_store import KEY, SECRET, arrow_of, environment, options_of, s3fs_of
from objects import CLIENTS, SETS, chain, count, path_for, write_events

import tamis
from tamis.parquet import SkippingIndex
from tamis.parquet.file_set import FileSet
from tamis.parquet.location import Location

pytest.importorskip("obstore")


pytest.importorskip("s3fs")


pytestmark = [pytest.mark.xdist_group("objects"), pytest.mark.filterwarnings("default")]


def opened_by(s3, client, folder):
    """The path of an index and the arguments for a client: by URL, or in a file system."""
    if client == "obstore":
        return f"s3://{folder}/index.tamis", f"s3://{folder}/*.parquet", {}, {}
    files = CLIENTS[client](s3)
    index = {"index_filesystem": files["filesystem"]}
    return f"{folder}/index.tamis", f"{folder}/*.parquet", index, files


@pytest.mark.parametrize("days", [3, 40])
def test_the_first_query_of_a_process_takes_few_requests(s3, days):
    folder = f"lake/events-{days}"
    write_events(arrow_of(s3), folder, days)
    path, source, _, _ = opened_by(s3, "obstore", folder)
    SkippingIndex.build(source, columns="user", path=path)
    with s3.counted() as requests:
        opened = SkippingIndex.open(path)
        found = opened.row_groups({"user": "u7"})
    assert {group.path for group in found} == {f"{folder}/0.parquet"}
    assert (count(requests, "HEAD"), count(requests, "GET"), count(requests, "LIST")) == (1, 1, 1)
    assert opened.scan({"user": "u7"}).num_rows == 4
    assert opened.dataset({"user": "u7"}).to_table().num_rows == 4
    with s3.counted() as requests:
        opened.row_groups({"user": "u8"})
    assert [each.kind for each in requests] == ["LIST"]


def test_partitions_with_encoded_names_are_found(s3):
    """An object named ``hour=10%3A00`` is that object."""
    for hour in range(3):
        write_events(arrow_of(s3), f"lake/hours/hour={hour}%3A00", 1, start=hour)
    path = "s3://lake/hours/i.tamis"
    SkippingIndex.build("s3://lake/hours/hour=*%3A00/*.parquet", columns="user", path=path)
    opened = SkippingIndex.open(path)
    assert [group.path for group in opened.row_groups({"user": "u60"})] == [
        "lake/hours/hour=1%3A00/1.parquet"
    ] * 4
    assert opened.scan({"user": "u60"}).num_rows == 4


@pytest.mark.parametrize("client", ["s3fs", "pyarrow"])
def test_files_in_a_file_system_are_checked_by_their_footers(s3, client):
    """Listings of pyarrow have no ETags."""
    folder = f"lake/listed-{client}"
    write_events(arrow_of(s3), folder, 3)
    path, source, index, files = opened_by(s3, client, folder)
    SkippingIndex.build(source, columns="user", path=path, **index, **files)
    opened = SkippingIndex.open(path, **index)
    assert opened.scan({"user": "u7"}).num_rows == 4
    table = pa.table({"user": [f"v{i % 50 + 50}" for i in range(200)], "n": range(200)})
    pq.write_table(table, f"{folder}/1.parquet", filesystem=arrow_of(s3), row_group_size=50)
    write_events(arrow_of(s3), folder, 1, start=7)
    assert opened.scan({"user": "v60"}).num_rows == 4
    assert (opened.stats.stale_files, opened.stats.unknown_files) == (1, 1)


def test_files_are_identified_by_their_tags(s3):
    """A file with the same size that was written in the same second is another one."""
    write_events(arrow_of(s3), "lake/tags", 3)
    SkippingIndex.build("s3://lake/tags/*.parquet", columns="user", path="s3://lake/tags/i.tamis")
    client = s3fs_of(s3)
    before = client.info("lake/tags/1.parquet")
    table = pa.table({"user": [f"v{i % 50 + 50}" for i in range(200)], "n": range(200)})
    pq.write_table(table, "lake/tags/1.parquet", filesystem=arrow_of(s3), row_group_size=50)
    assert client.info("lake/tags/1.parquet")["size"] == before["size"]
    opened = SkippingIndex.open("s3://lake/tags/i.tamis")
    assert opened.scan({"user": "v60"}).num_rows == 4
    assert opened.stats.stale_files == 1
    write_events(arrow_of(s3), "lake/tags", 1, start=7)
    assert opened.scan({"user": "u351"}).num_rows == 4
    assert opened.stats.unknown_files == 1
    assert opened.refresh() == 2
    assert opened.stats.unreadable == {}
    again = SkippingIndex.open("s3://lake/tags/i.tamis")
    assert again.scan({"user": "v60"}).num_rows == 4
    assert (again.stats.stale_files, again.stats.unknown_files) == (0, 0)


def test_a_snapshot_is_not_listed(s3):
    write_events(arrow_of(s3), "lake/table", 20)
    files = [f"s3://lake/table/{day}.parquet" for day in range(20)]
    path = "s3://lake/table/i.tamis"
    SkippingIndex.build(files[:19], columns="user", path=path)
    with s3.counted() as requests:
        opened = SkippingIndex.open(path, source=files[:19], immutable=True)
        assert opened.scan({"user": "u7"}, limit=0).num_rows == 0
        assert len(opened.row_groups({"user": "u7"})) == 4
    assert [each.kind for each in requests] == ["HEAD", "GET"]
    newer = SkippingIndex.open(path, source=files[2:], immutable=True)
    new = "lake/table/19.parquet"  # not indexed yet, so it is read in full
    assert {group.path for group in newer.row_groups({"user": "u7"})} == {new}
    assert newer.scan({"user": "u960"}).num_rows == 4
    with s3.counted() as requests:
        assert newer.refresh() == 1
    assert {each.path for each in requests if "parquet" in each.path} == {"/lake/table/19.parquet"}
    with pytest.raises(ValueError, match="source must be a list of files, without patterns"):
        SkippingIndex.open(path, source="s3://lake/table/*.parquet", immutable=True)
    with pytest.raises(ValueError, match="source must be a list of files, without patterns"):
        newer.add("s3://lake/table/*.parquet")
    assert newer.add(files[0]) == 1
    assert len(newer.row_groups({"user": "u7"})) == 4
    with pytest.raises(ValueError, match="source must be the list of current files"):
        SkippingIndex.open(path, immutable=True)


def test_only_one_of_two_writers_succeeds(s3):
    write_events(arrow_of(s3), "lake/two", 2)
    path = "s3://lake/two/i.tamis"
    SkippingIndex.build("s3://lake/two/*.parquet", columns="user", path=path)
    one, other = SkippingIndex.open(path), SkippingIndex.open(path)
    write_events(arrow_of(s3), "lake/two", 1, start=5)
    assert one.refresh() == 1
    with pytest.raises(OSError, match="another process replaced it"):
        other.refresh()
    with pytest.raises(OSError, match="another process replaced it"):
        other.save()
    assert other.scan({"user": "u251"}).num_rows == 4
    write_events(arrow_of(s3), "lake/two", 1, start=6)
    assert one.refresh() == 1  # its own writes are no conflict
    other.save("s3://lake/two/other.tamis")
    assert SkippingIndex.open(path).stats.stale_files == 0


@pytest.mark.parametrize("client", CLIENTS)
def test_an_index_opens_only_files_below_its_folder(s3, client):
    folder = f"lake/own-{client}"
    write_events(arrow_of(s3), folder, 2)
    _, source, index, files = opened_by(s3, client, folder)
    path, deep = (path_for(client, f"{folder}/{name}") for name in ("i.tamis", "deep/i.tamis"))
    SkippingIndex.build(source, columns="user", path=path, **index, **files)
    assert len(SkippingIndex.open(path, **index).row_groups({"user": "u7"})) == 4
    SkippingIndex.build(source, columns="user", path=deep, **index, **files)
    with pytest.raises(ValueError, match="source must be given"):
        SkippingIndex.open(deep, **index)
    opened = SkippingIndex.open(deep, source=source, **index, **files)
    assert len(opened.row_groups({"user": "u7"})) == 4
    if client != "obstore":
        with pytest.raises(ValueError, match="source must be given"):
            SkippingIndex.open(f"s3://{folder}/i.tamis")  # built in a file system, not by a URL


@pytest.mark.parametrize("source", ["/own/../other/*.parquet", "/other/a.parquet", "/ownother/a"])
def test_no_path_leads_out_of_the_folder_of_an_index(source):
    """In a file system that has parent folders, which object stores have not."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    location = Location.of("/own/i.tamis", memory)
    content = FileSet.of("/own/a.parquet", memory).to_json()
    assert FileSet.from_manifest(content, location).sources == ("/own/a.parquet",)
    with pytest.raises(ValueError, match="source must be given"):
        FileSet.from_manifest({**content, "sources": [source]}, location)


def test_the_folder_of_a_table_is_refused(s3):
    write_events(arrow_of(s3), "lake/delta/part", 1)
    s3fs_of(s3).pipe_file("lake/delta/_delta_log/0.json", b"{}")
    for source in ("s3://lake/delta", "s3://lake/delta/**/*.parquet", "s3://lake/delta/part"):
        with pytest.raises(ValueError, match="must not be the folder of a Delta table"):
            SkippingIndex.build(source, columns="user")


def test_a_damaged_index_still_finds_all_rows(s3):
    write_events(arrow_of(s3), "lake/damage", 2)
    SkippingIndex.build("s3://lake/damage/*.parquet", columns="user", path="s3://lake/damage/i")
    client = s3fs_of(s3)
    content = client.cat_file("lake/damage/i")
    for at in range(0, len(content), 401):
        damaged = bytearray(content)
        damaged[at] ^= 16
        client.pipe_file("lake/damage/i", bytes(damaged))
        try:
            opened = SkippingIndex.open("s3://lake/damage/i")
        except (tamis.FormatError, ValueError):
            opened = SkippingIndex.open("s3://lake/damage/i", source="s3://lake/damage/*.parquet")
        assert opened.scan({"user": "u7"}).num_rows == 4


def test_an_index_says_nothing_of_credentials(s3, monkeypatch):
    for name in environment(s3):
        monkeypatch.delenv(name)
    write_events(arrow_of(s3), "lake/secret", 1)
    given, folder = {"storage_options": options_of(s3)}, "s3://lake/secret"
    build = partial(SkippingIndex.build, columns="user", **given)
    build(f"{folder}/*.parquet", path=f"{folder}/i.tamis")
    opened = SkippingIndex.open(f"{folder}/i.tamis", **given)
    assert opened.scan({"user": "u7"}).num_rows == 4
    said = [repr(opened), repr(opened.stats), repr(opened.files)]
    said.append(s3fs_of(s3).cat_file("lake/secret/i.tamis").decode("latin-1"))
    for attempt in (
        lambda: build(f"{folder}/none*"),
        lambda: build(f"{folder}/["),
        lambda: build(f"s3://{KEY}:{SECRET}@lake/secret"),
        lambda: SkippingIndex.open(f"{folder}/none", **given),
        lambda: opened.add(f"{folder}/none*"),
        lambda: opened.remove(f"{folder}/none*"),
        lambda: pickle.dumps(opened),
    ):
        with pytest.raises((OSError, ValueError, TypeError)) as caught:
            attempt()
        said += chain(caught.value)
    for text in said:
        assert SECRET not in text
        assert KEY not in text


def _candidates(collection, key):
    return collection.candidates(key)


def test_what_is_in_an_object_store_is_pickled_by_its_uri(s3, saved):
    opened = tamis.Collection.open(saved, budget="50kB", cache="1MB")
    data = pickle.dumps(opened)
    assert SECRET.encode() not in data
    assert KEY.encode() not in data
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        found = pool.submit(_candidates, opened, 700_000).result()
    assert found == opened.candidates(700_000)
    write_events(arrow_of(s3), "lake/pickled", 2)
    index = SkippingIndex.build(
        "s3://lake/pickled/*.parquet", columns="user", path="s3://lake/pickled/deep/i.tamis"
    )
    assert pickle.loads(pickle.dumps(index)).scan({"user": "u7"}).num_rows == 4
    given = tamis.Collection.open(saved[5:], filesystem=s3fs_of(s3))
    with_options = tamis.Collection.open(saved, storage_options=options_of(s3))
    for each in (given, with_options):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(each)
    part = tamis.Collection.build({"new": [5]}, path="s3://lake/new")
    merged = tamis.Collection.merge(opened, part, path="s3://lake/merged")
    assert len(merged) == len(SETS) + 1
    reopened = pickle.loads(pickle.dumps(merged))
    assert "new" in reopened.candidates(5)
