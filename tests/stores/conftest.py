"""Fixtures of the tests of stores."""

import pytest
from existing_tables import PostgresDatabase, SQLiteDatabase
from servers import postgres_url  # noqa: F401


@pytest.fixture(params=["SQLite", "Postgres"])
def database(request, tmp_path):
    if request.param == "SQLite":
        opened = SQLiteDatabase(tmp_path / "data.db")
    else:
        opened = PostgresDatabase(request.getfixturevalue("postgres_url"))
    yield opened
    opened.db.close()
