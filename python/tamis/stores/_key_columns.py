"""How the key columns of a table hold keys.

A key has three forms. Callers pass text, bytes, an integer or a UUID, or a tuple of these for a key
of several columns. Filters hash the *plain* form, bytes or an integer, in which guards pass keys to
stores. The guard's own tables hold values as the *column* of the guarded table does: text, an
integer, bytes or a UUID, by its type; of several columns, their packed form (`_composite.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from tamis._native import plain_key, tuple_parts
from tamis.stores._composite import check_parts, pack, unpack
from tamis.stores._encoding import decode_key, encode_key, encode_keys
from tamis.stores.contract import PlainKey


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

    def given_part(self, column: int, part: PlainKey) -> Any:
        """Return a part of a plain key in the caller's form."""
        return part

    def holds_part(self, part: PlainKey, type: str) -> Any:
        """Return a part of a key of several columns as its column holds it, or `None`."""
        return self.as_type(part, type)

    def to_plain(self, key: Any) -> PlainKey:
        """Return a caller's key as filters hash it."""
        if len(self.names) == 1:
            return self.plain_part(0, key)
        parts = check_parts(key, self.names)
        return plain_key(tuple(self.plain_part(i, part) for i, part in enumerate(parts)))

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
