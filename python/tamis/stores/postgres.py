"""`tamis.stores.Postgres`: a table in a PostgreSQL database (``pip install tamis[postgres]``).

The tables beside the guarded one are those of `tamis.stores.SQLite`: an index by hash, a journal
that triggers write, and notes. Rows of the journal must be numbered in the order of their commits,
or a reader would miss a row that is committed late. So whoever writes a row holds an advisory lock
from before its number is drawn until the end of the transaction.

The lease is watched, not compared with the server's clock, which may step (see `_lease.py`). It has
two notes: ``lease`` is its owner, whose row every write locks in share mode until its commit, so
that nobody takes the lease meanwhile; ``renewal`` changes with each renewal, which therefore waits
for no write.
"""

from __future__ import annotations

import secrets
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from tamis.errors import StoreError
from tamis.planning.arguments import whole
from tamis.stores import _fork
from tamis.stores import _postgres_tables as tables
from tamis.stores._pool import Pool
from tamis.stores._sql import SIGN, Journaled, State, from_signed
from tamis.stores._watch import start_watching
from tamis.stores.contract import (
    BATCH,
    Commit,
    HashRows,
    PlainKey,
    Value,
    attach_error,
    check_timeout,
    encode_key,
    encode_value,
)

_RANGES = {"smallint": 15, "integer": 31, "bigint": 63}


class Postgres(Journaled):
    """A table in a PostgreSQL database, version 14 or newer.

    By default it creates a table of its own, ``tamis``. To guard an existing table in place, pass
    ``table``, ``key`` and ``value``: the names of the table, of its key column (unique; text,
    integers or bytea) and of the column that `get` returns. Others may continue to write to it.
    """

    _param = "%s"
    _share_row, _lock_row = " FOR SHARE", " FOR UPDATE"

    def __init__(
        self,
        conninfo: str,
        *,
        table: str | None = None,
        key: str | None = None,
        value: str | None = None,
        timeout: float | None = 30.0,
        connections: int = 8,
    ) -> None:
        """Connect; ``conninfo`` is a libpq string such as ``"host=localhost dbname=shop"``.

        ``timeout`` is how many seconds to wait for the server; `None` waits as long as it takes.
        ``connections`` is how many threads can read at once; each needs a connection meanwhile.
        """
        super().__init__(table, key, value)
        try:
            import psycopg
        except ImportError:
            raise ImportError(
                "tamis.stores.Postgres needs psycopg: pip install tamis[postgres]"
            ) from None
        timeout = check_timeout(timeout)
        connections = whole("connections", connections, 10**4, least=2)
        tables.check_name(self._table)
        self._psycopg: Any = psycopg
        self._lock = threading.RLock()
        self._pool = Pool(psycopg, conninfo, connections, timeout)
        self._journal_lock = f"SELECT {tables.advisory_lock(self._table)}"
        try:
            self._create_tables()
        except BaseException:
            self.close()
            raise
        _fork.register(self)

    def put_many(self, keys: Sequence[PlainKey], values: Sequence[Value], owner: str) -> Commit:
        """Write distinct keys and their hashes in one transaction."""
        columns = [self._require_column(key) for key in keys]
        stored = list(values) if self.shared else [encode_value(value) for value in values]

        def write(db: Any) -> None:
            update = f"ON CONFLICT ({self._k}) DO UPDATE SET {self._v} = excluded.{self._v}"
            insert = f"INSERT INTO {self._t} ({self._k}, {self._v})"
            kinds = {str: "text", bytes: "bytea"}.get(type(stored[0]))
            if len(keys) == 1 or len({type(value) for value in stored}) > 1:
                cursor = db.cursor()
                cursor.executemany(
                    f"{insert} VALUES (%s, %s) {update}", [*zip(columns, stored, strict=True)]
                )
            else:
                db.execute(
                    f"{insert} SELECT k, v::{self._value_type} "
                    f"FROM unnest(%s::{self._type}[], %s::{kinds}[]) AS row (k, v) {update}",
                    (columns, stored),
                )

        return self._write(owner, keys, columns, True, write)

    def delete_many(self, keys: Sequence[PlainKey], owner: str) -> Commit:
        """Delete distinct keys and their hashes in one transaction."""
        held = [(key, column) for key in keys if (column := self._to_column(key)) is not None]
        columns = [column for _, column in held]

        def write(db: Any) -> None:
            statement = f"DELETE FROM {self._t} WHERE {self._k} = ANY(%s::{self._type}[])"
            db.execute(statement, (columns,))

        commit = self._write(owner, [key for key, _ in held], columns, False, write)
        gone = {key for (key, _), was in zip(held, commit.existed, strict=True) if was}
        return commit._replace(existed=[key in gone for key in keys])

    def _write(
        self,
        owner: str,
        keys: Sequence[PlainKey],
        columns: list[Any],
        adding: bool,
        write: Callable[[Any], None],
    ) -> Commit:
        """Run a write in one transaction; retry if it deadlocked with another writer's."""
        for attempt in range(5):
            try:
                with self._writing() as db:
                    db.execute(self._journal_lock)
                    state = self._read_state(db, owner + self._child)
                    if self._hasher is None:
                        raise attach_error()
                    self._catch_up(db, state.indexed, state.last)
                    write(db)
                    return self._index_writes(db, state, keys, columns, adding)
            except StoreError as error:
                if attempt == 4 or not isinstance(
                    error.__cause__, self._psycopg.errors.DeadlockDetected
                ):
                    raise
        raise AssertionError

    def _index_writes(
        self, db: Any, state: State, keys: Sequence[PlainKey], columns: list[Any], adding: bool
    ) -> Commit:
        """Update the index by what the journal says of a write.

        The epoch after it is the one before if a trigger of somebody else's changed other keys as
        well: the guard then learns of all changes from the journal.
        """
        rows = db.execute(
            f"SELECT seq, token, key, added FROM {self._t_journal} WHERE seq > %s ORDER BY seq",
            (state.last,),
        ).fetchall()
        changed = {key for _, _, key, _ in rows}
        kept = [i for i, column in enumerate(columns) if column in changed]
        existed = [(column in changed) != adding for column in columns]
        if not rows:
            return Commit(existed, state.epoch, state.epoch)
        last, token, _, _ = rows[-1]
        if any(added != adding for _, _, _, added in rows) or len(kept) != len(rows):
            self._catch_up(db, state.last, last)
            return Commit(existed, state.epoch, state.epoch)
        some = [keys[i] for i in kept], [columns[i] for i in kept]
        self._update_index(db, *some, [], []) if adding else self._update_index(db, [], [], *some)
        if self.shared:
            self._write_note(db, "indexed", b"%d" % last)
        return Commit(existed, state.epoch, f"{last}.{token}")

    def contents(self) -> tuple[str, Iterator[list[Any]]]:
        """Return the epoch and the keys at that epoch, in batches, from one read transaction."""
        db = self._pool.connect()
        try:
            db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            epoch = self._last_epoch(db)
        except BaseException as error:
            db.close()
            self._pool.translate(error)
            raise

        def read() -> Iterator[list[Any]]:
            try:
                yield []  # so that the connection is closed even if nobody reads on
                for part in self._read_keys(db):
                    yield [self._from_column(key) for key in part]
            except self._psycopg.Error as error:
                self._pool.translate(error)
                raise
            finally:
                db.close()

        parts = read()
        next(parts)
        return epoch, parts

    def runs(self, ranges: Sequence[tuple[int, int]]) -> list[HashRows]:
        """Return `run` of each range, in one round trip."""
        if not ranges:
            return []
        query = f"SELECT hi, lo FROM {self._t_hash} WHERE hi BETWEEN %s AND %s"
        with self._reading() as db, self._pipeline(db):
            cursors = [db.execute(query, (lo - SIGN, hi - SIGN)) for lo, hi in ranges]
            return [from_signed(cursor.fetchall()) for cursor in cursors]

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes, in order, in batches."""
        query = f"SELECT hi, lo, key FROM {self._t_hash} {{}} ORDER BY hi, lo, key LIMIT {BATCH}"
        first, later = query.format(""), query.format("WHERE (hi, lo, key) > (%s, %s, %s)")
        with self._reading() as db:
            rows = db.execute(first).fetchall()
        while rows:
            yield from_signed([row[:2] for row in rows])
            with self._reading() as db:
                rows = db.execute(later, rows[-1]).fetchall()

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` when keys have changed, and after each new connection to the server."""

        def listen(ended: threading.Event) -> None:
            while not ended.is_set():
                try:
                    with self._pool.connect() as db:
                        db.execute(f"LISTEN {tables.channel(self._table)}")
                        wake()
                        self._await_signals(db, wake, ended)
                except (StoreError, self._psycopg.Error, OSError, ValueError):
                    ended.wait(0.1)  # and the pool waits longer and longer

        return start_watching("tamis-postgres-watch", listen)

    @staticmethod
    def _await_signals(db: Any, wake: Callable[[], None], ended: threading.Event) -> None:
        quiet = 0
        while not ended.is_set():
            if select.select([db.fileno()], [], [], 0.25)[0]:
                quiet = 0
            elif (quiet := quiet + 1) % 40 == 0:
                db.execute("SELECT 1")  # a connection that is lost without a word
            db.pgconn.consume_input()
            woken = False
            while db.pgconn.notifies() is not None:
                woken = True
            if woken:
                wake()

    # The lease.

    def lease(self, owner: str, seconds: float) -> bool:
        """Take or renew the lease, unless another guard may believe that it holds it."""
        name = (owner + self._child).encode()
        renewal = f"{secrets.token_hex(8)} {seconds}".encode()
        note = self._t_note
        with self._reading() as db, self._pipeline(db), db.transaction():
            # A lease that a crash of the server took back would be granted twice.
            db.execute("SET LOCAL synchronous_commit = on")
            db.execute("SET LOCAL lock_timeout = '1s'")
            renewed = db.execute(
                f"WITH held AS (SELECT FROM {note} WHERE name = 'lease' AND value = %s FOR SHARE) "
                f"INSERT INTO {note} SELECT 'renewal', %s FROM held "
                "ON CONFLICT (name) DO UPDATE SET value = excluded.value RETURNING 1",
                (name, renewal),
            ).fetchone()
            if renewed:
                return True
            record = dict(
                db.execute(
                    f"SELECT name, value FROM {note} WHERE name IN ('lease', 'renewal')"
                ).fetchall()
            )
            if "lease" in record:
                length = float(bytes(record.get("renewal", b"- 0")).split()[1])
                if not self._watched.is_over(record, max(length, seconds)):
                    return False
            return self._take_lease(db, record, name, renewal)
        return False  # it was not the same any more

    def _take_lease(self, db: Any, record: dict[str, bytes], name: bytes, renewal: bytes) -> bool:
        """Replace what was read of the lease, if it is still the same."""
        for part, value in (("lease", name), ("renewal", renewal)):
            if part in record:
                taken = db.execute(
                    f"UPDATE {self._t_note} SET value = %s WHERE name = %s AND value = %s "
                    "RETURNING 1",
                    (value, part, record[part]),
                ).fetchone()
            else:
                taken = db.execute(
                    f"INSERT INTO {self._t_note} VALUES (%s, %s) ON CONFLICT DO NOTHING "
                    "RETURNING 1",
                    (part, value),
                ).fetchone()
            if not taken:
                raise self._psycopg.Rollback
        return True

    def release(self, owner: str) -> None:
        """Release the lease if this owner holds it."""
        with self._reading() as db:
            db.execute(
                f"DELETE FROM {self._t_note} WHERE name = 'lease' AND value = %s",
                ((owner + self._child).encode(),),
            )

    def unguard(self) -> None:
        """Drop the guard's tables and triggers, keep the guarded table, and close the store."""
        with self._writing() as db:
            tables.drop(db, self._schema, self._table)
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def forget_connections(self) -> object:
        """Open new connections in a forked child."""
        self._lock = threading.RLock()
        self._in_child()
        return self._pool.reset()

    # Connections and transactions.

    def _reading(self) -> AbstractContextManager[Any]:
        return self._pool.connection()

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        with self._lock, self._pool.connection() as db, self._pipeline(db), db.transaction():
            yield db

    def _pipeline(self, db: Any) -> AbstractContextManager[Any]:
        """Return a context in which statements are sent without waiting for each other."""
        supported = self._psycopg.Pipeline.is_supported()
        pipeline: AbstractContextManager[Any] = db.pipeline() if supported else nullcontext()
        return pipeline

    # Tables and keys.

    def _create_tables(self) -> None:
        """Create the tables and triggers, unless they are there: that would wait for writers."""
        with self._reading() as db:
            self._schema = tables.schema_of(db, self._table, self.shared)
            self._name_tables(self._schema)
            self._type, self._value_type = "bytea", "bytea"
            if self.shared:
                columns = tables.columns_of(db, self._t)
                self._check_columns(columns)
                self._type, self._value_type = columns[self._key], columns[self._value]
                tables.check_key(db, self._t, self._key, self._type)
            exists = db.execute("SELECT to_regclass(%s) IS NOT NULL", (self._t_note,)).fetchone()[0]
            if exists and self._read_note(db, "layout") == tables.LAYOUT:
                return
        with self._lock, self._pool.connection() as db, db.transaction():
            self._lock_journal(db)
            if not self.shared:
                db.execute(
                    f"CREATE TABLE IF NOT EXISTS {self._t} (key bytea PRIMARY KEY, value bytea)"
                )
            tables.create(db, self._schema, self._table, self._key, self._type)
            self._write_note(db, "layout", tables.LAYOUT)

    _quote = staticmethod(tables.quote)

    def _to_column(self, key: PlainKey) -> Any:
        if not self.shared:
            return encode_key(key)
        kind = tables.KINDS[self._type]
        if isinstance(key, int):
            fits = kind == "integer" and -1 << _RANGES[self._type] <= key < 1 << _RANGES[self._type]
            return key if fits else None
        if kind != "text":
            return key if kind == "bytea" else None
        try:
            return None if b"\0" in key else key.decode()
        except UnicodeDecodeError:
            return None

    def _select_rows(self, db: Any, keys: Sequence[PlainKey], columns: str) -> list[Any]:
        held = [column for key in keys if (column := self._to_column(key)) is not None]
        query = f"SELECT {columns} FROM {self._t} WHERE {self._k} = ANY(%s::{self._type}[])"
        return list(db.execute(query, (held,)).fetchall()) if held else []

    def _read_keys(self, db: Any) -> Iterator[list[Any]]:
        # Not a cursor of the server, which cannot be used in a pipeline.
        query = f"SELECT {self._k} FROM {self._t} WHERE {{}} ORDER BY {self._k} LIMIT {BATCH}"
        rows = db.execute(query.format(f"{self._k} IS NOT NULL")).fetchall()
        while rows:
            yield [key for (key,) in rows]
            rows = db.execute(query.format(f"{self._k} > %s"), rows[-1]).fetchall()

    # The journal and the index.

    def _lock_journal(self, db: Any) -> None:
        db.execute(self._journal_lock)

    def _index_up_to(self, owner: str, rows: list[Any]) -> bool:
        if not self.shared:
            return True
        with self._reading() as db, db.transaction():
            query = f"SELECT value FROM {self._t_note} WHERE name = %s FOR {{}} SKIP LOCKED"
            indexed = db.execute(query.format("UPDATE"), ("indexed",)).fetchone()
            if indexed is None:
                return False  # a write of this guard is under way, and may wait for others
            holder = db.execute(query.format("SHARE"), ("lease",)).fetchone()
            if holder is not None and bytes(holder[0]) == owner.encode():
                self._catch_up(db, int(bytes(indexed[0])), rows[-1][0])
            return True

    def _update_index(
        self,
        db: Any,
        added: Sequence[PlainKey],
        added_columns: Sequence[Any],
        removed: Sequence[PlainKey],
        removed_columns: Sequence[Any],
    ) -> None:
        rows = f"unnest(%s::bigint[], %s::bigint[], %s::{self._type}[]) AS new (hi, lo, key)"
        for keys, columns, statement in (
            (
                removed,
                removed_columns,
                f"DELETE FROM {self._t_hash} AS old USING {rows} "
                "WHERE (old.hi, old.lo, old.key) = (new.hi, new.lo, new.key)",
            ),
            (
                added,
                added_columns,
                f"INSERT INTO {self._t_hash} SELECT * FROM {rows} ON CONFLICT DO NOTHING",
            ),
        ):
            if keys:
                words = self._words(keys)
                hashes = words[:, 0].tolist(), words[:, 1].tolist()
                db.execute(statement, (*hashes, list(columns)))
