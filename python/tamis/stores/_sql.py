"""What the SQL stores share: the tables beside the guarded one.

For a table T the guard keeps three tables: ``tamis_T_hash`` is the index by hash,
``tamis_T_journal`` has a row for each key added or removed, and ``tamis_T_note`` holds the lease,
the secret key and how far the index has caught up. Triggers write the journal, so it is complete
whoever writes to T. Triggers cannot hash, as a writer without tamis has no such function; so the
guard that holds the lease updates the index from the journal. The epoch is the last row of the
journal: its number, and a random token that distinguishes it from a row of the same number in
another history, such as that of a restored backup.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np

from tamis.stores.contract import (
    Changes,
    Commit,
    Hasher,
    HashRows,
    PlainKey,
    Store,
    Value,
    decode_key,
    decode_value,
    encode_value,
    lease_error,
)

_KEPT = 100_000
"""Rows of the journal to keep. A guard that is further behind has to rebuild."""

SIGN = 1 << 63
"""SQL integers are signed: a word of a hash is stored less this, which keeps the order."""


class Journaled(Store, ABC):
    """A table with an index by hash, a journal and notes beside it.

    The store of each database defines how to run a statement, what the columns can hold, and how to
    create the tables and triggers.
    """

    _param: ClassVar[str]
    """The parameter marker in statements."""

    _row_lock: ClassVar[str] = ""
    """Clause that locks a selected row until the commit, if the transaction itself does not."""

    def __init__(self, table: str | None, key: str | None, value: str | None) -> None:
        if len({table is None, key is None, value is None}) > 1:
            raise ValueError(
                "pass all of table, key and value to guard an existing table, or none of them to "
                f"use a table of the guard's own; not table={table!r}, key={key!r}, value={value!r}"
            )
        self.shared = table is not None
        self._table, self._key, self._value = table or "tamis", key or "key", value or "value"
        self._t, self._k, self._v = map(self._quote, (self._table, self._key, self._value))
        self._t_hash, self._t_journal, self._t_note = (
            self._quote(f"tamis_{self._table}_{part}") for part in ("hash", "journal", "note")
        )
        self._lock = threading.RLock()
        self._hasher: Hasher | None = None
        self._owner: str | None = None
        self._db: Any
        self._type: str

    def get_many(self, keys: Sequence[PlainKey]) -> list[Value | None]:
        """Return the value of each key, or `None` where it is absent."""
        with self._lock:
            found = self._select_rows(keys, f"{self._k}, {self._v}")
        values = {self._from_column(key): self._load_value(value) for key, value in found}
        return [values.get(key) for key in keys]

    def put_many(self, keys: Sequence[PlainKey], values: Sequence[Value], owner: str) -> Commit:
        """Write distinct keys and their hashes in one transaction."""

        def write() -> Commit:
            before, there = self._begin_write(keys, owner)
            rows = [
                (
                    there.get(key, self._require_column(key)),
                    value if self.shared else encode_value(value),
                )
                for key, value in zip(keys, values, strict=True)
            ]
            self._execute_many(
                f"INSERT INTO {self._t} ({self._k}, {self._v}) VALUES ({self._params(2)}) "
                f"ON CONFLICT ({self._k}) DO UPDATE SET {self._v} = excluded.{self._v}",
                rows,
            )
            self._update_index([self._to_column(key) for key in keys if key not in there], [])
            return Commit([key in there for key in keys], before, self._end_write(before))

        return self._run_write(write)

    def delete_many(self, keys: Sequence[PlainKey], owner: str) -> Commit:
        """Delete distinct keys and their hashes in one transaction."""

        def write() -> Commit:
            before, there = self._begin_write(keys, owner)
            gone = list(there.values())
            statement = f"DELETE FROM {self._t} WHERE {self._k} = {self._param}"
            self._execute_many(statement, [(key,) for key in gone])
            self._update_index([], gone)
            return Commit([key in there for key in keys], before, self._end_write(before))

        return self._run_write(write)

    def run(self, lo: int, hi: int) -> HashRows:
        """Return the hashes whose first word is from ``lo`` to ``hi``."""
        query = (
            f"SELECT hi, lo FROM {self._t_hash} WHERE hi BETWEEN {self._param} AND {self._param}"
        )
        with self._lock:
            return from_signed(self._execute(query, lo - SIGN, hi - SIGN).fetchall())

    def epoch(self) -> str:
        """Return the current epoch, which is the last row of the journal."""
        with self._lock:
            return self._last_epoch(self._db)

    def changes(
        self, since: str, until: str | None = None, limit: int | None = None
    ) -> Changes | None:
        """Return the journal since an epoch; `None` if the journal does not reach back to it."""
        with self._lock:
            if self._owner is not None and self._holder() == self._owner:
                with self._transaction():
                    self._catch_up()
            now = self._last_epoch(self._db) if until is None else until
            if self._epoch_at(_number(since)) != since:
                return None
            rows = self._read_journal(_number(since), _number(now), limit)
        if _truncated(rows):
            return None
        more = limit is not None and len(rows) == limit
        return Changes(
            "{}.{}".format(*rows[-1][:2]) if more else now,
            [self._from_column(key) for _, _, key, added in rows if added],
            [self._from_column(key) for _, _, key, added in rows if not added],
            more,
        )

    def attach(self, owner: str, hasher: Hasher, name: bytes) -> None:
        """Index keys with this hasher; rebuild the index if it had another name."""
        with self._lock, self._transaction():
            self._check_lease(owner)
            self._owner, self._hasher = owner, hasher
            if self.note("index") != name:
                self._reindex()
                self.note("index", name)
            else:
                self._catch_up()

    def release(self, owner: str) -> None:
        """Release the lease if this owner holds it."""
        with self._lock:
            self._execute(
                f"DELETE FROM {self._t_note} WHERE name = 'lease' AND value = {self._param}",
                owner.encode(),
            )

    def note(self, name: str, value: bytes | None = None) -> bytes | None:
        """Return the note of this name, after setting it to ``value`` if that is given."""
        with self._lock:
            if value is not None:
                self._execute(
                    f"INSERT INTO {self._t_note} VALUES ({self._params(2)}, NULL) "
                    "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    name,
                    value,
                )
            query = f"SELECT value FROM {self._t_note} WHERE name = {self._param}"
            row = self._execute(query, name).fetchone()
            return None if row is None else bytes(row[0])

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._db.close()

    # What each database defines.

    @staticmethod
    @abstractmethod
    def _quote(name: str) -> str:
        """Quote a name for use in a statement."""

    @abstractmethod
    def _execute(self, statement: str, *arguments: Any) -> Any:
        """Run a statement and return its cursor."""

    @abstractmethod
    def _execute_many(self, statement: str, rows: list[Any]) -> None:
        """Run a statement for each row of arguments."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Any]:
        """Return a context that runs its body in one transaction."""

    @abstractmethod
    def _run_write(self, write: Callable[[], Commit]) -> Commit:
        """Run a write in one transaction, under the lock."""

    @abstractmethod
    def _lock_journal(self) -> None:
        """Keep other transactions from writing to the journal until this one ends."""

    @abstractmethod
    def _read_keys(self, db: Any) -> Iterator[list[Any]]:
        """Iterate over the key column on a connection, in batches."""

    @abstractmethod
    def _select_rows(self, keys: Sequence[PlainKey], columns: str) -> list[Any]:
        """Return these columns of the rows whose key is among ``keys``."""

    @abstractmethod
    def _to_column(self, key: PlainKey) -> Any:
        """Return a key as the column stores it, or `None` if the column cannot hold it."""

    # Keys and values in the table.

    def _check_columns(self, columns: Mapping[str, object]) -> None:
        """Check that an existing table has the key and value columns."""
        if not columns:
            raise ValueError(f"table must be a table of the database, not {self._table!r}")
        for name, column in (("key", self._key), ("value", self._value)):
            if column not in columns:
                raise ValueError(
                    f"{name} must be a column of {self._table!r} ({', '.join(columns)}), "
                    f"not {column!r}"
                )

    def _require_column(self, key: PlainKey) -> Any:
        if (column := self._to_column(key)) is None:
            raise TypeError(
                f"column {self._key!r} of {self._table!r}, of type {self._type}, cannot hold the "
                f"key {key!r}"
            )
        return column

    def _from_column(self, column: Any) -> PlainKey:
        if isinstance(column, str):
            return column.encode()
        if isinstance(column, int):
            return column
        return bytes(column) if self.shared else decode_key(bytes(column))

    def _load_value(self, value: Any) -> Any:
        if not self.shared:
            return decode_value(bytes(value))
        # `None` would mean that the key is absent, so NULL is read as an empty value.
        return "" if value is None else value

    # The journal and the index.

    def _begin_write(self, keys: Sequence[PlainKey], owner: str) -> tuple[str, dict[PlainKey, Any]]:
        """Return the epoch, which is then fixed until the commit, and the keys already present.

        The keys map to their form in the table.
        """
        self._check_lease(owner)
        self._lock_journal()
        self._catch_up()
        there = {self._from_column(row[0]): row[0] for row in self._select_rows(keys, self._k)}
        return self._last_epoch(self._db), there

    def _end_write(self, before: str) -> str:
        """Record that the index is complete, trim the journal now and then, return the epoch."""
        epoch = self._last_epoch(self._db)
        last = _number(epoch)
        self._set_indexed(last)
        if _number(before) // 1000 != last // 1000:
            self._execute(f"DELETE FROM {self._t_journal} WHERE seq <= {self._param}", last - _KEPT)
        return epoch

    def _holder(self) -> str | None:
        query = f"SELECT value FROM {self._t_note} WHERE name = 'lease'{self._row_lock}"
        row = self._execute(query).fetchone()
        return None if row is None else bytes(row[0]).decode()

    def _check_lease(self, owner: str) -> None:
        if (holder := self._holder()) != owner:
            raise lease_error(holder)

    def _last_epoch(self, db: Any) -> str:
        query = f"SELECT seq, token FROM {self._t_journal} ORDER BY seq DESC LIMIT 1"
        return "{}.{}".format(*db.execute(query).fetchone())

    def _epoch_at(self, seq: int) -> str | None:
        query = f"SELECT seq, token FROM {self._t_journal} WHERE seq = {self._param}"
        row = self._execute(query, seq).fetchone()
        return None if row is None else "{}.{}".format(*row)

    def _read_journal(self, after: int, until: int, limit: int | None = None) -> list[Any]:
        """Return number, token, key and whether it was added of these rows, in order."""
        rows: list[Any] = self._execute(
            f"SELECT seq, token, key, added FROM {self._t_journal} WHERE seq > {self._param} "
            f"AND seq <= {self._param} AND added IS NOT NULL ORDER BY seq"
            + ("" if limit is None else f" LIMIT {max(int(limit), 1)}"),
            after,
            until,
        ).fetchall()
        return rows

    def _set_indexed(self, seq: int) -> None:
        self.note("indexed", b"%d" % seq)

    def _catch_up(self) -> None:
        """Update the index to the end of the journal."""
        if self._hasher is None:
            return
        done, last = int(self.note("indexed") or b"0"), _number(self._last_epoch(self._db))
        if done == last:
            return
        rows = self._read_journal(done, last)
        if self._epoch_at(done) is None or _truncated(rows):
            self._reindex()
            return
        final = {key: added for _, _, key, added in rows}
        self._update_index(
            [key for key, added in final.items() if added],
            [key for key, added in final.items() if not added],
        )
        self._set_indexed(last)

    def _reindex(self) -> None:
        self._lock_journal()
        self._execute(f"DELETE FROM {self._t_hash}")
        for keys in self._read_keys(self._db):
            self._update_index(keys, [])
        self._set_indexed(_number(self._last_epoch(self._db)))

    def _update_index(self, added: list[Any], removed: list[Any]) -> None:
        m = self._param
        for keys, statement in (
            (removed, f"DELETE FROM {self._t_hash} WHERE hi = {m} AND lo = {m} AND key = {m}"),
            (
                added,
                f"INSERT INTO {self._t_hash} VALUES ({self._params(3)}) ON CONFLICT DO NOTHING",
            ),
        ):
            if keys and self._hasher is not None:
                hashes = self._hasher([self._from_column(key) for key in keys])
                words = (hashes ^ np.uint64(SIGN)).view(np.int64).tolist()
                self._execute_many(
                    statement, [(*w, key) for w, key in zip(words, keys, strict=True)]
                )

    def _params(self, count: int) -> str:
        return ", ".join([self._param] * count)


def _number(epoch: str) -> int:
    return int(epoch.split(".")[0])


def _truncated(rows: list[Any]) -> bool:
    return any(key is None for _, _, key, _ in rows)


def from_signed(rows: Sequence[Sequence[int]]) -> HashRows:
    """Return the hashes of rows of two signed words, as the index stores them."""
    words = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return words.view(np.uint64) ^ np.uint64(SIGN)
