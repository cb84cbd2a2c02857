"""How the key columns of an SQLite table hold keys: any column holds values of any type."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from tamis._native import plain_key
from tamis.stores.base import PlainKey
from tamis.stores.encoding import SIGN, encode_keys
from tamis.stores.sql.keys import ACCEPTED, KeyColumns
from tamis.stores.sqlite.tables import quote


class SQLiteColumns(KeyColumns):
    """Key columns of type ``"text"``, ``"integer"`` or ``"blob"``."""

    def __init__(
        self, names: Sequence[str], types: list[str], uuids: list[str | None], *, own: bool
    ) -> None:
        """``uuids`` are the forms that the columns have UUIDs in, if they are declared so."""
        super().__init__(names, types, own=own)
        self._uuids = uuids

    def as_type(self, key: PlainKey, type: str) -> Any:
        """Return a key as a column of a type holds it, or `None` if it cannot hold it."""
        if isinstance(key, int):
            return key if type != "text" and -SIGN <= key < SIGN else None
        return {"text": _text(key), "blob": key}.get(type)

    def holds_part(self, part: PlainKey, type: str) -> Any:
        """Return a part of a key; unlike a key of one column, it has the column's own type."""
        return None if isinstance(part, int) != (type == "integer") else self.as_type(part, type)

    def plain_part(self, column: int, part: Any) -> PlainKey:
        """Return a part of a key as filters hash it; a UUID, in the form that the column has."""
        if isinstance(part, UUID):
            form = self._uuids[column] or ("bytes" if self.types[column] == "blob" else "text")
            part = {"hex": part.hex, "text": str(part), "bytes": part.bytes}[form]
        elif self.types[column] == "integer" and isinstance(part, str) and _is_number(part):
            raise TypeError(
                f"a key of column {self.names[column]!r}, of type integer, must be an integer, not "
                f"{part!r} (of type {type(part).__name__}), which the column would turn into one"
            )
        return plain_key(part)

    def accepted(self, column: int) -> str | None:
        """Return what a key of a column must be; `None`: anything."""
        type = self.types[column]
        if len(self.names) == 1 and type != "text":
            return None  # such a column holds values of any type
        return ACCEPTED[type]

    def to_columns(self, keys: Sequence[PlainKey]) -> list[Any]:
        """Return keys as the column holds them; `None` where it cannot hold one."""
        if self.own:
            return encode_keys(keys)
        if self.types == ["text"]:
            with suppress(
                AttributeError, UnicodeDecodeError
            ):  # integers, and bytes that are not UTF-8
                return [key.decode() for key in keys]  # type: ignore[union-attr]
        return [self.to_column(key) for key in keys]

    def row_keys(self, columns: list[Any]) -> Iterable[Sequence[Any]]:
        """Return `row_key` of each."""
        return zip(columns, strict=True) if len(self.names) == 1 else map(self.row_key, columns)

    def forms(self, key: PlainKey) -> list[Any]:
        """Return the forms that a key may have in the table.

        SQLite's columns hold values of any type, so bytes may be a blob or text. No other form of
        an integer is found in a column of text, which turns integers into text.
        """
        if self.own or isinstance(key, int) or len(self.names) > 1:
            return self.only_form(key)
        return [key] if (text := _text(key)) is None else [key, text]

    def only_form(self, key: PlainKey) -> list[Any]:
        """Return the form of a key if the column is not mixed, or nothing if it cannot hold it."""
        return [] if (column := self.to_column(key)) is None else [column]

    def match(self) -> str:
        """Return the condition that a row's key equals the first parameters."""
        matches = []
        for i, (column, type) in enumerate(zip(self.names, self.types, strict=True), 1):
            name = quote(column)
            # The column's affinity must not turn text into a number, nor a float equal an integer.
            same = "" if type == "text" else f" AND typeof({name}) = typeof(?{i})"
            matches.append(f"{name} = ?{i}{same}")
        return " AND ".join(matches)

    def are_mixed(self, db: sqlite3.Connection, table: str) -> bool:
        """Return whether the column holds bytes in another form than the one that is written.

        In SQLite's order, which the unique index has, numbers come before text before blobs.
        """
        if self.own or len(self.names) > 1:
            return False
        key, type = quote(self.names[0]), self.types[0]
        other = {"text": ">= x''", "integer": ">= ''", "blob": ">= '' AND {} < x''"}[type]
        query = f"SELECT 1 FROM {table} WHERE {key} {other.format(key)} LIMIT 1"
        return db.execute(query).fetchone() is not None


def _is_number(text: str) -> bool:
    """Return whether a column of integers or numbers turns a text into a number."""
    try:
        return math.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False


def _text(key: Any) -> str | None:
    try:
        return key.decode() if isinstance(key, bytes) else None
    except UnicodeDecodeError:
        return None
