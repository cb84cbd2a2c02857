"""The canonical table: what is the same key, what is not one, and what never changes."""

import array
import datetime as dt
import enum
import itertools
import json
import signal
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

# 999e38: pyarrow makes no such value, but a column may hold it.
TOO_WIDE = pa.Array.from_buffers(
    pa.decimal128(3, -38), 1, [None, pa.py_buffer((999).to_bytes(16, "little"))]
)

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


def test_objects_that_refer_to_themselves_are_refused():
    class Endless:
        mask = filled = None

        def tolist(self):
            return self

    with pytest.raises(TypeError, match=r"keys must be a list, .* not Endless"):
        rows(Endless())


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ([1, None], TypeError, r"keys\[1\] is None; a key is a str, bytes, or an int from"),
        ([1.5], TypeError, r"keys\[0\] is 1.5 \(of type float\)"),
        ([0, True], TypeError, r"keys\[1\] is True \(of type bool\)"),
        ([np.bool_(True)], TypeError, r"keys\[0\] is"),
        ([np.float32(1)], TypeError, r"keys\[0\] is"),
        (["a", 1], TypeError, r"keys\[1\] is 1, a number, after text or bytes"),
        ([1, b"a"], TypeError, r"keys\[1\] is b'a', text or bytes, after numbers"),
        ([1, 2, 2**64], OverflowError, r"keys\[2\] is 18446744073709551616; .* 2\*\*64-1"),
        ([-(2**63) - 1], OverflowError, r"keys\[0\] is -9223372036854775809"),
        ([10**100], OverflowError, r"keys\[0\] is an int of 333 bits"),
        (["ok", "\ud800"], TypeError, r"keys\[1\] is a str with lone surrogates"),
        (np.array(["ok", "\ud800"]), TypeError, r"keys\[1\] is a str with lone surrogates"),
        ([()], TypeError, r"keys\[0\] is an empty tuple"),
        ([(1, (2, 3))], TypeError, r"is a tuple whose item 1 is a tuple, which cannot be nested"),
        ([((1,),)], TypeError, r"is a tuple whose item 0 is a tuple, which cannot be nested"),
        ([(1, 2.5)], TypeError, r"keys\[0\] is a tuple whose item 1 is 2.5 \(of type float\)"),
        ([(1, 2**64)], OverflowError, r"is a tuple whose item 1 is 18446744073709551616"),
        ([(1, 2), 3], TypeError, r"keys\[1\] is 3, a number, after tuples"),
        ([dt.date(2024, 1, 1), dt.datetime(2024, 1, 1)], TypeError, r"a timestamp, after dates"),
        ([Decimal("1e39")], OverflowError, r"keys\[0\] is a Decimal of over 38 digits"),
        ([Decimal("1e-128")], OverflowError, r"keys\[0\] is a Decimal of over 127 decimal places"),
        ([np.datetime64("NaT", "ns")], TypeError, r"keys\[0\] is NaT"),
        (np.array(["2024", "NaT"], "M8[s]"), TypeError, r"keys\[1\] is NaT"),
        (np.array([1000, 1], "M8[ps]"), TypeError, r"keys\[1\] is .* a fraction of a nanosecond"),
        (
            np.ma.array(np.array([1, 2], "M8[ns]"), mask=[False, True]),
            TypeError,
            r"keys\[1\] is NaT",
        ),
        (pa.table({"a": [1, 2], "b": [2, None]}), TypeError, r"keys\[1\] is null in column 'b'"),
        (pa.table({"a": [1], "b": [0.5]}), TypeError, "keys is an Arrow column of type Float64"),
        ([bytearray(b"a")], TypeError, r"keys\[0\] is"),
        ([dt.time(1)], TypeError, r"keys\[0\] is"),
        ("abc", TypeError, r"keys must be .* not one str"),
        (b"abc", TypeError, r"keys must be .* not one bytes"),
        (5, TypeError, r"keys must be .* not int"),
        (None, TypeError, r"keys must be .* not NoneType"),
        (np.array([1.0]), TypeError, "keys is an array of floats"),
        (np.array([True]), TypeError, "keys is an array of bool"),
        (np.array([1j]), TypeError, "keys is an array of buffer format 'Zd'"),
        (np.array([[1]]), TypeError, "keys must have one dimension, not 2"),
        (np.array(1), TypeError, "keys must be .* not ndarray"),
        (np.ma.array([1, 2], mask=[False, True]), TypeError, r"keys\[1\] is None"),
        (np.array(["a", None], object), TypeError, r"keys\[1\] is None"),
        (pa.array([1, None, 3]), TypeError, r"keys\[1\] is null"),
        (pa.chunked_array([["a"], ["b", None]]), TypeError, r"keys\[2\] is null"),
        (pa.array(["a", None]).dictionary_encode(), TypeError, r"keys\[1\] is null"),
        (
            pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["a", None])),
            TypeError,
            r"keys\[1\] is null",
        ),
        (pa.array([1.0]), TypeError, "keys is an Arrow column of type Float64"),
        (pa.array([True]), TypeError, "keys is an Arrow column of type Boolean"),
        (pa.nulls(2), TypeError, "keys is an Arrow column of type Null"),
        (pa.array([[1]]), TypeError, "keys is an Arrow column of type List"),
        (TOO_WIDE, OverflowError, r"keys\[0\] is 999e38"),
    ],
    ids=str,
)
def test_what_is_not_a_key(keys, error, message):
    f = tamis.Bloom(10, fpr=0.1)
    for method in (hash_keys, f.contains, f.update):
        with pytest.raises(error, match=message):
            method(keys)
    assert len(f) == 0


def test_empty_columns_hold_no_bad_key():
    for column in (np.array([]), pa.array([]), pa.array([], pa.float64()), np.array([], bool), []):
        assert rows(column) == []


def test_dictionaries_with_values_that_are_not_keys():
    """A value that no key refers to does no harm; one that is referred to is found."""
    wide = pa.Array.from_buffers(
        pa.decimal128(3, -38), 2, [None, pa.py_buffer((999).to_bytes(16, "little") + bytes(16))]
    )
    unused = pa.DictionaryArray.from_arrays(pa.array([1] * 100, pa.int8()), wide)
    assert rows(unused) == rows([0] * 100)
    used = pa.DictionaryArray.from_arrays(pa.array([1] * 50 + [0], pa.int8()), wide)
    with pytest.raises(OverflowError, match=r"keys\[50\] is 999e38"):
        rows(used)
    lost = pa.DictionaryArray.from_arrays(pa.array([0, 7], pa.int8()), pa.array(["a"]), safe=False)
    with pytest.raises(ValueError, match=r"keys\[1\] is item 7 of a dictionary of 1 values"):
        rows(lost)


def test_nulls_of_a_table_row():
    table = pa.StructArray.from_arrays([pa.array([1, 2])], ["a"], mask=pa.array([False, True]))
    with pytest.raises(TypeError, match=r"keys\[1\] is null"):
        rows(table)


def test_what_an_object_raises_is_raised():
    class Broken:
        def __index__(self):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        rows([Broken()])


def test_memory_that_is_not_there_is_an_error():
    endless = np.broadcast_to(np.int64(1), 2**46)
    f = tamis.Bloom(10, fpr=0.1)
    # Not Bloom.build, which holds no hashes and would go through all keys.
    for call in (hash_keys, f.contains, lambda keys: tamis.Ribbon.build(keys, fpr=0.1)):
        with pytest.raises(MemoryError):
            call(endless)


@pytest.mark.parametrize("key", [None, 1.5, True, (), bytearray(b"a"), np.bool_(False), []])
def test_one_key_that_is_not_one(key):
    f = tamis.Bloom(10, fpr=0.1)
    for method in (f.__contains__, f.add):
        with pytest.raises(TypeError, match=r"key is .*; a key is a str, bytes, or an int"):
            method(key)
    with pytest.raises(OverflowError, match="key is 18446744073709551616"):
        f.add(2**64)


def test_a_list_that_changes_under_the_call():
    class Shrinking:
        def __index__(self):
            keys.clear()
            return 1

    keys = [Shrinking(), 2, 3]
    with pytest.raises(RuntimeError, match="keys changed its length"):
        tamis.Bloom(10, fpr=0.1).contains(keys)


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


def test_wrong_seeds_and_secret_keys_are_named():
    f = tamis.Bloom.build(["a"], fpr=0.1)
    makers = (
        lambda **hashing: hash_keys(["a"], **hashing),
        lambda **hashing: tamis.Bloom(10, fpr=0.1, **hashing),
        lambda **hashing: tamis.Ribbon.build(["a"], fpr=0.1, **hashing),
        lambda **hashing: tamis.Telescoping(10, fpr=0.1, **hashing),
    )
    for make in makers:
        for key in ("sesame, open quickly", bytearray(16), 5):
            with pytest.raises(TypeError, match="key must be 16 bytes, not of type ") as raised:
                make(key=key)
            assert "sesame" not in str(raised.value)  # what was meant as a secret stays one
        for key in (b"", b"x" * 15, b"x" * 17):
            with pytest.raises(ValueError, match=f"key must be 16 bytes, not {len(key)}"):
                make(key=key)
        for seed in ("x", 1.5):
            with pytest.raises(TypeError, match=r"seed must be an int from 0 to 2\*\*64-1, not "):
                make(seed=seed)
        for seed in (-1, 2**64):
            with pytest.raises(ValueError, match=rf"seed must be .* to 2\*\*64-1, not {seed}"):
                make(seed=seed)
    with pytest.raises(TypeError, match="key must be 16 bytes, not of type str"):
        tamis.from_bytes(f.to_bytes(), key="secret")


def test_huge_values_are_refused_in_few_words():
    for key in (Decimal("1e2000000"), Decimal("1" * 10**6), 10**9999, 2**10**6, "x" * 10**6):
        with pytest.raises((TypeError, OverflowError)) as raised:
            rows([1, key])
        assert len(str(raised.value)) < 200


def test_endless_keys_can_be_interrupted():
    """A signal handler runs while an iterable is read."""

    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    f = tamis.Bloom(100, fpr=0.01)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for use in (f.update, f.contains, tamis.hash_keys):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Interrupted):
                use(itertools.count())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(f) == 0


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
