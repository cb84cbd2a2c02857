"""`tamis.stores.Postgres`: a table in a PostgreSQL database (``pip install tamis[postgres]``).

The tables beside the guarded one are those of `tamis.stores.SQLite`: an index by hash, a journal
that triggers write, and notes. Rows of the journal must be numbered in the order of their commits,
or a reader would miss a row that is committed late. So whoever writes a row holds an advisory lock
from before its number is drawn until the end of the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tamis.stores._sql import Journaled, from_signed
from tamis.stores.contract import BATCH, Commit, HashRows, PlainKey, encode_key

_KINDS = {
    "text": "text",
    "character varying": "text",
    "smallint": "integer",
    "integer": "integer",
    "bigint": "integer",
    "bytea": "bytea",
}
_RANGES = {"smallint": 15, "integer": 31, "bigint": 63}


class Postgres(Journaled):
    """A table in a PostgreSQL database, version 14 or newer.

    By default it creates a table of its own, ``tamis``. To guard an existing table in place, pass
    ``table``, ``key`` and ``value``: the names of the table, of its key column (unique; text,
    integers or bytea) and of the column that `get` returns. Others may continue to write to it.
    """

    _param = "%s"
    _row_lock = " FOR SHARE"

    def __init__(
        self,
        conninfo: str,
        *,
        table: str | None = None,
        key: str | None = None,
        value: str | None = None,
        timeout: float | None = 30.0,
    ) -> None:
        """Connect; ``conninfo`` is a libpq string such as ``"host=localhost dbname=shop"``.

        ``timeout`` is how many seconds a statement may take; `None` waits as long as it takes.
        """
        super().__init__(table, key, value)
        try:
            import psycopg
        except ImportError:
            raise ImportError(
                "tamis.stores.Postgres needs psycopg: pip install tamis[postgres]"
            ) from None
        self._psycopg: Any = psycopg
        self._conninfo = conninfo
        self._db = psycopg.connect(conninfo, autocommit=True)
        if timeout is not None:
            self._db.execute(f"SET statement_timeout = {max(int(timeout * 1000), 1)}")
        try:
            with self._transaction():
                self._create_tables()
        except BaseException:
            self._db.close()
            raise

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return the epoch and the keys at that epoch, in batches, from one read transaction."""
        db = self._psycopg.connect(self._conninfo)
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        epoch = self._last_epoch(db)

        def read() -> Iterator[list[Any]]:
            with db:
                for part in self._read_keys(db):
                    yield [self._from_column(key) for key in part]

        return epoch, read()

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes."""
        with self._lock:
            rows = self._execute(f"SELECT hi, lo FROM {self._t_hash}").fetchall()
        return iter([from_signed(rows)])

    def lease(self, owner: str, seconds: float) -> bool:
        """Take or renew the lease, which expires by the server's clock."""
        with self._lock:
            taken = self._execute(
                f"INSERT INTO {self._t_note} AS n VALUES "
                "('lease', %s, clock_timestamp() + make_interval(secs => %s)) "
                "ON CONFLICT (name) DO UPDATE SET value = excluded.value, until = excluded.until "
                "WHERE n.value = excluded.value OR n.until < clock_timestamp() RETURNING 1",
                owner.encode(),
                seconds,
            )
            return taken.fetchone() is not None

    def unguard(self) -> None:
        """Drop the guard's tables and triggers, keep the guarded table, and close the store."""
        with self._lock:
            with self._transaction():
                # Dropping the function that they call drops the triggers.
                log = self._quote(f"tamis_{self._table}_log")
                self._execute(f"DROP FUNCTION {log} CASCADE")
                self._execute(f"DROP TABLE {self._t_hash}, {self._t_journal}, {self._t_note}")
            self._db.close()

    # Tables and triggers.

    def _create_tables(self) -> None:
        """Create the tables and triggers that do not exist yet, one guard at a time."""
        log = self._quote(f"tamis_{self._table}_log")
        literal = "'" + self._table.replace("'", "''") + "'"
        self._advisory = f"pg_advisory_xact_lock(1952542067, hashtext({literal}))"
        self._lock_journal()
        if self.shared:
            self._type = self._inspect_table()
        else:
            self._type = "bytea"
            self._execute(
                f"CREATE TABLE IF NOT EXISTS {self._t} (key bytea PRIMARY KEY, value bytea)"
            )
        for statement in (
            f"TABLE IF NOT EXISTS {self._t_hash} "
            f"(hi bigint, lo bigint, key {self._type}, PRIMARY KEY (hi, lo, key))",
            f"TABLE IF NOT EXISTS {self._t_journal} "
            "(seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
            "token bigint DEFAULT ((random() - 0.5) * 1.8e19)::bigint, "
            f"added boolean, key {self._type})",
            f"TABLE IF NOT EXISTS {self._t_note} "
            "(name text PRIMARY KEY, value bytea, until timestamptz)",
            f"OR REPLACE FUNCTION {log}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"PERFORM {self._advisory}; "
            "IF TG_OP = 'TRUNCATE' THEN "
            f"INSERT INTO {self._t_journal} (added) VALUES (false); RETURN NULL; END IF; "
            f"IF TG_OP <> 'INSERT' AND OLD.{self._k} IS NOT NULL THEN "
            f"INSERT INTO {self._t_journal} (added, key) VALUES (false, OLD.{self._k}); END IF; "
            f"IF TG_OP <> 'DELETE' AND NEW.{self._k} IS NOT NULL THEN "
            f"INSERT INTO {self._t_journal} (added, key) VALUES (true, NEW.{self._k}); END IF; "
            "RETURN NULL; END $$",
            f"OR REPLACE TRIGGER tamis_change AFTER INSERT OR DELETE ON {self._t} "
            f"FOR EACH ROW EXECUTE FUNCTION {log}()",
            f"OR REPLACE TRIGGER tamis_rename AFTER UPDATE ON {self._t} FOR EACH ROW "
            f"WHEN (OLD.{self._k} IS DISTINCT FROM NEW.{self._k}) EXECUTE FUNCTION {log}()",
            f"OR REPLACE TRIGGER tamis_truncate AFTER TRUNCATE ON {self._t} "
            f"EXECUTE FUNCTION {log}()",
        ):
            self._execute(f"CREATE {statement}")
        if not self._execute(f"SELECT 1 FROM {self._t_journal} LIMIT 1").fetchone():
            self._execute(f"INSERT INTO {self._t_journal} (added) VALUES (NULL)")

    def _inspect_table(self) -> str:
        """Check an existing table; return the type of its key column."""
        columns = dict(
            self._execute(
                "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
                "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
                self._t,
            ).fetchall()
        )
        self._check_columns(columns)
        declared: str = columns[self._key]
        if declared not in _KINDS:
            raise ValueError(
                "key must be a column of text, integers or bytea, not "
                f"{self._key!r} of type {declared}"
            )
        unique = self._execute(
            "SELECT 1 FROM pg_index JOIN pg_attribute a ON attrelid = indrelid AND attname = %s "
            "WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indnkeyatts = 1 "
            "AND indkey[0] = attnum AND indpred IS NULL",
            self._key,
            self._t,
        ).fetchone()
        if not unique:
            raise ValueError(
                f"key must be a column with a unique index of its own, not {self._key!r}"
            )
        return declared

    @staticmethod
    def _quote(name: str) -> str:
        if "\0" in name or "%" in name:
            raise ValueError(
                "a table or column name must not contain a null character or a percent sign: "
                f"{name!r}"
            )
        return '"' + name.replace('"', '""') + '"'

    # Keys in the table.

    def _to_column(self, key: PlainKey) -> Any:
        if not self.shared:
            return encode_key(key)
        kind = _KINDS[self._type]
        if isinstance(key, int):
            fits = kind == "integer" and -1 << _RANGES[self._type] <= key < 1 << _RANGES[self._type]
            return key if fits else None
        if kind != "text":
            return key if kind == "bytea" else None
        try:
            return None if b"\0" in key else key.decode()
        except UnicodeDecodeError:
            return None

    def _select_rows(self, keys: Sequence[PlainKey], columns: str) -> list[Any]:
        held = [column for key in keys if (column := self._to_column(key)) is not None]
        query = f"SELECT {columns} FROM {self._t} WHERE {self._k} = ANY(%s::{self._type}[])"
        return list(self._execute(query, held).fetchall()) if held else []

    def _read_keys(self, db: Any) -> Iterator[list[Any]]:
        with db.cursor(name="keys") as cursor:
            cursor.execute(f"SELECT {self._k} FROM {self._t} WHERE {self._k} IS NOT NULL")
            while rows := cursor.fetchmany(BATCH):
                yield [key for (key,) in rows]

    # Statements and transactions.

    def _execute(self, statement: str, *arguments: Any) -> Any:
        return self._db.execute(statement, arguments or None)

    def _execute_many(self, statement: str, rows: list[Any]) -> None:
        with self._db.cursor() as cursor:
            cursor.executemany(statement, rows)

    def _transaction(self) -> AbstractContextManager[Any]:
        transaction: AbstractContextManager[Any] = self._db.transaction()
        return transaction

    def _run_write(self, write: Callable[[], Commit]) -> Commit:
        """Run a write in one transaction; retry if it deadlocked with another writer's."""
        for attempt in range(5):
            try:
                with self._lock, self._transaction():
                    return write()
            except self._psycopg.errors.DeadlockDetected:
                if attempt == 4:
                    raise
        raise AssertionError

    def _lock_journal(self) -> None:
        self._execute(f"SELECT {self._advisory}")
