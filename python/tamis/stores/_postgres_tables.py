"""The tables and triggers of `tamis.stores.Postgres`, and checks of the table to guard."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
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
    "uuid": "uuid",
}
"""Types of key columns, and the kind of keys that they hold."""

_MAX_NAME = 63
"""Bytes of a name in PostgreSQL, which cuts longer ones off."""


def quote(name: str) -> str:
    """Quote a name for use in a statement."""
    if "\0" in name or "%" in name:
        raise ValueError(
            f"a table or column name must not contain a null character or a percent sign: {name!r}"
        )
    return '"' + name.replace('"', '""') + '"'


def check_name(table: str, base: str) -> None:
    """Raise `ValueError` for a table whose name is too long."""
    most = _MAX_NAME - len(f"{base}_truncate".encode()) + len(table.encode())
    if len(table.encode()) > most:
        raise ValueError(
            f"table must be a name of at most {most} bytes, not {table!r}: the names of the "
            "guard's own tables contain it"
        )


def channel(table: str) -> str:
    """Return the channel on which triggers signal changes."""
    return "tamis_" + hashlib.blake2b(table.encode(), digest_size=12).hexdigest()


def advisory_lock(table: str) -> str:
    """Return the call that locks the journal until the end of the transaction."""
    return f"pg_advisory_xact_lock(1952542067, hashtext({_literal(table)}))"


def find_table(db: Any, table: str, shared: bool) -> tuple[str, str]:
    """Return the schema, quoted and with a dot, and the name of a table.

    ``table`` may be qualified by a schema, unless there is a table of the whole name. A table that
    is to be created gets the current schema.
    """
    if not shared:
        row = db.execute("SELECT quote_ident(current_schema())").fetchone()
        return ("" if row[0] is None else f"{row[0]}."), table
    schema, dot, name = table.partition(".")
    names = [quote(table), f"{quote(schema)}.{quote(name)}"] if dot and name else [quote(table)]
    for each in names:
        row = db.execute(
            "SELECT relnamespace::regnamespace::text, relname FROM pg_class "
            "WHERE oid = to_regclass(%s)",
            (each,),
        ).fetchone()
        if row is not None:
            return f"{row[0]}.", row[1]
    return "", table


def columns_of(db: Any, table: str) -> dict[str, str]:
    """Return the type of each column of a table."""
    return dict(
        db.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (table,),
        ).fetchall()
    )


def check_keys(db: Any, table: str, keys: Sequence[str], columns: dict[str, str]) -> None:
    """Check the key columns of an existing table."""
    for key in keys:
        if columns[key] not in KINDS:
            raise ValueError(
                f"key must be a column of text, integers, bytea or uuid, not {key!r} of type "
                f"{columns[key]}"
            )
    if db.execute(
        "SELECT 1 FROM pg_inherits JOIN pg_class ON pg_class.oid = inhparent "
        "WHERE inhparent = to_regclass(%s) AND relkind = 'r'",
        (table,),
    ).fetchone():
        raise ValueError(
            f"{table} has child tables, which are not supported: a trigger on a table does not see "
            "the rows that are inserted into its children"
        )
    unique = db.execute(
        "SELECT 1 FROM pg_index WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid "
        "AND indpred IS NULL AND indexprs IS NULL AND indnkeyatts = %s "
        'AND (SELECT array_agg(attname::text ORDER BY attname::text COLLATE "C") '
        "FROM pg_attribute WHERE attrelid = indrelid "
        "AND attnum = ANY(indkey[0:indnkeyatts - 1])) = %s",
        (table, len(keys), sorted(keys, key=str.encode)),
    ).fetchone()
    if not unique:
        what = "a column" if len(keys) == 1 else "columns"
        raise ValueError(
            f"key must be {what} with a unique index of its own, not {', '.join(map(repr, keys))}"
        )


def check_condition(db: Any, error: type[Exception], table: str, where: str) -> None:
    """Raise `ValueError` for a condition that does not depend on the columns of a row alone.

    PostgreSQL requires the same of a partial index, so the check creates one on an empty copy.
    """
    try:
        with db.transaction(force_rollback=True):
            db.execute(f"CREATE TEMP TABLE tamis_check (LIKE {table}) ON COMMIT DROP")
            db.execute(f"CREATE INDEX ON tamis_check ((1)) WHERE {where}")
    except error as refused:
        raise ValueError(
            f"where must be a condition on columns of {table}, not {where!r}: {refused}"
        ) from None


def logged(schema: str, base: str, table: str) -> str:
    """Return the expression that is true if the triggers that write the journal are there."""
    names = ", ".join(_literal(f"{base}_{part}") for part in ("change", "rename", "truncate"))
    return (
        "(SELECT count(*) = 3 FROM pg_catalog.pg_trigger WHERE tgenabled <> 'D' "
        f"AND tgrelid = to_regclass({_literal(schema + quote(table))}) AND tgname IN ({names}))"
    )


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def packed(keys: Sequence[str], types: Sequence[str], row: str = "") -> str:
    """Return the expression for the key of a row, of one column or packed of several."""
    columns = [row + quote(key) for key in keys]
    if len(keys) == 1:
        return columns[0]
    forms = {
        "text": "'b' || upper(encode(convert_to({}, 'UTF8'), 'hex'))",
        "integer": "'i' || {}::text",
        "bytea": "'b' || upper(encode({}, 'hex'))",
        "uuid": "'b' || upper(replace({}::text, '-', ''))",
    }
    return " || ',' || ".join(
        forms[KINDS[type]].format(column) for column, type in zip(columns, types, strict=True)
    )


def create(
    db: Any,
    schema: str,
    base: str,
    table: str,
    keys: Sequence[str],
    types: Sequence[str],
    where: str | None = None,
) -> None:
    """Create the tables and triggers, whose names begin with ``base``, that do not exist yet."""
    t = schema + quote(table)
    key_type = types[0] if len(types) == 1 else "text"
    hashes, journal, meta, log, has = (
        schema + quote(f"{base}_{part}") for part in ("hash", "journal", "meta", "log", "has")
    )
    change, rename, truncate = (
        quote(f"{base}_{part}") for part in ("change", "rename", "truncate")
    )
    signal = f"PERFORM pg_notify('{channel(table)}', ''); "
    old, new = (packed(keys, types, f"{row}.") for row in ("OLD", "NEW"))
    was, is_now = (
        " AND ".join(
            [
                *(f"{row}.{quote(key)} IS NOT NULL" for key in keys),
                *([f"{has}({row})"] if where else []),
            ]
        )
        for row in ("OLD", "NEW")
    )
    changes = " OR ".join(f"OLD.{quote(key)} IS DISTINCT FROM NEW.{quote(key)}" for key in keys)
    for statement in (
        f"CREATE TABLE IF NOT EXISTS {hashes} "
        f"(hi bigint, lo bigint, key {key_type}, PRIMARY KEY (hi, lo, key))",
        f"CREATE TABLE IF NOT EXISTS {journal} "
        "(seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
        "token bigint DEFAULT ((random() - 0.5) * 1.8e19)::bigint, "
        f"added boolean, key {key_type})",
        f"CREATE TABLE IF NOT EXISTS {meta} (name text PRIMARY KEY, value bytea)",
        # Others write the guarded table without privileges on the guard's tables, and with a search
        # path of their own.
        *([_condition(has, t, table, where)] if where else []),
        f"CREATE OR REPLACE FUNCTION {log}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
        "SET search_path = pg_catalog, pg_temp AS $$ "
        "DECLARE last bigint; gone boolean := false; come boolean := false; BEGIN "
        "IF TG_OP = 'TRUNCATE' THEN "
        f"PERFORM {advisory_lock(table)}; {signal}"
        f"INSERT INTO {journal} (added) VALUES (false); RETURN NULL; END IF; "
        f"IF TG_OP <> 'INSERT' THEN gone := {was}; END IF; "
        f"IF TG_OP <> 'DELETE' THEN come := {is_now}; END IF; "
        # An update that leaves the key and the condition as they were.
        f"IF gone AND come THEN IF NOT ({changes}) THEN RETURN NULL; END IF; END IF; "
        "IF NOT (gone OR come) THEN RETURN NULL; END IF; "
        f"PERFORM {advisory_lock(table)}; {signal}"
        "IF gone THEN "
        f"INSERT INTO {journal} (added, key) VALUES (false, {old}) RETURNING seq INTO last; "
        "END IF; IF come THEN "
        f"INSERT INTO {journal} (added, key) VALUES (true, {new}) RETURNING seq INTO last; "
        "END IF; "
        # Two rows of one update may step over a multiple.
        f"IF last % {TRIM_EVERY} < 2 THEN "
        f"DELETE FROM {journal} WHERE seq <= last - {JOURNAL}; END IF; "
        "RETURN NULL; END $$",
        f"CREATE OR REPLACE TRIGGER {change} AFTER INSERT OR DELETE ON {t} "
        f"FOR EACH ROW EXECUTE FUNCTION {log}()",
        f"CREATE OR REPLACE TRIGGER {rename} AFTER UPDATE ON {t} FOR EACH ROW "
        f"{'' if where else f'WHEN ({changes})'} EXECUTE FUNCTION {log}()",
        f"CREATE OR REPLACE TRIGGER {truncate} AFTER TRUNCATE ON {t} EXECUTE FUNCTION {log}()",
    ):
        db.execute(statement)
    if not db.execute(f"SELECT 1 FROM {journal} LIMIT 1").fetchone():
        db.execute(f"INSERT INTO {journal} (added) VALUES (NULL)")


def _condition(has: str, t: str, table: str, where: str) -> str:
    """Return the statement for a function of a row that says whether it satisfies the condition.

    Its names are looked up now, with the search path of this connection, and not again when
    somebody with another one fires a trigger.
    """
    return (
        f"CREATE OR REPLACE FUNCTION {has}(tamis_row {t}) RETURNS boolean LANGUAGE sql STABLE "
        f"BEGIN ATOMIC SELECT EXISTS (SELECT FROM (SELECT (tamis_row).*) AS {quote(table)} "
        f"WHERE ({where}\n)); END"
    )


def drop(db: Any, schema: str, base: str, table: str) -> None:
    """Drop the tables and, with the function that they call, the triggers."""
    hashes, journal, meta, log, has = (
        schema + quote(f"{base}_{part}") for part in ("hash", "journal", "meta", "log", "has")
    )
    db.execute(f"DROP FUNCTION {log}() CASCADE")
    db.execute(f"DROP FUNCTION IF EXISTS {has}({schema}{quote(table)})")
    db.execute(f"DROP TABLE {hashes}, {journal}, {meta}")
