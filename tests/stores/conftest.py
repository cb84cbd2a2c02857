"""Fixtures of the tests of stores."""

from contextlib import closing

import pytest
from existing_tables import PostgresDatabase, SQLiteDatabase
from mysql_tables import Table
from servers import mysql_server, mysql_url, postgres_url  # noqa: F401


@pytest.fixture(params=["SQLite", "Postgres"])
def database(request, tmp_path):
    if request.param == "SQLite":
        opened = SQLiteDatabase(tmp_path / "data.db")
    else:
        opened = PostgresDatabase(request.getfixturevalue("postgres_url"))
    yield opened
    opened.db.close()


@pytest.fixture
def mysql_table(mysql_url):  # noqa: F811
    with closing(Table(mysql_url)) as table:
        yield table
