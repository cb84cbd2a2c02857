"""Plans: their numbers against the formulas, optima against neighbours and brute force."""

import dataclasses
import functools
import itertools
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from stacks import MILLION, simulated

import tamis
from tamis.planning import kinds
from tamis.planning.plan import Plan
from tamis.planning.stacked import any_rate, exact, integer_lengths, predictions
from tamis.planning.stacked.frequencies import Zipf
from tamis.planning.stacked.goal import Goal
from tamis.planning.stacked.sweep import sweep


@pytest.mark.parametrize("rates", [[0.3], [0.3, 0.2, 0.4], [0.5, 0.6, 0.3, 0.7, 0.5]])
def test_metrics_by_simulation(rates):
    n = 200_000
    stored, other, items, checks = simulated(rates, n, n, n, np.random.default_rng(1))
    near = 5 / math.sqrt(n)
    assert predictions.frequent_rate(rates) == pytest.approx(stored, abs=near)
    assert predictions.infrequent_rate(rates) == pytest.approx(other, abs=near)
    assert predictions.items(rates, n, n) == pytest.approx(items, abs=5 * math.sqrt(n))
    assert predictions.checks(rates) == pytest.approx(checks, abs=5 * near)
    insertions, lookups = predictions.construction(rates, n, n)
    assert insertions == pytest.approx(sum(items), rel=0.01)
    # A layer is asked by whoever of the other set is still undecided, unless it is the last.
    asked = [n, *items[:-2], items[-2]][1:] if len(rates) > 1 else []
    asked = [n] + [items[i - 1] for i in range(1, len(rates) - 1)] if asked else []
    assert lookups == pytest.approx(sum(asked), rel=0.01)


def test_equal_rates_are_the_general_formula():
    for rate, depth, psi, ratio in itertools.product((0.01, 0.3), (1, 3, 7), (0, 0.6), (0.5, 5)):
        rates = [rate] * depth
        assert predictions.equal_rate(rate, depth, psi) == pytest.approx(
            predictions.expected_rate(rates, psi)
        )
        per_key = predictions.items(rates, 1, ratio).sum()
        assert predictions.equal_size(rate, depth, ratio) == pytest.approx(per_key)


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
    shortest = kinds.KINDS[kind].lengths.start
    for chosen in itertools.product(range(shortest, longest + 1), repeat=depth):
        waiting, sizes, found = [float(keys), float(negatives)], 0, []
        for i, length in enumerate(chosen):
            size, rate = kinds.fingerprint_layer(kind, math.ceil(waiting[i % 2]), length)
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
        expected, bound = predictions.expected_rate(rates, psi), predictions.infrequent_rate(rates)
        checks = predictions.checks(rates)
        allowed = goal.allowed(expected, bound, psi, checks, bits)
        score = goal.objective(bits, goal.cost(expected, psi, checks, kind))
        best = min(best, score[allowed].min(initial=math.inf))
    return best


@pytest.mark.parametrize("kind", ["cuckoo", "quotient", "fuse", "ribbon"])
@pytest.mark.parametrize(
    "goal",
    [
        Goal(5000, budget=5000 * 7),
        Goal(5000, budget=5000 * 9.4, max_fpr_bound=0.03),
        Goal(5000, budget=5000 * 8, max_checks=1.1),
        Goal(5000, budget=5000 * 8, penalties=predictions.Checks(0.5, 0.1, 0.3), present=0.4),
        Goal(5000, budget=5000 * 8, miss_cost=100, check_cost=1),
        Goal(5000, fpr=0.02),
        Goal(5000, fpr=0.005, max_fpr_bound=0.02),
    ],
)
def test_lengths_by_brute_force(kind, goal, monkeypatch):
    longest = 7 if kind != "cuckoo" else 9
    few = range(kinds.KINDS[kind].lengths.start, longest + 1)
    monkeypatch.setitem(kinds.KINDS, kind, dataclasses.replace(kinds.KINDS[kind], lengths=few))
    monkeypatch.setattr(integer_lengths, "MAX_LAYERS", 5)
    for negatives, psi in ((3000, 0.5), (40_000, 0.9)):
        best = brute_force(kind, goal, negatives, psi, longest)
        found = integer_lengths.search_for(kind)(goal, negatives, psi)
        if math.isinf(best):
            assert found is None
        else:
            assert found is not None
            assert best * (1 - 1e-12) <= goal.score(found) <= best * (1 + 2 * integer_lengths.SLACK)


@pytest.mark.parametrize("goal", [Goal(1000, budget=9000), Goal(1000, fpr=0.01)])
@pytest.mark.parametrize("exponent", [0.6, 1.0, 1.3])
@pytest.mark.parametrize(
    "search",
    [
        any_rate.search_equal("bloom"),
        exact.search_for("ribbon"),
        integer_lengths.search_for("quotient"),
    ],
)
def test_the_sweep_leaves_out_nothing_better(goal, exponent, search):
    curve = Zipf(exponent, 20_000, 3000)
    found = sweep(search, goal, curve, 0.01)
    numbers = {*range(1, 3001, 29), 3000, found.negatives or 1}
    every = [search(goal, n, curve.psi(n)) for n in sorted(numbers)]
    best = min(goal.score(stack) for stack in every if stack)
    assert goal.score(found) <= best * 1.011 + (2 if goal.minimizes_bits else 0)


NEARLY_ALL_KNOWN = """
import numpy as np, tamis
zipf, shape = tamis.Workload.zipf, tamis.Workload.from_shape
tamis.Stacked.build(range(1000), tamis.Workload.from_queries([-5] * 1000), bits_per_key=10)
everything = tamis.Workload.from_queries(list(range(1000)) * 10)
steep = shape(np.arange(1.0, 10**6 + 1) ** -2, unseen=1e-8)
for keys, w, options in [
    (10**4, zipf(exponent=1.0, universe=1000), dict(bits_per_key=10)),
    (10**5, zipf(3.0, universe=10**8, sample=5 * 10**7), dict(bits_per_key=10)),
    (500, everything, dict(bits_per_key=10)),
    (10**5, zipf(2.0, 10**6), dict(bits_per_key=40, last="alternating")),
    (10**9, shape([1], unseen=1e-12), dict(fpr=1e-12, layer="ribbon")),
    (10**7, shape(np.ones(10)), dict(fpr=1e-12, updates=True)),
    (1000, steep, dict(bits_per_key=20, layer="cuckoo")),
]:
    p = tamis.plan(keys, w, **options)
    assert p.bits_per_key <= options.get("bits_per_key", np.inf)
    assert p.expected_fpr <= options.get("fpr", 1)
tamis.advise(10**7, steep, bits_per_key=2, needs={"store"})
"""


@pytest.mark.parametrize("options", [{"fpr": 0.01}, {"bits_per_key": 8}])
@pytest.mark.parametrize("layer", ["auto", "ribbon", "bloom", "fuse"])
def test_a_plan_may_be_for_no_keys(options, layer):
    """A list may be empty today."""
    log = tamis.Workload.from_queries(["a", "a", "b"])
    for workload in (None, log):
        p = tamis.plan(0, workload, layer=layer, **options)
        assert p.expected_fpr <= options.get("fpr", 1)
    f = tamis.Stacked.build([], log, layer=layer, **options)
    assert len(f) == 0
    assert f.expected_fpr <= options.get("fpr", 1)


def test_planning_ends_where_nearly_all_queries_are_known():
    subprocess.run([sys.executable, "-c", NEARLY_ALL_KNOWN], check=True, timeout=600)


def test_a_few_prefixes_find_nearly_the_best(monkeypatch):
    """A search that has to leave stacks out does so where they hardly differ."""
    w = tamis.Workload.from_shape(np.arange(1.0, 10**6 + 1) ** -2, unseen=1e-4)
    options = {"layer": "ribbon", "last": "alternating", "fpr": 1e-4}
    best = tamis.plan(10**5, w, **options)
    monkeypatch.setattr(integer_lengths, "PREFIXES", 1000)
    assert best.bits <= tamis.plan(10**5, w, **options).bits <= 1.05 * best.bits


def test_where_all_is_known_the_budget_lowers_the_bound():
    """Every rate of the first layer is as good; the lowest is so if the workload changes, too."""
    w = tamis.Workload.from_queries([-5] * 1000)
    p = tamis.plan(1000, w, bits_per_key=10)
    assert p.expected_fpr < 1e-18
    assert p.fpr_bound < 0.01


@pytest.mark.parametrize("keys", [10, 1000])
@pytest.mark.parametrize(
    "options", [{"bits_per_key": b} for b in (4, 10)] + [{"fpr": 0.01}], ids=str
)
@pytest.mark.parametrize(
    "workload",
    [
        tamis.Workload.zipf(1.0, universe=10**4),
        tamis.Workload.zipf(0.7, universe=10**6),
        tamis.Workload.zipf(1.3, universe=10**5, sample=10**4),
        tamis.Workload.from_shape(np.ones(100), unseen=1e-6),
    ],
    ids=["all known", "flat", "steep", "nearly all known"],
)
def test_more_freedom_is_never_worse(keys, options, workload):
    """Of layers, how the stack ends, and different rates; but for the tolerance of the search."""

    def score(**freedom):
        try:
            p = tamis.plan(keys, workload, **options, **freedom)
        except ValueError:
            return math.inf
        return p.bits if "fpr" in options else max(p.expected_fpr, 1e-15)

    auto = score()
    for last in ("alternating", "exact"):
        best = score(last=last)
        assert auto <= best * 1.01
        for kind in ("bloom", "cuckoo", "quotient", "fuse", "ribbon"):
            one = score(last=last, layer=kind)
            assert best <= one * 1.01
            assert score(layer=kind) <= one * 1.01
    assert score(last="alternating", layer="bloom") <= score(
        last="alternating", layer="bloom", rates="equal"
    )


@pytest.mark.parametrize("bits", [100, 1000, 4096])
@pytest.mark.parametrize("layer", ["auto", "bloom", "ribbon"])
def test_a_budget_beyond_all_use(bits, layer):
    w = tamis.Workload.zipf(1.0, universe=10**6, sample=10**5)
    p = tamis.plan(10**5, w, bits_per_key=bits, layer=layer)
    assert p.bits_per_key <= 100
    assert p.expected_fpr <= (2**-33 if layer == "ribbon" else 2**-64)


@pytest.mark.parametrize("kind", ["bloom", "cuckoo", "quotient", "fuse", "ribbon"])
def test_the_lowest_rate_can_be_had(kind, zipf):
    """What the message says is possible is, and what is a little lower is not."""
    with pytest.raises(ValueError, match="fpr must be at least") as error:
        tamis.plan(1000, zipf, fpr=5.5e-20 if kind != "bloom" else 1e-20, layer=kind)
    least = float(str(error.value).split()[5])
    assert tamis.plan(1000, zipf, fpr=least, layer=kind).expected_fpr <= least
    with pytest.raises(ValueError, match="fpr must be at least"):
        tamis.plan(1000, zipf, fpr=0.9 * least, layer=kind)
