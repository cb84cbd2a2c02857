"""`tamis.stores.Postgres`: a table of a PostgreSQL database (``pip install tamis[postgres]``).

The tables beside the guarded one are those of `tamis.stores.SQLite`: an index on the hash, a
journal that triggers write, and notes. The journal's numbers must come in the order of the commits,
or a reader would pass by a row that is committed late: whoever writes a row holds an advisory lock
from before the number is drawn until the end of the transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from tamis.stores.contract import (
    BATCH,
    Changes,
    Commit,
    Hasher,
    Hashes,
    Plain,
    Value,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    lease_refused,
)

_KEPT = 100_000
"""Rows of the journal that stay for guards that fell behind; one further behind rebuilds."""

_SIGN = 1 << 63
"""Its integers are signed: a word of a hash is stored less this, so that the order stays."""

_KINDS = {
    "text": "text",
    "character varying": "text",
    "smallint": "integer",
    "integer": "integer",
    "bigint": "integer",
    "bytea": "bytea",
}
_RANGES = {"smallint": 15, "integer": 31, "bigint": 63}

_T = TypeVar("_T")


class Postgres:
    """A table in a PostgreSQL database, version 14 or newer.

    Alone it makes a table of its own, ``tamis``. With ``table``, ``key`` and ``value`` it guards an
    existing table in place, to which others may go on writing; the key column is unique and of
    text, integers or bytea.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        table: str | None = None,
        key: str | None = None,
        value: str | None = None,
    ) -> None:
        """Connect; ``conninfo`` is libpq's, such as ``"host=localhost dbname=shop"``."""
        if len({table is None, key is None, value is None}) > 1:
            raise ValueError(
                f"table is {table!r}, key is {key!r} and value is {value!r}; give all three to "
                "guard a table in place, or none for a table of the guard's own"
            )
        try:
            import psycopg
        except ImportError:
            raise ImportError(
                "tamis.stores.Postgres needs psycopg: pip install tamis[postgres]"
            ) from None
        self._psycopg: Any = psycopg
        self._conninfo = conninfo
        self.shared = table is not None
        self._table, self._key, self._value = table or "tamis", key or "key", value or "value"
        self._lock = threading.RLock()
        self._hasher: Hasher | None = None
        self._owner: str | None = None
        self._db: Any = psycopg.connect(conninfo, autocommit=True)
        try:
            with self._db.transaction():
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    def get_many(self, keys: Sequence[Plain]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        with self._lock:
            found = self._rows(keys, f"{self._k}, {self._v}")
        values = {self._plain(key): self._read(value) for key, value in found}
        return [values.get(key) for key in keys]

    def put_many(self, keys: Sequence[Plain], values: Sequence[Value], owner: str) -> Commit:
        """Write distinct keys with their hashes in one transaction."""
        rows = [
            (self._wanted(key), value if self.shared else encode_value(value))
            for key, value in zip(keys, values, strict=True)
        ]

        def write() -> Commit:
            before, there = self._begin_write(keys, owner)
            self._many(
                f"INSERT INTO {self._t} ({self._k}, {self._v}) VALUES (%s, %s) "
                f"ON CONFLICT ({self._k}) DO UPDATE SET {self._v} = excluded.{self._v}",
                rows,
            )
            self._index([self._column(key) for key in keys if key not in there], [])
            return Commit([key in there for key in keys], before, self._end_write(before))

        return self._committed(write)

    def delete_many(self, keys: Sequence[Plain], owner: str) -> Commit:
        """Remove distinct keys and their hashes in one transaction."""

        def write() -> Commit:
            before, there = self._begin_write(keys, owner)
            gone = [self._column(key) for key in keys if key in there]
            self._do(f"DELETE FROM {self._t} WHERE {self._k} = ANY(%s)", gone)
            self._index([], gone)
            return Commit([key in there for key in keys], before, self._end_write(before))

        return self._committed(write)

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return the epoch and the keys at it, in batches, all from one snapshot."""
        db = self._psycopg.connect(self._conninfo)
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        epoch = self._last(db)

        def read() -> Iterator[list[Any]]:
            with db, db.cursor(name="keys") as cursor:
                cursor.execute(f"SELECT {self._k} FROM {self._t} WHERE {self._k} IS NOT NULL")
                while rows := cursor.fetchmany(BATCH):
                    yield [self._plain(key) for (key,) in rows]

        return epoch, read()

    def run(self, lo: int, hi: int) -> Hashes:
        """Return the hashes whose first word is from ``lo`` to ``hi``."""
        with self._lock:
            rows = self._do(
                f"SELECT hi, lo FROM {self._t_hash} WHERE hi BETWEEN %s AND %s",
                lo - _SIGN,
                hi - _SIGN,
            )
            return _unsigned(rows.fetchall())

    def scan(self) -> Iterator[Hashes]:
        """Go through all hashes."""
        with self._lock:
            rows = self._do(f"SELECT hi, lo FROM {self._t_hash}").fetchall()
        return iter([_unsigned(rows)])

    def epoch(self) -> str:
        """Return the present epoch: one look at the end of the journal."""
        with self._lock:
            return self._last(self._db)

    def changes(self, since: str, until: str | None = None) -> Changes | None:
        """Return what the journal says since an epoch; `None` if it does not reach back to it."""
        with self._lock:
            if self._owner is not None and self._holder() == self._owner:
                with self._db.transaction():
                    self._catch_up()
            now = self._last(self._db) if until is None else until
            start, stop = int(since.split(".")[0]), int(now.split(".")[0])
            if self._token(start) != since:
                return None
            rows = self._do(
                f"SELECT added, key FROM {self._t_journal} "
                "WHERE seq > %s AND seq <= %s AND added IS NOT NULL ORDER BY seq",
                start,
                stop,
            ).fetchall()
        if any(key is None for _, key in rows):
            return None  # the table was truncated
        added = [self._plain(key) for sign, key in rows if sign]
        return Changes(now, added, [self._plain(key) for sign, key in rows if not sign])

    def attach(self, owner: str, hasher: Hasher, name: bytes) -> None:
        """Keep the index with this function; made anew if it had another name."""
        with self._lock, self._db.transaction():
            self._check(owner)
            self._owner, self._hasher = owner, hasher
            if self.note("index") != name:
                self._reindex()
                self.note("index", name)
            else:
                self._catch_up()

    def lease(self, owner: str, seconds: float) -> bool:
        """Take or renew the lease, which ends by the server's clock."""
        with self._lock:
            taken = self._do(
                f"INSERT INTO {self._t_note} AS n VALUES "
                "('lease', %s, clock_timestamp() + make_interval(secs => %s)) "
                "ON CONFLICT (name) DO UPDATE SET value = excluded.value, until = excluded.until "
                "WHERE n.value = excluded.value OR n.until < clock_timestamp() RETURNING 1",
                owner.encode(),
                seconds,
            )
            return taken.fetchone() is not None

    def release(self, owner: str) -> None:
        """Give the lease back if it is this owner's."""
        with self._lock:
            self._do(
                f"DELETE FROM {self._t_note} WHERE name = 'lease' AND value = %s", owner.encode()
            )

    def note(self, name: str, value: bytes | None = None) -> bytes | None:
        """Return what was noted under a name, after noting ``value`` if there is one."""
        with self._lock:
            if value is not None:
                self._do(
                    f"INSERT INTO {self._t_note} VALUES (%s, %s) "
                    "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    name,
                    value,
                )
            row = self._do(f"SELECT value FROM {self._t_note} WHERE name = %s", name).fetchone()
            return None if row is None else bytes(row[0])

    def unguard(self) -> None:
        """Drop the guard's tables and triggers beside the table, which stays, and close."""
        with self._lock:
            with self._db.transaction():
                # The triggers go with the function that they call.
                log = _quoted(f"tamis_{self._table}_log")
                self._do(f"DROP FUNCTION {log} CASCADE")
                self._do(f"DROP TABLE {self._t_hash}, {self._t_journal}, {self._t_note}")
            self._db.close()

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._db.close()

    # Tables and triggers.

    def _prepare(self) -> None:
        """Make the tables and triggers that are not there yet, one guard at a time."""
        table = self._table
        self._t, self._k, self._v = (_quoted(n) for n in (table, self._key, self._value))
        self._t_hash, self._t_journal, self._t_note, log = (
            _quoted(f"tamis_{table}_{part}") for part in ("hash", "journal", "note", "log")
        )
        self._advisory = f"pg_advisory_xact_lock(1952542067, hashtext({_literal(table)}))"
        self._do(f"SELECT {self._advisory}")
        if self.shared:
            self._type = self._inspected()
        else:
            self._type = "bytea"
            self._do(f"CREATE TABLE IF NOT EXISTS {self._t} (key bytea PRIMARY KEY, value bytea)")
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
            self._do(f"CREATE {statement}")
        if not self._do(f"SELECT 1 FROM {self._t_journal} LIMIT 1").fetchone():
            self._do(f"INSERT INTO {self._t_journal} (added) VALUES (NULL)")

    def _inspected(self) -> str:
        """Check an existing table and return the type of its key column."""
        columns = dict(
            self._do(
                "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
                "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
                self._t,
            ).fetchall()
        )
        if not columns:
            raise ValueError(f"table is {self._table!r}, which the database does not have")
        for name, column in (("key", self._key), ("value", self._value)):
            if column not in columns:
                raise ValueError(
                    f"{name} is {column!r}; the columns of {self._table!r} are {', '.join(columns)}"
                )
        declared: str = columns[self._key]
        if declared not in _KINDS:
            raise ValueError(
                f"key is {self._key!r} of type {declared}; a column of text, integers or bytea is "
                "wanted"
            )
        unique = self._do(
            "SELECT 1 FROM pg_index JOIN pg_attribute a ON attrelid = indrelid AND attname = %s "
            "WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indnkeyatts = 1 "
            "AND indkey[0] = attnum AND indpred IS NULL",
            self._key,
            self._t,
        ).fetchone()
        if not unique:
            raise ValueError(
                f"key is {self._key!r}, which no unique index covers alone; a key has one row"
            )
        return declared

    # Keys and values as the table holds them.

    def _column(self, key: Plain) -> Any:
        """Return a key as the column holds it, or `None` if it cannot hold such a key."""
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

    def _wanted(self, key: Plain) -> Any:
        if (column := self._column(key)) is None:
            raise TypeError(
                f"a key is {key!r}, which {self._table}.{self._key}, a column of type "
                f"{self._type}, does not hold"
            )
        return column

    def _plain(self, column: Any) -> Plain:
        if isinstance(column, str):
            return column.encode()
        if isinstance(column, int):
            return column
        return bytes(column) if self.shared else decode_key(bytes(column))

    def _read(self, value: Any) -> Any:
        if not self.shared:
            return decode_value(bytes(value))
        # `None` means that the key is absent, so a row without a value has an empty one.
        return "" if value is None else value

    def _rows(self, keys: Sequence[Plain], columns: str) -> list[Any]:
        held = [column for key in keys if (column := self._column(key)) is not None]
        query = f"SELECT {columns} FROM {self._t} WHERE {self._k} = ANY(%s::{self._type}[])"
        return list(self._do(query, held).fetchall()) if held else []

    # Transactions, the journal and the index.

    def _committed(self, write: Callable[[], _T]) -> _T:
        """Run a write in a transaction; again if it and a stranger's waited for each other."""
        for attempt in range(5):
            try:
                with self._lock, self._db.transaction():
                    return write()
            except self._psycopg.errors.DeadlockDetected:
                if attempt == 4:
                    raise
        raise AssertionError

    def _do(self, statement: str, *arguments: Any) -> Any:
        return self._db.execute(statement, arguments or None)

    def _many(self, statement: str, rows: list[Any]) -> None:
        with self._db.cursor() as cursor:
            cursor.executemany(statement, rows)

    def _begin_write(self, keys: Sequence[Plain], owner: str) -> tuple[str, set[Plain]]:
        """Return the epoch, which nobody changes before the commit, and the keys there."""
        self._check(owner)
        self._do(f"SELECT {self._advisory}")
        self._catch_up()
        there = {self._plain(row[0]) for row in self._rows(keys, self._k)}
        return self._last(self._db), there

    def _end_write(self, before: str) -> str:
        """Note that the index is whole, cut the journal now and then, and return the epoch."""
        epoch = self._last(self._db)
        first, last = int(before.split(".")[0]), int(epoch.split(".")[0])
        self.note("indexed", b"%d" % last)
        if first // 1000 != last // 1000:
            self._do(f"DELETE FROM {self._t_journal} WHERE seq <= %s", last - _KEPT)
        return epoch

    def _holder(self) -> str | None:
        row = self._do(
            f"SELECT value FROM {self._t_note} WHERE name = 'lease' FOR SHARE"
        ).fetchone()
        return None if row is None else bytes(row[0]).decode()

    def _check(self, owner: str) -> None:
        if (holder := self._holder()) != owner:
            raise lease_refused(holder)

    def _last(self, db: Any) -> str:
        row = db.execute(
            f"SELECT seq, token FROM {self._t_journal} ORDER BY seq DESC LIMIT 1"
        ).fetchone()
        return f"{row[0]}.{row[1]}"

    def _token(self, seq: int) -> str | None:
        row = self._do(f"SELECT seq, token FROM {self._t_journal} WHERE seq = %s", seq).fetchone()
        return None if row is None else f"{row[0]}.{row[1]}"

    def _catch_up(self) -> None:
        """Bring the index to the end of the journal."""
        if self._hasher is None:
            return
        done = int(self.note("indexed") or b"0")
        last = int(self._last(self._db).split(".")[0])
        if done == last:
            return
        rows = self._do(
            f"SELECT key, added FROM {self._t_journal} "
            "WHERE seq > %s AND seq <= %s AND added IS NOT NULL ORDER BY seq",
            done,
            last,
        ).fetchall()
        if self._token(done) is None or any(key is None for key, _ in rows):
            self._reindex()
            return
        final = dict(rows)
        self._index(
            [key for key, added in final.items() if added],
            [key for key, added in final.items() if not added],
        )
        self.note("indexed", b"%d" % last)

    def _reindex(self) -> None:
        self._do(f"SELECT {self._advisory}")
        self._do(f"DELETE FROM {self._t_hash}")
        with self._db.cursor(name="keys") as cursor:
            cursor.execute(f"SELECT {self._k} FROM {self._t} WHERE {self._k} IS NOT NULL")
            while rows := cursor.fetchmany(BATCH):
                self._index([key for (key,) in rows], [])
        self.note("indexed", self._last(self._db).split(".")[0].encode())

    def _index(self, added: list[Any], removed: list[Any]) -> None:
        for keys, statement in (
            (removed, f"DELETE FROM {self._t_hash} WHERE hi = %s AND lo = %s AND key = %s"),
            (added, f"INSERT INTO {self._t_hash} VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"),
        ):
            if keys and self._hasher is not None:
                hashes = self._hasher([self._plain(key) for key in keys])
                words = (hashes ^ np.uint64(_SIGN)).view(np.int64).tolist()
                self._many(statement, [(*w, key) for w, key in zip(words, keys, strict=True)])


def _quoted(name: str) -> str:
    if "\0" in name or "%" in name:
        raise ValueError(f"{name!r} is not a name that tamis can quote: it has a null or a percent")
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _unsigned(rows: Sequence[Sequence[int]]) -> Hashes:
    words = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return words.view(np.uint64) ^ np.uint64(_SIGN)
