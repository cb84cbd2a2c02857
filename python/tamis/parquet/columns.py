"""Columns that can be indexed: types, keys, and predicates.

A column belongs to a family of types. Equal values of a family have equal keys, whatever the width,
unit or scale in a file (`docs/keys.md`), so files may differ in these. A value also has a *code*:
64 bits that preserve the order of values. The least and greatest code of a row group are its zone.
Different values may have the same code, so a zone, like a filter, returns no or maybe.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
"""The families, and the values that a predicate accepts."""

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

_SECOND = 10**9
_NANOSECONDS = {
    "D": 86_400 * _SECOND,
    "h": 3600 * _SECOND,
    "m": 60 * _SECOND,
    "s": _SECOND,
    "ms": 10**6,
    "us": 10**3,
    "ns": 1,
}
_INTEGER = pa.decimal128(20, 0)  # holds every integer of 64 bits
_DIGITS = 39  # of the largest decimal of 128 bits
_SCALE = 127  # largest scale of an Arrow decimal
_EPOCH = datetime.datetime(1970, 1, 1)
_DAY_ZERO = datetime.date(1970, 1, 1)


def family(kind: pa.DataType) -> str | None:
    """Return the family of a type, or None if it cannot be indexed."""
    types = pa.types
    if types.is_dictionary(kind):
        return family(kind.value_type)
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


def holds(kind: pa.DataType | None, own: str) -> bool:
    """Whether a type of the schema of all files is one of a family, see `unifiable`."""
    if kind is None:
        return False
    return family(kind) == own or (own in ("integer", "decimal") and pa.types.is_decimal(kind))


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
    """Return the codes of the least and the greatest value, or None without values."""
    if len(column) == 0:
        return None
    ends = pc.min_max(column.cast(filterable(column.type)))
    low, high = (_code(kind, _raw(ends[end])) for end in ("min", "max"))
    return low, high


def _raw(value: pa.Scalar) -> Any:
    """Return a value as bytes, days, nanoseconds or a number, by its family."""
    types, kind = pa.types, value.type
    if types.is_timestamp(kind):
        return value.cast(pa.int64()).as_py() * _NANOSECONDS[kind.unit]
    if types.is_date(kind):
        return value.cast(pa.date32()).cast(pa.int32()).as_py()
    if types.is_integer(kind) or types.is_decimal(kind):
        return value.as_py()
    return value.as_buffer().to_pybytes()  # text may be invalid UTF-8


def _code(kind: str, value: Any) -> int:
    if isinstance(value, bytes):
        return int.from_bytes(value[:8].ljust(8, b"\0"), "big")
    if kind == "integer":
        value >>= 1  # from -2**63 to 2**64-1
    elif kind.startswith("timestamp"):
        value //= 1000
    # The limits come first: the floor of Decimal("1e2000000") is an integer of as many digits.
    code: int = math.floor(min(max(value, -(2**63)), 2**63 - 1))
    return code + 2**63


@dataclass(frozen=True)
class Predicate:
    """A condition on one column: any of these values, or null."""

    column: str
    family: str
    raw: tuple[Any, ...]
    null: bool

    @classmethod
    def of(cls, column: str, kind: str, given: Any) -> Predicate:
        """Read the condition of a query on a column: a value, None for null, or a list of them."""
        single = isinstance(given, str | bytes | bytearray | Mapping)
        many = [given] if single or not isinstance(given, Iterable) else list(given)
        many = [each.as_py() if isinstance(each, pa.Scalar) else each for each in many]
        raw = dict.fromkeys(_read_value(column, kind, each) for each in many if each is not None)
        raw.pop(None, None)
        return cls(column, kind, tuple(raw), any(each is None for each in many))

    @property
    def keys(self) -> list[list[Any]]:
        """The keys of the values, integers and bytes apart; none for values no column can hold."""
        keys = [_key(each) for each in self.raw]
        integers = [key for key in keys if isinstance(key, int)]
        others = [key for key in keys if isinstance(key, bytes)]
        return [some for some in (integers, others) if some]

    @property
    def codes(self) -> Codes:
        """The codes of the values, sorted."""
        return np.array(sorted(_code(self.family, each) for each in self.raw), np.uint64)

    def expression(self, schema: pa.Schema) -> pc.Expression:
        """Return the predicate as a pyarrow expression over this schema."""
        kind = schema.field(self.column).type
        some = _column(self.raw, kind.value_type if pa.types.is_dictionary(kind) else kind)
        field = pc.field(self.column)
        if READ_ONLY in (schema.field(self.column).metadata or {}):
            field = field.cast(kind)
        # Readers push down equality better than a list of one value.
        found = field == some[0] if len(some) == 1 else field.isin(some)
        if pa.types.is_timestamp(kind):
            # Times that only a file of a coarser unit can hold: pyarrow raises when it reads them.
            seconds = [each // _SECOND for each in self.raw if not _fits(each, kind)]
            if seconds:
                coarse = pa.array([each for each in seconds if abs(each) < 2**63], pa.int64())
                second = pa.timestamp("s", kind.tz)
                found |= field.cast(second, safe=False).isin(coarse.cast(second))
        return found | field.is_null() if self.null else found

    def mask(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return which values of a column match."""
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        found = pc.is_in(column, _column(self.raw, column.type))
        return pc.or_(found, pc.is_null(column)) if self.null else found


def _read_value(column: str, kind: str, value: Any) -> Any:
    """Return a value of a query in the form of `_raw`, or None if no column can hold it.

    `TypeError` if it has the wrong type.
    """
    match kind:
        case "text" if isinstance(value, str):
            try:
                return value.encode()
            except UnicodeEncodeError:
                raise ValueError(f"{column} must be valid Unicode, not {value!r}") from None
        case "binary" if isinstance(value, bytes):
            return bytes(value)
        case "integer" if isinstance(value, int | np.integer) and not isinstance(value, bool):
            return int(value)
        case "date" if type(value) is datetime.date:
            return (value - _DAY_ZERO).days
        case "timestamp" if isinstance(value, np.datetime64):
            unit, count = np.datetime_data(value.dtype)
            if unit in _NANOSECONDS and not np.isnat(value):
                return int(value.astype(np.int64)) * count * _NANOSECONDS[unit]
        case "timestamp" if isinstance(value, datetime.datetime) and value.tzinfo is None:
            if value == value:  # not pandas' NaT
                return _nanoseconds(value)
        case "timestamp with zone" if isinstance(value, datetime.datetime) and value.tzinfo:
            # Not astimezone: the time in UTC may be before year 1 or after year 9999.
            offset = value.utcoffset()
            if offset is not None:
                return _nanoseconds(value.replace(tzinfo=None)) - _nanoseconds(_EPOCH + offset)
        case "decimal" if isinstance(value, decimal.Decimal) and value.is_finite():
            return _reduced(value)
        case "decimal" if isinstance(value, int | np.integer) and not isinstance(value, bool):
            return _reduced(decimal.Decimal(int(value))) if abs(int(value)) < 2**127 else None
    article = "an" if kind == "integer" else "a"
    raise TypeError(
        f"{column} is {article} {kind} column: its value must be {ACCEPTED[kind]}, None for null, "
        f"or a list of these, not {value!r} of type {type(value).__name__}"
    )


def _nanoseconds(value: datetime.datetime) -> int:
    since = value - _EPOCH
    seconds = since.days * 86_400 + since.seconds
    finer: int = getattr(value, "nanosecond", 0)  # of a pandas timestamp
    return seconds * 10**9 + since.microseconds * 1000 + finer


def _reduced(value: decimal.Decimal) -> decimal.Decimal | None:
    """Return a decimal without trailing zeros after the point, or None if no column can hold it.

    Equal decimals have the same reduced form, as in native code, and so the same key.
    """
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    if not text:
        return decimal.Decimal(0)
    # Compare lengths before any power of ten is computed: 1E+2000000 is a short Decimal.
    power = int(exponent) + len(digits) - len(text)
    if len(text) + max(power, 0) > _DIGITS or -power > _SCALE:
        return None
    text += "0" * max(power, 0)
    return decimal.Decimal((sign, tuple(map(int, text)), min(power, 0)))


def _key(raw: Any) -> int | bytes | None:
    """Return the key of a value (`docs/keys.md`), or None if no column can hold it."""
    scale = 0
    if isinstance(raw, bytes):
        return raw
    if isinstance(raw, decimal.Decimal):
        sign, digits, exponent = raw.as_tuple()
        raw, scale = (-1) ** sign * int("".join(map(str, digits))), -int(exponent)
    if scale == 0 and -(2**63) <= raw < 2**64:
        return int(raw)
    if not -(2**127) <= raw < 2**127:
        return None
    wide = int(raw).to_bytes(16, "little", signed=True)
    return wide + bytes([scale]) if scale else wide


def _fits(nanoseconds: int, kind: pa.DataType) -> bool:
    """Whether a time is in the range of a type of timestamps."""
    return abs(nanoseconds // _NANOSECONDS[kind.unit]) < 2**63


def _column(raw: Iterable[Any], kind: pa.DataType) -> pa.Array:
    """Return the values that a column of this type can hold, as an array of the type."""
    types = pa.types
    if types.is_null(kind):
        return pa.array([], kind)
    if types.is_integer(kind):
        low = 0 if types.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
        return pa.array([each for each in raw if low <= each < low + 2**kind.bit_width], kind)
    if types.is_date(kind):
        return pa.array(raw, pa.int32()).cast(pa.date32()).cast(kind)
    if types.is_timestamp(kind):
        unit = _NANOSECONDS[kind.unit]
        whole = [each // unit for each in raw if each % unit == 0 and _fits(each, kind)]
        return pa.array(whole, pa.int64()).cast(kind)
    if types.is_decimal(kind):
        fitting = []
        for each in raw:
            if _key(each) is None:
                continue  # in no column, and pyarrow crashes on an exponent that is large enough
            try:
                fitting.append(pa.array([each], kind))
            except pa.ArrowInvalid:
                continue  # more digits than the column has
        return pa.concat_arrays([pa.array([], kind), *fitting])
    if types.is_fixed_size_binary(kind):
        return pa.array([each for each in raw if len(each) == kind.byte_width], kind)
    if family(kind) == "text":
        return pa.array([each.decode() for each in raw], kind)
    return pa.array(raw, kind)


def predicates(where: Mapping[str, Any], columns: Mapping[str, str]) -> list[Predicate]:
    """Read a query: the condition on each column, for columns of these families."""
    if not isinstance(where, Mapping):
        kind = type(where).__name__
        raise TypeError(f"where must be a dict of columns, not {where!r} of type {kind}")
    unknown = [column for column in where if column not in columns]
    if unknown:
        indexed = ", ".join(map(repr, columns))
        raise ValueError(f"where must use the indexed columns {indexed}, not {unknown[0]!r}")
    return [Predicate.of(column, columns[column], given) for column, given in where.items()]
