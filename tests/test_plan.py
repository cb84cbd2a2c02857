"""Plans: their numbers against the formulas, optima against neighbours and brute force."""

import functools
import itertools
import math
import pickle

import numpy as np
import pytest

import tamis
from tamis.planning import layers
from tamis.planning.plan import Plan
from tamis.planning.stacked import equal, exact, lengths, metrics
from tamis.planning.stacked.curve import Steps, Zipf
from tamis.planning.stacked.goal import Goal
from tamis.planning.stacked.sweep import sweep

MILLION = 1_000_000


@pytest.fixture(scope="module")
def zipf():
    """The paper's setting."""
    return tamis.Workload.zipf(1.0, universe=10**8, sample=5 * 10**7)


def simulated(rates, keys, negatives, others, rng):
    """A stack of coins: who passes which layer, counted.

    Returns the shares of stored and other negatives that are accepted, the items of each layer,
    and the layers met by keys, stored and other negatives.
    """
    shape = {"keys": keys, "negatives": negatives, "others": others}
    alive = {name: np.ones(count, bool) for name, count in shape.items()}
    met = {name: np.zeros(count) for name, count in shape.items()}
    accepted = {name: np.zeros(count, bool) for name, count in shape.items()}
    items = []
    for i, rate in enumerate(rates):
        stored = "keys" if i % 2 == 0 else "negatives"
        items.append(int(alive[stored].sum()))
        for name in shape:
            met[name] += alive[name]
            passed = alive[name] & ((name == stored) | (rng.random(shape[name]) < rate))
            if i % 2:
                accepted[name] |= alive[name] & ~passed
            alive[name] = passed
    for name in shape:
        accepted[name] |= alive[name]
    assert accepted["keys"].all()
    checks = [met[name].mean() for name in shape]
    return accepted["negatives"].mean(), accepted["others"].mean(), items, checks


@pytest.mark.parametrize("rates", [[0.3], [0.3, 0.2, 0.4], [0.5, 0.6, 0.3, 0.7, 0.5]])
def test_metrics_by_simulation(rates):
    n = 200_000
    stored, other, items, checks = simulated(rates, n, n, n, np.random.default_rng(1))
    near = 5 / math.sqrt(n)
    assert metrics.frequent_rate(rates) == pytest.approx(stored, abs=near)
    assert metrics.infrequent_rate(rates) == pytest.approx(other, abs=near)
    assert metrics.items(rates, n, n) == pytest.approx(items, abs=5 * math.sqrt(n))
    assert metrics.checks(rates) == pytest.approx(checks, abs=5 * near)
    insertions, lookups = metrics.construction(rates, n, n)
    assert insertions == pytest.approx(sum(items), rel=0.01)
    # A layer is asked by whoever of the other set is still undecided, unless it is the last.
    asked = [n, *items[:-2], items[-2]][1:] if len(rates) > 1 else []
    asked = [n] + [items[i - 1] for i in range(1, len(rates) - 1)] if asked else []
    assert lookups == pytest.approx(sum(asked), rel=0.01)


def test_equal_rates_are_the_general_formula():
    for rate, depth, psi, ratio in itertools.product((0.01, 0.3), (1, 3, 7), (0, 0.6), (0.5, 5)):
        rates = [rate] * depth
        assert metrics.equal_rate(rate, depth, psi) == pytest.approx(
            metrics.expected_rate(rates, psi)
        )
        per_key = metrics.items(rates, 1, ratio).sum()
        assert metrics.equal_size(rate, depth, ratio) == pytest.approx(per_key)


def test_plans_of_the_papers_setting(zipf):
    bloom = tamis.plan(MILLION, zipf, bits_per_key=10, layer="bloom", last="alternating")
    assert bloom.expected_fpr <= 0.00175
    auto = tamis.plan(MILLION, zipf, bits_per_key=10)
    assert auto.expected_fpr <= 0.0001
    flatter = tamis.Workload.zipf(0.75, universe=10**8, sample=5 * 10**7)
    assert tamis.plan(MILLION, flatter, bits_per_key=10).expected_fpr <= 0.0004
    for plan in (bloom, auto):
        assert plan.bits_per_key <= 10
        assert plan.bits == sum(layer.bits for layer in plan.layers)
        assert Plan.from_json(plan.to_json()) == plan
        assert pickle.loads(pickle.dumps(plan)) == plan
        assert plan.rate_at(plan.psi) == pytest.approx(plan.expected_fpr)
        assert plan.rate_at(0) == plan.fpr_bound


@functools.cache
def every_stack(kind, keys, negatives, longest, depth):
    """Rates and bits of all stacks of this depth, as arrays."""
    rates, bits = [], []
    shortest = layers.KINDS[kind].shortest
    for chosen in itertools.product(range(shortest, longest + 1), repeat=depth):
        waiting, sizes, found = [float(keys), float(negatives)], 0, []
        for i, length in enumerate(chosen):
            size, rate = layers.fingerprints(kind, math.ceil(waiting[i % 2]), length)
            waiting[1 - i % 2] *= rate
            sizes += size
            found.append(rate)
        rates.append(found)
        bits.append(sizes)
    return np.array(rates), np.array(bits, float)


def brute_force(kind, goal, negatives, psi, longest):
    """The best of all stacks, with the metrics of the general formulas."""
    best = math.inf
    for depth in (1, 3, 5):
        rates, bits = every_stack(kind, goal.keys, negatives, longest, depth)
        expected, bound = metrics.expected_rate(rates, psi), metrics.infrequent_rate(rates)
        checks = metrics.checks(rates)
        allowed = goal.allowed(expected, bound, psi, checks, bits)
        score = bits if goal.smallest else goal.value(expected, psi, checks, 1.0)
        best = min(best, score[allowed].min(initial=math.inf))
    return best


@pytest.mark.parametrize("kind", ["cuckoo", "quotient", "fuse", "ribbon"])
@pytest.mark.parametrize(
    "goal",
    [
        Goal(5000, budget=5000 * 7),
        Goal(5000, budget=5000 * 9.4, max_fpr_bound=0.03),
        Goal(5000, budget=5000 * 8, max_checks=1.1),
        Goal(5000, budget=5000 * 8, penalties=metrics.Checks(0.5, 0.1, 0.3), present=0.4),
        Goal(5000, budget=5000 * 8, miss_cost=100, check_cost=1),
        Goal(5000, fpr=0.02),
        Goal(5000, fpr=0.005, max_fpr_bound=0.02),
    ],
)
def test_lengths_by_brute_force(kind, goal, monkeypatch):
    longest = 7 if kind != "cuckoo" else 9
    short = dict(layers.KINDS)
    short[kind] = layers.Kind(kind, True, True, 1.0, layers.KINDS[kind].shortest, longest)
    monkeypatch.setattr(layers, "KINDS", short)
    monkeypatch.setattr(lengths, "KINDS", short)
    monkeypatch.setattr(lengths, "DEEPEST", 5)
    for negatives, psi in ((3000, 0.5), (40_000, 0.9)):
        best = brute_force(kind, goal, negatives, psi, longest)
        found = lengths.search_for(kind)(goal, negatives, psi)
        if math.isinf(best):
            assert found is None
        else:
            assert found is not None
            assert best * (1 - 1e-12) <= goal.score(found) <= best * (1 + 2 * lengths.SLACK)


@pytest.mark.parametrize("goal", [Goal(1000, budget=9000), Goal(1000, fpr=0.01)])
@pytest.mark.parametrize("exponent", [0.6, 1.0, 1.3])
@pytest.mark.parametrize(
    "search", [equal.search, exact.search_for("ribbon"), lengths.search_for("quotient")]
)
def test_the_sweep_leaves_out_nothing_better(goal, exponent, search):
    curve = Zipf(exponent, 20_000, 3000)
    found = sweep(search, goal, curve, 0.01)
    numbers = {*range(1, 3001, 29), 3000, found.negatives or 1}
    every = [search(goal, n, curve.psi(n)) for n in sorted(numbers)]
    best = min(goal.score(stack) for stack in every if stack)
    assert goal.score(found) <= best * 1.011 + (2 if goal.smallest else 0)


def test_curves():
    ranks = np.arange(1, 100_001, dtype=float)
    for exponent in (0.5, 1.0, 1.25):
        frequencies = ranks**-exponent
        frequencies /= frequencies.sum()
        shape = Zipf(exponent, 100_000, 80_000)
        steps = Steps.of(frequencies[:80_000], total=frequencies[:80_000].sum())
        for n in (0, 1, 31, 32, 33, 1000, 80_000):
            assert shape.psi(n) == pytest.approx(frequencies[:n].sum(), rel=1e-8)
            assert steps.psi(n) == pytest.approx(frequencies[:n].sum(), rel=1e-4)
            assert steps.psi(n) <= frequencies[:n].sum() * (1 + 1e-12)
        assert shape.psi(90_000) == shape.psi(80_000)
        for psi in (0.1, 0.5):
            assert shape.psi(shape.rank(psi)) >= psi > shape.psi(shape.rank(psi) - 1)
