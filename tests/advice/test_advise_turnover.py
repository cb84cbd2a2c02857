"""Advice while keys are replaced: against simulations, and against filters that are updated."""

import json

import numpy as np
import pytest

import tamis
from tamis.advice import learned
from tamis.advice.turnover import recognized_share, stays
from tamis.stores import Hashes

SKEWED = tamis.Workload.zipf(1.2, universe=10**5, sample=5 * 10**4)
CHANGING = {"bits_per_key": 8, "needs": {"store", "insert", "delete"}, "expected_queries": 50_000}


@pytest.mark.parametrize("present", [0, 0.4])
@pytest.mark.parametrize("turnover", [0.3, 2, 50])
def test_what_a_stack_still_recognizes_is_as_simulated(turnover, present):
    """Replace keys one by one: those of the build that stay, and queries for those that left."""
    rng, count = np.random.default_rng(1), 2000
    first = np.ones(count, bool)
    found = []
    for leaves in rng.integers(0, count, round(turnover * count)):
        first[leaves] = False
        stayed = first.mean()
        found.append(stayed * (1 - present) / (1 - present + present * (1 - stayed)))
    assert recognized_share(turnover, present) == pytest.approx(np.mean(found), rel=0.03)


@pytest.mark.parametrize("turnover", [0, 0.01, 1.8, 100, 10_000])
def test_stays_of_elements_add_up(turnover):
    """There are as many elements as were ever in the set, and at each time as many as keys."""
    advice = tamis.advise(1000, turnover=turnover, expected_queries=5000, needs={"store"})
    found = stays(advice.situation)
    assert found.elements.sum() == pytest.approx(1 + turnover, rel=0.01)
    # Without a workload, no query is repeated: what an element meets is how long it stays.
    assert found.elements @ found.distinct == pytest.approx(5000, rel=0.01)


def test_the_order_changes_with_the_turnover():
    for turnover, best in ((0, "Stacked quotient"), (2, "Telescoping"), (1000, "Quotient")):
        assert tamis.advise(10_000, SKEWED, **CHANGING, turnover=turnover).best.name == best


def test_only_filters_that_know_something_lose():
    rates = {
        turnover: {
            each.name: each.expected_fpr
            for each in tamis.advise(10_000, SKEWED, **CHANGING, turnover=turnover).choices
        }
        for turnover in (0, 0.1, 1, 10)
    }
    for name in ("Quotient", "Cuckoo"):
        assert len({rates[turnover][name] for turnover in rates}) == 1
    for name in ("Stacked quotient", "Telescoping"):
        rising = [rates[turnover][name] for turnover in rates]
        assert rising == sorted(rising)
        assert rising[0] < 0.9 * rising[-1]


def replaced(keys, rng, share):
    """Return a random share of the keys, and as many new ones."""
    return rng.choice(keys, round(share * len(keys)), replace=False), rng.integers(
        2**62, 2**63 - 1, round(share * len(keys))
    )


@pytest.mark.parametrize("name", ["Stacked quotient", "Telescoping", "Quotient"])
def test_predictions_hold_while_keys_are_replaced(name):
    """Uniform queries, so that a rate does not depend on the luck of a few keys."""
    rng = np.random.default_rng(4)
    keys = rng.integers(0, 2**62, 4000)
    absent = 2**62 - 1 - np.arange(3000)
    queries = rng.choice(absent, 40_000)
    w = tamis.Workload.from_queries(queries, keys=keys)
    advice = tamis.advise(
        keys, w, bits_per_key=8, turnover=1, expected_queries=len(queries), needs={"store"}
    )
    choice = next(each for each in advice.choices if each.name == name)
    f, wrong = choice.build(keys), 0
    remote = Hashes(keys, seed=f.seed) if name == "Telescoping" else None
    beside = () if remote is None else (remote,)
    for part in np.array_split(queries, 40):
        accepted = part[f.contains(part)]
        wrong += len(accepted)
        if remote is not None:
            # Within a part, a key that was fixed is not accepted again.
            wrong -= len(accepted) - len(np.unique(accepted))
            f.adapt_many(accepted, remote)
        leave, join = replaced(keys, rng, 1 / 40)
        for each in leave.tolist() if remote is not None else ():
            remote.remove(each)
        f.remove_many(leave, *beside)
        f.update(join, *beside)
        for each in join.tolist() if remote is not None else ():
            remote.add(each)
        keys = np.concatenate([np.setdiff1d(keys, leave), join])
    assert f.contains(keys).all()
    assert wrong / len(queries) == pytest.approx(choice.expected_fpr, rel=0.2)
    if name == "Telescoping":
        assert f.size_in_bits <= 1.02 * choice.bits + 512


def test_a_turnover_implies_needs_and_is_told():
    advice = tamis.advise(10_000, SKEWED, bits_per_key=8, turnover=0.5)
    assert advice.situation.needs == {"insert", "delete"}
    assert json.loads(advice.to_json())["situation"]["turnover"] == 0.5
    assert "0.5 of the keys replaced" in str(advice)
    assert "a stack recognizes" in advice.explain()
    assert not any("turnover=" in each for each in advice.unknowns)
    without = tamis.advise(10_000, SKEWED, bits_per_key=8, needs={"insert", "delete"})
    assert any("turnover=" in each for each in without.unknowns)


@pytest.mark.parametrize(
    ("keys", "arguments", "message"),
    [
        (1000, {"turnover": -1}, "turnover must be a number from 0 to 10,000, not -1"),
        (1000, {"turnover": 1e5}, "turnover must be a number from 0 to 10,000, not 100000.0"),
        (1000, {"turnover": 0.1, "needs": {"stream"}}, "turnover cannot be combined with a stream"),
        ({"a": [1]}, {"turnover": 0.1}, "turnover cannot be combined with a mapping of sets"),
    ],
)
def test_wrong_turnovers_are_named(keys, arguments, message):
    with pytest.raises(ValueError, match=message):
        tamis.advise(keys, **arguments)


def test_models_are_trained_on_most_absent_keys_and_planned_with_others(monkeypatch):
    seen = []

    def train(members, others, **options):
        seen.append((list(others), options["penalty"] * (len(members) + len(others))))
        return tamis.learned.train(members, others, **options)

    monkeypatch.setattr(learned, "train", train)
    keys = [f"member{i}" for i in range(300)]
    others = [f"{i}other" for i in range(600)]
    w = tamis.Workload.from_queries(others, keys=keys)
    advice = tamis.advise(keys, w, bits_per_key=40, needs={"classifier"})
    (choice,) = (each for each in advice.choices if each.family == "learned")
    held = set(map(str, choice.arguments["nonmembers"]))
    for trained, prior in seen:
        names = set(map(str, trained))
        assert prior == pytest.approx(1)
        assert (len(names), len(held)) == (400, 200)
        assert names | held == set(others)
