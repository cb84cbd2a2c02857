"""Tables that are changed under a guard: copied and renamed, dropped, or without their triggers."""

import sqlite3
from contextlib import closing, suppress

import pytest
from existing_tables import index_size, telescoping
from positions import position
from servers import postgres_url  # noqa: F401

import tamis
from tamis import stores

COLUMNS = "(name TEXT UNIQUE, shop INTEGER NOT NULL DEFAULT 1, born TEXT, PRIMARY KEY (name, shop))"
GUARDED = {
    "one column": {"key": "name"},
    "two columns": {"key": ("name", "shop")},
    "condition": {"key": "name", "where": "born IS NOT NULL"},
}


@pytest.fixture(params=GUARDED)
def users(request, database):
    """Create a table; return its database, how to open its store, and its keys by name."""
    sql = database
    sql(f"CREATE TABLE users {COLUMNS}")
    sql("BEGIN")
    for i in range(50):
        sql("INSERT INTO users VALUES (?, ?, ?)", f"k{i}", 1, str(i))
    sql("COMMIT")
    names = GUARDED[request.param]

    def key(name):
        return name if names["key"] == "name" else (name, 1)

    return sql, lambda: sql.store(table="users", value="born", **names), key


def migrate(sql):
    """Copy the table, drop it and rename the copy, as many tools do for SQLite."""
    cascade = "" if sql.kind == "SQLite" else " CASCADE"
    sql("BEGIN")
    sql(f"CREATE TABLE copied {COLUMNS}")
    sql("INSERT INTO copied SELECT * FROM users")
    sql(f"DROP TABLE users{cascade}")
    sql("ALTER TABLE copied RENAME TO users")
    sql("COMMIT")


def insert(sql, name):
    sql("INSERT INTO users VALUES (?, ?, ?)", name, 1, "new")


def rebuild(g):
    """Rebuild the filter, and wait for the thread that has begun to do so, too."""
    g.rebuild()
    if g.driver.tasks["rebuild"].thread is not None:
        g.driver.tasks["rebuild"].thread.join()
    assert g.stats.trusted


def check_whole(sql, g, key, names):
    """Check that the guard follows the table again, and indexes all keys."""
    assert [g.get(key(name)) for name in names] == ["new"] * len(names)
    rebuild(g)
    insert(sql, "later")
    assert g.get_many([key(name) for name in (*names, "later", "k7")]) == [
        *["new"] * len(names), "new", "7"
    ]  # fmt: skip
    assert g.stats.trusted
    assert index_size(g) == 50 + len(names) + 1
    saved = g.stats.reads_saved
    absent = (key(f"absent {i}") for i in range(1000))
    assert g.get(next(each for each in absent if g.to_plain(each) not in g.filter)) is None
    assert g.stats.reads_saved == saved + 1


def test_a_table_is_migrated_under_a_guard(users):
    sql, opened, key = users
    with tamis.Guard(opened(), telescoping()) as g:
        assert g.get(key("a")) is None
        migrate(sql)
        insert(sql, "a")
        check_whole(sql, g, key, ["a"])


def test_a_table_is_migrated_between_two_guards(users, tmp_path):
    sql, opened, key = users
    for _ in range(2):
        with tamis.Guard(opened(), telescoping(), snapshot=tmp_path / "snapshot") as g:
            seed = g.filter.seed
    migrate(sql)
    insert(sql, "a")
    filter = tamis.Telescoping(capacity=2000, fpr=2**-4, seed=seed)
    with tamis.Guard(opened(), filter, snapshot=tmp_path / "snapshot") as g:
        check_whole(sql, g, key, ["a"])


def test_a_guard_writes_after_a_migration(users):
    sql, opened, key = users
    with tamis.Guard(opened(), telescoping()) as g, tamis.Guard(opened(), telescoping()) as other:
        migrate(sql)
        insert(sql, "a")
        g.put(key("b"), "new")
        assert other.get(key("b")) == "new"
        assert g.delete(key("k0"))
        insert(sql, "k0")
        check = [key("a"), key("b"), key("k0")]
        assert g.get_many(check) == other.get_many(check) == ["new"] * 3
        rebuild(g)
        assert index_size(g) == 52


def test_each_guard_rebuilds_after_another_has_restored_the_triggers(users):
    sql, opened, key = users
    with tamis.Guard(opened(), telescoping()) as g, tamis.Guard(opened(), telescoping()) as other:
        assert g.get(key("a")) is other.get(key("a")) is None
        migrate(sql)
        insert(sql, "a")
        rebuild(other)
        check_whole(sql, g, key, ["a"])
        assert other.get(key("later")) == "new"


def test_a_table_that_is_gone_is_a_store_error(users):
    sql, opened, key = users
    with tamis.Guard(opened(), telescoping()) as g:
        sql("ALTER TABLE users RENAME TO people")
        for name in ("k1", "absent"):
            with pytest.raises(tamis.StoreError, match="was changed"):
                g.get(key(name))
        with pytest.raises(tamis.StoreError, match="was changed"):
            g.put(key("b"), "1")
        sql("ALTER TABLE people RENAME TO users")
        assert g.get_many([key("k1"), key("absent")]) == ["1", None]


def test_a_column_that_is_gone_is_a_store_error(users):
    sql, opened, key = users
    for column in ("born", "name"):
        with tamis.Guard(opened(), telescoping()) as g:
            sql(f"ALTER TABLE users RENAME COLUMN {column} TO other")
            with pytest.raises(tamis.StoreError, match="was changed"):
                g.get(key("k1"))
            sql(f"ALTER TABLE users RENAME COLUMN other TO {column}")
            assert g.get(key("k1")) == "1"


def test_a_trigger_that_is_gone_is_noticed(users):
    sql, opened, key = users
    store = opened()
    with tamis.Guard(store, telescoping()) as g:
        assert g.get(key("a")) is None
        if sql.kind == "SQLite":
            sql(f"DROP TRIGGER {store._base}_delete")
            sql(f"DROP TRIGGER IF EXISTS {store._base}_insert")
            sql(f"DROP TRIGGER IF EXISTS {store._base}_arrive")
        else:
            sql("ALTER TABLE users DISABLE TRIGGER ALL")
        insert(sql, "a")
        check_whole(sql, g, key, ["a"])


def test_a_version_of_the_schema_that_was_rolled_back_is_not_trusted(tmp_path):
    with closing(sqlite3.connect(tmp_path / "data.db")) as db:
        db.execute("CREATE TABLE users (k TEXT PRIMARY KEY, v TEXT)")
    store = stores.SQLite(tmp_path / "data.db", table="users", key="k", value="v")
    with tamis.Guard(store, telescoping()) as g:
        g.put("b", "2")
        seen = store._logged_version
        with suppress(RuntimeError), store._writing() as db:
            db.execute(f"DROP TRIGGER {store._base}_insert")
            store._log_again(db)
            raise RuntimeError
        assert seen is not None
        assert store._logged_version == seen
        g.put("a", "1")
        assert g.get("a") == "1"


def test_tables_with_children_are_refused(postgres_url):  # noqa: F811
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("CREATE TABLE parent (k text PRIMARY KEY, v text)")
        db.execute("CREATE TABLE child () INHERITS (parent)")
        with pytest.raises(ValueError, match="child tables"):
            stores.Postgres(postgres_url, table="parent", key="k", value="v")
        db.execute("DROP TABLE child, parent")


def test_values_may_get_another_type(postgres_url):  # noqa: F811
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("CREATE TABLE typed (k text PRIMARY KEY, v text)")
        for value, change in (("1", "bytea USING v::bytea"), (b"2", "text USING 'x'")):
            store = stores.Postgres(postgres_url, table="typed", key="k", value="v")
            with tamis.Guard(store, telescoping()) as g:
                g.put("a", value)
                assert g.get("a") == value
            db.execute(f"ALTER TABLE typed ALTER v TYPE {change}")
        db.execute("DROP TABLE typed")


def test_a_copied_table_whose_values_have_another_type_is_not_followed(postgres_url):  # noqa: F811
    """Its triggers are gone, so the journal must not be trusted by whoever opens it next."""
    import psycopg

    def opened():
        return stores.Postgres(postgres_url, table="retyped", key="k", value="v")

    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("CREATE TABLE retyped (k text PRIMARY KEY, v text)")
        store = opened()
        since = position(store)
        store.close()
        db.execute("DROP TABLE retyped")
        db.execute("CREATE TABLE retyped (k text PRIMARY KEY, v bytea)")
        db.execute("INSERT INTO retyped VALUES ('a', '1')")
        store = opened()
        assert position(store) != since
        assert store.changes(since) is None
        assert [key for part in store.contents()[1] for key in part] == [b"a"]
        assert store.changes(since) is None
        store.close()
        db.execute("DROP TABLE retyped")
