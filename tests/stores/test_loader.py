"""What a guard can promise of a source that functions read."""

import pytest
from positions import position
from sources import written_through

import tamis
from tamis import stores


def reader(values, **options):
    return stores.Loader(
        get_many=lambda keys: [values.get(key) for key in keys], keys=lambda: values, **options
    )


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({}, ValueError, "pass exactly one of version=, refresh= or put_many="),
        ({"version": len, "refresh": 5}, ValueError, "pass exactly one of"),
        ({"put_many": len}, ValueError, "pass put_many and delete_many together"),
        ({"version": 7}, TypeError, "version must be a function, not 7"),
        ({"get_many": None, "version": len}, TypeError, "get_many must be a function, not None"),
        ({"refresh": 0}, ValueError, "refresh must be a number of seconds above 0"),
    ],
)
def test_arguments_are_checked(arguments, error, says):
    with pytest.raises(error, match=says):
        stores.Loader(**{"get_many": list, "keys": list, **arguments})


def test_a_version_that_changed_means_that_changes_are_unknown():
    values = {"a": 1}
    store = reader(values, version=lambda: len(values))
    since = position(store)
    assert store.changes(since) == (since, [], [], False)
    values["b"] = 2
    assert store.changes(since) is None
    assert position(store) != since


def test_versions_of_different_types_differ():
    versions = iter([1, "1", 1])
    store = reader({}, version=lambda: next(versions))
    since = position(store)
    assert store.changes(since) is None
    assert store.changes(since) is not None


def test_keys_are_read_again_when_they_are_old(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("tamis.stores.loader.now", lambda: clock[0])
    store = reader({"a": 1}, refresh=60)
    since = position(store)
    clock[0] += 59
    assert store.changes(since) is not None
    clock[0] += 1
    assert store.changes(since) is None
    assert store.changes(position(store)) is not None
    assert store.changes(since) is None


def test_text_is_passed_as_str_unless_it_is_not_text():
    asked = []

    def get_many(keys):
        asked.append(keys)
        return [None] * len(keys)

    for text in (True, False):
        store = stores.Loader(get_many=get_many, keys=list, version=lambda: 1, text=text)
        assert store.get_many([b"\xc3\xa9", b"\xff", 5]) == [None] * 3
    assert asked == [["é", b"\xff", 5], [b"\xc3\xa9", b"\xff", 5]]


def test_errors_of_the_source_are_store_errors():
    def fail(*_):
        raise OSError("no route to host")

    store = stores.Loader(get_many=fail, keys=fail, version=fail)
    for call in (
        lambda: store.get_many([1]),
        lambda: store.changes("x"),
        lambda: position(store),
    ):
        with pytest.raises(tamis.StoreError, match=r"of the Loader failed.*no route to host"):
            call()


def test_a_source_must_answer_for_each_key():
    store = stores.Loader(get_many=lambda keys: keys[:1], keys=list, version=lambda: 1)
    with pytest.raises(tamis.StoreError, match="for each of the 2 keys, not 1 values"):
        store.get_many([1, 2])


def test_a_source_that_others_write_has_no_index_and_is_not_written():
    store = reader({}, version=lambda: 1)
    assert store.shared
    assert not store.indexes
    assert store.lease("one", 10)
    with pytest.raises(TypeError, match="has no index of hashes"):
        store.attach("one", lambda keys: tamis.hash_keys(keys, seed=1), b"1")
    for write in (
        lambda: store.put_many([1], ["x"], "one"),
        lambda: store.delete_many([1], "one"),
    ):
        with pytest.raises(TypeError, match="cannot write to a Loader that is read-only"):
            write()


def test_what_is_written_through_reaches_the_source():
    values = {"a": 1}
    store = written_through(values)
    assert not store.shared
    assert store.lease("one", 10)
    since = position(store)
    commit = store.put_many([b"a", b"b"], [2, 3], "one", since)
    assert commit.existed == [True, False]
    assert commit.changes.added == [b"b"]
    assert values == {"a": 2, "b": 3}
    commit = store.delete_many([b"a", b"c"], "one", commit.changes.position)
    assert (commit.existed, commit.changes.removed) == ([True, False], [b"a"])
    assert values == {"b": 3}


@pytest.mark.parametrize("filter", [None, "Bloom", "Telescoping"])
def test_a_guard_finds_what_others_add(filter):
    """The default filter, one that cannot remove keys, and one that would adapt if it could."""
    values = {f"key {i}": str(i) for i in range(500)}
    versions = [0]
    source = reader(values, version=lambda: versions[0])
    made = filter and getattr(tamis, filter)(capacity=2000, fpr=2**-8)
    with tamis.Guard(source, made) as g:
        if filter is None:
            assert "tamis.Quotient" in g.chosen
        assert g.get_many(values) == [*values.values()]
        assert g.get("absent") is None
        values["new"] = "1"
        versions[0] += 1
        assert g.get("new") == "1"
        del values["new"]
        assert g.get("new") is None
        assert g.get_many(f"none {i}" for i in range(1000)) == [None] * 1000


def test_a_guard_writes_through():
    values = {"a": "1"}
    with tamis.Guard(written_through(values), tamis.Quotient(1000, fpr=2**-8)) as g:
        g.put_many({"b": "2", "c": "3"})
        assert g.delete("a")
        assert values == {"b": "2", "c": "3"}
        assert g.get_many(["a", "b", "c"]) == [None, "2", "3"]
        assert g.stats.rebuilds == 1
