"""Defects found in other packages, which tamis must not have."""

import pickle

import numpy as np
import pytest

import tamis

SPECIMENS = [tamis.Bloom, tamis.Cuckoo, tamis.Fuse, tamis.Quotient]


@pytest.mark.parametrize("cls", SPECIMENS)
@pytest.mark.parametrize("distance", [2**61 - 1, 2**32, 2**31 - 1, 2**63, 2**62])
def test_keys_a_round_distance_apart_do_not_collide(cls, distance):
    """Python's own hash is the integer modulo 2**61 − 1."""
    keys = np.arange(10_000, dtype=np.uint64)
    f = cls.build(keys, fpr=0.001)
    assert f.contains(keys + np.uint64(distance)).mean() < 0.005
    assert sum(int(key) + distance in f for key in keys[:1000]) < 20


@pytest.mark.parametrize("cls", SPECIMENS)
def test_pickle_keeps_every_key(cls):
    words = [f"word {i}" for i in range(20_000)]
    f = cls.build(words, fpr=0.01)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(f, protocol)).contains(words).all()


@pytest.mark.parametrize("cls", SPECIMENS)
def test_random_64_bit_integers_are_all_there(cls):
    keys = np.random.default_rng(0).integers(0, 2**64, 50_000, dtype=np.uint64)
    f = cls.build(keys, fpr=0.01)
    assert f.contains(keys).all()
    assert all(key in f for key in keys.tolist()[:5000])
    signed = keys.view(np.int64)
    assert cls.build(signed, fpr=0.01).contains(signed).all()


@pytest.mark.parametrize("cls", SPECIMENS)
def test_empty_buffers(cls):
    f = cls.build([""], fpr=1e-6)
    assert "" in f
    assert b"" in f
    assert f.contains(np.array([], dtype=np.int64)).shape == (0,)
    assert f.contains(memoryview(np.array([], dtype=np.uint8))).shape == (0,)
    with pytest.raises(tamis.FormatError):
        tamis.from_bytes(b"")
    empty = cls.build(np.array([], dtype="S5"), fpr=0.1)
    assert not empty.contains(["a", ""]).any()


@pytest.mark.parametrize("cls", SPECIMENS)
def test_structured_integers_err_no_more_than_random_ones(cls):
    f = cls.build(np.arange(50_000), fpr=0.01)
    for step in (3, 2**16, 2**40):
        absent = np.arange(1, 20_001, dtype=np.uint64) * np.uint64(step) + np.uint64(2**50)
        assert abs(f.contains(absent).mean() - f.expected_fpr) < 5 * (0.01 / 20_000) ** 0.5
