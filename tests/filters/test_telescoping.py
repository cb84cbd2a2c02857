"""Telescoping and extending filters: no key denied, mistakes fixed, sizes as predicted."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from reference import Telescoping as Twin
from reference import hash_key, of_one_quotient, parts
from telescopes import SHAPES, ask, shapes

import tamis
from tamis.planning import telescoping as planning
from tamis.stores import Hashes
from tamis.testing.filters import SIGMAS, within_noise


@shapes
def test_mistakes_are_fixed(cls, selectors):
    n = 5000
    f = cls.build(range(n), fpr=2**-6, selectors=selectors, seed=3)
    remote = Hashes(range(n), seed=3)
    wrong = np.arange(n, 9 * n)[f.contains(np.arange(n, 9 * n))]
    assert within_noise(len(wrong) / (8 * n), f.expected_fpr, 8 * n)
    changed = f.adapt_many(wrong, remote)
    assert changed.sum() > 0.9 * len(wrong)  # some were fixed along with others
    if selectors != "block":
        # Moving away from one key may be moving onto another that was told apart before.
        while len(again := wrong[f.contains(wrong)]):
            assert f.adapt_many(again, remote).any()
        assert not f.adapt_many(wrong, remote).any()
        assert f.forgotten == 0
    assert f.contains(range(n)).all()
    assert f.steps.sum() == n == len(f)
    assert f.steps[1:].sum() > 0
    fresh = np.arange(10**6, 10**6 + 200_000)
    assert within_noise(f.contains(fresh).mean(), f.expected_fpr, len(fresh))


class Counted(Hashes):
    """Stored hashes that count how many of them were read."""

    read = 0

    def run(self, low, high):
        found = super().run(low, high)
        self.read += len(found)
        return found


@shapes
@pytest.mark.parametrize("count", [200, 800])
def test_keys_of_one_quotient_are_skipped(cls, selectors, count):
    """Matching them would take the cube of their number: they are left alone, and counted."""
    f = cls(1000, fpr=2**-4, selectors=selectors, seed=3)
    keys, few = of_one_quotient(count + 100, 40, f.quotients, 3)
    keys, absent = keys[:count], keys[count:]
    f.update(np.concatenate([keys, few[:20]]))
    remote = Counted(np.concatenate([keys, few[:20]]), seed=3)
    assert f.contains(absent).all()
    assert not f.adapt_many(absent, remote).any()
    assert not f.adapt(int(absent[0]), remote)
    assert f.skipped == len(absent) + 1
    assert remote.read == 0
    # Others are adapted as before.
    wrong = few[20:][f.contains(few[20:])]
    assert f.adapt_many(wrong, remote).any()
    assert f.skipped == len(absent) + 1
    assert f.contains(keys).all()
    assert tamis.from_bytes(f.to_bytes()).skipped == 0


@shapes
def test_the_twin_reads_the_frame_and_answers_alike(cls, selectors):
    for fpr, seed in ((0.3, 1), (2**-5, 2), (2**-13, 3)):
        n = 300
        f = cls.build(range(n), fpr=fpr, selectors=selectors, seed=seed)
        for _ in range(3):
            ask(f, Hashes(range(n), seed=seed), np.arange(n, 4000))
        kind, _, _, _, _, values, ((_, _, slots), (_, _, codes)) = parts(f.to_bytes())
        twin = Twin.from_frame(kind, values, slots, codes)
        assert sum(map(len, twin.slots.values())) == n
        steps = Counter(slot[1] for run in twin.slots.values() for slot in run)
        assert [steps[i] for i in range(len(f.steps))] == f.steps.tolist()
        assert [twin.contains(hash_key(key, seed)) for key in range(5000)] == f.contains(
            range(5000)
        ).tolist()


class Against(RuleBasedStateMachine):
    """Any mix of changes, with so short remainders that everything collides, against a multiset."""

    @initialize(
        shape=st.sampled_from(SHAPES),
        fpr=st.sampled_from([0.4, 0.2, 2**-4]),
        seed=st.integers(0, 50),
    )
    def begin(self, shape, fpr, seed):
        cls, selectors = shape
        self.make = lambda: cls(120, fpr=fpr, selectors=selectors, seed=seed)
        self.f, self.remote, self.held = self.make(), Hashes(seed=seed), Counter()

    @rule(keys=st.lists(st.integers(0, 200), max_size=80))
    def put(self, keys):
        self.f.update(keys, self.remote)
        self.remote.update(keys)
        self.held.update(keys)

    @rule(keys=st.lists(st.integers(0, 200), max_size=30))
    def put_one_by_one(self, keys):
        for key in keys:
            self.f.add(key, self.remote)
            self.remote.add(key)
            self.held[key] += 1

    @rule(data=st.data(), count=st.integers(1, 60))
    def delete(self, data, count):
        for _ in range(min(count, self.held.total())):
            key = data.draw(st.sampled_from(sorted(self.held)))
            self.remote.remove(key)
            self.f.remove(key, self.remote)
            self.held[key] -= 1
            self.held += Counter()

    @rule(start=st.integers(0, 5000))
    def ask(self, start):
        for _ in range(2):
            asked = np.array([k for k in range(start, start + 400) if not self.held[k]])
            ask(self.f, self.remote, asked)

    @rule()
    def adapt_to_a_key_that_is_there(self):
        before = self.f.to_bytes()
        assert not self.f.adapt_many(np.array(sorted(self.held), dtype=int), self.remote).any()
        assert self.f.to_bytes() == before

    @rule()
    def save_and_load(self):
        data = self.f.to_bytes()
        self.f = tamis.from_bytes(data)
        assert self.f.to_bytes() == data

    @rule()
    def grow(self):
        if self.f.capacity < 2000:
            self.f.grow(self.remote)

    @rule(keys=st.lists(st.integers(0, 200), max_size=30))
    def merge(self, keys):
        other = self.make()
        while other.capacity < self.f.capacity:
            other.grow(Hashes(seed=other.seed))
        other.update(keys)
        try:
            self.f = self.f | other
        except tamis.CapacityError:
            return
        self.remote.update(keys)
        self.held.update(keys)

    @invariant()
    def nothing_is_denied(self):
        if hasattr(self, "f"):
            assert self.f.contains(sorted(self.held)).all()
            assert len(self.f) == self.held.total() == len(self.remote)


Against.TestCase.settings = settings(
    max_examples=settings().max_examples, stateful_step_count=40, deadline=None
)


TestAgainst = Against.TestCase


@shapes
def test_inserting_after_adapting_denies_nothing(cls, selectors):
    """Insert half, adapt, insert the rest: what makes the authors' own code lose keys."""
    n = 62_259
    f = cls(n, fpr=2**-8, selectors=selectors, seed=1)
    remote = Hashes(seed=1)
    half = np.arange(n // 2)
    f.update(half, remote)
    remote.update(half)
    for _ in range(2):
        ask(f, remote, np.arange(n, 30 * n), batch=1 << 16)
    rest = np.arange(n // 2, n)
    f.update(rest, remote)
    remote.update(rest)
    assert f.contains(np.arange(n)).all()
    if selectors == "block" and cls is tamis.Extending:
        assert f.forgotten > 0
    for key in range(0, n, 3000):
        remote.remove(key)
        f.remove(key, remote)
    assert f.contains(np.setdiff1d(np.arange(n), np.arange(0, n, 3000))).all()


def test_rates_are_the_floor_while_selectors_are_geometric():
    """Each absent key asked for ten times: a first mistake is paid for, hardly ever a second."""
    n, c = 1 << 14, 20
    f = tamis.Telescoping.build(range(n), fpr=2**-8, seed=5)
    remote, random = Hashes(range(n), seed=5), np.random.default_rng(5)
    asked = random.integers(n, n + c * n, 10 * c * n)
    first = np.unique(asked)
    unfixed = f.contains(first).sum()
    wrong = ask(f, remote, asked)
    # At least every first mistake; a few more where an element moved onto a key it had left.
    assert unfixed * 0.98 <= wrong <= 1.06 * unfixed + SIGMAS * unfixed**0.5
    share = planning.selector_share(c, 2**-8, 4)
    for predicted, count in zip(share, f.steps, strict=False):
        assert abs(count - n * predicted) <= SIGMAS * (n * predicted) ** 0.5 + 0.02 * n * predicted
    bound = planning.selector_bound(c, 2**-8, 4, keys=n)
    for k, limit in enumerate(bound[1:], start=1):
        assert f.steps[k:].sum() <= n * limit + SIGMAS * (n * limit) ** 0.5


def selectors_after(random, trials, c, fpr, repeated):
    """The selectors of elements after Poisson(c) queries of their quotient each.

    A query that fits moves the element on to the next remainder that it does not fit; asked again,
    all queries meet the element anew.
    """
    counts = np.zeros(64, dtype=int)
    for _ in range(trials):
        # By query and selector: whether it fits the element there.
        fits = random.random((random.poisson(c), 64)) < fpr
        if repeated:
            at = int(np.argmin(np.append(fits.any(axis=0), False)))
        else:
            at = 0
            for query in fits:
                while query[at]:
                    at += 1
        counts[at] += 1
    return counts


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize(("c", "fpr"), [(3, 0.1), (20, 2**-6), (20, 2**-4)])
def test_the_bound_holds_for_any_repetitions(repeated, c, fpr):
    trials = 20_000
    counts = selectors_after(np.random.default_rng(8), trials, c, fpr, repeated)
    bound = planning.selector_bound(c, fpr, 5)
    noise = SIGMAS * np.sqrt(trials * bound) / trials + 1e-9
    reached = np.cumsum(counts[::-1])[::-1][:6] / trials
    assert (reached[1:] <= bound[1:] + noise[1:]).all()
    assert abs(counts[0] / trials - bound[0]) <= noise[0]
    if repeated:  # then it is exact
        assert (abs(reached[1:] - bound[1:]) <= noise[1:]).all()
        if c < 1 / fpr - 1:
            assert counts[3] / trials > 1.2 * planning.selector_bound_printed(c, fpr, 3)[3]


def test_the_predictors_agree_with_each_other():
    for c in (1, 20, 100):
        lemma = planning.selector_bound_printed(c, 2**-8, keys=10**6)
        corollary = planning.selector_bound_printed(c, 2**-8)
        assert (lemma <= corollary * (1 + 1e-9)).all()
        assert np.allclose(lemma[1:3], corollary[1:3], rtol=0.005)
        many = planning.selector_bound(c, 2**-8, keys=10**6)
        assert np.allclose(many, planning.selector_bound(c, 2**-8), rtol=0.005)
        share = planning.selector_share(c, 2**-8, 200)
        assert np.isclose(share.sum(), 1)
        held = share[share > 1e-300]
        assert np.isclose(-(held * np.log2(held)).sum(), planning.selector_entropy(c, 2**-8))
    for b in (2, 4, 9):
        bits = 1 / np.e + b / (b - 1) ** 2
        assert np.isclose(planning.queries_within(bits, 2**-8), 16 / b)
    assert planning.queries_within(100, 2**-8) == 8
    assert planning.queries_within(0.3, 2**-8) == 0
    # The theorem promises less than the entropy allows.
    assert planning.selector_entropy(planning.queries_within(0.812, 2**-8), 2**-8) < 0.812
    with pytest.raises(ValueError, match="queries must be between 0 and 255, not 300"):
        planning.selector_bound_printed(300, 2**-8)
    with pytest.raises(ValueError, match="queries must be positive, not 0"):
        planning.selector_bound(0, 2**-8)


def test_growing_selectors_take_what_they_need_and_no_more():
    n = 1 << 15
    f = tamis.Telescoping.build(range(n), fpr=2**-8, seed=2)
    remote = Hashes(range(n), seed=2)
    before = f.size_in_bits
    ask(f, remote, np.arange(n, 51 * n), batch=1 << 16)
    ask(f, remote, np.arange(n, 51 * n), batch=1 << 16)
    assert before / n < 11.2
    taken = (f.size_in_bits - before) / n
    shares = f.steps[f.steps > 0] / n
    entropy = -(shares * np.log2(shares)).sum()
    assert entropy < taken < entropy + 0.35
    assert f.size_in_bits / n < 12.2


def test_block_selectors_forget_and_say_so():
    n = 1 << 14
    f = tamis.Telescoping.build(range(n), fpr=2**-8, selectors="block", seed=2)
    size, remote = f.size_in_bits, Hashes(range(n), seed=2)
    ask(f, remote, np.arange(n, 101 * n), batch=1 << 16)
    assert f.forgotten > 0
    assert f.size_in_bits == size <= 11.7 * n
    assert f.contains(range(n)).all()
    assert tamis.from_bytes(f.to_bytes()).forgotten == f.forgotten


def test_an_adversary_does_not_win():
    n = 1 << 12
    f = tamis.Telescoping.build(range(n), fpr=2**-8, seed=4)
    remote = Hashes(range(n), seed=4)
    queries = np.arange(n, 51 * n)
    for _ in range(20):
        fooled = np.zeros(len(queries), bool)
        for _ in range(10):
            now = f.contains(queries)
            fooled |= now
            f.adapt_many(queries[now], remote)
        queries = queries[fooled]
        if len(queries) < 0.01 * n:
            break
    assert len(queries) < 0.01 * n
