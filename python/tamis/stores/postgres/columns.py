"""How the key columns of a PostgreSQL table hold keys, and arrays of them as parameters.

psycopg converts a list item by item in Python. For a batch of a few hundred keys, that takes longer
than the rest of the driver's work, so arrays are sent in PostgreSQL's binary form.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np

from tamis._native import plain_key
from tamis.stores.base import PlainKey
from tamis.stores.postgres.tables import KINDS, packed, quote
from tamis.stores.sql.keys import ACCEPTED, KeyColumns, uuid_bytes

_RANGES = {"smallint": 15, "integer": 31, "bigint": 63}


class PostgresColumns(KeyColumns):
    """Key columns of one of the types in `KINDS`."""

    @property
    def type(self) -> str:
        """The type of the key in the guard's tables: text for several columns, which are packed."""
        return self.types[0] if len(self.types) == 1 else "text"

    @property
    def expression(self) -> str:
        """The key of a row of the table, as the guard's tables hold it."""
        return packed(self.names, self.types)

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

    def accepted(self, column: int) -> str | None:
        """Return what a key of a column must be."""
        return ACCEPTED[KINDS[self.types[column]]]

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
        placeholders = ", ".join(f"%b::{type}[]" for type in self.types)
        return f"({names}) IN (SELECT * FROM unnest({placeholders}))", parts


_TYPES = {
    "bytea": 17,
    "bigint": 20,
    "smallint": 21,
    "integer": 23,
    "text": 25,
    "character varying": 1043,
    "uuid": 2950,
}
"""PostgreSQL's number (OID) of each type: the server compares it with the type in the statement."""

_INTEGERS = {"smallint": 2, "integer": 4, "bigint": 8}
"""Bytes of each integer type."""

_HEAD, _LENGTH = Struct("!5i"), Struct("!i")


class Array(NamedTuple):
    """A parameter for ``%s::type[]``, of items as psycopg returns them for a column of the type."""

    type: str
    items: Sequence[Any]


def encode_array(array: Array, encoding: str) -> bytes:
    r"""Return the binary form of an array for a connection with this encoding.

    >>> encode_array(Array("smallint", [7]), "utf-8").hex(" ", -4)
    '00000001 00000000 00000015 00000001 00000001 00000002 0007'
    """
    type, items = array
    head = _HEAD.pack(1 if len(items) else 0, 0, _TYPES[type], len(items), 1)
    if not len(items):
        return head[:12]
    if size := _INTEGERS.get(type):
        rows = np.empty(len(items), [("length", ">i4"), ("item", f">i{size}")])
        rows["length"], rows["item"] = size, items
        return head + rows.tobytes()
    if type == "uuid":
        items = [item.bytes for item in items]
    elif type != "bytea":
        items = [item.encode(encoding) for item in items]
    pack = _LENGTH.pack
    return head + b"".join([part for item in items for part in (pack(len(item)), item)])


@cache
def register_arrays(psycopg: Any) -> None:
    """Accept `Array` as a parameter on all connections opened after this call."""

    class Dumper(psycopg.adapt.Dumper):  # type: ignore[misc]
        format = psycopg.pq.Format.BINARY

        def dump(self, array: Array) -> bytes:
            encoding = self.connection.info.encoding if self.connection else "utf-8"
            # SQL_ASCII, no encoding: psycopg reports "ascii" and sends text as UTF-8.
            return encode_array(array, "utf-8" if encoding == "ascii" else encoding)

    psycopg.adapters.register_dumper(Array, Dumper)
