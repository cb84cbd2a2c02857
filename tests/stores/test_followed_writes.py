"""A guard of a PostgreSQL table that others write is a guest: refusals, rights, writes, index."""

import threading
import time
from contextlib import closing

import psycopg
import pytest
from followed import Table, hasher, hashes, indexed, read
from servers import postgres_url  # noqa: F401

import tamis


@pytest.fixture
def table(postgres_url):  # noqa: F811
    with closing(Table(postgres_url)) as table:
        yield table


# What is refused.


def refused(there, match, **options):
    with pytest.raises(ValueError, match=match):
        there.store(**options)


def test_what_cannot_be_followed_is_refused(table):
    table("CREATE COLLATION nd (provider = icu, locale = 'und', deterministic = false)")
    table("ALTER TABLE t ALTER COLUMN k TYPE text COLLATE nd")
    refused(table, "must have a deterministic collation, not 'nd' as column 'k'")
    table('ALTER TABLE t ALTER COLUMN k TYPE text COLLATE "C"')
    table("CREATE TABLE child () INHERITS (t)")
    refused(table, "has child tables")
    table('DROP TABLE child; CREATE TABLE parent (k text COLLATE "C", v text)')
    table("ALTER TABLE t INHERIT parent")
    refused(table, "must not be a partition or a child of another one, as 't' is of .*parent")
    table("ALTER TABLE t NO INHERIT parent; CREATE VIEW w AS SELECT * FROM t")
    refused(table, "must be a table", table=f"{table.schema}.w")
    for where, why in (
        ("now() > '2020-01-01'", "IMMUTABLE"),
        ("true; SELECT 1", "multiple commands"),
        ("true) OR (true", "syntax error"),
        ("true ORDER BY 1", "syntax error"),
        ("/* true", "unterminated"),
    ):
        refused(table, f"(?s)where must be a condition on columns of .*{why}", where=where)
    assert table("SELECT count(*) FROM t") == [(2,)]
    assert table("SELECT relname FROM pg_class WHERE relname LIKE 'tamis%' "
                 f"AND relnamespace = '{table.schema}'::regnamespace") == []  # fmt: skip


def test_rows_that_a_policy_hides_are_refused(table):
    table("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN")
    table(f"GRANT USAGE, CREATE ON SCHEMA {table.schema} TO reader; ALTER TABLE t OWNER TO reader")
    reader = f"{table.url} user=reader"
    store = table.store(reader)
    _, keys = read(store)
    assert keys == {b"a", b"b"}
    table("ALTER TABLE t ENABLE ROW LEVEL SECURITY; ALTER TABLE t FORCE ROW LEVEL SECURITY")
    table("CREATE POLICY visible ON t USING (k = 'a')")
    with pytest.raises(tamis.StoreError, match="must not hide rows from this role"):
        store.contents()
    refused(table, "must not hide rows from this role", conninfo=reader)


def test_text_of_no_encoding_is_refused(postgres_url):  # noqa: F811
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("DROP DATABASE IF EXISTS bytes")
        db.execute("CREATE DATABASE bytes ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    with closing(Table(f"{postgres_url} dbname=bytes")) as table:
        refused(table, "must have an encoding that can be converted to UTF-8, not SQL_ASCII")


# A guest that does no harm.


def test_writers_do_not_wait_for_a_store_that_waits_for_the_table(table):
    opened = []
    with table.connect() as holder, table.connect("-c lock_timeout=5s") as writer:
        holder.execute("BEGIN; INSERT INTO t VALUES ('held', '')")
        opening = threading.Thread(target=lambda: opened.append(table.store()))
        opening.start()
        for i in range(100):
            writer.execute(f"INSERT INTO t VALUES ('w{i}', '')")
            time.sleep(0.005)
        assert not opened
        holder.execute("COMMIT")
        opening.join(30)
    assert len(read(opened[0])[1]) == 103


def test_a_stranger_needs_no_rights_and_cannot_borrow_any(table):
    table("DROP ROLE IF EXISTS stranger; CREATE ROLE stranger LOGIN")
    table(f"GRANT USAGE, CREATE ON SCHEMA {table.schema} TO stranger")
    table("GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON t TO stranger")
    store = table.store()
    position, _ = read(store)
    with psycopg.connect(f"{table.url} user=stranger", autocommit=True) as db:
        db.execute(f"SET search_path = {table.schema}, pg_catalog")
        # An operator that a function without qualified names would call with its owner's rights.
        for left, right in (
            ("text", "text"),
            ("bigint", "integer"),
            ("bigint", "double precision"),
        ):
            db.execute(
                f"CREATE FUNCTION steal({left}, {right}) RETURNS boolean LANGUAGE sql "
                "AS 'SELECT NULL::boolean'"
            )
            for operator in ("=", "<", ">"):
                db.execute(
                    f"CREATE OPERATOR {operator} (LEFTARG = {left}, RIGHTARG = {right}, "
                    "FUNCTION = steal)"
                )
        t = f"{table.schema}.t"
        db.execute(f"INSERT INTO {t} VALUES ('c', '')")
        db.execute(f"DELETE FROM {t} WHERE k OPERATOR(pg_catalog.=) 'a'")
        db.execute(f"UPDATE {t} SET k = 'd' WHERE k OPERATOR(pg_catalog.=) 'b'")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            db.execute("SELECT * FROM tamis_t_journal0")
        db.execute("CREATE TABLE mine (k text, v text)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            db.execute(
                "CREATE TRIGGER forged AFTER DELETE ON mine REFERENCING OLD TABLE AS old_rows "
                "EXECUTE FUNCTION tamis_t_delete()"
            )
    changes = store.changes(position)
    assert (sorted(changes.added), sorted(changes.removed)) == ([b"c", b"d"], [b"a", b"b"])


def test_unguard_leaves_nothing_behind(table):
    objects = "SELECT count(*) FROM {} WHERE {} = '{}'::regnamespace"
    counts = [
        objects.format("pg_class", "relnamespace", table.schema),
        objects.format("pg_proc", "pronamespace", table.schema),
        "SELECT count(*) FROM pg_trigger WHERE tgrelid = 't'::regclass",
    ]
    before = [table(count) for count in counts]
    store = table.store(where="v <> ''")
    assert store.lease("one", 60)
    store.attach("one", hasher, b"1")
    assert [table(count) for count in counts] != before
    store.unguard()
    assert [table(count) for count in counts] == before


def test_an_owner_installs_for_a_role_with_few_rights(table):
    table("DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN")
    table(f"GRANT USAGE ON SCHEMA {table.schema} TO guest")
    guest = f"{table.url} user=guest"
    with pytest.raises((ValueError, tamis.StoreError)):
        table.store(guest)
    owner = table.store(install=False)
    statements = owner.sql("guest")
    assert not owner.installed
    for statement in statements:
        table(statement)
    assert owner.installed
    store = table.store(guest)
    position, keys = read(store)
    table("INSERT INTO t VALUES ('c', '')")
    assert (keys, store.changes(position).added) == ({b"a", b"b"}, [b"c"])


def test_names_may_contain_anything(table):
    name, key = "we\"ird '\\ $$ $tamis$ tab", "k $$ \\ '\" y"
    quoted, column = (f'"{each.replace(chr(34), chr(34) * 2)}"' for each in (name, key))
    table(f"CREATE TABLE {quoted} ({column} text PRIMARY KEY, v text, d boolean)")
    store = table.store(
        table=f"{table.schema}.{name}", key=key, where=f"d IS NOT true AND {column} <> '$$'"
    )
    position, _ = read(store)
    table(f"INSERT INTO {quoted} VALUES ('a', ''), ('$$', '')")
    table(f"INSERT INTO {quoted} SELECT g::text, '' FROM generate_series(1, 600) AS g")
    assert len(store.changes(position).added) == 601
    store.unguard()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_the_isolation_of_the_database_does_not_matter(table, level):
    escaped = level.replace(" ", r"\\ ")
    conninfo = f"{table.url} options='-c default_transaction_isolation={escaped}'"
    store = table.store(conninfo)
    position, _ = read(store)
    for i in range(3):
        table(f"INSERT INTO t VALUES ('{i}', '')")
        changes = store.changes(position)
        assert changes.added == [b"%d" % i]
        store.put_many([b"p%d" % i], ["v"], "one", changes.position)
        changes = store.changes(changes.position)
        assert changes.added == [b"p%d" % i]
        position = changes.position


# Writes and the index.


def test_writes_without_a_lease_tell_what_existed_and_what_changed(table):
    store = table.store()
    position, _ = read(store)
    table("INSERT INTO t VALUES ('c', '')")
    commit = store.put_many([b"a", b"d", b"e"], ["x", b"y", "z"], "nobody", position)
    assert commit.existed == [True, False, False]
    changes = store.changes(position)
    assert sorted(changes.added) == [b"c", b"d", b"e"]
    commit = store.delete_many([b"a", b"nowhere", 5], "nobody", position)
    assert commit.existed == [True, False, False]
    assert store.changes(changes.position).removed == [b"a"]
    assert store.put_many([b"f"], ["x"], "nobody", "unknown") == ([False], None)
    assert store.put_many([], [], "nobody", position).existed == []
    table("ALTER TABLE t ALTER COLUMN v SET NOT NULL")
    with pytest.raises(psycopg.errors.NotNullViolation):
        store.put_many([b"g"], [None], "nobody", position)
    assert store.get_many([b"g", b"d"]) == [None, r"\x79"]


@pytest.mark.parametrize("on_failure", ["raise", "pass"])
def test_writes_after_unguard_elsewhere_are_writes(table, on_failure):
    """Nobody is told that a write failed which took place."""
    with tamis.Guard(
        table.store(), tamis.Bloom(capacity=1000, fpr=0.01), on_failure=on_failure
    ) as g:
        g.put("mine", "x")
        assert g.get("nobody") is None
        table.store().unguard()
        for i in range(100):  # more than without a change check
            g.put(f"after {i}", "y")
        assert g.delete("mine")
        assert g.delete_many(["after 0", "nobody"]) == [True, False]
        assert table("SELECT count(*) FROM t WHERE k LIKE 'after%'") == [(99,)]
        if on_failure == "pass":
            assert [g.get("after 7"), g.get("after 0"), g.get("b")] == ["y", None, "2"]
        else:
            with pytest.raises(tamis.StoreError, match="was changed since the store was opened"):
                g.get("nobody")


def test_puts_into_partitions_and_under_conditions(table):
    table("DROP TABLE t; CREATE TABLE t (k integer PRIMARY KEY, v text) PARTITION BY HASH (k)")
    table("CREATE TABLE t0 PARTITION OF t FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    store = table.store(where="v <> 'gone'")
    position, _ = read(store)
    table("INSERT INTO t VALUES (1, 'gone'), (2, 'x')")
    commit = store.put_many([1, 2, 3], ["a", "b", "c"], "", position)
    changes = store.changes(position)
    assert (commit.existed, sorted(changes.added)) == ([False, True, False], [1, 2, 3])
    with pytest.raises(ValueError, match="the row of key 4 does not satisfy where="):
        store.put_many([5, 4], ["x", "gone"], "", position)
    assert store.get_many([4, 5]) == [None, None]
    store.put_many(range(10, 2010), ["x"] * 2000, "", position)
    assert len(store.changes(changes.position).added) == 2000


def test_deferrable_keys_are_followed_but_not_put(table):
    table("DROP TABLE t; CREATE TABLE t (k integer UNIQUE DEFERRABLE, v text)")
    table("INSERT INTO t SELECT g, '' FROM generate_series(1, 1000) AS g")
    store = table.store()
    position, _ = read(store)
    table("UPDATE t SET k = k + 1")
    changes = store.changes(position)
    assert (changes.added, changes.removed) == ([1001], [1])
    with pytest.raises(ValueError, match="that is not deferrable; nothing was written"):
        store.put_many([5], [""], "", position)


def test_the_index_follows_what_the_guard_is_given(table, monkeypatch):
    monkeypatch.setattr("tamis.stores.postgres.index.MAX_TAIL", 8)
    store = table.store()
    with pytest.raises(tamis.LeaseError):
        store.attach("one", hasher, b"1")
    assert store.lease("one", 60)
    store.attach("one", hasher, b"1")
    assert indexed(store) == hashes("a", "b")
    position, keys = read(store)
    for i in range(10):
        table(f"INSERT INTO t VALUES ('{i}', ''), ('x{i}', '')")
        table(f"DELETE FROM t WHERE k = 'x{i - 1}'")
        assert indexed(store) == hashes(*keys)
        changes = store.changes(position)
        position = changes.position
        keys = (keys | {*changes.added}) - {*changes.removed}
        assert indexed(store) == hashes(*keys)
    assert len(store.run(0, 2**64 - 1)) == len(keys)
    table("INSERT INTO t VALUES ('gap', '')")
    keys.add(b"gap")
    store.changes(read(store)[0])  # from another position than the last one
    assert indexed(store) == hashes(*keys)
    store.put_many([b"put"], [""], "one", position)
    store.changes(position)
    assert indexed(store) == hashes(*keys, "put")
    store.release("one")
    other = table.store()
    table("INSERT INTO t VALUES ('between', '')")
    assert other.lease("two", 60)
    oid = table("SELECT 'tamis_t_hash'::regclass::oid")
    other.attach("two", hasher, b"1")
    assert indexed(other) == hashes(*keys, "put", "between")
    assert table("SELECT 'tamis_t_hash'::regclass::oid") == oid  # not built again
    table("TRUNCATE t; INSERT INTO t VALUES ('z', '')")
    assert other.changes(position) is None
    position, keys = read(other)
    assert (keys, indexed(other)) == ({b"z"}, hashes("z"))
    table("INSERT INTO t VALUES ('y', '')")
    other.changes(position)
    assert indexed(other) == hashes("z", "y")
