"""Collections and indexes that are built in parts, and that are pickled by their paths."""

import copy
import os
import pickle
import random
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tamis
from tamis.parquet import SkippingIndex

SECRET = bytes(range(16))
SETS = {f"day {i:02}": range(100 * i, 100 * i + 150) for i in range(30)}


def divided(items, tasks, draw):
    """Items in as many parts, in any order; some may be empty."""
    items = list(items)
    draw.shuffle(items)
    ends = sorted(draw.randrange(len(items) + 1) for _ in range(tasks - 1))
    return [items[a:b] for a, b in zip([0, *ends], [*ends, len(items)], strict=True)]


@pytest.mark.parametrize("kind", ["auto", "segmented", "sliced"])
@pytest.mark.parametrize("hash", [{}, {"seed": 7}, {"key": SECRET}], ids=["", "seed", "key"])
def test_a_merged_collection_has_the_bytes_of_one_build(tmp_path, kind, hash):
    """However the sets are divided, and in whatever order the parts come."""
    draw = random.Random(5)
    utility = {name: i % 7 + 0.5 for i, name in enumerate(SETS)}
    expected = tamis.Collection.build(SETS, kind=kind, utility=utility, path=tmp_path / "1", **hash)
    key = {"key": hash["key"]} if "key" in hash else {}
    for tasks in (1, 3, 40):
        parts = [
            tamis.Collection.build(
                {name: SETS[name] for name in names}, kind=kind, budget=None, **hash,
                utility={name: utility[name] for name in names},
            )
            for names in divided(SETS, tasks, draw)
        ]  # fmt: skip
        merged = tamis.Collection.merge(*parts, path=tmp_path / "2", **key)
        assert (tmp_path / "2").read_bytes() == (tmp_path / "1").read_bytes()
        assert merged.candidates(1040) == expected.candidates(1040) != []
        assert list(merged.names) == sorted(SETS)
    temporary = tamis.Collection.merge(*parts, budget="8kB", hybrid=True, **key)
    assert temporary.size_in_bytes <= 8000
    assert "day 10" in temporary.candidates(1040)


def test_a_merge_of_a_merge_and_of_changed_collections():
    names = list(SETS)
    parts = [tamis.Collection.build({name: SETS[name]}) for name in names]
    half = tamis.Collection.merge(*parts[:10])
    half.drop("day 03")
    half.append("new", [5_000_000])
    merged = tamis.Collection.merge(*parts[10:], half)
    assert len(merged) == 30
    assert merged.candidates(5_000_000) == ["new"]
    assert "day 03" not in merged.names
    for name in merged.names:
        if name != "new":
            assert name in merged.candidates(SETS[name][3])


def test_sets_that_belong_together_stay_together():
    def part(*names):
        sets = [(f"{name} {column}", [f"{name}{column}"]) for name in names for column in "yx"]
        return tamis.Collection.build(sets, parts=2)

    merged = tamis.Collection.merge(part("c", "a"), part("b"))
    assert list(merged.names) == ["a y", "a x", "b y", "b x", "c y", "c x"]
    assert merged.candidates("by", part=0) == ["b y"]
    assert merged.candidates("bx", part=1) == ["b x"]


def test_collections_that_do_not_belong_together_are_refused():
    one = tamis.Collection.build({"a": [1]})
    with pytest.raises(ValueError, match="parts is empty"):
        tamis.Collection.merge()
    with pytest.raises(ValueError, match="different names; 'a' occurs twice"):
        tamis.Collection.merge(one, tamis.Collection.build({"a": [2]}))
    with pytest.raises(tamis.IncompatibleError, match="same seed or secret key"):
        tamis.Collection.merge(one, tamis.Collection.build({"b": [2]}, seed=1))
    keyed = tamis.Collection.build({"b": [2]}, key=SECRET)
    with pytest.raises(ValueError, match="key must be given"):
        tamis.Collection.merge(keyed)
    with pytest.raises(tamis.IncompatibleError, match="same seed or secret key"):
        tamis.Collection.merge(keyed, key=bytes(16))
    with pytest.raises(tamis.IncompatibleError, match="same seed or secret key"):
        tamis.Collection.merge(one, key=SECRET)
    with pytest.raises(tamis.IncompatibleError, match="same parts="):
        tamis.Collection.merge(one, tamis.Collection.build({"b": [1], "c": [2]}, parts=2))


def _candidates(collection, keys):
    return [collection.candidates(key) for key in keys]


def test_a_collection_is_pickled_by_its_path(tmp_path):
    path = tmp_path / "sets.tamis"
    built = tamis.Collection.build(SETS, path=path, budget="6kB", utility=np.arange(30) + 1.0)
    data = pickle.dumps(built)
    assert len(data) < 2000
    again = pickle.loads(data)
    assert (again.kept == built.kept).all()
    assert again.budget == built.budget
    built.allocate(budget="5kB", utility=np.arange(30)[::-1] + 1.0)
    built.hybrid = True
    again = pickle.loads(pickle.dumps(built))
    assert (again.kept == built.kept).all()
    assert (again.utility == built.utility).all()
    assert again.hybrid
    keys = range(0, 3000, 70)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(_candidates, built, keys).result() == _candidates(built, keys)
    built.append("new", [9])
    for what in (built, tamis.Collection.build(SETS)):
        with pytest.raises(TypeError, match=r"call save\(path\) first"):
            pickle.dumps(what)
    built.save(tmp_path / "changed")
    assert "new" in pickle.loads(pickle.dumps(built)).names
    assert copy.deepcopy(built).candidates(9) == built.candidates(9)
    keyed = tamis.Collection.build(SETS, path=tmp_path / "keyed", key=SECRET)
    with pytest.raises(TypeError, match="secret key cannot be pickled"):
        pickle.dumps(keyed)


def test_a_pickle_names_the_file_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(tamis.Collection.build(SETS, path="sets.tamis"))
    monkeypatch.chdir("/")
    assert len(pickle.loads(data)) == 30


def test_a_search_index_is_pickled_by_its_path(tmp_path):
    notes = {f"note {i}": f"word{i % 7} word{i % 11}" for i in range(100)}
    built = tamis.text.SearchIndex.build(notes, path=tmp_path / "notes", utility=np.arange(100.0))
    again = pickle.loads(pickle.dumps(built))
    assert again.search("word3 word5") == built.search("word3 word5")
    built.append("new", "word3 word5", utility=1000)
    with pytest.raises(TypeError, match=r"call save\(path\) first"):
        pickle.dumps(built)
    built.save(tmp_path / "more")
    own = tamis.text.SearchIndex.build(notes, path=tmp_path / "own", tokenizer=str.split)
    assert pickle.loads(pickle.dumps(own)).search("word3 word5") == own.search("word3 word5")
    assert pickle.loads(pickle.dumps(built)).search("word3 word5", 1) == ["new"]


# Indexes.


@pytest.fixture
def lake(tmp_path):
    """Files that differ in their types, and one of which lacks a column."""
    for day in range(6):
        users = [f"u{i % 50 + day * 40}" for i in range(300)]
        kind = pa.int64() if day % 2 else pa.int16()
        numbers = pa.array(np.arange(300) + 7 * day, kind)
        table = pa.table({"user": users, "n": numbers, "use": np.arange(300.0) * day})
        if day == 2:
            table = table.append_column("extra", [users])
        pq.write_table(table, tmp_path / f"{day}.parquet", row_group_size=100)
    return tmp_path


OPTIONS = [{"columns": ["user", "n"]}, {"columns": "user", "utility": "use", "seed": 3}]


@pytest.mark.parametrize("options", OPTIONS, ids=["two columns", "utility"])
def test_a_merged_index_has_the_filters_of_one_build(lake, options):
    files = sorted(str(path) for path in lake.glob("*.parquet"))
    SkippingIndex.build(files, path=lake / "one.tamis", **options)
    draw = random.Random(3)
    for tasks in (1, 2, 6):
        some = [names for names in divided(files, tasks, draw) if names]
        parts = [SkippingIndex.build(names, **options) for names in some]
        merged = SkippingIndex.merge(*parts, path=lake / "merged.tamis", memory="100kB")
        assert merged.files == files
        where = {"user": "u120"}
        assert merged.scan(where).num_rows == sum(
            pq.read_table(path, columns=["user"])["user"].to_pylist().count("u120")
            for path in files
        )
        # The sources are those of the parts, in their order; everything else is equal.
        merged._state = copy.copy(merged._state)
        object.__setattr__(merged._state.file_set, "sources", tuple(files))
        merged.save(lake / "again.tamis")
        assert (lake / "again.tamis").read_bytes() == (lake / "one.tamis").read_bytes()


def test_a_merged_index_follows_all_sources(lake):
    parts = [SkippingIndex.build(lake / f"{i}*.parquet", columns="user") for i in range(3)]
    merged = SkippingIndex.merge(*parts, path=lake / "i.tamis")
    pq.write_table(pa.table({"user": ["later"]}), lake / "1b.parquet")
    assert merged.scan({"user": "later"}).num_rows == 1
    assert SkippingIndex.open(lake / "i.tamis").scan({"user": "later"}).num_rows == 1
    assert merged.refresh() == 1
    part = SkippingIndex.build(lake / "?.parquet", columns="user")
    part.remove(lake / "4.parquet")
    other = SkippingIndex.build(lake / "1b.parquet", columns="user")
    assert str(lake / "4.parquet") not in SkippingIndex.merge(part, other).files
    assert SkippingIndex.merge(part, other).scan({"user": "u205"}).num_rows == 6  # of 5.parquet
    both = SkippingIndex.merge(part, SkippingIndex.build(lake / "4.parquet", columns="user"))
    assert str(lake / "4.parquet") in both.files
    assert both.scan({"user": "u205"}).num_rows == 12


def test_indexes_that_do_not_belong_together_are_refused(lake):
    one = SkippingIndex.build(lake / "0.parquet", columns="user")
    with pytest.raises(ValueError, match="parts is empty"):
        SkippingIndex.merge()
    with pytest.raises(ValueError, match=r"different files; parts\[1\] repeats .*0\.parquet"):
        SkippingIndex.merge(one, one)
    for other in (
        {"columns": "n"},
        {"columns": "user", "fpr": 0.01},
        {"columns": "user", "seed": 1},
    ):
        with pytest.raises(tamis.IncompatibleError, match="same columns, kind, fpr, seed"):
            SkippingIndex.merge(one, SkippingIndex.build(lake / "1.parquet", **other))
    below = pa.fs.SubTreeFileSystem(str(lake), pa.fs.LocalFileSystem())
    other = SkippingIndex.build("1.parquet", columns="user", filesystem=below)
    with pytest.raises(tamis.IncompatibleError, match="same file system"):
        SkippingIndex.merge(one, other)
    with pytest.raises(TypeError, match="build it with a path"):
        pickle.dumps(one)


def _rows(index, where):
    return index.scan(where).num_rows


def test_an_index_is_pickled_by_its_path(lake, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("index") / "i.tamis"
    for path in (lake / "i.tamis", elsewhere):
        built = SkippingIndex.build(lake / "*.parquet", columns="user", path=path, memory="50kB")
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            assert pool.submit(_rows, built, {"user": "u205"}).result() == 12
        opened = SkippingIndex.open(path, source=lake / "*.parquet", hybrid=True, recheck=5)
        again = pickle.loads(pickle.dumps(opened))
        assert _rows(again, {"user": "u205"}) == 12
        assert again._watch.recheck == 5
        opened.allocate(memory="50kB", utility=np.arange(18.0))
        again = pickle.loads(pickle.dumps(opened))
        assert (again.utility == np.arange(18.0)).all()
        assert again._memory == 50_000
    below = pa.fs.SubTreeFileSystem(str(lake), pa.fs.LocalFileSystem())
    given = SkippingIndex.build("*.parquet", columns="user", path=elsewhere, filesystem=below)
    with pytest.raises(TypeError, match="would contain the credentials of the file system"):
        pickle.dumps(given)
    os.remove(elsewhere)
    with pytest.raises(FileNotFoundError):
        pickle.loads(pickle.dumps(opened))
