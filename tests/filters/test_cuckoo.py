"""What is particular to cuckoo filters: any size, exact refusal, copies, deletion, short prints."""

from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from reference import Cuckoo as Twin
from reference import TruncatedCuckoo, frame, hash_key, parts

import tamis
from tamis import _native
from tamis.planning import cuckoo as planning
from tamis.testing.filters import within_noise


def native(chunks, buckets, fingerprint_bits, near, capacity=10**6):
    return tamis.Cuckoo._of(
        _native.Cuckoo._empty(
            planning.CuckooSize(chunks, buckets, fingerprint_bits, near), capacity
        )
    )


sizes = st.tuples(
    st.integers(1, 3), st.integers(1, 9).map(lambda n: 2 * n), st.integers(1, 32), st.integers(1, 6)
)


@given(sizes, st.lists(st.integers(0, 200), max_size=150))
def test_refuses_exactly_what_cannot_be_arranged(size, keys):
    """One by one: a key is refused if and only if no arrangement fits all keys."""
    f, twin = native(*size), Twin(*size)
    for key in keys:
        identity = twin.identity(hash_key(key))
        twin.counts[identity] += 1
        if twin.fits():
            f.add(key)
        else:
            before = f.to_bytes()
            with pytest.raises(tamis.CapacityError, match="the key does not fit"):
                f.add(key)
            assert f.to_bytes() == before
            twin.counts -= {identity: 1}
    assert len(f) == twin.counts.total()


class Lifetime(RuleBasedStateMachine):
    """A filter through insertions, refusals, deletions and files, beside its twin."""

    def __init__(self):
        super().__init__()
        self.filter, self.twin = native(2, 6, 9, 1), Twin(2, 6, 9, 1)

    def identity(self, key):
        return self.twin.identity(hash_key(key))

    @rule(keys=st.lists(st.integers(0, 60), max_size=20))
    def insert(self, keys):
        before = self.filter.to_bytes()
        try:
            self.filter.update(keys)
        except tamis.CapacityError:
            assert self.filter.to_bytes() == before
        else:
            self.twin.counts.update(map(self.identity, keys))

    @rule(key=st.integers(0, 60))
    def remove(self, key):
        if self.identity(key) in self.twin.counts:
            self.filter.remove(key)
            self.twin.counts -= {self.identity(key): 1}
        else:
            with pytest.raises(KeyError):
                self.filter.remove(key)

    @rule()
    def reopen(self):
        self.filter = tamis.from_bytes(self.filter.to_bytes())

    @invariant()
    def agree(self):
        asked = range(120)
        answers = [self.identity(key) in self.twin.counts for key in asked]
        assert self.filter.contains(asked).tolist() == answers
        assert len(self.filter) == self.twin.counts.total()
        fingerprints = 2 * 6 * (2**9 - 1)
        assert self.filter.expected_fpr == pytest.approx(2 * len(self.twin.counts) / fingerprints)


TestLifetime = Lifetime.TestCase
TestLifetime.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_every_capacity_takes_its_keys():
    for capacity in range(2001):
        keys = np.arange(capacity) + 10_000 * capacity
        f = tamis.Cuckoo(capacity, fpr=0.01)
        f.update(keys)
        g = tamis.Cuckoo.build(keys, fpr=0.01)
        assert len(f) == len(g) == capacity
        assert f.size_in_bits == g.size_in_bits
        assert f.contains(keys).all()
        assert g.contains(keys).all()
        assert f.size_in_bits <= f.fingerprint_bits * (1.0527 * capacity + 36) + 64


@pytest.mark.parametrize("fingerprint_bits", range(4, 33))
def test_every_length_at_full_load(fingerprint_bits):
    for n in (5, 100, 3000, 123_456):
        keys = np.arange(n)
        f = tamis.Cuckoo(n, fingerprint_bits=fingerprint_bits)
        f.update(keys)
        assert f.contains(keys).all()
        assert f.fingerprint_bits == fingerprint_bits
        if n > 100_000:
            assert f.load >= 0.95
            assert f.bits_per_key <= fingerprint_bits / 0.95
            assert f.expected_fpr == pytest.approx(f._size.rate(n), rel=0.005)


@pytest.mark.parametrize("fingerprint_bits", [1, 2, 3])
def test_short_fingerprints_go_as_far_as_they_go(fingerprint_bits):
    for n in (1, 10, 1000, 1_000_000):
        f = tamis.Cuckoo(n, fingerprint_bits=fingerprint_bits)
        f.update(np.arange(n))
        assert f.contains(np.arange(n)).all()
        absent = np.arange(10**9, 10**9 + 100_000)
        assert within_noise(f.contains(absent).mean(), f.expected_fpr, len(absent))
    assert f.expected_fpr == pytest.approx(f._size.rate(n), rel=0.01)


@pytest.mark.parametrize("keys", [10, 1000, 30_000, 10**6, 10**8])
def test_a_rate_leaves_no_identity_with_more_keys_than_two_buckets_hold(keys):
    for fpr in (0.9, 0.3, 0.1, 0.01):
        size = planning.size(keys, fpr=fpr)
        assert size.overfull(keys) <= 1e-3
        shorter = planning.size(keys, fingerprint_bits=size.fingerprint_bits - 1)
        assert (
            size.fingerprint_bits == 4 or shorter.rate(keys) > fpr or shorter.overfull(keys) > 1e-3
        )


def test_overfull_identities_are_as_many_as_predicted():
    keys, found = 20_000, 0
    size = planning.CuckooSize(1, 1000, 4)
    for seed in range(3):
        twin = Twin(size.chunks, size.buckets, size.fingerprint_bits, size.near)
        hashes = tamis.hash_keys(np.arange(keys), seed=seed).tolist()
        sharing = Counter(twin.identity(hash) for hash in hashes)
        found += sum(count > 8 for count in sharing.values())
    expected = 3 * size.overfull(keys)
    assert abs(found - expected) < 4 * expected**0.5


def test_size():
    n = 1_000_000
    for fingerprint_bits in (4, 8, 12, 13, 17):
        f = tamis.Cuckoo.build(np.arange(n), fingerprint_bits=fingerprint_bits)
        assert f.bits_per_key <= fingerprint_bits / 0.95
        assert f.load >= 0.95


def test_rate_with_large_samples():
    n, trials = 300_000, 3_000_000
    for fingerprint_bits in (4, 7, 12, 16, 17):
        f = tamis.Cuckoo.build(np.arange(n), fingerprint_bits=fingerprint_bits, seed=5)
        absent = np.arange(2**40, 2**40 + trials)
        assert within_noise(f.contains(absent).mean(), f.expected_fpr, trials)


def test_copies_of_a_key_fill_its_two_buckets():
    f = tamis.Cuckoo(1000, fpr=0.01)
    for _ in range(8):
        f.add("ada")
    before = f.to_bytes()
    for more in (lambda: f.add("ada"), lambda: f.update(["grace", "alan", "ada"])):
        with pytest.raises(tamis.CapacityError, match="of 1072 slots are in use"):
            more()
        assert f.to_bytes() == before
    for copies in range(8, 0, -1):
        assert len(f) == copies
        assert "ada" in f
        f.remove("ada")
    assert "ada" not in f
    with pytest.raises(KeyError):
        f.remove("ada")


def test_keys_move_and_none_is_lost():
    """Filled to the last slot that an arrangement has, then emptied in another order."""
    f = tamis.Cuckoo(20_000, fpr=0.001)
    rng = np.random.default_rng(3)
    keys = rng.integers(0, 2**63, 20_000).tolist()
    f.update(keys)
    with pytest.warns(tamis.CapacityWarning):
        f.add("one more")
    f.remove("one more")
    refused = 0
    for key in rng.integers(0, 2**63, 1500).tolist():
        try:
            f.add(key)
            keys.append(key)
        except tamis.CapacityError:
            refused += 1
    assert refused > 0
    assert f.load > 0.975
    assert f.contains(keys).all()
    assert len(f) == len(keys)
    rng.shuffle(keys)
    for key in keys:
        f.remove(key)
    assert len(f) == 0
    assert f.expected_fpr == 0


def test_build_takes_more_buckets_where_the_plan_fails(monkeypatch):
    """If a plan is too small, the build tries the next; after the last one it raises."""
    plan = planning.size

    def late(keys, *, attempt=0, **how):
        return plan(keys if attempt >= 3 else keys // 2, attempt=attempt, **how)

    monkeypatch.setattr(planning, "size", late)
    f = tamis.Cuckoo.build(range(5000), fpr=0.01)
    assert len(f) == 5000
    assert f.size_in_bits == plan(5000, fpr=0.01, attempt=3).bits
    monkeypatch.setattr(planning, "size", lambda keys, **how: plan(keys // 3, fpr=0.01))
    with pytest.raises(tamis.BuildError, match="5000 keys do not fit"):
        tamis.Cuckoo.build(range(5000), fpr=0.01)


@settings(deadline=None)
@given(sizes, st.lists(st.integers(0, 200), max_size=40), st.data())
def test_truncated_answers_as_its_twin(size, keys, data):
    f = native(*size)
    for key in keys:
        with suppress(tamis.CapacityError):
            f.add(key)
    before = f.to_bytes()
    kept = data.draw(st.integers(1, f.fingerprint_bits))
    cut = f.truncate(data.draw(st.integers(kept, f.fingerprint_bits))).truncate(kept)
    assert f.to_bytes() == before
    assert cut.to_bytes() == f.truncate(kept).to_bytes()
    if kept == f.fingerprint_bits:
        assert cut.to_bytes() == before
        return
    *_, values, ((_, _, content),) = parts(cut.to_bytes())
    assert values == [*size, kept]
    twin = TruncatedCuckoo(values, content)
    asked = range(400)
    assert cut.contains(asked).tolist() == [twin.contains(hash_key(key)) for key in asked]
    assert [key in cut for key in asked] == cut.contains(asked).tolist()
    assert len(cut) == len(f) == sum(held > 0 for held in twin.slots)
    if f.fingerprint_bits <= 9:
        assert cut.expected_fpr == pytest.approx(twin.rate())
    again = tamis.from_bytes(cut.to_bytes())
    assert again.to_bytes() == cut.copy().to_bytes() == cut.to_bytes()


@pytest.mark.parametrize(("n", "bits"), [(30, 9), (3000, 16), (100_000, 20)])
def test_truncated_to_every_length(n, bits):
    """No key denied, and the rate as expected, above and below; a bit less doubles it."""
    trials = 100_000
    keys, absent = np.arange(n), np.arange(10**9, 10**9 + trials)
    f = tamis.Cuckoo.build(keys, fingerprint_bits=bits)
    last = f.expected_fpr
    for kept in range(bits - 1, 0, -1):
        cut = f.truncate(kept)
        assert cut.contains(keys).all()
        assert cut.fingerprint_bits == kept
        assert (len(cut), cut.load, cut.capacity) == (n, f.load, f.capacity)
        assert cut.size_in_bits == f._size._replace(fingerprint_bits=kept).bits
        assert within_noise(cut.contains(absent).mean(), cut.expected_fpr, trials)
        assert last < cut.expected_fpr <= 1
        if kept >= 8 and n > 1000:
            assert cut.expected_fpr == pytest.approx(2 * last, rel=0.03)
            # All but as good as one that was built with fingerprints so short.
            assert cut.expected_fpr <= 1.03 * cut._size.rate(n)
        last = cut.expected_fpr


def test_a_truncated_filter_is_for_reading():
    f = tamis.Cuckoo.build(range(100), fingerprint_bits=12)
    cut = f.truncate(5)
    before = cut.to_bytes()
    for change in (lambda: cut.add(1), lambda: cut.update([1, 2]), lambda: cut.remove(1)):
        with pytest.raises(ValueError, match="truncated from 12 bits of each fingerprint to 5"):
            change()
    assert cut.to_bytes() == before
    assert "5-bit fingerprints cut from 12" in repr(cut)
    f.truncate(12).remove(1)  # nothing was cut
    assert len(f) == 100
    assert tamis.Cuckoo(0, fingerprint_bits=8).truncate(1).expected_fpr == 0
    for wrong in (0, -1, 6):
        with pytest.raises(ValueError, match=f"fingerprint_bits must be from 1 to 5, not {wrong}"):
            cut.truncate(wrong)
    with pytest.raises(TypeError, match=r"fingerprint_bits must be an int, not 2\.5 \(float\)"):
        cut.truncate(2.5)


def test_truncated_frames_that_lie():
    """Any bits are a filter of some keys, if the sizes and the count agree with them."""
    good = tamis.Cuckoo.build(range(60), fingerprint_bits=9).truncate(5).to_bytes()
    *head, count, capacity, values, contents = parts(good)
    for kept in (0, 4, 6, 9, 10, 2**32 + 5, 2**64 - 1):
        with pytest.raises(tamis.FormatError, match="cuckoo filter is damaged"):
            tamis.from_bytes(frame(*head, count, capacity, [*values[:4], kept], contents))
    for lie in (values[:4], [*values, 1], [*values[:2], 5, *values[3:]]):
        with pytest.raises(tamis.FormatError, match="cuckoo filter is damaged"):
            tamis.from_bytes(frame(*head, count, capacity, lie, contents))
    for bits in (6, 32):  # fingerprints that were longer: another filter, within bounds
        lie = [*values[:2], bits, *values[3:]]
        f = tamis.from_bytes(frame(*head, count, capacity, lie, contents))
        assert 0 < f.contains(range(1000)).mean() < 1
        assert 0 < f.expected_fpr < 1
    for at in range(len(good)):
        for bad in (good[:at], good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :]):
            with pytest.raises(tamis.FormatError):
                tamis.from_bytes(bad)


def test_sizes_that_cannot_be():
    for wrong in (0, -1, 33):
        with pytest.raises(ValueError, match=f"fingerprint_bits must be from 1 to 32, not {wrong}"):
            tamis.Cuckoo(1000, fingerprint_bits=wrong)
    with pytest.raises(
        ValueError, match="pass exactly one of fpr, bits_per_key or fingerprint_bits"
    ):
        tamis.Cuckoo(1000, fpr=0.01, fingerprint_bits=8)
    with pytest.raises(
        ValueError,
        match=r"bits_per_key must be at least 4\.21 for a cuckoo filter of 10000 keys, not 4",
    ):
        tamis.Cuckoo(10_000, bits_per_key=4)
    with pytest.raises(
        ValueError,
        match=r"fpr must be at least 1\.7e-09 for a cuckoo filter of 1000 keys, not 1e-12",
    ):
        tamis.Cuckoo(1000, fpr=1e-12)


def test_planned_sizes():
    """The shortest fingerprints for a rate; the longest for a budget."""
    for keys in (1, 60, 5000, 10**6):
        for fpr in (0.3, 0.01, 2**-12, 1e-8):
            size = planning.size(keys, fpr=fpr)
            assert size.rate(keys) <= fpr
            shorter = size._replace(fingerprint_bits=size.fingerprint_bits - 1)
            assert size.fingerprint_bits == 4 or shorter.rate(keys) > fpr
        if keys < 64:  # too few for a budget to say more than the length of fingerprints
            assert planning.size(keys, bits_per_key=13).fingerprint_bits == 12
            continue
        budget = 14.5
        size = planning.size(keys, bits_per_key=budget)
        assert size.bits <= budget * keys
        longer = planning.size(keys, fingerprint_bits=min(32, size.fingerprint_bits + 1))
        assert longer.bits > budget * keys or size.fingerprint_bits == 32
