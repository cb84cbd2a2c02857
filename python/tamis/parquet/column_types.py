"""The types of columns that can be indexed, and their zones.

A column type covers several Arrow types, such as integers of any width. Equal values of a
column type have equal keys, whatever the width, unit or scale in a file (`docs/keys.md`), so files
may differ in these. A value also has a *code*: 64 bits that preserve the order of values. The
lowest and highest code of a row group are its zone. Different values may have the same code, so a
zone, like a filter, returns no or maybe.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Codes = npt.NDArray[np.uint64]

ACCEPTED = {
    "text": "a str",
    "binary": "bytes",
    "integer": "an int",
    "date": "a datetime.date",
    "timestamp": "a datetime.datetime without a zone, or a numpy.datetime64",
    "timestamp with zone": "a datetime.datetime with a zone",
    "decimal": "a decimal.Decimal or an int",
}
"""The column types, and the values that a predicate accepts."""

DEFAULTS = {
    "text": pa.string(),
    "binary": pa.binary(),
    "integer": pa.int64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamp with zone": pa.timestamp("us", "UTC"),
    "decimal": pa.decimal128(38, 0),
}
"""The types of indexed columns that no file has."""

READ_ONLY = b"tamis: view"
"""Metadata of a column whose type in a file pyarrow can read but not filter as it is.

It has no kernels for some types (`filterable`), nor for times of different units and zones.
"""

ABSENT = b"tamis: absent"
"""Metadata of a column that no file of an index has, and whose type is a default."""

SECOND = 10**9
NANOSECONDS = {
    "D": 86_400 * SECOND,
    "h": 3600 * SECOND,
    "m": 60 * SECOND,
    "s": SECOND,
    "ms": 10**6,
    "us": 10**3,
    "ns": 1,
}
_INTEGER = pa.decimal128(20, 0)  # holds every integer of 64 bits


def column_type(kind: pa.DataType) -> str | None:
    """Return the column type of an Arrow type, or None if it cannot be indexed."""
    types = pa.types
    if types.is_dictionary(kind):
        return column_type(kind.value_type)
    if types.is_string(kind) or types.is_large_string(kind) or kind == pa.string_view():
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind) or kind == pa.binary_view():
        return "binary"
    if types.is_fixed_size_binary(kind):
        return "binary"
    if types.is_integer(kind):
        return "integer"
    if types.is_date(kind):
        return "date"
    if types.is_timestamp(kind):
        return "timestamp with zone" if kind.tz else "timestamp"
    if types.is_decimal(kind) and not types.is_decimal256(kind):
        return "decimal"
    return None


def fits_column_type(kind: pa.DataType | None, expected: str) -> bool:
    """Whether the Arrow type of a column in the common schema fits its column type.

    Integers and decimals may be unified to a decimal, see `unifiable`.
    """
    if kind is None:
        return False
    unified = expected in ("integer", "decimal") and pa.types.is_decimal(kind)
    return column_type(kind) == expected or unified


def filterable(kind: pa.DataType) -> pa.DataType:
    """Return a type with the same values that pyarrow can compare: it cannot compare them all."""
    if kind == pa.string_view():
        return pa.large_string()
    if kind == pa.binary_view():
        return pa.large_binary()
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def unifiable(kinds: Iterable[pa.DataType]) -> list[pa.DataType]:
    """Return the types of a column in several files, as types that pyarrow unifies without loss."""
    found = list(kinds)
    types = pa.types
    if any(map(types.is_dictionary, found)) and not all(map(types.is_dictionary, found)):
        found = [each.value_type if types.is_dictionary(each) else each for each in found]
    # pyarrow unifies uint64 and signed integers to int64, which holds half of the values.
    if pa.uint64() in found and any(map(types.is_signed_integer, found)):
        found = [_INTEGER if types.is_integer(each) else each for each in found]
    zones = {each.tz for each in found if types.is_timestamp(each)}
    if len(zones) > 1 and None not in zones:
        found = [
            pa.timestamp(each.unit, "UTC") if types.is_timestamp(each) else each for each in found
        ]
    return found


def values(column: pa.Array) -> pa.Array:
    """Return the values of a column to hash, without nulls; distinct values if that is cheap."""
    if pa.types.is_dictionary(column.type):
        column = pc.unique(column).dictionary_decode()
    return column.drop_null()


def zone(kind: str, column: pa.Array) -> tuple[int, int] | None:
    """Return the codes of the minimum and the maximum, or None without values."""
    if len(column) == 0:
        return None
    ends = pc.min_max(column.cast(filterable(column.type)))
    low, high = (code(kind, raw_value(ends[end])) for end in ("min", "max"))
    return low, high


def raw_value(value: pa.Scalar) -> Any:
    """Return a value as bytes, days, nanoseconds or a number, by its type."""
    types, kind = pa.types, value.type
    if types.is_timestamp(kind):
        return value.cast(pa.int64()).as_py() * NANOSECONDS[kind.unit]
    if types.is_date(kind):
        return value.cast(pa.date32()).cast(pa.int32()).as_py()
    if types.is_integer(kind) or types.is_decimal(kind):
        return value.as_py()
    return value.as_buffer().to_pybytes()  # text may be invalid UTF-8


def code(kind: str, value: Any) -> int:
    """Return the code of a value in the form of `raw_value`."""
    if isinstance(value, bytes):
        return int.from_bytes(value[:8].ljust(8, b"\0"), "big")
    if kind == "integer":
        value >>= 1  # from -2**63 to 2**64-1
    elif kind.startswith("timestamp"):
        value //= 1000
    # The limits come first: the floor of Decimal("1e2000000") is an integer of as many digits.
    code: int = math.floor(min(max(value, -(2**63)), 2**63 - 1))
    return code + 2**63
