"""How the key columns of a MySQL table hold keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from tamis._native import plain_key
from tamis.stores.base import PlainKey
from tamis.stores.sql.keys import ACCEPTED, KeyColumns, unpack, uuid_bytes

_INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
"""Bits of each integer type."""

_TEXT = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}
_BINARY = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_CHARSETS = {"ascii": 0x7F, "utf8": 0xFFFF, "utf8mb3": 0xFFFF, "utf8mb4": 0x10FFFF}
"""Character sets of keys of text, and the highest character of each."""


class Column(NamedTuple):
    """A column, as ``information_schema.columns`` describes it."""

    data_type: str
    full_type: str
    charset: str | None
    collation: str | None
    length: int | None
    """Bytes of a binary string, at most."""

    @property
    def declared(self) -> str:
        """The type, with the collation of text."""
        return f"{self.full_type} {self.collation}" if self.collation else self.full_type

    @property
    def kind(self) -> str | None:
        """The kind of keys that it holds: text, integer, binary or uuid."""
        if self.data_type in _TEXT:
            return "text"
        if self.data_type in _BINARY:
            return "binary"
        return {"uuid": "uuid"}.get(
            self.data_type, "integer" if self.data_type in _INTEGERS else None
        )

    def refusal(self, name: str) -> str | None:
        """Return why the column cannot be a key, if it cannot: equal keys must have equal bytes."""
        if self.kind is None:
            return (
                f"key must be a column of text, integers, binary strings or uuid, not {name!r} of "
                f"type {self.full_type}"
            )
        if self.kind != "text":
            return None
        collation, charset = self.collation or "", self.charset or ""
        if charset not in _CHARSETS:
            return (
                f"key must be a column of character set utf8mb4, utf8mb3 or ascii, or of binary "
                f"strings, not {name!r} of character set {charset}"
            )
        nopad = "utf8mb4_nopad_bin (utf8mb4_0900_bin in MySQL)"
        if not collation.endswith("_bin"):
            cure = "utf8mb4_bin" if self.data_type == "char" else nopad
            return (
                f"key must be a column that compares text as bytes, not {name!r} of collation "
                f"{collation}, to which different keys may be equal: declare it COLLATE {cure}, "
                "or as VARBINARY"
            )
        # CHAR is stored without spaces at its end.
        if self.data_type != "char" and "nopad" not in collation and "0900" not in collation:
            return (
                f"key must be a column that compares text as bytes, not {name!r} of collation "
                f"{collation}, to which 'a' and 'a ' are equal: declare it COLLATE {nopad}, or as "
                "VARBINARY"
            )
        return None


class MySQLColumns(KeyColumns):
    """Key columns of a table."""

    def __init__(self, names: Sequence[str], columns: Sequence[Column]) -> None:
        super().__init__(names, [column.declared for column in columns], own=False)
        self.columns = columns
        self._by_type = dict(zip(self.types, columns, strict=True))

    def as_type(self, key: PlainKey, type: str) -> Any:
        """Return a key as a column of a type holds it, or `None` if it cannot hold it."""
        column = self._by_type[type]
        if isinstance(key, int):
            return key if column.kind == "integer" and _fits(key, column) else None
        if column.kind == "text":
            return _text(key, column)
        if column.kind == "uuid":
            return str(UUID(bytes=key)) if len(key) == 16 else None
        if column.kind != "binary" or len(key) > (column.length or 0):
            return None
        return key if column.data_type != "binary" or len(key) == column.length else None

    def plain_part(self, column: int, part: Any) -> PlainKey:
        """Return a part of a key as filters hash it."""
        kind = self.columns[column].kind
        if kind == "uuid":
            return uuid_bytes(part, self.names[column])
        if isinstance(part, UUID):
            part = part.bytes if kind == "binary" else str(part)
        return plain_key(part)

    def accepted(self, column: int) -> str | None:
        """Return what a key of a column must be."""
        return ACCEPTED[self.columns[column].kind or ""]

    def given_part(self, column: int, part: PlainKey) -> Any:
        """Return a part of a plain key in the caller's form."""
        if isinstance(part, bytes) and self.columns[column].kind == "uuid":
            return UUID(bytes=part)
        return part

    def from_row(self, row: Sequence[Any]) -> PlainKey:
        """Return the key of a row of the key columns as filters hash it."""
        parts = tuple(
            UUID(part).bytes if column.kind == "uuid" else self.from_part(part)
            for part, column in zip(row, self.columns, strict=True)
        )
        return parts[0] if len(parts) == 1 else plain_key(parts)

    def from_journal(self, packed: bytes) -> PlainKey:
        """Return a key of the journal as filters hash it."""
        parts = unpack(packed.decode())
        return parts[0] if len(parts) == 1 else plain_key(parts)

    def to_row(self, key: PlainKey) -> list[Any] | None:
        """Return the values of the key columns for a key, or `None` if they cannot hold it."""
        held = self.to_column(key)
        return None if held is None else self.row_key(held)


def packed(names: Sequence[str], columns: Sequence[Column], row: str) -> str:
    """Return the expression for the key of a row, which is NULL if a part of it is."""
    parts = []
    for name, column in zip(names, columns, strict=True):
        part = f"{row}.{name}"
        parts.append(
            {
                "integer": f"'i', {part}",
                "text": f"'b', HEX(CONVERT({part} USING utf8mb4))",
                "binary": f"'b', HEX({part})",
                "uuid": f"'b', REPLACE(CAST({part} AS CHAR), '-', '')",
            }[column.kind or ""]
        )
    return "CONCAT(" + ", ',', ".join(parts) + ")"


def _fits(key: int, column: Column) -> bool:
    bits = _INTEGERS[column.data_type]
    if "unsigned" in column.full_type:
        return 0 <= key < 1 << bits
    return -1 << (bits - 1) <= key < 1 << (bits - 1)


def _text(key: bytes, column: Column) -> str | None:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return None
    if column.data_type == "char" and text.endswith(" "):
        return None
    return text if max(map(ord, text), default=0) <= _CHARSETS[column.charset or ""] else None
