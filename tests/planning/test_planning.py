"""Predicted rates against enumeration, and optima against their neighbours."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tamis
from tamis.planning import bloom, quotient
from tamis.planning.bloom import BloomSize

LAYOUTS = ["blocked", "standard", "segmented"]


def occupancy(bins, throws):
    """The distribution of the number of occupied bins, by a Markov chain."""
    state = np.zeros(bins + 1)
    state[0] = 1
    for _ in range(throws):
        stay = np.arange(bins + 1) / bins
        state = state * stay + np.concatenate(([0.0], (state * (1 - stay))[:-1]))
    return state


@pytest.mark.parametrize(("bits", "hashes", "keys"), [(5, 2, 3), (64, 3, 10), (300, 7, 30)])
def test_standard_rate_by_enumeration(bits, hashes, keys):
    exact = (occupancy(bits, hashes * keys) * (np.arange(bits + 1) / bits) ** hashes).sum()
    assert BloomSize("standard", bits, hashes).rate(keys) == pytest.approx(exact, rel=0.02)


def blocked_rate_by_simulation(keys, blocks, hashes, trials):
    """Mean and standard error over filters of random hashes, by the kernel's own exact rate."""
    size = BloomSize("blocked", 512 * blocks, hashes)
    rates = []
    for seed in range(trials):
        f = tamis.Bloom._of(tamis._native.Bloom._empty(size, keys, seed))
        f.update(np.arange(keys))
        rates.append(f.expected_fpr)
    return np.mean(rates), np.std(rates) / math.sqrt(trials)


@pytest.mark.parametrize("hashes", [1, 2, 5, 6, 8, 9, 12, 16])
def test_blocked_rate_by_simulation(hashes):
    for keys, blocks in ((40, 1), (500, 11)):
        mean, error = blocked_rate_by_simulation(keys, blocks, hashes, 400)
        assert abs(BloomSize("blocked", 512 * blocks, hashes).rate(keys) - mean) < 5 * error


def test_blocked_rate_of_one_key_by_enumeration():
    """One key, one block, k = 2: the absent key must share a word and a bit twice over."""
    shared = 0.0
    for first, other in itertools.product(range(8), repeat=2):
        mine = {first, (first + 1) % 8}
        asked = {other, (other + 1) % 8}
        shared += (1 / 64) ** 2 * (asked <= mine) / 64
    assert BloomSize("blocked", 512, 2).rate(1) == pytest.approx(shared, rel=1e-9)


@given(
    st.sampled_from(LAYOUTS),
    st.integers(1, 10**7),
    st.floats(-16, -0.2).map(lambda exponent: 2.0**exponent),
)
def test_no_neighbour_is_better(layout, keys, fpr):
    size = bloom.size(keys, fpr=fpr, layout=layout)
    unit = 512 if layout == "blocked" else 1
    rate = size.rate(keys)
    assert rate <= fpr
    for hashes in (size.hashes - 1, size.hashes + 1):
        if 1 <= hashes <= min(bloom.MAX_HASHES[layout], size.bits):
            assert BloomSize(layout, size.bits, hashes).rate(keys) >= rate
    if size.bits > unit:
        fewer = size.bits - unit
        for hashes in range(max(1, size.hashes - 2), size.hashes + 2):
            if hashes <= min(fewer, bloom.MAX_HASHES[layout]):
                assert BloomSize(layout, fewer, hashes).rate(keys) > fpr


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bits_per_key", [0.5, 3, 8, 10, 16])
def test_the_best_number_of_hashes_of_all(layout, bits_per_key):
    size = bloom.size(5000, bits_per_key=bits_per_key, layout=layout)
    every = range(1, bloom.MAX_HASHES[layout] + 1)
    rates = [BloomSize(layout, size.bits, hashes).rate(5000) for hashes in every]
    assert size.hashes == 1 + rates.index(min(rates))


def test_known_points():
    """The textbook at the size where it holds, and what blocks cost."""
    textbook = (1 - math.exp(-7 / 10)) ** 7
    for layout in ("standard", "segmented"):
        assert BloomSize(layout, 10**7, 7).rate(10**6) == pytest.approx(textbook, rel=1e-4)
    blocked = BloomSize("blocked", 19_532 * 512, 6).rate(10**6)
    assert 1.1 * textbook < blocked < 1.25 * textbook


def test_quotient_sizes():
    assert quotient.size(0, fpr=0.01).quotients == 64
    for keys in (1, 60, 61, 10_000, 123_456, 10**7):
        for r in (1, 8, 20):
            size = quotient.size(keys, fpr=2.0**-r)
            assert size.remainder_bits <= r
            assert size.rate(keys) <= 2.0**-r
            shorter = quotient.QuotientSize(size.quotients, size.remainder_bits - 1)
            assert size.remainder_bits == 1 or shorter.rate(keys) > 2.0**-r
    assert quotient.size(10**6, bits_per_key=200).remainder_bits == 56
