"""Files of collections: damage, budgets, names."""

import numpy as np
import pytest
from frames import GOLDEN, lie
from hypothesis import given, settings
from hypothesis import strategies as st
from many_sets import golden_collection, sets
from reference import frame, parts

import tamis
from tamis.collection.prefix_allocation import plan_prefixes


def test_every_flip_is_refused_and_no_key_denied(tmp_path):
    path = tmp_path / "c"
    names = {"a": range(20), "b": [], "c": range(5000)}
    tamis.Collection.build(names, fpr=0.2, path=path)
    data = path.read_bytes()
    places = [*range(0, 700, 2), *range(700, len(data), 41)]
    for at in places:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        with pytest.raises(tamis.FormatError):
            tamis.Collection.open(path)
        path.write_bytes(data[:at])
        with pytest.raises(tamis.FormatError):
            tamis.Collection.open(path, budget=1000)
    path.write_bytes(data + b"\0")
    with pytest.raises(tamis.FormatError):
        tamis.Collection.open(path)


def test_a_prefix_is_trusted_without_the_rest(tmp_path):
    path = tmp_path / "c"
    tamis.Collection.build({"a": range(30_000)}, path=path)
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    with pytest.raises(tamis.FormatError, match="piece"):
        tamis.Collection.open(path)
    c = tamis.Collection.open(path, budget=15_000, hybrid=True)
    with pytest.raises(tamis.FormatError, match="piece"):
        c.allocate()
    with pytest.raises(tamis.FormatError, match="piece"):
        c.candidates_many(range(30_000))
    c.hybrid = False
    assert len(c.candidates_many(range(30_000))[1]) == 30_000


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_frames_that_lie(data, tmp_path_factory):
    """Checksums right, content wrong: refused, or a collection that stays within bounds."""
    path = tmp_path_factory.getbasetemp() / "lying"
    if not (source := path.with_name("honest")).exists():
        tamis.Collection.build(
            {"a": range(30), "b": [], "c": range(4100), "d": [1]}, fpr=0.2, path=source
        )
    path.write_bytes(lie(data, source.read_bytes()))
    for budget in (None, 10**6, 2000):
        try:
            c = tamis.Collection.open(path, budget=budget, hybrid=True)
        except (tamis.FormatError, tamis.IncompatibleError):
            return
        c.candidates_many(range(-50, 50))
        assert c.expected_fpr >= 0
        assert len(list(c.names)) == len(c)


def test_golden_collection(tmp_path):
    """The bytes of today are the bytes of version 1."""
    path = tmp_path / "c.tamis"
    golden_collection().save(path)
    golden = GOLDEN / "v1-collection.tamis"
    assert path.read_bytes() == golden.read_bytes()
    c = tamis.Collection.open(golden)
    assert c.kinds == ["ribbon", "empty", "segmented", "truncated", "ribbon"]
    assert all("levels" in c.candidates(key) for key in range(4200))


def test_the_twin_writes_the_same_frame(tmp_path):
    golden_collection().save(tmp_path / "c")
    data = (tmp_path / "c").read_bytes()
    assert frame(*parts(data)) == data


def test_budgets_count_everything(tmp_path):
    c = tamis.Collection.build(sets([100] * 400))
    everything = c.size_in_bytes
    for budget in (c.min_budget, c.min_budget + 5, 60_000, "0.05MB", "70kB", everything):
        c.allocate(budget=budget)
        assert c.size_in_bytes <= c.budget
        assert c.size_in_bytes >= min(c.budget - 30, everything)
    c.allocate()
    assert c.budget is None
    assert (c.kept == c.full).all()
    with pytest.raises(ValueError, match="sizes and weights of 400 filters"):
        c.allocate(budget=100)
    for wrong in ("64 megs", "MB", "-1kB", -5, "nankB"):
        with pytest.raises(ValueError, match="budget must be"):
            c.allocate(budget=wrong)
    for wrong in (1.5, True):
        with pytest.raises(TypeError, match="budget must be"):
            c.allocate(budget=wrong)


@pytest.mark.parametrize("kind", ["ribbon", "segmented", "truncated"])
def test_a_set_takes_at_most_16_bytes_beside_its_bits(kind):
    sizes = (10 + np.random.default_rng(0).lognormal(5, 0.7, 1500)).astype(int)
    c = tamis.Collection.build(sets(sizes), kind=kind)
    assert 10 < c.min_budget / len(c) <= 13
    assert f"{c.min_budget / len(c):.1f} per filter for overhead" in str(c)
    c.record([0])
    assert c.min_budget / len(c) <= 16.5
    c.allocate(budget=c.min_budget + len(c))
    assert c.size_in_bytes <= c.budget
    # What was added is in memory until it is saved.
    c.allocate()
    before = c.min_budget
    c.append("x" * 10_000, range(100))
    assert before + 16 < c.min_budget < before + 200


def test_prefixes_of_large_filters_lose_less_than_a_65536th():
    c = tamis.Collection.build({"a": np.arange(20_000), "b": np.arange(900_000)}, kind="truncated")
    assert (c.kept == c.full).all()
    c.allocate(budget=c.min_budget + 500_000, utility=[3, 1])
    memory = c._memory
    planned = plan_prefixes(memory.filters, memory.inputs, c.budget).kept
    assert (planned - c.kept >= 0).all()
    assert (planned - c.kept < 1 + c.full / 65_536).all()
    assert len(c.candidates_many(np.arange(20_000))[1]) == 40_000


def test_names_are_found_in_a_file_and_after_changes(tmp_path):
    path = tmp_path / "c"
    names = [f"set {7919 * i % 1000}" for i in range(1000)]
    c = tamis.Collection.build(((name, []) for name in names), path=path)
    c.drop([0, 63, 64, 999])
    c.extend({f"new {i}": [] for i in range(100)})
    c.drop(["new 0", "new 99", names[500]])
    left = [n for i, n in enumerate(names) if i not in (0, 63, 64, 999, 500)]
    left += [f"new {i}" for i in range(1, 99)]
    assert list(c.names) == left
    assert [c.names.find(name) for name in left] == list(range(len(left)))
    assert [c.names[i] for i in range(len(left))] == left
    for gone in (names[0], names[63], names[999], names[500], "new 0", "new 99", ""):
        with pytest.raises(KeyError):
            c.names.find(gone)
    c.save(tmp_path / "again")
    assert list(tamis.Collection.open(tmp_path / "again").names) == left


def test_a_file_that_is_cut_while_it_is_open_is_an_error(tmp_path):
    path = tmp_path / "c"
    sets = {f"{i}": range(i, i + 100) for i in range(300)}
    c = tamis.Collection.build(sets, path=path, hybrid=False)
    with path.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(tamis.FormatError):
        c.names[299]
    with pytest.raises(tamis.FormatError):
        c.allocate(budget=10_000)
    assert len(c.candidates_many([150])[1]) >= 100
