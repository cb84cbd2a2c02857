"""``tamis guard`` in front of tables of real servers: trials, dry runs, installing and removing."""

import contextlib
import json
import sqlite3
import uuid
from types import SimpleNamespace

import pytest
from command import ASKED, KEYS, refused
from servers import connect_mysql, mysql_url, postgres_url  # noqa: F401

import tamis

FOUND = sum(asked in set(KEYS) for asked in ASKED)
NAMES = {"table": "people", "key": "email", "value": "email"}


def sqlite_database(request, tmp_path):
    path = tmp_path / "people.db"
    db = sqlite3.connect(path, isolation_level=None)
    request.addfinalizer(db.close)

    def catalog():
        return path.read_bytes(), sorted(each.name for each in tmp_path.iterdir())

    return db.execute, str(path), catalog, tamis.stores.SQLite


def postgres_database(request, tmp_path):
    psycopg = pytest.importorskip("psycopg")
    conninfo = request.getfixturevalue("postgres_url")
    host, port = (part.split("=")[1] for part in conninfo.split()[:2])
    db = psycopg.connect(conninfo, autocommit=True)
    request.addfinalizer(db.close)

    def catalog():
        parts = ("relname FROM pg_class", "tgname FROM pg_trigger", "proname FROM pg_proc")
        return [db.execute(f"SELECT {each} ORDER BY 1").fetchall() for each in parts]

    url = f"postgresql://tamis@{host}:{port}/postgres"
    return db.execute, url, catalog, tamis.stores.Postgres


def mysql_database(request, tmp_path):
    url = request.getfixturevalue("mysql_url")
    db = connect_mysql(url)
    request.addfinalizer(db.close)

    def run(statement):
        with db.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()

    def catalog():
        return [
            run(f"SELECT {name} FROM information_schema.{name[:-5]}s WHERE {schema} = 'tamis'")
            for name, schema in (("table_name", "table_schema"), ("trigger_name", "trigger_schema"))
        ]

    return run, url, catalog, tamis.stores.MySQL


@pytest.fixture(params=[sqlite_database, postgres_database, mysql_database],
                ids=["sqlite", "postgres", "mysql"])  # fmt: skip
def people(request, tmp_path):
    """A database with a table of people."""
    execute, url, catalog, store = request.param(request, tmp_path)
    text = (
        "text"
        if store is not tamis.stores.MySQL
        else ("varchar(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin")
    )
    execute("DROP TABLE IF EXISTS people")
    execute(f"CREATE TABLE people (email {text} PRIMARY KEY, name varchar(9))")
    values = ", ".join(f"('{key}', 'x')" for key in KEYS)
    execute(f"INSERT INTO people VALUES {values}")
    line = f"guard {url} --table people --key email"
    opened = lambda **options: store(url, **NAMES, **options)  # noqa: E731
    yield SimpleNamespace(
        execute=execute, url=url, line=line, catalog=catalog, before=catalog(), open=opened
    )
    with contextlib.suppress(Exception), contextlib.closing(opened(install=False)) as left:
        left.unguard()
    execute("DROP TABLE IF EXISTS people")


def replayed(result):
    code, out, err = result
    assert code == 0, err
    return json.loads(out)


def test_a_dry_run_alters_nothing(run, people):
    found = replayed(run(f"{people.line} --queries log.txt --dry-run --json"))
    assert people.catalog() == people.before
    assert (found["queries"], found["true_positives"]) == (len(ASKED), FOUND)
    assert found["reads_saved"] + found["false_positives"] == len(ASKED) - FOUND
    text = run(f"{people.line} --queries log.txt --dry-run")[1]
    assert [line.split("  ")[0] for line in text.splitlines()] == [
        "filter", "queries", "reads saved", "reads of rows", "reads wasted", "adaptations",
    ]  # fmt: skip


def test_a_trial_cleans_up(run, people):
    found = replayed(run(f"{people.line} --queries log.txt --json"))
    assert (found["queries"], found["true_positives"]) == (len(ASKED), FOUND)
    with contextlib.closing(people.open(install=False)) as store:
        assert not store.installed
    names = "".join(map(str, people.catalog()))
    assert "tamis_people" not in names or people.url.endswith(".db")
    # What was there before stays.
    assert run(f"{people.line} --install")[0] == 0
    installed = people.catalog()
    assert run(f"{people.line} --queries log.txt --kind bloom")[0] == 0
    with contextlib.closing(people.open(install=False)) as store:
        assert store.installed
    assert people.url.endswith(".db") or people.catalog() == installed


def test_a_trial_that_fails_cleans_up(run, people):
    refused(run(f"{people.line} --queries log.txt --filter junk"))
    refused(run(f"{people.line} --queries numbers.txt --integers"))
    with contextlib.closing(people.open(install=False)) as store:
        assert not store.installed


def test_install_and_remove(run, people):
    code, out, err = run(f"{people.line} --install")
    assert (code, out, err) == (0, "", "tamis: the guard's tables are installed\n")
    with contextlib.closing(people.open(install=False)) as store:
        assert store.installed
    people.execute("INSERT INTO people VALUES ('new', 'x')")
    for _ in range(2):  # the second time there is nothing to remove
        assert run(f"{people.line} --remove")[::2] == (0, "tamis: the guard's tables are removed\n")
        with contextlib.closing(people.open(install=False)) as store:
            assert not store.installed
    people.execute("INSERT INTO people VALUES ('newer', 'x')")


def test_printed_statements_install(run, people):
    code, out, _ = run(f"{people.line} --print-sql --role postgres --json")
    assert code == 0
    assert people.catalog() == people.before
    statements = json.loads(out)["statements"]
    text = run(f"{people.line} --print-sql --role postgres")[1]
    assert text == "".join(f"{each};\n" for each in statements)
    assert text.count("GRANT") == {"post": 4, "mysq": 2}.get(people.url[:4], 0)
    for statement in statements:
        if not statement.startswith("GRANT"):
            people.execute(statement)
    with contextlib.closing(people.open(install=False)) as store:
        assert store.installed
    installed = people.catalog()
    with contextlib.closing(people.open()) as store:
        assert people.url.endswith(".db") or people.catalog() == installed
        with tamis.Guard(store, tamis.Bloom(5000, fpr=0.01)) as g:
            assert not g.maybe("a new one")
            people.execute("INSERT INTO people VALUES ('a new one', 'x')")
            assert g.maybe("a new one")


def test_wrong_names_are_one_sentence(run, people):
    queries = "--queries log.txt"
    for options in (queries, f"{queries} --dry-run", "--print-sql", "--install", "--remove"):
        for wrong in (people.line.replace("people --", "nobody --"),
                      people.line.replace("email", "mail"), people.line.replace("email", "name"),
                      f"{people.line} --where (("):  # fmt: skip
            refused(run(f"{wrong} {options}"))


@pytest.mark.parametrize(
    "url", ["postgresql://tamis@127.0.0.1:1/x", "mysql://root:secret@127.0.0.1:1/x"]
)
def test_an_unreachable_store_is_one_sentence(run, url):
    for options in ("--queries log.txt", "--queries log.txt --dry-run", "--remove"):
        err = refused(run(f"guard {url} --table people --key email {options}"))
        assert "unreachable" in err
        assert "secret" not in err
    err = refused(run("guard oracle://me:secret@x/y --table people --key email --install"))
    assert "DATABASE must be an SQLite file or a URL (postgresql://, mysql://), not 'x/y'" in err


def test_options_that_contradict_each_other(run):
    line = "guard shop.db --table users --key email"
    for options, said in (
        ("", "--queries is missing"),
        ("--dry-run", "--queries is missing"),
        ("--queries log.txt --dry-run --install", "at most one of --install and --dry-run"),
        ("--install --remove", "at most one of --install and --remove"),
        ("--queries log.txt --print-sql", "at most one of --print-sql and --queries"),
        ("--install --serve 0", "--serve requires --queries"),
        ("--queries log.txt --snapshot s.tamis", "--snapshot requires --install"),
    ):
        assert said in refused(run(f"{line} {options}"))


def test_a_dry_run_of_uuids(run, tmp_path):
    ids = [uuid.UUID(int=i) for i in range(100)]
    with contextlib.closing(sqlite3.connect(tmp_path / "ids.db")) as db, db:
        db.execute("CREATE TABLE ids (id CHAR(32) PRIMARY KEY)")
        db.executemany("INSERT INTO ids VALUES (?)", [(each.hex,) for each in ids[:50]])
    (tmp_path / "asked.txt").write_text("\n".join(each.hex for each in ids))
    line = f"guard {tmp_path}/ids.db --table ids --key id --queries {tmp_path}/asked.txt --json"
    assert replayed(run(line))["true_positives"] == 50
    assert replayed(run(f"{line} --dry-run"))["true_positives"] == 50
