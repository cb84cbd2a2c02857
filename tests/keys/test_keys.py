"""The canonical table: what is the same key, what is not one, and what never changes."""

import array
import datetime as dt
import enum
import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import hash_int, hash_key

import tamis
from tamis import hash_keys

pa = pytest.importorskip("pyarrow")

SECRET = bytes(range(16))
VECTORS = Path(__file__).parents[1] / "vectors.json"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
blobs = st.binary(max_size=300)
ints = st.integers(-(2**63), 2**64 - 1)


def rows(keys, **hashing):
    return [tuple(row) for row in hash_keys(keys, **hashing).tolist()]


def frozen_columns():
    """Every form of key in the canonical table, as columns by name."""
    integers = [0, 1, -1, 5, 127, -128, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63)]
    return {
        "text": pa.array(["", "a", "1", "tamis", "Müller", "日本語", "x" * 16, "y" * 241]),
        "binary": pa.array([b"", b"a", b"\0", b"\xff" * 9, bytes(range(129)), b"z" * 1000]),
        "integer": pa.array(integers, pa.int64()),
        "unsigned": pa.array([2**63, 2**64 - 1], pa.uint64()),
        "date": pa.array([dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(1, 1, 1)]),
        "timestamp": pa.array([0, 1, -1, 253402300799], pa.timestamp("s")),
        "decimal": pa.array([Decimal("1.50"), Decimal("-3.00"), Decimal("0.00"), Decimal("9e20")]),
        "tuple": [("acme", 7), ("a", "b"), ("ab", ""), (b"", -1, 2**64 - 1), ("x", Decimal("1.5"))],
        "one-element tuple": [("a",), ("",)],
    }


def test_vectors_are_frozen():
    """A filter saved today answers the same in ten years: these numbers never change."""
    frozen = json.loads(VECTORS.read_text())
    for hashing, arguments in (
        ("seed 0", {}),
        ("seed 12345", {"seed": 12345}),
        ("key 00..0f", {"key": SECRET}),
    ):
        for name, column in frozen_columns().items():
            found = [f"{hi:016x}{lo:016x}" for hi, lo in rows(column, **arguments)]
            assert found == frozen[hashing][name], (hashing, name)


@given(st.lists(texts), st.integers(0, 2**64 - 1))
def test_text_is_xxh3_of_utf8(keys, seed):
    assert rows(keys, seed=seed) == [hash_key(key, seed) for key in keys]


@given(st.lists(blobs), st.integers(0, 2**64 - 1))
def test_bytes_are_xxh3(keys, seed):
    assert rows(keys, seed=seed) == [hash_key(key, seed) for key in keys]


@given(st.lists(ints), st.integers(0, 2**64 - 1))
def test_integers_are_mixed_by_value(keys, seed):
    assert rows(keys, seed=seed) == [hash_int(key, seed) for key in keys]


@given(st.lists(texts))
def test_text_in_any_column(keys):
    expected = rows(keys)
    as_bytes = [key.encode() for key in keys]
    for column in (
        tuple(keys),
        as_bytes,
        (key for key in keys),
        np.array(keys, dtype=object),
        pa.array(keys, pa.string()),
        pa.array(keys, pa.large_string()),
        pa.array(keys, pa.string_view()),
        pa.array(as_bytes, pa.binary()),
        pa.array(as_bytes, pa.large_binary()),
        pa.array(as_bytes, pa.binary_view()),
        pa.array(keys, pa.string()).dictionary_encode(),
        pa.chunked_array([keys, keys], pa.string()).slice(len(keys)),
        pa.table({"only": pa.array(keys, pa.string())}),
        pa.record_batch({"only": pa.array(keys, pa.string())}),
    ):
        assert rows(column) == expected, type(column)
    if keys and not any(key.endswith("\0") for key in keys):  # NumPy's padding
        assert rows(np.array(keys)) == expected
        assert rows(np.array(as_bytes)) == expected


@given(st.data())
def test_integers_in_any_column(data):
    width = data.draw(st.sampled_from([8, 16, 32, 64]))
    signed = data.draw(st.booleans())
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)
    keys = data.draw(st.lists(st.integers(low, high), max_size=50))
    expected = rows(keys)
    array_ = np.array(keys, dtype=f"{'i' if signed else 'u'}{width // 8}")
    arrow = pa.array(keys, f"{'' if signed else 'u'}int{width}")
    for column in (
        array_,
        array_.astype(array_.dtype.newbyteorder(">")),
        np.repeat(array_, 3)[::3],
        array_[::-1][::-1],
        memoryview(array_),
        arrow,
        arrow.dictionary_encode(),
        pa.concat_arrays([arrow, arrow])[len(keys) :],
        [np.int64(k) if k < 2**63 else np.uint64(k) for k in keys],
    ):
        assert rows(column) == expected
    assert rows(array_[::-1]) == expected[::-1]


@pytest.mark.parametrize("length", [0, 1, 1023, 1024, 1025, 5000])
def test_slices_and_chunks(length):
    whole = pa.array([f"key {i}" for i in range(length + 30)])
    sliced = whole[13 : 13 + length]
    expected = rows([f"key {i}" for i in range(13, 13 + length)])
    assert rows(sliced) == expected
    chunks = pa.chunked_array([sliced[:7], sliced[7:7], sliced[7:1500], sliced[1500:]])
    assert rows(chunks) == expected
    dictionary = pa.array([f"key {i % 5}" for i in range(length + 30)]).dictionary_encode()
    assert rows(dictionary[13 : 13 + length]) == rows(
        [f"key {i % 5}" for i in range(13, 13 + length)]
    )


def test_libraries_speak_arrow():
    pl, pd, duckdb = (pytest.importorskip(name) for name in ("polars", "pandas", "duckdb"))
    names, numbers = ["ada", "grace", "ada"], [3, 1, 2]
    assert rows(pl.Series(names)) == rows(names)
    assert rows(pl.Series(numbers)) == rows(numbers)
    assert rows(pl.Series(names, dtype=pl.Categorical)) == rows(names)
    assert rows(pl.DataFrame({"a": names})) == rows(names)
    assert rows(pd.Series(names)) == rows(names)
    assert rows(pd.Series(numbers)) == rows(numbers)
    assert rows(pd.Series(names, dtype="string[pyarrow]")) == rows(names)
    assert rows(pd.Index(numbers)) == rows(numbers)
    relation = duckdb.sql("select * from (values ('ada'), ('grace'), ('ada')) as t(name)")
    assert rows(relation) == rows(names)


def test_iterables():
    expected = rows([1, 2, 3])
    for column in (
        {1: "a", 2: "b", 3: "c"},
        range(1, 4),
        iter([1, 2, 3]),
        array.array("q", [1, 2, 3]),
    ):
        assert rows(column) == expected


def test_what_is_the_same_key():
    class Small(enum.IntEnum):
        FIVE = 5

    f = tamis.Bloom.build(["a"], fpr=1e-9)
    assert "a" in f
    assert b"a" in f
    assert np.str_("a") in f
    assert np.bytes_(b"a") in f
    f = tamis.Bloom.build([5, 1, -1], fpr=1e-9)
    assert all(key in f for key in (5, np.int8(5), np.uint64(5), Small.FIVE))
    assert "1" not in f
    assert "5" not in f
    assert 2**64 - 1 not in f


def test_dates_timestamps_and_decimals_agree_across_units():
    days = [dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(1650, 5, 4)]
    since = [(day - dt.date(1970, 1, 1)).days for day in days]
    assert rows(pa.array(days, pa.date32())) == rows(since)
    assert rows(pa.array(days, pa.date64())) == rows(since)
    seconds = [0, 1, -1, 1_700_000_000]
    nanoseconds = rows([second * 10**9 for second in seconds])
    for unit, factor in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        for zone in (None, "UTC", "Europe/Paris"):
            column = pa.array([second * factor for second in seconds], pa.timestamp(unit, zone))
            assert rows(column) == nanoseconds
    far = 253402300799  # the last second of the year 9999, beyond 64 bits of nanoseconds
    assert rows(pa.array([far], pa.timestamp("s"))) == [hash_int(far * 10**9)]
    assert rows(pa.array([far * 10**6], pa.timestamp("us"))) == [hash_int(far * 10**9)]
    values = [Decimal("1.5"), Decimal("-20"), Decimal("0"), Decimal("0.001"), Decimal("123456789")]
    short = pa.array(values, pa.decimal128(20, 3))
    long = pa.array(values, pa.decimal128(38, 10))
    assert rows(short) == rows(long)
    assert rows(short)[1:3] == rows([-20, 0])
    assert rows(short)[0] == hash_key((15).to_bytes(16, "little") + b"\1")
    assert rows(pa.array([Decimal("7e2")], pa.decimal128(1, -2))) == rows([700])


def test_a_timestamp_is_one_key_in_every_library():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    moment = pd.Timestamp("2024-03-01 12:34:56.789012345")
    value, tokyo = moment.value, moment.tz_localize("UTC").tz_convert("Asia/Tokyo")
    array_ = np.array([value], "M8[ns]")
    for form in (
        [moment],
        [tokyo],
        list(array_),
        array_,
        array_.astype(">M8[ns]"),
        np.repeat(array_, 3)[::3],
        np.ma.array(array_, mask=[False]),
        np.array([moment, tokyo], object)[:1],
        pd.Series([moment]),
        pd.Series([tokyo]).to_numpy(),
        pd.DatetimeIndex([tokyo]),
        pl.Series(array_),
        pa.array(array_),
    ):
        assert rows(form) == [hash_int(value)], type(form)
    f = tamis.Bloom(10, fpr=1e-9)
    f.add(tokyo)
    assert moment in f
    assert np.datetime64(value, "ns") in f


@given(
    st.datetimes(timezones=st.one_of(st.none(), st.timezones()), allow_imaginary=False).filter(
        lambda moment: 2 <= moment.year <= 9998
    )
)
def test_datetimes_are_nanoseconds_in_utc(moment):
    assert rows([moment]) == [hash_key(moment)]
    assert rows([moment.date()]) == [hash_key(moment.date())]
    naive = moment.replace(tzinfo=None)
    assert rows([naive]) == rows(pa.array([naive])) == rows([np.datetime64(naive, "us")])


@pytest.mark.parametrize(
    ("unit", "value", "same"),
    [
        ("Y", 54, dt.date(2024, 1, 1)),
        ("Y", -10, dt.date(1960, 1, 1)),
        ("M", -1, dt.date(1969, 12, 1)),
        ("W", 1, dt.date(1970, 1, 8)),
        ("2W", 1, dt.date(1970, 1, 15)),
        ("D", 59, dt.date(1970, 3, 1)),
        ("h", 25, dt.datetime(1970, 1, 2, 1)),
        ("25m", 2, dt.datetime(1970, 1, 1, 0, 50)),
        ("s", -1, dt.datetime(1969, 12, 31, 23, 59, 59)),
        ("ms", 1, dt.datetime(1970, 1, 1, 0, 0, 0, 1000)),
        ("us", 1, dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
        ("ps", 10**6, dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
        ("as", 10**12, dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
    ],
)
def test_datetime64_of_any_unit(unit, value, same):
    array_ = np.array([value], f"M8[{unit}]")
    assert rows(array_) == rows([array_[0]]) == rows([same]) == [hash_key(same)]


def test_a_date_is_not_its_midnight():
    assert rows([dt.date(2024, 1, 1)]) != rows([dt.datetime(2024, 1, 1)])


@given(st.lists(st.decimals(allow_nan=False, allow_infinity=False, places=4), max_size=9))
def test_decimals_are_the_number_that_they_equal(keys):
    keys = [key for key in keys if abs(key) < 10**30]
    assert rows(keys) == [hash_key(key) for key in keys]
    assert rows(pa.array(keys, pa.decimal128(38, 4))) == rows(keys)


parts = st.one_of(texts, blobs, ints, st.dates(), st.datetimes())


@given(st.lists(st.lists(parts, min_size=1, max_size=5).map(tuple)), st.integers(0, 2**64 - 1))
def test_tuples_have_one_form(keys, seed):
    for key in keys:
        assert rows([key], seed=seed) == [hash_key(key, seed)]


def test_the_documented_bytes_of_a_tuple():
    form = b"b\4\0\0\0\0\0\0\0acme" + b"+\7\0\0\0\0\0\0\0"
    assert rows([("acme", 7)]) == rows([form])
    assert rows([("acme",)]) == rows(["acme"])


def write_vectors():
    """Run once: `PYTHONPATH=tests/helpers python tests/keys/test_keys.py`; then it is frozen."""
    frozen = {}
    for hashing, arguments in (
        ("seed 0", {}),
        ("seed 12345", {"seed": 12345}),
        ("key 00..0f", {"key": SECRET}),
    ):
        frozen[hashing] = {
            name: [f"{hi:016x}{lo:016x}" for hi, lo in rows(column, **arguments)]
            for name, column in frozen_columns().items()
        }
    VECTORS.write_text(json.dumps(frozen, indent=1) + "\n")


if __name__ == "__main__":
    write_vectors()


def test_columns_of_objects_are_their_objects():
    """Their conversion to Arrow would cut nanoseconds, drop times of day or hash addresses."""
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    fine = pd.Timestamp("2024-01-01 00:00:00.123456789")
    finer = fine + pd.Timedelta(1)
    assert rows(pd.Series([fine, finer], dtype=object)) == rows([fine, finer])
    frame = pd.DataFrame({"t": pd.Series([fine, finer], dtype=object), "n": [1, 1]})
    assert rows(frame) == rows([(fine, 1), (finer, 1)])
    assert rows(frame[["t"]]) == rows([fine, finer])
    tuples = [("a", 1), ("b", 2)]
    assert rows(pd.Series(tuples)) == rows(pl.Series(tuples, dtype=pl.Object)) == rows(tuples)
    text = pd.Series(["a", "b"], dtype=object)
    assert rows(text) == rows(["a", "b"])
    for wrong in (
        pd.Series([fine, "a"], dtype=object),
        pd.Series(pd.period_range("2024-01", periods=2, freq="M")),
        pd.Series(pd.interval_range(0, 2)),
        pl.DataFrame({"k": pl.Series([object()], dtype=pl.Object), "n": [1]}),
    ):
        with pytest.raises(TypeError, match=r"a key is|keys of one kind"):
            rows(wrong)
