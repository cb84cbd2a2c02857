"""Constraints, sizes, costs and the plan as an object."""

import math

import numpy as np
import pytest
from stacks import MILLION, simulated

import tamis
from tamis.planning import kinds
from tamis.planning.plan import Plan
from tamis.planning.stacked import predictions


def test_sizes_concentrate():
    rng = np.random.default_rng(2)
    keys, negatives, rates, size = 4000, 12_000, [0.1] * 5, 4.8
    sizes = []
    for _ in range(300):
        _, _, items, _ = simulated(rates, keys, negatives, 1, rng)
        sizes.append(size * sum(items))
    mean = size * predictions.items(rates, keys, negatives).sum()
    off = np.mean(np.abs(np.array(sizes) / mean - 1) > 0.02)
    assert off <= predictions.concentration(rates, [size] * 5, keys, negatives, 0.02)


@pytest.mark.parametrize("kind", ["bloom", "cuckoo", "quotient", "fuse", "ribbon"])
@pytest.mark.parametrize("last", ["alternating", "exact"])
def test_constraints_are_kept(kind, last, zipf):
    for keys in (3000, MILLION):
        for options in ({"bits_per_key": 11}, {"fpr": 0.003}):
            plan = tamis.plan(
                keys, zipf, layer=kind, last=last, max_fpr_bound=0.02, max_checks=1.03, **options
            )
            assert plan.fpr_bound <= 0.02
            assert plan.expected_checks <= 1.03
            assert plan.bits_per_key <= options.get("bits_per_key", math.inf)
            assert plan.expected_fpr <= options.get("fpr", 1)


@pytest.mark.parametrize("kind", ["auto", "bloom", "cuckoo", "quotient", "fuse", "ribbon"])
def test_a_bound_below_the_rate_is_kept(kind, zipf):
    """It takes no more than a plain filter of that rate, which keeps to both."""
    for keys in (10, 1000, MILLION):
        p = tamis.plan(keys, zipf, layer=kind, fpr=0.1, max_fpr_bound=0.01)
        assert p.fpr_bound <= 0.01
        assert p.bits <= tamis.plan(keys, layer=kind, fpr=0.01).bits


def test_few_keys_keep_to_every_constraint():
    """In layers of a few whole bits, what a search over rates finds may exceed its constraints:
    there is a plan for all the same."""
    w = tamis.Workload.zipf(1.0, universe=30, sample=10)
    for keys in range(1, 13):
        for bound in (0.005, 0.01, 0.02, 0.05):
            for checks in (1.1, 1.5):
                p = tamis.plan(
                    keys, w, fpr=0.1, max_fpr_bound=bound, max_checks=checks, rates="equal"
                )
                assert p.expected_fpr <= 0.1
                assert p.fpr_bound <= bound
                assert p.expected_checks <= checks


@pytest.mark.parametrize(
    ("keys", "budget", "share"),
    [(15, 7, 0.8), (20, 7, 0.9), (50, 5, 0.97), (200, 5, 0.999), (200, 7, 0.99)],
)
def test_whole_bits_leave_slack_under_a_bound(keys, budget, share):
    """In whole bits the best stack exceeds a bound that it keeps in fractions; another does not."""
    w = tamis.Workload.zipf(1.5, universe=10_000, sample=100)
    free = tamis.plan(keys, w, layer="bloom", rates="equal", bits_per_key=budget)
    bound = share * free.fpr_bound
    p = tamis.plan(keys, w, layer="bloom", rates="equal", bits_per_key=budget, max_fpr_bound=bound)
    assert p.fpr_bound <= bound
    assert p.bits_per_key <= budget


@pytest.mark.parametrize("items", [1, 40, 300, 5000, 120_000])
def test_planned_sizes_are_built_sizes(items):
    keys = np.arange(items)
    cuckoo = tamis.Cuckoo.build(keys, fpr=2**-6)
    quotient = tamis.Quotient.build(keys, fpr=2**-9)
    for kind, built, length in (
        ("cuckoo", cuckoo, cuckoo.fingerprint_bits),
        ("quotient", quotient, quotient.remainder_bits),
        ("fuse", tamis.Fuse.build(keys, fpr=2**-9, arity=4), 9),
        ("ribbon", tamis.Ribbon.build(keys, fpr=2**-9), 9),
    ):
        bits, rate = kinds.fingerprint_layer(kind, items, length)
        assert built.size_in_bits <= bits <= 1.02 * built.size_in_bits + 64 * (length + 3) + 64
        assert rate == pytest.approx(built.expected_fpr, rel=0.02)


def test_costs_and_penalties_lower_the_checks(zipf):
    """Where checks are dear and reads cheap, fewer checks are worth more wrong answers."""
    options = {"bits_per_key": 10, "layer": "quotient"}
    free = tamis.plan(MILLION, zipf, **options)
    dear = tamis.plan(MILLION, zipf, miss_cost=1, check_cost=100, **options)
    assert dear.expected_checks < free.expected_checks
    assert dear.expected_fpr > free.expected_fpr
    keys_matter = tamis.plan(MILLION, zipf, penalties=[1000, 0, 0], **options)
    assert keys_matter.checks.keys <= free.checks.keys


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({}, ValueError, "pass exactly one of fpr or bits_per_key"),
        ({"fpr": 0.1, "bits_per_key": 1}, ValueError, "pass exactly one of fpr or bits_per_key"),
        (
            {"bits_per_key": 10, "layer": "xor"},
            ValueError,
            "layer must be 'auto', 'bloom', 'cuckoo', 'quotient', 'fuse' or 'ribbon', not 'xor'",
        ),
        (
            {"bits_per_key": 10, "last": "first"},
            ValueError,
            "last must be 'auto', 'alternating' or 'exact', not 'first'",
        ),
        (
            {"bits_per_key": 10, "rates": "odd"},
            ValueError,
            "rates must be 'varied' or 'equal', not 'odd'",
        ),
        (
            {"bits_per_key": 10, "layer": "fuse", "updates": True},
            ValueError,
            "layer, with updates=True, must be 'bloom', 'cuckoo' or 'quotient', not 'fuse'",
        ),
        (
            {"bits_per_key": 10, "last": "exact", "updates": True},
            ValueError,
            "last must not be 'exact'",
        ),
        (
            {"bits_per_key": 10, "max_checks": 0.5},
            ValueError,
            "max_checks must be at least 1, .* not 0.5",
        ),
        (
            {"bits_per_key": 10, "max_fpr_bound": math.nan},
            ValueError,
            "max_fpr_bound must be a positive number",
        ),
        (
            {"bits_per_key": 10, "max_fpr_bound": "x"},
            TypeError,
            "max_fpr_bound must be a positive number, not 'x'",
        ),
        ({"bits_per_key": 10, "miss_cost": 1}, ValueError, "pass both of miss_cost and check_cost"),
        ({"bits_per_key": 10, "penalties": [1, 2]}, ValueError, "three numbers"),
        ({"fpr": 0.1, "penalties": [1, 2, 3]}, ValueError, "pass bits_per_key with costs"),
        ({"bits_per_key": 3, "layer": "cuckoo"}, ValueError, "must be at least 4.22 .* not 3"),
        ({"bits_per_key": 10, "max_fpr_bound": 1e-9}, ValueError, "without max_fpr_bound there"),
        ({"fpr": 1e-30}, ValueError, "fpr must be at least 5.5e-20 for a stack, not 1e-30"),
        ({"fpr": 1e-13, "layer": "ribbon"}, ValueError, "fpr must be at least 4.3e-12 for ribbon"),
    ],
)
def test_bad_options(options, error, says, zipf):
    with pytest.raises(error, match=says):
        tamis.plan(MILLION, zipf, **options)


def test_a_plan_that_is_none():
    with pytest.raises(ValueError, match="not a plan"):
        Plan.from_json("[]")
    with pytest.raises(ValueError, match="psi must be a number from 0 to 1, not 2"):
        tamis.plan(10, bits_per_key=10).rate_at(2)
    with pytest.raises(ValueError, match=r"n_keys must be from 0 to \d+, not -1"):
        tamis.plan(-1, bits_per_key=10)


def test_a_plan_is_drawn(zipf):
    pytest.importorskip("matplotlib").use("agg")
    ax = tamis.plan(MILLION, zipf, bits_per_key=10).plot()
    assert "ribbon" in ax.get_title()


@pytest.mark.parametrize("kind", ["cuckoo", "fuse", "quotient", "ribbon"])
def test_an_exact_plan_of_every_kind_is_built(kind):
    """Only ribbons have fractions of a column: the lengths of others are whole numbers."""
    queries = [f"good{i % 500}" for i in range(5000)]
    workload = tamis.Workload.from_queries(queries)
    plan = tamis.plan(2000, workload, bits_per_key=9, layer=kind, last="exact")
    keys = [str(i) for i in range(2000)]
    f = plan.build(keys)
    assert f.contains(keys).all()
    assert not f.contains(queries).any()
