"""Predicates: the conditions of a query on indexed columns, as keys, codes and expressions."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.parquet.column_types import (
    ACCEPTED,
    NANOSECONDS,
    READ_ONLY,
    SECOND,
    Codes,
    code,
    column_type,
)

_DIGITS = 39  # of the largest decimal of 128 bits
_SCALE = 127  # largest scale of an Arrow decimal
_EPOCH = datetime.datetime(1970, 1, 1)
_DAY_ZERO = datetime.date(1970, 1, 1)


@dataclass(frozen=True)
class Predicate:
    """A condition on one column: any of these values, or null."""

    column: str
    type: str
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
        return np.array(sorted(code(self.type, each) for each in self.raw), np.uint64)

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
            seconds = [each // SECOND for each in self.raw if not _fits(each, kind)]
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
    """Return a value of a query in the form of `raw_value`, or None if no column can hold it.

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
            if unit in NANOSECONDS and not np.isnat(value):
                return int(value.astype(np.int64)) * count * NANOSECONDS[unit]
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
    return abs(nanoseconds // NANOSECONDS[kind.unit]) < 2**63


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
        unit = NANOSECONDS[kind.unit]
        values = [each // unit for each in raw if each % unit == 0 and _fits(each, kind)]
        return pa.array(values, pa.int64()).cast(kind)
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
    if column_type(kind) == "text":
        return pa.array([each.decode() for each in raw], kind)
    return pa.array(raw, kind)


def predicates(where: Mapping[str, Any], columns: Mapping[str, str]) -> list[Predicate]:
    """Read a query: the condition on each column, for columns of these types."""
    if not isinstance(where, Mapping):
        kind = type(where).__name__
        raise TypeError(f"where must be a dict of columns, not {where!r} of type {kind}")
    unknown = [column for column in where if column not in columns]
    if unknown:
        indexed = ", ".join(map(repr, columns))
        raise ValueError(f"where must use the indexed columns {indexed}, not {unknown[0]!r}")
    return [Predicate.of(column, columns[column], given) for column, given in where.items()]
