"""Keys of several columns, and UUIDs, as the guard's SQL tables hold them.

A key of several columns is a tuple, and filters hash its plain form (docs/keys.md). SQL cannot
write that form: a trigger that logs a change of a row writes the *packed* form, text with bytes in
hexadecimal after a ``b``, integers after an ``i``, and commas between, with functions that every
SQLite and PostgreSQL has. The tables that the guard adds (index, journal) hold it in one text
column; here it is converted to the parts of the tuple and back.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from tamis.stores.contract import PlainKey


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
    for part, column in zip(key, columns, strict=True):
        if isinstance(part, datetime.date | np.datetime64 | Decimal):
            raise TypeError(
                f"a key of column {column!r} must be text, bytes, an integer or a UUID, "
                f"not {part!r}"
            )
    return key
