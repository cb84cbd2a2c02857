"""Static functions: the value of every key, of every width, from every kind of column."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import frame, parts

import tamis

build = tamis.StaticFunction.build


def test_every_size_to_two_thousand():
    values = np.random.default_rng(1).integers(0, 2**5, 2000)
    for n in range(2001):
        f = build(np.arange(n), values[:n], bits=5, seed=n)
        assert (f.get(np.arange(n)) == values[:n]).all()
        assert len(f) == n
        assert f.size_in_bits <= 5 * (n + 4 if n <= 256 else 1.02 * n + 4)


@pytest.mark.parametrize("bits", range(1, 33))
def test_every_width(bits):
    for n in (40, 5000):
        values = np.random.default_rng(bits).integers(0, 2**bits, n, dtype=np.uint64)
        values[:2] = 0, 2**bits - 1
        f = build(np.arange(n), values)
        assert f.bits == bits
        assert f.get(np.arange(n)).dtype == np.uint32
        assert (f.get(np.arange(n)) == values).all()
        assert [f[key] for key in range(20)] == values[:20].tolist()


def test_a_million():
    rng = np.random.default_rng(7)
    keys, values = rng.integers(0, 2**63, 1_000_000), rng.integers(0, 256, 1_000_000)
    keys = np.unique(keys)
    f = build(keys, values[: len(keys)])
    assert (f.get(keys) == values[: len(keys)]).all()
    assert f.bits_per_key <= 1.01 * 8


@given(st.dictionaries(st.text(), st.integers(0, 2**32 - 1), max_size=300), st.integers(0, 9))
def test_is_the_dictionary_it_was_built_from(mapping, seed):
    f = build(list(mapping), list(mapping.values()), seed=seed)
    assert f.get(list(mapping)).tolist() == list(mapping.values())
    assert len(f) == len(mapping)
    assert f.get([]).shape == (0,)
    assert 0 <= f["not one of them, but some value"] < 2**f.bits


def test_keys_of_every_kind():
    pa = pytest.importorskip("pyarrow")
    names = [f"key {i}" for i in range(500)]
    values = np.arange(500) % 13
    data = build(names, values).to_bytes()
    for keys, given_values in (
        (np.array(names), values.tolist()),
        (pa.array(names), values.astype(np.int8)),
        (pa.chunked_array([names[:7], names[7:]]), pa.array(values)),
        ((name for name in names), values.astype(np.uint64)),
        (names[::-1], values[::-1]),
        (names + names[:50], np.concatenate([values, values[:50]])),
    ):
        f = build(keys, given_values)
        assert f.to_bytes() == data
        assert f.get(pa.array(names)).tolist() == values.tolist()


def test_comes_back(tmp_path):
    f = build(range(5000), np.arange(5000) % 100, seed=4)
    f.save(tmp_path / "f")
    for twin in (
        tamis.from_bytes(f.to_bytes()),
        tamis.load(tmp_path / "f", mmap=True),
        pickle.loads(pickle.dumps(f)),
        copy.copy(f),
        f.copy(),
    ):
        assert type(twin) is tamis.StaticFunction
        assert repr(twin) == repr(f)
        assert twin.to_bytes() == f.to_bytes()
        assert (twin.get(range(9000)) == f.get(range(9000))).all()
    data = build(range(20), range(20)).to_bytes()
    for at in range(len(data)):
        for bad in (data[:at], data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]):
            with pytest.raises(tamis.FormatError):
                tamis.from_bytes(bad)


def test_a_secret_key(tmp_path):
    secret = bytes(range(16))
    f = build(range(100), range(100), key=secret)
    assert f.seed is None
    twin = tamis.from_bytes(f.to_bytes(), key=secret)
    assert twin.get(range(100)).tolist() == list(range(100))
    with pytest.raises(tamis.IncompatibleError, match="secret key"):
        tamis.from_bytes(f.to_bytes())


def test_is_no_filter():
    f = build([1, 2], [0, 1])
    for wrong in (lambda: 1 in f, lambda: iter(f), lambda: list(f)):
        with pytest.raises(TypeError):
            wrong()
    assert not hasattr(f, "contains")
    assert not hasattr(f, "expected_fpr")


def test_refuses_what_is_no_function():
    with pytest.raises(tamis.BuildError, match="a key has the values 2 and 5; a key has one"):
        build(["a", "b", "a"], [5, 1, 2])
    with pytest.raises(ValueError, match="values has 2 items for 3 keys"):
        build([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match=r"values\[1\] must be from 0 to 4294967295, not -1"):
        build([1, 2], [1, -1])
    with pytest.raises(ValueError, match=r"values\[0\] must be from 0 to 3, not 4"):
        build([1, 2], [4, 1], bits=2)
    with pytest.raises(ValueError, match=r"values must have 1 dimension, .* not 2"):
        build([1, 2], [[1], [2]])
    for values in ([1.0, 2.0], ["a", "b"], [True, False], [2**70, 1]):
        with pytest.raises(TypeError, match="values must be integers, not"):
            build([1, 2], values)
    for bits in (0, 33):
        with pytest.raises(ValueError, match=f"bits must be from 1 to 32, not {bits}"):
            build([1], [0], bits=bits)
    with pytest.raises(TypeError, match=r"keys\[1\]"):
        build([1, None], [0, 1])


@given(st.integers(0, 4), st.integers(0, 2**64 - 1), st.booleans())
def test_frames_that_lie(at, number, large):
    kind, hash_id, tag, count, capacity, values, contents = parts(
        build(range(5000 if large else 50), np.arange(5000 if large else 50) % 8).to_bytes()
    )
    values[at % len(values)] = number
    try:
        f = tamis.from_bytes(frame(kind, hash_id, tag, count, capacity, values, contents))
    except tamis.FormatError:
        return
    assert (f.get(range(300)) < 2**f.bits).all()
