"""Adaptive cuckoo filters: no key denied, elements moved as their kind says, rates as predicted."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from reference import AdaptiveCuckoo as Twin
from reference import frame, hash_key, parts

import tamis
from tamis.planning import adaptive_cuckoo as planning
from tamis.testing.filters import within_noise

KINDS = [
    {"kind": "swapping"},
    {"kind": "cyclic", "selector_bits": 1},
    {"kind": "cyclic", "selector_bits": 2},
    {"kind": "cyclic", "selector_bits": 3},
    {"kind": "cuckooing"},
]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))


def ask(f, asked, batch=1024):
    wrong = 0
    for start in range(0, len(asked), batch):
        part = asked[start : start + batch]
        fooled = part[f.contains(part)]
        wrong += len(fooled)
        f.adapt_many(fooled)
    return wrong


@kinds
def test_mistakes_are_fixed(kind):
    n = 10_000
    f = tamis.AdaptiveCuckoo.build(range(n), fpr=2**-8, seed=2, **kind)
    asked = np.arange(n, 6 * n)
    wrong = asked[f.contains(asked)]
    assert within_noise(len(wrong) / len(asked), f.expected_fpr, len(asked))
    # A random walk moves more than it must: it fixes what others asked for, and unfixes it.
    walks = kind["kind"] == "cuckooing"
    assert f.adapt_many(wrong).mean() > (0.65 if walks else 0.95)
    assert f.contains(wrong).mean() < (0.3 if walks else 0.05)
    assert f.contains(range(n)).all()
    assert not f.adapt_many(range(n)).any()
    for _ in range(12):
        ask(f, asked)
    assert ask(f, asked) < 0.1 * len(wrong)
    assert f.contains(range(n)).all()
    fresh = np.arange(10**6, 10**6 + 200_000)
    assert within_noise(f.contains(fresh).mean(), f.expected_fpr, len(fresh))


@kinds
def test_the_twin_reads_the_frame_and_answers_alike(kind):
    for bits, seed in ((5, 1), (11, 2), (25, 3)):
        n = 400
        f = tamis.AdaptiveCuckoo(n, bits_per_key=bits, seed=seed, **kind)
        f.update(range(n))
        ask(f, np.arange(n, 5000))
        _, _, _, _, _, values, ((_, _, slots), (_, _, owners)) = parts(f.to_bytes())
        twin = Twin.from_frame(values, slots, owners)
        stored = sorted(hash_key(key, seed) for key in range(n))
        assert sorted(owner for owner in twin.owners if owner != (0, 0)) == stored
        assert [twin.contains(hash_key(key, seed)) for key in range(3000)] == f.contains(
            range(3000)
        ).tolist()


class Against(RuleBasedStateMachine):
    """Any mix of changes, with short fingerprints, against a multiset."""

    @initialize(kind=st.sampled_from(KINDS), bits=st.integers(2, 6), seed=st.integers(0, 50))
    def begin(self, kind, bits, seed):
        bits += kind.get("selector_bits", 0)
        self.f = tamis.AdaptiveCuckoo(150, bits_per_key=bits, seed=seed, **kind)
        self.held = Counter()

    @rule(keys=st.lists(st.integers(0, 200), max_size=60))
    def put(self, keys):
        before = self.f.to_bytes()
        try:
            self.f.update(keys)
        except tamis.CapacityError:
            assert self.f.to_bytes() == before
        else:
            self.held.update(keys)

    @rule(data=st.data(), count=st.integers(1, 40))
    def delete(self, data, count):
        for _ in range(min(count, self.held.total())):
            key = data.draw(st.sampled_from(sorted(self.held)))
            self.f.remove(key)
            self.held[key] -= 1
            self.held += Counter()

    @rule(key=st.integers(300, 400))
    def remove_what_is_not_there(self, key):
        with pytest.raises(KeyError):
            self.f.remove(key)

    @rule(start=st.integers(0, 5000))
    def ask(self, start):
        ask(self.f, np.array([k for k in range(start, start + 400) if not self.held[k]]), 100)

    @rule()
    def save_and_load(self):
        data = self.f.to_bytes()
        self.f = tamis.from_bytes(data)
        assert self.f.to_bytes() == data

    @invariant()
    def nothing_is_denied(self):
        if hasattr(self, "f"):
            assert self.f.contains(sorted(self.held)).all()
            assert len(self.f) == self.held.total()


Against.TestCase.settings = settings(stateful_step_count=30, deadline=None)
TestAgainst = Against.TestCase


@kinds
def test_the_plan_is_what_is_built(kind):
    for fpr in (0.1, 2**-8, 1e-5):
        size = planning.size(50_000, fpr=fpr, **kind)
        f = tamis.AdaptiveCuckoo.build(range(50_000), fpr=fpr, seed=1, **kind)
        assert f._size == size
        assert abs(f.expected_fpr / size.rate(50_000) - 1) < 0.02
        assert 0.94 < f.load <= 0.951
        shorter = size._replace(fingerprint_bits=size.fingerprint_bits - 1)
        assert size.rate(50_000) <= fpr < shorter.rate(50_000)
    assert f.kind == kind["kind"]


def test_bad_arguments():
    for wrong, match in (
        ({"kind": "some"}, "kind must be 'swapping', 'cyclic' or 'cuckooing', not 'some'"),
        ({"kind": "cyclic", "selector_bits": 4}, "selector_bits must be 1, 2 or 3, not 4"),
        ({"kind": "swapping", "selector_bits": 1}, "selector_bits must be None for kind"),
    ):
        with pytest.raises(ValueError, match=match):
            tamis.AdaptiveCuckoo(10, fpr=0.1, **wrong)
    with pytest.raises(
        ValueError, match=r"fpr must be at least 1\.8e-09 for an adaptive cuckoo filter, not 1e-12"
    ):
        tamis.AdaptiveCuckoo(10_000, fpr=1e-12)
    with pytest.raises(
        ValueError,
        match=r"bits_per_key must be at least 4\.21 .* not 3",
    ):
        tamis.AdaptiveCuckoo(10_000, bits_per_key=3, kind="cyclic", selector_bits=3)


@kinds
def test_slots_that_are_not_their_hashes_are_refused(kind):
    good = parts(tamis.AdaptiveCuckoo.build(range(60), fpr=0.05, seed=1, **kind).to_bytes())
    *head, ((_, _, slots), (_, _, owners)) = good
    assert tamis.from_bytes(frame(*head, [(1, 0, slots), (5, 0, owners)]))
    for at in range(0, len(slots), 3):
        bad = slots[:at] + bytes([slots[at] ^ 1 << at % 8]) + slots[at + 1 :]
        with pytest.raises(tamis.FormatError):
            tamis.from_bytes(frame(*head, [(1, 0, bad), (5, 0, owners)]))
    with pytest.raises(tamis.FormatError):
        tamis.from_bytes(frame(*head, [(1, 0, slots), (5, 0, owners[16:] + owners[:16])]))
