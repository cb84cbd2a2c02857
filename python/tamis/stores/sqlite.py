"""`tamis.stores.SQLite`: a table of an SQLite database, its own or one that is already there.

Beside a table T lie three of the guard's: ``tamis_T_hash`` is the index on the hash,
``tamis_T_journal`` has a row for each key that came or went, and ``tamis_T_note`` holds the lease,
the secret and how far the index has come. Triggers write the journal, so that it is whole whoever
writes to T; they cannot hash, because a writer without tamis has no such function, so the guard
that holds the lease brings the index along when it reads the journal. The epoch is the last row of
the journal: its number, and a random token that tells it from a row of the same number in another
history, such as that of a restored backup.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from tamis._types import FilePath
from tamis.stores.contract import (
    BATCH,
    Changes,
    Commit,
    Hasher,
    Hashes,
    Plain,
    Value,
    batches,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    lease_refused,
)

_KEPT = 100_000
"""Rows of the journal that stay for guards that fell behind; one further behind rebuilds."""

_SIGN = 1 << 63
"""SQLite's integers are signed: a word of a hash is stored less this, so that the order stays."""


class SQLite:
    """A table in an SQLite database.

    Alone it makes a table of its own. With ``table``, ``key`` and ``value`` it guards an existing
    table in place: the names of the table, of its key column (unique; text, integers or blobs) and
    of the column that `get` returns. Others may go on writing to that table, with or without tamis.

    >>> import tamis
    >>> with tamis.Guard(SQLite(":memory:"), tamis.Bloom(capacity=1000, fpr=0.01)) as g:
    ...     g.put("ada", "1815")
    ...     g.get("ada"), g.get("alan")
    ('1815', None)
    """

    def __init__(
        self,
        path: FilePath,
        *,
        table: str | None = None,
        key: str | None = None,
        value: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        """Open the database; ``timeout`` is how long to wait for another writer's lock."""
        if len({table is None, key is None, value is None}) > 1:
            raise ValueError(
                f"table is {table!r}, key is {key!r} and value is {value!r}; give all three to "
                "guard a table in place, or none for a table of the guard's own"
            )
        self.shared = table is not None
        self._path, self._timeout = path, timeout
        self._table, self._key, self._value = table or "tamis", key or "key", value or "value"
        self._lock = threading.RLock()
        self._hasher: Hasher | None = None
        self._owner: str | None = None
        self._db = self._connect()
        try:
            if not self.shared:
                self._db.execute("PRAGMA journal_mode = WAL")
            with self._transaction():
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    def get_many(self, keys: Sequence[Plain]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        with self._lock:
            found = self._rows(keys, f"{self._k}, {self._v}")
        values = {self._plain(row[0]): self._read(row[1]) for row in found}
        return [values.get(key) for key in keys]

    def put_many(self, keys: Sequence[Plain], values: Sequence[Value], owner: str) -> Commit:
        """Write distinct keys with their hashes in one transaction."""
        with self._lock, self._transaction():
            before, there = self._begin_write(keys, owner)
            rows = [
                (there.get(key, self._wanted(key)), value if self.shared else encode_value(value))
                for key, value in zip(keys, values, strict=True)
            ]
            self._db.executemany(
                f"INSERT INTO {self._t} ({self._k}, {self._v}) VALUES (?, ?) "
                f"ON CONFLICT ({self._k}) DO UPDATE SET {self._v} = excluded.{self._v}",
                rows,
            )
            new = [self._column(key) for key in keys if key not in there]
            self._index(added=new, removed=[])
            return Commit([key in there for key in keys], before, self._end_write(before))

    def delete_many(self, keys: Sequence[Plain], owner: str) -> Commit:
        """Remove distinct keys and their hashes in one transaction."""
        with self._lock, self._transaction():
            before, there = self._begin_write(keys, owner)
            gone = list(there.values())
            self._db.executemany(
                f"DELETE FROM {self._t} WHERE {self._k} = ?", [(key,) for key in gone]
            )
            self._index(added=[], removed=gone)
            return Commit([key in there for key in keys], before, self._end_write(before))

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return the epoch and the keys at it, in batches, all from one read transaction."""
        query = f"SELECT {self._k} FROM {self._t} WHERE {_is_key(self._k)}"
        if self._path == ":memory:":
            with self._lock:
                keys = [self._plain(key) for (key,) in self._db.execute(query)]
                return self.epoch(), batches(keys)
        db = self._connect()
        db.execute("BEGIN")
        epoch = self._last(db)

        def read() -> Iterator[list[Any]]:
            with closing(db):
                cursor = db.execute(query)
                while rows := cursor.fetchmany(BATCH):
                    yield [self._plain(key) for (key,) in rows]

        return epoch, read()

    def run(self, lo: int, hi: int) -> Hashes:
        """Return the hashes whose first word is from ``lo`` to ``hi``."""
        with self._lock:
            rows = self._db.execute(
                f"SELECT hi, lo FROM {self._t_hash} WHERE hi BETWEEN ? AND ?",
                (lo - _SIGN, hi - _SIGN),
            ).fetchall()
        return _unsigned(rows)

    def scan(self) -> Iterator[Hashes]:
        """Go through all hashes, in order, a batch at a time."""
        last: tuple[int, int, Any] = (-_SIGN, -_SIGN, None)
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
            yield _unsigned([row[:2] for row in rows])

    def epoch(self) -> str:
        """Return the present epoch: one look at the end of the journal."""
        with self._lock:
            return self._last(self._db)

    def changes(self, since: str, until: str | None = None) -> Changes | None:
        """Return what the journal says since an epoch; `None` if it does not reach back to it."""
        with self._lock:
            if self._owner is not None and self._holder() == self._owner:
                with self._transaction():
                    self._catch_up()
            now = self._last(self._db) if until is None else until
            start, stop = int(since.split(".")[0]), int(now.split(".")[0])
            if self._token(start) != since:
                return None
            rows = self._db.execute(
                f"SELECT added, key FROM {self._t_journal} "
                "WHERE seq > ? AND seq <= ? AND added IS NOT NULL ORDER BY seq",
                (start, stop),
            ).fetchall()
        added = [self._plain(key) for sign, key in rows if sign]
        return Changes(now, added, [self._plain(key) for sign, key in rows if not sign])

    def attach(self, owner: str, hasher: Hasher, name: bytes) -> None:
        """Keep the index with this function; made anew if it had another name."""
        with self._lock, self._transaction():
            self._check(owner)
            self._owner, self._hasher = owner, hasher
            if self.note("index") != name:
                self._reindex()
                self.note("index", name)
            else:
                self._catch_up()

    def lease(self, owner: str, seconds: float) -> bool:
        """Take or renew the lease; its end is in the clock of the day, which processes share."""
        with self._lock, self._transaction():
            now = time.time()
            taken = self._db.execute(
                f"SELECT 1 FROM {self._t_note} WHERE name = 'lease' AND value <> ? AND until > ?",
                (owner, now),
            ).fetchone()
            if taken:
                return False
            self._db.execute(
                f"INSERT OR REPLACE INTO {self._t_note} VALUES ('lease', ?, ?)",
                (owner, now + seconds),
            )
            return True

    def release(self, owner: str) -> None:
        """Give the lease back if it is this owner's."""
        with self._lock:
            self._db.execute(
                f"DELETE FROM {self._t_note} WHERE name = 'lease' AND value = ?", (owner,)
            )

    def note(self, name: str, value: bytes | None = None) -> bytes | None:
        """Return what was noted under a name, after noting ``value`` if there is one."""
        with self._lock:
            if value is not None:
                self._db.execute(
                    f"INSERT OR REPLACE INTO {self._t_note} VALUES (?, ?, NULL)", (name, value)
                )
            row = self._db.execute(
                f"SELECT value FROM {self._t_note} WHERE name = ?", (name,)
            ).fetchone()
            return None if row is None else bytes(row[0])

    def unguard(self) -> None:
        """Drop the guard's tables and triggers beside the table, which stays, and close."""
        with self._lock:
            with self._transaction():
                for name in ("insert", "delete", "leave", "enter"):
                    trigger = _quoted(f"tamis_{self._table}_{name}")
                    self._db.execute(f"DROP TRIGGER IF EXISTS {trigger}")
                for table in (self._t_hash, self._t_journal, self._t_note):
                    self._db.execute(f"DROP TABLE {table}")
            self._db.close()

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._db.close()

    # Tables and triggers.

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self._path, timeout=self._timeout, isolation_level=None, check_same_thread=False
        )

    def _prepare(self) -> None:
        """Make the tables and triggers that are not there yet."""
        table, self._k, self._v = self._table, _quoted(self._key), _quoted(self._value)
        self._t = _quoted(table)
        self._t_hash, self._t_journal, self._t_note = (
            _quoted(f"tamis_{table}_{part}") for part in ("hash", "journal", "note")
        )
        if self.shared:
            self._kind = self._inspected()
        else:
            self._kind = "blob"
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
            # A key that is changed goes and another comes.
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
            f"TRIGGER IF NOT EXISTS {_quoted(f'tamis_{self._table}_{name}')} "
            f"AFTER {event} ON {self._t} WHEN {_is_key(column)} {changed} BEGIN "
            f"INSERT INTO {self._t_journal} (added, key) VALUES ({added}, {column}); END"
        )

    def _inspected(self) -> str:
        """Check an existing table and return what its key column holds."""
        columns = {
            row[1]: (row[2].upper(), row[5])
            for row in self._db.execute(f"PRAGMA table_info({self._t})")
        }
        if not columns:
            raise ValueError(f"table is {self._table!r}, which the database does not have")
        for name, column in (("key", self._key), ("value", self._value)):
            if column not in columns:
                raise ValueError(
                    f"{name} is {column!r}; the columns of {self._table!r} are {', '.join(columns)}"
                )
        declared, primary = columns[self._key]
        row_id = primary and declared == "INTEGER"
        if not (row_id or self._unique()):
            raise ValueError(
                f"key is {self._key!r}, which no unique index covers alone and byte by byte "
                "(collation BINARY); a key has one row"
            )
        # SQLite's rules of column affinity, in its order.
        if "INT" in declared:
            return "integer"
        if any(part in declared for part in ("CHAR", "CLOB", "TEXT")):
            return "text"
        if not declared or "BLOB" in declared:
            return "blob"
        raise ValueError(
            f"key is {self._key!r} of type {declared}; a column of text, integers or blobs is "
            "wanted"
        )

    def _unique(self) -> bool:
        indexes = self._db.execute(f"PRAGMA index_list({self._t})").fetchall()
        return any(
            [
                (row[2], row[4])
                for row in self._db.execute(f"PRAGMA index_xinfo({_quoted(index[1])})")
                if row[5]
            ]
            == [(self._key, "BINARY")]
            for index in indexes
            if index[2] and not index[4]
        )

    # Keys and values as the table holds them.

    def _column(self, key: Plain) -> Any:
        """Return a key as the column holds it, or `None` if it cannot hold such a key."""
        if not self.shared:
            return encode_key(key)
        if isinstance(key, int):
            return key if self._kind == "integer" and -_SIGN <= key < _SIGN else None
        return {"text": _text(key), "blob": key}.get(self._kind)

    def _wanted(self, key: Plain) -> Any:
        if (column := self._column(key)) is None:
            raise TypeError(
                f"a key is {key!r}, which {self._table}.{self._key}, a column of type "
                f"{self._kind}, does not hold"
            )
        return column

    def _plain(self, column: Any) -> Plain:
        if not self.shared:
            return decode_key(column)
        return column.encode() if isinstance(column, str) else column

    def _read(self, value: Any) -> Any:
        if not self.shared:
            return decode_value(value)
        # `None` means that the key is absent, so a row without a value has an empty one.
        return "" if value is None else value

    def _rows(self, keys: Sequence[Plain], columns: str) -> list[Any]:
        rows: list[Any] = []
        held = [column for key in keys if (column := self._column(key)) is not None]
        for batch in batches(held, 500):
            if self.shared and self._kind == "blob":
                # The column may hold text as well, which differs from the same bytes as a blob.
                batch += [text for key in batch if (text := _text(key)) is not None]
            marks = ", ".join("?" * len(batch))
            query = f"SELECT {columns} FROM {self._t} WHERE {self._k} IN ({marks})"
            rows += self._db.execute(query, batch).fetchall()
        return rows

    # Transactions, the journal and the index.

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run in one transaction, which has the database's write lock from the start."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _begin_write(self, keys: Sequence[Plain], owner: str) -> tuple[str, dict[Plain, Any]]:
        """Return the epoch, and those keys that are there with their form in the table."""
        self._check(owner)
        self._catch_up()
        there = {self._plain(row[0]): row[0] for row in self._rows(keys, self._k)}
        return self._last(self._db), there

    def _end_write(self, before: str) -> str:
        """Note that the index is whole, cut the journal now and then, and return the epoch."""
        epoch = self._last(self._db)
        first, last = int(before.split(".")[0]), int(epoch.split(".")[0])
        self._indexed(last)
        if first // 1000 != last // 1000:
            self._db.execute(f"DELETE FROM {self._t_journal} WHERE seq <= ?", (last - _KEPT,))
        return epoch

    def _holder(self) -> str | None:
        row = self._db.execute(f"SELECT value FROM {self._t_note} WHERE name = 'lease'").fetchone()
        return row[0] if row else None

    def _check(self, owner: str) -> None:
        if (holder := self._holder()) != owner:
            raise lease_refused(holder)

    def _last(self, db: sqlite3.Connection) -> str:
        return "{}.{}".format(
            *db.execute(
                f"SELECT seq, token FROM {self._t_journal} ORDER BY seq DESC LIMIT 1"
            ).fetchone()
        )

    def _token(self, seq: int) -> str | None:
        row = self._db.execute(
            f"SELECT seq, token FROM {self._t_journal} WHERE seq = ?", (seq,)
        ).fetchone()
        return None if row is None else "{}.{}".format(*row)

    def _indexed(self, seq: int) -> None:
        self.note("indexed", b"%d" % seq)

    def _catch_up(self) -> None:
        """Bring the index to the end of the journal."""
        if self._hasher is None:
            return
        done = int(self.note("indexed") or b"0")
        last = int(self._last(self._db).split(".")[0])
        if done == last:
            return
        if self._token(done) is None:
            self._reindex()
            return
        rows = self._db.execute(
            f"SELECT key, added FROM {self._t_journal} "
            "WHERE seq > ? AND added IS NOT NULL ORDER BY seq",
            (done,),
        )
        final = dict(rows.fetchall())
        self._index(
            added=[key for key, added in final.items() if added],
            removed=[key for key, added in final.items() if not added],
        )
        self._indexed(last)

    def _reindex(self) -> None:
        self._db.execute(f"DELETE FROM {self._t_hash}")
        rows = self._db.execute(f"SELECT {self._k} FROM {self._t} WHERE {_is_key(self._k)}")
        while batch := rows.fetchmany(BATCH):
            self._index(added=[key for (key,) in batch], removed=[])
        self._indexed(int(self._last(self._db).split(".")[0]))

    def _index(self, added: list[Any], removed: list[Any]) -> None:
        for keys, statement in (
            (removed, f"DELETE FROM {self._t_hash} WHERE hi = ? AND lo = ? AND key = ?"),
            (added, f"INSERT OR IGNORE INTO {self._t_hash} VALUES (?, ?, ?)"),
        ):
            if keys and self._hasher is not None:
                hashes = self._hasher([self._plain(key) for key in keys])
                words = (hashes ^ np.uint64(_SIGN)).view(np.int64).tolist()
                self._db.executemany(
                    statement, [(*pair, key) for pair, key in zip(words, keys, strict=True)]
                )


def _quoted(name: str) -> str:
    if "\0" in name:
        raise ValueError(f"{name!r} is not a name of SQLite: it has a null character")
    return '"' + name.replace('"', '""') + '"'


def _is_key(column: str) -> str:
    return f"typeof({column}) IN ('integer', 'text', 'blob')"


def _text(key: Any) -> str | None:
    try:
        return key.decode() if isinstance(key, bytes) else None
    except UnicodeDecodeError:
        return None


def _unsigned(rows: Sequence[Sequence[int]]) -> Hashes:
    words = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return words.view(np.uint64) ^ np.uint64(_SIGN)
