"""The tables and triggers of `tamis.stores.Postgres`, its lease, and checks of the table to guard.

The lease is in two rows of the metadata. It is watched (`stores/lease.py`), not compared with the
server's clock, which may step. ``lease`` is its owner: every write locks that row in share mode
until its commit, so that nobody takes the lease meanwhile. ``renewal`` changes with each renewal,
which therefore waits for no write.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

from tamis.stores.base import JOURNAL
from tamis.stores.lease import WatchedLease
from tamis.stores.sql.journaled import TRIM_EVERY

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
    max_bytes = _MAX_NAME - len(f"{base}_journal0_xid".encode()) + len(table.encode())
    if len(table.encode()) > max_bytes:
        raise ValueError(
            f"table must be a name of at most {max_bytes} bytes, not {table!r}: the names of the "
            "guard's own tables contain it"
        )


def channel(table: str) -> str:
    """Return the channel on which triggers signal changes."""
    return "tamis_" + hashlib.blake2b(table.encode(), digest_size=12).hexdigest()


def advisory_lock(table: str) -> str:
    """Return the call that locks the journal until the end of the transaction."""
    return f"pg_advisory_xact_lock(1952542067, hashtext({literal(table)}))"


def check_encoding(db: Any) -> None:
    """Raise `ValueError` for a database whose text cannot be converted to UTF-8."""
    encoding = db.info.parameter_status("server_encoding")
    if encoding in ("SQL_ASCII", "MULE_INTERNAL"):
        raise ValueError(
            f"the database must have an encoding that can be converted to UTF-8, not {encoding}"
        )


def find_table(db: Any, table: str, shared: bool) -> tuple[str, str]:
    """Return the schema, quoted and with a dot, and the name of a table.

    ``table`` may be qualified by a schema, unless there is a table of that full name. A table
    that is to be created gets the current schema.
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
    if not unique_indexes(db, table, keys):
        what = "a column" if len(keys) == 1 else "columns"
        raise ValueError(
            f"key must be {what} with a unique index of its own, not {', '.join(map(repr, keys))}"
        )


def unique_indexes(db: Any, table: str, keys: Sequence[str]) -> list[bool]:
    """Return, for each unique index of these columns, whether a put can rely on it."""
    rows = db.execute(
        "SELECT indimmediate FROM pg_index "
        "WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid "
        "AND indpred IS NULL AND indexprs IS NULL AND indnkeyatts = %s "
        'AND (SELECT array_agg(attname::text ORDER BY attname::text COLLATE "C") '
        "FROM pg_attribute WHERE attrelid = indrelid "
        "AND attnum = ANY(indkey[0:indnkeyatts - 1])) = %s",
        (table, len(keys), sorted(keys, key=str.encode)),
    ).fetchall()
    return [immediate for (immediate,) in rows]


def check_condition(
    db: Any, error: type[Exception], table: str, where: str
) -> list[tuple[str, str]]:
    """Return the columns of a condition and their types.

    Raise `ValueError` if it is not one expression that depends on the columns of a row alone.
    PostgreSQL requires the same of a partial index, so the check creates one on an empty copy.
    """
    try:
        # With a parameter, the server takes one statement only, not several.
        escaped = where.replace("%", "%%")
        db.execute(f"SELECT %s::int FROM {table} WHERE {escaped}\nLIMIT 0", (1,))
        with db.transaction(force_rollback=True):
            db.execute(f"CREATE TEMP TABLE tamis_check (LIKE {table}) ON COMMIT DROP")
            db.execute(f"CREATE INDEX tamis_check_where ON tamis_check ((1)) WHERE {where}")
            db.execute(f"SELECT %s::int FROM {table} WHERE ({escaped}\n) LIMIT 0", (1,))
            return [
                (name, type)
                for name, type in db.execute(
                    "SELECT DISTINCT a.attname, format_type(a.atttypid, a.atttypmod) "
                    "FROM pg_depend AS d JOIN pg_attribute AS a "
                    "ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid "
                    "WHERE d.objid = 'pg_temp.tamis_check_where'::regclass "
                    "AND d.refobjid = 'pg_temp.tamis_check'::regclass AND d.refobjsubid > 0 "
                    "ORDER BY a.attname"
                ).fetchall()
            ]
    except error as refused:
        raise ValueError(
            f"where must be a condition on columns of {table}, not {where!r}: {refused}"
        ) from None


def full_type(db: Any, table: str, column: str) -> str:
    """Return the type of a column with its length or precision."""
    row = db.execute(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = to_regclass(%s) AND attname = %s",
        (table, column),
    ).fetchone()
    return str(row[0])


def logged(schema: str, base: str, table: str) -> str:
    """Return the expression that is true if the triggers that write the journal are there."""
    names = ", ".join(literal(f"{base}_{part}") for part in ("change", "rename", "truncate"))
    return (
        "(SELECT count(*) = 3 FROM pg_catalog.pg_trigger WHERE tgenabled <> 'D' "
        f"AND tgrelid = to_regclass({literal(schema + quote(table))}) AND tgname IN ({names}))"
    )


def literal(text: str) -> str:
    """Quote text for use in a statement, whatever ``standard_conforming_strings`` is."""
    escaped = text.replace("'", "''")
    return f" E'{escaped.replace(chr(92), chr(92) * 2)}'" if "\\" in text else f"'{escaped}'"


def dollar_quoted(text: str) -> str:
    """Quote the body of a function, which may contain names with any text."""
    tag = "tamis"
    while f"${tag}$" in text:
        tag += "_"
    return f"${tag}${text}${tag}$"


def packed(keys: Sequence[str], types: Sequence[str], row: str = "") -> str:
    """Return the expression for the key of a row, of one column or packed of several."""
    columns = [row + quote(key) for key in keys]
    if len(keys) == 1:
        return columns[0]
    forms = {
        "text": "'b', pg_catalog.upper("
        "pg_catalog.encode(pg_catalog.convert_to({}, 'UTF8'), 'hex'))",
        "integer": "'i', {}::pg_catalog.text",
        "bytea": "'b', pg_catalog.upper(pg_catalog.encode({}, 'hex'))",
        "uuid": "'b', pg_catalog.upper(pg_catalog.replace({}::pg_catalog.text, '-', ''))",
    }
    parts = ", ',', ".join(
        forms[KINDS[type]].format(column) for column, type in zip(columns, types, strict=True)
    )
    return f"pg_catalog.concat({parts})"


def create(db: Any, schema: str, base: str, table: str) -> None:
    """Create the tables and triggers that belong to a table of the guard's own."""
    t = schema + quote(table)
    hashes, journal, meta, log = (
        schema + quote(f"{base}_{part}") for part in ("hash", "journal", "meta", "log")
    )
    change, rename, truncate = (
        quote(f"{base}_{part}") for part in ("change", "rename", "truncate")
    )
    signal = f"PERFORM pg_notify('{channel(table)}', ''); "
    body = (
        "DECLARE last bigint; BEGIN "
        f"PERFORM {advisory_lock(table)}; {signal}"
        "IF TG_OP = 'TRUNCATE' THEN "
        f"INSERT INTO {journal} (added) VALUES (false); RETURN NULL; END IF; "
        "IF TG_OP <> 'INSERT' THEN "
        f"INSERT INTO {journal} (added, key) VALUES (false, OLD.key) RETURNING seq INTO last; "
        "END IF; IF TG_OP <> 'DELETE' THEN "
        f"INSERT INTO {journal} (added, key) VALUES (true, NEW.key) RETURNING seq INTO last; "
        "END IF; "
        # Two rows of one update may step over a multiple.
        f"IF last % {TRIM_EVERY} < 2 THEN "
        f"DELETE FROM {journal} WHERE seq <= last - {JOURNAL}; END IF; "
        "RETURN NULL; END"
    )
    for statement in (
        f"CREATE TABLE IF NOT EXISTS {hashes} (hi bigint, lo bigint, PRIMARY KEY (hi, lo))",
        f"CREATE TABLE IF NOT EXISTS {journal} "
        "(seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
        "token bigint DEFAULT ((random() - 0.5) * 1.8e19)::bigint, added boolean, key bytea)",
        f"CREATE TABLE IF NOT EXISTS {meta} (name text PRIMARY KEY, value bytea)",
        f"CREATE OR REPLACE FUNCTION {log}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
        f"SET search_path = pg_catalog, pg_temp AS {dollar_quoted(body)}",
        f"CREATE OR REPLACE TRIGGER {change} AFTER INSERT OR DELETE ON {t} "
        f"FOR EACH ROW EXECUTE FUNCTION {log}()",
        f"CREATE OR REPLACE TRIGGER {rename} AFTER UPDATE ON {t} FOR EACH ROW "
        f"WHEN (OLD.key IS DISTINCT FROM NEW.key) EXECUTE FUNCTION {log}()",
        f"CREATE OR REPLACE TRIGGER {truncate} AFTER TRUNCATE ON {t} EXECUTE FUNCTION {log}()",
    ):
        db.execute(statement)
    if not db.execute(f"SELECT 1 FROM {journal} LIMIT 1").fetchone():
        db.execute(f"INSERT INTO {journal} (added) VALUES (NULL)")


def drop(db: Any, schema: str, base: str) -> None:
    """Drop the tables and, with the function that they call, the triggers."""
    hashes, journal, meta, log = (
        schema + quote(f"{base}_{part}") for part in ("hash", "journal", "meta", "log")
    )
    db.execute(f"DROP FUNCTION {log}() CASCADE")
    db.execute(f"DROP TABLE {hashes}, {journal}, {meta}")


def take_lease(
    db: Any,
    rollback: type[Exception],
    meta: str,
    owner: bytes,
    seconds: float,
    watched: WatchedLease,
) -> bool:
    """Take or renew the lease in a transaction, unless another guard may rely on it.

    If it has changed meanwhile, ``rollback``, which ends the transaction, is raised.
    """
    renewal = f"{secrets.token_hex(8)} {seconds}".encode()
    # A lease that a crash of the server took back would be granted twice.
    db.execute("SET LOCAL synchronous_commit = on")
    db.execute("SET LOCAL lock_timeout = '1s'")
    renewed = db.execute(
        f"WITH held AS (SELECT FROM {meta} WHERE name = 'lease' AND value = %s FOR SHARE) "
        f"INSERT INTO {meta} SELECT 'renewal', %s FROM held "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value RETURNING 1",
        (owner, renewal),
    ).fetchone()
    if renewed:
        return True
    query = f"SELECT name, value FROM {meta} WHERE name IN ('lease', 'renewal')"
    record = dict(db.execute(query).fetchall())
    if "lease" in record:
        length = float(bytes(record["renewal"]).split()[1])
        if not watched.is_over(record, max(length, seconds)):
            return False
    for part, value in (("lease", owner), ("renewal", renewal)):
        if not _replace(db, meta, part, value, record.get(part)):
            raise rollback
    return True


def _replace(db: Any, meta: str, name: str, value: bytes, known: bytes | None) -> bool:
    """Write a row of the metadata, unless it has changed since it was read."""
    if known is None:
        statement = f"INSERT INTO {meta} VALUES (%s, %s) ON CONFLICT DO NOTHING RETURNING 1"
        return db.execute(statement, (name, value)).fetchone() is not None
    statement = f"UPDATE {meta} SET value = %s WHERE name = %s AND value = %s RETURNING 1"
    return db.execute(statement, (value, name, known)).fetchone() is not None


def release_lease(db: Any, meta: str, owner: bytes) -> None:
    """Release the lease if this owner holds it."""
    db.execute(f"DELETE FROM {meta} WHERE name = 'lease' AND value = %s", (owner,))
