"""A table in an SQL database, and the guard's own tables for it.

For a table T these are three: ``tamis_T_hash`` is the index of hashes, ``tamis_T_journal`` lists
the keys that were added or removed, and ``tamis_T_meta`` holds the lease, the secret key and the
last row of the journal that the index has. Triggers write and trim the journal, so it is complete
and bounded whoever writes to T. Triggers cannot hash: a writer without tamis has no such function.
So the guard that holds the lease updates the index from the journal, some thousand rows at a time,
and keeps the rows that are not in the index yet in memory (`tail.py`).

The position is the last row of the journal: its number, and a random token that distinguishes it
from a row of the same number in another history, such as a restored backup.

Triggers belong to their table. A migration that copies a table, drops it and renames the copy
leaves a table that writes no journal, so every read of the journal also checks that the triggers
exist. If they do not, the position is lost, and `contents`, from which a guard rebuilds its filter,
creates them again.

Reads have connections of their own, so that they never wait for a write.
"""

from __future__ import annotations

import hashlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, suppress
from typing import Any, ClassVar, NamedTuple

from tamis.errors import LeaseError
from tamis.stores.base import (
    Changes,
    Hasher,
    HashRows,
    PlainKey,
    Store,
    Value,
    check_found,
    lease_error,
    position_number,
)
from tamis.stores.encoding import decode_value, to_signed
from tamis.stores.lease import WatchedLease
from tamis.stores.sql.keys import KeyColumns
from tamis.stores.tail import MAX_TAIL, JournalRows, Tail, net_changes

TRIM_EVERY = 1000
"""Rows after which triggers trim the journal."""


class State(NamedTuple):
    """The state before a write: the position, and the number of the journal's last row."""

    position: str
    last: int


class Journaled(Store, ABC):
    """A table with an index by hash, a journal and metadata.

    The store of each database defines its connections, the types of its columns, and how to create
    the tables and triggers.
    """

    _param: ClassVar[str]
    """The parameter marker in statements."""

    _share_row, _lock_row = "", ""
    """Clauses that lock a selected row until the commit, if the transaction itself does not."""

    _journal_columns = "seq, token, key, added"
    """The columns of the journal to read."""

    _logs_all = True
    """Whether a key that the journal says was added was always absent before."""

    def __init__(
        self,
        table: str | None,
        key: str | Sequence[str] | None,
        value: str | None,
        where: str | None,
    ) -> None:
        if len({table is None, key is None, value is None}) > 1:
            raise ValueError(
                "pass all of table, key and value to guard an existing table, or none of them to "
                f"use a table of the guard's own; not table={table!r}, key={key!r}, value={value!r}"
            )
        for name, given in {"table": table, "value": value, "where": where}.items():
            if not isinstance(given, str | None):
                raise TypeError(f"{name} must be a str, or None, not {given!r}")
        names = key if isinstance(key, Collection) else ()
        if key is not None and not (names and all(isinstance(name, str) for name in names)):
            raise TypeError(f"key must be the name of a column, or a list of names, not {key!r}")
        if where is not None and table is None:
            raise ValueError("pass where only with table, key and value of an existing table")
        if where is not None and not where.strip():
            raise ValueError(
                f"where must be a condition on columns of {table!r}, or None, not {where!r}"
            )
        self.shared = table is not None
        self._table, self._value = table or "tamis", value or "value"
        self._keys = (key,) if isinstance(key, str) else tuple(key or ("key",))
        self._where = where
        self._k = ", ".join(map(self._quote, self._keys))
        self._v = self._quote(self._value)
        self._and_where = f" AND ({where}\n)" if where else ""
        """A condition on the rows of the table, for statements with a condition on the key."""
        self.translates_keys = self.shared
        self._name_tables("", self._table)
        self._hasher: Hasher | None = None
        self._owner: str | None = None
        self._watched = WatchedLease()
        self._tail = Tail(0, self._hash_columns)
        self._owner_suffix = ""
        """Follows the owner's name in a forked child, which must not write under the same name."""
        self._columns: KeyColumns
        """How the table holds keys, once its columns are known."""

    def run(self, lo: int, hi: int) -> HashRows:
        """Return the hashes whose first word is from ``lo`` to ``hi``."""
        return self.runs([(lo, hi)])[0]

    def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        if not keys:
            return []
        with self._reading() as db:
            return self._values_of(keys, self._select_rows(db, keys, self._v))

    def _values_of(self, keys: Sequence[PlainKey], rows: Sequence[Any]) -> list[Value | None]:
        """Return the value of each key in rows of a key and a value."""
        values = {self._columns.from_column(key): self._load_value(value) for key, value in rows}
        check_found(self._table, keys, values)
        return [values.get(key) for key in keys]

    def changes(self, since: str, limit: int | None = None) -> Changes | None:
        """Return the changes since a position; `None` if the journal does not reach back to it.

        For the guard that holds the lease, `run` and `scan` follow to the same position. Where the
        index has to be written for that, and would wait for a write, no changes are returned, and
        ``more``.
        """
        with self._reading() as db:
            # In this order, so that writes before this call are in the journal.
            logged = self._is_logged(db)
            read = self._read_journal(db, since, limit) if logged else None
        if read is None:
            return None
        rows, more = read
        if not rows:
            return Changes(since, [], [], more)
        if is_broken(rows):
            return None
        if self._owner is not None and not self._follow(self._owner, position_number(since), rows):
            return Changes(since, [], [], True)
        return Changes(_position_of(rows[-1]), *self._net(rows), more)

    def _net(self, rows: Sequence[Any]) -> tuple[list[PlainKey], list[PlainKey]]:
        """Return the keys that rows of the journal add to the set, and the keys they remove.

        Every row that is deleted was there before or was logged as added. So a negative sum means
        that the key was there before and is gone. A positive sum is possible for a key that was
        there: SQLite does not log rows that INSERT OR REPLACE deletes.
        """
        sums: dict[PlainKey, int] = {}
        for _, _, column, added in rows:
            if added is not None:
                key = self._columns.from_column(column)
                sums[key] = sums.get(key, 0) + (1 if added else -1)
        return [key for key, n in sums.items() if n > 0], [key for key, n in sums.items() if n < 0]

    def attach(self, owner: str, hasher: Hasher, name: bytes) -> None:
        """Index keys with this hasher; rebuild the index if it had another name."""
        owner += self._owner_suffix
        with self._writing() as db:
            self._lock_journal(db)
            state = self._read_state(db, owner)
            self._owner, self._hasher = owner, hasher
            if self._read_metadata(db, "index") == name:
                self._catch_up(db, state)
            else:
                self._reindex(db)
                self._write_metadata(db, "index", name)
        self._tail = Tail(state.last, self._hash_columns)

    def metadata(self, name: str, value: bytes | None = None) -> bytes | None:
        """Return the metadata of this name; first set it to ``value``, if given."""
        if value is not None:
            with self._writing() as db:
                self._write_metadata(db, name, value)
        with self._reading() as db:
            return self._read_metadata(db, name)

    # Defined by each database.

    @staticmethod
    @abstractmethod
    def _quote(name: str) -> str:
        """Quote a name for use in a statement."""

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Any]:
        """Return a context with a connection for reads, which does not wait for writes."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[Any]:
        """Return a context with a connection in one transaction, one thread at a time."""

    @abstractmethod
    def _index_now(self, owner: str) -> bool:
        """Apply the journal to the index if this owner holds the lease.

        Return whether that was possible without waiting for a write.
        """

    @abstractmethod
    def _is_logged(self, db: Any) -> bool:
        """Return whether the triggers that write the journal are there."""

    @abstractmethod
    def _create_log(self, db: Any) -> None:
        """Create the triggers that write the journal."""

    @abstractmethod
    def _lock_journal(self, db: Any) -> None:
        """Keep other transactions from writing to the journal until this one ends."""

    @abstractmethod
    def _read_runs(self, ranges: Sequence[tuple[int, int]]) -> list[HashRows]:
        """Return the hashes of each range that the index has."""

    @abstractmethod
    def _scan_index(self) -> Iterator[HashRows]:
        """Iterate over the hashes that the index has, in batches."""

    @abstractmethod
    def _read_keys(self, db: Any) -> Iterator[list[Any]]:
        """Iterate over the key column on a connection, in batches."""

    @abstractmethod
    def _select_rows(self, db: Any, keys: Sequence[PlainKey], value: str) -> list[Any]:
        """Return the key, as the index has it, and a value of the rows with one of ``keys``."""

    @abstractmethod
    def _update_index(
        self, db: Any, added: Sequence[PlainKey], removed: Sequence[PlainKey]
    ) -> None:
        """Add and remove the hashes of keys."""

    # Names, keys and values.

    def _name_tables(self, schema: str, table: str) -> None:
        """Name the table and the guard's tables; ``schema`` is quoted, with its dot, or empty."""
        self._t, self._base = schema + self._quote(table), f"tamis_{table}"
        if self.shared and (self._where or len(self._keys) > 1):
            definition = "\0".join((*self._keys, self._where or ""))
            digest = hashlib.blake2b(definition.encode(), digest_size=4).hexdigest()
            self._base += f"_{digest}"
        self._t_hash, self._t_journal, self._t_meta = (
            schema + self._quote(f"{self._base}_{part}") for part in ("hash", "journal", "meta")
        )
        self._state_query = (
            f"SELECT (SELECT value FROM {self._t_meta} WHERE name = 'lease'{self._share_row}), "
            f"seq, token FROM {self._t_journal} ORDER BY seq DESC LIMIT 1"
        )

    def _check_columns(self, columns: Mapping[str, object]) -> None:
        """Check that an existing table has the key and value columns."""
        if not columns:
            raise ValueError(f"table must be a table of the database, not {self._table!r}")
        for name, column in (*(("key", key) for key in self._keys), ("value", self._value)):
            if column not in columns:
                raise ValueError(
                    f"{name} must be a column of {self._table!r} ({', '.join(columns)}), "
                    f"not {column!r}"
                )

    def _check_written(self, keys: Sequence[PlainKey], found: Set[PlainKey]) -> None:
        """Raise `ValueError` if a put wrote a row that does not satisfy the condition."""
        for key in keys:
            if key not in found:
                raise ValueError(
                    f"the row of key {self.from_plain(key)!r} does not satisfy where="
                    f"{self._where!r}, so it would be absent; nothing was written"
                )

    def _check_definition(self, db: Any) -> None:
        """Record by which column a table is guarded, or check that it is the same."""
        if len(self._keys) > 1 or self._where or not self.shared:
            return  # the names of the tables contain it
        known = self._read_metadata(db, "key column")
        if known is None:
            self._write_metadata(db, "key column", self._keys[0].encode())
        elif known.decode() != self._keys[0]:
            raise ValueError(
                f"key must be {known.decode()!r}, by which {self._table!r} is guarded already, not "
                f"{self._keys[0]!r}; unguard() ends that"
            )

    def to_plain(self, key: Any) -> PlainKey:
        """Return a key as filters hash it and as the other methods take it."""
        return self._columns.to_plain(key)

    def from_plain(self, key: PlainKey) -> Any:
        """Return a key in the caller's form: of several columns, a tuple; text as bytes."""
        return self._columns.from_plain(key)

    def _load_value(self, value: Any) -> Any:
        if not self.shared:
            return decode_value(bytes(value))
        # `None` would mean that the key is absent, so NULL is read as an empty value.
        return "" if value is None else value

    # The journal and the index.

    def runs(self, ranges: Sequence[tuple[int, int]]) -> list[HashRows]:
        """Return `run` of each range."""
        views = [self._tail.within(lo, hi) for lo, hi in ranges]
        stored = self._read_runs(ranges)
        return [view.apply(rows) for view, rows in zip(views, stored, strict=True)]

    def scan(self) -> Iterator[HashRows]:
        """Iterate over all hashes, in batches."""
        return self._tail.within(0, 2**64 - 1).apply_to_parts(self._scan_index())

    def _follow(self, owner: str, before: int, rows: Sequence[Any]) -> bool:
        """Let `run` and `scan` have rows of the journal that come after the row ``before``."""
        known = self._tail.append(before, self._to_journal_rows(rows))
        if known and len(self._tail) < MAX_TAIL:
            return True
        return self._index_now(owner) or known

    def _restore_log(self) -> None:
        """Create the triggers again if they are gone, and let every guard rebuild its filter."""
        with self._reading() as db:
            if self._is_logged(db):
                return
        with self._writing() as db:
            self._lock_journal(db)
            if self._is_logged(db):
                return
            self._log_again(db)
        self._index_after_commit()

    def _index_after_commit(self) -> None:
        """Apply the journal to the index, unless the lease is lost: its next holder does that."""
        if self._owner is not None:
            with suppress(LeaseError):
                self._write_index(self._owner)

    def _log_again(self, db: Any) -> None:
        """Create the triggers, and log that earlier changes are unknown."""
        self._create_log(db)
        db.execute(f"INSERT INTO {self._t_journal} (added) VALUES (false)", ())

    def _hash_columns(self, columns: Sequence[Any]) -> HashRows:
        assert self._hasher is not None
        return self._hasher(self._columns.from_columns(columns))

    def _write_index(self, owner: str) -> None:
        """Apply the journal to the index; `LeaseError` without the lease."""
        with self._writing() as db:
            self._lock_journal(db)
            state = self._read_state(db, owner)
            self._catch_up(db, state)
        self._tail.drop(state.last)

    def _to_journal_rows(self, rows: Sequence[Any]) -> JournalRows:
        """Convert rows of the journal, at least one, for the tail."""
        numbers, _, columns, added = map(list, zip(*rows, strict=True))
        if None in columns:  # the first row of a journal has no key
            changes = [row for row in rows if row[2] is not None]
            numbers, columns, added = ([row[i] for row in changes] for i in (0, 2, 3))
        return JournalRows(
            numbers, [*map(bool, added)], columns, _position_of(rows[-1]), self._logs_all
        )

    def _read_journal(
        self, db: Any, since: str, limit: int | None
    ) -> tuple[list[Any], bool] | None:
        """Return the rows after a position, and whether there are more; `None` if it is unknown.

        In one statement, as rows may be trimmed at any time.
        """
        m, arguments = self._param, [position_number(since)]
        query = f"SELECT {self._journal_columns} FROM {self._t_journal} WHERE seq >= {m}"
        query += " ORDER BY seq"
        if limit is not None:
            limit = max(int(limit), 1)
            query += f" LIMIT {limit + 2}"
        first, rows, more = self._fetch_journal(db.execute(query, arguments), limit)
        return None if first is None or _position_of(first) != since else (rows, more)

    def _fetch_journal(self, cursor: Any, limit: int | None = None) -> tuple[Any, list[Any], bool]:
        """Return the first row, the rows after it, and whether there are more than ``limit``."""
        first, rows = cursor.fetchone(), cursor.fetchall()
        more = limit is not None and len(rows) > limit
        return first, rows[:limit], more

    def _read_state(self, db: Any, owner: str) -> State:
        """Return the state before a write; `LeaseError` without the lease."""
        holder, last, token = db.execute(self._state_query, ()).fetchone()
        if holder is None or bytes(holder) != owner.encode():
            raise lease_error(holder and "")
        return State(f"{last}.{token}", last)

    def _last_position(self, db: Any) -> str:
        query = f"SELECT seq, token FROM {self._t_journal} ORDER BY seq DESC LIMIT 1"
        return _position_of(db.execute(query, ()).fetchone())

    def _read_metadata(self, db: Any, name: str) -> bytes | None:
        query = f"SELECT value FROM {self._t_meta} WHERE name = {self._param}"
        row = db.execute(query, (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def _write_metadata(self, db: Any, name: str, value: bytes) -> None:
        db.execute(
            f"INSERT INTO {self._t_meta} (name, value) VALUES ({self._param}, {self._param}) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )

    def _catch_up(self, db: Any, state: State) -> None:
        """Update the index up to the journal's last row, by the rows in memory if they suffice."""
        query = f"SELECT value FROM {self._t_meta} WHERE name = 'indexed'{self._lock_row}"
        indexed = int(bytes(db.execute(query, ()).fetchone()[0]))
        if indexed >= state.last:
            return
        parts = self._tail.since(indexed, state.position)
        if parts is None:
            m = self._param
            cursor = db.execute(
                f"SELECT {self._journal_columns} FROM {self._t_journal} "
                f"WHERE seq >= {m} AND seq <= {m} ORDER BY seq",
                (indexed, state.last),
            )
            first, rows, _ = self._fetch_journal(cursor)
            if first[0] != indexed or is_broken(rows):
                self._reindex(db)  # rows were trimmed, or are missing, or the table was truncated
                return
            parts = [self._to_journal_rows(rows)]
        added, removed = net_changes(parts)
        self._update_index(db, *map(self._columns.from_columns, (added, removed)))
        self._write_metadata(db, "indexed", b"%d" % state.last)

    def _reindex(self, db: Any) -> None:
        db.execute(f"DELETE FROM {self._t_hash}", ())
        for keys in self._read_keys(db):
            self._update_index(db, self._columns.from_columns(keys), [])
        self._write_metadata(db, "indexed", b"%d" % position_number(self._last_position(db)))

    def _words(self, keys: Sequence[PlainKey]) -> Any:
        """Return the signed words of the hashes of keys."""
        assert self._hasher is not None
        return to_signed(self._hasher(keys))

    def _become_child(self) -> None:
        """Write as another owner, in a forked child."""
        self._owner_suffix = f"/{secrets.token_hex(8)}"
        self._owner = self._hasher = None
        self._tail = Tail(0, self._hash_columns)


def _position_of(row: Sequence[Any]) -> str:
    return f"{row[0]}.{row[1]}"


def is_broken(rows: Sequence[Any]) -> bool:
    """Return whether changes are unknown: the table was truncated, or had no triggers."""
    return any(key is None and added is not None for _, _, key, added in rows)
