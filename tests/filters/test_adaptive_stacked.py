"""Adaptive stacks: no key denied while they grow, rates as predicted, shifts noticed."""

import numpy as np
import pytest
from adaptive_stacks import KINDS, SHAPE, UNIVERSE, _quotient, _version
from stand_in import tiny

import tamis
from tamis import _native
from tamis.planning import bloom
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
from tamis.planning.stacked import predictions
from tamis.planning.stacked.frequencies import Zipf
from tamis.planning.stacked.goal import Goal
from tamis.planning.stacked.lifetime import (
    fitted,
    mean_rate,
    queries_for,
    seen,
    three_layers,
)
from tamis.stores import Hashes
from tamis.testing.filters import within_noise


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

    def step(layers=3, items=0, capacity=0, collecting=0, queries=0, false_positives=0, strikes=0):
        counts = Counts(layers, items, capacity, collecting, queries, false_positives, strikes)
        return next_step(plan, counts, lambda: 0.01)

    assert step(1, items=5, capacity=6) == "wait"
    assert step(1, items=6, capacity=6) == "grow"
    assert step(1, items=1, capacity=6, collecting=n) == "grow"
    assert step(1, items=0, capacity=6, collecting=n) == "wait"
    assert step(queries=6000, false_positives=63) == "wait"  # too few to tell
    assert step(queries=10_000, false_positives=140) == "as expected"
    assert step(queries=10_000, false_positives=160) == "drop"
    assert step(queries=10_000, false_positives=160, strikes=1) == "remodel"
    assert step(queries=10_000, false_positives=49) == "remodel"
    assert step(queries=900, false_positives=500) == "wait"
    assert step(1, capacity=6, queries=10_000, false_positives=600) == "wait"
    assert (
        step(1, queries=10_000, false_positives=500) == "wait"
    )  # nothing is collected: it observes
    assert step(1, queries=10_000, false_positives=600) == "remodel"


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
        bits = (predictions.items(all_three, keys, negatives) * bits_per_item(all_three)).sum(
            axis=-1
        )
        value = mean_rate(one, predictions.expected_rate(all_three, psi), n, lifetime)
        allowed = (bits <= goal.budget) & (value <= goal.fpr)
        best = min(best, np.where(allowed, bits if smallest else value, np.inf).min())
    observations, found = three_layers(goal, "bloom", curve, lifetime)
    assert goal.score(found) <= best
    assert goal.score(found) >= 0.8 * best  # the grid is coarse, but not by more
    # And it is what it says it is.
    psi, negatives = exactly(curve, observations)
    bits = (predictions.items(found.rates, keys, negatives) * bits_per_item(found.rates)).sum()
    value = mean_rate(
        found.rates[0], predictions.expected_rate(found.rates, psi), observations, lifetime
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
