"""How the key columns of a PostgreSQL table hold keys."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tamis._native import plain_key
from tamis.stores._composite import uuid_bytes
from tamis.stores._key_columns import KeyColumns
from tamis.stores._postgres_arrays import Array
from tamis.stores._postgres_tables import KINDS, quote
from tamis.stores.contract import PlainKey

_RANGES = {"smallint": 15, "integer": 31, "bigint": 63}


class PostgresColumns(KeyColumns):
    """Key columns of one of the types in `KINDS`."""

    @property
    def type(self) -> str:
        """The type of the key in the guard's tables: text for several columns, which are packed."""
        return self.types[0] if len(self.types) == 1 else "text"

    def as_type(self, key: PlainKey, type: str) -> Any:
        """Return a key as a column of a type holds it, or `None` if it cannot hold it."""
        kind = KINDS[type]
        if isinstance(key, int):
            fits = kind == "integer" and -1 << _RANGES[type] <= key < 1 << _RANGES[type]
            return key if fits else None
        if kind == "text":
            try:
                return None if b"\0" in key else key.decode()
            except UnicodeDecodeError:
                return None
        if kind == "uuid":
            return UUID(bytes=key) if len(key) == 16 else None
        return key if kind == "bytea" else None

    def plain_part(self, column: int, part: Any) -> PlainKey:
        """Return a part of a key as filters hash it."""
        if self.types[column] == "uuid":
            return uuid_bytes(part, self.names[column])
        return plain_key(str(part) if isinstance(part, UUID) else part)

    def given_part(self, column: int, part: PlainKey) -> Any:
        """Return a part of a plain key in the caller's form."""
        if isinstance(part, bytes) and self.types[column] == "uuid":
            return UUID(bytes=part)
        return part

    def among(self, columns: list[Any]) -> tuple[str, list[Any]]:
        """Return the condition that a row's key is among these, and its parameters."""
        names = ", ".join(map(quote, self.names))
        if len(self.names) == 1:
            return f"{names} = ANY(%b::{self.type}[])", [Array(self.type, columns)]
        rows = [self.row_key(column) for column in columns]
        parts = [Array(type, [row[i] for row in rows]) for i, type in enumerate(self.types)]
        marks = ", ".join(f"%b::{type}[]" for type in self.types)
        return f"({names}) IN (SELECT * FROM unnest({marks}))", parts
