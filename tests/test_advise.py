"""Advice: what fits, in which order, and its numbers against formulas and against filters."""

import json
import math

import numpy as np
import pytest

import tamis
from tamis.planning import costs
from tamis.planning.advice.situation import asked_for

SKEWED = tamis.Workload.zipf(1.0, universe=10**5, sample=5 * 10**4)


def names(advice):
    return [each.name for each in advice.choices]


def test_durations():
    assert costs.duration("x", "250us") == pytest.approx(2.5e-4)
    assert costs.duration("x", "1.5 s") == 1.5
    assert costs.duration("x", 2) == 2
    for wrong in ("1", "ms", "1 h", "-1ms", "1..2s", -1, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"miss_cost is .*1ms"):
            costs.duration("miss_cost", wrong)
    with pytest.raises(TypeError, match="miss_cost is True"):
        costs.duration("miss_cost", True)


def test_choices_are_ordered_by_cost_and_keep_to_the_budget():
    advice = tamis.advise(50_000, SKEWED, bits_per_key=11, present=0.3)
    costs_of = [each.cost for each in advice.choices]
    assert costs_of == sorted(costs_of)
    assert advice.best is advice.choices[0]
    for each in advice.choices:
        assert each.bits_per_key <= 11
        assert 0 < each.expected_fpr <= each.fpr_bound * (1 + 1e-9)
        absent = each.absent_time + each.expected_fpr * 1e-3
        assert each.cost == pytest.approx(0.3 * each.present_time + 0.7 * absent)


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
    with pytest.raises(ValueError, match=r"no filter fits: .*Windowed: it cannot delete"):
        _ = advice.best


def test_present_questions_weigh_against_many_layers():
    """A key meets three layers of a deep stack: not worth it where most questions find one."""
    absent = tamis.advise(10_000, SKEWED, bits_per_key=10, miss_cost="1us", present=0.0)
    there = tamis.advise(10_000, SKEWED, bits_per_key=10, miss_cost="1us", present=0.999)
    assert there.best.present_time < absent.best.present_time * 1.001
    assert there.best.family == "plain"
    dear = tamis.advise(10_000, SKEWED, bits_per_key=10, miss_cost="10ms", present=0.5)
    assert dear.best.family in ("stacked", "exact")


def test_adapting_gains_with_repetition():
    few, many = (
        next(
            each
            for each in tamis.advise(
                10_000, SKEWED, bits_per_key=12, needs={"store"}, questions=asked
            ).choices
            if each.name == "Telescoping"
        )
        for asked in (10_000, 1_000_000)
    )
    assert many.expected_fpr < few.expected_fpr / 2
    assert many.bits <= 12 * 10_000


def test_distinct_questions_are_expected_right():
    w = tamis.Workload.from_shape(1 / np.arange(1, 20_001))
    weights = 1 / np.arange(1, 20_001)
    weights /= weights.sum()
    for asked in (1, 100, 10_000, 10**6):
        exact = (1 - (1 - weights) ** asked).sum()
        assert asked_for(w, asked) == pytest.approx(exact, rel=2e-3)


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
        ({"needs": {"speed"}}, "needs has 'speed'; adversary"),
        ({"bits_per_key": 10, "budget": 100}, "both of bits_per_key and budget"),
        ({"bits_per_key": 0}, "bits_per_key is 0"),
        ({"budget": "1XB"}, "budget is '1XB'"),
        ({"present": 2}, "present is 2"),
        ({"questions": 0}, "questions is 0"),
        ({"miss_cost": "soon"}, "miss_cost is 'soon'"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        tamis.advise(1000, SKEWED, **arguments)
