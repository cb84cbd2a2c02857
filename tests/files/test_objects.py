"""Filters, collections and indexes in object stores.

S3 is a server of its protocol on the loopback, used by obstore, s3fs and pyarrow. Google's and
Azure's stores cannot be reached from the tests; obstore serves them by the same interface.
"""

import errno
import pickle
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
import pytest

import tamis
from tamis import _objects, _ranges

pytest.importorskip("obstore")
pytest.importorskip("s3fs")
fs = pytest.importorskip("pyarrow.fs")
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from object_store import KEY, SECRET, arrow_of, environment, options_of, running, s3fs_of  # noqa: E402

from tamis.parquet import SkippingIndex  # noqa: E402
from tamis.parquet.file_set import FileSet  # noqa: E402
from tamis.parquet.location import Location  # noqa: E402

pytestmark = [pytest.mark.xdist_group("objects"), pytest.mark.filterwarnings("default")]
SETS = {f"set {i}": range(i * 200_000, (i + 1) * 200_000) for i in range(8)}


@pytest.fixture(scope="module")
def server():
    with running() as s3:
        yield s3


@pytest.fixture
def s3(server, monkeypatch):
    for name, value in environment(server).items():
        monkeypatch.setenv(name, value)
    server.faults.clear()
    yield server
    server.faults.clear()


@pytest.fixture(scope="module")
def saved(server):
    """A collection of 2.8 MB."""
    path = "s3://lake/sets.tamis"
    tamis.Collection.build(SETS, path=path, storage_options=options_of(server), kind="ribbon")
    return path


CLIENTS = {
    "obstore": lambda s3: {"storage_options": options_of(s3)},
    "s3fs": lambda s3: {"filesystem": s3fs_of(s3)},
    "pyarrow": lambda s3: {"filesystem": arrow_of(s3)},
}
IMPATIENT = {"max_retries": "0", "timeout": "2s"}


def path_for(client, path):
    """A URL for obstore, and a path in a file system."""
    return f"s3://{path}" if client == "obstore" else path


def count(requests, *kinds):
    return sum(each.kind in kinds for each in requests)


@pytest.mark.parametrize("client", ["environment", *CLIENTS])
def test_a_filter_is_saved_and_loaded(s3, client):
    built = tamis.Ribbon.build(range(5000), fpr=0.01)
    options = {} if client == "environment" else CLIENTS[client](s3)
    path = path_for("obstore" if client == "environment" else client, "lake/f.tamis")
    built.save(path, **options)
    with s3.counted() as requests:
        assert tamis.load(path, **options).to_bytes() == built.to_bytes()
    if client in ("environment", "obstore"):
        assert [each.kind for each in requests] == ["HEAD", "GET"]
    assert tamis.load(path, mmap=True, **options).contains(range(5000)).all()
    with pytest.raises(FileNotFoundError, match=r"missing\.tamis"):
        tamis.load(path.replace("f.tamis", "missing.tamis"), **options)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_collection_is_read_in_part(s3, saved, client):
    options, path = CLIENTS[client](s3), path_for(client, saved[5:])
    size = s3fs_of(s3).info(saved[5:])["size"]
    with s3.counted() as requests:
        few = tamis.Collection.open(path, budget="50kB", **options)
        assert "set 3" in few.candidates(700_000)
    if client == "obstore":
        assert count(requests, "HEAD") == 1
        assert len(requests) <= 3 + len(SETS)
        assert sum(each.sent for each in requests) < size / 4
    with s3.counted() as requests:
        full = tamis.Collection.open(path, **options)
        assert full.candidates(700_000) == ["set 3"]
    if client == "obstore":
        assert len(requests) == 4
    local = tamis.Collection.build(SETS, kind="ribbon")
    keys = np.arange(0, 1_600_000, 1000)
    for found, expected in zip(
        full.candidates_many(keys), local.candidates_many(keys), strict=True
    ):
        assert (found == expected).all()


def test_hybrid_mode_reads_the_rest_through_a_bounded_cache(s3, saved, monkeypatch):
    monkeypatch.setattr(_ranges, "BLOCK", 4096)
    opened = tamis.Collection.open(saved, budget="20kB", hybrid=True, cache=40 * 4096)
    with s3.counted() as first:
        assert opened.candidates(700_000) == ["set 3"]
    with s3.counted() as again:
        assert opened.candidates(700_000) == ["set 3"]
    assert count(first, "GET") > 0
    assert not again
    for key in (5, 250_000, 450_000, 700_000):
        assert f"set {key // 200_000}" in opened.candidates(key)


def test_the_cache_drops_what_was_not_used_for_longest(s3, monkeypatch):
    monkeypatch.setattr(_ranges, "BLOCK", 1000)
    monkeypatch.setattr(_ranges, "SMALL", 0)
    content = np.random.default_rng(0).bytes(20_500)
    client = s3fs_of(s3)
    client.pipe_file("lake/bytes", content)
    file = _ranges.open_object("s3://lake/bytes", cache=3999)
    with s3.counted() as requests:
        for at in (0, 1000, 2000, 0, 3000, 0, 2000):
            assert file.read_at(at, 1000) == content[at : at + 1000]
        assert file.cached_bytes == 3000
    assert count(requests, "GET") == 4  # 1000 was dropped, not 0
    with s3.counted() as requests:
        assert file.read_at(500, 9000) == content[500:9500]  # more than the cache holds
    assert [each.sent for each in requests] == [9000]
    draw = np.random.default_rng(1)
    for _ in range(200):
        start = int(draw.integers(0, len(content)))
        stop = start + int(draw.integers(0, min(5000, len(content) - start) + 1))
        assert file.read_at(start, stop - start) == content[start:stop]
        assert file.cached_bytes <= 3999
    for wrong in ((-1, 5), (20_000, 501), (30_000, 0)):
        with pytest.raises(OSError, match="could not all be read"):
            file.read_at(*wrong)


def test_near_ranges_are_fetched_together(s3, monkeypatch):
    monkeypatch.setattr(_ranges, "SMALL", 0)
    content = np.random.default_rng(0).bytes(5_000_000)
    client = s3fs_of(s3)
    client.pipe_file("lake/bytes", content)
    file = _ranges.open_object("s3://lake/bytes", cache=0)
    starts = [0, 1000, 4_000_000, 3_900_000]
    ends = [500, 2000, 4_100_000, 4_050_000]
    with s3.counted() as requests:
        token = file.stage(starts, ends)
        for start, end in zip(starts, ends, strict=True):
            assert file.read_at(start, end - start) == content[start:end]
    assert sorted(each.sent for each in requests) == [2000, 200_000]
    file.unstage(token)
    with s3.counted() as requests:
        assert file.read_at(0, 500) == content[:500]
    assert [each.sent for each in requests] == [500]


@pytest.mark.parametrize("kind", ["sliced", "ribbon", "segmented"])
def test_all_that_is_loaded_is_staged(s3, kind, monkeypatch):
    """Filters are loaded by requests for all of them, not one by one."""
    monkeypatch.setattr(_ranges, "SMALL", 0)
    client = s3fs_of(s3)
    sets = {f"set {i}": range(50 * i, 50 * i + 20 + i) for i in range(300)}
    local = tamis.Collection.build(sets, kind=kind, path=f"s3://lake/{kind}")
    for budget in (None, local.least_budget + 3000):
        with s3.counted() as requests:
            opened = tamis.Collection.open(f"s3://lake/{kind}", budget=budget)
        assert (count(requests, "HEAD"), count(requests, "GET")) == (1, 3)
        local.allocate(budget=budget)
        for key in range(0, 15_000, 1111):
            assert opened.candidates(key) == local.candidates(key)
    with s3.counted() as requests:
        opened.save(f"s3://lake/{kind} again")
    assert count(requests, "GET") == 1
    assert client.cat_file(f"lake/{kind} again") == client.cat_file(f"lake/{kind}")


def test_a_collection_that_is_saved_again_has_the_same_bytes(s3, saved, tmp_path):
    client = s3fs_of(s3)
    opened = tamis.Collection.open(saved, budget="20kB")
    opened.save(tmp_path / "copy")
    opened.save("s3://lake/copy")
    content = client.cat_file(saved[5:])
    assert (tmp_path / "copy").read_bytes() == content == client.cat_file("lake/copy")
    opened.append("new", [7])
    assert "new" in opened.candidates(7)
    client.invalidate_cache()
    opened.save("s3://lake/copy")
    assert "new" in tamis.Collection.open("s3://lake/copy").candidates(7)


def test_search_indexes_in_an_object_store(s3):
    notes = {f"note {i}": f"word{i % 7} word{i % 11} text" for i in range(500)}
    built = tamis.text.SearchIndex.build(notes, path="s3://lake/notes", utility=np.arange(500))
    opened = tamis.text.SearchIndex.open("s3://lake/notes", cache="1MB")
    assert opened.search("word3 word5", 5) == built.search("word3 word5", 5)
    assert opened.text("note 3") == notes["note 3"]
    opened.save("s3://lake/again")
    client = s3fs_of(s3)
    assert client.cat_file("lake/again") == client.cat_file("lake/notes")


# Faults.


@pytest.mark.parametrize("fault", ["error", "cut"])
def test_a_request_that_fails_for_a_moment_is_tried_again(s3, saved, fault):
    s3.fail(fault, 2)
    opened = tamis.Collection.open(saved)
    assert not s3.faults
    assert opened.candidates(700_000) == ["set 3"]


@pytest.mark.parametrize("fault", ["error", "short"])
def test_a_request_that_keeps_failing_is_an_error(s3, saved, fault):
    options = {"storage_options": options_of(s3, **IMPATIENT)}
    s3.fail(fault, 100)
    with pytest.raises(OSError, match=r"sets\.tamis") as caught:
        tamis.Collection.open(saved, **options)
    assert caught.value.errno
    s3.faults.clear()
    opened = tamis.Collection.open(saved, budget="20kB", hybrid=True, **options)
    s3.fail(fault, 100)
    with pytest.raises(OSError, match="Errno"):  # also from native code
        opened.candidates(700_000)
    s3.faults.clear()
    assert opened.candidates(700_000) == ["set 3"]


@pytest.mark.parametrize(
    "name",
    ["sp ace", "per%41cent", "hour=10%3A00", "a+b&c=d;e", "ünï#x", "[x]*", "'\"", "f?one"],
)
def test_keys_are_never_decoded(s3, name):
    built = tamis.Bloom.build(range(100), fpr=0.01)
    built.save(f"s3://lake/odd/{name}")
    assert s3fs_of(s3).cat_file(f"lake/odd/{name}") == built.to_bytes()
    assert tamis.load(f"S3://lake/odd/{name}").to_bytes() == built.to_bytes()


@pytest.mark.parametrize("key", ["a//b", "../a", "a/./b", "a\tb", "/a"])
def test_a_key_that_the_client_cannot_address_is_refused(s3, key):
    save = tamis.Bloom.build(range(100), fpr=0.01).save
    for attempt in (save, tamis.load, SkippingIndex.open):
        with pytest.raises(ValueError, match="the parts of a key between slashes must not be"):
            attempt(f"s3://lake/{key}")


def test_a_folder_with_a_key_that_the_client_cannot_address_is_not_listed_in_part(s3):
    write_events(arrow_of(s3), "lake/double", 1)
    s3fs_of(s3).call_s3("put_object", Bucket="lake", Key="double//a.parquet", Body=b"")
    for source in ("s3://lake/double", "s3://lake/double/*.parquet"):
        with pytest.raises(OSError, match=r'Path "double//.*" contained empty path segment'):
            SkippingIndex.build(source, columns="user")


@pytest.mark.parametrize("name", ["lake", "lake/", "lake/folder/", ""])
def test_what_names_no_object_is_refused(s3, name):
    """A client would drop the slash, and write an object of another name."""
    built = tamis.Bloom.build(range(100), fpr=0.01)
    for attempt in (built.save, tamis.load, tamis.Collection.open):
        with pytest.raises(IsADirectoryError, match="not the name of an object"):
            attempt(f"s3://{name}")


def test_a_server_that_does_not_answer_is_an_error(s3, saved):
    options = options_of(s3, **IMPATIENT)
    opened = tamis.Collection.open(saved, budget="20kB", hybrid=True, storage_options=options)
    s3.fail("stall", 100)
    with pytest.raises(OSError, match=r"imeout|timed out"):
        opened.candidates(700_000)


def test_an_upload_that_fails_leaves_the_old_object(s3):
    path, options = "s3://lake/kept", {"storage_options": options_of(s3, **IMPATIENT)}
    old = tamis.Bloom.build(range(100), fpr=0.01)
    new = tamis.Bloom.build(range(10**7, 10**7 + 5_000_000), fpr=0.0001)  # 12 MB, in parts
    old.save(path)
    for method in ("PUT", "POST"):
        s3.fail("error", 1000, method, "kept")
        with pytest.raises(OSError, match="kept"):
            new.save(path, **options)
        s3.faults.clear()
        assert tamis.load(path).to_bytes() == old.to_bytes()
    new.save(path)
    assert tamis.load(path).to_bytes() == new.to_bytes()


def write(folder, content):
    (folder / "file").write_bytes(content)
    return str(folder / "file")


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("large", [False, True])
def test_an_object_is_replaced_only_if_it_is_still_the_same(
    s3, client, large, tmp_path, monkeypatch
):
    if large:  # in parts, so the condition is checked before
        monkeypatch.setattr(_objects, "MAX_CONDITIONAL", 0)
    files = _objects.storage_of(*map(CLIENTS[client](s3).get, ("filesystem", "storage_options")))
    target = _objects.locate(path_for(client, "lake/index"), files)
    target.upload(write(tmp_path, b"one"))
    tag = target.info().tag
    with s3.counted() as requests:
        assert target.upload(write(tmp_path, b"twos"), tag) == target.info().tag
    if client == "obstore" and not large:  # no moment for a race
        assert [each.kind for each in requests] == ["PUT", "HEAD"]
        assert "IF_MATCH" in requests[0].headers
    if client != "s3fs":  # through pyarrow, it has neither ETags nor times
        with pytest.raises(OSError, match="another process replaced it") as caught:
            target.upload(write(tmp_path, b"three"), tag)
        assert caught.value.errno == errno.ESTALE
        assert s3fs_of(s3).cat_file("lake/index") == b"twos"


def test_a_damaged_or_foreign_object_is_refused(s3, saved):
    client = s3fs_of(s3)
    content = bytearray(client.cat_file(saved[5:]))
    content[-1000] ^= 1
    client.pipe_file("lake/damaged", bytes(content))
    with pytest.raises(tamis.FormatError, match=r"^s3://lake/damaged: .*checksum of piece"):
        tamis.Collection.open("s3://lake/damaged")
    client.pipe_file("lake/damaged", bytes(content[:-5]))
    with pytest.raises(tamis.FormatError, match="lake/damaged"):
        tamis.Collection.open("s3://lake/damaged")
    client.pipe_file("lake/foreign", b"x" * 5_000_000)
    with s3.counted() as requests, pytest.raises(tamis.FormatError, match="lake/foreign"):
        tamis.load("s3://lake/foreign")
    assert sum(each.sent for each in requests) <= _ranges.BLOCK
    empty = tamis.Bloom.build([], fpr=0.1).to_bytes()[:0]
    client.pipe_file("lake/empty", empty)
    with pytest.raises(tamis.FormatError, match="lake/empty"):
        tamis.load("s3://lake/empty")


def test_an_object_that_is_replaced_while_it_is_read_gives_no_wrong_answer(s3, saved):
    client = s3fs_of(s3)
    client.pipe_file("lake/moving", client.cat_file(saved[5:]))
    opened = tamis.Collection.open("s3://lake/moving", budget="20kB", hybrid=True)
    others = {f"set {i}": range(9_000_000 + i, 9_200_000 + i) for i in range(8)}
    tamis.Collection.build(others, path="s3://lake/moving", kind="ribbon")
    with pytest.raises(tamis.FormatError, match="checksum of piece"):
        opened.candidates(700_000)


# Other stores, and what is said of them.


def test_file_systems_in_memory(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    small = tamis.Bloom.build(range(10), fpr=0.01)
    memory, mock = fsspec.filesystem("memory"), fs._MockFileSystem()
    below = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    wrapped = fs.PyFileSystem(fs.FSSpecHandler(memory))
    for filesystem in (memory, mock, below, wrapped):
        small.save("small", filesystem=filesystem)
        small.save("small", filesystem=filesystem)
        assert tamis.load("small", filesystem=filesystem).to_bytes() == small.to_bytes()
        tamis.Collection.build({"a": [1], "b": [2]}, path="sets", filesystem=filesystem)
        opened = tamis.Collection.open("sets", filesystem=filesystem)
        assert opened.candidates(1) == ["a"]
    with pytest.raises(
        ValueError, match="path must be a path, or a URL that begins with one of s3"
    ):
        small.save("memory://folder/small")
    assert [each for each in memory.find("/") if "saving" in each] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sets", "small"]
    with pytest.raises(TypeError, match="filesystem must be a file system of fsspec or pyarrow"):
        small.save("small", filesystem=5)
    with pytest.raises(TypeError, match="path must be a str with filesystem"):
        small.save(tmp_path / "small", filesystem=memory)
    with pytest.raises(TypeError, match="path must be a str with filesystem"):
        tamis.load(tmp_path / "small", filesystem=memory)


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_a_missing_client_is_named(scheme):
    code = textwrap.dedent(
        f"""
        import sys
        sys.modules["obstore"] = None
        import tamis
        try:
            tamis.load("{scheme}://bucket/key")
        except ImportError as error:
            print(error)
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install tamis[cloud]" in done.stdout


@pytest.mark.parametrize("wrong", [{"aws_region": 5}, [("a", "b")], "aws_region"])
def test_options_that_are_no_strings_are_refused(wrong):
    with pytest.raises(TypeError, match="storage_options must be a dict of strings"):
        tamis.load("s3://lake/f", storage_options=wrong)


def test_an_option_that_does_not_exist_is_named(s3):
    with pytest.raises(ValueError, match="not valid for s3://lake: Configuration key: 'aws_what'"):
        tamis.load("s3://lake/f", storage_options=options_of(s3, aws_what="5"))
    with pytest.raises(ValueError, match="at most one of filesystem and storage_options"):
        tamis.load("lake/f", storage_options=options_of(s3), filesystem=s3fs_of(s3))


def chain(error):
    """An error and its causes, as they would be printed."""
    while error is not None:
        yield repr(error)
        error = None if error.__suppress_context__ else error.__cause__ or error.__context__


def test_no_message_has_credentials(s3, saved, caplog, capfd, tmp_path, monkeypatch):
    for name in environment(s3):
        monkeypatch.delenv(name)
    caplog.set_level("WARNING")
    options = options_of(s3, **IMPATIENT)
    opened = tamis.Collection.open(saved, budget="20kB", hybrid=True, storage_options=options)
    opened.save(tmp_path / "copy")
    said = [repr(opened), (tmp_path / "copy").read_bytes().decode("latin-1")]
    away = {**options, "aws_endpoint_url": "http://127.0.0.1:1"}
    save = tamis.Bloom.build([1], fpr=0.1).save
    for path, given in (
        ("s3://lake/missing", options),
        ("s3://no-such-bucket/sets.tamis", options),
        (saved, away),
        (saved, {**options, "secret_key": SECRET}),
        (saved.replace("s3://", "s9://"), options),
        (saved.replace("s3://", f"s3://{KEY}:{SECRET}@"), options),
    ):
        attempts = (tamis.load, tamis.Collection.open, save)
        for attempt in attempts[: 2 if "missing" in path else 3]:
            with pytest.raises((OSError, ValueError)) as caught:
                attempt(path, storage_options=given)
            said += chain(caught.value)
    s3fs_of(s3).mv(saved[5:], "lake/away")
    with pytest.raises(FileNotFoundError, match=r"sets\.tamis") as caught:
        opened.candidates(700_000)
    s3fs_of(s3).mv("lake/away", saved[5:])
    said += chain(caught.value)
    captured = capfd.readouterr()
    for text in (*said, captured.out, captured.err, caplog.text):
        assert SECRET not in text
        assert KEY not in text


def test_messages_of_clients_are_cut():
    """The body of an answer may repeat the key, and a URL its signature."""
    error = OSError("GET https://a.b/c?sv=1&sig=def failed: 403: <?xml?><Key>abc</Key>\nDebug: ghi")
    assert _objects._message(error) == "GET https://a.b/c failed: 403"


@pytest.mark.parametrize("user", ["me:password@", "me:pass/word@", "me@"])
def test_credentials_in_a_url_are_refused(user):
    build = partial(SkippingIndex.build, columns="user")
    for attempt in (tamis.load, tamis.Bloom.build([1], fpr=0.1).save, SkippingIndex.open, build):
        with pytest.raises(
            ValueError, match="must not contain credentials; pass them as"
        ) as caught:
            attempt(f"s3://{user}bucket/key")
        assert "me" not in str(caught.value).replace("environment", "")


# Skipping indexes.


def write_events(filesystem, folder, days=12, start=0):
    for day in range(start, start + days):
        table = pa.table({"user": [f"u{i % 50 + day * 50}" for i in range(200)], "n": range(200)})
        pq.write_table(table, f"{folder}/{day}.parquet", filesystem=filesystem, row_group_size=50)


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
