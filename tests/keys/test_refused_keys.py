"""Values that are not keys are refused, with a message that says what is accepted."""

import datetime as dt
import itertools
import signal
from decimal import Decimal

import numpy as np
import pytest

import tamis
from tamis import hash_keys

pa = pytest.importorskip("pyarrow")


# 999e38: pyarrow makes no such value, but a column may hold it.
TOO_WIDE = pa.Array.from_buffers(
    pa.decimal128(3, -38), 1, [None, pa.py_buffer((999).to_bytes(16, "little"))]
)


def test_objects_that_refer_to_themselves_are_refused():
    class Endless:
        mask = filled = None

        def tolist(self):
            return self

    with pytest.raises(TypeError, match=r"keys must be a list, .* not Endless"):
        hash_keys(Endless())


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
        assert len(hash_keys(column)) == 0


def test_dictionaries_with_values_that_are_not_keys():
    """A value that no key refers to does no harm; one that is referred to is found."""
    wide = pa.Array.from_buffers(
        pa.decimal128(3, -38), 2, [None, pa.py_buffer((999).to_bytes(16, "little") + bytes(16))]
    )
    unused = pa.DictionaryArray.from_arrays(pa.array([1] * 100, pa.int8()), wide)
    assert (hash_keys(unused) == hash_keys([0] * 100)).all()
    used = pa.DictionaryArray.from_arrays(pa.array([1] * 50 + [0], pa.int8()), wide)
    with pytest.raises(OverflowError, match=r"keys\[50\] is 999e38"):
        hash_keys(used)
    lost = pa.DictionaryArray.from_arrays(pa.array([0, 7], pa.int8()), pa.array(["a"]), safe=False)
    with pytest.raises(ValueError, match=r"keys\[1\] is item 7 of a dictionary of 1 values"):
        hash_keys(lost)


def test_nulls_of_a_table_row():
    table = pa.StructArray.from_arrays([pa.array([1, 2])], ["a"], mask=pa.array([False, True]))
    with pytest.raises(TypeError, match=r"keys\[1\] is null"):
        hash_keys(table)


def test_what_an_object_raises_is_raised():
    class Broken:
        def __index__(self):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        hash_keys([Broken()])


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
            hash_keys([1, key])
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
