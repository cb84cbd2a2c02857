"""`LearnedBloom` and its plan: against brute force, on what it is built from, and when it errs."""

import itertools
import pickle

import numpy as np
import pytest
from contract import DIGITS
from hypothesis import example, given
from hypothesis import strategies as st
from reference import frame, parts
from scipy import stats

import tamis
from tamis.planning import learned_bloom as planning
from tamis.planning.ribbon import column_rate
from tamis.testing.filters import within_noise

FORMS = planning.FORMS


def segments(members, others):
    others = np.array(others, dtype=float)
    starts = np.linspace(0, 1, len(members), endpoint=False)
    return planning.Segments(starts, np.array(members, dtype=float), others / others.sum())


def min_bits(members, shares, fpr, most=9):
    """The fewest bits of whole halvings within the rate, by trying all."""
    used = [i for i, n in enumerate(members) if n]
    best = np.inf
    for halvings in itertools.product(range(most + 1), repeat=len(used)):
        rate = sum(shares[i] * 2.0**-c for i, c in zip(used, halvings, strict=True))
        if rate <= fpr * (1 + 1e-9):  # as much as `halved` allows for rounding
            best = min(best, sum(members[i] * c for i, c in zip(used, halvings, strict=True)))
    return best


masses = st.lists(st.integers(0, 50), min_size=3, max_size=3)


@given(masses, st.lists(st.integers(1, 50), min_size=3, max_size=3), st.sampled_from([0.3, 0.05]))
@example([1, 3, 1], [24, 16, 40], 0.3)
def test_halvings_are_near_those_of_trying_all(members, others, fpr):
    shares = np.array(others) / sum(others)
    found = planning.halved(np.array(members, dtype=float), shares, fpr=fpr)
    rate = sum(s * 2.0**-c for s, c, n in zip(shares, found, members, strict=True) if n)
    assert rate <= fpr * (1 + 1e-9)
    best = min_bits(members, shares, fpr)
    # Greedy steps miss the optimum of whole numbers by less than one step of the largest region.
    assert best <= (found * members).sum() <= best + max(members)


@given(masses, st.lists(st.integers(1, 50), min_size=3, max_size=3), st.floats(0, 500))
def test_halvings_keep_to_their_bits(members, others, bits):
    shares = np.array(others) / sum(others)
    found = planning.halved(np.array(members, dtype=float), shares, bits=bits)
    assert (found * members).sum() <= bits


def unrounded_bits(parts_, cuts, fpr):
    """The cost of cuts by a general solver's stand-in: many steps of a hundredth of a halving."""
    at = [0, *cuts]
    members = np.add.reduceat(parts_.members, at)
    shares = np.add.reduceat(parts_.shares, at)
    found = planning.halved(members, shares, fpr=fpr, step=0.01)
    return np.inf if found is None else float((found * members).sum())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("fpr", [0.1, 0.01])
def test_regions_are_those_of_trying_all(seed, fpr):
    rng = np.random.default_rng(seed)
    members = np.sort(rng.integers(0, 400, 9))
    others = np.sort(rng.integers(1, 400, 9))[::-1]
    if seed % 2:  # scores that do not rise with the odds
        rng.shuffle(members)
    parts_ = segments(members, others)
    best = min(
        unrounded_bits(parts_, cuts, fpr)
        for count in range(3)
        for cuts in itertools.combinations(range(1, 9), count)
    )
    found = planning.plan(parts_, regions=3, fpr=fpr, step=0.01)
    assert found.expected_fpr <= fpr
    assert found.filter_bits <= 1.02 * best + 1
    # The same bits, asked for the other way round, give the same rate.
    back = planning.plan(parts_, regions=3, bits=found.filter_bits, step=0.01)
    assert back.expected_fpr <= 1.05 * found.expected_fpr


def test_more_freedom_is_never_worse():
    rng = np.random.default_rng(1)
    parts_ = planning.segments(
        rng.beta(5, 2, 5000).astype(np.float32), rng.beta(2, 5, 5000).astype(np.float32)
    )
    sizes = {
        form: planning.plan(parts_, form=form, fpr=0.001, step=0.1).filter_bits for form in FORMS
    }
    plain = 5000 * np.log2(1000)
    assert sizes["partitioned"] <= sizes["sandwiched"] <= sizes["simple"] <= 1.01 * plain
    assert sizes["partitioned"] < 0.9 * plain
    sizes = [
        planning.plan(parts_, regions=k, fpr=0.001, step=0.05).filter_bits for k in (1, 2, 4, 8)
    ]
    assert sizes == sorted(sizes, reverse=True)


def best_threshold(members, others, fpr):
    """The bits per key of the best threshold, and of none, by the distributions themselves."""
    cuts = np.linspace(0, 1, 2000, endpoint=False)
    above, below = others.sf(cuts), members.cdf(cuts)
    usable = above < fpr
    halvings = np.log2((1 - above[usable]) / (fpr - above[usable]))
    plain = np.ceil(np.log2(1 / fpr))
    best = (below[usable] * np.ceil(np.maximum(halvings, 0))).min(initial=plain)
    return best, plain


@pytest.mark.parametrize("shape", [(8, 1), (5, 1.5), (4, 2), (1, 1)])
@pytest.mark.parametrize(("fpr", "count"), [(0.05, 1000), (0.01, 1000), (0.01, 10_000)])
def test_a_threshold_is_near_the_best(shape, fpr, count):
    """Members with scores of beta(a, b), others of beta(b, a); with (1, 1) none helps."""
    members, others = stats.beta(*shape), stats.beta(*shape[::-1])
    best, plain = best_threshold(members, others, fpr)
    sizes, rates = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        samples = [
            each.rvs(size, random_state=rng) for each, size in ((members, 5000), (others, count))
        ]
        parts_ = planning.segments(*(scores.astype(np.float32) for scores in samples))
        found = planning.plan(parts_, form="simple", fpr=fpr)
        sizes.append(found.filter_bits / 5000)
        assert found.expected_fpr <= fpr * (1 + 1e-9)
        shares = np.diff([0, *others.cdf(found.borders), 1])
        passing = [2.0**-c if n else 0 for c, n in zip(found.halvings, found.members, strict=True)]
        rates.append(float(shares @ passing))
        within = planning.plan(parts_, form="simple", bits=found.filter_bits)
        assert within.expected_fpr <= 1.5 * fpr
        assert within.filter_bits <= found.filter_bits
    assert max(sizes) <= plain
    # Few of the held-out scores are above the threshold, so that it is found only roughly.
    assert np.mean(sizes) <= best + (0.25 if fpr * count > 10 else 0.4) * (plain - best) + 0.1
    if shape == (8, 1):
        assert max(sizes) < 0.1
    assert np.mean(rates) <= 1.1 * fpr


def test_a_sandwich_is_as_mitzenmacher_says():
    """Its filter behind has the rate F_n·F_p/((1 − F_p)(1 − F_n)), whatever the size."""
    parts_ = segments([300, 700], [97, 3])
    for fpr in (0.001, 0.0001):
        found = planning.plan(parts_, form="sandwiched", fpr=fpr, step=0.05)
        wanted = 0.3 * 0.03 / (0.97 * 0.7)
        assert abs(found.halvings[0] + np.log2(wanted)) < 0.2
        assert found.front > 0


def test_a_useless_classifier_costs_nothing_but_itself():
    rng = np.random.default_rng(2)
    same = rng.random(4000).astype(np.float32)
    parts_ = planning.segments(same[:2000], same[2000:])
    for form in FORMS:
        found = planning.plan(parts_, form=form, fpr=0.01, step=0.1)
        assert found.filter_bits <= 2000 * np.log2(100) * 1.02


def test_cuts_are_not_believed_by_those_they_were_chosen_by():
    """Few non-members, and scores that tell nothing: the rate predicted is the rate measured."""
    rng = np.random.default_rng(11)
    ratios = []
    for form in FORMS:
        for _ in range(10):
            members = rng.random(3000, dtype=np.float32)
            seen = rng.random(300, dtype=np.float32)
            found = planning.plan(planning.segments(members, seen), form=form, bits=3000 * 4)
            widths = np.diff([0, *found.borders, 1])
            true = sum(w * 2.0**-c for w, c in zip(widths, found.halvings, strict=True))
            ratios.append(true * 2.0**-found.front / found.expected_fpr)
    assert 0.8 < np.mean(ratios) < 1.3


@given(
    st.lists(st.tuples(st.integers(0, 10**4), st.floats(1e-6, 1)), min_size=1, max_size=6).filter(
        lambda regions: any(n for n, _ in regions)
    ),
    st.floats(1e-6, 0.5),
    st.floats(0.1, 20),
)
def test_a_part_of_a_step_is_no_worse_than_whole_steps(regions, fpr, bits_per_key):
    members, shares = (np.array(each, float) for each in zip(*regions, strict=True))
    shares /= shares.sum()
    found = []
    for mixed in (False, True):
        by_rate = planning.halved(members, shares, fpr=fpr, mixed=mixed)
        by_bits = planning.halved(members, shares, bits=bits_per_key * members.sum(), mixed=mixed)
        rates = [
            sum(s * column_rate(c) for n, s, c in zip(members, shares, each, strict=True) if n)
            for each in (by_rate, by_bits)
        ]
        assert rates[0] <= fpr * (1 + 1e-9)
        assert (by_bits * members).sum() <= bits_per_key * members.sum() * (1 + 1e-9)
        assert sum(c != int(c) for c in (*by_rate, 0.0)) <= 1
        found.append(((by_rate * members).sum(), rates[1]))
    assert found[1][0] <= found[0][0] * (1 + 1e-9)
    assert found[1][1] <= found[0][1] * (1 + 1e-9)


def words(n, seed):
    rng = np.random.default_rng(seed)
    letters = np.array(list("abcdefgh" if seed % 2 else "efghijkl"))
    return ["".join(row) for row in rng.choice(letters, (n, 12))]


MEMBERS, STRANGERS, ASKED = words(4000, 1), words(8000, 2), words(20_000, 4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("filter", [tamis.Ribbon, tamis.Bloom, tamis.Cuckoo])
def test_all_forms_of_all_filters(form, filter):
    f = tamis.LearnedBloom.build(
        MEMBERS, nonmembers=STRANGERS, kind="logistic", fpr=0.01, form=form, filter=filter
    )
    assert f.contains(MEMBERS).all()
    assert f.expected_fpr <= 0.0101
    measured = f.contains(ASKED).mean()
    # The shares of the regions were estimated, from half of the strangers.
    assert within_noise(measured, f.expected_fpr, 3000)
    assert f.size_in_bits > f.model.size_in_bits
    twin = tamis.from_bytes(f.to_bytes())
    assert (twin.contains(ASKED) == f.contains(ASKED)).all()
    assert twin.model.to_bytes() == f.model.to_bytes()


def test_a_budget_counts_the_model():
    model = tamis.learned.train(MEMBERS, STRANGERS[::2], kind="logistic", buckets=64)
    rates = []
    for budget in (3, 5, 8):
        f = tamis.LearnedBloom.build(
            MEMBERS, nonmembers=STRANGERS[1::2], model=model, bits_per_key=budget
        )
        assert f.bits_per_key <= budget
        assert f.size_in_bits >= model.size_in_bits
        rates.append(f.expected_fpr)
    assert rates == sorted(rates, reverse=True)
    plain = tamis.Ribbon.build(MEMBERS, bits_per_key=5)
    assert rates[1] < plain.expected_fpr
    with pytest.raises(
        ValueError,
        match=r"bits_per_key must be above \d+\.\d+, the size of the model .* not 8",
    ):
        tamis.LearnedBloom.build(MEMBERS[:10], nonmembers=STRANGERS, model=model, bits_per_key=8)


def test_a_budget_between_two_plans():
    """A plan changes by whole steps of a rate: cuts of a few bits do not reach the next one."""

    class Given:
        def predict_proba(self, scores):
            return scores

    rng = np.random.default_rng(1)
    inside, outside = (np.round(rng.beta(a, 1, n), 1) for a, n in ((9, 2000), (3, 1000)))
    f = tamis.LearnedBloom.build(
        np.arange(2000),
        features=inside,
        nonmembers=outside,
        model=Given(),
        bits_per_key=1.5,
        form="simple",
        filter=tamis.Bloom,
        layout="standard",
    )
    assert 2500 < f.size_in_bits <= 3000


def test_features_beside_the_keys():
    rng = np.random.default_rng(3)
    near, far = rng.normal(1, 1, (3000, 2)), rng.normal(-1, 1, (6000, 2))
    keys = np.arange(3000)
    f = tamis.LearnedBloom.build(keys, features=near, nonmembers=far, kind="logistic", fpr=0.01)
    assert f.contains(keys, features=near).all()
    fresh = rng.normal(-1, 1, (20_000, 2))
    measured = f.contains(np.arange(10_000, 30_000), features=fresh).mean()
    assert within_noise(measured, f.expected_fpr, 2000)
    with pytest.raises(TypeError, match="features is missing: the model reads a table"):
        f.contains(keys)
    with pytest.raises(ValueError, match="features has 6000 rows for 3000 keys"):
        f.contains(keys, features=far)


class Halves:
    """Another's classifier, of numbers."""

    def predict_proba(self, rows):
        share = (np.asarray(rows) % 10) / 10
        return np.stack([1 - share, share], axis=1)


def test_a_foreign_classifier_is_used_but_not_saved(tmp_path):
    keys = np.arange(7, 20_000, 10)
    f = tamis.LearnedBloom.build(keys, nonmembers=np.arange(30_000), model=Halves(), fpr=0.01)
    assert f.contains(keys).all()
    assert f.bits_per_key < 8
    assert isinstance(f.copy().model, Halves)
    for save in (f.to_bytes, lambda: f.save(tmp_path / "f"), lambda: pickle.dumps(f)):
        with pytest.raises(TypeError, match="model is a Halves, which cannot be saved"):
            save()
    assert not list(tmp_path.iterdir())


class Rounded:
    """A logistic model whose logits depend on how many rows are scored together, as BLAS sums."""

    def predict_proba(self, logits):
        error = 2.0**-22 if len(logits) > 1 else -(2.0**-22)
        return 1 / (1 + np.exp(-np.asarray(logits, dtype=np.float64) - error))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("distinct", "step"), [(4000, 2.0**-21), (4000, 2.0**-10), (50, 0.1)])
def test_keys_scored_alone_are_accepted(form, distinct, step):
    """With scores closer than their error, with scores apart, and with scores that repeat."""
    ranks = np.random.default_rng(1).beta(3, 1, (2, 4000))
    members, others = (
        np.round((rank - 0.5) * distinct) * step for rank in (ranks[0], 1 - ranks[1])
    )
    f = tamis.LearnedBloom.build(
        range(4000), features=members, nonmembers=others, model=Rounded(), fpr=0.01, form=form
    )
    alone = [f.contains([i], features=[logit])[0] for i, logit in enumerate(members)]
    assert all(alone), f"{alone.count(False)} keys rejected"


def test_borders_lie_between_scores():
    members, others = np.float32([0.5, 0.5, 0.75, 1.0]), np.float32([0.125, 0.25, 0.5])
    found = planning.segments(members, others)
    assert found.starts.tolist() == [0.0, 0.0625, 0.1875, 0.375, 0.625, 0.875]
    assert found.members.tolist() == [0, 0, 0, 2, 1, 1]


def test_what_is_refused():
    build = tamis.LearnedBloom.build
    with pytest.raises(ValueError, match="pass exactly one of model or kind"):
        build([1], nonmembers=[2], fpr=0.1)
    with pytest.raises(
        ValueError, match="form must be 'simple', 'sandwiched' or 'partitioned', not 'round'"
    ):
        build([1], nonmembers=[2], model=DIGITS, fpr=0.1, form="round")
    with pytest.raises(ValueError, match="regions must be from 1 to 256, not 0"):
        build([1], nonmembers=[2], model=DIGITS, fpr=0.1, regions=0)
    with pytest.raises(
        ValueError, match="nonmembers must not be empty; pass some not used for training"
    ):
        build([1], nonmembers=[], model=DIGITS, fpr=0.1)
    with pytest.raises(TypeError, match=r"model must be .* not str"):
        build([1], nonmembers=[2], model="forest", fpr=0.1)


@given(data=st.data())
def test_frames_that_lie(data):
    f = tamis.LearnedBloom.build(
        range(60), nonmembers=range(20_000, 20_500), model=DIGITS, fpr=0.05
    )
    kind, hash_id, tag, count, capacity, values, contents = parts(f.to_bytes())
    number = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2, 3, 2**32, 2**63]))
    choice = data.draw(st.integers(0, 3))
    if choice == 0:
        values[data.draw(st.integers(0, len(values) - 1))] = data.draw(number)
    elif choice == 1:
        values = data.draw(st.lists(number, max_size=8))
    elif choice == 2:
        contents.pop(data.draw(st.integers(0, len(contents) - 1)))
    else:
        contents[data.draw(st.integers(0, len(contents) - 1))] = (3, 0, f.to_bytes())
    try:
        opened = tamis.from_bytes(frame(kind, hash_id, tag, count, capacity, values, contents))
    except tamis.FormatError:
        return
    opened.contains(range(300))
    assert opened.expected_fpr >= 0
    assert tamis.from_bytes(opened.to_bytes()).to_bytes() == opened.to_bytes()
