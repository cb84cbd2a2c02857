"""Filters, collections and indexes in object stores.

S3 is a server of its protocol on the loopback, used by obstore, s3fs and pyarrow. Google's and
Azure's stores cannot be reached from the tests; obstore serves them by the same interface.
"""

import numpy as np
import pytest
from object_store import s3fs_of
from objects import CLIENTS, SETS, count, path_for

import tamis
from tamis import _ranges

pytest.importorskip("obstore")


pytest.importorskip("s3fs")


pytestmark = [pytest.mark.xdist_group("objects"), pytest.mark.filterwarnings("default")]


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
    for budget in (None, local.min_budget + 3000):
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
