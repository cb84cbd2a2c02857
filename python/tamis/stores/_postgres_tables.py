"""The tables and triggers of `tamis.stores.Postgres`, and what it accepts as a table to guard."""

from __future__ import annotations

import hashlib
from typing import Any

from tamis.stores._sql import TRIM_EVERY
from tamis.stores.contract import JOURNAL

KINDS = {
    "text": "text",
    "character varying": "text",
    "smallint": "integer",
    "integer": "integer",
    "bigint": "integer",
    "bytea": "bytea",
}
"""Types of key columns, and what keys they hold."""

LAYOUT = b"2"
"""Version of the triggers; those of another version are replaced."""

_LONGEST_NAME = 63 - len("tamis__truncate")
"""PostgreSQL cuts longer names off, and the names of the guard's tables contain the table's."""


def quote(name: str) -> str:
    """Quote a name for use in a statement."""
    if "\0" in name or "%" in name:
        raise ValueError(
            f"a table or column name must not contain a null character or a percent sign: {name!r}"
        )
    return '"' + name.replace('"', '""') + '"'


def check_name(table: str) -> None:
    """Raise `ValueError` for a table whose name is too long."""
    if len(table.encode()) > _LONGEST_NAME:
        raise ValueError(
            f"table must be a name of at most {_LONGEST_NAME} bytes, not {table!r}: the names of "
            "the guard's own tables contain it"
        )


def channel(table: str) -> str:
    """Return the channel on which triggers tell of changes."""
    return "tamis_" + hashlib.blake2b(table.encode(), digest_size=12).hexdigest()


def advisory_lock(table: str) -> str:
    """Return the call that locks the journal until the end of the transaction."""
    return "pg_advisory_xact_lock(1952542067, hashtext('{}'))".format(table.replace("'", "''"))


def schema_of(db: Any, table: str, shared: bool) -> str:
    """Return the schema of a table that exists, or of one that is to be created."""
    if shared:
        query = "SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass(%s)"
        row = db.execute(query, (quote(table),)).fetchone()
    else:
        row = db.execute("SELECT quote_ident(current_schema())").fetchone()
    return "" if row is None or row[0] is None else f"{row[0]}."


def columns_of(db: Any, table: str) -> dict[str, str]:
    """Return the type of each column of a table."""
    return dict(
        db.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (table,),
        ).fetchall()
    )


def check_key(db: Any, table: str, key: str, declared: str) -> None:
    """Check the key column of an existing table."""
    if declared not in KINDS:
        raise ValueError(
            f"key must be a column of text, integers or bytea, not {key!r} of type {declared}"
        )
    unique = db.execute(
        "SELECT 1 FROM pg_index JOIN pg_attribute a ON attrelid = indrelid AND attname = %s "
        "WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indnkeyatts = 1 "
        "AND indkey[0] = attnum AND indpred IS NULL",
        (key, table),
    ).fetchone()
    if not unique:
        raise ValueError(f"key must be a column with a unique index of its own, not {key!r}")


def create(db: Any, schema: str, table: str, key: str, key_type: str) -> None:
    """Create the tables and triggers that do not exist yet."""
    t, k = schema + quote(table), quote(key)
    hashes, journal, note, log = (
        schema + quote(f"tamis_{table}_{part}") for part in ("hash", "journal", "note", "log")
    )
    change, rename, truncate = (
        quote(f"tamis_{table}_{part}") for part in ("change", "rename", "truncate")
    )
    signal = f"PERFORM pg_notify('{channel(table)}', ''); "
    for statement in (
        f"CREATE TABLE IF NOT EXISTS {hashes} "
        f"(hi bigint, lo bigint, key {key_type}, PRIMARY KEY (hi, lo, key))",
        f"CREATE TABLE IF NOT EXISTS {journal} "
        "(seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
        "token bigint DEFAULT ((random() - 0.5) * 1.8e19)::bigint, "
        f"added boolean, key {key_type})",
        f"CREATE TABLE IF NOT EXISTS {note} "
        "(name text PRIMARY KEY, value bytea, until timestamptz)",
        # Others write the guarded table without rights on the tables beside it, and with a search
        # path of their own.
        f"CREATE OR REPLACE FUNCTION {log}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
        "SET search_path = pg_catalog, pg_temp AS $$ DECLARE last bigint; BEGIN "
        f"PERFORM {advisory_lock(table)}; {signal}"
        "IF TG_OP = 'TRUNCATE' THEN "
        f"INSERT INTO {journal} (added) VALUES (false); RETURN NULL; END IF; "
        f"IF TG_OP <> 'INSERT' AND OLD.{k} IS NOT NULL THEN "
        f"INSERT INTO {journal} (added, key) VALUES (false, OLD.{k}) RETURNING seq INTO last; "
        "END IF; "
        f"IF TG_OP <> 'DELETE' AND NEW.{k} IS NOT NULL THEN "
        f"INSERT INTO {journal} (added, key) VALUES (true, NEW.{k}) RETURNING seq INTO last; "
        "END IF; "
        # Two rows of one update may step over a multiple.
        f"IF last % {TRIM_EVERY} < 2 THEN "
        f"DELETE FROM {journal} WHERE seq <= last - {JOURNAL}; END IF; "
        "RETURN NULL; END $$",
        # Names of an earlier version.
        f"DROP TRIGGER IF EXISTS tamis_change ON {t}",
        f"DROP TRIGGER IF EXISTS tamis_rename ON {t}",
        f"DROP TRIGGER IF EXISTS tamis_truncate ON {t}",
        f"CREATE OR REPLACE TRIGGER {change} AFTER INSERT OR DELETE ON {t} "
        f"FOR EACH ROW EXECUTE FUNCTION {log}()",
        f"CREATE OR REPLACE TRIGGER {rename} AFTER UPDATE ON {t} FOR EACH ROW "
        f"WHEN (OLD.{k} IS DISTINCT FROM NEW.{k}) EXECUTE FUNCTION {log}()",
        f"CREATE OR REPLACE TRIGGER {truncate} AFTER TRUNCATE ON {t} EXECUTE FUNCTION {log}()",
    ):
        db.execute(statement)
    if not db.execute(f"SELECT 1 FROM {journal} LIMIT 1").fetchone():
        db.execute(f"INSERT INTO {journal} (added) VALUES (NULL)")


def drop(db: Any, schema: str, table: str) -> None:
    """Drop the tables and, with the function that they call, the triggers."""
    hashes, journal, note, log = (
        schema + quote(f"tamis_{table}_{part}") for part in ("hash", "journal", "note", "log")
    )
    db.execute(f"DROP FUNCTION {log}() CASCADE")
    db.execute(f"DROP TABLE {hashes}, {journal}, {note}")
