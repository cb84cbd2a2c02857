"""The tables and triggers of `tamis.stores.MySQL`, and checks of the table to guard.

For a table T there are ``tamis_T_journal``, which the triggers write; ``tamis_T_state``, one row
with the floor of the journal and the highest number that was trimmed; ``tamis_T_live``, in memory,
whose row a restart of the server removes; ``tamis_T_meta``; and, if a filter adapts,
``tamis_T_hash``.

A journal row has the key, +1 or -1, and the connection that wrote it. Nothing but the end of the
journal is locked for that, and nothing is read.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections.abc import Sequence
from typing import Any

from tamis.errors import StoreError
from tamis.stores.mysql.columns import Column, packed
from tamis.stores.mysql.connections import LOCK_WAIT, code_of, is_maria, query

_MAX_NAME = 64
"""Characters of a name."""

_INTERRUPTED = 1969
"""MariaDB's error for a statement that took longer than it may."""

_WAIT = 0.05
"""Seconds for which a change of the schema may wait, as writers wait behind it (MySQL: one)."""


def quote(name: str) -> str:
    """Quote a name for use in a statement."""
    if not name or "\0" in name or "%" in name:
        raise ValueError(
            "a table or column name must not be empty nor contain a null character or a percent "
            f"sign: {name!r}"
        )
    return "`" + name.replace("`", "``") + "`"


class Names:
    """The names of a guarded table and of the guard's tables and triggers, quoted."""

    def __init__(self, database: str, table: str, keys: Sequence[str], where: str | None) -> None:
        base = f"tamis_{table}"
        if where or len(keys) > 1:
            definition = "\0".join((*keys, where or ""))
            base += "_" + hashlib.blake2b(definition.encode(), digest_size=4).hexdigest()
        max_length = _MAX_NAME - len(f"{base}_journal") + len(table)
        if len(table) > max_length:
            raise ValueError(
                f"table must be a name of at most {max_length} characters, not {table!r}: the "
                "names of the guard's own tables contain it"
            )
        self.database, self.name, self.base = database, table, base
        self.table = f"{quote(database)}.{quote(table)}"
        self.journal, self.state, self.live, self.meta, self.hash = (
            f"{quote(database)}.{quote(f'{base}_{part}')}"
            for part in ("journal", "state", "live", "meta", "hash")
        )
        self.triggers = {
            event: f"{quote(database)}.{quote(f'{base}_{event.lower()}')}"
            for event in ("INSERT", "DELETE", "UPDATE")
        }


def columns_of(db: Any, names: Names) -> dict[str, Column]:
    """Return the columns of a table."""
    rows = query(
        db,
        "SELECT column_name, LOWER(data_type), LOWER(column_type), character_set_name, "
        "collation_name, character_octet_length FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
        (names.database, names.name),
    )
    return {name: Column(*rest) for name, *rest in rows}


def check_table(db: Any, names: Names) -> str | None:
    """Return why a table cannot be guarded, if it cannot."""
    place = (names.database, names.name)
    kind, engine, options = query(
        db,
        "SELECT table_type, engine, create_options FROM information_schema.tables "
        "WHERE table_schema = %s AND table_name = %s",
        place,
    )[0]
    if kind != "BASE TABLE" or engine != "InnoDB" or "partitioned" in (options or ""):
        found = "a table with partitions" if engine == "InnoDB" else f"of engine {engine}"
        if kind != "BASE TABLE":
            found = f"a {kind.lower()}"
        return f"table must be an InnoDB table without partitions; {names.name!r} is {found}"
    cascades = query(
        db,
        "SELECT constraint_name, delete_rule, update_rule "
        "FROM information_schema.referential_constraints WHERE constraint_schema = %s "
        "AND table_name = %s AND (delete_rule IN ('CASCADE', 'SET NULL') "
        "OR update_rule IN ('CASCADE', 'SET NULL'))",
        place,
    )
    if cascades:
        name, on_delete, on_update = cascades[0]
        return (
            f"table must not be changed by foreign keys, which fire no trigger; {names.name!r} has "
            f"{name!r} with ON DELETE {on_delete} ON UPDATE {on_update}: declare it RESTRICT"
        )
    if query(db, "SHOW VARIABLES WHERE variable_name = 'wsrep_on' AND value = 'ON'"):
        return (
            "a Galera cluster is not supported: a node does not know the transactions that are "
            "open on others"
        )
    return None


def unique_index(db: Any, names: Names, keys: Sequence[str]) -> list[str]:
    """Return the columns of a unique index of the keys, in its order, or nothing."""
    indexes: dict[str, list[Any]] = {}
    for index, column, prefix in query(
        db,
        "SELECT index_name, column_name, sub_part FROM information_schema.statistics "
        "WHERE table_schema = %s AND table_name = %s AND non_unique = 0 "
        "ORDER BY index_name, seq_in_index",
        (names.database, names.name),
    ):
        indexes.setdefault(index, []).append(column if prefix is None else None)
    return next((columns for columns in indexes.values() if {*columns} == {*keys}), [])


def check_condition(db: Any, errors: Any, names: Names, where: str) -> None:
    """Raise `ValueError` for a condition that does not depend on the columns of a row alone.

    It must be one of which the database would store the result with each row.
    """
    copy = f"{quote(names.database)}.tamis_condition"
    query(db, f"DROP TEMPORARY TABLE IF EXISTS {copy}")
    query(db, f"CREATE TEMPORARY TABLE {copy} LIKE {names.table}")
    try:
        query(db, f"ALTER TABLE {copy} ADD COLUMN tamis_condition INT AS (({where}\n)) STORED")
    except errors.MySQLError as error:
        raise ValueError(
            f"where must be a condition on columns of {names.name!r} that depends on nothing else, "
            f"not {where!r}: {error.args[-1]}"
        ) from error
    finally:
        query(db, f"DROP TEMPORARY TABLE IF EXISTS {copy}")


def columns_in(where: str, columns: dict[str, Column]) -> list[str]:
    """Return the columns that a condition may name."""
    named = [name for name in columns if name.lower() in where.lower()]
    for name in named:
        if columns[name].data_type == "timestamp":
            raise ValueError(
                f"where must not depend on {name!r}, of type timestamp, as its value depends on "
                "the time zone of the connection; use a column of type datetime"
            )
    return named


def bodies(
    names: Names, keys: Sequence[str], columns: dict[str, Column], where: str | None
) -> dict[str, str]:
    """Return the body of the trigger for each event."""
    quoted, types = [quote(key) for key in keys], [columns[key] for key in keys]

    def log(row: str, sign: int) -> str:
        values = f"({packed(quoted, types, row)}, {sign}, CONNECTION_ID())"
        return f"INSERT INTO {names.journal} (k, n, c) VALUES {values}; "

    def has(row: str) -> str:
        """Return the condition that a row has a key, and satisfies the condition."""
        parts = [f"{row}.{key} IS NOT NULL" for key in quoted]
        if where is not None:
            selected = ", ".join(
                f"{row}.{quote(name)} AS {quote(name)}" for name in columns_in(where, columns)
            )
            source = f"(SELECT {selected or '1'}) AS {quote(names.name)}"
            parts.append(f"EXISTS (SELECT 1 FROM {source} WHERE ({where}\n))")
        return " AND ".join(parts)

    def logged(row: str, sign: int) -> str:
        return f"IF {has(row)} THEN {log(row, sign)}END IF; "

    # Bytes are compared, and NULL equals itself.
    same = " AND ".join(f"CAST(OLD.{k} AS BINARY) <=> CAST(NEW.{k} AS BINARY)" for k in quoted)
    changed = f"NOT ({same})"
    if where is not None:
        changed += f" OR ({has('OLD')}) <> ({has('NEW')})"
    moved = f"IF {changed} THEN {logged('OLD', -1)}{logged('NEW', 1)}END IF; "
    return {
        event: f"BEGIN {body}END"
        for event, body in (
            ("INSERT", logged("NEW", 1)),
            ("DELETE", logged("OLD", -1)),
            ("UPDATE", moved),
        )
    }


def create_statements(names: Names) -> list[str]:
    """Return the statements that create the guard's tables."""
    return [
        f"CREATE TABLE IF NOT EXISTS {names.journal} (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY "
        "KEY, k LONGBLOB NOT NULL, n TINYINT NOT NULL, c BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB",
        f"CREATE TABLE IF NOT EXISTS {names.state} (one TINYINT PRIMARY KEY, floor BIGINT UNSIGNED "
        "NOT NULL, trimmed BIGINT UNSIGNED NOT NULL, table_id BIGINT UNSIGNED NOT NULL, "
        "checked DATETIME(6) NOT NULL) ENGINE=InnoDB",
        f"INSERT IGNORE INTO {names.state} VALUES (1, 0, 0, 0, '2000-01-01')",
        f"CREATE TABLE IF NOT EXISTS {names.live} (one TINYINT PRIMARY KEY, token BIGINT UNSIGNED "
        "NOT NULL) ENGINE=MEMORY",
        # Last: a store whose metadata exist is complete.
        f"CREATE TABLE IF NOT EXISTS {names.meta} (name VARBINARY(100) PRIMARY KEY, "
        "value LONGBLOB NOT NULL) ENGINE=InnoDB",
        f"INSERT IGNORE INTO {names.meta} VALUES ('lease', '')",
    ]


def exist(db: Any, names: Names) -> bool:
    """Return whether the guard's tables exist."""
    found = query(
        db,
        "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
        (names.database, f"{names.base}_meta"),
    )
    return bool(found)


def grants(names: Names, user: str) -> list[str]:
    """Return the rights that a guard's user needs, of which triggers that it creates make use."""
    name, at, host = user.rpartition("@")
    quoted = "@".join(
        "'" + each.replace("'", "''") + "'" for each in ((name, host) if at else (user, "%"))
    )
    rights = (
        "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, TRIGGER, CREATE TEMPORARY TABLES, "
        "LOCK TABLES"
    )
    return [
        f"GRANT {rights} ON {quote(names.database)}.* TO {quoted}",
        f"GRANT PROCESS ON *.* TO {quoted}",
    ]


def trigger_statements(names: Names, bodies: dict[str, str]) -> dict[str, str]:
    """Return the statement that creates the trigger of each event."""
    return {
        event: f"CREATE TRIGGER {names.triggers[event]} AFTER {event} ON {names.table} "
        f"FOR EACH ROW {body}"
        for event, body in bodies.items()
    }


def create_triggers(db: Any, names: Names, bodies: dict[str, str], seconds: float) -> None:
    """Create the triggers that are missing, and replace the ones that differ."""
    found = {
        name: (table, body)
        for name, table, body in query(
            db,
            "SELECT trigger_name, event_object_table, action_statement "
            "FROM information_schema.triggers WHERE trigger_schema = %s AND trigger_name LIKE %s",
            (names.database, "tamis%"),
        )
    }
    for event, statement in trigger_statements(names, bodies).items():
        held = found.get(f"{names.base}_{event.lower()}")
        if held == (names.name, bodies[event]):
            continue
        if held is not None:
            alter(db, f"DROP TRIGGER IF EXISTS {names.triggers[event]}", seconds)
        alter(db, statement, seconds)


def alter(db: Any, statement: str, seconds: float) -> None:
    """Run a statement that waits for the open transactions of a table.

    While it waits, so does every new writer. So it gives up after a moment and tries again later.
    """
    maria = is_maria(db)
    limit = f"SET STATEMENT lock_wait_timeout=1, max_statement_time={_WAIT} FOR " if maria else ""
    if not maria:
        query(db, "SET SESSION lock_wait_timeout = 1")
    until, pause = time.monotonic() + seconds, _WAIT
    while True:
        try:
            query(db, limit + statement)
            return
        except Exception as error:
            if code_of(error) not in (LOCK_WAIT, _INTERRUPTED):
                raise
            if time.monotonic() > until:
                raise StoreError(
                    "the schema could not be changed, as some transaction on the table was open "
                    f"at every attempt for {seconds:g} s: {statement[:60]}…"
                ) from error
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, 1.0)


def schema_queries(names: Names) -> list[str]:
    """Return statements whose answers differ if the table or a trigger has been changed."""
    shows = [f"SHOW CREATE TRIGGER {trigger}" for trigger in names.triggers.values()]
    return [f"SHOW CREATE TABLE {names.table}", *shows]


def schema_text(answers: Sequence[Any]) -> str:
    """Return the answers to `schema_queries` as text."""
    table, *triggers = answers
    return repr((re.sub(r" AUTO_INCREMENT=\d+", "", table[0][1]), triggers))


def drop(db: Any, names: Names, seconds: float) -> None:
    """Drop the guard's triggers and tables."""
    for trigger in names.triggers.values():
        alter(db, f"DROP TRIGGER IF EXISTS {trigger}", seconds)
    for table in (names.hash, names.meta, names.live, names.state, names.journal):
        alter(db, f"DROP TABLE IF EXISTS {table}", seconds)
