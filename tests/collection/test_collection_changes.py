"""Parts, failures, reads and the choice of a kind."""

import copy
import re
import tempfile

import numpy as np
import pytest
from contract import fails_at_every_step
from many_sets import sets, share

import tamis


def test_parts_share_a_budget_and_are_queried_apart():
    names = [f"{i}.{part}" for i in range(20) for part in "ab"]
    keys = [np.arange(100 * i, 100 * i + 100) for i in range(40)]
    c = tamis.Collection.build(zip(names, keys, strict=True), parts=2)
    c.allocate(budget=share(c, 0.5), utility=np.arange(40))
    assert c.size_in_bytes <= c.budget
    for i, own in enumerate(keys):
        assert names[i] in c.candidates(int(own[0]), part=i % 2)
        assert names[i] not in c.candidates(int(own[0]), part=1 - i % 2)
        _, ids = c.candidates_many(own, part=i % 2)
        assert (ids % 2 == i % 2).all()


def test_the_limit_of_parts(tmp_path):
    """Each part takes memory, whether it has sets or not."""
    c = tamis.Collection.build({"a": [1], "b": [2]}, parts=2**16, path=tmp_path / "c")
    assert c.candidates(1, part=0) == ["a"]
    assert c.candidates(2, part=1) == ["b"]
    assert c.candidates(1, part=2**16 - 1) == []
    for call in (
        lambda parts: tamis.Collection.build({}, parts=parts),
        lambda parts: tamis.Collection.open(tmp_path / "c", parts=parts),
    ):
        for wrong in (0, -1, 2**16 + 1, 2**62):
            with pytest.raises(ValueError, match=f"parts must be from 1 to 65536, not {wrong}$"):
                call(wrong)
    with pytest.raises(ValueError, match="part must be from 0 to 65535, not 65536"):
        c.candidates(1, part=2**16)


def test_a_damaged_filter_says_maybe_if_allowed(tmp_path):
    path = tmp_path / "c.tamis"
    c = tamis.Collection.build(sets([2000] * 10), path=path)
    content = bytearray(path.read_bytes())
    content[-3000] ^= 1
    path.write_bytes(content)
    with pytest.raises(tamis.FormatError):
        tamis.Collection.open(path)
    c = tamis.Collection.open(path, salvage=True)
    assert 1 <= len(c.damaged) <= 2
    hurt = {f"set {i}" for i in c.damaged.tolist()}
    for i in range(10):
        assert set(c.candidates(2000 * i)) >= {f"set {i}"} | hurt
    assert (c.kept[c.damaged] == 0).all()
    c.drop(c.damaged)
    c.allocate()
    assert len(c.damaged) == 0
    assert len(c) + len(hurt) == 10


def test_sets_that_wait_for_their_bits_say_maybe(tmp_path):
    path = tmp_path / "c.tamis"
    c = tamis.Collection.build({"a": [1]}, path=path, hybrid=False)
    c.extend({"b": [2], "c": [3]}, allocate=False)
    assert c.candidates("neither") == ["b", "c"]
    c.allocate()
    assert c.candidates("neither") == []
    c = tamis.Collection.open(path, allocate=False, hybrid=False)
    assert (c.candidates("neither"), c.size_in_bytes) == (["a"], c.min_budget)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(tamis.FormatError):
        tamis.Collection.open(path)
    assert tamis.Collection.open(path, length=path.stat().st_size - 4).candidates(1) == ["a"]


def describe(collection):
    """Everything that a collection shows, and what it says after it is saved and opened again."""
    with tempfile.TemporaryDirectory() as folder:
        collection.save(f"{folder}/c.tamis")
        again = tamis.Collection.open(f"{folder}/c.tamis", budget=collection.budget)
    return [
        [
            list(c.names),
            c.kinds,
            *(each.tolist() for each in (c.counts, c.full, c.kept, c.utility, c.fprs, c.damaged)),
            (len(c), c.budget, c.min_budget, c.size_in_bytes, c.size_in_bits, c.expected_fpr),
            [c.candidates(key) for key in range(0, 4000, 50)],
            [each.tolist() for each in c.candidates_many(np.arange(0, 4000, 50))],
        ]
        for c in (collection, again)
    ] + [collection.accesses.tolist()]


def collection_to_change():
    c = tamis.Collection.build(sets([300, 1000, 20]), budget=1800, utility=[1, 5, 2])
    c.record(["set 1", "set 2"])
    return c


def broken(pairs):
    """Pairs, and then a failure of their source."""
    yield from pairs
    raise OSError("the source is gone")


FAILURES = {
    "append: NaN": lambda c: c.append("new", range(50), utility=np.nan),
    "append: negative utility": lambda c: c.append("new", range(50), utility=-1),
    "append: text as utility": lambda c: c.append("new", range(50), utility="high"),
    "append: taken name": lambda c: c.append("set 1", range(50)),
    "append: no key": lambda c: c.append("new", [1, 2, 1.5]),
    "append: bad rate": lambda c: c.append("new", range(50), fpr=0),
    "append: bad kind": lambda c: c.append("new", range(50), kind="fuse"),
    "append: other hash": lambda c: c.append("new", range(50), key=b"0123456789abcdef"),
    "extend: utility of one": lambda c: c.extend({"x": [1], "y": [2]}, utility=[1]),
    "extend: name twice": lambda c: c.extend([("x", [1]), ("y", [2]), ("x", [3])]),
    "extend: no key midway": lambda c: c.extend({"x": [1], "y": [None], "z": [3]}),
    "extend: no pair midway": lambda c: c.extend([("x", [1]), "y"]),
    "extend: broken source": lambda c: c.extend(broken([("x", [1])])),
    "extend: broken source, no allocation": lambda c: c.extend(
        broken([("x", [1])]), allocate=False
    ),
    "extend: over the budget": lambda c: c.extend({f"{i}" * 50: [i] for i in range(400)}),
    "allocate: small budget": lambda c: c.allocate(budget=5),
    "allocate: bad method": lambda c: c.allocate(budget=1700, method="best"),
    "allocate: bad utility": lambda c: c.allocate(utility=[1, 2]),
    "drop: unknown": lambda c: c.drop(["set 0", "nothing"]),
    "drop: out of range": lambda c: c.drop([0, 99]),
    "record: unknown": lambda c: c.record(["set 0", "nothing"]),
    "record: NaN": lambda c: c.record(["set 0"], weight=np.nan),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_call_that_fails_changes_nothing(name):
    c = collection_to_change()
    before = describe(c)
    with pytest.raises((ValueError, TypeError, KeyError, OSError)):
        FAILURES[name](c)
    assert describe(c) == before
    c.extend({"x": range(5000, 5050)}, utility=[9])
    assert c.candidates(5000)[0] == "x"


CHANGES = {
    "append": lambda c: c.append("new", range(50), utility=3),
    "extend": lambda c: c.extend({"x": range(50), "y": range(2000, 2050)}),
    "extend, not allocated": lambda c: c.extend({"x": range(50)}, allocate=False),
    "drop": lambda c: c.drop("set 1"),
    "allocate": lambda c: c.allocate(budget=1500, utility=[5, 1, 1]),
    "record": lambda c: c.record(["set 0", "set 2"], weight=5),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_whole_wherever_it_fails(name):
    fails_at_every_step(collection_to_change, CHANGES[name], describe, tamis.collection)


def test_a_failed_build_leaves_the_file_of_before(tmp_path):
    path = tmp_path / "c.tamis"
    tamis.Collection.build({"a": [1]}, path=path)
    before = path.read_bytes()
    for wrong in ({"budget": 3}, {"utility": [np.nan, 1]}):
        with pytest.raises(ValueError, match=r"(budget|utility) must be"):
            tamis.Collection.build({"b": [1], "c": [2]}, path=path, **wrong)
        assert path.read_bytes() == before


def test_copies_share_nothing_that_changes():
    weights = np.array([1.0, 5.0, 2.0])
    c = tamis.Collection.build(sets([300, 1000, 20]), utility=weights)
    c.record([0])
    before = describe(c)
    other = copy.copy(c)
    weights[:] = 0
    other.record([1, 1, 2])
    other.append("new", range(50))
    other.drop("set 0")
    other.allocate(budget=1500, utility=[0, 1, 1])
    assert describe(c) == before


def test_a_collection_with_a_file_is_hybrid_unless_told_not_to_be(tmp_path):
    path = tmp_path / "c"
    many = list(sets([2000] * 20))
    c = tamis.Collection.build(many, budget="4kB", path=path)
    assert c.hybrid
    assert len(c.candidates_many(np.arange(-1000, 0))[1]) < 20
    assert c.tail_reads > 0
    c = tamis.Collection.open(path, budget="4kB")
    assert c.hybrid
    assert not tamis.Collection.open(path, salvage=True).hybrid
    memory = tamis.Collection.open(path, budget="4kB", hybrid=False)
    assert len(memory.candidates_many(np.arange(-1000, 0))[1]) > 1000
    assert memory.expected_reads == memory.tail_reads == 0
    assert not tamis.Collection.build(many, budget="4kB").hybrid


@pytest.mark.parametrize("kind", ["ribbon", "segmented", "sliced"])
def test_reads_are_those_expected(kind, tmp_path):
    """One query per set and kind of key, weighted by utility and the share of present keys."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(100, 900, 80)
    utility = rng.lognormal(0, 1, 80)
    present = rng.choice([0.05, 0.95], 80)
    path = tmp_path / "c"
    c = tamis.Collection.build(
        sets(sizes), kind=kind, utility=utility, path=path, parts=1 if kind == "sliced" else 80
    )
    parts = {} if kind == "sliced" else {"parts": 80}
    reads = {}
    for known in (present, None):
        c = tamis.Collection.open(path, **parts)
        c.allocate(budget=share(c, 0.3), present=known)
        whole = c.kept == c.full
        reads[known is None] = utility @ np.where(whole, 0, present + (1 - present) * c.fprs)
        if known is None:
            assert c.present is None
        else:
            assert 10 < whole.sum() < 70
            assert np.allclose(c.expected_reads, reads[False] / utility.sum(), rtol=1e-6)
            if kind != "sliced":
                keys = np.cumsum(sizes) - 1
                for part in range(80):
                    c.candidates(int(keys[part]), part=part)
                assert c.tail_reads == 80 - whole.sum()
    assert reads[False] < 0.8 * reads[True]


def test_present_keys_are_recorded_with_accesses(tmp_path):
    c = tamis.Collection.build(sets([1000] * 4), path=tmp_path / "c")
    with pytest.raises(ValueError, match="present is not recorded"):
        c.allocate(budget="2kB", present="accesses")
    for _ in range(100):
        c.record(["set 0", "set 1"], found=["set 0"])
    c.allocate(budget="2kB", utility="accesses")
    assert c.present is not None
    assert c.present.round(2).tolist() == [1.0, 0.0, 0.5, 0.5]
    before = c.size_in_bytes
    c.append("set 4", range(10**6, 10**6 + 100))
    assert c.size_in_bytes <= max(before, 2000)
    assert np.allclose(c.present[-1], 0.5, atol=0.01)
    c.drop(["set 0"])
    assert len(c.present) == 4
    with pytest.raises(ValueError, match="found must be among visited; 'set 2' is not"):
        c.record(["set 1"], found=["set 2"])
    for wrong in ([0.5], {"set 1": 1}, "often"):
        with pytest.raises(ValueError, match="present"):
            c.allocate(budget="2kB", present=wrong)
    with pytest.raises(ValueError, match=r"present must be from 0 to 1 for each set, not 1\.5"):
        c.allocate(budget="2kB", present=1.5)
    c.hybrid = False
    with pytest.raises(ValueError, match="present must only be given in hybrid mode"):
        c.allocate(budget="2kB", present=0.5)


def test_growth_of_a_collection_for_reads_keeps_to_the_budget(tmp_path):
    path = tmp_path / "c"
    c = tamis.Collection.build(
        sets([20] * 9000), budget="400kB", kind="segmented", path=path, present=0.5
    )
    before, reads = int((c.kept == c.full).sum()), c.expected_reads
    for i in range(20):
        c.append(f"new {i}", range(10**6 + 30 * i, 10**6 + 30 * i + 20), kind="segmented")
    assert c.size_in_bytes <= 400_000
    assert before > 1000
    assert reads < c.expected_reads < 1.05 * reads


def test_auto_weighs_rates_against_time_and_says_why(tmp_path):
    many = dict(sets([40] * 1000))
    rows = tamis.Collection.build(many, budget="100kB", miss_cost="20us")
    assert set(rows.kinds) == {"sliced"}
    assert rows.chosen is not None
    assert rows.chosen.startswith("filters by rows: a lookup in 1,000 sets takes about 40 µs at a")
    assert "costs 20 µs" in rows.chosen
    one_by_one = tamis.Collection.build(many, budget="100kB", miss_cost=1)
    assert "sliced" not in one_by_one.kinds
    assert one_by_one.chosen is not None
    assert one_by_one.chosen.startswith("ribbons: a lookup in")
    assert one_by_one.expected_fpr < rows.expected_fpr / 2
    # The predicted rates are those that are built, nearly.
    for c in (rows, one_by_one):
        named = [float(each) for each in re.findall(r"(?:rate of|and) ([0-9.e-]+) %", c.chosen)]
        assert any(0.6 < rate / 100 / c.expected_fpr < 1.6 for rate in named)
    for c in (rows, one_by_one):
        assert all(c.candidates(40 * i)[0] == f"set {i}" for i in range(0, 1000, 111))
    # In hybrid mode a false positive costs a check in the file.
    c = tamis.Collection.build(many, budget="100kB", miss_cost=1, path=tmp_path / "c")
    assert set(c.kinds) == {"sliced"}


def test_auto_keeps_to_filters_one_by_one_where_rows_are_no_choice():
    for arguments in ({}, {"budget": "100kB", "parts": 2}, {"budget": "100kB", "kind": "ribbon"}):
        c = tamis.Collection.build(sets([40] * 100), **arguments)
        assert c.chosen is None
        assert "sliced" not in c.kinds
    c = tamis.Collection.build(sets([40] * 30), budget="100kB", miss_cost="1ns")
    assert "30 sets are fewer than the 64" in c.chosen
    with pytest.raises(ValueError, match="miss_cost must be"):
        tamis.Collection.build({"a": [1]}, budget="1kB", miss_cost="soon")


def test_auto_decides_by_the_first_sets_of_a_long_iterator(monkeypatch):
    monkeypatch.setattr("tamis.collection.build.MAX_KEYS", 5000)
    c = tamis.Collection.build(sets([40] * 1000), budget="100kB", miss_cost="20us")
    assert c.chosen.endswith("(by the first 126 sets)")
    assert len(c) == 1000
    assert all(f"set {i}" in c.candidates(40 * i) for i in range(0, 1000, 111))


def test_parts_may_have_budgets_of_their_own():
    c = tamis.Collection.build(sets([300] * 100), parts=2, kind="ribbon")
    own = c.min_budget // 2
    c.allocate(budget=[own + 2000, own + 6000])
    assert c.budget == 2 * own + 8000
    assert c.size_in_bytes <= c.budget
    even, odd = c.kept[::2].sum(), c.kept[1::2].sum()
    assert 8 * 1800 < even <= 8 * 2000 < 8 * 5800 < odd <= 8 * 6000
    c.extend(list(sets([300] * 102))[100:])
    assert c.kept[::2].sum() <= 8 * 2000
    c.allocate(budget=2 * own + 8000)
    assert abs(c.kept[::2].sum() - c.kept[1::2].sum()) < 8 * 1000
    for wrong in ([5000], [5000, 1], ["4kB", "often"]):
        with pytest.raises(ValueError, match="budget"):
            c.allocate(budget=wrong)


@pytest.mark.parametrize("kind", ["ribbon", "segmented", "sliced"])
def test_sets_can_be_appended_as_long_as_one_bit_per_set_is_left(kind):
    many = [(f"{i}", np.arange(30 * i, 30 * i + 30)) for i in range(600)]
    c = tamis.Collection.build(many[:200], kind=kind)
    c.allocate(budget=c.min_budget + 1200)
    budget, fits = c.budget, 200
    while True:
        more = tamis.Collection.build(many[: fits + 1], kind=kind)
        if more.min_budget + fits // 8 + 1 > budget:
            break
        c.append(*many[fits], kind=kind)
        assert c.size_in_bytes <= budget
        assert many[fits][0] in c.candidates(30 * fits)
        fits += 1
    assert 240 < len(c) == fits
    with pytest.raises(ValueError, match="budget must be at least"):
        c.extend(many[fits : fits + 20], kind=kind)
    assert len(c) == fits
    assert c.size_in_bytes <= budget
