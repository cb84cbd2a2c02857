"""A guard works with exactly the rights that `sql` grants, and says what it lacks."""

from contextlib import closing

import pytest
from servers import connect_mysql, mysql_url, postgres_url  # noqa: F401

import tamis

NAMES = {"table": "people", "key": "email", "value": "name"}
ROWS = ", ".join(["('ada', 'Ada')", *(f"('person {i}', '')" for i in range(900))])


def guard_works(store, execute):
    """Run a guard with a filter that adapts, beside a writer."""
    with tamis.Guard(store, tamis.Telescoping(1000, fpr=0.05), lease=1) as g:
        assert g.get("ada") == "Ada"
        absent = [f"absent {i}" for i in range(500)]
        assert g.get_many(absent * 2) == [None] * 1000
        assert g.stats.adaptations > 0
        execute("INSERT INTO people VALUES ('alan', 'Alan')")
        assert g.get("alan") == "Alan"
        execute("DELETE FROM people WHERE email = 'alan'")
        assert g.get("alan") is None
        g.rebuild()
        assert g.get("ada") == "Ada"
        assert g.stats.trusted


@pytest.fixture
def postgres(postgres_url):  # noqa: F811
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("CREATE SCHEMA rights")
        db.execute("SET search_path = rights")
        db.execute("CREATE ROLE reader LOGIN")
        db.execute("CREATE TABLE people (email text PRIMARY KEY, name text)")
        db.execute(f"INSERT INTO people VALUES {ROWS}")
        yield db.execute, f"{postgres_url} options='-c search_path=rights'"
        db.execute("DROP SCHEMA rights CASCADE; DROP OWNED BY reader; DROP ROLE reader")


def test_rights_in_postgres(postgres):
    execute, url = postgres
    reader = url.replace("user=tamis", "user=reader")
    execute("GRANT USAGE ON SCHEMA rights TO reader")
    with pytest.raises(ValueError, match="denies it all: permission denied for table people"):
        tamis.stores.Postgres(reader, **NAMES)
    execute("GRANT SELECT ON people TO reader")
    with pytest.raises(
        ValueError, match="the role must own 'people', or its owner must run the st"
    ):
        tamis.stores.Postgres(reader, **NAMES)
    with closing(tamis.stores.Postgres(url, **NAMES, install=False)) as owner:
        execute("REVOKE ALL ON SCHEMA rights FROM reader")
        for statement in owner.sql("reader"):
            execute(statement)
    guard_works(tamis.stores.Postgres(reader, **NAMES), execute)
    with (
        closing(tamis.stores.Postgres(reader, **NAMES)) as store,
        pytest.raises(ValueError, match="must own"),
    ):
        store.unguard()
    execute("REVOKE ALL ON tamis_people_state, tamis_people_journal0 FROM reader")
    f = tamis.Bloom(1000, fpr=0.01)
    with pytest.raises(tamis.StoreError, match="permission denied for table tamis_people_"):
        tamis.Guard(tamis.stores.Postgres(reader, **NAMES), f)
    with tamis.Guard(tamis.stores.Postgres(reader, **NAMES), f, on_failure="pass") as g:
        assert (g.get("ada"), g.get("alan"), g.stats.trusted) == ("Ada", None, False)


@pytest.fixture
def mysql(mysql_url):  # noqa: F811
    pytest.importorskip("pymysql")
    with connect_mysql(mysql_url) as db, db.cursor() as cursor:
        cursor.execute("CREATE DATABASE rights CHARACTER SET utf8mb4")
        cursor.execute("USE rights")
        cursor.execute("CREATE USER reader@localhost")
        cursor.execute(
            "CREATE TABLE people (email varchar(50) COLLATE utf8mb4_nopad_bin PRIMARY KEY, "
            "name varchar(50))"
        )
        cursor.execute(f"INSERT INTO people VALUES {ROWS}")
        yield cursor.execute, mysql_url.replace("root@", "reader@").replace("/tamis", "/rights")
        cursor.execute("DROP DATABASE rights")
        cursor.execute("DROP USER reader@localhost")


def test_rights_in_mysql(mysql, mysql_url):  # noqa: F811
    execute, reader = mysql
    admin = mysql_url.replace("/tamis", "/rights")
    with pytest.raises(tamis.StoreError, match="denied"):
        tamis.stores.MySQL(reader, **NAMES)
    with closing(tamis.stores.MySQL(admin, **NAMES, install=False)) as store:
        rights = [each for each in store.sql("reader@localhost") if each.startswith("GRANT")]
    for each in rights:
        execute(each)
    guard_works(tamis.stores.MySQL(reader, **NAMES), execute)
    tamis.stores.MySQL(reader, **NAMES).unguard()
