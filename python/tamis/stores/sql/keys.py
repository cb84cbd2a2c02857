"""Keys of tables: how columns hold them, and how triggers write them.

A key has three forms. Callers pass text, bytes, an integer or a UUID, or a tuple of these for a key
of several columns. Filters hash the *plain* form, bytes or an integer, in which guards pass keys to
stores. The guard's own tables hold keys as the *column* of the guarded table does: text, an
integer, bytes or a UUID, by its type.

A key of several columns is *packed* into one text column there: bytes in hexadecimal after a ``b``,
integers after an ``i``, with commas between. Triggers write it, with functions that every SQLite
and PostgreSQL has; they could not write the plain form of a tuple (docs/keys.md).
"""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from tamis._native import plain_key, tuple_parts
from tamis.stores.base import PlainKey
from tamis.stores.encoding import decode_key, encode_key, encode_keys

_NEVER_HELD = datetime.date, np.datetime64, Decimal, tuple
"""Types whose plain form is none of a column's keys."""


ACCEPTED = {
    "text": "text",
    "integer": "an integer",
    "blob": "bytes",
    "bytea": "bytes",
    "binary": "bytes",
    "uuid": "a UUID",
}
"""What keys of a column must be, by its kind."""


class KeyColumns(ABC):
    """The key columns of an existing table, or the key column of the guard's own table."""

    def __init__(self, names: Sequence[str], types: list[str], *, own: bool) -> None:
        """``types`` are the types of the columns, as the database names them."""
        self.names, self.types, self.own = names, types, own

    @abstractmethod
    def as_type(self, key: PlainKey, type: str) -> Any:
        """Return a key as a column of a type holds it, or `None` if it cannot hold it."""

    def plain_part(self, column: int, part: Any) -> PlainKey:
        """Return a part of a key as filters hash it."""
        return plain_key(part)

    @abstractmethod
    def accepted(self, column: int) -> str | None:
        """Return what a key of a column must be, "an integer" or anything else; `None`: either."""

    def given_part(self, column: int, part: PlainKey) -> Any:
        """Return a part of a plain key in the caller's form."""
        return part

    def holds_part(self, part: PlainKey, type: str) -> Any:
        """Return a part of a key of several columns as its column holds it, or `None`."""
        return self.as_type(part, type)

    def to_plain(self, key: Any) -> PlainKey:
        """Return a caller's key as filters hash it."""
        if len(self.names) == 1:
            return self._check_part(0, key)
        parts = check_parts(key, self.names)
        return plain_key(tuple(self._check_part(i, part) for i, part in enumerate(parts)))

    def _check_part(self, column: int, part: Any) -> PlainKey:
        """Return a part of a key as filters hash it; `TypeError` if the column holds none such."""
        plain, accepted = self.plain_part(column, part), self.accepted(column)
        other = accepted is not None and isinstance(plain, int) != (accepted == "an integer")
        if other or isinstance(part, _NEVER_HELD):
            accepted = accepted or "text, bytes, an integer or a UUID"
            raise TypeError(
                f"a key of column {self.names[column]!r}, of type {self.types[column]}, must be "
                f"{accepted}, not {part!r} (of type {type(part).__name__})"
            )
        return plain

    def from_plain(self, key: PlainKey) -> Any:
        """Return a key in the caller's form: of several columns, a tuple; text as bytes."""
        if len(self.names) == 1:
            return self.given_part(0, key)
        parts = tuple_parts(key)  # type: ignore[arg-type]
        assert parts is not None
        return tuple(self.given_part(i, part) for i, part in enumerate(parts))

    def to_column(self, key: PlainKey) -> Any:
        """Return a key as the column holds it, or `None` if the column cannot hold it."""
        if self.own:
            return encode_key(key)
        if len(self.names) > 1:
            parts = tuple_parts(key) if isinstance(key, bytes) else None
            return None if parts is None or self._as_columns(parts) is None else pack(parts)
        return self.as_type(key, self.types[0])

    def require_column(self, key: PlainKey, table: str) -> Any:
        """Return a key as the column holds it; `TypeError` if the column cannot hold it."""
        if (column := self.to_column(key)) is None:
            columns = " and ".join(map(repr, self.names))
            types = f", of type {self.types[0]}," if len(self.names) == 1 else ""
            raise TypeError(
                f"column {columns} of {table!r}{types} cannot hold the key {self.from_plain(key)!r}"
            )
        return column

    def to_columns(self, keys: Sequence[PlainKey]) -> list[Any]:
        """Return keys as the column holds them; `None` where it cannot hold one."""
        return encode_keys(keys) if self.own else [self.to_column(key) for key in keys]

    def from_column(self, column: Any) -> PlainKey:
        """Return a key of the column as filters hash it."""
        return self.from_part(column) if len(self.names) == 1 else plain_key(unpack(column))

    def from_part(self, column: Any) -> PlainKey:
        """Return the value of one of the table's key columns as filters hash it."""
        if isinstance(column, str):
            return column.encode()
        if isinstance(column, int):
            return column
        if isinstance(column, UUID):
            return column.bytes
        return decode_key(bytes(column)) if self.own else bytes(column)

    def from_columns(self, columns: Sequence[Any]) -> list[PlainKey]:
        """Return keys of the column as filters hash them."""
        if self.own:
            return [decode_key(bytes(column)) for column in columns]
        return [self.from_column(column) for column in columns]

    def row_key(self, column: Any) -> list[Any]:
        """Return the values of the table's key columns for a key as the guard's tables have it."""
        if len(self.names) == 1:
            return [column]
        parts = self._as_columns(unpack(column))
        assert parts is not None
        return parts

    def _as_columns(self, parts: Sequence[PlainKey]) -> list[Any] | None:
        """Return the parts of a key as the columns hold them, if they can hold them."""
        if len(parts) != len(self.names):
            return None
        held = [self.holds_part(part, type) for part, type in zip(parts, self.types, strict=True)]
        return None if None in held else held


def pack(parts: Sequence[PlainKey]) -> str:
    r"""Return the packed form of a key of several columns.

    >>> pack([b"eu", 5])
    'b6575,i5'
    """
    return ",".join(
        f"b{part.hex().upper()}" if isinstance(part, bytes) else f"i{part}" for part in parts
    )


def unpack(packed: str) -> tuple[PlainKey, ...]:
    """Return the parts of a packed key; `ValueError` if it is not one.

    >>> unpack("b6575,i5")
    (b'eu', 5)
    """
    return tuple(
        bytes.fromhex(part[1:]) if part[:1] == "b" else int(part.removeprefix("i"))
        for part in packed.split(",")
    )


def uuid_bytes(key: Any, column: str) -> bytes:
    """Return the sixteen bytes of a UUID, given as such, as text in any usual form, or as bytes.

    >>> uuid_bytes("{6F9619FF-8B86-D011-B42D-00C04FC964FF}", "id").hex()
    '6f9619ff8b86d011b42d00c04fc964ff'
    """
    if isinstance(key, UUID):
        return key.bytes
    if isinstance(key, bytes) and len(key) == 16:
        return bytes(key)
    if isinstance(key, (str, bytes)):
        try:
            return UUID(key if isinstance(key, str) else key.decode()).bytes
        except ValueError:
            raise ValueError(
                f"a key of column {column!r} must be a UUID, its text or its 16 bytes, not {key!r}"
            ) from None
    raise TypeError(
        f"a key of column {column!r} must be a UUID, its text or its 16 bytes, not {key!r} "
        f"(of type {type(key).__name__})"
    )


def check_parts(key: Any, columns: Sequence[str]) -> tuple[Any, ...]:
    """Return a key of several columns; raise `TypeError` for anything else."""
    if not isinstance(key, tuple) or len(key) != len(columns):
        raise TypeError(
            f"a key must be a tuple of {len(columns)} values, ({', '.join(columns)}), not {key!r}"
        )
    return key
