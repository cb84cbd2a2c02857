"""Which tables of MariaDB can be guarded, by which keys, and which are refused."""

import uuid
from contextlib import closing
from pathlib import Path

import pytest
from mysql_tables import TEXT, Follower, Table

import tamis
from tamis import stores


def text(collation, type="VARCHAR(50)"):
    charset = collation.partition("_")[0]
    return f"id {type} CHARACTER SET {charset} COLLATE {collation} PRIMARY KEY, seen TEXT"


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        (text("utf8mb4_general_ci"), "", "as bytes, not 'id' .* COLLATE utf8mb4_nopad_bin"),
        (text("utf8mb4_general_ci", "CHAR(9)"), "", "declare it COLLATE utf8mb4_bin, or as VARB"),
        (
            text("utf8mb4_bin"),
            "",
            "to which 'a' and 'a ' are equal: declare it COLLATE utf8mb4_nop",
        ),
        (
            text("latin1_nopad_bin"),
            "",
            "of character set utf8mb4, .* not 'id' of character set lat",
        ),
        (
            "id DOUBLE PRIMARY KEY, seen TEXT",
            "",
            "must be a column of text, .* 'id' of type double",
        ),
        (f"id {TEXT}, seen TEXT, KEY (id)", "", "must be a column with a unique index of its own"),
        (f"id {TEXT}, seen TEXT, UNIQUE (id(5))", "", "with a unique index of its own, not 'id'"),
        ("id INT PRIMARY KEY, seen TEXT", "ENGINE=MyISAM", "InnoDB table .* is of engine MyISAM"),
        ("id INT PRIMARY KEY, seen TEXT", "PARTITION BY HASH(id)", "is a table with partitions"),
        ("id INT PRIMARY KEY, seen TEXT", "WITH SYSTEM VERSIONING", "is a system versioned"),
        ("id INT PRIMARY KEY, sen TEXT", "", "value must be a column of .* not 'seen'"),
    ],
)
def test_tables_that_cannot_be_followed_are_refused(mysql_url, columns, options, says):
    with closing(Table(mysql_url, columns, options)) as table:
        with pytest.raises(ValueError, match=says):
            table.store()
        tables = table.run("SHOW TABLES LIKE %s", (f"tamis%{table.name}%",))
        assert tables == ()


@pytest.mark.parametrize("rule", ["DELETE CASCADE", "UPDATE CASCADE", "DELETE SET NULL"])
def test_cascades_are_refused(mysql_url, rule):
    with closing(Table(mysql_url, "id INT PRIMARY KEY, seen TEXT, p INT")) as table:
        follower = Follower(table.store())
        table.run(f"CREATE TABLE `parent of {table.name}` (id INT PRIMARY KEY)")
        table.run(
            f"ALTER TABLE TABLE_NAME ADD FOREIGN KEY (p) REFERENCES `parent of {table.name}` (id) "
            f"ON {rule}"
        )
        assert follower.store.changes(follower.position) is None
        with pytest.raises(tamis.StoreError, match=f"fire no trigger.*ON .*{rule.split()[1]}"):
            follower.store.contents()
        with pytest.raises(ValueError, match="fire no trigger"):
            table.store()


@pytest.mark.parametrize(
    "where",
    ["seen > NOW()", "RAND() > 0.5", "id IN (SELECT 1)", "nothing = 1", "at > '2020-01-01'"],
)
def test_conditions_that_cannot_be_followed_are_refused(mysql_url, where):
    columns = "id INT PRIMARY KEY, seen TEXT, at TIMESTAMP"
    with (
        closing(Table(mysql_url, columns)) as table,
        pytest.raises(ValueError, match=r"^where must"),
    ):
        table.store(where=where)


def test_arguments_are_checked(mysql_url):
    with closing(Table(mysql_url, name="arguments")) as table:
        with pytest.raises(TypeError, match="key must be the name of a column"):
            table.store(key=[])
        with pytest.raises(ValueError, match="where must be a condition"):
            table.store(where=" ")
        with pytest.raises(ValueError, match="url must be a URL such as"):
            table.store("localhost")
        table.store()
        table.run("ALTER TABLE TABLE_NAME ADD COLUMN other INT UNIQUE")
        with pytest.raises(ValueError, match="key must be 'id', by which"):
            table.store(key="other")


def test_errors_do_not_contain_the_password(mysql_url):
    wrong = mysql_url.replace("root@", "nobody:geheim@")
    for url in (wrong, "mysql://nobody:geheim@127.0.0.1:1/tamis"):
        with pytest.raises(tamis.StoreError, match=r"MySQL at 127\.0\.0\.1") as caught:
            stores.MySQL(url, table="t", key="id", value="seen", timeout=2)
        assert "geheim" not in str(caught.value)
        assert "nobody" not in str(caught.value)


U = uuid.UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff")


@pytest.mark.parametrize(
    ("type", "keys", "not_keys", "other_types"),
    [
        (TEXT, ["a", "a ", "A", "é", "", "\\'%", "😀"], [b"\xff"], [5]),
        ("CHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", ["a", "é", "", "A"], ["a "], [5]),
        ("VARCHAR(9) CHARACTER SET ascii COLLATE ascii_nopad_bin", ["a", "A"], ["é"], [5]),
        ("VARCHAR(9) CHARACTER SET utf8mb3 COLLATE utf8mb3_nopad_bin", ["é"], ["😀"], []),
        ("TINYINT", [0, -128, 127], [128], ["1", b"\1"]),
        ("INT ZEROFILL", [0, 7, 2**32 - 1], [-1, 2**32], []),
        ("BIGINT UNSIGNED", [0, 2**64 - 1], [-1], ["0"]),
        ("BINARY(3)", [b"abc", b"\0\xff\0"], [b"ab", b"abcd"], [1]),
        ("VARBINARY(30)", [b"", b"\0", b"\0\xff", "é"], [b"x" * 31], [1]),
        ("UUID", [U, str(uuid.UUID(int=1))], [], []),
    ],
)
def test_types_of_keys(mysql_url, type, keys, not_keys, other_types):
    """Keys come back as they were put. Keys that a column cannot hold are absent and cannot be put;
    keys of another type are refused.
    """
    with closing(Table(mysql_url, f"id {type} PRIMARY KEY, seen TEXT")) as table:
        store = table.store()
        follower = Follower(store)
        plain = [store.to_plain(key) for key in keys]
        commit = store.put_many(plain, [f"value of {key}" for key in keys], "one")
        assert commit.existed == [False] * len(keys)
        assert follower.look() == set(plain) == Follower(store).keys
        assert store.get_many(plain) == [f"value of {key}" for key in keys]
        for key in other_types:
            with pytest.raises(TypeError, match="must be"):
                store.to_plain(key)
        absent = [store.to_plain(key) for key in not_keys]
        assert store.get_many(absent) == [None] * len(absent)
        for key in absent:
            with pytest.raises(TypeError, match="cannot hold the key"):
                store.put_many([key], ["x"], "one")
        assert store.delete_many(plain[:1] + absent, "one").existed[:1] == [True]
        assert follower.look() == set(plain[1:])


def test_tuples(mysql_url):
    columns = f"shop {TEXT}, id INT, u UUID, seen TEXT, PRIMARY KEY (shop, id, u)"
    with closing(Table(mysql_url, columns)) as table:
        store = table.store(key=("shop", "id", "u"))
        follower = Follower(store)
        keys = [store.to_plain(("eu", 1, U)), store.to_plain(("", -1, str(U)))]
        store.put_many(keys, ["x", "y"], "one")
        assert follower.look() == set(keys) == Follower(store).keys
        assert store.get_many([*keys, store.to_plain(("eu", 2, U))]) == ["x", "y", None]
        assert store.from_plain(keys[0]) == (b"eu", 1, U)


def test_a_condition_decides_what_is_there(mysql_url):
    columns = "id INT PRIMARY KEY, seen TEXT, state ENUM('new', 'paid'), gone DATETIME"
    where = "state = 'paid' AND gone IS NULL"
    with closing(Table(mysql_url, columns)) as table:
        table.run("INSERT INTO TABLE_NAME VALUES (1, 'x', 'paid', NULL), (2, 'y', 'new', NULL)")
        store = table.store(where=where)
        follower = Follower(store)
        assert follower.keys == {1}
        assert store.get_many([1, 2]) == ["x", None]
        table.run("UPDATE TABLE_NAME SET state = 'paid'")
        assert follower.look() == {1, 2}
        table.run("UPDATE TABLE_NAME SET gone = NOW() WHERE id = 1")
        table.run("UPDATE TABLE_NAME SET seen = 'z'")
        assert follower.look() == {2}
        with pytest.raises(ValueError, match="does not satisfy where"):
            store.put_many([3], ["x"], "one")
        with pytest.raises(ValueError, match="does not satisfy where"):
            store.put_many([1], ["x"], "one")
        assert store.delete_many([1, 2], "one").existed == [False, True]
        assert follower.look() == set()
        assert table.run("SELECT id, seen FROM TABLE_NAME") == ((1, "z"),)


def test_another_unique_index_does_not_redirect_a_put(mysql_url):
    with closing(Table(mysql_url, "id INT PRIMARY KEY, seen VARCHAR(9) UNIQUE")) as table:
        store = table.store()
        store.put_many([1], ["x"], "one")
        with pytest.raises(ValueError, match="the row of key 2 is missing"):
            store.put_many([2], ["x"], "one")
        assert table.run("SELECT * FROM TABLE_NAME") == ((1, "x"),)


def test_addresses_of_others(mysql_url):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(mysql_url.replace("mysql:", "mysql+pymysql:"))
    with closing(Table(mysql_url)) as table:
        table.insert("a")
        assert table.store(engine).get_many([b"a"]) == ["x"]
        assert stores.MySQL(
            mysql_url, table=f"tamis.{table.name}", key="id", value="seen"
        ).get_many([b"a"]) == ["x"]


def test_the_rights_in_the_guide_suffice(mysql_url):
    """Of the store's user, and of writers, who need none on the guard's tables."""
    guide = Path(__file__).parents[2] / "docs" / "stores.md"
    grants = [
        line
        for line in guide.read_text().splitlines()
        if line.startswith("GRANT ") and line.endswith("TO tamis;")
    ]
    assert len(grants) == 2
    with closing(Table(mysql_url, "id INT PRIMARY KEY, seen TEXT")) as table:
        for user in ("guarding", "writing"):
            table.run(f"CREATE OR REPLACE USER {user}@localhost IDENTIFIED BY 'secret'")
        for grant in grants:
            grant = grant.replace("shop.*", "tamis.*").replace("TO tamis", "TO guarding@localhost")
            table.run(grant)
        table.run("GRANT INSERT, DELETE ON TABLE_NAME TO writing@localhost")
        writing = table.connect(user="writing", password="secret")
        store = table.store(mysql_url.replace("root@", "guarding:secret@"), where="seen <> ''")
        follower = Follower(store)
        table.run("INSERT INTO TABLE_NAME VALUES (1, 'x'), (2, '')", db=writing)
        assert follower.look() == {1}
        assert store.lease("one", 600)
        store.attach("one", tamis.hash_keys, b"1")
        assert len(store.run(0, 2**64 - 1)) == 1
        store._journal.raise_floor_by_lock(1)
        assert store._journal.may_list
        store.unguard()
