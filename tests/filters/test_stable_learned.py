"""Stable learned filters: groups by score, one file, drift, and models that are swapped."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import Stable, frame, hash_key, parts

import tamis
from tamis.learned import train

rng = np.random.default_rng(11)
IDS = iter(rng.permutation(10**6))


def named(count, users, guests):
    """Keys that are no other's: users, guests and bare numbers in these shares."""
    draws = rng.random(count)
    heads = np.where(draws < users, "user-", np.where(draws < users + guests, "guest-", ""))
    return [f"{head}{next(IDS)}" for head in heads]


def members(count):
    return named(count, 0.7, 0.25)


def others(count):
    return named(count, 0.2, 0.5)


MEMBERS, OTHERS = members(4000), others(4000)
MODEL = train(MEMBERS[:800], OTHERS[:800], kind="logistic", ngrams=(1, 1), buckets=64)
PLAN = tamis.StableLearned.plan(
    MODEL.scores(MEMBERS[800:1600]),
    MODEL.scores(OTHERS[800:1600]),
    bits=2**14,
    fpr=0.05,
    gap=500,
    groups=3,
)


def made(**arguments):
    return tamis.StableLearned(MODEL, PLAN, **arguments)


class Leading:
    """A classifier of another's making: the share that the first column says."""

    def predict_proba(self, rows):
        share = np.asarray(rows)[:, 0]
        return np.stack([1 - share, share], axis=1)


@pytest.mark.parametrize("decrement", ["adjacent", "independent"])
def test_each_group_is_a_stable_filter_of_its_own(decrement):
    f = made(seed=3, decrement=decrement)
    keys = MEMBERS[:1500] + OTHERS[:500] + MEMBERS[1000:1500]
    answers = f.seen_many(keys)
    groups = np.searchsorted(np.float32(f.borders), MODEL.scores(keys), side="left")
    independent = decrement == "independent"
    twins = [
        Stable(*group.size, independent, 3 + j) if group.size else None
        for j, group in enumerate(f.groups)
    ]
    assert sum(twin is not None for twin in twins) >= 2
    assert answers.tolist() == [
        twins[j].seen(hash_key(key, 3)) if twins[j] else f.groups[j].answer
        for key, j in zip(keys, groups, strict=True)
    ]
    sections = [content for _, _, content in parts(f.to_bytes())[-1]][1:]
    for twin, section in zip(filter(None, twins), sections, strict=True):
        assert parts(section)[-1][0][2] == twin.words()
    assert len(f) == len(keys)
    one = made(seed=3, decrement=decrement)
    assert [one.seen(key) for key in keys[:300]] == answers[:300].tolist()


def test_one_group_trusts_the_model_above_a_threshold():
    scores = MODEL.scores(MEMBERS[800:]), MODEL.scores(OTHERS[800:])
    plan = tamis.StableLearned.plan(*scores, bits=2**13, fpr=0.25, gap=500, groups=1)
    f = tamis.StableLearned(MODEL, plan)
    trusted = scores[0] > f.borders[0]
    assert 0 < trusted.mean() < 1
    assert (f.contains(MEMBERS[800:]) == trusted).all()
    f.update(MEMBERS[:500])
    assert f.contains(MEMBERS[:500]).mean() > 1 - 2 * plan.expected_fnr
    assert f.contains(OTHERS).mean() == pytest.approx(plan.fpr_after(500), abs=0.05)


def test_a_secret_key_is_required():
    f = made(key=bytes(16))
    f.update(MEMBERS[:100])
    again = tamis.from_bytes(f.to_bytes(), key=bytes(16))
    assert (again.contains(MEMBERS) == f.contains(MEMBERS)).all()
    with pytest.raises(tamis.TamisError):
        tamis.from_bytes(f.to_bytes(), key=bytes(15) + b"1")


def test_comes_back_from_one_file(tmp_path):
    f = made()
    f.update(MEMBERS[:1000])
    f.save(tmp_path / "f")
    for twin in (tamis.load(tmp_path / "f"), tamis.load(tmp_path / "f", mmap=True), f.copy()):
        assert type(twin) is tamis.StableLearned
        assert twin.to_bytes() == f.to_bytes()
        assert twin.groups == f.groups
        assert (twin.contains(MEMBERS) == f.contains(MEMBERS)).all()
        assert twin.expected_fpr == f.expected_fpr
        assert twin.seen_many(OTHERS).tolist() == f.copy().seen_many(OTHERS).tolist()
        assert repr(twin).startswith("<tamis.StableLearned: ")
    assert f.size_in_bits >= MODEL.size_in_bits + sum(group.bits for group in f.groups)


def test_rate_and_denied_are_as_planned():
    f = made()
    stream = members(30_000)
    denied = asked = 0
    for first in range(0, len(stream), 100):
        f.update(stream[first : first + 100])
        if first >= 5000:
            then = stream[first - 450 : first - 350]  # 450 to 550 insertions ago
            denied += 100 - int(f.contains(then).sum())
            asked += 100
    # The shares of the plan come from 800 keys: their error is part of the bound.
    assert denied / asked == pytest.approx(PLAN.expected_fnr, abs=0.05)
    assert f.expected_fnr(500) == pytest.approx(PLAN.expected_fnr)
    assert f.stable_fpr == pytest.approx(PLAN.expected_fpr)
    assert f.expected_fpr == pytest.approx(PLAN.expected_fpr, rel=0.3)
    absent = others(20_000)
    assert f.contains(absent).mean() == pytest.approx(PLAN.expected_fpr, rel=0.3)


def test_features_beside_the_keys():
    table = rng.random((3000, 2))
    inside, outside = table[table[:, 0] > 0.4][:800], table[table[:, 0] < 0.6][:800]
    plan = tamis.StableLearned.plan(
        inside[:, 0], outside[:, 0], bits=2**13, fpr=0.05, gap=300, groups=2
    )
    f = tamis.StableLearned(Leading(), plan)
    keys = np.arange(len(inside))
    f.update(keys, features=inside)
    assert f.contains(keys[-50:], features=inside[-50:]).mean() > 0.5
    assert f.seen(10**6, features=inside[:1]) in (False, True)
    with pytest.raises(TypeError, match="which cannot be saved"):
        f.to_bytes()
    with pytest.raises(ValueError, match="3 rows for 2 keys"):
        f.update([1, 2], features=inside[:3])
    built = tamis.StableLearned.build(
        keys, features=inside, nonmembers=outside, model=Leading(), bits=2**13, fpr=0.05, groups=2
    )
    assert len(built) == len(keys)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (
            lambda n: np.full(n, np.nan),
            r"Failing\.predict_proba must return scores from 0 to 1, not nan \(row 0\)",
        ),
        (
            lambda n: np.full(n, 1.5),
            r"Failing\.predict_proba must return scores from 0 to 1, not 1\.5 \(row 0\)",
        ),
        (
            lambda n: np.full(n + 1, 0.5),
            r"Failing\.predict_proba must return 10 scores, one per row, not 11",
        ),
    ],
)
def test_classifiers_that_fail(scores, message):
    class Failing:
        def predict_proba(self, rows):
            return scores(len(rows))

    f = tamis.StableLearned(Failing(), PLAN)
    with pytest.raises(ValueError, match=message):
        f.update(MEMBERS[:10])
    assert len(f) == 0


def test_drift_is_reported():
    f = made()
    assert not f.drift().alarm
    f.update(MEMBERS[1600:3600])
    calm = f.drift()
    assert not calm.alarm
    assert calm.insertions == 2000
    assert sum(calm.observed) == pytest.approx(1)
    f.update([str(i) for i in range(3000)])  # what was a sign of absent keys comes in
    assert f.drift().alarm
    assert f.drift().distance > calm.distance


def by_score(fpr, groups):
    """A filter behind scores that are known as such, fed with members for a while."""
    plan = tamis.StableLearned.plan(
        rng.beta(6, 2, 4000), rng.beta(2, 6, 4000), bits=2**14, fpr=fpr, gap=1000, groups=groups
    )
    f = tamis.StableLearned(Leading(), plan)
    ids = iter(range(10**9))

    def fed(count):
        keys, rows = [next(ids) for _ in range(count)], rng.beta(6, 2, (count, 1))
        f.update(keys, features=rows)
        return keys, rows

    fed(20_000)
    return f, fed


def queried(f, absent_scores):
    keys = -rng.integers(1, 2**62, len(absent_scores))
    return f.contains(keys, features=absent_scores[:, None]).mean()


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("fpr", "shifted"), [(0.05, (4, 4)), (0.01, (4, 4)), (0.01, (6, 2))])
def test_drift_of_queries_is_reported(fpr, groups, shifted):
    f, _ = by_score(fpr, groups)
    usual = queried(f, rng.beta(2, 6, 20_000))
    calm = f.drift()
    assert not calm.alarm
    assert calm.queries == 20_000
    assert calm.planned_fpr == pytest.approx(f.stable_fpr)
    assert calm.expected_fpr == pytest.approx(usual, rel=0.3)
    f = f.copy()  # goes on counting
    raised = queried(f, rng.beta(*shifted, 60_000))
    assert raised > 1.9 * fpr
    drift = f.drift()
    assert drift.alarm
    assert drift.queries == 80_000
    assert drift.insertions == 20_000
    assert drift.expected_fpr == pytest.approx((usual + 3 * raised) / 4, rel=0.2)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("present", [0.5, 0.95])
def test_queries_for_members_are_no_drift(groups, present):
    """Members are asked for as well, at the gap: they are not taken for absent keys."""
    f, fed = by_score(0.01, groups)
    for _ in range(10):
        keys, rows = fed(200)
        fed(900)
        f.contains(keys, features=rows)
    absent = int(2000 * (1 - present) / present)
    queried(f, rng.beta(2, 6, absent))
    calm = f.drift()
    assert calm.queries == 2000 + absent
    assert not calm.alarm
    queried(f, rng.beta(6, 2, 4000))  # and absent keys that look like members
    assert f.drift().alarm


def test_counts_of_queries_are_not_saved():
    f = made()
    f.update(MEMBERS[:100])
    before = f.to_bytes()
    f.contains(OTHERS)
    f.__contains__(OTHERS[0])
    assert f.drift().queries == len(OTHERS) + 1
    assert f.to_bytes() == before
    assert tamis.from_bytes(before).drift().queries == 0


def test_a_model_is_swapped():
    f = made()
    f.update(MEMBERS[:600])
    known = f.contains(MEMBERS[400:600]).mean()
    again, same = f.swapped(MODEL, MEMBERS[800:1600], OTHERS[800:1600])
    assert same.moved < 0.1
    assert again.contains(MEMBERS[400:600]).mean() >= known - 0.15
    other = train(MEMBERS[1600:2400], OTHERS[1600:2400], kind="svm", buckets=512)
    new, swap = f.swapped(other, MEMBERS[800:1600], OTHERS[800:1600])
    assert 0 <= swap.moved <= 1
    lost = known - new.contains(MEMBERS[400:600]).mean()
    assert lost <= swap.moved + 0.15
    assert new.stable_fpr == swap.expected_fpr
    assert new.drift().insertions == 0
    assert tamis.from_bytes(new.to_bytes()).model.scores(["a"]) == other.scores(["a"])


def test_every_flip_is_refused():
    f = made()
    f.update(MEMBERS[:50])
    data = f.to_bytes()
    for at in range(0, len(data), 17):
        bad = data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]
        with pytest.raises(tamis.FormatError):
            tamis.from_bytes(bad)
        with pytest.raises(tamis.FormatError):
            tamis.from_bytes(data[:at])


GOOD = parts(made().to_bytes())


@given(data=st.data())
def test_frames_that_lie(data):
    kind, hash_id, tag, count, capacity, values, contents = GOOD
    values, contents = list(values), list(contents)
    number = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2, 3, 64, 2**63]))
    choice, at = data.draw(st.integers(0, 3)), data.draw(st.integers(0, len(contents) - 1))
    if choice == 0:
        values[data.draw(st.integers(0, len(values) - 1))] = data.draw(number)
    elif choice == 1:
        values = data.draw(st.lists(number, max_size=12))
    elif choice == 2:
        del contents[at]
    else:  # a part that lies with its checksums right, or another's part
        own_kind, *rest, own_values, own_contents = parts(contents[at][2])
        own_values[data.draw(st.integers(0, len(own_values) - 1))] = data.draw(number)
        own_kind = data.draw(st.sampled_from([own_kind, 1, 12, 15, 17]))
        contents[at] = (3, 0, frame(own_kind, *rest, own_values, own_contents))
    try:
        f = tamis.from_bytes(frame(kind, hash_id, tag, count, capacity, values, contents))
    except tamis.FormatError:
        return
    assert f.copy().to_bytes() == f.to_bytes()
    f.seen_many(MEMBERS[:100])
    assert f.expected_fpr >= 0


def test_refuses_bad_arguments():
    bare = tamis.plan_stable([0.5, 0.5], [0.2, 0.8], bits=2**14, fpr=0.01, gap=100)
    with pytest.raises(ValueError, match="plan has no borders"):
        tamis.StableLearned(MODEL, bare)
    with pytest.raises(
        TypeError, match=r"model must be a tamis\.learned\.Model or have predict_proba, not str"
    ):
        tamis.StableLearned("forest", PLAN)
    with pytest.raises(tamis.IncompatibleError):
        made() | made()
    with pytest.raises(
        ValueError, match="decrement must be 'adjacent' or 'independent', not 'random'"
    ):
        made(decrement="random")
    with pytest.raises(ValueError, match="nonmembers must not be empty"):
        made().swapped(MODEL, MEMBERS[:10], [])
    with pytest.raises(ValueError, match="groups must be from 1 to 64, not 65"):
        tamis.StableLearned.plan([0.5], [0.5], bits=2**14, fpr=0.01, gap=100, groups=65)
    with pytest.raises(
        ValueError,
        match=r"no threshold meets fpr=.* with bits=8; pass more bits",
    ):
        tamis.StableLearned.plan(
            MODEL.scores(MEMBERS), MODEL.scores(OTHERS), bits=8, fpr=1e-6, gap=100, groups=1
        )
