"""Arrays as parameters of psycopg, in PostgreSQL's binary form.

psycopg converts a list item by item in Python. For a batch of a few hundred keys, that takes longer
than the rest of the driver's work.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

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


def encode(array: Array, encoding: str) -> bytes:
    r"""Return the binary form of an array for a connection with this encoding.

    >>> encode(Array("smallint", [7]), "utf-8").hex(" ", -4)
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
def register(psycopg: Any) -> None:
    """Accept `Array` as a parameter on all connections opened after this call."""

    class Dumper(psycopg.adapt.Dumper):  # type: ignore[misc]
        format = psycopg.pq.Format.BINARY

        def dump(self, array: Array) -> bytes:
            encoding = self.connection.info.encoding if self.connection else "utf-8"
            # SQL_ASCII, no encoding: psycopg reports "ascii" and sends text as UTF-8.
            return encode(array, "utf-8" if encoding == "ascii" else encoding)

    psycopg.adapters.register_dumper(Array, Dumper)
