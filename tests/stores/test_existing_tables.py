"""Tables that were there before: keys of several columns, UUIDs, conditions, values of any type."""

import datetime
import itertools
import random
import sqlite3
import uuid
from decimal import Decimal

import pytest
from servers import postgres_url  # noqa: F401

import tamis
from tamis import stores
from tamis._native import plain_key
from tamis.stores._postgres_columns import PostgresColumns
from tamis.stores._sqlite_columns import SQLiteColumns

_names = itertools.count()


def quotient():
    return tamis.Quotient(capacity=2000, fpr=2**-4)


class SQLiteDatabase:
    """A file, and a stranger's connection to it."""

    kind, mark, uuid = "SQLite", "?", "CHAR(32)"

    def __init__(self, path):
        self.where, self.schema = path, "main"
        self.db = sqlite3.connect(path, isolation_level=None)

    def __call__(self, statement, *parameters):
        return self.db.execute(statement, parameters).fetchall()

    def to_column(self, key):
        return key.hex

    def store(self, **names):
        return stores.SQLite(self.where, **names)


class PostgresDatabase:
    """A schema of its own in a database, and a stranger's connection to it."""

    kind, mark, uuid = "Postgres", "%s", "uuid"

    def __init__(self, url):
        import psycopg

        self.where, self.schema = url, f"app{next(_names)}"
        self.db = psycopg.connect(url, autocommit=True)
        self.db.execute(f"CREATE SCHEMA {self.schema}")
        self.db.execute(f"SET search_path = {self.schema}")

    def __call__(self, statement, *parameters):
        cursor = self.db.execute(statement.replace("?", "%s") if parameters else statement,
                                 parameters or None)  # fmt: skip
        return cursor.fetchall() if cursor.description else []

    def to_column(self, key):
        return key

    def store(self, *, table, **names):
        return stores.Postgres(self.where, table=f"{self.schema}.{table}", **names)


@pytest.fixture(params=["SQLite", "Postgres"])
def database(request, tmp_path):
    if request.param == "SQLite":
        opened = SQLiteDatabase(tmp_path / "data.db")
    else:
        opened = PostgresDatabase(request.getfixturevalue("postgres_url"))
    yield opened
    opened.db.close()


def index_size(g):
    return len(g.store.run(0, 2**64 - 1))


# Keys of several columns.


def test_keys_of_several_columns(database):
    database("CREATE TABLE visits (region TEXT, id INTEGER, seen TEXT, PRIMARY KEY (region, id))")
    database("INSERT INTO visits VALUES ('eu', 1, 'a'), ('eu', 2, 'b'), ('é,b', 1, 'c')")
    names = {"table": "visits", "key": ["region", "id"], "value": "seen"}
    with tamis.Guard(database.store(**names), quotient()) as g:
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
        assert (len(g.filter), index_size(g), g.stats.rebuilds, g.stats.passed) == (3, 3, 1, 0)
        for wrong in ("eu", 5, ("eu",), ("eu", 1, 2), ["eu", 1]):
            with pytest.raises(TypeError, match=r"a tuple of 2 values, \(region, id\), not"):
                g.get(wrong)
        with pytest.raises(TypeError, match=r"cannot hold the key \(1, b'eu'\)"):
            g.put((1, "eu"), "x")
        assert g.get((1, "eu")) is None
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
    with tamis.Guard(database.store(**names), quotient()) as g:
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
    with tamis.Guard(database.store(table="t", key=("a", "b"), value="v"), quotient()) as g:
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
        tamis.Guard(one, quotient()) as g,
        tamis.Guard(two, quotient()) as h,
        tamis.Guard(three, quotient()) as i,
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


# UUIDs.


def test_uuid_keys(database):
    database(f"CREATE TABLE t (id {database.uuid} PRIMARY KEY, v TEXT)")
    chance = random.Random(3)
    ids = [uuid.UUID(int=chance.getrandbits(128)) for _ in range(40)]
    with tamis.Guard(database.store(table="t", key="id", value="v"), quotient()) as g:
        for i in ids[:20]:
            database("INSERT INTO t VALUES (?, ?)", database.to_column(i), str(i))
        g.put_many({i: str(i) for i in ids[20:]})
        assert g.get_many(ids) == [str(i) for i in ids]
        assert [g.get(i) for i in ids] == [str(i) for i in ids]
        assert g.get(uuid.UUID(int=5)) is None
        assert {row[0] for row in database("SELECT id FROM t")} == set(map(database.to_column, ids))
        assert g.delete_many([ids[0], ids[-1]]) == [True, True]
        assert len(g.filter) == index_size(g) == 38
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
    with tamis.Guard(database.store(table="t", key="id", value="v"), quotient()) as g:
        g.put(two, "two")
        assert g.get_many([one, form(one), two]) == ["one", "one", "two"]
        assert database("SELECT id FROM t WHERE v = 'two'") == [(form(two),)]
    database.db.close()


def test_uuids_in_a_key_of_several_columns(database):
    database(f"CREATE TABLE t (tenant {database.uuid}, n INTEGER, v TEXT, UNIQUE (tenant, n))")
    one = uuid.UUID(int=2**127 + 5)
    database("INSERT INTO t VALUES (?, 1, 'one')", database.to_column(one))
    with tamis.Guard(database.store(table="t", key=("tenant", "n"), value="v"), quotient()) as g:
        database("INSERT INTO t VALUES (?, 2, 'two')", database.to_column(one))
        g.put((one, 3), "three")
        assert g.get_many([(one, 1), (one, 2), (one, 3), (one, 4)]) == ["one", "two", "three", None]


# A condition.


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

    with tamis.Guard(store, quotient()) as g:
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
        assert (len(g.filter), index_size(g)) == (1, 1)
        assert (g.stats.rebuilds, g.stats.passed) == (1, 0)
        g.rebuild()
        assert [*g] == [(b"back", 0) if composite else b"back"]


def test_a_condition_against_a_dictionary(database):
    """Statements of a stranger at random: the guard has exactly the rows that a query has."""
    database("CREATE TABLE t (k INTEGER PRIMARY KEY, live INTEGER, v TEXT)")
    chance = random.Random(11)
    store = database.store(table="t", key="k", value="v", where="live > 1 OR v = 'always'")
    with tamis.Guard(store, tamis.Quotient(capacity=200, fpr=2**-12)) as g:
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
        "",
    ],
)
def test_a_condition_must_be_about_the_columns_of_a_row(database, where):
    database("CREATE TABLE t (k TEXT PRIMARY KEY, n INTEGER, v TEXT)")
    with pytest.raises(ValueError, match="where must be a condition on columns of"):
        database.store(table="t", key="k", value="v", where=where)
    database("INSERT INTO t VALUES ('a', 1, '')")


def test_sqlite_statements_that_replace_rows_keep_the_condition(tmp_path):
    """It deletes rows without firing triggers, and overrides the conflict policy in triggers."""
    database = SQLiteDatabase(tmp_path / "data.db")
    database("CREATE TABLE t (k TEXT PRIMARY KEY, live INTEGER)")
    store = database.store(table="t", key="k", value="k", where="live")
    with tamis.Guard(store, quotient()) as g:
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
    with tamis.Guard(store, quotient()) as g, psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(f"INSERT INTO {database.schema}.t VALUES ('ab', '1'), ('b', '2')")
        assert g.get_many(["ab", "b"]) == ["1", None]
    database.db.close()


# Values.


def test_values_of_any_type_pass_through(database):
    if database.kind == "SQLite":
        database("CREATE TABLE t (k TEXT PRIMARY KEY, v)")
        values = [5, -1.5, b"\0\xff", "text", 2**62]
    else:
        import psycopg.types.json

        database("CREATE TABLE t (k TEXT PRIMARY KEY, v jsonb)")
        values = [{"a": [1, None]}, [1, 2], "text", 5, True]
    with tamis.Guard(database.store(table="t", key="k", value="v"), quotient()) as g:
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
    with tamis.Guard(database.store(table="t", key="k", value="v"), quotient()) as g:
        g.put(1, value)
        g.put_many({2: value, 3: value})
        assert g.get_many([1, 2, 3]) == [value] * 3
    database.db.close()


def test_a_table_of_the_guards_own_takes_bytes_and_text(tmp_path):
    with (
        tamis.Guard(stores.SQLite(tmp_path / "data.db"), quotient()) as g,
        pytest.raises(TypeError, match="the value of key 'a' must be bytes or str, not 5"),
    ):
        g.put("a", 5)


# Names and connections.


def test_a_schema_and_a_dot_in_a_name(postgres_url):  # noqa: F811
    database = PostgresDatabase(postgres_url)
    schema = database.schema
    database("CREATE TABLE t (k TEXT PRIMARY KEY, v TEXT)")
    database(f'CREATE TABLE public."{schema}.t" (k TEXT PRIMARY KEY, v TEXT)')
    database("INSERT INTO t VALUES ('a', 'in the schema')")
    database(f"""INSERT INTO public."{schema}.t" VALUES ('a', 'in the name')""")
    names = {"table": f"{schema}.t", "key": "k", "value": "v"}
    with tamis.Guard(stores.Postgres(postgres_url, **names), quotient()) as g:
        assert g.get("a") == "in the name"
    database(f'DROP TABLE public."{schema}.t"')
    with tamis.Guard(stores.Postgres(postgres_url, **names), quotient()) as g:
        assert g.get("a") == "in the schema"
        database("INSERT INTO t VALUES ('b', 'later')")
        assert g.get("b") == "later"
    assert database(f"SELECT to_regclass('{schema}.tamis_t_meta') IS NULL") == [(False,)]
    with pytest.raises(ValueError, match=r"must be a table of the database, not 'nowhere\.t'"):
        stores.Postgres(postgres_url, table="nowhere.t", key="k", value="v")
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
    with tamis.Guard(cls(engine, table="t", key="k", value="v"), quotient()) as g:
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
    with tamis.Guard(cls(connection, table="t", key="k", value="v"), quotient()) as g:
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
    with pytest.raises(TypeError, match="a key of column 'b' must be text, bytes, an integer or"):
        columns.to_plain((b"x", datetime.date(2024, 1, 1)))
