"""Tables with a condition, values, names and connections."""

import datetime
import random
import sqlite3
import uuid
from decimal import Decimal

import pytest
from existing_tables import PostgresDatabase, SQLiteDatabase, index_size, telescoping
from servers import postgres_url  # noqa: F401

import tamis
from tamis import stores
from tamis._native import plain_key
from tamis.stores.postgres.columns import PostgresColumns
from tamis.stores.sqlite.columns import SQLiteColumns


@pytest.mark.parametrize("composite", [False, True])
def test_rows_that_do_not_satisfy_the_condition_are_absent(database, composite):
    # With the affinity of the column the condition holds for 1, and without it for no integer.
    database(
        "CREATE TABLE users (name TEXT, n INTEGER DEFAULT 0, v TEXT DEFAULT '', "
        "live INTEGER DEFAULT 1, PRIMARY KEY (name), UNIQUE (name, n))"
    )
    database("INSERT INTO users VALUES ('in', 0, 'a', 1), ('out', 0, 'b', 0)")
    key = ("name", "n") if composite else "name"
    where = "live = '1' AND name NOT LIKE 'x%'"
    store = database.store(table="users", key=key, value="v", where=where)

    def of(*names):
        return [(name, 0) for name in names] if composite else list(names)

    with tamis.Guard(store, telescoping()) as g:
        assert g.get_many(of("in", "out", "none")) == ["a", None, None]
        database("UPDATE users SET live = 1 WHERE name = 'out'")
        assert g.get_many(of("in", "out")) == ["a", "b"]
        database("UPDATE users SET live = 0")
        assert g.get_many(of("in", "out")) == [None, None]
        assert len(g.filter) == index_size(g) == 0
        database("DELETE FROM users WHERE name = 'out'")  # which is not in the filter
        database("INSERT INTO users VALUES ('late', 0, 'c', 1), ('xlate', 0, 'd', 1)")
        assert g.get_many(of("late", "xlate")) == ["c", None]
        database("UPDATE users SET name = 'xx', v = 'e' WHERE name = 'late'")
        assert g.get_many(of("late", "xx")) == [None, None]
        database("UPDATE users SET name = 'back' WHERE name = 'xx'")
        assert g.get_many(of("back")) == ["e"]
        [new, xnew, old] = of("new", "xnew", "in")
        g.put(new, "f")
        assert g.get(new) == "f"
        for refused in (xnew, old):
            with pytest.raises(ValueError, match="does not satisfy where="):
                g.put(refused, "g")
        assert database("SELECT v FROM users WHERE name = 'in'") == [("a",)]
        assert g.delete_many([old, new]) == [False, True]  # a row that is absent stays
        assert database("SELECT count(*) FROM users WHERE name = 'in'") == [(1,)]
        assert (index_size(g), len(g.filter)) == (1, 1)
        assert (g.stats.rebuilds, g.stats.passed) == (1, 0)
        g.rebuild()
        assert [*g] == [(b"back", 0) if composite else b"back"]


def test_a_condition_against_a_dictionary(database):
    """Statements of a stranger at random: the guard has exactly the rows that a query has."""
    database("CREATE TABLE t (k INTEGER PRIMARY KEY, live INTEGER, v TEXT)")
    chance = random.Random(11)
    store = database.store(table="t", key="k", value="v", where="live > 1 OR v = 'always'")
    with tamis.Guard(store, tamis.Telescoping(capacity=200, fpr=2**-12)) as g:
        for step in range(150):
            k, live = chance.randrange(12), chance.choice([0, 2, None])
            v = chance.choice(["always", "x"])
            match chance.randrange(5):
                case 0 | 1:
                    database(
                        "INSERT INTO t VALUES (?, ?, ?) ON CONFLICT (k) "
                        "DO UPDATE SET live = excluded.live, v = excluded.v", k, live, v
                    )  # fmt: skip
                case 2:
                    database("UPDATE t SET live = ? WHERE k < ?", live, k)
                case 3:
                    database("DELETE FROM t WHERE k = ?", k)
                case 4:
                    database("DELETE FROM t WHERE k = ?", k + 100)
                    database("UPDATE t SET k = k + 100 WHERE k = ?", k)
            rows = dict(database("SELECT k, v FROM t WHERE live > 1 OR v = 'always'"))
            asked = range(120)
            assert g.get_many(asked) == [rows.get(i) for i in asked], step
            if step % 10 == 0:
                assert len(g.filter) == index_size(g) == len(rows)
            if isinstance(database, PostgresDatabase):
                continue  # whose journal is not in order; test_following.py compares its sums
            # A key that was not there is not removed: that might take another key's slot.
            there = set()
            query = f"SELECT key, added FROM {store._t_journal} WHERE key IS NOT NULL ORDER BY seq"
            for key, added in database(query):
                assert (key in there) != bool(added)
                there ^= {key}
            assert there == set(rows)
        assert (g.stats.rebuilds, g.stats.passed) == (1, 0)


@pytest.mark.parametrize(
    "where",
    [
        "no such column > 1",
        "n > (SELECT 1)",
        "n > random()",
        "n > ?",
        "n > 1) OR (n < 1",
        "n > 1; DROP TABLE t",
        "n > 1;",
        "n > 1; -- more",
        "n > 1 /*",
        "",
    ],
)
def test_a_condition_must_be_about_the_columns_of_a_row(database, where):
    database("CREATE TABLE t (k TEXT PRIMARY KEY, n INTEGER, v TEXT)")
    with pytest.raises(ValueError, match="where must be a condition on columns of"):
        database.store(table="t", key="k", value="v", where=where)
    database("INSERT INTO t VALUES ('a', 1, '')")


def test_a_condition_runs_no_other_statement(database):
    database("CREATE TABLE t (k TEXT PRIMARY KEY, n INTEGER, v TEXT)")
    database("CREATE TABLE other (k TEXT)")
    other = f"{database.schema}.other"
    for where in (f"true; COMMIT; DROP TABLE {other}; BEGIN", f"n > 1; COMMIT; DROP TABLE {other}"):
        with pytest.raises(ValueError, match="where must be a condition on columns of"):
            database.store(table="t", key="k", value="v", where=where)
        assert database("SELECT * FROM other") == []


def test_sqlite_statements_that_replace_rows_keep_the_condition(tmp_path):
    """It deletes rows without firing triggers, and overrides the conflict policy in triggers."""
    database = SQLiteDatabase(tmp_path / "data.db")
    database("CREATE TABLE t (k TEXT PRIMARY KEY, live INTEGER)")
    store = database.store(table="t", key="k", value="k", where="live")
    with tamis.Guard(store, telescoping()) as g:
        for policy in ("REPLACE", "IGNORE", "ABORT", "FAIL", "ROLLBACK"):
            database("DELETE FROM t")
            for live in (1, 1, 0, 0, 1):
                try:
                    database(f"INSERT OR {policy} INTO t VALUES ('a', ?)", live)
                except sqlite3.IntegrityError:
                    assert policy in ("ABORT", "FAIL", "ROLLBACK")
                there = database("SELECT k FROM t WHERE live")
                assert g.get_many(["a"]) == ["a" if there else None]
                assert len(g.filter) == index_size(g) == len(there)
    database.db.close()


def test_a_condition_needs_a_table(tmp_path):
    with pytest.raises(ValueError, match="pass where only with table"):
        stores.SQLite(tmp_path / "data.db", where="x > 1")


def test_postgres_conditions_keep_the_search_path_they_were_made_with(postgres_url):  # noqa: F811
    """A stranger without it fires the same triggers, and a function of its own is not called."""
    import psycopg

    database = PostgresDatabase(postgres_url)
    database("CREATE TABLE t (k TEXT PRIMARY KEY, v TEXT)")
    database("CREATE FUNCTION fine(text) RETURNS boolean IMMUTABLE LANGUAGE sql AS "
             "$$ SELECT $1 LIKE 'a%' $$")  # fmt: skip
    url = f"{postgres_url} options='-c search_path={database.schema}'"
    store = stores.Postgres(url, table="t", key="k", value="v", where="fine(k)")
    with (
        tamis.Guard(store, telescoping()) as g,
        psycopg.connect(postgres_url, autocommit=True) as db,
    ):
        db.execute(f"INSERT INTO {database.schema}.t VALUES ('ab', '1'), ('b', '2')")
        assert g.get_many(["ab", "b"]) == ["1", None]
    database.db.close()


def test_values_of_any_type_pass_through(database):
    if database.kind == "SQLite":
        database("CREATE TABLE t (k TEXT PRIMARY KEY, v)")
        values = [5, -1.5, b"\0\xff", "text", 2**62]
    else:
        import psycopg.types.json

        database("CREATE TABLE t (k TEXT PRIMARY KEY, v jsonb)")
        values = [{"a": [1, None]}, [1, 2], "text", 5, True]
    with tamis.Guard(database.store(table="t", key="k", value="v"), telescoping()) as g:
        keys = [f"k{i}" for i in range(len(values))]
        if database.kind == "SQLite":
            g.put_many(zip(keys, values, strict=True))
        else:
            g.put_many((k, psycopg.types.json.Jsonb(v)) for k, v in zip(keys, values, strict=True))
        assert g.get_many(keys) == values
        database("INSERT INTO t VALUES ('nothing', NULL)")
        assert g.get("nothing") == ""
        with pytest.raises(TypeError, match="the value of key 'k0' must be"):
            g.put("k0", None)


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("integer", 5),
        ("numeric", Decimal("1.50")),
        ("boolean", False),
        ("date", datetime.date(1815, 12, 10)),
        ("timestamptz", datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC)),
        ("double precision", 0.5),
        ("uuid", uuid.UUID(int=9)),
        ("text[]", ["a", "b"]),
        ("text", "text"),
        ("bytea", b"\0"),
    ],
)
def test_postgres_values_have_the_type_of_the_driver(postgres_url, declared, value):  # noqa: F811
    database = PostgresDatabase(postgres_url)
    database(f"CREATE TABLE t (k INTEGER PRIMARY KEY, v {declared})")
    with tamis.Guard(database.store(table="t", key="k", value="v"), telescoping()) as g:
        g.put(1, value)
        g.put_many({2: value, 3: value})
        assert g.get_many([1, 2, 3]) == [value] * 3
    database.db.close()


def test_a_table_of_the_guards_own_takes_bytes_and_text(tmp_path):
    with (
        tamis.Guard(stores.SQLite(tmp_path / "data.db"), telescoping()) as g,
        pytest.raises(TypeError, match="the value of key 'a' must be bytes or str, not 5"),
    ):
        g.put("a", 5)


def test_a_schema_and_a_dot_in_a_name(postgres_url):  # noqa: F811
    database = PostgresDatabase(postgres_url)
    schema = database.schema
    database("CREATE TABLE t (k TEXT PRIMARY KEY, v TEXT)")
    database(f'CREATE TABLE public."{schema}.t" (k TEXT PRIMARY KEY, v TEXT)')
    database("INSERT INTO t VALUES ('a', 'in the schema')")
    database(f"""INSERT INTO public."{schema}.t" VALUES ('a', 'in the name')""")
    names = {"table": f"{schema}.t", "key": "k", "value": "v"}
    with tamis.Guard(stores.Postgres(postgres_url, **names), telescoping()) as g:
        assert g.get("a") == "in the name"
    database(f'DROP TABLE public."{schema}.t"')
    with tamis.Guard(stores.Postgres(postgres_url, **names), telescoping()) as g:
        assert g.get("a") == "in the schema"
        database("INSERT INTO t VALUES ('b', 'later')")
        assert g.get("b") == "later"
    assert database(f"SELECT to_regclass('{schema}.tamis_t_meta') IS NULL") == [(False,)]
    with pytest.raises(ValueError, match=r"must be a table of the database, not 'nowhere\.t'"):
        stores.Postgres(postgres_url, table="nowhere.t", key="k", value="v")
    database.db.close()


ODD_NAMES = [
    "a$$b", "$tamis$", 'a"b', "it's", "a\nb", "A b", "a;b--", "a\\b", "a.b", "{a}", "select", "é"
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "condition"),
    [*((name, False) for name in ODD_NAMES), *((name, True) for name in ODD_NAMES[:4])],
)
def test_names_of_tables_and_columns_have_no_meaning(database, name, condition):
    table, key, value, live = (
        '"{}"'.format((name + part).replace('"', '""')) for part in ("", "k", "v", "l")
    )
    database(
        f"CREATE TABLE {table} ({key} TEXT PRIMARY KEY, {value} TEXT, {live} INTEGER DEFAULT 1)"
    )
    database(f"INSERT INTO {table} VALUES ('a', 'b', 1)")
    names = {"table": name, "key": f"{name}k", "value": f"{name}v"}
    names["where"] = f"{live} = 1" if condition else None
    with tamis.Guard(database.store(**names), telescoping()) as g:
        g.put("own", "x")
        database(f"INSERT INTO {table} VALUES ('other', 'y', 1)")
        database(f"UPDATE {table} SET {key} = 'renamed' WHERE {key} = 'a'")
        assert g.get_many(["a", "renamed", "own", "other"]) == [None, "b", "x", "y"]
        assert g.delete("own")
        assert g.stats.rebuilds == 1
    database.store(**names).unguard()
    assert database(f"SELECT {key} FROM {table} ORDER BY 1") == [("other",), ("renamed",)]


def test_postgres_names_of_schemas_have_no_meaning(postgres_url):  # noqa: F811
    database = PostgresDatabase(postgres_url)
    # Then a backslash in a string has a meaning.
    url = f"{postgres_url} options='-c standard_conforming_strings=off'"
    for name in ("a$$b", 'a"b', "a'b", "A b", "a\\b", "a\\'b"):
        schema = '"{}"'.format(name.replace('"', '""'))
        database(f"CREATE SCHEMA {schema}")
        database(f"""CREATE TABLE {schema}."t\\'t" (k TEXT PRIMARY KEY, v TEXT)""")
        store = stores.Postgres(url, table=f"{name}.t\\'t", key="k", value="v")
        with tamis.Guard(store, telescoping()) as g:
            g.put("own", "x")
            database(f"""INSERT INTO {schema}."t\\'t" VALUES ('other', 'y')""")
            assert g.get_many(["own", "other", "none"]) == ["x", "y", None]
    with pytest.raises(ValueError, match="must not contain a null character or a percent sign"):
        stores.Postgres(url, table="a%b", key="k", value="v")
    database.db.close()


def test_sqlalchemy_engines(database):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    database("CREATE TABLE t (k TEXT PRIMARY KEY, v TEXT)")
    database("INSERT INTO t VALUES ('a', '1')")
    if database.kind == "SQLite":
        engine, cls, other = (
            sqlalchemy.create_engine(f"sqlite:///{database.where}"), stores.SQLite, stores.Postgres
        )  # fmt: skip
    else:
        at = dict(part.split("=") for part in database.where.split())
        url = sqlalchemy.URL.create(
            "postgresql+psycopg", at["user"], "a p@ss'word", at["host"], int(at["port"]),
            at["dbname"], {"options": f"-csearch_path={database.schema}", "prepared": "no"},
        )  # fmt: skip
        engine, cls, other = sqlalchemy.create_engine(url), stores.Postgres, stores.SQLite
    with tamis.Guard(cls(engine, table="t", key="k", value="v"), telescoping()) as g:
        assert g.get("a") == "1"
    with pytest.raises(ValueError, match="an engine of SQLAlchemy must be for"):
        other(engine, table="t", key="k", value="v")
    with pytest.raises(TypeError, match=r"pass tamis.stores.SQLite\(engine, …\)"):
        tamis.Guard(engine)
    engine.dispose()


def test_engines_of_databases_in_memory_are_refused():
    sqlalchemy = pytest.importorskip("sqlalchemy")
    for url in ("sqlite://", "sqlite:///:memory:", "sqlite:///file:x?uri=true"):
        with pytest.raises(ValueError, match="path must be a database in a file"):
            stores.SQLite(sqlalchemy.create_engine(url))


def test_django_connections(database):
    django = pytest.importorskip("django.db.backends.signals")  # noqa: F841
    from django.db.utils import ConnectionHandler

    database("CREATE TABLE t (k TEXT PRIMARY KEY, v TEXT)")
    database("INSERT INTO t VALUES ('a', '1')")
    if database.kind == "SQLite":
        settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": database.where}
    else:
        at = dict(part.split("=") for part in database.where.split())
        settings = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": at["dbname"],
            "USER": at["user"],
            "HOST": at["host"],
            "PORT": at["port"],
            "OPTIONS": {"options": f"-c search_path={database.schema}", "pool": True},
        }
    cls, other = stores.SQLite, stores.Postgres
    if database.kind == "Postgres":
        cls, other = other, cls
    connection = ConnectionHandler({"default": settings})["default"]
    with tamis.Guard(cls(connection, table="t", key="k", value="v"), telescoping()) as g:
        assert g.get("a") == "1"
    with pytest.raises(ValueError, match="a connection of Django must be for"):
        other(connection, table="t", key="k", value="v")


BYTES_AND_NUMBERS = [
    SQLiteColumns(("a", "b"), ["blob", "integer"], [None, None], own=False),
    PostgresColumns(("a", "b"), ["bytea", "integer"], own=False),
]


@pytest.mark.parametrize("columns", BYTES_AND_NUMBERS, ids=["sqlite", "postgres"])
def test_what_several_columns_cannot_hold_is_absent(columns):
    key = columns.to_plain((b"x", 5))
    assert columns.to_column(key) == "b78,i5"
    assert columns.row_key("b78,i5") == [b"x", 5]
    assert columns.from_plain(columns.from_column("b78,i5")) == (b"x", 5)
    for parts in ((5, 5), (b"x", b"y"), (b"x", 2**63), (b"x",), (b"x", 5, 6)):
        assert columns.to_column(plain_key(parts)) is None
    for wrong in (7, b"x", b"\xff"):  # which a table with other key columns may have
        assert columns.to_column(wrong) is None
    with pytest.raises(TypeError, match=r"column 'a' and 'b' of 't' cannot hold the key \(5, 5\)"):
        columns.require_column(plain_key((5, 5)), "t")
    with pytest.raises(TypeError, match=r"column 'b', of type \w+, must be an integer, not dat"):
        columns.to_plain((b"x", datetime.date(2024, 1, 1)))
