"""Stable Bloom filters: as their twin, as the formulas say, and for ever."""

import threading

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from reference import frame, hash_key, parts
from scipy.special import gammainc

import tamis
from tamis import _native
from tamis.planning import stable as planning
from tamis.planning.stable import StableSize
from tamis.testing.filters import within_noise


def made(size, decrement="adjacent", seed=0):
    kernel = _native.StableBloom._empty(StableSize(*size), decrement == "independent", 1000, seed)
    return tamis.StableBloom._of(kernel)


@given(
    cells=st.integers(1, 300),
    most=st.integers(1, 7),
    hashes=st.integers(1, 9),
    lowered=st.integers(1, 300),
    independent=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
    keys=st.lists(st.integers(0, 50), max_size=120),
    cut=st.integers(0, 120),
)
def test_is_its_twin(cells, most, hashes, lowered, independent, seed, keys, cut):
    lowered = min(lowered, cells)
    f = made((cells, most, hashes, lowered), "independent" if independent else "adjacent", seed)
    twin = reference.Stable(cells, most, hashes, lowered, independent, seed)
    answers = [twin.seen(hash_key(key, seed)) for key in keys]
    got = [*f.seen_many(keys[:cut]).tolist(), *(f.seen(key) for key in keys[cut:])]
    assert got == answers
    asked = list(range(60))
    assert f.contains(asked).tolist() == [twin.contains(hash_key(key, seed)) for key in asked]
    assert [key in f for key in asked] == f.contains(asked).tolist()
    values = [cells, most, hashes, lowered, int(independent), twin.random]
    data = frame(12, 1, seed, len(keys), 1000, values, [(1, 0, twin.words())])
    assert f.to_bytes() == data
    again = tamis.from_bytes(data)
    assert again.seen_many(asked).tolist() == f.seen_many(asked).tolist()
    full = np.count_nonzero(twin.values) / cells
    assert tamis.from_bytes(data).expected_fpr == pytest.approx(full**hashes)


def test_order_of_the_stream_is_kept_in_a_batch():
    f = tamis.StableBloom(100, fpr=0.01, bits=2**12)
    assert f.seen_many(["a", "b", "a", "a", "c", "b"]).tolist() == [0, 0, 1, 1, 0, 1]


@pytest.mark.parametrize("decrement", ["adjacent", "independent"])
@pytest.mark.parametrize("size", [(3000, 1, 3, 11), (4001, 3, 4, 37), (2000, 7, 5, 60)])
def test_converges_to_the_limit_and_stays(size, decrement):
    """The rate as it is stored, over time, about the limit: below before, near it after."""
    size = StableSize(*size)
    f = made(size, decrement)
    limit = planning.limit_rate(size)
    assert f.stable_fpr == limit
    f.update(np.arange(200))
    predicted = planning.rate_after(size, 200)
    assert 0.6 * predicted < f.expected_fpr < 1.6 * predicted
    start = 20 * size.cells
    f.update(np.arange(200, start))
    rates = []
    for _ in range(150):
        f.update(np.arange(start, start + size.cells // 4))
        start += size.cells // 4
        rates.append(f.expected_fpr)
    # States a quarter of the cells' number apart are nearly independent; a batch is a few percent
    # off (and its mean a little up: the rate is convex in the share of zeros).
    assert abs(np.mean(rates) / limit - 1) < 0.04 + 4 * np.std(rates) / limit / 150**0.5
    assert max(rates) < 2 * limit
    measured = f.contains(np.arange(10**9, 10**9 + 400_000)).mean()
    assert within_noise(measured, f.expected_fpr, 400_000)


def denied_at(f, gap, insertions=150_000, step=50):
    """The share of keys that are denied about ``gap`` insertions after they came."""
    warm = 4 * gap + 20_000
    f.update(np.arange(warm))
    denied = asked = 0
    for first in range(warm, warm + insertions, step):
        f.update(np.arange(first, first + step))
        then = first - gap + step // 2
        answers = f.contains(np.arange(then, then + step))
        denied += step - int(answers.sum())
        asked += step
    return denied / asked


@pytest.mark.parametrize("decrement", ["adjacent", "independent"])
@pytest.mark.parametrize(
    ("size", "gap"),
    [((2**14, 1, 3, 11), 500), ((2**13, 3, 4, 37), 400), ((2**13, 7, 4, 60), 900)],
)
def test_denies_what_the_formula_says(size, gap, decrement):
    size = StableSize(*size)
    predicted = planning.false_negatives(size, gap)
    assert 0.1 < predicted < 0.95
    measured = denied_at(made(size, decrement), gap)
    assert abs(measured - predicted) < 0.02


def test_formulas_meet_where_they_should():
    for size in (
        StableSize(5000, 1, 6, 12),
        StableSize(3000, 3, 4, 30),
        StableSize(4000, 7, 3, 60),
    ):
        zeros = planning.zeros_limit(size)
        assert planning.zeros_after(size, 10**6) == pytest.approx(zeros, rel=1e-3)
        assert planning.faded(size, 10**6) == pytest.approx(zeros, rel=1e-9)
        assert planning.faded(size, size.max_value - 1) == 0
        assert planning.faded_printed(size, 700, size.hashes / size.cells) == pytest.approx(
            planning.faded(size, 700), rel=0.05
        )
        # The limit of many cells, as a gamma function.
        wide = StableSize(size.cells * 1000, *size[1:])
        events = (size.hashes + size.decrements) * 0.3
        expected = planning.zeros_limit(wide) * gammainc(size.max_value, events)
        assert planning.faded(wide, 0.3 * wide.cells) == pytest.approx(expected, rel=1e-3)
        lowered = planning.decrements(size.hashes, size.max_value, planning.limit_rate(wide))
        assert lowered == pytest.approx(size.decrements, rel=1e-3)
        changes = [planning.rate_after(size, n) for n in (0, 100, 1000, 10_000)]
        assert changes == sorted(changes)


def test_sizes_are_the_best_among_their_neighbours():
    for bits, fpr, gap in ((2**16, 0.01, 2000), (2**14, 0.05, 1000), (2**18, 0.001, 3000)):
        best = planning.size(bits, fpr, gap)
        assert best.bits <= bits
        assert planning.limit_rate(best) <= fpr
        lowest = planning.false_negatives(best, gap)
        for most in range(1, 8):
            for hashes in range(1, 13):
                cells = bits // planning.counter_bits(most)
                for lowered in range(1, 200):
                    other = StableSize(cells, most, hashes, lowered)
                    if planning.limit_rate(other) <= fpr:
                        assert planning.false_negatives(other, gap) >= lowest * 0.995
                        break
    with pytest.raises(ValueError, match=r"bits must be at least 64 for a stable filter .* not 8"):
        planning.size(8, 0.01, 100)


def test_refuses_bad_arguments():
    stable = tamis.StableBloom
    with pytest.raises(ValueError, match="pass exactly one of bits or fnr"):
        stable(100, fpr=0.1)
    with pytest.raises(ValueError, match="pass exactly one of bits or fnr"):
        stable(100, fpr=0.1, bits=1000, fnr=0.1)
    for fpr in (0, 1, -0.1, float("nan")):
        with pytest.raises(ValueError, match="fpr must be"):
            stable(100, fpr=fpr, bits=1000)
    for fnr in (0, 1, float("nan")):
        with pytest.raises(ValueError, match="fnr must be"):
            stable(100, fpr=0.1, fnr=fnr)
    with pytest.raises(ValueError, match=r"gap must be from 0 to \d+, not -1"):
        stable(-1, fpr=0.1, bits=1000)
    with pytest.raises(
        ValueError, match="decrement must be 'adjacent' or 'independent', not 'both'"
    ):
        stable(100, fpr=0.1, bits=1000, decrement="both")
    for size, message in (
        ((0, 1, 1, 1), "cells must be .* not 0"),
        ((100, 8, 1, 1), "max must be .* not 8"),
        ((100, 1, 33, 1), "hashes must be .* not 33"),
        ((100, 1, 3, 101), "decrements must be .* not 101"),
    ):
        with pytest.raises(ValueError, match=message):
            made(size)
    f = stable(100, fpr=0.1, bits=1000)
    before = f.to_bytes()
    with pytest.raises(TypeError):
        f.seen_many([1, 2, None])
    assert f.to_bytes() == before


def test_counters_that_lie_are_refused():
    kind, hash_id, tag, count, capacity, values, [(type_, piece, content)] = parts(
        made((70, 5, 3, 9)).to_bytes()
    )

    def opened(content):
        lying = [(type_, piece, bytes(content))]
        return tamis.from_bytes(frame(kind, hash_id, tag, count, capacity, values, lying))

    above = bytearray(content)
    for plane in range(3):  # 7 in a cell, of a filter with counters to 5
        above[8 * plane] |= 1
    past = bytearray(content)
    past[24 + 5] |= 1  # a cell past the 70th
    for bad in (above, past):
        with pytest.raises(tamis.FormatError, match="above the maximum, or past the end"):
            opened(bad)


def test_a_key_that_just_came_is_never_denied_by_another_thread():
    """Counters pass from one value to another word by word, and no reader sees a zero between."""
    f = made((128, 5, 1, 1))
    stop, zeros = threading.Event(), []

    def ask():
        while not stop.is_set():
            if not all(f.contains(["kept"] * 500)):
                zeros.append(1)

    f.add("kept")
    reader = threading.Thread(target=ask)
    reader.start()
    for _ in range(3000):
        f.seen_many(["kept", "other"] * 20)
    stop.set()
    reader.join()
    assert not zeros
