"""What is particular to stacks: two kinds of absent keys, and layers that must agree."""

import numpy as np
import pytest
from contract import FIRST_NEGATIVE, alternating, planned, stack
from hypothesis import given
from hypothesis import strategies as st
from reference import Stacked, frame, hash_key, parts

import tamis
from tamis.testing.filters import SIGMAS, within_noise

FIRST_UNSEEN = 10**10


KINDS = ("bloom", "cuckoo", "quotient", "fuse", "ribbon")
SHAPES = [alternating(kind) for kind in KINDS] + [
    alternating("bloom", 5),
    ("quotient", "ribbon", "cuckoo"),
    ("ribbon", "function"),
    ("bloom", "fuse", "ribbon", "function"),
]


@pytest.mark.parametrize("kinds", SHAPES, ids="-".join)
def test_errs_as_expected_on_known_and_unseen(kinds):
    n, trials = 30_000, 300_000
    keys = np.arange(n)
    known = np.arange(FIRST_NEGATIVE, FIRST_NEGATIVE + trials)
    unseen = np.arange(FIRST_UNSEEN, FIRST_UNSEEN + trials)
    fine = 7 if "cuckoo" in kinds else 4
    f = stack(kinds, fine, keys, known, psi=0.25)
    assert len(f.layers) == len(kinds)
    assert f.contains(keys).all()
    assert within_noise(f.contains(known).mean(), f.known_fpr, trials)
    assert within_noise(f.contains(unseen).mean(), f.fpr_bound, trials)
    assert f.known_fpr < f.expected_fpr < f.fpr_bound
    assert f.expected_fpr == pytest.approx(0.25 * f.known_fpr + 0.75 * f.fpr_bound)
    if kinds[-1] == "function":
        assert not f.contains(known).any()
        assert f.known_fpr == 0


@pytest.mark.parametrize("kind", ["bloom", "cuckoo", "quotient"])
def test_expected_rates_stay_true_after_insertions_and_removals(kind):
    n, trials = 20_000, 400_000
    known = np.arange(FIRST_NEGATIVE, FIRST_NEGATIVE + trials)
    unseen = np.arange(FIRST_UNSEEN, FIRST_UNSEEN + trials)
    fine = 7 if kind == "cuckoo" else 4
    f = stack(alternating(kind), fine, np.arange(n), known, capacity=2 * n)
    assert (f.inserts, f.deletes, f.bounded) == (True, kind != "bloom", kind == "cuckoo")
    before = f.known_fpr
    f.update(np.arange(n, 2 * n))
    assert len(f) > 0.95 * 2 * n  # Bloom counts what changes bits
    assert f.known_fpr > 2 * before
    assert within_noise(f.contains(known).mean(), f.known_fpr, trials)
    assert within_noise(f.contains(unseen).mean(), f.fpr_bound, trials)
    if not f.deletes:
        return
    # Removals hit keys of the build and later ones alike, as `expected_fpr` takes it.
    for key in range(0, 2 * n, 2):
        f.remove(key)
    assert f.contains(np.arange(1, 2 * n, 2)).all()
    assert within_noise(f.contains(unseen).mean(), f.fpr_bound, trials)
    assert within_noise(f.contains(known).mean(), f.known_fpr, trials)


@pytest.mark.parametrize("kind", ["bloom", "cuckoo", "quotient"])
def test_the_rate_of_known_negatives_in_a_coarse_stack(kind):
    """Where each of five layers lets much through, each has its visible part in the rate."""
    n, trials = 20_000, 500_000
    known = np.arange(FIRST_NEGATIVE, FIRST_NEGATIVE + trials)
    fine = 4 if kind == "cuckoo" else 1
    f = stack(alternating(kind, 5), fine, np.arange(n), known, capacity=2 * n)
    assert within_noise(f.contains(known).mean(), f.known_fpr, trials)
    for most in range(n + n // 4, 2 * n + 1, n // 4):
        f.update(np.arange(most - n // 4, most))
        assert within_noise(f.contains(known).mean(), f.known_fpr, trials)


@pytest.mark.parametrize("kind", ["cuckoo", "quotient"])
def test_the_rate_of_known_negatives_in_a_coarse_stack_after_removals(kind):
    """Some that two keys let through at the build are let through by one of them still."""
    n, trials = 20_000, 1_000_000
    known = np.arange(FIRST_NEGATIVE, FIRST_NEGATIVE + trials)
    fine = 4 if kind == "cuckoo" else 1
    for every in (2, 3):
        f = stack(alternating(kind, 5), fine, np.arange(n), known, capacity=2 * n)
        for key in range(0, n, every):
            f.remove(key)
        # What is left of each layer varies about its expectation.
        assert f.known_fpr == pytest.approx(f.contains(known).mean(), rel=0.2)
        f.update(np.arange(n, 2 * n))
        assert within_noise(f.contains(known).mean(), f.known_fpr, trials)


@pytest.mark.filterwarnings("ignore::tamis.CapacityWarning")
def test_a_batch_that_is_refused_midway_leaves_nothing():
    n, asked = 1000, np.arange(100_000)
    known = np.arange(FIRST_NEGATIVE, FIRST_NEGATIVE + 20_000)
    f = stack(alternating("quotient"), 1, np.arange(n), known, capacity=3 * n)
    held, stopped = f.contains(asked), f.contains(known)
    rates = (f.expected_fpr, f.known_fpr, f.fpr_bound)
    more = np.arange(n, 40 * n)
    for batch in (more, more.tolist(), [f"key {i}" for i in more]):
        with pytest.raises(tamis.CapacityError, match="cannot double"):
            f.update(batch)
        assert len(f) == n
        assert (f.contains(asked) == held).all()
        assert (f.contains(known) == stopped).all()
        assert (f.expected_fpr, f.known_fpr, f.fpr_bound) == rates


def test_expected_fpr_is_that_of_the_workload():
    """Weighted by how often each negative is asked, with the variance that the weights have."""
    n, known, universe = 20_000, 40_000, 400_000
    frequency = 1 / np.arange(1, universe + 1)
    frequency /= frequency.sum()
    psi = frequency[:known].sum()
    asked = np.arange(FIRST_NEGATIVE, FIRST_NEGATIVE + universe)
    for kinds in (alternating("bloom"), ("ribbon", "function")):
        for seed in range(3):
            f = stack(kinds, 5, np.arange(n), asked[:known], psi=psi, seed=seed)
            p = np.where(np.arange(universe) < known, f.known_fpr, f.fpr_bound)
            assert (frequency * p).sum() == pytest.approx(f.expected_fpr)
            sigma = np.sqrt((frequency**2 * p * (1 - p)).sum())
            measured = (frequency * f.contains(asked)).sum()
            assert abs(measured - f.expected_fpr) < SIGMAS * sigma


@given(data=st.data())
def test_a_stack_is_its_twin(data):
    kinds = data.draw(st.lists(st.sampled_from(("bloom", "quotient", "cuckoo")), min_size=5))
    kinds = kinds[: data.draw(st.sampled_from((1, 3, 5)))]
    some = st.sets(st.integers(0, 400), max_size=120)
    keys, negatives = data.draw(some), data.draw(some)
    f = stack(kinds, 4, sorted(keys), sorted(negatives), capacity=1000)
    twin = Stacked.like(f.to_bytes())
    twin.build(map(hash_key, keys), map(hash_key, negatives))
    held = dict.fromkeys(keys, 1)
    for key in data.draw(st.lists(st.integers(0, 400), max_size=60)):
        if f.deletes and held.get(key):
            f.remove(key)
            twin.remove(hash_key(key))
            held[key] -= 1
        else:
            f.add(key)
            twin.add(hash_key(key))
            held[key] = held.get(key, 0) + 1
    asked = range(600)
    assert f.contains(asked).tolist() == [twin.contains(hash_key(key)) for key in asked]
    assert all((key in f) == twin.contains(hash_key(key)) for key in asked)
    assert all(key in f for key, count in held.items() if count)
    again = tamis.from_bytes(f.to_bytes())
    assert (again.contains(asked) == f.contains(asked)).all()
    assert again.expected_fpr == f.expected_fpr


@given(
    st.sets(st.integers(0, 2000), max_size=300),
    st.sets(st.integers(0, 2000), max_size=300),
    st.sampled_from([("ribbon", "function"), ("bloom", "fuse", "ribbon", "function")]),
)
def test_an_exact_stack_knows_its_negatives(keys, negatives, kinds):
    f = stack(kinds, 1, sorted(keys), sorted(negatives))
    assert f.contains(sorted(keys)).all()
    assert all(key in f for key in keys)
    if keys:
        assert not f.contains(sorted(negatives - keys)).any()
    assert f.keys_among_negatives == len(keys & negatives)


@given(
    st.sampled_from(SHAPES),
    st.sets(st.integers(0, 500), max_size=100),
    st.sets(st.integers(0, 500), max_size=100),
    st.one_of(st.none(), st.floats(0.5, 30)),
)
def test_no_key_is_denied_whatever_the_budget(kinds, keys, negatives, budget):
    fine = 4
    f = stack(kinds, fine, sorted(keys), sorted(negatives), budget=budget)
    assert f.contains(sorted(keys)).all()
    if budget is not None and len(f.layers) > 1:
        assert f.size_in_bits <= budget * len(keys)


@pytest.mark.parametrize("kinds", SHAPES, ids="-".join)
def test_the_last_layers_yield_to_the_budget(kinds):
    keys = np.arange(20_000)
    negatives = np.arange(FIRST_NEGATIVE, FIRST_NEGATIVE + 200_000)
    fine = 8 if "cuckoo" in kinds else 6
    free = stack(kinds, fine, keys, negatives)
    depths = set()
    for share in (1.0, 0.999, 0.99, 0.95, 0.9, 0.8):
        budget = free.size_in_bits / len(keys) * share
        f = stack(kinds, fine, keys, negatives, budget=budget)
        assert f.size_in_bits <= budget * len(keys)
        assert f.contains(keys).all()
        assert f.layers[0].items == len(keys)
        known = f.contains(negatives).mean()
        # Negatives that did not fit into a function count as unknown: psi says how many.
        expected = f.known_fpr + (1 - f.psi / 0.5) * (f.fpr_bound - f.known_fpr)
        more_than_known = len(kinds) > 2 and f.psi < 0.5  # layers above it stopped some of those
        assert within_noise(known, expected, len(negatives)) or known < expected * more_than_known
        depths.add(len(f.layers))
    assert max(depths) == len(kinds)


@pytest.mark.parametrize("last", ["auto", "alternating"])
@pytest.mark.parametrize("fpr", [1e-9, 1e-13, 1e-19])
def test_a_very_low_rate_is_built_as_planned(last, fpr):
    w = tamis.Workload.zipf(1.0, universe=10**5, sample=10**4)
    known = range(FIRST_NEGATIVE, FIRST_NEGATIVE + 10**4)
    f = tamis.Stacked.build(range(1000), w, negatives=known, fpr=fpr, last=last)
    # Where no negative passes the first layer there are no others, which would have helped a bit.
    assert f.expected_fpr <= 1.5 * fpr
    with pytest.raises(ValueError, match="fpr must be at least"):
        tamis.Stacked.build(range(1000), w, negatives=known, fpr=1e-21, last=last)


def test_static_layers_say_so():
    f = stack(("ribbon", "function"), 3, range(10), range(10, 20))
    assert (f.inserts, f.deletes, f.bounded) == (False, False, False)
    before = f.to_bytes()
    with pytest.raises(ValueError, match="keys cannot be added"):
        f.add(1)
    with pytest.raises(ValueError, match="keys cannot be added"):
        f.update([1])
    with pytest.raises(ValueError, match="keys cannot be removed"):
        f.remove(1)
    assert f.to_bytes() == before
    g = stack(alternating("bloom"), 3, range(10), range(10, 20))
    with pytest.raises(ValueError, match="keys cannot be removed"):
        g.remove(1)
    mixed = stack(("bloom", "ribbon", "bloom"), 3, range(100), range(1000, 2000), capacity=200)
    assert mixed.inserts
    mixed.update(range(100, 200))
    assert mixed.contains(range(200)).all()


@pytest.mark.parametrize("kind", ["cuckoo", "quotient"])
def test_removal_of_what_is_not_there_changes_nothing(kind):
    f = stack(alternating(kind), 6, range(2000), np.arange(FIRST_NEGATIVE, FIRST_NEGATIVE + 50_000))
    before = f.to_bytes()
    refused = 0
    for key in range(5000, 9000):
        if key in f:
            continue
        with pytest.raises(KeyError):
            f.remove(key)
        refused += 1
    assert refused > 1000
    assert f.to_bytes() == before


@pytest.mark.parametrize(
    ("keys", "capacity", "bits", "seed"),
    [(1, 5000, 14, 0), (500, 5000, 8, 0), (2000, 20_000, 8, 2), (100, 1000, 12, 0)],
)
def test_a_stack_of_cuckoo_filters_reaches_its_capacity(keys, capacity, bits, seed):
    """How many later keys reach a small layer is random, and the layer has slack for them."""
    w = tamis.Workload.zipf(1.0, universe=20 * capacity, sample=10 * capacity)
    known = np.arange(FIRST_NEGATIVE, FIRST_NEGATIVE + 10 * capacity)
    options = {"layer": "cuckoo", "last": "alternating", "negatives": known, "seed": seed}
    f = tamis.Stacked.build(range(keys), w, bits_per_key=bits, capacity=capacity, **options)
    assert len(f.layers) > 1
    f.update(range(keys, capacity))
    assert len(f) == capacity
    assert f.contains(range(capacity)).all()
    assert f.size_in_bits <= bits * capacity


def test_a_full_layer_below_leaves_no_trace():
    """A stack of cuckoo filters refuses a batch as a whole, whichever layer is full."""
    keys = range(3000)
    negatives = np.arange(FIRST_NEGATIVE, FIRST_NEGATIVE + 200_000)
    f = stack(alternating("cuckoo"), 5, keys, negatives, capacity=40_000)
    stored = f.layers[2].items

    def reaches_the_third_layer(key):
        g = f.copy()
        g.add(key)
        return g.layers[2].items > stored

    # Added again and again, it fills its two buckets in either layer.
    key = next(filter(reaches_the_third_layer, range(10**6, 10**6 + 3000)))
    f.update([key] * 7)
    before = f.to_bytes()
    with pytest.raises(tamis.CapacityError):
        f.update([key] * 2)
    assert f.to_bytes() == before
    with pytest.raises(tamis.CapacityError):
        f.update([*range(20_000, 20_500), *[key] * 9])
    assert f.to_bytes() == before
    assert f.contains(keys).all()


@pytest.mark.parametrize("kinds", [alternating("bloom"), ("ribbon", "function")], ids="-".join)
def test_shards_of_stacks(kinds, tmp_path):
    keys = np.random.default_rng(2).permutation(60_000)
    known = np.arange(50_000, 450_000)
    shape = {"filter": tamis.Stacked, "plan": planned(kinds, 4, psi=0.25), "shards": 5}
    whole = tamis.Sharded.build(keys, negatives=known, **shape)
    assert whole.contains(keys).all()
    trials = len(known) - 10_000
    unseen = np.arange(FIRST_UNSEEN, FIRST_UNSEEN + trials)
    assert within_noise(whole.contains(unseen).mean(), whole.fpr_bound, trials)
    measured = whole.contains(known[10_000:]).mean()
    expected = (whole.expected_fpr - 0.75 * whole.fpr_bound) / 0.25
    assert within_noise(measured, max(expected, 0), trials)
    batches = np.array_split(np.concatenate([keys, keys[:99]]), 9)
    spilled = tamis.Sharded.from_batches(
        batches, negatives=iter(np.array_split(known, 4)), directory=tmp_path, **shape
    )
    assert spilled.to_bytes() == whole.to_bytes()
    assert not list(tmp_path.iterdir())
    one = tamis.Sharded.build(keys, negatives=known, **{**shape, "shards": 1})
    alone = shape["plan"].build(keys, negatives=known)
    assert (one.contains(known) == alone.contains(known)).all()
    assert one.size_in_bits == alone.size_in_bits


def test_what_build_takes_is_what_plan_takes():
    workload = tamis.Workload.zipf(1.0, universe=5000, sample=2000)
    negatives = np.arange(FIRST_NEGATIVE, FIRST_NEGATIVE + 2000)
    keys = np.arange(3000)
    plan = tamis.plan(3000, workload, bits_per_key=9, layer="quotient", updates=True)
    f = plan.build(keys, negatives=negatives)
    shape = {"bits_per_key": 9, "layer": "quotient", "updates": True}
    g = tamis.Stacked.build(keys, workload, negatives=negatives, **shape)
    assert f.to_bytes() == g.to_bytes()
    assert f.psi == plan.psi
    assert f.bits_per_key <= 9
    with pytest.raises(ValueError, match="values"):
        tamis.Stacked.build(keys, workload, bits_per_key=9)
    with pytest.raises(TypeError, match="budgets"):
        tamis.Stacked.build(keys, workload, budgets=9)
    plain = tamis.Stacked.build(keys, bits_per_key=9)
    assert len(plain.layers) == 1


def test_frames_that_are_no_stacks():
    good = stack(alternating("quotient"), 3, range(300), range(1000, 9000)).to_bytes()
    exact = stack(("ribbon", "function"), 3, range(300), range(1000, 9000)).to_bytes()
    kind, hash_id, tag, count, capacity, values, contents = parts(good)
    _, _, _, _, _, exact_values, exact_contents = parts(exact)
    assert (kind, len(contents), values[0]) == (8, 3, 3)

    def opened(values=values, contents=contents, count=count):
        return tamis.from_bytes(frame(8, hash_id, tag, count, capacity, values, contents))

    assert opened().to_bytes() == good
    nan, two = 0x7FF8_0000_0000_0000, 0x4000_0000_0000_0000
    as_layer = frame(8, 0, 0, count, capacity, values, contents)
    shards = parts(tamis.Sharded.build(range(300), fpr=0.1, shards=2).to_bytes())
    shard = frame(7, 0, 0, *shards[3:])
    wide = tamis.StaticFunction.build(range(300), np.arange(300) % 4).to_bytes()
    wide = frame(*parts(wide)[:1], 0, 0, *parts(wide)[3:])
    for wrong in (
        {"values": [2, *values[1:]], "contents": contents[:2]},
        {"values": [4, *values[1:]], "contents": [*contents, contents[0]]},
        {"values": [0, *values[1:5]], "contents": []},
        {"values": values[:4]},
        {"values": values[:-1]},
        {"values": [*values, values[-1]]},
        {"values": [3, nan, *values[2:]]},
        {"values": [3, two, *values[2:]]},
        {"values": [*values[:3], 2, *values[4:]]},
        {"values": [*values[:4], nan, *values[5:]]},
        {"values": [*values[:5], two, *values[6:]]},
        {"contents": [(3, 0, as_layer), *contents[1:]]},
        {"contents": [contents[0], (3, 0, shard), contents[2]]},
        {"contents": [(1, 0, contents[0][2]), *contents[1:]]},
        {"contents": [contents[0], exact_contents[1], contents[2]]},
        {"contents": exact_contents[::-1], "values": exact_values, "count": 300},
        {"contents": [exact_contents[0], (3, 0, wide)], "values": exact_values},
        {"count": count + 1},
        {"contents": [(3, 0, good), *contents[1:]]},
    ):
        with pytest.raises(tamis.FormatError):
            opened(**wrong)
