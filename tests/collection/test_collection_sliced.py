"""Sliced sets, and sets that come and go."""

import tempfile
import threading

import numpy as np
import pytest
from frames import GOLDEN
from many_sets import golden_collection, sets, share

import tamis
from tamis import _native
from tamis.collection.memory import Memory
from tamis.collection.prefix_allocation import Allocation
from tamis.planning import ribbon
from tamis.testing.filters import within_noise


def test_sliced_sets_answer_as_their_filters_do(tmp_path):
    """By rows or one by one: the same candidates in order, and hybrid those of all bits."""
    rng = np.random.default_rng(8)
    sizes = np.concatenate([[0], rng.integers(1, 400, 250)])
    utility = rng.lognormal(0, 1, len(sizes))
    path = tmp_path / "c"
    c = tamis.Collection.build(sets(sizes), kind="sliced", utility=utility, path=path, hybrid=False)
    assert set(c.kinds) == {"empty", "sliced"}
    assert c.min_budget / len(c) < 24  # of few sets; of many, see below
    # With parts, or if damage is tolerated, the filters are held one by one.
    other = tamis.Collection.open(path, salvage=True)
    assert set(other.kinds) == {"empty", "segmented"}
    keys, owner = np.arange(sum(sizes)), np.repeat(np.arange(len(sizes)), sizes)
    asked = np.concatenate([np.arange(-800, 0), keys[::37]])
    everything = [each.tolist() for each in other.candidates_many(asked)]
    for budget in (None, share(c, 0.6), share(c, 0.2), share(c, 0.02), c.min_budget):
        c.allocate(budget=budget)
        assert budget is None or c.size_in_bytes <= budget
        inputs = c._memory.inputs._replace(salvage=True)
        other._memory = Memory.load(other._memory.filters, inputs, Allocation(c.kept))
        found = [each.tolist() for each in c.candidates_many(asked)]
        assert found == [each.tolist() for each in other.candidates_many(asked)]
        assert c.candidates(3, limit=2) == other.candidates(3, limit=2)
        offsets, ids = c.candidates_many(keys)
        lists = np.split(ids, offsets[1:-1])
        assert all(own in each for own, each in zip(owner, lists, strict=True))
        c.hybrid = True
        assert [each.tolist() for each in c.candidates_many(asked)] == everything
        c.hybrid = False
    measured = np.bincount(c.candidates_many(np.arange(-300, 0))[1], minlength=len(sizes)) / 300
    assert np.allclose(measured[c.kept == 0], sizes[c.kept == 0] > 0)


def test_many_sliced_sets_take_at_most_16_bytes_each_beside_their_bits():
    c = tamis.Collection.build(sets([5 + i % 40 for i in range(4000)]), kind="sliced")
    assert 7 < c.min_budget / len(c) < 10


def test_sliced_sets_come_and_go(tmp_path):
    c = tamis.Collection.build(sets([20] * 100), kind="sliced", budget=5000)
    c.append("new", range(10**6, 10**6 + 30), utility=9)
    assert c.candidates(10**6)[0] == "new"
    assert c.size_in_bytes <= 5000
    c.extend({"x": [-5]}, allocate=False)
    assert "x" in c.candidates("anything")
    with pytest.raises(ValueError, match="method must be 'optimal' for sliced filters, not 'gr"):
        c.allocate(budget=5000, method="greedy")
    bits = c.size_in_bits
    c.drop(["new", "set 3"])
    assert set(c.kinds) == {"sliced"}
    assert c.size_in_bits <= bits
    assert "set 7" in c.candidates(145)
    c.save(tmp_path / "c")
    assert set(tamis.Collection.open(tmp_path / "c").kinds) == {"sliced"}
    c.append("ribbon", range(500), kind="ribbon")  # filters of another kind: no more rows
    assert set(c.kinds) == {"segmented", "ribbon"}
    assert {"set 7", "ribbon"} <= set(c.candidates(145))


def test_sets_beside_the_rows_are_as_the_others(tmp_path, monkeypatch):
    laid_out = []
    load = tamis.collection.prefixes.load_sliced
    monkeypatch.setattr(
        tamis.collection.prefixes, "load_sliced", lambda *all: laid_out.append(1) or load(*all)
    )
    many = list(sets([8] * 1100))
    utility = np.random.default_rng(5).integers(1, 5, 1100)
    c = tamis.Collection.build(
        many[:1000], kind="sliced", budget=21_000, utility=utility[:1000], path=tmp_path / "c"
    )
    keys, owner = np.arange(8 * 1100), np.repeat(np.arange(1100), 8)
    for end in range(1001, 1101):
        c.append(*many[end - 1], utility=utility[end - 1])
        assert c.size_in_bytes <= 21_000
        if end % 20:
            continue
        for c.hybrid in (False, True):
            offsets, ids = c.candidates_many(keys[: 8 * end])
            lists = np.split(ids, offsets[1:-1])
            assert all(own in each for own, each in zip(owner, lists, strict=False))
            # The most queried come first, whether they are in rows or not.
            assert all((np.diff(utility[each]) <= 0).all() for each in lists)
            few, first = c.candidates_many(keys[: 8 * end], limit=2)
            assert [each.tolist() for each in np.split(first, few[1:-1])] == [
                each[:2].tolist() for each in lists
            ]
            for key in keys[8 * end - 40 : 8 * end : 9].tolist():
                assert c.candidates(key) == list(c.names[lists[key]])
                assert c.candidates(key, limit=1) == list(c.names[lists[key][:1]])
    # At the first append all give way, and then once per several sets.
    assert 2 < len(laid_out) < 30
    measured = np.mean([len(c.candidates_many([-key])[1]) for key in range(1, 301)]) / 1100
    c.hybrid = False
    rate, accepted = float(c.fprs.mean()), len(c.candidates_many(np.arange(-2000, 0))[1])
    assert abs(accepted / 2000 / 1100 - rate) < 6 * np.sqrt(rate / 2000 / 1100)
    assert measured < 0.001
    c.append("empty", [])
    c.drop(["set 0", "empty"])
    assert "set 1099" in c.candidates(8 * 1099)
    c.append("last", range(-9, 0))
    assert c.candidates(-5).count("last") == 1
    c.save(tmp_path / "d")
    assert len(tamis.Collection.open(tmp_path / "d", budget=22_000)) == 1100


def test_the_last_sets_of_rows_that_fit_are_whole():
    c = tamis.Collection.build(sets([8] * 1000), kind="sliced")
    c.append("new", range(10**6, 10**6 + 8))
    assert (c.kept == c.full).all()
    assert c.candidates(10**6 + 1) == ["new"]


@pytest.fixture
def small_windows(monkeypatch):
    """Windows of 64 sets, so that few sets are many."""
    monkeypatch.setattr(tamis.collection.prefix_allocation, "WINDOW", 64)


@pytest.mark.parametrize("kind", ["auto", "segmented"])
def test_appends_stay_near_the_optimum(kind, small_windows):
    rng = np.random.default_rng(4)
    sizes = (10 + rng.lognormal(4, 0.7, 600)).astype(int)
    every = list(sets(sizes))
    utility = rng.lognormal(0, 1, 600)
    c = tamis.Collection.build(every[:560], kind=kind, utility=utility[:560])
    c.allocate(budget=share(c, 0.3))
    for i in range(560, 600):
        c.append(*every[i], kind=kind, utility=utility[i])
        assert c.size_in_bytes <= c.budget
        assert every[i][0] in c.candidates(int(every[i][1][0]))
    assert c._memory.allocation.grown == 40
    grown = c.expected_fpr
    offsets, ids = c.candidates_many(np.arange(sum(sizes)))
    lists = np.split(ids, offsets[1:-1])
    owner = np.repeat(np.arange(600), sizes)
    assert all(own in found for own, found in zip(owner, lists, strict=True))
    ranks = np.argsort(np.argsort(-c.utility, kind="stable"))
    assert all((np.diff(ranks[found]) > 0).all() for found in lists)
    kept = c.kept
    c.allocate(budget=c.budget)
    assert c.expected_fpr <= grown < 1.03 * c.expected_fpr
    assert (kept != c.kept).any()


def test_sets_come_and_go():
    c = tamis.Collection.build({"a": [1, 2], "b": [2, 3]}, budget="1kB", utility=[1, 5])
    c.append("c", [3, 4], utility=9)
    assert c.candidates(3) == ["c", "b"]
    assert c.counts.tolist() == [2, 2, 2]
    c.extend({"d": [3], "e": []})
    assert c.utility.tolist() == [1, 5, 9, 1, 1]
    assert c.candidates(3) == ["c", "b", "d"]
    c.drop("b")
    assert list(c.names) == ["a", "c", "d", "e"]
    assert c.candidates(3) == ["c", "d"]
    assert c.names[1] == "c"
    assert c.names[-1] == "e"
    assert c.names[[2, 0]].tolist() == ["d", "a"]
    with pytest.raises(KeyError, match="b"):
        c.drop("b")
    with pytest.raises(ValueError, match="already a set named 'a'"):
        c.append("a", [1])
    with pytest.raises(TypeError, match="name must be a str, not 7"):
        c.append(7, [1])
    with pytest.raises(ValueError, match=r"kind must be .* not 'fuse'"):
        c.append("f", [1], kind="fuse")
    with pytest.raises(ValueError, match=r"fpr must be a number between 0 and 1, .* not 2"):
        c.append("g", [1], fpr=2)
    assert list(c.names) == ["a", "c", "d", "e"]
    nothing = tamis.Collection.build({}, budget="1kB")
    assert nothing.candidates(1) == []
    assert nothing.expected_fpr == 0


def test_every_name_is_found_among_many():
    names = [f"set {7919 * i % 100_000}" for i in range(100_000)]
    with tempfile.TemporaryFile() as file:
        filters = _native.Filters(file.fileno())
    empty = _native.Full(_native.Distinct([]), "empty", 0)
    for name in names:
        filters.add(name, empty)
    assert [filters.find(name) for name in names] == list(range(100_000))
    for missing in ("", "set", "set 100000", "set 1 ", "zebra"):
        assert filters.find(missing) is None
    # A file may hold a name twice: the first is found. What is added later is found too.
    for name in (names[5], "", "zebra"):
        filters.add(name, empty)
    assert [filters.find(name) for name in (names[5], "", "zebra")] == [5, 100_001, 100_002]
    rest = filters.without([5, 7])
    assert rest.find(names[5]) == 99_998
    assert rest.find(names[7]) is None
    assert rest.find(names[8]) == 6
    assert filters.find(names[7]) == 7


def test_utilities_come_from_use():
    c = tamis.Collection.build(sets([1000] * 20))
    c.half_life = 10
    c.record(["set 1"] * 5)
    for _ in range(40):
        c.record(np.array([3]))
    assert c.accesses[3] > 4 * c.accesses[1] > 0
    assert c.accesses.sum() < 20
    c.allocate(budget=share(c, 0.3), utility="accesses")
    assert c.candidates(3500, limit=1) == ["set 3"]
    assert c.kept[3] == c.kept.max() > c.kept[1] > c.kept[0] > 0
    c.record([3] * 20_000)
    assert c.accesses[1] == 0  # forgotten
    for wrong, error in ((["x"], KeyError), ([20], ValueError), ([-1], ValueError)):
        with pytest.raises(error):
            c.record(wrong)
    for wrong, message in (
        ("counts", "utility must be"),
        ({"set 0": 1}, "'set 1' is missing"),
        ([1], "shape"),
    ):
        with pytest.raises(ValueError, match=message):
            c.allocate(utility=wrong)


def test_a_secret_key_stays_secret(tmp_path):
    secret = bytes(range(16))
    c = tamis.Collection.build({"a": range(100)}, key=secret, path=tmp_path / "c")
    assert c.seed is None
    assert c.candidates(5) == ["a"]
    assert secret not in (tmp_path / "c").read_bytes()
    assert tamis.Collection.open(tmp_path / "c", key=secret).candidates(5) == ["a"]
    with pytest.raises(tamis.IncompatibleError, match="secret key"):
        tamis.Collection.open(tmp_path / "c")
    with pytest.raises(tamis.IncompatibleError, match="hashed with another"):
        c.append("b", [1])
    c.append("b", [1], key=secret)
    assert c.candidates(1) == ["a", "b"]


def test_answers_while_one_allocates():
    c = tamis.Collection.build(sets([200] * 200))
    stop, denied = threading.Event(), []

    def ask():
        while not stop.is_set():
            for key in (5, 205, 39_999):
                if f"set {key // 200}" not in c.candidates(key):
                    denied.append(key)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(40):
        c.allocate(budget=share(c, 0.1 + i % 7 / 10), utility=np.arange(200) * i % 13)
    stop.set()
    for thread in threads:
        thread.join()
    assert not denied


def test_large_and_small_sets_side_by_side():
    c = tamis.Collection.build(
        {"one": [5], "many": np.arange(300_000), "few": range(10)}, budget="200kB"
    )
    assert c.kinds == ["segmented", "ribbon", "ribbon"]
    assert sorted(c.candidates(5)) == ["few", "many", "one"]
    assert ribbon.levels(300_000)
    measured = np.bincount(c.candidates_many(np.arange(-20_000, 0))[1], minlength=3)[1] / 20_000
    assert within_noise(measured, float(c.fprs[1]), 20_000)


def test_a_plot_of_allocation():
    pytest.importorskip("matplotlib")
    c = tamis.Collection.build(sets([100] * 20), budget="4kB", utility=np.arange(20))
    axes = c.plot()
    assert axes.get_xlabel().startswith("utility")
    assert len(axes.collections) == 2


if __name__ == "__main__":  # until 0.1.0 is released; frozen from then on
    golden_collection().save(GOLDEN / "v1-collection.tamis")
