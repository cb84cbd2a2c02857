"""Adaptive stacks: no key denied while they grow, rates as predicted, shifts noticed."""

import operator
import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from reference import Stacked as Twin
from reference import frame, hash_key, parts
from stand_in import tiny

import tamis
from tamis import _native
from tamis.planning import bloom, quotient
from tamis.planning.adaptive_stacked import (
    AdaptivePlan,
    Counts,
    PlanRequest,
    next_step,
    plan_adaptive,
)
from tamis.planning.bloom import bits_per_item
from tamis.planning.quotient import quotients
from tamis.planning.rates import interval
from tamis.planning.stacked import metrics
from tamis.planning.stacked.frequencies import Steps, Zipf
from tamis.planning.stacked.goal import Goal
from tamis.planning.stacked.lifetime import (
    fitted,
    mean_rate,
    queries_for,
    seen,
    shape,
    three_layers,
)
from tamis.stores import Hashes
from tamis.testing.filters import within_noise

KINDS = ("bloom", "quotient")
UNIVERSE = 20_000
SHAPE = tamis.Workload.zipf(1.0, universe=UNIVERSE)


def ask(f, remote, asked, batch=200):
    """Ask for absent keys in batches, adapting after each; which were taken for present."""
    wrong = []
    for start in range(0, len(asked), batch):
        part = asked[start : start + batch]
        fooled = part[f.contains(part)]
        wrong.append(fooled)
        f.adapt_many(fooled, remote)
    return np.concatenate(wrong)


def members(n, seed=3):
    """Keys that no stream of the same seed asks for."""
    return tamis.traces.ranked(range(UNIVERSE, UNIVERSE + n), seed=seed)


# What it learns.


@pytest.mark.parametrize("kind", KINDS)
def test_the_rate_falls_as_predicted(kind):
    """Over all queries, and over those that all layers answered, above and below."""
    keys, lifetime = members(20_000), 150_000
    wrong = asked = 0
    for seed in range(3):
        f = tamis.AdaptiveStacked.build(
            keys, SHAPE, bits_per_key=9, sizing="lifetime", lifetime=lifetime, layer=kind, seed=seed
        )
        remote = Hashes(keys, seed=seed)
        assert (len(f.layers), len(f.plan.stack.layers)) == (1, 3)
        queries = tamis.traces.zipf(lifetime, universe=UNIVERSE, seed=3)
        fooled = ask(f, remote, queries)
        assert f.contains(keys).all()
        assert len(f.layers) == 3
        assert f.rebuilds == 0
        assert f.collecting is None
        assert f.observed.false_positives == len(fooled)
        assert f.observed.negatives == lifetime
        wrong, asked = wrong + len(fooled), asked + lifetime
        # The filter as it is now, by every negative with its frequency.
        negatives = tamis.traces.ranked(range(UNIVERSE), seed=3)
        frequency = np.diff(SHAPE.curve.psi(np.arange(UNIVERSE + 1)))
        rate = frequency[f.contains(negatives)].sum()
        spread = (frequency**2)[f.contains(negatives)].sum()
        low, high = interval(round(rate * 10**6), 10**6, max(spread, 1e-9) * 10**12)
        assert low <= f.expected_fpr <= high
        assert f.expected_fpr == pytest.approx(f.plan.stack.expected_fpr, rel=0.15)
        assert f.expected_fpr < 0.5 * f.layers[0].rate
        assert f.expected_fpr == pytest.approx(f.psi * f.known_fpr + (1 - f.psi) * f.fpr_bound)
        assert f.bits_per_key <= 9
    assert 0.6 * f.plan.mean_fpr < wrong / asked < 1.5 * f.plan.mean_fpr


@pytest.mark.filterwarnings("ignore::tamis.CapacityWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_the_rate_of_known_negatives_in_a_coarse_stack(kind):
    """Where each of five layers lets much through, each has its visible part in the rate."""
    n, trials = 20_000, 500_000
    known = np.arange(10**9, 10**9 + trials)
    remote, f = Hashes(range(n)), tiny(kind)

    def layer(items, capacity=0):
        if kind == "bloom":
            return _native.Bloom._empty(bloom.BloomSize("standard", 2 * int(items), 1), capacity)
        return _quotient(quotients(int(items)), 1, capacity or int(items))

    # A first layer of these keys in place of the tiny one; then each layer of negatives is to
    # know all that come to it.
    first, without_limit = layer(2 * n, 2 * n), 10**9
    f._fill_from_scan(
        _version(f), first, remote, 0.0, layer(trials / 4), without_limit, f.plan.to_json()
    )
    coming = 2 * n
    while len(f.layers) < 5:
        f._observe(known)
        coming *= f.collecting.rate
        negatives = layer(f.collecting.items / 5)
        f._fill_from_scan(_version(f), layer(coming), remote, 0.5, negatives, without_limit)
    assert within_noise(f.contains(known).mean(), f.known_fpr, trials)
    for most in range(n + n // 4, 2 * n + 1, n // 4):
        f.update(np.arange(most - n // 4, most))
        assert within_noise(f.contains(known).mean(), f.known_fpr, trials)
    assert f.contains(range(2 * n)).all()


def test_the_eventual_stack_has_all_its_layers_in_the_end():
    keys = members(5000)
    workload = tamis.Workload.zipf(1.0, universe=2000)
    f = tamis.AdaptiveStacked.build(keys, workload, bits_per_key=9, layer="quotient", seed=1)
    assert len(f.plan.stack.layers) >= 5
    first = f.expected_fpr
    queries = tamis.traces.zipf(400_000, universe=2000, seed=3)
    ask(f, Hashes(keys, seed=1), queries, batch=2000)
    assert len(f.layers) >= 5
    assert f.bits_per_key <= 9
    assert f.expected_fpr < first / 10
    last = ask(f, Hashes(keys, seed=1), queries[:100_000], batch=2000)
    assert len(last) < 0.1 * first * 100_000
    assert f.contains(keys).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_shift_is_noticed_and_learnt(kind):
    """Figure 6b: popularity is reversed; the layers above the first are built anew."""
    keys, lifetime = members(20_000), 150_000
    f = tamis.AdaptiveStacked.build(
        keys, SHAPE, bits_per_key=9, sizing="lifetime", lifetime=lifetime, layer=kind, seed=1
    )
    remote = Hashes(keys, seed=1)
    queries = tamis.traces.phase_shift(2 * lifetime, universe=UNIVERSE, seed=3)
    before, shifted = np.split(queries, 2)
    quiet = len(ask(f, remote, before)[-1000:]) / lifetime
    first = f.layers[0]
    ask(f, remote, shifted[:100_000])
    assert f.rebuilds == 1
    assert len(f.layers) == 3
    assert f.layers[0] == first
    settled = len(ask(f, remote, shifted[100_000:])) / 50_000
    assert settled < 1.5 * f.expected_fpr
    assert quiet < 0.01
    assert f.contains(keys).all()


def test_another_shape_is_fitted():
    """The workload says that the queries are far more skewed than they are."""
    keys = members(20_000)
    steep = tamis.Workload.zipf(1.6, universe=UNIVERSE)
    f = tamis.AdaptiveStacked.build(
        keys, steep, bits_per_key=9, sizing="lifetime", lifetime=200_000, seed=1
    )
    queries, remote = tamis.traces.zipf(400_000, universe=UNIVERSE, seed=3), Hashes(keys, seed=1)
    ask(f, remote, queries[:300_000], batch=1000)
    assert f.workload.psi(100) < 0.8 * steep.psi(100)
    assert f.workload.psi(1000) == pytest.approx(SHAPE.psi(1000), rel=0.3)
    assert f.contains(keys).all()
    assert len(f) == pytest.approx(len(keys), rel=0.01)
    rebuilds, rate = f.rebuilds, len(ask(f, remote, queries[300_000:], batch=1000)) / 100_000
    assert f.rebuilds == rebuilds
    assert rate < 1.5 * f.expected_fpr < 0.5 * f.layers[0].rate
    again = tamis.from_bytes(f.to_bytes())
    assert again.workload.psi(1000) == f.workload.psi(1000)


def test_a_rate_below_the_expected_is_expected_from_then_on():
    """The workload says that the queries are hardly skewed: it does better, and loses nothing."""
    keys = members(20_000)
    flat = tamis.Workload.zipf(0.6, universe=10**6)
    f = tamis.AdaptiveStacked.build(
        keys, flat, bits_per_key=9, sizing="lifetime", lifetime=200_000, seed=1
    )
    queries = tamis.traces.phase_shift(400_000, universe=UNIVERSE, seed=3)
    ask(f, Hashes(keys, seed=1), queries[:200_000], batch=1000)
    assert f.rebuilds == 0
    assert f.expected_fpr < 0.3 * f.plan.stack.expected_fpr
    ask(f, Hashes(keys, seed=1), queries[200_000:], batch=1000)  # and so a shift is noticed
    assert f.rebuilds > 0
    assert f.contains(keys).all()


def test_the_step_is_checked():
    plan = plan_adaptive(PlanRequest(1000, "lifetime", 10**5, bits_per_key=9), SHAPE)
    depth, n = len(plan.stack.layers), plan.observations
    assert depth == 3

    def step(layers=3, items=0, capacity=0, collecting=0, asked=0, wrong=0, strikes=0):
        counts = Counts(layers, items, capacity, collecting, asked, wrong, strikes)
        return next_step(plan, counts, lambda: 0.01)

    assert step(1, items=5, capacity=6) == "wait"
    assert step(1, items=6, capacity=6) == "grow"
    assert step(1, items=1, capacity=6, collecting=n) == "grow"
    assert step(1, items=0, capacity=6, collecting=n) == "wait"
    assert step(asked=6000, wrong=63) == "wait"  # too few to tell
    assert step(asked=10_000, wrong=140) == "content"
    assert step(asked=10_000, wrong=160) == "drop"
    assert step(asked=10_000, wrong=160, strikes=1) == "remodel"
    assert step(asked=10_000, wrong=49) == "remodel"
    assert step(asked=900, wrong=500) == "wait"
    assert step(1, capacity=6, asked=10_000, wrong=600) == "wait"
    assert step(1, asked=10_000, wrong=500) == "wait"  # nothing is collected: it observes
    assert step(1, asked=10_000, wrong=600) == "remodel"


# What it is planned by.


def exactly(curve, queries):
    """E[ψ] and E[|N_f|], value by value."""
    frequency = np.diff(curve.psi(np.arange(curve.size + 1)))
    met = 1 - (1 - frequency) ** queries
    return (frequency * met).sum(), (1 - frequency.sum()) * queries + met.sum()


@pytest.mark.parametrize("curve", [Zipf(1.0, 30_000, 10_000), Zipf(0.5, 5000, 5000)])
@pytest.mark.parametrize("queries", [1, 30, 1000, 50_000])
def test_what_queries_make_known(curve, queries):
    assert seen(curve, queries) == pytest.approx(exactly(curve, queries), rel=0.01)
    if queries > 1:
        again = queries_for(curve, seen(curve, queries).negatives)
        assert again == pytest.approx(queries, rel=0.01, abs=1)


def test_what_queries_make_known_is_what_they_do():
    curve = Zipf(1.0, 2000, 2000)
    frequency = np.diff(curve.psi(np.arange(2001)))
    random = np.random.default_rng(1)
    known = [np.unique(random.choice(2000, 500, p=frequency)) for _ in range(200)]
    psi, negatives = seen(curve, 500)
    assert np.mean([frequency[some].sum() for some in known]) == pytest.approx(psi, rel=0.01)
    assert np.mean([len(some) for some in known]) == pytest.approx(negatives, rel=0.01)


@pytest.mark.parametrize("smallest", [False, True])
def test_three_layers_against_brute_force(smallest):
    """Every N_o, α₁, α₂ and α₃ of a grid, one by one."""
    curve, keys, lifetime = Zipf(1.0, 10_000, 8000), 2000, 100_000
    goal = Goal(keys, fpr=0.004) if smallest else Goal(keys, budget=9 * keys)
    rates = np.geomspace(1e-4, 0.9, 36)
    one, two, three = np.meshgrid(rates, rates, rates, indexing="ij")
    best = np.inf
    for n in np.geomspace(100, lifetime, 16).astype(int):
        psi, negatives = exactly(curve, n)
        all_three = np.stack([one, two, three], axis=-1)
        bits = (metrics.items(all_three, keys, negatives) * bits_per_item(all_three)).sum(axis=-1)
        value = mean_rate(one, metrics.expected_rate(all_three, psi), n, lifetime)
        allowed = (bits <= goal.budget) & (value <= goal.fpr)
        best = min(best, np.where(allowed, bits if smallest else value, np.inf).min())
    observations, found = three_layers(goal, "bloom", curve, lifetime)
    assert goal.score(found) <= best
    assert goal.score(found) >= 0.8 * best  # the grid is coarse, but not by more
    # And it is what it says it is.
    psi, negatives = exactly(curve, observations)
    bits = (metrics.items(found.rates, keys, negatives) * bits_per_item(found.rates)).sum()
    value = mean_rate(
        found.rates[0], metrics.expected_rate(found.rates, psi), observations, lifetime
    )
    assert bits == pytest.approx(found.bits, rel=0.01)
    assert value == pytest.approx(found.cost, rel=0.01)


def test_fingerprints_against_brute_force():
    from tamis.planning.kinds import fingerprint_layer

    curve, keys, lifetime = Zipf(1.0, 10_000, 8000), 2000, 100_000
    for goal in (Goal(keys, budget=9 * keys), Goal(keys, fpr=0.003)):
        best = np.inf
        for n in np.geomspace(100, lifetime, 12).astype(int):
            psi, negatives = seen(curve, n)
            for a in range(4, 11):
                bits_a, one = fingerprint_layer("quotient", keys, a)
                for b in range(1, 10):
                    bits_b, two = fingerprint_layer("quotient", int(np.ceil(negatives * one)), b)
                    for c in range(1, 16):
                        bits_c, three = fingerprint_layer("quotient", int(np.ceil(keys * two)), c)
                        bits = bits_a + bits_b + bits_c
                        stacked = one * (psi * three + (1 - psi) * (1 - two + two * three))
                        value = mean_rate(one, stacked, n, lifetime)
                        if bits <= goal.budget and value <= goal.fpr:
                            best = min(best, bits if goal.minimizes_bits else value)
        _, found = three_layers(goal, "quotient", curve, lifetime)
        assert 0.85 * best <= goal.score(found) <= 1.005 * best


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizing", ["eventual", "lifetime"])
def test_plans_keep_to_their_arguments(kind, sizing):
    lifetime = 10**6 if sizing == "lifetime" else None
    for budget in (6.0, 10.0):
        plan = plan_adaptive(
            PlanRequest(20_000, sizing, lifetime, kind, bits_per_key=budget), SHAPE
        )
        assert plan.stack.bits_per_key <= budget
        assert plan.observations >= 0
    plan = plan_adaptive(PlanRequest(20_000, sizing, lifetime, kind, fpr=0.002), SHAPE)
    assert plan.mean_fpr <= 0.002 * 1.001
    again = AdaptivePlan.from_json(plan.to_json())
    assert again.to_json() == plan.to_json()
    assert again.stack == plan.stack


def test_a_longer_life_is_worth_more_observation():
    plans = [
        plan_adaptive(PlanRequest(20_000, "lifetime", life, "bloom", bits_per_key=9), SHAPE)
        for life in (10**4, 10**5, 10**6)
    ]
    assert sorted(plan.observations for plan in plans) == [plan.observations for plan in plans]
    rates = [plan.mean_fpr for plan in plans]
    assert sorted(rates, reverse=True) == rates


def test_equal_queries_are_not_worth_a_stack():
    flat = tamis.Workload.zipf(0.0, universe=10**9)
    plan = plan_adaptive(PlanRequest(20_000, "lifetime", 10**5, "bloom", bits_per_key=9), flat)
    assert len(plan.stack.layers) == 1
    f = tamis.AdaptiveStacked(1000, flat, bits_per_key=9, sizing="lifetime", lifetime=10**4, seed=1)
    f.update(range(1000))
    assert not f.adapt_many(range(1000, 5000), Hashes(range(1000), seed=1)).any()


def test_a_shape_is_fitted_to_a_sample_of_the_keys():
    curve = Zipf(1.0, 50_000, 50_000)
    frequency = np.diff(curve.psi(np.arange(50_001)))
    random = np.random.default_rng(1)
    counts = random.poisson(frequency * 2_000_000)[random.random(50_000) < 0.02]
    found = fitted(counts[counts > 0], 0.02)
    assert found.size == pytest.approx(50_000, rel=0.1)
    for n in (2000, 10_000, 40_000):
        assert found.psi(n) == pytest.approx(curve.psi(n), abs=0.12)
    assert fitted([1, 1, 1], 0.5).psi(6) == 0
    assert fitted([], 0.5).size == 0


# What it never does.


class Against(RuleBasedStateMachine):
    """Any mix of changes, with so coarse layers that everything collides, against a set."""

    @initialize(
        kind=st.sampled_from(KINDS), fine=st.sampled_from([1, 2, 3]), seed=st.integers(0, 9)
    )
    def begin(self, kind, fine, seed):
        self.f, self.seed = tiny(kind, fine=fine, seed=seed), seed
        self.remote, self.held = Hashes(seed=seed), set()

    @rule(keys=st.sets(st.integers(0, 150), max_size=12))
    def put(self, keys):
        new = sorted(keys - self.held)
        self.f.update(new)
        self.remote.update(new)
        self.held |= keys

    @rule(key=st.integers(0, 150))
    def delete(self, key):
        if key in self.held and self.f.deletes:
            self.held.remove(key)
            self.remote.remove(key)
            self.f.remove(key, self.remote)

    @rule(start=st.integers(200, 4000))
    def ask(self, start):
        wrong = [key for key in range(start, start + 150) if key in self.f]
        self.f.adapt_many(wrong, self.remote)

    @rule(start=st.integers(200, 4000), keys=st.sets(st.integers(0, 150), max_size=6))
    def ask_while_keys_come(self, start, keys):
        """The scan is under way when they do; the store lists them then, or does not."""
        machine = self

        class Slow:
            def scan(self):
                for part in machine.remote.scan():
                    half = len(part) // 2
                    yield part[:half]
                    machine.put(set(sorted(keys)[::2]))
                    yield part[half:]
                machine.put(set(sorted(keys)[1::2]))

        self.f.adapt_many(range(start, start + 150), Slow())

    @rule(start=st.integers(200, 4000))
    def a_scan_that_fails(self, start):
        class Broken:
            def scan(self):
                yield np.zeros((1, 2), np.uint64)
                raise OSError("gone")

        before = len(self.f.layers)
        try:
            self.f.adapt_many(range(start, start + 150), Broken())
        except OSError:
            assert len(self.f.layers) == before

    @rule()
    def adapt_to_keys_that_are_there(self):
        self.f.adapt_many(np.array(sorted(self.held), dtype=int), self.remote)

    @rule(again=st.booleans())
    def give_up_layers(self, again):
        version = _version(self.f)
        layer = _bloom(60, 0)
        assert self.f._drop_behind_first(version, layer, 6)
        assert not self.f._drop_behind_first(version, layer, 6)

    @rule()
    def take_another_first_layer(self):
        version = _version(self.f)
        first = _quotient(128, 2, 100) if self.f.deletes else _bloom(300, 100)
        plan = self.f.plan.to_json()
        filling = _bloom(60, 0)
        self.f._fill_from_scan(version, first, self.remote, 0.0, filling, 6, plan)
        assert len(self.f.layers) == 1

    @rule(how=st.sampled_from(["bytes", "copy"]))
    def save_and_load(self, how):
        data = self.f.to_bytes()
        self.f = tamis.from_bytes(data) if how == "bytes" else self.f.copy()
        assert self.f.to_bytes() == data

    @invariant()
    def denies_no_key(self):
        if hasattr(self, "f"):
            held = sorted(self.held)
            assert self.f.contains(held).all()
            assert all(key in self.f for key in held[:5])


Against.TestCase.settings = settings(
    max_examples=settings.default.max_examples, stateful_step_count=30, deadline=None
)
TestAgainst = Against.TestCase


@pytest.mark.parametrize("kind", KINDS)
def test_the_twin_answers_alike(kind):
    """In every generation: the twin is a stack of the same keys and collected negatives."""
    keys = range(80)
    f, remote = tiny(kind, depth=3, keys=keys), Hashes(keys)
    for generation in range(3):
        asked = np.arange(1000 * generation + 1000, 1000 * generation + 2000)
        fooled = asked[f.contains(asked)]
        collected = []
        for key in fooled.tolist():
            if f.adapt(key, remote):
                collected.append(key)
            if len(f.layers) == 3:
                break
        assert len(f.layers) == 3
        twin = Twin.like(parts(f.to_bytes())[6][0][2])
        twin.generation = generation
        twin.build(map(hash_key, keys), map(hash_key, collected))
        every = range(5000)
        assert f.contains(every).tolist() == [twin.contains(hash_key(key)) for key in every]
        version = _version(f)
        layer = f.plan.stack.layers[1]
        filling = tamis.filters.adaptive_stacked._empty(layer, layer.items)
        assert f._drop_behind_first(version, filling, 30)
    assert f.rebuilds == 3


@pytest.mark.parametrize("kind", KINDS)
def test_threads_ask_put_and_adapt(kind):
    n = 6000
    f = tamis.AdaptiveStacked(
        n, SHAPE, bits_per_key=6, sizing="lifetime", lifetime=4000, layer=kind, seed=1
    )
    remote, lock = Hashes(seed=1), threading.Lock()
    put, failures, done = [0], [], threading.Event()

    def check():
        while not done.is_set():
            known = put[0]
            if not f.contains(np.arange(known)).all() or (known and known - 1 not in f):
                failures.append(known)
            if not tamis.from_bytes(f.to_bytes()).contains(np.arange(known)).all():
                failures.append(-known)

    def learn(seed):
        queries = tamis.traces.phase_shift(60_000, universe=UNIVERSE, seed=seed)
        for start in range(0, len(queries), 100):
            part = queries[start : start + 100]
            f.adapt_many(part[f.contains(part)], remote)

    threads = [threading.Thread(target=check) for _ in range(2)]
    learners = [threading.Thread(target=learn, args=(seed,)) for seed in (3, 4)]
    for thread in threads + learners:
        thread.start()
    for start in range(0, n, 100):
        keys = np.arange(start, start + 100)
        with lock:
            remote.update(keys)  # as a put under way, which a scan lists
            f.update(keys)
        put[0] = start + 100
    for thread in learners:
        thread.join()
    done.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(f.layers) > 1 or f.rebuilds > 0  # it did learn, while the others went on
    assert f.contains(np.arange(n)).all()


# What it keeps, and what it refuses.


def test_all_it_learnt_is_saved(tmp_path):
    keys = range(100)
    f, remote = tiny("quotient", fine=1, keys=keys), Hashes(keys)
    for start in range(1000, 9000, 400):
        f.adapt_many(range(start, start + 400), remote)
        f.save(tmp_path / "f")
        twin = tamis.load(tmp_path / "f", mmap=True)
        for fact in ("psi", "known_fpr", "observed", "rebuilds"):
            assert getattr(twin, fact) == getattr(f, fact)
        describe = operator.attrgetter("kind", "stores", "items")
        assert list(map(describe, twin.layers)) == list(map(describe, f.layers))
        if len(f.layers) == 5:
            break
        assert twin.to_bytes() == f.to_bytes()
    assert len(f.layers) == 5
    twin.adapt_many(range(5000, 6000), remote)
    twin.add(10**6)
    assert twin.contains([*keys, 10**6]).all()


def test_a_layer_without_room_is_given_up():
    """Fingerprints of one bit cannot get shorter: the insertion counts, not the layer."""
    f, remote = tiny("quotient", depth=3, fine=1, keys=range(60)), Hashes(range(60))
    f.adapt_many(range(1000, 3000), remote)
    assert len(f.layers) == 3
    keys = np.arange(10**6, 10**6 + 20_000)
    first = _quotient(1024, 8, 900)
    f._fill_from_scan(_version(f), first, remote, 0.0, _quotient(64, 1, 30), 5, f.plan.to_json())
    f.adapt_many(np.arange(10**5, 10**5 + 800_000), remote)
    assert len(f.layers) == 3
    with pytest.warns(tamis.CapacityWarning):
        f.update(keys)
    assert len(f.layers) == 1
    assert f.contains([*range(60), *keys]).all()
    f.adapt_many(range(10**5), remote)
    assert f.collecting is None  # it observes first


def _version(f):
    return f._state.version


def _bloom(bits, capacity):
    return _native.Bloom._empty(bloom.BloomSize("standard", bits, 2), capacity)


def _quotient(quotients, remainder_bits, capacity):
    return _native.Quotient._empty(quotient.QuotientSize(quotients, remainder_bits), capacity)


def test_only_adaptations_count():
    """Questions are counted when the next adaptation comes, so that asking changes no bytes."""
    f, remote = tiny("bloom", keys=range(100)), Hashes(range(100))
    before = f.to_bytes()
    denied = int((~f.contains(range(1000, 2000))).sum())
    assert f.to_bytes() == before
    assert f.observed == (0, 0)
    assert f.observed.fpr == 0
    wrong = next(key for key in range(1000, 2000) if key in f)
    denied += sum(key not in f for key in range(1000, wrong))
    denied += sum(key not in f for key in range(1000, wrong))
    assert f.adapt(wrong, remote)
    assert f.observed.false_positives == 1
    assert f.observed.negatives > denied
    assert not f.adapt(next(k for k in range(1000, 2000) if k not in f), remote)
    assert f.observed.false_positives == 1


def test_damaged_plans_are_refused():
    f = tiny("quotient", keys=range(10))
    *head, sections = parts(f.to_bytes())
    text = sections[-1][2]
    assert AdaptivePlan.from_json(text).observations == 10**9
    for old, new in (
        (b'"observations": 1000000000', b'"observations": -1'),
        (b'"observations": 1000000000', b'"observations": "x"'),
        (b'"kind": "quotient"', b'"kind": "ribbon"'),
        (b'"fingerprint": 2', b'"fingerprint": 99'),
        (b'"items": 30', b'"items": -6'),
        (b'"items": 30', b'"items": 6.5'),
        (b'"sizing": "eventual"', b'"sizing": "x"'),
        (b'"ranks": [0.0', b'"ranks": [5.0'),
        (b'"mass": [0.0', b'"mass": [NaN'),
        (b'"stack": {', b'"stacks": {'),
        (text, b""),
        (text, b"[]"),
        (text, b"\xff"),
        (text, b"[" * 100_000),
    ):
        assert old in text
        wrong = [*sections[:-1], (*sections[-1][:2], text.replace(old, new))]
        with pytest.raises(tamis.FormatError):
            tamis.from_bytes(frame(*head, wrong))


def test_damaged_samples_are_refused():
    f = tiny("bloom", keys=range(100), capacity=50)
    f.adapt_many(range(200, 400), Hashes(range(100)))
    *head, sections = parts(f.to_bytes())
    at = len(sections) - 2
    type_, piece, pairs = sections[at]
    assert len(pairs) >= 32
    for wrong in (pairs[:-1], pairs[::-1], pairs + pairs[:16], pairs[:8] + bytes(8) + pairs[16:]):
        changed = [*sections]
        changed[at] = (type_, piece, wrong)
        with pytest.raises(tamis.FormatError):
            tamis.from_bytes(frame(*head, changed))
    for changed in (sections[:-1], sections[::-1], sections[1:], sections + sections[-1:]):
        with pytest.raises(tamis.FormatError):
            tamis.from_bytes(frame(*head, changed))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="sizing must be 'eventual' or 'lifetime', not 'x'"):
        tamis.AdaptiveStacked(10, SHAPE, fpr=0.1, sizing="x")
    with pytest.raises(ValueError, match="layer must be 'auto', 'bloom' or 'quotient'"):
        tamis.AdaptiveStacked(10, SHAPE, fpr=0.1, layer="ribbon")
    for arguments in ({"sizing": "lifetime"}, {"lifetime": 5}):
        with pytest.raises(
            ValueError, match="lifetime, a number of queries for absent keys, must be given with"
        ):
            tamis.AdaptiveStacked(10, SHAPE, fpr=0.1, **arguments)
    with pytest.raises(ValueError, match=r"lifetime must be from 1 to .* not 0"):
        tamis.AdaptiveStacked(10, SHAPE, fpr=0.1, sizing="lifetime", lifetime=0)
    with pytest.raises(ValueError, match=r"no quotient layer fits .*bits_per_key=0\.1"):
        tamis.AdaptiveStacked(1000, SHAPE, bits_per_key=0.1, layer="quotient")
    f = tiny("bloom", keys=[1])
    with pytest.raises(ValueError, match="keys cannot be removed"):
        f.remove(1)
    with pytest.raises(ValueError, match="a layer is of kind 3"):
        _native.AdaptiveStacked._begin_with(tamis.Cuckoo(5, fpr=0.1)._handle, None, 0, b"", 5)

    class Wrong:
        def scan(self):
            return [[1, 2]]

    with pytest.raises(TypeError, match=r"remote.scan\(\) returned list"):
        tiny("bloom", keys=range(100)).adapt_many(range(1000, 3000), Wrong())
    with pytest.raises(ValueError, match="another kind"):
        _native.AdaptiveStacked(tamis.Bloom(5, fpr=0.1)._handle)


def test_shapes_are_short_and_below_the_curve():
    curve = Zipf(1.1, 10**7, 10**6)
    short = shape(curve)
    assert len(short.ranks) <= 128
    ranks = np.geomspace(1, 10**6, 1000).astype(int)
    assert (short.psi(ranks) <= curve.psi(ranks) + 1e-12).all()
    assert short.psi(ranks) == pytest.approx(curve.psi(ranks), rel=0.01)
    few = Steps.of(np.array([3, 2, 1]))
    assert shape(few) is few
    assert shape(Zipf(1.0, 1, 0)).size == 0


def test_a_workload_is_required():
    with pytest.raises(TypeError, match=r"workload must be a tamis.Workload, .*, not NoneType"):
        tamis.AdaptiveStacked(100, None, fpr=0.01)
