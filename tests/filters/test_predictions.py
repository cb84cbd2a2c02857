"""Predicted rates against measured ones, from above and below, after every kind of change.

Streams have such tests in `tests/filters/test_stable.py`, `tests/filters/test_windowed.py` and
`tests/streams/test_dedup.py`, learned filters in `tests/filters/test_learned.py` and
`tests/filters/test_stable_learned.py`, plans in `tests/planning/test_plan.py`, workloads in
`tests/workload/test_workload.py`.
"""

import numpy as np
import pytest
from contract import SPECIMENS
from stand_in import tiny

import tamis
from tamis import _native
from tamis.planning import bloom, quotient
from tamis.stores import Hashes
from tamis.testing.filters import SIGMAS

KEYS, TRIALS, SEEDS = 3000, 60_000, range(3)
ABSENT = np.arange(10**12, 10**12 + TRIALS)


def agree(pairs, trials=TRIALS):
    """Whether rates measured on several filters have the predicted mean."""
    measured, expected = np.array(pairs).T
    sigma = np.sqrt((expected * (1 - expected)).sum() / trials)
    difference = measured.sum() - expected.sum()
    assert abs(difference) < SIGMAS * sigma + 0.01 * expected.sum() + 2 / trials, (
        measured.mean(),
        expected.mean(),
    )


def filled(specimen, seed, *, capacity=KEYS):
    f = specimen.make(capacity, fpr=0.02, seed=seed)
    f.update(np.arange(KEYS // 2))
    f.update(np.arange(KEYS // 2, KEYS))
    return f


def removed(specimen, seed):
    f = filled(specimen, seed)
    for key in range(0, KEYS, 2):
        f.remove(key)
    return f


def refilled(specimen, seed):
    f = removed(specimen, seed)
    f.update(np.arange(10 * KEYS, 10 * KEYS + KEYS // 2))
    return f


def repeated(specimen, seed):
    f = filled(specimen, seed, capacity=2 * KEYS)
    f.update(np.arange(KEYS // 10))
    return f


def overfull(specimen, seed):
    f = filled(specimen, seed)
    f.update(np.arange(KEYS, KEYS + KEYS // 2))
    return f


def merged(specimen, seed):
    f, g = (specimen.make(2 * KEYS, fpr=0.02, seed=seed) for _ in range(2))
    f.update(np.arange(KEYS))
    g.update(np.arange(KEYS // 2, KEYS + KEYS // 2))
    return f | g


def grown(specimen, seed):
    f = filled(specimen, seed)
    f.grow(*([Hashes(range(KEYS), seed=seed)] if hasattr(f, "adapt") else []))
    return f


def adapted(specimen, seed):
    f = filled(specimen, seed)
    asked = np.arange(2 * 10**7, 2 * 10**7 + 20_000)
    f.adapt_many(asked[f.contains(asked)], Hashes(range(KEYS), seed=seed))
    return f


def truncated(specimen, seed):
    f = specimen.build(np.arange(KEYS), fpr=0.002, seed=seed)
    return f.truncate(f.size_in_bits * 2 // 3 if specimen.cls is tamis.Bloom else 5)


CHANGES = {
    change.__name__: change
    for change in (filled, removed, refilled, repeated, overfull, merged, grown, adapted, truncated)
}


CUT = (None, "segmented", "columns")
"""The layouts that can be truncated."""


def changes(specimen):
    """The changes that a filter supports."""
    f = specimen.build([1], fpr=0.01)
    supported = {
        "filled": f.inserts,
        "removed": f.deletes,
        "refilled": f.deletes,
        "repeated": f.inserts,
        "overfull": f.inserts and not f.bounded and f.one_sided,
        "merged": f.inserts and f.merges,
        "grown": hasattr(f, "grow"),
        "adapted": hasattr(f, "adapt"),
        "truncated": hasattr(f, "truncate") and specimen.arguments.get("layout") in CUT,
    }
    return [change for change in CHANGES if supported[change]]


CASES = [(specimen, change) for specimen in SPECIMENS for change in changes(specimen)]


@pytest.mark.filterwarnings("ignore::tamis.CapacityWarning")
@pytest.mark.parametrize(("specimen", "change"), CASES, ids=str)
def test_the_rate_of_unknown_keys(specimen, change):
    """`fpr_bound`, and `expected_fpr` of filters that know no queries."""
    pairs = []
    for seed in SEEDS:
        f = CHANGES[change](specimen, seed)
        pairs.append((f.contains(ABSENT).mean(), f.fpr_bound))
        assert 0 <= f.expected_fpr <= f.fpr_bound <= 1
        if not specimen.layered:
            assert f.expected_fpr == f.fpr_bound
    agree(pairs)


# Stacks, which know negatives: the queries are equally frequent, and 0.9 of them are for KNOWN.

KNOWN = np.arange(10**8, 10**8 + 40_000)
WORKLOAD = tamis.Workload.from_counts(KNOWN, np.ones(len(KNOWN)), unseen=0.1)


def stack(kind, seed, *, keys=range(4000), capacity=8000, negatives=None):
    return tamis.Stacked.build(
        keys,
        WORKLOAD,
        bits_per_key=10,
        layer=kind,
        last="alternating",
        capacity=capacity,
        negatives=negatives,
        seed=seed,
    )


def built(kind, seed):
    return stack(kind, seed), ()


def with_insertions(kind, seed):
    f = stack(kind, seed)
    f.update(np.arange(4000, 8000))
    return f, ()


def with_removals(kind, seed):
    """Keys of the build and later ones alike."""
    f, _ = with_insertions(kind, seed)
    for key in range(0, 8000, 2):
        f.remove(key)
    return f, ()


def with_insertions_after_removals(kind, seed):
    f = stack(kind, seed)
    for key in range(0, 4000, 2):
        f.remove(key)
    f.update(np.arange(4000, 7000))
    return f, ()


def with_keys_among_negatives(kind, seed):
    both = KNOWN[:: len(KNOWN) // 400]
    return stack(kind, seed, keys=np.concatenate([np.arange(3600), both])), both


def with_missing_negatives(kind, seed):
    return stack(kind, seed, negatives=KNOWN[:5000]), KNOWN[5000:]


def with_known_negatives_inserted(kind, seed):
    f, both = stack(kind, seed), KNOWN[:: len(KNOWN) // 400]
    f.update(both)
    return f, both


STACKS = [
    built,
    with_insertions,
    with_removals,
    with_insertions_after_removals,
    with_keys_among_negatives,
    with_missing_negatives,
    with_known_negatives_inserted,
]


@pytest.mark.parametrize("change", STACKS, ids=lambda change: change.__name__)
@pytest.mark.parametrize("kind", ["bloom", "cuckoo", "quotient"])
def test_the_rates_of_a_stack(kind, change):
    """`known_fpr`, `fpr_bound`, ψ, and `expected_fpr`, which weighs them."""
    if kind == "bloom" and "removals" in change.__name__:
        pytest.skip("Bloom filters do not support removals")
    known, unknown, expected = [], [], []
    for seed in range(4):
        f, others = change(kind, seed)
        left = KNOWN[~np.isin(KNOWN, others)]
        known.append((f.contains(left).mean(), f.known_fpr))
        unknown.append((f.contains(ABSENT).mean(), f.fpr_bound))
        # The queries for absent keys: ψ is the fraction of those that the stack was built with.
        absent = KNOWN if change is with_missing_negatives else left
        rate = 0.9 * f.contains(absent).mean() + 0.1 * unknown[-1][0]
        expected.append((rate, f.expected_fpr))
        assert f.psi == pytest.approx(0.9 * len(left) / len(KNOWN), abs=0.02)
        assert f.expected_fpr == pytest.approx(f.psi * f.known_fpr + (1 - f.psi) * f.fpr_bound)
    agree(known, len(left))
    agree(unknown)
    agree(expected, len(left))


@pytest.mark.parametrize("kind", ["cuckoo", "quotient"])
def test_the_order_of_removals_is_within_the_bound(kind):
    """The rate assumes that old and new keys leave alike; `fpr_bound` holds in any order."""
    f, g = stack(kind, 0), stack(kind, 0)
    for each in (f, g):
        each.update(np.arange(4000, 8000))
    for old, new in zip(range(4000), range(4000, 8000), strict=True):
        f.remove(old)
        g.remove(new)
    oldest_first, newest_first = f.contains(KNOWN).mean(), g.contains(KNOWN).mean()
    assert newest_first < g.known_fpr == pytest.approx(f.known_fpr, rel=0.05)
    assert f.known_fpr < oldest_first < 1.1 * f.fpr_bound


# Adaptive stacks of five layers, in which every layer accepts much.

ASKED = 200_000


def layer(kind, items, capacity=0):
    """An empty layer with a rate of about one half for half as many items."""
    items = max(int(items), 1)
    if kind == "bloom":
        return _native.Bloom._empty(bloom.BloomSize("standard", 2 * items, 1), capacity)
    size = quotient.QuotientSize(quotient.quotients(items), 1)
    return _native.Quotient._empty(size, capacity or items)


class Learning:
    """An adaptive stack that gets to know ``ASKED`` negatives, with a change before each layer."""

    def __init__(self, kind, seed, between):
        self.kind, self.held = kind, np.arange(seed * 10**6, seed * 10**6 + 8000)
        self.known = np.arange(10**9 + seed * 10**7, 10**9 + seed * 10**7 + ASKED)
        self.f, coming = tiny(kind), 2 * len(self.held)
        without_limit = 10**9
        first, negatives = layer(kind, coming, coming), layer(kind, ASKED / 4)
        self.scan(first, 0.0, negatives, without_limit, self.f.plan.to_json())
        while len(self.f.layers) < 5:
            between(self)
            self.f._observe(self.known)
            coming *= self.f.collecting.rate
            negatives = layer(kind, self.f.collecting.items / 2)
            self.scan(layer(kind, coming), 0.5, negatives, without_limit)

    def scan(self, *arguments):
        first, *rest = arguments
        self.f._fill_from_scan(self.f._state.version, first, Hashes(self.held), *rest)

    def insert(self):
        some = np.arange(self.held.max() + 1, self.held.max() + 2001)
        self.f.update(some)
        self.held = np.concatenate([self.held, some])

    def remove(self):
        gone = self.held[::4]
        for key in gone.tolist():
            self.f.remove(key)
        self.held = np.setdiff1d(self.held, gone)

    def nothing(self):
        pass


@pytest.mark.filterwarnings("ignore::tamis.CapacityWarning")
@pytest.mark.parametrize("after", ["nothing", "insert", "remove"])
@pytest.mark.parametrize("between", ["nothing", "insert", "remove"])
@pytest.mark.parametrize("kind", ["bloom", "quotient"])
def test_the_rates_of_an_adaptive_stack(kind, between, after):
    if kind == "bloom" and "remove" in (between, after):
        pytest.skip("Bloom filters do not support removals")
    known, unknown = [], []
    for seed in (1, 2, 3):
        s = Learning(kind, seed, getattr(Learning, between))
        getattr(s, after)()
        assert s.f.contains(s.held).all()
        known.append((s.f.contains(s.known).mean(), s.f.known_fpr))
        unknown.append((s.f.contains(ABSENT).mean(), s.f.fpr_bound))
        again = tamis.from_bytes(s.f.to_bytes())
        assert again.known_fpr == s.f.known_fpr == s.f.copy().known_fpr
    agree(unknown)
    measured, expected = np.array(known).mean(0)
    assert expected == pytest.approx(measured, rel=0.1)


# Collections and indexes.


def sets(*numbers):
    return {f"set {i}": np.arange(1000 * i, 1000 * i + 50 * (i + 1)) for i in numbers}


COLLECTIONS = {
    "built": lambda c: None,
    "appended": lambda c: c.append("set 20", np.arange(20_000, 20_500), utility=3),
    "extended": lambda c: c.extend(sets(21, 22, 23)),
    "dropped": lambda c: c.drop(["set 3", "set 11"]),
    "allocated": lambda c: c.allocate(budget=c.budget * 3 // 4, utility=np.arange(len(c)) + 1.0),
}


@pytest.mark.parametrize("change", COLLECTIONS)
@pytest.mark.parametrize("kind", ["auto", "ribbon", "segmented", "truncated"])
def test_the_rates_of_a_collection(kind, change):
    pairs, means = [], []
    for seed in SEEDS:
        c = tamis.Collection.build(
            sets(*range(20)), kind=kind, fpr=1e-3, budget=9000, utility=np.ones(20), seed=seed
        )
        COLLECTIONS[change](c)
        _, ids = c.candidates_many(ABSENT[:20_000])
        measured = np.bincount(ids, minlength=len(c)) / 20_000
        weights = c.utility / c.utility.sum()
        pairs.append((float(weights @ measured), c.expected_fpr))
        means.append((measured.mean(), c.fprs.mean()))
        assert c.expected_fpr == pytest.approx(float(weights @ c.fprs))
    # What was built varies about its expectation, most of all in small sets.
    for measured, expected in (np.array(pairs).mean(0), np.array(means).mean(0)):
        assert expected == pytest.approx(measured, rel=0.1)
