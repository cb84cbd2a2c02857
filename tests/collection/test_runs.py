"""Runs of an LSM-tree: exact stacks, one memory, one workload."""

import itertools
import json

import numpy as np
import pytest
from frames import with_values
from reference import frame, parts

import tamis
from tamis import _frames
from tamis.collection import Runs
from tamis.planning.collection.run_budgets import split_runs
from tamis.planning.stacked.frequencies import Zipf

ABSENT = 10**9


def zipf_workload(universe, queries, seed):
    """Queries by Zipf's law of absent keys: their probabilities, and a workload."""
    shares = 1 / np.arange(1, universe + 1)
    shares /= shares.sum()
    asked = np.random.default_rng(seed).choice(universe, queries, p=shares)
    return shares, tamis.Workload.from_queries(ABSENT + asked), np.unique(asked)


def runs_of(*sizes):
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return {f"run {i}": np.arange(starts[i], starts[i + 1]) for i in range(len(sizes))}


def wasted_reads(c, shares):
    """Measured reads of runs per query."""
    offsets, _ = c.candidates_many(ABSENT + np.arange(len(shares)))
    return float(shares @ np.diff(offsets))


@pytest.mark.parametrize(("bits", "target"), [(10, 0.00025), (6, 0.0040)])
def test_the_split_reaches_the_target(bits, target):
    shares, workload, asked = zipf_workload(10**6, 10**6, seed=3)
    sizes = [10**6, 10**5, 10**4, 10**3]
    c = tamis.Collection.build(
        runs_of(*sizes), budget=bits * sum(sizes) // 8, workload=workload, kind="stacked"
    )
    assert isinstance(c, Runs)
    assert c.size_in_bytes <= bits * sum(sizes) // 8
    bounds = np.array([f.fpr_bound for f in c.filters])
    unseen = np.delete(shares, asked)
    mean = bounds.sum() * unseen.sum()
    sigma = np.sqrt((bounds * (1 - bounds)).sum() * (unseen**2).sum())
    measured = wasted_reads(c, shares)
    assert abs(measured - mean) <= 5 * sigma
    assert 0.7 * target <= measured <= target
    assert 0.8 <= c.expected_reads / measured <= 1.25


def test_known_absent_keys_are_never_candidates():
    _, workload, asked = zipf_workload(20_000, 20_000, seed=1)
    c = tamis.Collection.build(runs_of(9000, 900), budget="12kB", workload=workload, kind="stacked")
    offsets, ids = c.candidates_many(ABSENT + asked)
    assert len(ids) == 0
    assert (offsets == 0).all()
    assert all(f.fpr_bound > 0 for f in c.filters)


@pytest.mark.parametrize("size", [0, 8000])
@pytest.mark.parametrize("utility", [[1.0, 1.0, 1.0], [1.0, 20.0, 0.1]])
@pytest.mark.parametrize("bits", [60_000, 130_000, 250_000])
def test_the_split_is_as_good_as_any_other(size, utility, bits):
    """No bits moved from one run to another gain more than whole numbers do."""
    keys, weights = np.array([300, 3000, 15_000]), np.array(utility)
    known = Zipf(1.0, 10_000, size)
    workload = tamis.Workload.zipf(exponent=1.0, universe=10_000, sample=size) if size else None

    def reads(split):
        total = 0.0
        for n, bits, weight in zip(keys.tolist(), split.tolist(), utility, strict=True):
            plan = tamis.plan(n, workload, bits_per_key=bits / n, layer="ribbon", last="exact")
            total += weight * plan.expected_fpr
        return total

    split = split_runs(keys, weights, known, bits)
    assert bits - len(keys) <= split.sum() <= bits
    found = reads(split)
    for step in (0.02, 0.1, 0.3):
        for giver in range(3):
            for taker in range(3):
                moved = int(step * min(split[giver], split[taker]))
                other = split.copy()
                other[giver] -= moved
                other[taker] += moved
                assert found <= reads(other) * 1.04


def test_more_memory_is_not_worse_where_all_absent_keys_are_known():
    absent = ABSENT + np.arange(100)
    workload = tamis.Workload.from_counts(absent, np.arange(1, 101))
    reads = []
    for budget in (700, 750, 900, 1000, 3000, 10**6):
        c = tamis.Collection.build(
            runs_of(1000, 200), budget=budget, workload=workload, kind="stacked"
        )
        assert c.size_in_bytes <= budget
        reads.append(c.expected_reads)
    assert reads == sorted(reads, reverse=True)
    assert reads[1:] == [0] * 5
    assert len(c.candidates_many(absent)[1]) == 0


def test_a_run_that_is_not_worth_its_bits_has_no_filter():
    split = split_runs(np.array([100, 10**6]), np.ones(2), Zipf(1.0, 1, 0), 1500)
    assert split[0] > 1000
    assert split[1] < 500
    c = tamis.Collection.build(runs_of(10**5, 100), budget=1000, kind="stacked")
    assert c.filters[0] is None
    assert c.candidates(5) == ["run 0"]
    assert c.candidates(-5) == ["run 0"]
    assert c.fprs[0] == 1
    with pytest.raises(ValueError, match="budget must be at least 5"):
        tamis.Collection.build(runs_of(10, 10), budget=100, kind="stacked")


@pytest.mark.parametrize("seed", range(5))
def test_any_runs_within_any_budget_have_no_false_negatives(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 3000, 4) // rng.integers(1, 1000, 4)
    _, workload, _ = zipf_workload(500, 1000, seed)
    runs = runs_of(*sizes)
    budget = 4 * 270 + int(rng.integers(0, 6000))
    c = tamis.Collection.build(runs, budget=budget, workload=workload, kind="stacked")
    assert c.size_in_bytes <= budget
    for number, keys in enumerate(runs.values()):
        offsets, ids = c.candidates_many(keys)
        assert np.count_nonzero(ids == number) == len(keys)
        assert len(offsets) == len(keys) + 1
        for key in keys[:3].tolist():
            assert f"run {number}" in c.candidates(key)


def test_batches_answer_as_single_keys_do_and_the_newest_comes_first():
    c = tamis.Collection.build(
        {"a": range(100), "b": range(50, 150), "none": [], "c": range(60)},
        budget="3kB",
        kind="stacked",
    )
    assert c.candidates(55) == ["c", "b", "a"]
    assert c.candidates(55, 2) == ["c", "b"]
    assert c.candidates(55, 0) == []
    assert c.kinds[2] == "empty"
    for limit in (None, 0, 1, 2):
        keys = np.arange(-50, 200)
        offsets, ids = c.candidates_many(keys, limit)
        assert [
            c.names[ids[start:stop]].tolist() for start, stop in itertools.pairwise(offsets)
        ] == [c.candidates(int(key), limit) for key in keys]
    nothing = tamis.Collection.build({}, budget="1kB", kind="stacked")
    assert nothing.candidates(1) == []
    assert nothing.candidates_many([1, 2])[0].tolist() == [0, 0, 0]


def test_flushes_and_compactions_plan_again():
    shares, workload, _ = zipf_workload(50_000, 50_000, seed=2)
    keys = runs_of(20_000, 10_000, 1000, 500)
    names = list(keys)
    c = tamis.Collection.build(
        {name: keys[name] for name in names[:2]}, budget="30kB", workload=workload, kind="stacked"
    )
    before = c.kept
    c.append(names[2], keys[names[2]])
    c.append(names[3], keys[names[3]])
    assert list(c.names) == names
    assert c.size_in_bytes <= 30_000
    assert c.kept[0] < before[0]
    whole = tamis.Collection.build(keys, budget="30kB", workload=workload, kind="stacked")
    assert c.expected_reads <= whole.expected_reads * 1.03
    both = np.concatenate([keys[names[1]], keys[names[2]]])
    c.append("both", both, replaces=names[1:3])
    assert list(c.names) == [names[0], "both", names[3]]
    assert c.size_in_bytes <= 30_000
    assert all("both" in c.candidates(int(key)) for key in both[::997])
    kept = c.kept
    c.drop("both")
    assert (c.kept > kept[[0, 2]]).any()
    assert c.size_in_bytes <= 30_000
    assert wasted_reads(c, shares) < 2 * c.expected_reads + 1e-4
    c.extend({"late": range(10**7, 10**7 + 100)}, allocate=False)
    assert c.candidates(-1, 1) == ["late"]
    assert c.fprs[-1] == 1
    c.allocate(budget="30kB")
    assert c.fprs[-1] < 0.01


def test_filters_whose_share_hardly_changes_are_kept():
    keys = runs_of(40_000, 39_000)
    c = tamis.Collection.build(keys, budget="100kB", kind="stacked")
    filters = c.filters
    c.allocate(budget=100_000)
    assert all(a is b for a, b in zip(c.filters, filters, strict=True))
    c.allocate(budget=60_000)
    assert not any(a is b for a, b in zip(c.filters, filters, strict=True))
    assert c.size_in_bytes <= 60_000


def test_a_failed_change_leaves_the_runs_as_they_were():
    c = tamis.Collection.build(runs_of(100, 100), budget="2kB", kind="stacked")
    for change in (
        lambda: c.append("run 0", [1]),
        lambda: c.append("new", [1.5]),
        lambda: c.append("new", [1], utility=-1),
        lambda: c.append("new", [1], replaces=["nobody"]),
        lambda: c.drop(["nobody"]),
        lambda: c.drop(np.array([7])),
        lambda: c.allocate(budget=10),
        lambda: c.append("new", [1], workload=3),
    ):
        with pytest.raises((ValueError, TypeError, KeyError)):
            change()
        assert list(c.names) == ["run 0", "run 1"]
        assert c.candidates(150) == ["run 1"]


@pytest.mark.parametrize("key", [None, b"0123456789abcdef"])
def test_saved_runs_open_and_plan_again(tmp_path, key):
    path = tmp_path / "runs.tamis"
    _, workload, asked = zipf_workload(5000, 5000, seed=0)
    runs = runs_of(5000, 500)
    c = tamis.Collection.build(
        runs, budget="9kB", workload=workload, kind="stacked", path=path, key=key
    )
    again = tamis.Collection.open(path, key=key)
    assert isinstance(again, Runs)
    assert again.budget == 9000
    assert again.kept.tolist() == c.kept.tolist()
    assert again.fprs.tolist() == c.fprs.tolist()
    probes = np.arange(-2000, 9000)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(again.candidates_many(probes), c.candidates_many(probes), strict=True)
    )
    with pytest.raises(ValueError, match=r"workload must be a tamis\.Workload"):
        again.append("new", [1])
    again = tamis.Collection.open(path, workload=workload, key=key, budget="7kB")
    assert again.size_in_bytes <= 7000 < c.size_in_bytes
    again.append("new", range(10**6, 10**6 + 50))
    again.save(path)
    last = tamis.Collection.open(path, key=key)
    assert list(last.names) == ["run 0", "run 1", "new"]
    assert not len(last.candidates_many(ABSENT + asked)[1])
    if key:
        with pytest.raises(ValueError, match="key"):
            tamis.Collection.open(path)
    with pytest.raises(tamis.FormatError):
        tamis.load(path)


def test_every_damaged_byte_is_refused_or_harmless(tmp_path):
    path, hurt = tmp_path / "runs.tamis", tmp_path / "hurt.tamis"
    c = tamis.Collection.build(runs_of(20, 3), budget="1kB", kind="stacked", path=path)
    content = path.read_bytes()
    for at in range(0, len(content), 3):
        hurt.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        try:
            opened = tamis.Collection.open(hurt)
        except tamis.FormatError:
            continue
        # Hashes are read when filters are built.
        assert all(opened.candidates(key) for key in range(23))
        with pytest.raises(tamis.FormatError):
            opened.allocate(budget=545)
        assert list(opened.names) == list(c.names)
    for length in range(0, len(content), 7):
        hurt.write_bytes(content[:length])
        with pytest.raises(tamis.FormatError):
            tamis.Collection.open(hurt)


def places(node, path=()):
    """Every number and text in a directory."""
    if isinstance(node, list | dict):
        for at, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from places(value, (*path, at))
    else:
        yield path


STRANGE = [10**400, -1, 0.5, 1e308, True, None, "", "\ud800", [], {}, "x"]


@pytest.mark.parametrize("value", STRANGE, ids=range(len(STRANGE)))
def test_a_forged_directory_is_refused_or_works(tmp_path, value):
    """With the checksum of what it says now."""
    path = tmp_path / "runs.tamis"
    tamis.Collection.build(runs_of(20, 3), budget="1kB", kind="stacked", path=path)
    content = path.read_bytes()
    for *above, last in places(json.loads(parts(content)[-1][0][2])):

        def change(directory, above=above, last=last):
            parent = directory
            for at in above:
                parent = parent[at]
            parent[last] = value
            return directory

        path.write_bytes(with_values(content, change))
        try:
            opened = tamis.Collection.open(path)
        except tamis.FormatError:
            continue
        repr(opened)
        assert opened.size_in_bytes > 0
        opened.candidates(5)
        opened.allocate(budget="2kB")
        opened.save(tmp_path / "again")


def test_more_runs_than_a_file_holds_are_refused(tmp_path):
    path = tmp_path / "runs.tamis"
    c = tamis.Collection.build({"a": [1]}, kind="stacked")
    c.extend(((str(i), ()) for i in range(32_767)), allocate=False)
    with pytest.raises(tamis.CapacityError, match="at most 32,767 runs, not 32,768"):
        c.save(path)
    assert not path.exists()


def test_frames_are_read_by_several_calls(tmp_path, monkeypatch):
    """A call of the system reads at most 2 GiB."""
    path = tmp_path / "runs.tamis"
    tamis.Collection.build(runs_of(300, 30), budget="2kB", kind="stacked", path=path)
    monkeypatch.setattr(_frames, "_CHUNK", 100)
    opened = tamis.Collection.open(path)
    opened.allocate(budget="3kB")
    assert "run 0" in opened.candidates(5)


def test_wrong_arguments_are_named():
    runs = runs_of(10)
    with pytest.raises(ValueError, match="hybrid, present and parts must not be given"):
        tamis.Collection.build(runs, kind="stacked", parts=2)
    with pytest.raises(ValueError, match="workload needs kind 'stacked'"):
        tamis.Collection.build(runs, workload=tamis.Workload.from_queries([1]))
    with pytest.raises(TypeError, match="workload"):
        tamis.Collection.build(runs, kind="stacked", workload=[1, 2])
    with pytest.raises(TypeError, match="name must be a str"):
        tamis.Collection.build({1: [1]}, kind="stacked")
    with pytest.raises(ValueError, match="'run 0' is missing"):
        tamis.Collection.build(runs, kind="stacked", utility={})


def test_without_a_budget_filters_have_the_rate():
    c = tamis.Collection.build(runs_of(2000, 200), kind="stacked", fpr=0.01)
    assert c.budget is None
    assert (c.fprs <= 0.01).all()
    assert (c.fprs > 0.002).all()
    c.append("new", range(-100, 0))
    assert c.fprs[-1] <= 0.01


def forged_runs(tmp_path, change_entry=lambda entry: entry, change_frames=lambda frames: frames):
    """A file of two runs with right checksums, of which entries or frames are changed."""
    path = tmp_path / "runs.tamis"
    tamis.Collection.build({"a": range(300), "b": range(200, 900)}, kind="stacked", path=path)
    *head, (directory, *frames) = parts(path.read_bytes())
    document = json.loads(directory[2])
    document["runs"] = [change_entry(entry) for entry in document["runs"]]
    text = (*directory[:2], json.dumps(document).encode())
    path.write_bytes(frame(*head, [text, *change_frames(frames)]))
    return path


def with_filters_swapped(frames):
    a, filter_a, b, filter_b = frames
    return [a, filter_b, b, filter_a]


def without_filters(entry):
    return [*entry[:3], False]


def hashes_only(frames):
    return frames[::2]


def of_another_seed(frames):
    (part,) = tamis.split(range(300), 1, seed=7)
    return [(*frames[0][:2], part), *frames[1:]]


@pytest.mark.parametrize(
    ("entry", "frames"),
    [
        (lambda entry: [*entry[:2], 0, False], hashes_only),
        (lambda entry: [*entry[:2], entry[2] + 1, False], hashes_only),
        (lambda entry: entry, with_filters_swapped),
        (lambda entry: entry, of_another_seed),
        (without_filters, lambda frames: frames[1::2]),
    ],
    ids=["no keys", "more keys", "other filters", "another seed", "filters for hashes"],
)
def test_forged_runs_are_refused_when_they_are_opened(tmp_path, entry, frames):
    path = forged_runs(tmp_path, entry, frames)
    with pytest.raises(tamis.FormatError):
        tamis.Collection.open(path)


def of_other_keys(frames):
    (part,) = tamis.split(range(5000, 5300), 1)
    return [(*frames[0][:2], part), *frames[1:]]


@pytest.mark.parametrize(
    ("entry", "frames", "said"),
    [
        (lambda entry: entry, of_other_keys, "the filter of run 'a' rejects keys"),
        (
            lambda entry: [*entry[:2], entry[2] - 1, False],
            hashes_only,
            "the hashes of run 'a' do not match its entry",
        ),
    ],
    ids=["other keys", "fewer keys"],
)
def test_a_check_finds_runs_that_contradict_their_hashes(tmp_path, entry, frames, said):
    path = forged_runs(tmp_path, entry, frames)
    with pytest.raises(tamis.FormatError, match=said):
        tamis.Collection.open(path).check()
    forged_runs(tmp_path)
    tamis.Collection.open(path).check()
