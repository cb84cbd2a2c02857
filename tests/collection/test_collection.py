"""`tamis.Collection`: no key denied whatever is cut, rates as predicted, nothing believed."""

import numpy as np
import pytest
from many_sets import SIZES, sets, share
from reference import mix13

import tamis
from tamis import _native
from tamis.planning import bloom, ribbon
from tamis.testing.filters import within_noise

KINDS = ["auto", "ribbon", "segmented", "truncated"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_key_is_denied_whatever_is_cut(kind):
    c = tamis.Collection.build(sets(), kind=kind)
    utility = np.random.default_rng(0).lognormal(0, 2, len(SIZES))
    keys = np.arange(sum(SIZES))
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    for part in (1, 0.7, 0.3, 0.1, 0.02, 0):
        c.allocate(budget=share(c, part), utility=utility)
        assert c.size_in_bytes <= c.budget
        offsets, ids = c.candidates_many(keys)
        lists = np.split(ids, offsets[1:-1])
        assert all(own in found for own, found in zip(owner, lists, strict=True))
        assert 0 not in ids  # the empty set says no
    assert (c.kept == 0).all()
    assert sorted(c.candidates("anything")) == [f"set {i}" for i in range(1, len(SIZES))]


def truncated_bloom(keys, bits, hashes):
    """Obvious twin of a Bloom filter with probes anywhere: the set of its bits."""

    def positions(key):
        hi, lo = (int(half) for half in tamis.hash_keys([int(key)])[0])
        return [(mix13((hi + j * lo) % 2**64) * bits) >> 64 for j in range(hashes)]

    there = {position for key in keys for position in positions(key)}
    return lambda key, kept: all(p in there for p in positions(key) if p < kept)


def twin(kind, keys):
    """The same filter, cut by the classes that are tested elsewhere: may it hold key with bits?"""
    from tamis.collection.storage import full_size

    kind, hashes, bits, levels = full_size(len(keys), kind, 1e-4)
    distinct = _native.Distinct(keys)
    if kind == "truncated":
        return truncated_bloom(keys, bits, hashes)
    if kind == "segmented":
        kernel = tamis.Bloom._of(
            _native.Bloom._build(bloom.BloomSize("segmented", bits, hashes), distinct)
        )

        def cut(kept):
            return kernel.truncate(kept)
    else:
        kernel = tamis.Ribbon._of(
            _native.Ribbon._build(ribbon.RibbonSize(hashes, levels, 0, "columns"), distinct)
        )
        codes = ribbon.stored_code_bits(levels)

        def cut(kept):
            if kept <= codes:
                return {int(key) for key in range(-400, 0)} | set(keys.tolist())
            return tamis.Ribbon._of(kernel._truncated(kept - codes))

    return lambda key, kept: key in cut(kept)


@pytest.mark.parametrize("kind", ["ribbon", "segmented", "truncated"])
def test_prefixes_answer_as_the_filters_alone_do(kind):
    sizes = [1, 2, 7, 60, 255, 256, 400, 4500]
    c = tamis.Collection.build(sets(sizes), kind=kind)
    twins = [twin(kind, keys) for _, keys in sets(sizes)]
    rng = np.random.default_rng(1)
    for part in (1, 0.55, 0.2, 0.03):
        c.allocate(budget=share(c, part), utility=rng.lognormal(0, 1, len(sizes)))
        order = np.argsort(-c.utility, kind="stable")
        for key in range(-60, 0):
            expected = [f"set {i}" for i in order if twins[i](key, int(c.kept[i]))]
            assert c.candidates(key) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_rates_are_as_predicted(kind):
    sizes = [30, 200, 900, 2500, 6000] * 8
    c = tamis.Collection.build(sets(sizes), kind=kind)
    utility = np.random.default_rng(2).lognormal(0, 1, len(sizes))
    trials = 4000
    absent = np.arange(-trials, 0)
    for part in (0.1, 0.35):
        c.allocate(budget=share(c, part), utility=utility)
        _, ids = c.candidates_many(absent)
        measured = np.bincount(ids, minlength=len(sizes)) / trials
        weights = utility / utility.sum()
        # Filters are independent, and each key errs on its own: the variances add up. What was
        # built varies about its expectation too, most of all in small sets; hence the slack.
        sigma = np.sqrt((weights**2 * c.fprs * (1 - c.fprs)).sum() / trials)
        expected = c.expected_fpr
        assert abs(float(weights @ measured) - expected) < 5 * sigma + 0.05 * expected
        total = float(c.fprs.mean())
        assert within_noise(float(measured.mean()), total, int(trials * len(sizes) / 40))


@pytest.mark.parametrize("kind", [*KINDS, "sliced"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_sets_of_few_keys_have_the_rate(kind, count):
    """A Bloom filter of the usual size for one key errs 30 times as often."""
    sets = {f"{i}": [f"{i} {j}" for j in range(count)] for i in range(200)}
    c = tamis.Collection.build(sets, fpr=1e-3, kind=kind)
    assert c.expected_fpr <= 1.05e-3
    queries = np.arange(20_000)
    rate = len(c.candidates_many(queries)[1]) / (len(sets) * len(queries))
    # A query may be a false positive of many sets: about 20 in 20,000 queries are one of a ribbon.
    assert 0.3 * c.expected_fpr < rate < 2 * c.expected_fpr


def test_the_order_is_that_of_utility_and_many_are_as_one():
    c = tamis.Collection.build(
        ((name, range(100)) for name in "abcdefghij"), utility=np.arange(10) % 4
    )
    every = ["d", "h", "c", "g", "b", "f", "j", "a", "e", "i"]
    assert c.candidates(5) == every
    assert c.candidates(5, limit=3) == every[:3]
    assert c.candidates(5, limit=0) == []
    keys = np.arange(-50, 60)
    for limit in (None, 0, 1, 4):
        offsets, ids = c.candidates_many(keys, limit)
        assert offsets[0] == 0
        assert offsets[-1] == len(ids)
        for i, key in enumerate(keys.tolist()):
            found = c.names[ids[offsets[i] : offsets[i + 1]]].tolist()
            assert found == c.candidates(key, limit)
    with pytest.raises(ValueError, match=r"limit must be .* not -1"):
        c.candidates(5, limit=-1)
    with pytest.raises(TypeError, match=r"key is 1\.5"):
        c.candidates(1.5)
    assert c.candidates_many([])[0].tolist() == [0]


def test_many_threads_give_what_one_gives():
    c = tamis.Collection.build(((str(i), [i, i + 1]) for i in range(9000)), budget="2MB")
    keys = np.arange(2500)
    offsets, ids = c.candidates_many(keys)
    for key in (0, 1, 1249, 1250, 1251, 2499):
        assert c.names[ids[offsets[key] : offsets[key + 1]]].tolist() == c.candidates(key)


@pytest.mark.parametrize("kind", KINDS)
def test_files_come_back_and_stay_as_they_are(kind, tmp_path):
    path = tmp_path / "c.tamis"
    utility = {name: float(i) for i, (name, _) in enumerate(sets())}
    c = tamis.Collection.build(sets(), kind=kind, path=path, utility=utility)
    assert [p.name for p in tmp_path.iterdir()] == ["c.tamis"]
    data = path.read_bytes()
    again = tamis.Collection.build(dict(sets()), kind=kind, utility=utility)
    again.save(tmp_path / "again.tamis")
    assert (tmp_path / "again.tamis").read_bytes() == data
    for part in (1, 0.3):
        opened = tamis.Collection.open(path, budget=share(c, part))
        c.allocate(budget=share(c, part))
        assert opened.utility.tolist() == list(utility.values())
        assert opened.kinds == c.kinds
        assert opened.kept.tolist() == c.kept.tolist()
        assert opened.expected_fpr == c.expected_fpr
        assert list(opened.names) == list(c.names)
        assert repr(opened) == repr(c)
        asked = np.arange(-500, 1000)
        for one, two in zip(opened.candidates_many(asked), c.candidates_many(asked), strict=True):
            assert one.tolist() == two.tolist()
    assert path.read_bytes() == data
    with pytest.raises(tamis.FormatError, match=r"Collection\.open"):
        tamis.load(path)
    tamis.Bloom.build([1], fpr=0.1).save(tmp_path / "bloom")
    with pytest.raises(tamis.FormatError, match=r"tamis\.load"):
        tamis.Collection.open(tmp_path / "bloom")
    with pytest.raises(FileNotFoundError):
        tamis.Collection.open(tmp_path / "nowhere")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["optimal", "top utility"])
def test_hybrid_answers_as_the_full_filters_do(kind, method, tmp_path):
    path = tmp_path / "c.tamis"
    full = tamis.Collection.build(sets(), kind=kind, path=path)
    c = tamis.Collection.open(path, hybrid=True)
    utility = np.random.default_rng(3).lognormal(0, 1, len(SIZES))
    keys = np.arange(-2000, 300)
    full.allocate(utility=utility)
    expected = full.candidates_many(keys)
    for part in (0, 0.05, 0.4, 1):
        budget = share(c, part) if part < 1 else None
        c.allocate(budget=budget, utility=utility, method=method)
        found = c.candidates_many(keys)
        assert [each.tolist() for each in found] == [each.tolist() for each in expected]
        assert c.candidates(5, limit=2) == full.candidates(5, limit=2)
        assert (c.tail_reads == 0) == (part == 1)
    # Sets that were added are in another file, until they are saved.
    c.allocate(budget=share(c, 0.1), utility=utility)
    c.append("more", np.arange(10**6, 10**6 + 700), kind=kind if kind != "auto" else "ribbon")
    assert "more" in c.candidates(10**6 + 3)
    assert "more" not in [name for key in range(-300, 0) for name in c.candidates(key)]
