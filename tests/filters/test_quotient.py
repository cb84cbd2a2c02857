"""What is particular to quotient filters: counts, deletion, growth, merging, fingerprints."""

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from reference import Quotient as Twin
from reference import hash_key

import tamis
from tamis import _native
from tamis.planning import quotient as planning
from tamis.testing.filters import within_noise


def native(quotients, remainder_bits, capacity):
    return tamis.Quotient._of(
        _native.Quotient._empty(planning.QuotientSize(quotients, remainder_bits), capacity)
    )


def stored(f):
    """The multiset of fingerprints as {fingerprint: count}."""
    quotients, remainders, counts = (column.tolist() for column in f.fingerprints())
    numbers = [q << f.remainder_bits | r for q, r in zip(quotients, remainders, strict=True)]
    assert numbers == sorted(set(numbers))
    return dict(zip(numbers, counts, strict=True))


@given(
    st.integers(1, 200),
    st.sampled_from([1, 2, 3, 7, 8, 9, 13, 31, 56]),
    st.lists(st.integers(0, 80), max_size=150),
    st.lists(st.integers(0, 80), max_size=60),
)
def test_holds_the_multiset_of_its_twin(quotients, remainder_bits, added, removed):
    f, twin = native(quotients, remainder_bits, 10**6), Twin(quotients, remainder_bits)
    f.update(added)
    for key in added:
        twin.add(hash_key(key))
    for key in removed:
        if twin.contains(hash_key(key)):
            f.remove(key)
            twin.remove(hash_key(key))
        else:
            with pytest.raises(KeyError):
                f.remove(key)
    assert stored(f) == dict(twin.counts)
    assert len(f) == sum(twin.counts.values())
    asked = range(200)
    assert f.contains(asked).tolist() == [twin.contains(hash_key(key)) for key in asked]
    assert [f.count(key) for key in asked] == [
        twin.counts[twin.fingerprint(hash_key(key))] for key in asked
    ]
    assert f.expected_fpr == pytest.approx(len(twin.counts) / (quotients << remainder_bits))
    assert tamis.from_bytes(f.to_bytes()).to_bytes() == f.to_bytes()


class Lifetime(RuleBasedStateMachine):
    """A filter through insertions, deletions, growth, merges and files, beside its twin."""

    def __init__(self):
        super().__init__()
        self.filter, self.twin = native(70, 12, 10**6), Twin(70, 12)

    @rule(keys=st.lists(st.integers(0, 50), max_size=40), times=st.integers(1, 30))
    def insert(self, keys, times):
        self.filter.update(keys * times)
        for key in keys * times:
            self.twin.add(hash_key(key))

    @rule(key=st.integers(0, 50))
    def remove(self, key):
        if self.twin.contains(hash_key(key)):
            self.filter.remove(key)
            self.twin.remove(hash_key(key))

    @precondition(lambda self: self.twin.remainder_bits > 6)
    @rule()
    def grow(self):
        self.filter.grow()
        self.twin.double()

    @rule()
    def reopen(self):
        self.filter = tamis.from_bytes(self.filter.to_bytes())

    @rule(keys=st.lists(st.integers(0, 50), max_size=40))
    def merge(self, keys):
        other = native(70, 12, 10**6)
        other.update(keys)
        self.filter = self.filter | other
        for key in keys:
            self.twin.add(hash_key(key))

    @invariant()
    def agree(self):
        assert stored(self.filter) == dict(self.twin.counts)


TestLifetime = Lifetime.TestCase
TestLifetime.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


def test_size():
    for n in (100_000, 1_000_000):
        for remainder_bits in (5, 8, 13):
            f = tamis.Quotient.build(np.arange(n), fpr=2.0**-remainder_bits)
            assert f.remainder_bits == remainder_bits
            assert f.bits_per_key <= (remainder_bits + 2.125) / 0.95


def test_rate_after_each_doubling():
    """Doubling keeps the rate; filling the new capacity doubles it. To the last remainder bit."""
    n, trials = 2000, 100_000
    f = tamis.Quotient(n, fpr=2**-5)
    absent = np.arange(10**9, 10**9 + trials)
    keys = 0
    for doublings in range(5):
        with pytest.warns(tamis.CapacityWarning) if doublings == 1 else nullcontext():
            f.update(np.arange(keys, n << doublings))
        keys = n << doublings
        assert (f.capacity, f.remainder_bits) == (keys, 5 - doublings)
        full = f._size.rate(keys)
        assert f.expected_fpr == pytest.approx(full, rel=0.05)
        assert within_noise(f.contains(absent).mean(), f.expected_fpr, trials)
        assert len(f) == keys
    assert f.contains(np.arange(keys)).all()
    before = f.to_bytes()
    more = np.arange(10**6, 10**6 + 5000)
    for call in (f.grow, lambda: f.update(more), lambda: f.update(more.tolist())):
        with pytest.raises(tamis.CapacityError, match="remainder"):
            call()
        assert f.to_bytes() == before, "a refused insertion left a trace"


@pytest.mark.filterwarnings("ignore::tamis.CapacityWarning")
@pytest.mark.parametrize("rate", [0.5, 0.2])
def test_a_batch_that_is_refused_midway_leaves_nothing(rate):
    """After thousands of keys a remainder has no bit left to double; those are taken out again."""
    pa = pytest.importorskip("pyarrow")
    f = tamis.Quotient(3000, fpr=rate)
    f.update(np.arange(1000))
    asked = np.arange(100_000)
    held, expected = f.contains(asked), f.expected_fpr
    more = np.arange(1000, 41_000)
    text = [f"key {i}" for i in range(40_000)]
    for batch in (more, more.tolist(), pa.array(more), text, pa.array(text), np.array(text)):
        with pytest.raises(tamis.CapacityError, match="cannot double"):
            f.update(batch)
        assert len(f) == 1000
        assert f.expected_fpr == expected
        assert (f.contains(asked) == held).all()
    f.update(more[:2000])
    assert f.contains(range(3000)).all()


@pytest.mark.parametrize("n", [1, 10, 61, 1000, 5000, 120_000])
def test_the_kernel_is_full_when_planning_says(n):
    f = tamis.Quotient(n, fpr=2**-40)  # no two keys share a fingerprint
    full = planning.max_slots(n, f.quotients)
    f.update(range(full))
    for each in (f, tamis.from_bytes(f.to_bytes())):
        assert (len(each), each.capacity) == (full, n)
        with pytest.warns(tamis.CapacityWarning):
            each.add(full)
        assert (len(each), each.capacity) == (full + 1, 2 * n)
    t = tamis.Telescoping(n, fpr=2**-20)
    assert planning.max_slots(n, t.quotients) == full
    t.update(range(full))
    for each in (t, tamis.from_bytes(t.to_bytes())):
        with pytest.raises(tamis.CapacityError):
            each.add(full)
        each.grow(tamis.stores.Hashes(range(full), seed=t.seed))
        assert each.capacity == 2 * n


def test_counts():
    f = tamis.Quotient(100, fpr=2**-20)
    for times in (1, 2, 3, 4, 100, 5000):
        f.update([f"key {times}"] * times)
    for times in (1, 2, 3, 4, 100, 5000):
        assert f.count(f"key {times}") == times
    assert f.count("absent") == 0
    assert len(f) == 5110
    f.remove("key 5000")
    assert f.count("key 5000") == 4999
    with pytest.raises(KeyError):
        f.remove("absent")
    with pytest.raises(TypeError, match="key is None"):
        f.count(None)


@given(
    st.integers(1, 200),
    st.sampled_from([1, 2, 3, 7, 8, 9, 13, 31, 56]),
    st.lists(st.tuples(st.integers(0, 80), st.sampled_from([1, 1, 2, 3, 20])), max_size=80),
    st.data(),
)
def test_truncated_is_what_short_remainders_would_have_been(quotients, bits, added, data):
    keys = [key for key, times in added for _ in range(times)]
    kept = data.draw(st.integers(1, bits))
    f, short, twin = (
        native(quotients, bits, 10**6),
        native(quotients, kept, 10**6),
        Twin(quotients, kept),
    )
    f.update(keys)
    short.update(keys)
    for key in keys:
        twin.add(hash_key(key))
    before = f.to_bytes()
    cut = f.truncate(data.draw(st.integers(kept, bits))).truncate(kept)
    assert f.to_bytes() == before
    assert cut.to_bytes() == short.to_bytes()
    assert stored(cut) == dict(twin.counts)
    assert len(cut) == len(keys)
    for key in dict.fromkeys(keys):
        cut.remove(key)
        twin.remove(hash_key(key))
    assert stored(cut) == dict(twin.counts)


@pytest.mark.parametrize("n", [30, 3000, 100_000])
def test_truncated_to_every_length(n):
    """No key denied, and the rate as expected, above and below; a bit less doubles it."""
    trials = 100_000
    keys, absent = np.arange(n), np.arange(10**9, 10**9 + trials)
    f = tamis.Quotient.build(keys, fpr=2**-16)
    last = f.expected_fpr
    for kept in range(f.remainder_bits - 1, 0, -1):
        cut = f.truncate(kept)
        assert cut.contains(keys).all()
        assert (len(cut), cut.remainder_bits, cut.capacity) == (n, kept, f.capacity)
        # Beside its remainder a slot has 2.125 bits; three keys that share one may take four.
        share = (kept + 2.125) / (f.remainder_bits + 2.125)
        assert cut.size_in_bits <= 1.03 * share * f.size_in_bits + 64
        assert within_noise(cut.contains(absent).mean(), cut.expected_fpr, trials)
        assert last < cut.expected_fpr <= 2 * last
        last = cut.expected_fpr


def test_a_truncated_filter_lives_on():
    f = tamis.Quotient(1000, fpr=2**-12)
    f.update([*range(500), *range(100)])
    cut = f.truncate(8)
    assert cut.count(5) >= 2
    cut.remove(5)
    with pytest.raises(KeyError):
        cut.remove("never there")
    other = tamis.Quotient(1000, fpr=2**-12)
    other.update(range(500, 900))
    both = cut | other.truncate(8)
    both.grow()
    assert (len(both), both.remainder_bits) == (999, 7)
    assert both.contains(range(900)).all()
    with pytest.warns(tamis.CapacityWarning):
        cut.update(range(1000, 4000))
    assert cut.contains(range(1000, 4000)).all()
    for wrong in (0, -1, 13):
        with pytest.raises(ValueError, match=f"remainder_bits must be from 1 to 12, not {wrong}"):
            f.truncate(wrong)


def test_merges_filters_that_grew():
    f, g = tamis.Quotient(1000, fpr=2**-10), tamis.Quotient(1000, fpr=2**-10)
    f.update(range(1000))
    with pytest.warns(tamis.CapacityWarning):
        g.update(range(500, 4000))
    both = f | g
    assert both.contains(range(4000)).all()
    assert len(both) == 4500
    assert both.capacity == 8000
    assert stored(both) == stored(g | f)
    assert both.count(700) >= 2
    twice = f | f
    assert len(twice) == 2000
    assert twice.count(1) == 2 * f.count(1)


def test_fingerprints_in_parts():
    f = tamis.Quotient.build(range(5000), fpr=0.01)
    whole = f.fingerprints()
    border = f.quotients // 3
    halves = zip(f.fingerprints(0, border), f.fingerprints(border), strict=True)
    for column, (first, second) in zip(whole, halves, strict=True):
        assert column.dtype == np.uint64
        assert (np.concatenate([first, second]) == column).all()
    assert f.fingerprints(5, 5)[0].shape == (0,)
    with pytest.raises(ValueError, match="start must be 0, 1 or 2, not 3"):
        f.fingerprints(3, 2)
    with pytest.raises(ValueError, match="stop must be from 0 to 5312, not 5313"):
        f.fingerprints(0, f.quotients + 1)


def test_budgets_that_cannot_be():
    with pytest.raises(
        ValueError,
        match=r"bits_per_key must be at least 3\.40 for a quotient filter of 1000 keys, not 2",
    ):
        tamis.Quotient(1000, bits_per_key=2)
    with pytest.raises(
        ValueError,
        match=r"fpr must be at least 1\.3e-17 for a quotient filter of 1000 keys, not 1e-30",
    ):
        tamis.Quotient(1000, fpr=1e-30)
