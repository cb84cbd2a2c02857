"""Follows the keys of a table that others write, without a lock that any of them waits for.

A *position* is a snapshot of the server (which transactions it sees), a token, and a hash of the
schema. A *change check* is one statement that returns the keys that changed between a position's
snapshot and its own, from the journal that triggers write (`triggers.py`), with the current token
and hash:

- The token is in an unlogged table, which a crash and a promotion empty: transaction ids are used
  again after them. With another token, nothing is known of the old position.
- The hash covers what decides whether the journal is complete: triggers, partitions, columns,
  unique indexes, and the number of statements that were not logged. If it differs, the keys have to
  be read again.

Before `contents` reads the keys it makes sure that everything is installed, registers the follower,
and activates logging: it sets the time until which guards are active. A writer that has checked
that time before may still commit rows that are not logged, after the keys were read. Such a writer
holds a lock on the table that shows in ``pg_locks``, so the follower waits until all holders are
gone. It waits by polling: nobody waits for it.
"""

from __future__ import annotations

import hashlib
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from tamis._clock import now
from tamis.errors import StoreError
from tamis.stores.base import BATCH, JOURNAL, Changes, PlainKey, schema_error
from tamis.stores.postgres.columns import PostgresColumns
from tamis.stores.postgres.connections import READ, WRITE, Connections, run_script
from tamis.stores.postgres.tables import literal, quote
from tamis.stores.postgres.triggers import (
    JOURNALS,
    SEQUENCES,
    TABLES,
    TRIGGERS,
    Definition,
    Relation,
    drop_statements,
    object_statements,
    trigger_statements,
)

ACTIVE = 600.0
"""Seconds for which the triggers log after the last change check of a guard."""

RENEW = 5.0
"""Seconds between renewals of that, and of the position that the journal is kept for."""

_LOCK_TIMEOUT = 50
"""Milliseconds that a statement on the table may wait: writers wait behind it meanwhile."""

_FULL = 1 << 20
"""Bytes of a journal after which the next one of the ring is written."""

_CUTS = 8
"""Changes to keep that were returned in part; more than one, as threads check at the same time."""

_PATIENCE = 1e9
"""Seconds to wait if there is no time-out."""

_SNAPSHOT = re.compile(r"\d+:\d+:[\d,]*")


class Position(NamedTuple):
    """A state of the keys."""

    snapshot: str
    token: str
    digest: str

    def __str__(self) -> str:
        return "|".join(self)

    @staticmethod
    def parse(position: str) -> Position | None:
        """Return a position, or `None` if it is not one of a followed table."""
        parts = position.split("|")
        if len(parts) != 3 or not _SNAPSHOT.fullmatch(parts[0]):
            return None
        return Position(*parts)

    def order(self) -> tuple[int, int]:
        """Return a number that never decreases with time, for positions of one server."""
        _, xmax, running = self.snapshot.split(":")
        return int(xmax), -len(running.split(",")) if running else 0


class _Cut(NamedTuple):
    """Changes in two parts, the first of which ends at a position of its own."""

    part: Changes
    rest: Changes


def _join(first: Changes, then: Changes) -> Changes | None:
    """Return the net changes of both; `None` if a key was added or removed twice."""
    sums: dict[PlainKey, int] = {}
    for changes in first, then:
        for keys, sign in (changes.added, 1), (changes.removed, -1):
            for key in keys:
                sums[key] = sums.get(key, 0) + sign
    if any(abs(n) > 1 for n in sums.values()):
        return None
    added = [key for key, n in sums.items() if n > 0]
    return Changes(then.position, added, [key for key, n in sums.items() if n < 0])


class Follower:
    """Follows one table. It is thread-safe."""

    def __init__(
        self,
        connections: Connections,
        describe: Callable[[Any], tuple[Definition, Any]],
        install: bool,
    ) -> None:
        """``describe`` returns the table to follow and its columns; `ValueError`: refused."""
        self._connections, self._describe = connections, describe
        self.definition: Definition
        self.columns: PostgresColumns
        self.forget()
        if install:
            self._install()
        else:
            with connections.lend() as db:
                self.definition, self.columns = describe(db)

    def forget(self) -> None:
        """Be another follower, in a forked child."""
        self._lock = threading.RLock()
        self._name = secrets.token_hex(8)
        self._registered: Position | None = None
        self._renewed = 0.0
        self._cuts: dict[str, _Cut] = {}
        """Changes that were returned in part, by the positions at which they begin."""

    # Change checks.

    def changes(self, since: str, limit: int | None = None) -> Changes | None:
        """Return the net changes since a position, or `None` if they are unknown."""
        with self._lock:
            cut = self._cuts.get(since)
            middle = next((c for c in self._cuts.values() if c.part.position == since), None)
        if cut is not None and limit is not None:
            return cut.part  # with `more`, so it need not be of this moment
        position = Position.parse(since if middle is None else middle.rest.position)
        if position is None:
            return None
        self.register(position)
        with self._connections.lend() as db:
            function = self.definition.part("changes")
            query = f"SELECT key, net, state FROM {function}(%s::pg_snapshot) LIMIT {JOURNAL + 2}"
            rows = self._connections.run_one(db, READ, query, [position.snapshot])
        changes = self.to_changes(position, rows)
        if changes is not None and middle is not None:
            # Its rest is older than this check, and need not be all.
            changes = _join(middle.rest, changes)
        return changes and self._cut(since, changes, limit)

    def to_changes(self, since: Position, rows: Sequence[Any]) -> Changes | None:
        """Return the changes in the rows of a change check; `None` if they are unknown."""
        (_, too_old, state), *rows = rows
        *parts, standby = state.split("|")
        if standby == "t":
            raise StoreError(
                f"{self._connections.where} is a standby, on which changes cannot be followed: "
                "connect to the primary"
            )
        position = Position(*parts)
        if too_old or not position.token or position[1:] != since[1:] or len(rows) > JOURNAL:
            return None
        # A sum beyond one, or a row without a key: the keys were not unique, or a TRUNCATE.
        if any(key is None or abs(net) != 1 for key, net, _ in rows):
            return None
        return Changes(
            str(position),
            self.columns.from_columns([key for key, net, _ in rows if net > 0]),
            self.columns.from_columns([key for key, net, _ in rows if net < 0]),
        )

    def _cut(self, since: str, changes: Changes, limit: int | None) -> Changes:
        """Return the first changes up to a limit, and keep the others for a later call.

        Several threads may check for changes since one position. They get the same part, so that
        the position at its end is known whichever of them goes on.
        """
        added, removed = changes.added, changes.removed
        if limit is None or len(added) + len(removed) <= max(limit, 1):
            return changes
        limit = max(limit, 1)
        taken = added[:limit], removed[: max(limit - len(added), 0)]
        rest = changes._replace(added=added[len(taken[0]) :], removed=removed[len(taken[1]) :])
        middle = f"{changes.position}+{secrets.token_hex(8)}"
        with self._lock:
            cut = self._cuts.setdefault(since, _Cut(Changes(middle, *taken, more=True), rest))
            while len(self._cuts) > _CUTS:
                del self._cuts[next(iter(self._cuts))]
        return cut.part

    # Registration and activation.

    def register(self, position: Position, *, renew: bool = False) -> None:
        """Let the triggers log, and keep the journal from a position on, for some time."""
        with self._lock:
            known, at = self._registered, now()
            covered = known is not None and position.order() >= known.order()
            if covered and at < self._renewed + RENEW and not renew:
                return
            with self._connections.lend() as db:
                run_script(db, *self.registration(position))
            self._registered, self._renewed = position, at
        self._trim()

    def registration(self, position: Position, name: str | None = None) -> list[str]:
        """Return the script that registers a position under a name, and renews the activation."""
        d = self.definition
        until = "extract(epoch FROM clock_timestamp())::bigint"
        return [
            WRITE,
            "SET LOCAL synchronous_commit = off",
            f"INSERT INTO {d.part('followers')} AS f VALUES ({literal(name or self._name)}, "
            f"'{position.snapshot}', clock_timestamp() + interval '{ACTIVE} seconds') "
            "ON CONFLICT (name) DO UPDATE SET position = excluded.position, "
            "expires = excluded.expires",
            f"SELECT setval({d.regclass('until')}, "
            f"greatest(pg_sequence_last_value({d.regclass('until')}), {until} + {int(ACTIVE)}))",
            "COMMIT",
        ]

    def _trim(self) -> None:
        """Truncate the oldest journal if all have seen it, or write the next one if it is empty."""
        d = self.definition
        with self._connections.lend() as db:
            query = ", ".join(
                f"pg_relation_size({d.regclass(f'journal{i}')})" for i in range(JOURNALS)
            )
            ring = f"coalesce(pg_sequence_last_value({d.regclass('ring')}), 0) % {JOURNALS}"
            current, *bytes_ = run_script(db, READ, f"SELECT {ring}, {query}", "COMMIT")[1][0]
            following = (current + 1) % JOURNALS
            if bytes_[current] < _FULL:
                return
            if not bytes_[following]:
                db.execute(f"SELECT nextval({d.regclass('ring')})")
                return
        try:
            self._truncate(d.journals()[following])
        except StoreError as error:
            if not isinstance(error.__cause__, self._connections.psycopg.errors.LockNotAvailable):
                raise

    def _truncate(self, journal: str) -> None:
        """Empty a journal, unless a writer uses it or a follower has not seen all of it.

        With the lock, all its rows are committed, so that no new one is overlooked.
        """
        followers, state = self.definition.part("followers"), self.definition.part("state")
        unseen = (
            f"SELECT EXISTS (SELECT FROM {journal} AS j JOIN {followers} AS f "
            "ON NOT pg_visible_in_snapshot(j.xid, f.position))"
        )
        with self._connections.lend() as db:
            db.execute(f"DELETE FROM {followers} WHERE expires < clock_timestamp()")
            if db.execute(unseen).fetchone()[0]:
                return
            with db.transaction():
                # A follower that registers from now on reads after this transaction.
                db.execute(f"LOCK TABLE {followers} IN SHARE ROW EXCLUSIVE MODE NOWAIT")
                db.execute(f"LOCK TABLE {journal} IN ACCESS EXCLUSIVE MODE NOWAIT")
                if db.execute(unseen).fetchone()[0]:
                    return
                db.execute(
                    f"UPDATE {state} SET trimmed_at = pg_current_snapshot(), "
                    f"trimmed = greatest(trimmed, (SELECT max(xid) FROM {journal}))"
                )
                db.execute(f"TRUNCATE {journal}")

    # The contents.

    def contents(self) -> tuple[Position, Iterator[list[Any]]]:
        """Return a position and the keys at that position, in batches."""
        with self._lock:
            try:
                self._install()
            except ValueError as error:
                raise schema_error(self._connections.where, error) from error
        token, digest = self._activate()
        snapshot, parts = self.read_keys()
        position = Position(snapshot, token, digest)

        def read() -> Iterator[list[Any]]:
            with closing(parts):
                yield []  # so that the connection is closed even if nobody reads on
                for part in parts:
                    self.register(position)
                    yield part

        registered = read()
        next(registered)
        return position, registered

    def read_keys(self) -> tuple[str, Generator[list[Any]]]:
        """Return a snapshot and the keys in it, in batches; this reads only."""
        db = self._connections.connect()
        try:
            # Which rows a policy hides must be an error.
            snapshot = run_script(
                db,
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
                "SET LOCAL row_security = off",
                "SELECT pg_current_snapshot()::text",
                f"DECLARE tamis_keys NO SCROLL CURSOR FOR {self._keys_query()}",
            )[2][0][0]
        except BaseException as error:
            db.close()
            self._connections.translate(error)
            raise
        columns = self.columns

        def read() -> Generator[list[Any]]:
            try:
                yield []  # so that the connection is closed even if nobody reads on
                while rows := db.execute(f"FETCH {BATCH} FROM tamis_keys").fetchall():
                    yield columns.from_columns([key for (key,) in rows])
            except self._connections.psycopg.Error as error:
                self._connections.translate(error)
                raise
            finally:
                db.close()

        parts = read()
        next(parts)
        return snapshot, parts

    def _keys_query(self) -> str:
        d = self.definition
        present = " AND ".join(f"{quote(key)} IS NOT NULL" for key in d.keys)
        condition = f" AND ({d.where}\n)" if d.where else ""
        return f"SELECT {self.columns.expression} FROM {d.name} WHERE {present}{condition}"

    def _activate(self) -> tuple[str, str]:
        """Let the triggers log, and wait for writers that have found them inactive.

        Return the token and the hash of the schema from before the wait: the hash covers how many
        statements were not logged, so a writer that is counted after it is noticed by the next
        change check, and one that is counted before it is waited for.
        """
        d = self.definition
        state = d.part("state")
        with self._connections.lend() as db:
            self._ensure_token(db)
            snapshot = db.execute("SELECT pg_current_snapshot()::text").fetchone()[0]
        self.register(Position(snapshot, "", ""), renew=True)
        with self._connections.lend() as db:
            query = f"SELECT state FROM {d.part('changes')}(pg_current_snapshot())"
            _, token, digest, _ = run_script(db, READ, query, "COMMIT")[1][0][0].split("|")
            # In this order: whoever is counted here holds a lock that the next query lists.
            skipped, settled = db.execute(
                f"SELECT coalesce(pg_sequence_last_value({d.regclass('skipped')}), -1), "
                f"(SELECT settled FROM {state})"
            ).fetchone()
            if skipped != settled:
                self._await_writers(db)
                db.execute(f"UPDATE {state} SET settled = %s", (skipped,))
        return token, digest

    def _await_writers(self, db: Any) -> None:
        """Wait until all transactions that may have written to the table by now have ended."""
        query = (
            "SELECT l.virtualtransaction, coalesce(l.pid::text, 'a prepared transaction') "
            "FROM pg_locks AS l WHERE l.locktype = 'relation' AND l.granted "
            "AND l.relation = ANY(%s::oid[]) AND l.pid IS DISTINCT FROM pg_backend_pid() "
            "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
            "AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', "
            "'AccessExclusiveLock')"
        )
        oids = [relation.oid for relation in self.read_relations(db, self.definition.name)]
        waiting = dict(db.execute(query, (oids,)).fetchall())
        pause, until = 0.002, self._deadline()
        while waiting:
            if time.monotonic() > until:
                raise StoreError(
                    f"{self._connections.where}: a transaction has been writing to "
                    f"{self.definition.table!r} since before it was followed, and must end first "
                    f"(process {', '.join(sorted(set(waiting.values())))})"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
            active = dict(db.execute(query, (oids,)).fetchall())
            waiting = {each: who for each, who in waiting.items() if each in active}

    def _ensure_token(self, db: Any) -> None:
        """Create a token if there is none, or if it came here with a copy of the database."""
        d = self.definition
        state = d.part("state")
        home = (
            "(SELECT concat_ws(' ', system_identifier, (SELECT oid FROM pg_database "
            f"WHERE datname = current_database()), {d.regclass('journal0')}::oid) "
            "FROM pg_control_system())"
        )
        query = f"SELECT FROM {state} WHERE home = {home}"
        if db.execute(query).fetchone() is not None:
            return
        with db.transaction():
            db.execute(f"LOCK TABLE {state} IN SHARE ROW EXCLUSIVE MODE")
            if db.execute(query).fetchone() is not None:
                return
            db.execute(f"DELETE FROM {state}")
            db.execute(f"DELETE FROM {d.part('followers')}")
            # Transactions of another server: visible, though they seem to be in the future here.
            for journal in d.journals():
                db.execute(
                    f"DELETE FROM {journal} "
                    "WHERE NOT pg_visible_in_snapshot(xid, pg_current_snapshot())"
                )
            db.execute(
                f"INSERT INTO {state} (token, home) VALUES (%s, {home})", (secrets.token_hex(16),)
            )

    # Installing.

    @property
    def installed(self) -> bool:
        """Whether the metadata, which are created last, exist."""
        with self._connections.lend() as db:
            name = (self.definition.part("meta"),)
            return bool(db.execute("SELECT to_regclass(%s) IS NOT NULL", name).fetchone()[0])

    @staticmethod
    def _digest(d: Definition) -> bytes:
        statements = "\0".join(object_statements(d)).encode()
        return hashlib.blake2b(statements, digest_size=16).digest()

    def statements(self) -> list[str]:
        """Return the statements that install everything."""
        d = self.definition
        with self._connections.lend() as db:
            relations = self.read_relations(db, d.name)
        triggers = [each for relation in relations for each in trigger_statements(d, relation)]
        return [
            *object_statements(d),
            *triggers,
            f"INSERT INTO {d.part('meta')} VALUES ('installed', '\\x{self._digest(d).hex()}') "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        ]

    def _install(self) -> None:
        """Create missing tables and functions, then the missing triggers of each relation."""
        with self._connections.lend() as db:
            self.definition, self.columns = self._describe(db)
            d = self.definition
            relations = self.read_relations(db, d.name)
            statements, digest = [*object_statements(d)], self._digest(d)
            meta = d.part("meta")
            exists = db.execute("SELECT to_regclass(%s) IS NOT NULL", (meta,)).fetchone()[0]
            known = (
                exists
                and db.execute(f"SELECT value FROM {meta} WHERE name = 'installed'").fetchone()
            )
            objects = db.execute(
                "SELECT bool_and(to_regclass(each) IS NOT NULL) FROM unnest(%s::text[]) AS each",
                ([*map(d.part, TABLES + SEQUENCES)],),
            ).fetchone()[0]
            changed = known and bytes(known[0]) != digest
        if not (known and objects) or changed:
            if changed:
                self._remove_triggers()
                self.alter([*drop_statements(d, keep_meta=True)])
            lock = f"SELECT pg_advisory_xact_lock(1952542067, hashtext({literal(d.base)}))"
            self.alter([lock, *statements])
            with self._connections.lend() as db:
                db.execute(
                    f"INSERT INTO {meta} VALUES ('installed', %s) "
                    "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    (digest,),
                )
        self._install_triggers(relations)

    def _install_triggers(self, relations: list[Relation]) -> None:
        d = self.definition
        modes = {"ORIGIN": "O", "REPLICA": "R", "ALWAYS": "A"}
        expected = {
            (relation.name, f"{d.base}_{part}"): modes[mode]
            for relation in relations
            for part, (_, mode) in d.triggers(relation).items()
        }
        found = self._find_triggers()
        for relation in relations:
            each = {key: mode for key, mode in expected.items() if key[0] == relation.name}
            if any(found.get(key) != mode for key, mode in each.items()):
                self.alter([*trigger_statements(d, relation)])
        # Of partitions that were detached: their rows no longer belong to this table.
        for table, name in found.keys() - expected.keys():
            self.alter([f"DROP TRIGGER IF EXISTS {quote(name)} ON {table}"])

    def _find_triggers(self) -> dict[tuple[str, str], str]:
        """Return the mode of each trigger that calls an installed function."""
        with self._connections.lend() as db:
            rows = db.execute(
                "SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), t.tgname, "
                "t.tgenabled::text FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid "
                "JOIN pg_namespace AS n ON n.oid = c.relnamespace "
                "WHERE NOT t.tgisinternal AND t.tgfoid IN "
                "(SELECT to_regprocedure(f) FROM unnest(%s::text[]) AS f)",
                ([f"{self.definition.part(part)}()" for part in TRIGGERS],),
            ).fetchall()
        return {(table, name): mode for table, name, mode in rows}

    def _remove_triggers(self) -> None:
        found = self._find_triggers()
        for table in {table for table, _ in found}:
            names = [name for each, name in found if each == table]
            self.alter([f"DROP TRIGGER IF EXISTS {quote(name)} ON {table}" for name in names])

    def remove(self) -> None:
        """Drop everything that was installed."""
        with self._lock:
            self._remove_triggers()
            self.alter([*drop_statements(self.definition)])

    def alter(self, statements: Sequence[str]) -> None:
        """Run statements in one transaction that gives up its place in a queue after a moment."""
        until = self._deadline()
        errors = self._connections.psycopg.errors
        while True:
            try:
                with self._connections.lend() as db, db.transaction():
                    db.execute(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT}")
                    for statement in statements:
                        db.execute(statement)
                return
            except StoreError as error:
                cause = error.__cause__
                if isinstance(cause, errors.InsufficientPrivilege):
                    raise ValueError(
                        f"the role must own {self.definition.table!r}, or its owner must run the "
                        f"statements of sql(): {cause}"
                    ) from error
                if not isinstance(cause, (errors.LockNotAvailable, errors.DeadlockDetected)):
                    raise
                if time.monotonic() > until:
                    raise
            time.sleep(random.uniform(0.05, 0.2))

    @staticmethod
    def read_relations(db: Any, table: str) -> list[Relation]:
        """Return a table and its partitions, from the root on."""
        rows = db.execute(
            "WITH RECURSIVE tree (oid, depth) AS (SELECT to_regclass(%s)::oid, 0 UNION "
            "SELECT inhrelid, depth + 1 FROM pg_inherits JOIN tree ON inhparent = tree.oid) "
            "SELECT c.oid, quote_ident(n.nspname) || '.' || quote_ident(c.relname), "
            "c.relkind::text FROM tree JOIN pg_class AS c USING (oid) "
            "JOIN pg_namespace AS n ON n.oid = c.relnamespace ORDER BY depth, c.oid",
            (table,),
        ).fetchall()
        return [Relation(*row) for row in rows]

    def _deadline(self) -> float:
        timeout = self._connections.timeout
        return time.monotonic() + (_PATIENCE if timeout is None else timeout)
