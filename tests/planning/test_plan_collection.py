"""The allocation: against a general solver, all ways there are, and neighbours."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import tamis
from tamis.planning import ribbon
from tamis.planning.collection import allocation as planning
from tamis.planning.collection import prices, sliced
from tamis.planning.collection.baselines import top_utility
from tamis.planning.collection.curves import Mixed, Ribbon, Segmented, Truncated
from tamis.planning.collection.prices import optimal
from tamis.planning.collection.reads import Reads, optimal_reads

KINDS = ["truncated", "segmented", "ribbon"]
METHODS = ["proportional", "top utility", "elastic", "greedy"]


def setting(filters, spread, seed=0):
    """Set sizes and utilities as the experiments have them, and the bits of the full filters."""
    rng = np.random.default_rng(seed)
    keys = (10 + rng.lognormal(7, 0.7, filters)).astype(int)
    utility = rng.lognormal(0, spread, filters) if spread else np.ones(filters)
    return keys, utility, int(planning.bloom_size(keys, 1e-4)[0].sum())


def curve_of(kind, bits, hashes, keys):
    cls = Truncated if kind == "truncated" else Segmented
    return cls(*(np.array(each, np.int64) for each in (bits, hashes, keys)))


def binomial_rate(kept, bits, hashes, w):
    """Equation 3 of the paper, summed as it stands, with a fraction w of bits that are set."""
    from math import comb

    p = kept / bits
    return sum(w**v * comb(hashes, v) * p**v * (1 - p) ** (hashes - v) for v in range(hashes + 1))


def exact_rate(kept, bits, hashes, keys):
    """The mean of Equation 3 over the number of bits that the keys set."""
    set_bits, chance = np.arange(bits + 1), np.zeros(bits + 1)
    chance[0] = 1
    for _ in range(hashes * keys):
        moved = chance * (1 - set_bits / bits)
        chance = chance - moved + np.append(0, moved[:-1])
    return float(chance @ [binomial_rate(kept, bits, hashes, w) for w in set_bits / bits])


def test_the_rate_of_truncated_filters_is_the_sum_of_the_paper_over_all_fillings():
    """The paper takes the mean filling: with three keys, that understates the rate by a third."""
    for bits, hashes, keys in ((96, 7, 10), (20, 1, 3), (60, 13, 3), (400, 13, 20), (1000, 13, 40)):
        curve = curve_of("truncated", [bits], [hashes], [keys])
        for kept in (0, bits // 4, bits // 2, bits):
            rate, exact = curve.rate(np.array([kept]))[0], exact_rate(kept, bits, hashes, keys)
            assert exact * 0.995 <= rate <= exact * 1.15


def test_segments_predict_what_the_filter_predicts():
    from tamis.planning.bloom import BloomSize

    for bits, hashes, keys in ((100, 7, 10), (5, 5, 1), (13, 4, 2), (1000, 13, 40)):
        curve = curve_of("segmented", [bits], [hashes], [keys])
        for kept in range(bits + 1):
            expected = BloomSize("segmented", bits, hashes).truncated_rate(keys, kept)
            assert curve.rate(np.array([kept]))[0] == pytest.approx(expected, rel=1e-12)


small = st.lists(
    st.tuples(
        st.integers(2, 9), st.integers(1, 4), st.integers(0, 5), st.sampled_from([0, 1, 1, 2, 9.5])
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("kind", ["truncated", "segmented"])
@settings(max_examples=60, deadline=None)
@given(filters=small, share=st.floats(0, 1.1))
def test_no_other_way_is_better(kind, filters, share):
    """Every allocation of whole bits, tried."""
    bits = [max(m, k) for m, k, _, _ in filters]
    hashes, keys, utility = ([f[i] for f in filters] for i in (1, 2, 3))
    budget = int(share * sum(bits))
    plan = tamis.plan_collection(keys, utility, budget=budget, kind=kind, bits=bits, hashes=hashes)
    assert plan.kept.sum() <= budget
    curve = curve_of(kind, bits, hashes, keys)
    rates = [curve.take(np.array([i] * (m + 1))).rate(np.arange(m + 1)) for i, m in enumerate(bits)]
    best = min(
        sum(u * rate[kept] for u, rate, kept in zip(utility, rates, way, strict=True))
        for way in itertools.product(*(range(m + 1) for m in bits))
        if sum(way) <= budget
    )
    assert np.dot(utility, plan.rates) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("spread", [0, 1, 2])
def test_a_general_solver_finds_no_better(spread):
    keys, utility, total = setting(12, spread)
    utility = utility / utility.sum()
    bits, hashes = planning.bloom_size(keys, 1e-4)
    curve = Truncated(bits, hashes, keys)
    for share in (0.1, 0.3, 0.7):
        budget = int(share * total)
        plan = tamis.plan_collection(keys, utility, budget=budget, kind="truncated")
        found = minimize(
            lambda p, u=utility: u @ curve.rate(p * bits),
            np.full(len(keys), share),
            bounds=[(0, 1)] * len(keys),
            constraints={"type": "ineq", "fun": lambda p, b=budget: (b - p @ bits) / b},
            method="SLSQP",
            options={"maxiter": 500, "ftol": 1e-13},
        )
        assert plan.expected_fpr <= found.fun * (1 + 1e-3)
        assert plan.expected_fpr >= found.fun * (1 - 1e-3) or found.x @ bits < budget * 0.999


@pytest.mark.parametrize("kind", ["truncated", "segmented"])
@pytest.mark.parametrize("spread", [0, 2])
def test_no_neighbour_is_better(kind, spread):
    """No bit does better in another filter."""
    keys, utility, total = setting(3000, spread)
    bits, hashes = planning.bloom_size(keys, 1e-4)
    curve = curve_of(kind, bits, hashes, keys)
    for budget in (1000, total // 7, total // 2, total - 1):
        plan = tamis.plan_collection(keys, utility, budget=budget, kind=kind)
        assert plan.bits == budget
        kept = plan.kept
        gain = utility * (curve.rate(kept) - curve.rate(np.minimum(kept + 1, bits)))
        loss = utility * (curve.rate(np.maximum(kept - 1, 0)) - curve.rate(kept))
        assert gain.max() <= loss[kept > 0].min() * (1 + 1e-6) + 1e-15


def test_columns_of_ribbons_are_as_good_as_their_neighbours():
    keys, utility, total = setting(3000, 1)
    slots, codes = ribbon.column_slots(keys)
    curve = Ribbon(slots, np.full(len(keys), 14), np.minimum(slots, 256), codes, keys)
    for share in (0.05, 0.2, 0.5):
        budget = int(share * total)
        plan = tamis.plan_collection(keys, utility, budget=budget, kind="ribbon")
        assert budget - slots.max() < plan.bits <= budget
        rest = curve.whole_columns(plan.kept)[1]
        assert (rest > 0).sum() <= 1
        # All columns by gain per bit, the last one cut as if any part of it helped: a lower bound,
        # which one column less reaches.
        column = np.arange(14)[:, None]
        length = slots + np.where(column == 0, codes, 0)
        gain = utility * 0.5 ** (column + 1)
        order = np.argsort(-(gain / length).ravel())
        spent = np.cumsum(length.ravel()[order])
        count = int(np.searchsorted(spent, budget, side="right"))
        reached = utility.sum() - gain.ravel()[order][:count].sum()
        assert utility @ plan.rates <= reached * (1 + 1e-12)
        assert utility @ plan.rates >= reached - gain.ravel()[order][count]


@pytest.mark.parametrize("spread", [0, 1, 2])
def test_the_optimum_is_below_the_relaxations_and_the_baselines(spread):
    keys, utility, total = setting(2000, spread)
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        plans = {
            method: tamis.plan_collection(
                keys, utility, budget=int(share * total), kind="truncated", method=method
            )
            for method in ["optimal", "relaxation", "further relaxation", *METHODS]
        }
        assert all(plan.bits <= int(share * total) for plan in plans.values())
        rates = {method: plan.expected_fpr for method, plan in plans.items()}
        slack = 1 + 1e-9
        assert rates["optimal"] <= min(rates.values()) * slack
        assert rates["relaxation"] <= min(rates[method] for method in METHODS) * slack
        for kind in ("segmented", "ribbon", "auto"):
            other = tamis.plan_collection(keys, utility, budget=int(share * total), kind=kind)
            assert other.expected_fpr < rates["optimal"]


def test_top_utility_skips_what_does_not_fit():
    keys, utility = [100, 5000, 100, 300, 100, 100], [9, 8, 7, 6, 5, 4]
    full = tamis.plan_collection(keys, utility, budget=10**9, kind="truncated").kept
    rng = np.random.default_rng(0)
    for budget in [
        0,
        int(full[0]),
        *rng.integers(0, int(full.sum()), 50).tolist(),
        int(full.sum()),
    ]:
        kept = tamis.plan_collection(
            keys, utility, budget=budget, kind="truncated", method="top utility"
        ).kept
        left, expected = budget, []
        for bits in full.tolist():
            expected.append(bits if bits <= left else 0)
            left -= expected[-1]
        assert kept.tolist() == expected


def test_auto_is_no_worse_than_either_kind():
    keys = np.array([1, 1, 2, 3, 5, 300, 40, 10_000] * 20)
    utility = np.random.default_rng(1).lognormal(0, 2, len(keys))
    for budget in (50, 3000, 200_000, 10**7):
        auto, ribbon, segmented = (
            tamis.plan_collection(keys, utility, budget=budget, kind=kind)
            for kind in ("auto", "ribbon", "segmented")
        )
        assert auto.bits <= budget
        assert auto.expected_fpr <= min(ribbon.expected_fpr, segmented.expected_fpr) * 1.02


@pytest.mark.parametrize("kind", KINDS)
def test_the_dual_is_the_same_problem(kind):
    keys, utility, total = setting(500, 1)
    for share in (0.1, 0.4):
        plan = tamis.plan_collection(keys, utility, budget=int(share * total), kind=kind)
        back = tamis.plan_collection(keys, utility, target=plan.expected_fpr, kind=kind)
        assert back.expected_fpr <= plan.expected_fpr
        assert back.bits <= plan.bits * 1.001
        if back.bits > 40_000:
            less = tamis.plan_collection(keys, utility, budget=back.bits - 40_000, kind=kind)
            assert less.expected_fpr > plan.expected_fpr
    hard = tamis.plan_collection(keys, target=1e-9, kind=kind)
    assert hard.expected_fpr > 1e-9
    easy = tamis.plan_collection(keys, target=1.0, kind=kind)
    assert easy.bits == 0


def test_monkey_is_equal_utilities():
    """Rates in proportion to set sizes, where no filter is full or empty (Dayan et al. 2017)."""
    keys = np.array([1000, 2000, 4000, 8000])
    plan = tamis.plan_collection(keys, target=0.2, kind="truncated")
    ratios = plan.rates / keys
    assert ratios.max() / ratios.min() < 1.35


def test_what_is_empty_or_never_queried_gets_nothing():
    for kind in [*KINDS, "auto"]:
        plan = tamis.plan_collection([0, 100, 100], [5, 0, 1], budget=500, kind=kind)
        assert plan.kept[0] == plan.kept[1] == 0
        assert plan.rates[0] == 0
        assert plan.kept[2] > 0
        nothing = tamis.plan_collection([100], budget=0, kind=kind)
        assert nothing.kept.tolist() == [0]
        assert nothing.expected_fpr == 1
        assert len(tamis.plan_collection(np.zeros(0, int), budget=5, kind=kind).kept) == 0
        full = tamis.plan_collection([100, 7], budget=10**9, kind=kind)
        assert full.expected_fpr <= 1.3e-4


def test_bad_arguments_are_named():
    plan = tamis.plan_collection
    for wrong, message in (
        ({}, "exactly one of budget or target"),
        ({"budget": 1, "target": 0.1}, "exactly one of budget or target"),
        ({"budget": -1}, "budget must be .* not -1"),
        ({"target": 2.0}, "target must be .* not 2.0"),
        ({"budget": 1, "kind": "fuse"}, "kind must be .* not 'fuse'"),
        ({"budget": 1, "method": "best"}, "method must be .* not 'best'"),
        ({"budget": 1, "fpr": 2}, "fpr must be .* not 2"),
        ({"budget": 1, "utility": [1.0]}, "utility must have one number per filter"),
        ({"budget": 1, "utility": [1.0, -1.0]}, "negative"),
        ({"budget": 1, "bits": [10, 10]}, "passed together"),
        ({"budget": 1, "kind": "ribbon", "method": "relaxation"}, "needs kind"),
        ({"target": 0.5, "method": "elastic"}, "method must be 'optimal'"),
        (
            {"budget": 1, "kind": "segmented", "bits": [9, 3], "hashes": [4, 4]},
            r"hashes\[1\] must be from 1 to bits\[1\], 3, not 4",
        ),
        (
            {"budget": 1, "kind": "segmented", "bits": [9], "hashes": [4, 4]},
            "must have the same length, not 1, 2 and 2",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            plan([10, 10], **wrong)
    with pytest.raises(ValueError, match="keys must be a one-dimensional array of ints"):
        plan([1.5], budget=1)


def test_ribbons_dominate_only_where_no_price_speaks_for_the_other():
    keys = np.arange(1, 300)
    segmented = planning.full(keys, "segmented", 1e-4)
    ribbon = planning.full(keys, "ribbon", 1e-4)
    sure = prices.dominates(ribbon, segmented)
    costs = []
    for log_price in np.linspace(-20, 0, 400):
        kept = [curve.worth(log_price, np.zeros(len(keys))) for curve in (ribbon, segmented)]
        costs.append(
            [
                curve.rate(bits) + math.exp(log_price) * bits
                for curve, bits in zip((ribbon, segmented), kept, strict=True)
            ]
        )
    never_worse = (np.array(costs)[:, 0] <= np.array(costs)[:, 1] * (1 + 1e-12)).all(axis=0)
    assert (never_worse >= sure).all()
    assert (sure == never_worse).mean() > 0.99
    assert sure.all()
    # A filter that goes lower than all columns do is better where bits are cheap.
    lower = planning.full(keys, "segmented", 1e-6)
    assert not prices.dominates(ribbon, lower)[20:].any()


def brute_force(curve, utility, present, budget):
    """The least reads of all choices of whole columns that fit."""
    best = math.inf
    choices = [range(int(columns) + 1) for columns in curve.columns]
    for columns in itertools.product(*choices):
        kept = np.where(np.array(columns) > 0, curve.codes + curve.slots * np.array(columns), 0)
        if kept.sum() <= budget:
            best = min(best, float(utility @ Reads(curve, present).rate(kept)))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_reads_are_as_few_as_by_brute_force(seed):
    rng = np.random.default_rng(seed)
    keys = rng.integers(20, 3000, 4)
    curve = planning.full(keys, "ribbon", fpr=2.0**-6)
    utility, present = rng.lognormal(0, 1, 4), rng.choice([0.0, 0.1, 0.5, 0.9, 1.0], 4)
    budget = int(rng.uniform(0.05, 0.9) * curve.bits.sum())
    kept, _ = optimal_reads(curve, utility, present, budget)
    assert kept.sum() <= budget
    assert (kept <= curve.bits).all()
    found = float(utility @ Reads(curve, present).rate(kept))
    best = brute_force(curve, utility, present, budget)
    # Of four filters, one column too large to fit decides; a part of it gains over whole columns.
    assert 0.5 * best <= found <= 1.06 * best


def test_reads_of_many_filters_beat_both_hybrids_of_the_paper():
    rng = np.random.default_rng(3)
    keys, utility = (10 + rng.lognormal(7, 0.7, 800)).astype(int), rng.lognormal(0, 1, 800)
    curve = Mixed(((slice(None), planning.full(keys, "ribbon")),), 800)
    for present, least, most in (
        (np.full(800, 0.5), 1.25, 1.7),
        (np.where(rng.random(800) < 0.5, 0.02, 0.98), 1.6, 3.3),
    ):
        reads = Reads(curve, present)
        for share in (0.15, 0.3):
            budget = int(share * curve.bits.sum())
            kept, _ = optimal_reads(curve, utility, present, budget)
            others = [top_utility(curve, utility, budget), prices.optimal(curve, utility, budget)]
            gain = min(utility @ reads.rate(each) for each in others) / (utility @ reads.rate(kept))
            assert least <= gain <= most
            assert kept.sum() <= budget


def test_without_present_keys_reads_are_false_positives():
    rng = np.random.default_rng(4)
    keys, utility = rng.integers(50, 2000, 300), rng.lognormal(0, 1, 300)
    curve, none = planning.full(keys, "segmented"), np.zeros(300)
    for share in (0.1, 0.4, 0.8):
        budget = int(share * curve.bits.sum())
        kept, _ = optimal_reads(curve, utility, none, budget)
        plain = prices.optimal(curve, utility, budget)
        assert utility @ Reads(curve, none).rate(kept) <= utility @ curve.rate(plain) * (1 + 1e-9)
    assert (optimal_reads(curve, utility, none, 2**60)[0] == curve.bits).all()
    assert (optimal_reads(curve, utility, none, 0)[0] == 0).all()
    assert (optimal_reads(curve, utility, np.ones(300), 0)[0] == 0).all()


def test_filters_of_a_rare_kind_may_be_missing_in_a_sample():
    """Above 65,536 filters the price is searched in a sample, which has some filters twice."""
    which = np.zeros(70_000, np.uint8)
    which[[7, 8]] = 1
    keys = np.where(which, 5000, 3)
    mixed = Mixed.of(which, [planning.full(keys, kind) for kind in ("segmented", "ribbon")])
    rates, worth = mixed.rate(mixed.bits // 2), mixed.worth(-9.0, np.zeros(70_000))
    for sample in ([5, 5, 9], [7, 5, 7, 8], [8, 8]):
        taken = mixed.take(np.array(sample))
        assert (taken.bits == mixed.bits[sample]).all()
        assert (taken.rate(taken.bits // 2) == rates[sample]).all()
        assert (taken.worth(-9.0, np.zeros(len(sample))) == worth[sample]).all()
    kept = planning.allocate("optimal", mixed, np.ones(70_000), 10 * 70_000)
    assert 0.99 * 10 * 70_000 < kept.sum() <= 10 * 70_000
    for goal in ({"budget": 10**6}, {"target": 0.1}):
        assert planning.plan_collection(np.append(np.full(70_000, 100), 1), **goal).bits > 0


def test_few_layouts_of_rows_find_the_padding(monkeypatch):
    """Each reaches the budget less its padding; there were hundreds for 200 sets."""
    keys = 20 + np.arange(200)
    lengths, segments = np.array([sliced.filter_size(int(n), 1e-4) for n in keys]).T
    curve, utility = Segmented(lengths * segments, segments, keys), np.linspace(1, 9, 200)
    laid_out, lay_out = [], sliced.lay_out
    monkeypatch.setattr(sliced, "lay_out", lambda *each: laid_out.append(1) or lay_out(*each))
    for bits_per_key in (2, 6, 12):
        budget, laid_out[:] = int(bits_per_key * keys.sum()), []
        kept = sliced.plan_segments(curve, utility, budget)
        assert len(laid_out) <= 16
        assert 0.97 * budget < lay_out(curve, kept, utility).bits <= budget
        # Nearly the optimal plan of as many bits without padding, and nothing more fits.
        best = optimal(curve, utility, int((kept * lengths).sum())) // lengths
        rates = [float(utility @ curve.rate(each * lengths)) for each in (kept, best)]
        assert rates[0] <= rates[1] * 1.02
        for each in np.flatnonzero(kept < segments):
            more = kept + (np.arange(200) == each)
            assert lay_out(curve, more, utility).bits > budget
