"""The known negatives of a stack: more or fewer than planned, some of them keys, in any form."""

import dataclasses

import numpy as np
import pytest
from contract import FIRST_NEGATIVE, alternating, planned, stack

import tamis
from tamis.testing.filters import SIGMAS


@pytest.mark.parametrize("options", [{"layer": "bloom", "rates": "equal"}, {"layer": "cuckoo"}])
def test_more_negatives_than_planned_cost_a_few_of_them_and_not_the_last_layers(options):
    n = 50_000
    asked = tamis.Workload.zipf(1.0, 100 * n, 50 * n)
    plan = tamis.plan(n, asked, bits_per_key=10, last="alternating", **options)
    left_out = 0
    for seed in range(6):
        known = (1 << 40) + np.arange(plan.negatives)
        f = plan.build(np.arange(n), negatives=known, seed=seed)
        assert f.size_in_bits <= 10 * n
        assert f.expected_fpr <= 1.025 * plan.expected_fpr
        assert 0.98 * plan.psi < f.psi <= plan.psi
        left_out += f.psi < plan.psi
        most = known[: len(known) * 9 // 10]  # the least frequent are left out
        assert f.contains(most).mean() <= f.known_fpr + 3e-5
    assert left_out >= 2  # chance exceeds the plan in about half of the builds


def test_no_negatives_are_left_out_where_all_are_equally_frequent():
    n = 100_000
    asked = tamis.Workload.from_shape(np.ones(n))
    plan = tamis.plan(n, asked, bits_per_key=10, layer="bloom", last="alternating", rates="equal")
    known = (1 << 40) + np.arange(n)
    for seed in range(6):
        f = plan.build(np.arange(n), negatives=known, seed=seed)
        assert f.psi == 1
        assert f.size_in_bits <= 10 * n
        assert f.expected_fpr < 3e-4


def test_negatives_come_as_they_like():
    keys = np.arange(1000)
    negatives = np.arange(500, 400_500)
    shuffled = np.random.default_rng(5).permutation(np.concatenate([negatives, negatives[:777]]))
    whole = stack(alternating("quotient"), 3, keys, negatives)
    assert whole.keys_among_negatives == 500
    for other in (
        shuffled,
        shuffled.tolist(),
        iter(np.array_split(shuffled, 7)),
        (part.tolist() for part in np.array_split(negatives, 3)),
        iter([[], negatives]),
    ):
        f = stack(alternating("quotient"), 3, keys, other)
        assert f.to_bytes() == whole.to_bytes()
    pa = pytest.importorskip("pyarrow")
    batches = pa.table({"n": negatives}).to_batches(max_chunksize=99_999)
    f = stack(alternating("quotient"), 3, keys, iter(batches))
    assert f.to_bytes() == whole.to_bytes()


def test_bad_negatives_are_named():
    for bad, error in (
        ([1, None], TypeError),
        ([1.5], TypeError),
        (iter([[1], ["\ud800"]]), TypeError),
    ):
        with pytest.raises(error, match="keys"):
            stack(alternating("bloom"), 3, range(10), bad)


def weighted_rate(f, asked, weights):
    """The rate over these absent keys by frequency, and its deviation: a filter errs per key."""
    p = f.contains(asked)
    deviation = np.sqrt((weights**2 * np.where(p, 1, f.expected_fpr)).sum())
    return (weights * p).sum() / weights.sum(), deviation / weights.sum()


@pytest.mark.parametrize("last", ["alternating", "exact"])
@pytest.mark.parametrize("given", [10, 1000, None], ids=str)
def test_fewer_negatives_than_planned_are_less_of_the_queries(last, given):
    w = tamis.Workload.zipf(1.0, universe=10**5, sample=5 * 10**4)
    asked = np.arange(FIRST_NEGATIVE, FIRST_NEGATIVE + 10**5)
    weights = 1 / np.arange(1, 10**5 + 1)
    rates, expected, spread = [], [], []
    for seed in range(5):
        f = tamis.Stacked.build(
            range(10_000), w, negatives=asked[:given], bits_per_key=8, last=last, seed=seed
        )
        rate, deviation = weighted_rate(f, asked, weights)
        rates.append(rate)
        expected.append(f.expected_fpr)
        spread.append(deviation)
    if given is not None:
        assert f.psi == pytest.approx(w.psi(given))
    assert abs(np.mean(rates) - np.mean(expected)) < SIGMAS * np.linalg.norm(spread) / 5


@pytest.mark.parametrize("shards", [None, 4])
def test_negatives_that_are_keys_are_none_of_the_queries_for_absent_keys(shards):
    """The most frequent negatives are keys: what is left of the workload is flatter."""
    w = tamis.Workload.zipf(1.0, universe=10**5, sample=5 * 10**4)
    negatives = np.arange(5 * 10**4)
    keys = np.arange(0, 40_000, 4)  # the first, fifth, ... of the negatives
    absent = np.setdiff1d(np.arange(10**5), keys)
    weights = 1 / (1.0 + absent)
    psi = (1 / (1.0 + np.setdiff1d(negatives, keys))).sum() / weights.sum()
    options = {"workload": w, "negatives": negatives, "bits_per_key": 8, "last": "exact"}
    if shards is None:
        f = tamis.Stacked.build(keys, **options)
        assert f.keys_among_negatives == len(keys)
        assert f.psi == pytest.approx(psi, rel=1e-6)
    else:
        f = tamis.Sharded.build(keys, filter=tamis.Stacked, shards=shards, **options)
    rate, deviation = weighted_rate(f, absent, weights)
    assert abs(rate - f.expected_fpr) < SIGMAS * deviation


def test_a_plan_takes_as_many_negatives_as_it_says():
    plan = dataclasses.replace(planned(("ribbon", "function"), 1), negatives=5000)
    pa = pytest.importorskip("pyarrow")
    negatives = np.arange(1000, 9000)
    whole = plan.build(range(1000), negatives=negatives[:5000])
    for column in (
        negatives,
        negatives.tolist(),
        range(1000, 9000),
        pa.array(negatives),
        pa.table({"n": negatives}),
        iter(np.array_split(negatives, 11)),
    ):
        assert plan.build(range(1000), negatives=column).to_bytes() == whole.to_bytes()
    with pytest.raises(
        ValueError, match="pass negatives: the plan has no workload to take them from"
    ):
        plan.build(range(1000))


def test_without_negatives_it_is_the_plain_filter():
    asked = np.arange(50_000)
    plain = tamis.Ribbon.build(range(3000), fpr=2**-5)
    f = stack(alternating("ribbon"), 5, range(3000), [])
    assert len(f.layers) == 1
    assert f.size_in_bits == plain.size_in_bits
    assert (f.contains(asked) == plain.contains(asked)).all()
    assert f.expected_fpr == f.fpr_bound == f.known_fpr == plain.expected_fpr
