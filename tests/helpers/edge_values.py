"""The types that keys can have, with the edge values of each, and the types that are refused.

`tests/keys/test_entries.py` passes this one table to every public function that takes keys, and
`tests/parquet/test_parquet.py` to the predicates of an index.
"""

import datetime
import decimal
import uuid
import zoneinfo

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1)


def decimals(kind, most):
    """Decimal types of ``most`` digits at several scales, and their edge values."""
    for scale in sorted({0, 1, 2, most // 2, most - 1, most}):
        edges = [0, 1, -1, 10, 10 ** (most - 1), 10**most - 1, 1 - 10**most]
        values = [scaled(each, scale) for each in edges]
        yield f"{kind.__name__}({most}, {scale})", (kind(most, scale), values)


def scaled(unscaled, scale):
    digits = tuple(map(int, str(abs(unscaled))))
    return decimal.Decimal((int(unscaled < 0), digits, -scale))


LONG_AGO, FAR_AHEAD = datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59)
PARIS = zoneinfo.ZoneInfo("Europe/Paris")

TYPES = {
    "string": (pa.string(), ["", "a", "\0", "a\0", "ä" * 9, "longer than eight bytes"]),
    "large_string": (pa.large_string(), ["", "x", "y"]),
    "string_view": (pa.string_view(), ["", "x", "longer than twelve bytes"]),
    "binary": (pa.binary(), [b"", b"\0", b"\xff\x00", b"\xff" * 9, b"abcdefghij"]),
    "large_binary": (pa.large_binary(), [b"", b"abc"]),
    "binary_view": (pa.binary_view(), [b"", b"longer than twelve bytes"]),
    "fixed": (pa.binary(4), [b"abcd", b"\0\0\0\0", b"\xff\xff\xff\xff"]),
    **{
        f"int{bits}": (
            getattr(pa, f"int{bits}")(),
            [-(2 ** (bits - 1)), -1, 0, 2 ** (bits - 1) - 1],
        )
        for bits in (8, 16, 32, 64)
    },
    **{
        f"uint{bits}": (getattr(pa, f"uint{bits}")(), [0, 2 ** (bits - 1), 2**bits - 1])
        for bits in (8, 16, 32, 64)
    },
    "date32": (
        pa.date32(),
        [
            datetime.date.min,
            datetime.date(1970, 1, 1),
            datetime.date(2024, 2, 29),
            datetime.date.max,
        ],
    ),
    "date64": (
        pa.date64(),
        [datetime.date.min, datetime.date(1969, 12, 31), datetime.date(1970, 1, 1)],
    ),
    "timestamp s": (pa.timestamp("s"), [LONG_AGO, datetime.datetime(1970, 1, 1), FAR_AHEAD]),
    "timestamp ms": (pa.timestamp("ms"), [LONG_AGO, datetime.datetime(1970, 1, 1), FAR_AHEAD]),
    "timestamp us": (
        pa.timestamp("us"),
        [LONG_AGO, datetime.datetime(2024, 1, 1, 0, 0, 0, 1), datetime.datetime.max],
    ),
    "timestamp ns": (
        pa.timestamp("ns"),
        [
            datetime.datetime(1677, 9, 21, 1),
            datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999),
            np.datetime64(-(2**63) + 1, "ns"),
            np.datetime64(2**63 - 1, "ns"),
        ],
    ),
    "zone": (
        pa.timestamp("ms", "Europe/Paris"),
        [
            datetime.datetime(2024, 6, 1, tzinfo=UTC),
            datetime.datetime(2024, 10, 27, 2, 30, tzinfo=PARIS),
            datetime.datetime(2024, 10, 27, 2, 30, tzinfo=PARIS, fold=1),
            datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=-5))),
        ],
    ),
    "utc": (
        pa.timestamp("us", "UTC"),
        [LONG_AGO.replace(tzinfo=UTC), FAR_AHEAD.replace(tzinfo=UTC)],
    ),
    "offset": (pa.timestamp("s", "+02:00"), [datetime.datetime(2024, 6, 1, tzinfo=UTC)]),
    **dict(decimals(pa.decimal32, 9)),
    **dict(decimals(pa.decimal64, 18)),
    **dict(decimals(pa.decimal128, 5)),
    **dict(decimals(pa.decimal128, 20)),
    **dict(decimals(pa.decimal128, 38)),
    "uuid": (pa.uuid(), [uuid.UUID(int=0), uuid.UUID(int=2**127), uuid.UUID(int=2**128 - 1)]),
    "json": (pa.json_(), ["", "{}", "[0]"]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "", "b"]),
    "dictionary of bytes": (pa.dictionary(pa.int32(), pa.binary()), [b"a", b""]),
    "dictionary of integers": (pa.dictionary(pa.uint8(), pa.uint64()), [0, 2**64 - 1]),
    "dictionary of timestamps": (pa.dictionary(pa.int16(), pa.timestamp("ms")), [EPOCH, FAR_AHEAD]),
}
"""The type of a column, and values as a query names them, by name."""


def arrow(values, kind):
    """Values as an Arrow array of any type; pyarrow makes dictionaries of a few types only."""
    values = [value.bytes if isinstance(value, uuid.UUID) else value for value in values]
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(values, kind)


def column(name, repeat=1):
    """The values of a row of the table, as an Arrow array."""
    kind, values = TYPES[name]
    return arrow(values * repeat, kind)


TUPLES = {
    "text and integer": [("acme", 7), ("", 0), ("7", -1), ("acme7", 2**63 - 1)],
    "borders": [("a", "b"), ("ab", ""), ("", "ab"), ("b\0\0\0\0\0\0\0\0", "")],
    "bytes and dates": [
        (b"\xff", datetime.date(2024, 2, 29), EPOCH),
        (b"", datetime.date.min, FAR_AHEAD),
    ],
    "decimals": [(decimal.Decimal("1.50"), -1), (decimal.Decimal("2.00"), 2)],
}
"""Tuples of keys, by name."""


def rows(name):
    """Tuples as a table, of which each is a row."""
    columns = zip(*TUPLES[name], strict=True)
    return pa.table({f"c{i}": pa.array(values) for i, values in enumerate(columns)})


REFUSED = {
    "float16": pa.array([np.float16(0), np.float16(-0.0)], pa.float16()),
    "float32": pa.array([0.0, float("nan")], pa.float32()),
    "float64": pa.array([0.0, -0.0, float("nan")], pa.float64()),
    "bool": pa.array([True, False]),
    "null": pa.nulls(2),
    "time32": pa.array([0, 1], pa.time32("s")),
    "time64": pa.array([0, 1], pa.time64("ns")),
    "duration": pa.array([0, 1], pa.duration("ms")),
    "decimal256": pa.array([decimal.Decimal("0.00")], pa.decimal256(50, 2)),
    "list": pa.array([[1], [2]]),
    "fixed-size list": pa.array([[1, 2]], pa.list_(pa.int8(), 2)),
    "map": pa.array([[(1, 2)]], pa.map_(pa.int32(), pa.int32())),
    "dictionary of floats": pa.array([0.0, 1.0]).dictionary_encode(),
}
"""Columns that hold no keys."""

NOT_KEYS = [
    None,
    0.0,
    -0.0,
    1.5,
    float("nan"),
    float("inf"),
    np.float32(0),
    True,
    np.bool_(False),
    decimal.Decimal("nan"),
    decimal.Decimal("inf"),
    datetime.time(0),
    datetime.timedelta(0),
    np.datetime64("NaT", "ns"),
    np.datetime64(1, "ps"),
    np.timedelta64(0, "s"),
    uuid.UUID(int=0),
    bytearray(b"a"),
    (),
    (1, None),
    (1, 2.5),
    ((1, 2), 3),
    ((1,),),
    {},
]
"""Python objects that are not keys."""
