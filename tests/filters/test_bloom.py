"""What is particular to Bloom filters: layouts bit by bit, set operations, truncation."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import Bloom as Twin
from reference import frame, hash_key, hyperloglog

import tamis
from tamis import _native
from tamis.planning import bloom as planning
from tamis.testing.filters import within_noise

LAYOUTS = ["blocked", "standard", "segmented"]
keys_lists = st.lists(st.integers(-1000, 2**64 - 1), max_size=60)


def native(layout, bits, hashes):
    return tamis.Bloom._of(_native.Bloom._empty(planning.BloomSize(layout, bits, hashes), 100))


@given(st.sampled_from(LAYOUTS), st.integers(1, 2000), st.integers(1, 40), keys_lists, keys_lists)
def test_sets_the_bits_of_its_twin(layout, bits, hashes, keys, others):
    bits = -(-bits // 512) * 512 if layout == "blocked" else max(bits, hashes)
    f, twin = native(layout, bits, hashes), Twin(layout, bits, hashes)
    f.update(keys)
    for key in keys:
        twin.add(hash_key(key))
    index, piece = LAYOUTS.index(layout), 12 if layout == "segmented" else 0
    expected = frame(1, 1, 0, len(f), 100, [index, bits, hashes, bits], [(1, piece, twin.words())])
    assert f.to_bytes() == expected
    assert f.contains(others).tolist() == [twin.contains(hash_key(key)) for key in others]
    assert [key in f for key in others] == f.contains(others).tolist()


@pytest.mark.parametrize("layout", ["standard", "segmented"])
@given(st.integers(1, 500), st.integers(1, 12), st.data())
def test_a_prefix_is_a_filter(layout, bits, hashes, data):
    bits = max(bits, hashes)
    kept = data.draw(st.integers(0, bits))
    again = data.draw(st.integers(0, kept))
    f, twin = native(layout, bits, hashes), Twin(layout, bits, hashes)
    for key in range(20):
        f.add(key)
        twin.add(hash_key(key))
    cut = f.truncate(kept)
    assert cut.size_in_bits == kept
    assert cut.contains(range(20)).all()
    expected = [twin.contains(hash_key(key), kept) for key in range(200)]
    assert cut.contains(range(200)).tolist() == expected
    assert tamis.from_bytes(cut.to_bytes()).contains(range(200)).tolist() == expected
    assert cut.truncate(again).to_bytes() == f.truncate(again).to_bytes()
    cut.add("later")
    assert "later" in cut


@pytest.mark.parametrize("layout", ["standard", "segmented"])
def test_truncated_rates_are_as_predicted(layout):
    n, trials = 20_000, 100_000
    f = tamis.Bloom.build(np.arange(n), bits_per_key=10, layout=layout)
    size = f._size
    absent = np.arange(n, n + trials)
    for share in (0, 0.05, 1 / 7, 0.3, 0.5, 0.77, 1):
        kept = round(share * f.size_in_bits)
        cut = f.truncate(kept)
        predicted = size.truncated_rate(n, kept)
        assert within_noise(cut.contains(absent).mean(), cut.expected_fpr, trials)
        assert cut.expected_fpr == pytest.approx(predicted, rel=0.03)
    with pytest.raises(ValueError, match="bits must be from 0 to 200000, not 200001"):
        f.truncate(200_001)
    with pytest.raises(ValueError, match="layout must be 'standard' or 'segmented' to truncate"):
        tamis.Bloom.build([1], fpr=0.1).truncate(1)


def test_a_prefix_of_segments_errs_less_than_one_of_a_standard_filter():
    """By Jensen's gap (Mersy et al. 2024, Eq. 3 and 4)."""
    standard, segmented = (planning.BloomSize(layout, 100_000, 7) for layout in LAYOUTS[1:])
    for kept in (14_286, 50_000, 90_000):
        ratio = standard.truncated_rate(10_000, kept) / segmented.truncated_rate(10_000, kept)
        assert 1.05 < ratio < 1.6


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unions_and_intersections(layout):
    f, g, both = (tamis.Bloom(6000, fpr=0.01, layout=layout) for _ in range(3))
    f.update(range(3000))
    g.update(range(2000, 5000))
    both.update(range(5000))
    union, common = f | g, f & g
    # Equal in every byte but the number of keys, which a union can only estimate.
    assert union.to_bytes()[200:] == both.to_bytes()[200:]
    assert len(union) == pytest.approx(5000, rel=0.03)
    assert common.contains(range(2000, 3000)).all()
    assert len(common) == pytest.approx(1000, abs=150)
    trials = 200_000
    measured = common.contains(np.arange(10_000, 10_000 + trials)).mean()
    assert within_noise(measured, common.expected_fpr, trials)
    assert common.expected_fpr < f.expected_fpr
    with pytest.raises(tamis.IncompatibleError, match="only if they have the same size: "):
        f & tamis.Bloom(7000, fpr=0.01, layout=layout)
    with pytest.raises(TypeError):
        f & 5
    assert len(f | f) == pytest.approx(3000, rel=0.03)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cardinality(layout):
    f = tamis.Bloom(50_000, fpr=0.01, layout=layout)
    assert f.cardinality() == 0
    for n in (1000, 10_000, 50_000):
        f.update(np.arange(n))
        assert f.cardinality() == pytest.approx(n, rel=5 / n**0.5)
        assert len(f) == pytest.approx(n, rel=0.01)
    full = native("standard", 1, 1)
    full.add(1)
    assert full.cardinality() == float("inf")
    assert 1 <= len(full | full) <= 2


def test_adding_a_present_key_changes_nothing():
    f = tamis.Bloom(100, fpr=0.01)
    f.add("a")
    before = f.to_bytes()
    f.add("a")
    f.update(["a", b"a"])
    assert f.to_bytes() == before
    assert len(f) == 1


def test_layouts_that_are_not():
    with pytest.raises(
        ValueError, match="layout must be 'blocked', 'standard' or 'segmented', not 'round'"
    ):
        tamis.Bloom(10, fpr=0.1, layout="round")
    with pytest.raises(
        ValueError,
        match="fpr must be at least 1e-10 for a blocked filter, not 1e-13; use another layout",
    ):
        tamis.Bloom(10, fpr=1e-13)


def test_parallel_and_serial_builds_agree():
    """Above 2**18 keys a build runs on all cores; the filter must not tell."""
    keys = np.random.default_rng(5).integers(0, 2**63, 600_000)
    f = tamis.Bloom.build(keys, bits_per_key=9)
    g = tamis.Bloom(len(f), bits_per_key=9)
    for part in np.array_split(keys, 7):
        g.update(part)
    # Equal in every byte but the number of keys: `add` does not count what changes no bit.
    assert f.to_bytes()[256:] == g.to_bytes()[256:]
    assert f.size_in_bits == g.size_in_bits
    assert f.contains(keys).all()


@pytest.mark.parametrize("layout", ["standard", "segmented"])
def test_what_was_cut_differently_merges_to_what_both_keep(layout):
    """Mersy et al. 2024, section 5.4: union and intersection by the shorter prefix."""
    f = tamis.Bloom.build(range(600), bits_per_key=10, layout=layout, seed=3)
    g = tamis.Bloom(600, bits_per_key=10, layout=layout, seed=3)
    g.update(range(400, 1000))
    for kept, other in ((4000, 5001), (5001, 4000), (6000, 77), (0, 6000)):
        a, b = f.truncate(kept), g.truncate(other)
        least = min(kept, other)
        for merged, whole in ((a | b, f | g), (a & b, f & g)):
            assert merged.size_in_bits == least
            cut = whole.truncate(least)
            keys = np.arange(-2000, 1200)
            assert (merged.contains(keys) == cut.contains(keys)).all()
            assert tamis.from_bytes(merged.to_bytes()).expected_fpr == merged.expected_fpr
        assert (a | b).contains(range(1000)).all()
        assert (a & b).contains(range(400, 600)).all()


MANY = 1_200_000
"""More keys than are counted."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_keys_are_estimated(layout):
    distinct = np.arange(MANY)
    keys = np.repeat(distinct, 2)
    capacity = math.ceil(1.01 * hyperloglog(tamis.hash_keys(distinct)[:, 1]))
    assert MANY < capacity < 1.02 * MANY
    f = tamis.Bloom.build(keys, fpr=0.01, layout=layout)
    assert f.capacity == capacity
    assert f._size == planning.size(capacity, fpr=0.01, layout=layout)
    assert f.contains(distinct).all()
    assert len(f) == round(f.cardinality()) == pytest.approx(MANY, rel=1e-3)
    assert 0.009 < f.expected_fpr <= 0.01
    shuffled = np.random.default_rng(1).permutation(keys)
    for same in (shuffled, shuffled.tolist(), pa.chunked_array([keys[:999], keys[999:]])):
        assert tamis.Bloom.build(same, fpr=0.01, layout=layout).to_bytes() == f.to_bytes()


def test_many_distinct_keys_take_no_more_than_they_are():
    f = tamis.Bloom.build(np.arange(MANY), bits_per_key=10)
    assert f.capacity == MANY
    assert f.size_in_bits <= 10 * MANY


def test_few_keys_are_counted_however_often_they_come():
    f = tamis.Bloom.build(np.arange(3000).repeat(500), fpr=0.01)
    assert (len(f), f.capacity) == (3000, 3000)


def test_keys_chosen_to_deceive_the_estimate_are_counted():
    """Without hashes of high rank, the estimate stays at 1.5 million."""
    keys = np.arange(3_000_000)
    hashes = tamis.hash_keys(keys)[:, 1]
    keys = keys[hashes % 16 != 0]
    assert 2**20 < hyperloglog(hashes[hashes % 16 != 0]) < 0.6 * len(keys)
    f = tamis.Bloom.build(keys, fpr=0.01)
    assert (len(f), f.capacity) == (len(keys), len(keys))
    assert f.expected_fpr <= 0.0101
