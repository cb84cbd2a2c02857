"""`tamis.stores.SQLite`: a table in an SQLite database, an existing one or the guard's own."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tamis._types import FilePath
from tamis.stores._sql import SIGN, Journaled, from_signed
from tamis.stores.contract import BATCH, Commit, HashRows, PlainKey, batches, encode_key


class SQLite(Journaled):
    """A table in an SQLite database.

    By default it creates a table of its own. To guard an existing table in place, pass ``table``,
    ``key`` and ``value``: the names of the table, of its key column (unique; text, integers or
    blobs) and of the column that `get` returns. Other programs may continue to write to that table,
    with or without tamis.

    >>> import tamis
    >>> with tamis.Guard(SQLite(":memory:"), tamis.Bloom(capacity=1000, fpr=0.01)) as g:
    ...     g.put("ada", "1815")
    ...     g.get("ada"), g.get("alan")
    ('1815', None)
    """

    _param = "?"

    def __init__(
        self,
        path: FilePath,
        *,
        table: str | None = None,
        key: str | None = None,
        value: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Open the database; ``timeout`` is how many seconds to wait for a writer's lock."""
        super().__init__(table, key, value)
        self._path, self._timeout = path, timeout
        self._db: sqlite3.Connection = self._connect()
        try:
            if not self.shared:
                self._db.execute("PRAGMA journal_mode = WAL")
            with self._transaction():
                self._create_tables()
        except BaseException:
            self._db.close()
            raise

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return the epoch and the keys at that epoch, in batches, from one read transaction."""
        if self._path == ":memory:":
            with self._lock:
                keys = [
                    self._from_column(key) for part in self._read_keys(self._db) for key in part
                ]
                return self.epoch(), batches(keys)
        db = self._connect()
        db.execute("BEGIN")
        epoch = self._last_epoch(db)

        def read() -> Iterator[list[Any]]:
            with closing(db):
                for part in self._read_keys(db):
                    yield [self._from_column(key) for key in part]

        return epoch, read()

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes, in order, in batches."""
        last: tuple[int, int, Any] = (-SIGN, -SIGN, None)
        query = (
            f"SELECT hi, lo, key FROM {self._t_hash} WHERE (hi, lo) >= (?, ?) "
            f"AND NOT (hi = ?1 AND lo = ?2 AND key IS ?3) ORDER BY hi, lo LIMIT {BATCH}"
        )
        while True:
            with self._lock:
                rows = self._db.execute(query, last).fetchall()
            if not rows:
                return
            last = rows[-1]
            yield from_signed([row[:2] for row in rows])

    def lease(self, owner: str, seconds: float) -> bool:
        """Take or renew the lease, which expires by the wall clock, as processes share that one."""
        with self._lock, self._transaction():
            now = time.time()
            taken = self._db.execute(
                f"SELECT 1 FROM {self._t_note} WHERE name = 'lease' AND value <> ? AND until > ?",
                (owner.encode(), now),
            ).fetchone()
            if taken:
                return False
            self._db.execute(
                f"INSERT OR REPLACE INTO {self._t_note} VALUES ('lease', ?, ?)",
                (owner.encode(), now + seconds),
            )
            return True

    def unguard(self) -> None:
        """Drop the guard's tables and triggers, keep the guarded table, and close the store."""
        with self._lock:
            with self._transaction():
                for name in ("insert", "delete", "leave", "enter"):
                    trigger = self._quote(f"tamis_{self._table}_{name}")
                    self._db.execute(f"DROP TRIGGER IF EXISTS {trigger}")
                for table in (self._t_hash, self._t_journal, self._t_note):
                    self._db.execute(f"DROP TABLE {table}")
            self._db.close()

    # Tables and triggers.

    def _connect(self) -> sqlite3.Connection:
        try:
            return sqlite3.connect(
                self._path, timeout=self._timeout, isolation_level=None, check_same_thread=False
            )
        except sqlite3.OperationalError:
            path = os.fsdecode(self._path)
            if not (folder := Path(path).parent).is_dir():
                raise FileNotFoundError(
                    f"path must be in an existing folder, not {path!r}: there is no folder "
                    f"{str(folder)!r}"
                ) from None
            raise

    def _create_tables(self) -> None:
        """Create the tables and triggers that do not exist yet."""
        if self.shared:
            self._type = self._inspect_table()
        else:
            self._type = "blob"
            self._db.execute(
                f"CREATE TABLE IF NOT EXISTS {self._t} (key BLOB PRIMARY KEY, value BLOB) "
                "WITHOUT ROWID"
            )
        for statement in (
            f"TABLE IF NOT EXISTS {self._t_hash} "
            "(hi INTEGER, lo INTEGER, key, PRIMARY KEY (hi, lo, key)) WITHOUT ROWID",
            f"TABLE IF NOT EXISTS {self._t_journal} (seq INTEGER PRIMARY KEY AUTOINCREMENT, "
            "token INTEGER DEFAULT (random()), added INTEGER, key)",
            f"TABLE IF NOT EXISTS {self._t_note} (name TEXT PRIMARY KEY, value, until REAL)",
            self._trigger("insert", "INSERT", "new", 1),
            self._trigger("delete", "DELETE", "old", 0),
            # An update of the key removes one key and adds another.
            self._trigger("leave", "UPDATE", "old", 0),
            self._trigger("enter", "UPDATE", "new", 1),
        ):
            self._db.execute(f"CREATE {statement}")
        if not self._db.execute(f"SELECT 1 FROM {self._t_journal}").fetchone():
            self._db.execute(f"INSERT INTO {self._t_journal} (added) VALUES (NULL)")

    def _trigger(self, name: str, event: str, row: str, added: int) -> str:
        column = f"{row}.{self._k}"
        changed = f"AND old.{self._k} IS NOT new.{self._k}" if event == "UPDATE" else ""
        return (
            f"TRIGGER IF NOT EXISTS {self._quote(f'tamis_{self._table}_{name}')} "
            f"AFTER {event} ON {self._t} WHEN {_is_key(column)} {changed} BEGIN "
            f"INSERT INTO {self._t_journal} (added, key) VALUES ({added}, {column}); END"
        )

    def _inspect_table(self) -> str:
        """Check an existing table; return the type of its key column."""
        columns = {
            row[1]: (row[2].upper(), row[5])
            for row in self._db.execute(f"PRAGMA table_info({self._t})")
        }
        self._check_columns(columns)
        declared, primary = columns[self._key]
        row_id = primary and declared == "INTEGER"
        if not (row_id or self._has_unique_index()):
            raise ValueError(
                "key must be a column with a unique index of its own and collation BINARY, not "
                f"{self._key!r}"
            )
        # SQLite's rules of column affinity, in its order.
        if "INT" in declared:
            return "integer"
        if any(part in declared for part in ("CHAR", "CLOB", "TEXT")):
            return "text"
        if not declared or "BLOB" in declared:
            return "blob"
        raise ValueError(
            f"key must be a column of text, integers or blobs, not {self._key!r} of type {declared}"
        )

    def _has_unique_index(self) -> bool:
        indexes = self._db.execute(f"PRAGMA index_list({self._t})").fetchall()
        return any(
            [
                (row[2], row[4])
                for row in self._db.execute(f"PRAGMA index_xinfo({self._quote(index[1])})")
                if row[5]
            ]
            == [(self._key, "BINARY")]
            for index in indexes
            if index[2] and not index[4]
        )

    @staticmethod
    def _quote(name: str) -> str:
        if "\0" in name:
            raise ValueError(f"a table or column name must not contain a null character: {name!r}")
        return '"' + name.replace('"', '""') + '"'

    # Keys in the table.

    def _to_column(self, key: PlainKey) -> Any:
        if not self.shared:
            return encode_key(key)
        if isinstance(key, int):
            return key if self._type == "integer" and -SIGN <= key < SIGN else None
        return {"text": _text(key), "blob": key}.get(self._type)

    def _select_rows(self, keys: Sequence[PlainKey], columns: str) -> list[Any]:
        rows: list[Any] = []
        held = [column for key in keys if (column := self._to_column(key)) is not None]
        for batch in batches(held, 500):
            if self.shared and self._type == "blob":
                # A blob column may hold text as well, which is unequal to the same bytes as a blob.
                batch += [text for key in batch if (text := _text(key)) is not None]
            query = (
                f"SELECT {columns} FROM {self._t} WHERE {self._k} IN ({self._params(len(batch))})"
            )
            rows += self._db.execute(query, batch).fetchall()
        return rows

    def _read_keys(self, db: sqlite3.Connection) -> Iterator[list[Any]]:
        rows = db.execute(f"SELECT {self._k} FROM {self._t} WHERE {_is_key(self._k)}")
        while batch := rows.fetchmany(BATCH):
            yield [key for (key,) in batch]

    # Statements and transactions.

    def _execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        return self._db.execute(statement, arguments)

    def _execute_many(self, statement: str, rows: list[Any]) -> None:
        self._db.executemany(statement, rows)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run in one transaction, which holds the database's write lock from the start."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _run_write(self, write: Callable[[], Commit]) -> Commit:
        with self._lock, self._transaction():
            return write()

    def _lock_journal(self) -> None:
        """Do nothing: the transaction already holds the write lock."""


def _is_key(column: str) -> str:
    return f"typeof({column}) IN ('integer', 'text', 'blob')"


def _text(key: Any) -> str | None:
    try:
        return key.decode() if isinstance(key, bytes) else None
    except UnicodeDecodeError:
        return None
