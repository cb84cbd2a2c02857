"""Tables that were there before: keys of several columns, UUIDs, conditions, values of any type."""

import random
import uuid

import pytest
from existing_tables import SQLiteDatabase, index_size, telescoping
from servers import postgres_url  # noqa: F401

import tamis


def test_keys_of_several_columns(database):
    database("CREATE TABLE visits (region TEXT, id INTEGER, seen TEXT, PRIMARY KEY (region, id))")
    database("INSERT INTO visits VALUES ('eu', 1, 'a'), ('eu', 2, 'b'), ('é,b', 1, 'c')")
    names = {"table": "visits", "key": ["region", "id"], "value": "seen"}
    with tamis.Guard(database.store(**names), telescoping()) as g:
        keys = [("eu", 1), ("eu", 2), ("é,b", 1), (b"eu", 1), ("eu", 3), ("1", 1), ("", -5)]
        assert g.get_many(keys) == ["a", "b", "c", "a", None, None, None]
        assert [g.get(key) for key in keys] == g.get_many(keys)
        assert sorted(g) == [(b"eu", 1), (b"eu", 2), ("é,b".encode(), 1)]
        database("INSERT INTO visits VALUES ('us', 9, 'd')")
        database("UPDATE visits SET id = 7 WHERE id = 2")
        database("DELETE FROM visits WHERE seen = 'c'")
        assert g.get_many([("us", 9), ("eu", 2), ("eu", 7), ("é,b", 1)]) == ["d", None, "b", None]
        g.put_many({("us", 10): "e", ("eu", 1): "again"})
        g.put(("", -5), "empty")
        assert g.delete(("us", 9))
        assert g.delete_many([("us", 9), ("nowhere", 0), ("eu", 7)]) == [False, False, True]
        assert sorted(database("SELECT region, id, seen FROM visits")) == [
            ("", -5, "empty"),
            ("eu", 1, "again"),
            ("us", 10, "e"),
        ]
        assert (index_size(g), len(g.filter), g.stats.rebuilds, g.stats.passed) == (3, 3, 1, 0)
        for wrong in ("eu", 5, ("eu",), ("eu", 1, 2), ["eu", 1]):
            with pytest.raises(TypeError, match=r"a tuple of 2 values, \(region, id\), not"):
                g.get(wrong)
        for call in (g.get, g.maybe, g.delete, lambda key: g.put(key, "x")):
            with pytest.raises(
                TypeError, match=r"column 'region', of type \w+, must be text, not 1 "
            ):
                call((1, "eu"))
            with pytest.raises(TypeError, match=r"'id', of type \w+, must be an integer, not '1' "):
                call(("eu", "1"))
        with pytest.raises(OverflowError, match=r"key is 1180591620717411303424; a key is"):
            g.get(("eu", 2**70))


def test_what_triggers_pack_is_what_callers_pack(database):
    """Every byte that text can hold, and integers of every size: the same key on both sides."""
    database("CREATE TABLE t (a TEXT, b BIGINT, v TEXT, PRIMARY KEY (b, a))")
    chance = random.Random(5)
    alphabet = ["\0"] if database.kind == "SQLite" else ["\1"]
    alphabet += [",", "b", "i", "'", "%", "é", "\U0001f600", "\x7f", "A", "a", "\\", "\n"]
    keys = {
        (
            "".join(chance.choices(alphabet, k=chance.randrange(5))),
            chance.randrange(-(2**63), 2**63),
        )
        for _ in range(60)
    } | {("", 0), ("i0", -1), (",", 2**63 - 1), ("b,", -(2**63))}
    names = {"table": "t", "key": ("a", "b"), "value": "v"}
    with tamis.Guard(database.store(**names), telescoping()) as g:
        for a, b in keys:
            database("INSERT INTO t VALUES (?, ?, 'v')", a, b)
        assert g.get_many(list(keys)) == ["v"] * len(keys)
        assert {(a.decode(), b) for a, b in g} == keys
        assert g.filter.contains(list(keys)).all()  # a composite key is the tuple of its parts
        assert g.stats.rebuilds == 1
        g.rebuild()
        assert g.get_many(list(keys)) == ["v"] * len(keys)
        assert index_size(g) == len(g.filter) == len(keys)


def test_sqlite_rows_with_a_part_of_another_type_are_no_keys(tmp_path):
    database = SQLiteDatabase(tmp_path / "data.db")
    database("CREATE TABLE t (a TEXT, b INTEGER, v TEXT, UNIQUE (a, b))")
    for row in (("x", 1, "v"), (b"x", 1, "v"), ("x", "one", "v"), (None, 1, "v"), ("x", 1.5, "v")):
        database("INSERT INTO t VALUES (?, ?, ?)", *row)
    with tamis.Guard(database.store(table="t", key=("a", "b"), value="v"), telescoping()) as g:
        assert list(g) == [(b"x", 1)]
        database("INSERT INTO t VALUES (x'79', 1, 'v'), ('y', 2, 'v')")
        assert g.get_many([("x", 1), ("y", 1), ("y", 2)]) == ["v", None, "v"]
        assert len(g.filter) == index_size(g) == 2
    database.db.close()


def test_columns_that_are_not_unique_together_are_refused(database):
    database("CREATE TABLE t (a TEXT, b INTEGER, c TEXT, v TEXT, UNIQUE (a, b), UNIQUE (c))")
    for keys in (("a", "c"), ("a",), ("a", "b", "c")):
        with pytest.raises(ValueError, match="with a unique index of its own"):
            database.store(table="t", key=keys, value="v")
    with pytest.raises(ValueError, match="key must be a column of 't'"):
        database.store(table="t", key=("a", "x"), value="v")


def test_a_table_is_guarded_by_one_column_at_a_time(database):
    database("CREATE TABLE t (a TEXT UNIQUE, b TEXT UNIQUE, v TEXT, UNIQUE (a, b))")
    one = database.store(table="t", key="a", value="v")
    with pytest.raises(ValueError, match="key must be 'a', by which 't' is guarded already"):
        database.store(table="t", key="b", value="v")
    # Keys of several columns, and conditions, have tables of their own.
    two = database.store(table="t", key=("a", "b"), value="v")
    three = database.store(table="t", key="b", value="v", where="v <> ''")
    with (
        tamis.Guard(one, telescoping()) as g,
        tamis.Guard(two, telescoping()) as h,
        tamis.Guard(three, telescoping()) as i,
    ):
        database("INSERT INTO t VALUES ('x', 'y', 'z')")
        assert (g.get("x"), h.get(("x", "y")), i.get("y")) == ("z", "z", "z")
    for store in (
        database.store(table="t", key="a", value="v"),
        database.store(table="t", key=("a", "b"), value="v"),
        database.store(table="t", key="b", value="v", where="v <> ''"),
    ):
        store.unguard()
    listed = {
        "SQLite": "SELECT name FROM sqlite_master WHERE name LIKE 'tamis%'",
        "Postgres": f"SELECT relname FROM pg_class WHERE relname LIKE 'tamis%' "
        f"AND relnamespace = '{database.schema}'::regnamespace UNION ALL "
        f"SELECT proname FROM pg_proc WHERE pronamespace = '{database.schema}'::regnamespace",
    }
    assert database(listed[database.kind]) == []
    database("INSERT INTO t VALUES ('p', 'q', 'r')")


def test_uuid_keys(database):
    database(f"CREATE TABLE t (id {database.uuid} PRIMARY KEY, v TEXT)")
    chance = random.Random(3)
    ids = [uuid.UUID(int=chance.getrandbits(128)) for _ in range(40)]
    with tamis.Guard(database.store(table="t", key="id", value="v"), telescoping()) as g:
        for i in ids[:20]:
            database("INSERT INTO t VALUES (?, ?)", database.to_column(i), str(i))
        g.put_many({i: str(i) for i in ids[20:]})
        assert g.get_many(ids) == [str(i) for i in ids]
        assert [g.get(i) for i in ids] == [str(i) for i in ids]
        assert g.get(uuid.UUID(int=5)) is None
        assert {row[0] for row in database("SELECT id FROM t")} == set(map(database.to_column, ids))
        assert g.delete_many([ids[0], ids[-1]]) == [True, True]
        assert index_size(g) == len(g.filter) == 38
        if database.kind == "Postgres":
            one = ids[1]
            forms = [str(one), one.hex, one.bytes, f"{{{str(one).upper()}}}", str(one).encode()]
            assert g.get_many(forms) == [str(one)] * 5
            assert set(g) == set(ids[1:-1])
            with pytest.raises(ValueError, match="a key of column 'id' must be a UUID"):
                g.get("not one")
            with pytest.raises(TypeError, match="a key of column 'id' must be a UUID"):
                g.get(5)


@pytest.mark.parametrize("declared", ["CHAR(36)", "VARCHAR(36)", "BLOB(16)"])
def test_sqlite_uuids_have_the_form_of_their_column(declared, tmp_path):
    database = SQLiteDatabase(tmp_path / "data.db")
    database(f"CREATE TABLE t (id {declared} PRIMARY KEY, v TEXT)")
    one, two = uuid.UUID(int=7), uuid.UUID(int=8)
    form = (lambda key: key.bytes) if "BLOB" in declared else str
    database("INSERT INTO t VALUES (?, 'one')", form(one))
    with tamis.Guard(database.store(table="t", key="id", value="v"), telescoping()) as g:
        g.put(two, "two")
        assert g.get_many([one, form(one), two]) == ["one", "one", "two"]
        assert database("SELECT id FROM t WHERE v = 'two'") == [(form(two),)]
    database.db.close()


def test_uuids_in_a_key_of_several_columns(database):
    database(f"CREATE TABLE t (tenant {database.uuid}, n INTEGER, v TEXT, UNIQUE (tenant, n))")
    one = uuid.UUID(int=2**127 + 5)
    database("INSERT INTO t VALUES (?, 1, 'one')", database.to_column(one))
    with tamis.Guard(database.store(table="t", key=("tenant", "n"), value="v"), telescoping()) as g:
        database("INSERT INTO t VALUES (?, 2, 'two')", database.to_column(one))
        g.put((one, 3), "three")
        assert g.get_many([(one, 1), (one, 2), (one, 3), (one, 4)]) == ["one", "two", "three", None]
