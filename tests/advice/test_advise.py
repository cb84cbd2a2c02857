"""Advice: which filters fit, their order, and their numbers against formulas and filters."""

import dataclasses
import json
import math

import numpy as np
import pytest

import tamis
from tamis._checks import parse_duration
from tamis.advice.situation import NEAR, distinct_known
from tamis.planning.kinds import KINDS

SKEWED = tamis.Workload.zipf(1.0, universe=10**5, sample=5 * 10**4)


def names(advice):
    return [each.name for each in advice.choices]


def test_durations():
    assert parse_duration("x", "250us") == pytest.approx(2.5e-4)
    assert parse_duration("x", "1.5 s") == 1.5
    assert parse_duration("x", 2) == 2
    for wrong in ("1", "ms", "1 h", "-1ms", "1..2s", -1, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"miss_cost must be .*1ms"):
            parse_duration("miss_cost", wrong)
    with pytest.raises(
        TypeError,
        match=r"miss_cost must be seconds, .* not True",
    ):
        parse_duration("miss_cost", True)


def test_choices_are_ordered_by_cost_and_keep_to_the_budget():
    advice = tamis.advise(50_000, SKEWED, bits_per_key=11, present=0.3)
    costs_of = [each.cost for each in advice.choices]
    assert costs_of == pytest.approx(sorted(costs_of), rel=NEAR - 1)
    assert advice.best is advice.choices[0]
    for each in advice.choices:
        assert each.bits_per_key <= 11
        assert 0 < each.expected_fpr <= each.fpr_bound * (1 + 1e-9)
        absent = each.absent_time + each.expected_fpr * 1e-3
        assert each.cost == pytest.approx(0.3 * each.present_time + 0.7 * absent)


def test_of_near_equal_costs_the_smaller_is_first():
    """Both kinds of fuse filters have the same rate here; the 4-wise one is slower by 3 ns."""
    advice = tamis.advise(100_000, bits_per_key=10)
    four, three = (names(advice).index(f"Fuse, {arity}-wise") for arity in (4, 3))
    assert three == four + 1
    smaller, larger = advice.choices[four], advice.choices[three]
    assert smaller.bits < larger.bits
    assert larger.cost < smaller.cost < larger.cost * NEAR


@pytest.mark.parametrize("needs", [(), {"delete"}, {"store"}, {"stream"}])
@pytest.mark.parametrize("fpr", [0.1, 0.001])
def test_a_rate_gives_the_smallest_of_each_kind(needs, fpr):
    advice = tamis.advise(20_000, SKEWED, fpr=fpr, needs=needs)
    sizes = [round(each.bits_per_key, 2) for each in advice.choices]
    assert sizes == sorted(sizes)
    assert all(0 < each.expected_fpr <= fpr * (1 + 1e-9) for each in advice.choices)
    # Stacks use the workload, so that one of them is smaller than every plain filter.
    if not needs:
        assert advice.best.family in ("stacked", "exact")
        assert "Ribbon" in names(advice)
    assert json.loads(advice.to_json())["situation"]["fpr"] == fpr
    f = tamis.advise(range(5000), fpr=fpr, needs=needs).best.build(range(5000))
    assert f.expected_fpr <= fpr * 1.05
    assert f.contains(range(5000)).all()


def test_a_rate_is_not_for_sets():
    with pytest.raises(ValueError, match="fpr cannot be combined with a mapping of sets"):
        tamis.advise({"a": ["x"]}, fpr=0.01)


@pytest.mark.parametrize("needs", [(), {"store"}, {"stream", "false negatives allowed"}])
def test_advice_fits_80_columns(needs):
    w = tamis.Workload.from_queries(range(100_000, 110_000), keys=range(10))
    for given in (SKEWED, None, w):
        advice = tamis.advise(1_000_000, given, bits_per_key=14, needs=needs)
        assert max(map(len, advice.explain().splitlines())) <= 80
    measured = tamis.advise(range(2000), w, needs=needs).measure(range(2000), range(2000, 4000))
    assert max(map(len, str(measured).splitlines())) <= 80


@pytest.mark.parametrize(
    ("needs", "kept"),
    [
        ({"delete"}, {"Cuckoo", "Quotient", "Stacked cuckoo", "Stacked quotient"}),
        ({"store", "adversary"}, {"Telescoping"}),
        ({"stream"}, {"Windowed"}),
        ({"stream", "false negatives allowed"}, {"Windowed", "StableBloom"}),
    ],
)
def test_needs_decide_what_fits(needs, kept):
    advice = tamis.advise(20_000, SKEWED, bits_per_key=12, needs=needs)
    assert set(names(advice)) == kept
    assert not {each.name for each in advice.ruled_out} & kept
    assert all(each.reason for each in (*advice.choices, *advice.ruled_out))


def test_no_choice_says_why():
    advice = tamis.advise(1000, needs={"stream", "delete"})
    with pytest.raises(ValueError, match=r"no filter fits: .*Windowed: keys cannot be removed"):
        _ = advice.best


def test_present_queries_weigh_against_many_layers():
    """A key meets three layers of a deep stack: not worth it where most queries find one."""
    there = tamis.advise(10_000, SKEWED, bits_per_key=10, miss_cost="1us", present=0.999)
    assert there.best.family == "plain"
    assert any("layers alone" in each.reason for each in there.ruled_out)
    dear = tamis.advise(10_000, SKEWED, bits_per_key=10, miss_cost="10ms", present=0.5)
    assert dear.best.family in ("stacked", "exact")


def test_adapting_gains_with_repetition():
    few, many = (
        next(
            each
            for each in tamis.advise(
                10_000, SKEWED, bits_per_key=12, needs={"store"}, expected_queries=asked
            ).choices
            if each.name == "Telescoping"
        )
        for asked in (10_000, 1_000_000)
    )
    assert many.expected_fpr < few.expected_fpr / 2
    assert many.bits <= 12 * 10_000


def test_distinct_queries_are_expected_right():
    w = tamis.Workload.from_shape(1 / np.arange(1, 20_001))
    weights = 1 / np.arange(1, 20_001)
    weights /= weights.sum()
    for asked in (1, 100, 10_000, 10**6):
        exact = (1 - (1 - weights) ** asked).sum()
        assert distinct_known(w, asked) == pytest.approx(exact, rel=2e-3)


def test_the_advice_as_json_and_text():
    advice = tamis.advise(20_000, SKEWED, bits_per_key=10, needs={"insert"})
    told = json.loads(advice.to_json())
    assert told["choices"][0]["name"] == advice.best.name
    assert told["situation"]["needs"] == ["insert"]
    text = str(advice)
    for each in advice.choices:
        assert each.name in text
    lines = advice.explain()
    assert "theorem 3" in lines
    assert "figure 12" in lines


@pytest.mark.parametrize("needs", [(), {"delete"}, {"store", "insert"}])
def test_every_choice_is_built_as_predicted(needs):
    rng = np.random.default_rng(3)
    keys = rng.integers(0, 2**62, 5000)
    queries = 2**62 + rng.zipf(1.3, 40_000)
    w = tamis.Workload.from_queries(queries, keys=keys)
    advice = tamis.advise(keys, w, bits_per_key=11, needs=needs)
    assert len(advice.choices) > 2
    for each in advice.choices:
        f = each.build(keys)
        assert f.contains(keys).all()
        assert f.size_in_bits <= each.bits * 1.01 + 512
        if each.family in ("plain", "stacked", "exact"):
            assert f.expected_fpr == pytest.approx(each.expected_fpr, rel=0.25)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"needs": {"speed"}}, "needs must be any of adversary, .* not 'speed'"),
        ({"bits_per_key": 10, "budget": 100}, "pass at most one of fpr, bits_per_key and budget"),
        ({"fpr": 0.1, "bits_per_key": 10}, "pass at most one of fpr, bits_per_key and budget"),
        ({"fpr": 2}, "fpr must be a number between 0 and 1, such as 0.01, not 2"),
        ({"bits_per_key": 0}, "bits_per_key must be a number above 0 and at most 4096, not 0"),
        ({"budget": "1XB"}, "budget must be .* not '1XB'"),
        ({"present": 2}, "present must be a number from 0 to 1, not 2"),
        ({"expected_queries": 0}, "expected_queries must be a positive number, not 0"),
        ({"miss_cost": "soon"}, r"miss_cost must be seconds, .* not 'soon'"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        tamis.advise(1000, SKEWED, **arguments)


def spread(counts, rate, seeds):
    """Standard deviation of a measured rate: a filter errs per key, not per query."""
    return math.sqrt((counts.astype(float) ** 2).sum() * rate / seeds) / counts.sum()


def test_predictions_hold_when_measured():
    """Rates within five standard deviations of the prediction, above and below."""
    rng = np.random.default_rng(5)
    keys = rng.integers(0, 2**62, 4000)
    sample, asked = (
        np.concatenate([2**62 + rng.zipf(1.5, 60_000) % 50_000, rng.choice(keys, 20_000)])
        for _ in range(2)
    )
    w = tamis.Workload.from_queries(sample, keys=keys)
    advice = tamis.advise(keys, w, bits_per_key=9, needs={"store"})
    told = advice.measure(keys, asked, seeds=4)
    absent, counts = np.unique(asked[:60_000], return_counts=True)
    assert [each.name for each in told.choices] == [each.name for each in advice.choices]
    for each in told.choices:
        of = counts
        if each.plan is not None:
            of = counts[~np.isin(absent, w.head(each.plan.negatives))]
        if each.name == "Telescoping":
            of = np.ones_like(counts)  # paid once
        deviation = spread(of, each.fpr_bound, 4) * of.sum() / counts.sum()
        assert abs(each.measured_fpr - each.expected_fpr) < 5 * deviation + 0.05 * each.expected_fpr
        assert each.measured_bits <= 9 * 4000 + 512
        assert each.measured_cost > 0
    assert "±" in str(told)


def test_an_adversary_is_borne_by_what_adapts():
    rng = np.random.default_rng(6)
    keys, asked = rng.integers(0, 2**62, 2000), 2**62 + rng.integers(0, 10**6, 20_000)
    w = tamis.Workload.from_queries(asked[:10_000], keys=keys)
    needs = {"store", "adversary"}
    adapts = tamis.advise(keys, w, bits_per_key=12, needs=needs).measure(keys, asked[10_000:])
    alike = tamis.advise(keys, w, bits_per_key=12, needs={"adversary"}).measure(
        keys, asked[10_000:]
    )
    assert adapts.best.measured_fpr < 2 * adapts.best.fpr_bound
    assert min(each.measured_fpr for each in alike.choices) > 10 * adapts.best.measured_fpr
    assert all(each.fpr_bound == 1 for each in alike.choices)


def test_a_stream_of_bursts_needs_its_log():
    rng = np.random.default_rng(7)
    records = np.repeat(rng.permutation(40_000), 2)
    half = len(records) // 2
    needs = {"stream", "false negatives allowed"}
    w = tamis.Workload.from_queries(records[:half])
    drawn = tamis.advise(5000, w, bits_per_key=14, needs=needs)
    logged = tamis.advise(5000, w, bits_per_key=14, needs=needs, log=records[:half])
    assert drawn.situation.present < 0.25
    assert logged.situation.present == pytest.approx(0.5, abs=0.01)
    assert any("log=" in each for each in drawn.unknowns)
    told = logged.measure(records[:half], records[half:])
    for each in told.choices:
        assert each.measured_fnr <= each.expected_fnr * 1.5 + 0.005
        assert each.measured_fpr <= each.fpr_bound * 1.3
    assert {each.name for each in told.choices} == {"Windowed", "StableBloom"}


def test_sets_are_advised_on_as_a_collection():
    sets = {f"day {i}": range(1000 * i, 1000 * i + 300 + 40 * i) for i in range(20)}
    advice = tamis.advise(sets, bits_per_key=9, utility=np.arange(1, 21))
    assert {each.family for each in advice.choices} == {"collection"}
    told = advice.measure(sets, range(10**6, 10**6 + 4000))
    for each in told.choices:
        assert each.measured_fpr == pytest.approx(each.expected_fpr, rel=0.2)
        assert each.measured_bits <= 9 * advice.situation.keys
    assert told.best.measured_fpr == min(each.measured_fpr for each in told.choices)
    assert not tamis.advise(sets, needs={"insert"}).choices


def test_a_classifier_is_tried_where_it_may_be():
    members = [f"user-{i}@example.com" for i in range(3000)]
    others = [f"{i}.cdn.example.net/{i * i}" for i in range(6000)]
    w = tamis.Workload.from_queries(others[:3000], keys=members)
    advice = tamis.advise(members, w, bits_per_key=10, miss_cost="10ms", needs={"classifier"})
    assert advice.best.name == "LearnedBloom"
    told = advice.measure(members, others[3000:])
    assert told.best.measured_fpr < 0.002
    assert told.best.measured_bits <= 10 * 3000
    few = tamis.advise(3000, w, needs={"classifier"})
    assert "LearnedBloom" in {each.name for each in few.ruled_out}


def test_a_table_of_features_costs_the_same_in_any_library():
    pa = pytest.importorskip("pyarrow")
    rng = np.random.default_rng(4)
    keys, inside, outside = range(2000), rng.normal(1, 1, (2000, 5)), rng.normal(-1, 1, (2000, 5))

    def predicted(table):
        advice = tamis.advise(
            keys, features=table(inside), nonmembers=table(outside), needs={"classifier"}
        )
        return next(each for each in advice.choices if each.name == "LearnedBloom").absent_time

    arrow = predicted(lambda rows: pa.table({f"c{i}": rows[:, i] for i in range(5)}))
    assert arrow == predicted(lambda rows: rows)


def test_a_model_is_not_judged_by_the_values_it_was_trained_on():
    # No model can tell these apart, but it can memorize the few values that are queried most.
    rng = np.random.default_rng(5)
    names = [f"{value:016x}" for value in rng.integers(0, 2**62, 9000)]
    members, others = names[:4000], names[4000:]
    queries = [others[i] for i in rng.zipf(1.3, 40_000) % len(others)]
    w = tamis.Workload.from_queries(queries, keys=members)
    advice = tamis.advise(members, w, bits_per_key=6, needs={"classifier"})
    choices = {each.name: each for each in advice.choices}
    assert choices["LearnedBloom"].expected_fpr > 0.8 * choices["Ribbon"].expected_fpr


@pytest.mark.parametrize("keys", [0, 1, 100])
@pytest.mark.parametrize("bits_per_key", [0.3, 4, 200])
@pytest.mark.parametrize("needs", [(), {"store"}, {"stream", "false negatives allowed"}])
def test_small_sets_and_odd_budgets_are_told_of(keys, bits_per_key, needs):
    for w in (None, tamis.Workload.from_queries([1, 1, 2, 3]), tamis.Workload.from_queries([])):
        advice = tamis.advise(keys, w, bits_per_key=bits_per_key, needs=needs, miss_cost=0)
        assert advice.explain()
        assert advice.choices or advice.ruled_out


def test_a_log_shows_drift():
    """Each value is queried in one interval of time; in random order, nearly all look known."""
    rng = np.random.default_rng(9)
    log = 10**6 + np.sort(rng.integers(0, 2000, 40_000)) + rng.integers(0, 200, 40_000)
    w = tamis.Workload.from_queries(rng.permutation(log), keys=range(1000))
    still = tamis.advise(range(1000), w, bits_per_key=9)
    moving = tamis.advise(range(1000), w, bits_per_key=9, log=log)
    assert w.unseen < 0.01
    assert moving.situation.workload.unseen == tamis.Workload.from_queries(log).unseen > 0.5
    assert moving.best.expected_fpr > 10 * still.best.expected_fpr
    assert any("log=" in each for each in still.unknowns)
    assert w.unseen < 0.01  # the workload that was given stays as it was


@pytest.mark.parametrize("queries", [1, 2, 10**18])
def test_a_life_of_few_queries_and_a_rate_that_is_hardly_met(queries):
    """All queries of the lifetime may be those from which a stack learns."""
    workload = tamis.Workload.zipf(1.0, universe=10**9, sample=1000)
    for keys, fpr in ((1, 5.5e-20), (1000, 1e-9), (0, 0.5)):
        advice = tamis.advise(keys, workload, fpr=fpr, needs={"store"}, expected_queries=queries)
        assert advice.best is not None


@pytest.mark.parametrize(
    ("like", "needs"), [("telescoping", {"store"}), ("stable", {"stream"}), ("stable", set())]
)
def test_a_kind_without_a_prediction_is_ruled_out_rather_than_left_out(monkeypatch, like, needs):
    new = dataclasses.replace(KINDS[like], name="new", filter="New", sizes=None)
    monkeypatch.setitem(KINDS, "new", new)
    advice = tamis.advise(1000, bits_per_key=20, needs=needs)
    assert [bool(each.reason) for each in advice.ruled_out if each.name == "New"] == [True]
