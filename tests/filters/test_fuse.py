"""What is particular to binary fuse filters: sizes, attempts, and sets that are hard to build."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import Fuse as Twin
from reference import hash_key

import tamis
from tamis import _native
from tamis.planning import fuse as planning
from tamis.testing.filters import within_noise

ARITIES = (3, 4)


def attempts(f):
    return f._attempts


def native(keys, arity, fingerprint_bits, segment_length, segments, seed=0):
    distinct = _native.Distinct(keys, seed)
    size = planning.FuseSize(arity, fingerprint_bits, segment_length, segments)
    return tamis.Fuse._of(_native.Fuse._build(size, distinct))


@given(
    st.sampled_from(ARITIES),
    st.integers(1, 32),
    st.sets(st.integers(-5, 10**6), min_size=1, max_size=80),
    st.integers(1, 40),
    st.integers(0, 12),
)
def test_solves_the_equations_of_its_twin(arity, fingerprint_bits, keys, length, more):
    """Read as the format says, the table gives every key its fingerprint, and the same answers."""
    f = native(list(keys), arity, fingerprint_bits, length, arity + more)
    twin = Twin.of(f.to_bytes())
    assert (twin.arity, twin.fingerprint_bits) == (arity, fingerprint_bits)
    assert all(twin.contains(hash_key(key)) for key in keys)
    asked = range(-50, 500)
    assert f.contains(asked).tolist() == [twin.contains(hash_key(key)) for key in asked]
    assert [key in f for key in asked] == f.contains(asked).tolist()


@pytest.mark.parametrize("arity", ARITIES)
def test_size_at_a_million(arity):
    for bits in (8, 12):
        f = tamis.Fuse.build(np.arange(10**6), fpr=2.0**-bits, arity=arity)
        assert f.fingerprint_bits == bits
        assert f.bits_per_key <= {3: 1.13, 4: 1.08}[arity] * bits
        absent = np.arange(10**6, 3 * 10**6)
        assert within_noise(f.contains(absent).mean(), 2.0**-bits, len(absent))


@pytest.mark.parametrize("arity", ARITIES)
@pytest.mark.parametrize("count", [1 << 17, 300_000])
def test_repeated_keys_do_not_change_a_large_filter(arity, count):
    """No key twice, one key, every hundredth, all; as an array and as objects."""
    keys = np.random.default_rng(count).integers(-(1 << 62), 1 << 62, count)
    expected = native(keys, *planning.size(count, fpr=0.01, arity=arity)).to_bytes()
    repeats = [keys[:0], keys[5:6], keys[::100], keys]
    for again in repeats:
        f = tamis.Fuse.build(np.concatenate([keys, again]), fpr=0.01, arity=arity)
        assert len(f) == count
        assert f.to_bytes() == expected
    objects = tamis.Fuse.build(iter([*keys.tolist(), 7, 7]), fpr=0.01, arity=arity)
    assert len(objects) == count + 1
    assert objects.contains(keys).all()


@pytest.mark.parametrize(("arity", "count"), [(3, 154_301), (4, 136_021)])
def test_a_budget_is_for_the_distinct_keys_of_a_large_set(arity, count):
    """The next number of segments comes with a few more slots per key."""
    keys = np.random.default_rng(count).integers(-(1 << 62), 1 << 62, count)
    least = planning.size(count, fpr=0.5, arity=arity).bits / count
    more = next(
        keys[:i]
        for i in range(1, 5000)
        if planning.size(count + i, fpr=0.5, arity=arity).bits / (count + i) > least
    )
    f = tamis.Fuse.build(np.concatenate([keys, more]), bits_per_key=least, arity=arity)
    assert len(f) == count
    with pytest.raises(ValueError, match=f"for a fuse filter of {count} keys, not 1.0"):
        tamis.Fuse.build(np.concatenate([keys, keys[5:6]]), bits_per_key=1, arity=arity)


@pytest.mark.parametrize("arity", ARITIES)
def test_every_size_up_to_two_thousand(arity):
    """Keys a short distance apart, each given twice."""
    tried = []
    for n in range(2001):
        keys = np.arange(n, dtype=np.uint64) * np.uint64(1 + n % 3) + np.uint64(n)
        f = tamis.Fuse.build(np.concatenate([keys, keys]), fpr=2**-8, arity=arity)
        assert len(f) == n
        assert f.contains(keys).all()
        tried.append(attempts(f))
    assert np.mean(tried) < 1.2
    assert max(tried) < 10


@pytest.mark.parametrize("arity", ARITIES)
def test_sizes_where_others_fail(arity):
    """Near 11,500 keys a known library fails 20 to 40 % of the time."""
    tried = []
    for n in range(11_000, 12_001, 10):
        keys = np.arange(n) + n * n
        f = tamis.Fuse.build(keys, bits_per_key=12, arity=arity)
        assert f.contains(keys).all()
        assert f.bits_per_key <= 12
        tried.append(attempts(f))
    assert np.mean(tried) < 1.4
    assert max(tried) < 10


@pytest.mark.parametrize("arity", ARITIES)
@pytest.mark.parametrize(
    "keys",
    [
        [2**i for i in range(64)] + [-(2**i) for i in range(64)],
        [bytes(i) for i in range(300)],
        ["\0" * i + "a" for i in range(300)],
        [f"{i:0200d}" for i in range(2000)],
        [i << 48 for i in range(2000)],
    ],
    ids=["powers", "zeros", "prefixes", "digits", "high"],
)
def test_keys_that_are_close(keys, arity):
    for bits in (1, 8, 32):
        f = tamis.Fuse.build(keys * 2, fpr=2.0**-bits, arity=arity)
        assert len(f) == len(set(keys))
        assert f.contains(keys).all()


@pytest.mark.parametrize("arity", ARITIES)
@pytest.mark.parametrize("bits", range(1, 33))
def test_every_fingerprint_length(arity, bits):
    n, trials = 3000, 300_000
    f = tamis.Fuse.build(np.arange(n), fpr=2.0**-bits, arity=arity)
    assert (f.fingerprint_bits, f.arity) == (bits, arity)
    assert f.expected_fpr == 2.0**-bits
    assert f.contains(np.arange(n)).all()
    absent = np.arange(n, n + trials)
    answers = f.contains(absent)
    assert within_noise(answers.mean(), f.expected_fpr, trials)
    assert [key in f for key in range(n, n + 500)] == answers[:500].tolist()


def test_a_table_that_is_too_small_grows():
    """Sizes that no plan gives: never wrong, only slower to build and longer."""
    for n in (2, 3, 50, 1000):
        f = native(range(n), 3, 8, 1, 3)
        assert f.contains(range(n)).all()
        assert f.size_in_bits > 8 * n
        assert attempts(f) > 32
        assert tamis.from_bytes(f.to_bytes()).contains(range(n)).all()


def test_sizes_that_cannot_be():
    with pytest.raises(ValueError, match="arity must be 3 or 4, not 5"):
        tamis.Fuse.build([1], fpr=0.1, arity=5)
    with pytest.raises(
        ValueError, match=r"fpr must be at least 2\*\*-32 for a fuse filter, not 1e-10"
    ):
        tamis.Fuse.build([1], fpr=1e-10)
    with pytest.raises(
        ValueError,
        match=r"bits_per_key must be at least 1\.28 for a fuse filter of 1000 keys, not 1",
    ):
        tamis.Fuse.build(range(1000), bits_per_key=1)
    for wrong, name in (
        ((2, 8, 10, 10), "arity"),
        ((3, 0, 10, 10), "fingerprint_bits"),
        ((3, 33, 10, 10), "fingerprint_bits"),
        ((3, 8, 0, 10), "segment_length"),
        ((4, 8, 10, 3), "segments"),
        ((4, 8, 2**20, 2**30), "segments"),
    ):
        with pytest.raises(ValueError, match=f"{name} must be"):
            native([1, 2], *wrong)


def test_planned_sizes():
    for arity in ARITIES:
        assert planning.size(0, fpr=0.01, arity=arity).slots == 0
        assert planning.size(1, fpr=0.01, arity=arity).slots == arity
        before = 0.0
        for keys in [*range(2, 3000), *range(3000, 200_000, 997)]:
            size = planning.size(keys, fpr=0.01, arity=arity)
            assert size.segments >= arity
            # One more key never makes the table much smaller.
            assert size.slots > max(keys, 0.98 * before)
            before = size.slots
        budget = planning.size(10**6, bits_per_key=10, arity=arity)
        assert budget.slots * budget.fingerprint_bits <= 10**7
        assert budget.slots * (budget.fingerprint_bits + 1) > 10**7
        assert planning.size(10**6, bits_per_key=100, arity=arity).fingerprint_bits == 32


@pytest.mark.parametrize("arity", [3, 4])
def test_large_sets_have_short_segments(arity):
    """Segments stay in the caches, and are long enough that no two keys have equal slots."""
    before = math.inf
    for keys in (10**6, 10**7, 10**8, 3 * 10**8, 10**9, 10**11):
        size = planning.size(keys, fpr=0.01, arity=arity)
        assert size.segment_length <= max(2**16, math.ceil((5 * keys) ** 0.5))
        assert keys / (2 * size.segment_length**2) <= 0.105
        # And a larger set has no more slots per key.
        assert size.slots / keys <= 1.0005 * before
        before = size.slots / keys


def test_short_segments_are_solved_at_once(monkeypatch):
    """What is planned beyond 10⁸ keys, with segments cut short at 2,000 slots instead."""
    monkeypatch.setattr(planning, "_MAX_SEGMENT", 2000)
    attempts = []
    for seed in range(5):
        f = tamis.Fuse.build(np.arange(600_000), fpr=2**-8, seed=seed)
        assert 1990 <= f._segment_length <= 2000
        assert f.contains(np.arange(600_000)).all()
        attempts.append(f._attempts)
    assert sorted(attempts)[2] == 1
