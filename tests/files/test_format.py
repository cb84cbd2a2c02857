"""The file format: frozen, strict, and never believed before it is checked."""

import dataclasses
import os
import pickle
import struct
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from contract import SPECIMENS, planned
from frames import GOLDEN
from hypothesis import given
from hypothesis import strategies as st
from reference import frame, parts

import tamis
import tamis.text
from tamis import _native
from tamis.guard import snapshot
from tamis.learned import Model, flat
from tamis.planning import quotient, stable
from tamis.planning.adaptive_stacked import AdaptivePlan, PlanRequest
from tamis.planning.stable_learned.groups import Group
from tamis.planning.stacked.frequencies import Steps
from tamis.planning.stacked.predictions import Checks

SECRET = bytes(range(16))


def golden_filters():
    """A small filter of each kind and shape by name, as version 1 of the format has it."""
    for specimen in (s for s in SPECIMENS if not s.searched):
        # Ribbons of whole columns have the form of the first version.
        fpr = 2**-7 if tamis.Ribbon in (specimen.cls, specimen.arguments.get("filter")) else 0.01
        yield f"v1-{specimen}".lower(), specimen.build(range(100), fpr=fpr, seed=42)
    yield "v1-bloom-keyed", tamis.Bloom.build(["ada", "grace"], fpr=0.01, key=SECRET)
    segmented = tamis.Bloom.build(range(100), bits_per_key=10, layout="segmented")
    yield "v1-bloom-truncated", segmented.truncate(333)
    counted = tamis.Quotient(100, fpr=0.01)
    counted.update([1] * 1000 + [2] * 3 + [3, 3] + list(range(50)))
    yield "v1-quotient-counts", counted
    copies = tamis.Cuckoo(100, fingerprint_bits=21, seed=42)
    copies.update([1] * 7 + list(range(90)))
    yield "v1-cuckoo-copies", copies
    yield "v1-cuckoo-truncated", copies.truncate(7)
    columns = tamis.Ribbon.build(range(5000), fpr=2**-5, layout="columns")
    yield "v1-ribbon-truncated", columns.truncate(2.5)
    for layout in ("interleaved", "columns"):
        fraction = tamis.Ribbon.build(range(5000), fpr=0.05, layout=layout)
        yield f"v1-ribbon-{layout}-fraction", fraction
    yield "v1-ribbon-columns-fraction-truncated", fraction.truncate(4.125)
    yield "v1-ribbon-fraction-small", tamis.Ribbon.build(range(100), fpr=0.05, seed=42)
    for cls in (tamis.Telescoping, tamis.Extending):
        for selectors in ("growing", "block"):
            adapted = cls.build(range(100), fpr=0.1, seed=42, selectors=selectors)
            adapted.adapt_many(range(100, 400), tamis.stores.Hashes(range(100), seed=42))
            yield f"v1-{cls.__name__}-{selectors}-adapted".lower(), adapted
    for kinds in (("bloom",) * 3, ("cuckoo", "quotient", "fuse"), ("ribbon", "function")):
        plan = planned(kinds, 4, psi=0.75)
        yield f"v1-stacked-{'-'.join(kinds)}", plan.build(range(100), negatives=range(90, 3000))
    plan = planned(("cuckoo",) * 3, 5)
    changed = plan.build(range(100), negatives=range(100, 3000), capacity=200)
    changed.update(range(50, 60))
    changed.remove(77)
    yield "v1-stacked-changed", changed
    plan = planned(("ribbon", "function"), 4, psi=0.75)
    shards = {"filter": tamis.Stacked, "plan": plan, "negatives": range(90, 3000), "shards": 2}
    yield "v1-sharded-stacked", tamis.Sharded.build(range(100), **shards)
    for kind in ("swapping", "cyclic", "cuckooing"):
        adapted = tamis.AdaptiveCuckoo.build(range(100), fpr=0.1, seed=42, kind=kind)
        adapted.adapt_many(range(100, 400))
        yield f"v1-adaptivecuckoo-{kind}-adapted", adapted
    yield "v1-adaptivestacked-grown", golden_adaptive_stacked()


def golden_adaptive_stacked():
    """An adaptive stack in its second generation, with its fourth layer begun."""
    layers = planned(("quotient",) * 5, 1).layers
    layers = tuple(dataclasses.replace(layer, items=20, bits=200) for layer in layers)
    plan = dataclasses.replace(planned((), 1), layers=layers, checks=Checks(1.0, 1.0, 1.0))
    shape = Steps(np.array([0.0, 1.0, 10.0]), np.array([0.0, 0.5, 0.75]))
    request = PlanRequest(100, bits_per_key=8.0)
    text = AdaptivePlan(plan, 10**6, 0.25, request, shape).to_json()
    native = tamis._native
    filled = native.Distinct(range(100), 42)
    first = native.Quotient._build(quotient.QuotientSize(128, 3), filled, 100)

    def negatives():
        return native.Quotient._empty(quotient.QuotientSize(64, 1), 20)

    f = tamis.AdaptiveStacked._of(
        native.AdaptiveStacked._begin_with(first, negatives(), 20, text, 100)
    )
    assert f._drop_behind_first(0, negatives(), 20)
    f.contains(range(1000, 1500))
    f.adapt_many(range(1000, 2000), tamis.stores.Hashes(range(100), seed=42))
    f.adapt_many(range(2000, 2400), tamis.stores.Hashes(range(100), seed=42))
    assert (len(f.layers), f.rebuilds, f.collecting.items > 0) == (3, 1, True)
    return f


def golden_function():
    """A static function with a level that bumps; not a filter, so not among those."""
    return tamis.StaticFunction.build(range(5000), [key % 7 for key in range(5000)])


def golden_learned():
    """A learned filter with a region of each kind, and a filter in front."""
    model = Model._of(flat.linear(flat.Grams(1, 1, 4), np.array([-1.0, 0, 1, 2]), 0.0, 5))
    keys, borders = range(100), [0.0625, 0.5, 0.75]
    scored = tamis._native.ScoredKeys(keys, model.scores(keys), 42)
    front, regions = scored.in_front(), scored.by_region(borders)
    ribbon = tamis.Ribbon._plan_kernel
    filters = [None, ribbon(regions[1], fpr=0.25), None, ribbon(regions[3], fpr=2**-5)]
    shares, accepts = [0.25, 0.25, 0.125, 0.375], [False, True, True, True]
    return tamis.LearnedBloom._of(
        tamis._native.LearnedBloom._join(
            front, model._handle, ribbon(front, fpr=0.5), borders, shares, filters, accepts
        )
    )


def golden_stable_learned():
    """A stable learned filter with a group of each kind; a stream has passed it."""
    model = Model._of(flat.linear(flat.Grams(1, 1, 4), np.array([-1.0, 0, 1, 2]), 0.0, 5))
    groups = [
        Group(0.25, 0.125, None, False, 0.0, 0.0),
        Group(0.25, 0.25, stable.StableSize(600, 3, 3, 4), True, 0.0, 0.0),
        Group(0.25, 0.375, stable.StableSize(500, 1, 4, 9), True, 0.0, 0.0),
        Group(0.25, 0.25, None, True, 0.0, 0.0),
    ]
    f = tamis.StableLearned._of(
        tamis._native.StableLearned._empty(
            model._handle, [0.0625, 0.5, 0.75], groups, False, 90, 42
        )
    )
    f.update(range(300))
    return f


def golden_models():
    """Classifiers of a number and a category by two trees of either form; not filters either."""
    number = flat.Number(7, np.float32([-1, 0.5, 2]))
    category = flat.Category(9, 3, np.arange(16, dtype=np.uint8) % 3)
    small = flat.Tree([(0, 1, 1, 254), (1, 0, 255, 253)], [0.5, -1.0, 2.0])
    depths = flat.Tree([(0, 1), (1, 0)], [0.5, -1.0, 2.0, 1.5])
    for name, tree in (("v1-model", small), ("v1-model-oblivious", depths)):
        forest = flat.Forest([tree, flat.Tree([], [0.25])], 0.1, oblivious=tree is depths)
        yield name, Model._of(flat.forest([number, category], np.empty(0), forest, 10))


def golden_containers():
    """Files that hold filters in sections: a name, and what writes the file."""
    runs = {"old": range(100), "empty": (), "new": range(50, 80)}
    known = tamis.Workload.from_counts([-1, -2], [5, 3], unseen=0.1)
    stacks = tamis.Collection.build(runs, kind="stacked", budget=2000, workload=known)
    yield "v1-runs", stacks.save
    f = tamis.Quotient.build(range(100), fpr=0.01, seed=42)
    yield "v1-snapshot", lambda path: snapshot.save(path, f, b"store", "7")


def save_golden_index(path):
    """An index over `users(0, 200)` in row groups of 50; the footer depends on pyarrow."""
    import pyarrow as pa
    import pyarrow.fs as fs
    import pyarrow.parquet as pq

    folder = Path(tempfile.mkdtemp())
    names = [f"user {i % 97}" if i % 17 else None for i in range(200)]
    table = pa.table({"user": names, "n": pa.array(range(200), pa.int64())})
    pq.write_table(table, folder / "a.parquet", row_group_size=50)
    os.utime(folder / "a.parquet", (0, 0))
    below = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
    tamis.parquet.SkippingIndex.build(
        "a.parquet", columns=["user", "n"], filesystem=below, path=path
    )


@pytest.mark.parametrize(("name", "save"), list(golden_containers()), ids=["runs", "snapshot"])
def test_golden_containers(name, save, tmp_path):
    save(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == (GOLDEN / f"{name}.tamis").read_bytes()


@pytest.mark.parametrize("path", sorted(GOLDEN.iterdir()), ids=lambda path: path.stem)
def test_the_twin_writes_the_same_golden_frame(path):
    assert frame(*parts(path.read_bytes())) == path.read_bytes()


@pytest.mark.parametrize(
    ("name", "filter_"), list(golden_filters()), ids=lambda value: str(value)[:30]
)
def test_golden_files(name, filter_):
    """The bytes of today are the bytes of version 1, and both open."""
    path = GOLDEN / f"{name}.tamis"
    assert filter_.to_bytes() == path.read_bytes()
    key = SECRET if filter_.seed is None else None
    for opened in (tamis.load(path, key=key), tamis.load(path, mmap=True, key=key)):
        assert opened.to_bytes() == path.read_bytes()
        assert repr(opened) == repr(filter_)
        keys = ["ada", "grace"] if key else range(50)
        assert opened.contains(keys).all() == filter_.contains(keys).all() == True  # noqa: E712


def test_golden_function():
    path = GOLDEN / "v1-staticfunction.tamis"
    f = golden_function()
    assert f.to_bytes() == path.read_bytes()
    for opened in (tamis.load(path), tamis.load(path, mmap=True)):
        assert repr(opened) == repr(f)
        assert opened.get(range(5000)).tolist() == [key % 7 for key in range(5000)]


def test_golden_learned():
    path = GOLDEN / "v1-learnedbloom.tamis"
    f = golden_learned()
    assert f.to_bytes() == path.read_bytes()
    for opened in (tamis.load(path), tamis.load(path, mmap=True)):
        assert repr(opened) == repr(f)
        assert opened.contains(range(100)).all()
        assert (opened.contains(range(3000)) == f.contains(range(3000))).all()


def test_golden_stable_learned():
    path = GOLDEN / "v1-stablelearned.tamis"
    f = golden_stable_learned()
    assert f.to_bytes() == path.read_bytes()
    for opened in (tamis.load(path), tamis.load(path, mmap=True)):
        assert repr(opened) == repr(f)
        assert opened.groups == f.groups
        assert (opened.contains(range(3000)) == f.contains(range(3000))).all()


@pytest.mark.parametrize(("name", "model"), list(golden_models()), ids=["branching", "oblivious"])
def test_golden_models(name, model):
    path = GOLDEN / f"{name}.tamis"
    assert model.to_bytes() == path.read_bytes()
    rows = np.arange(-20, 20).reshape(20, 2)
    for opened in (tamis.load(path), tamis.load(path, mmap=True)):
        assert repr(opened) == repr(model)
        assert opened.scores(rows).tolist() == model.scores(rows).tolist()


@pytest.mark.parametrize("specimen", SPECIMENS, ids=str)
def test_the_twin_writes_the_same_frame(specimen):
    data = specimen.build(range(3000), fpr=0.01, seed=7).to_bytes()
    assert frame(*parts(data)) == data


@pytest.mark.parametrize("specimen", SPECIMENS, ids=str)
@given(data=st.data())
def test_frames_that_lie(specimen, data):
    """Checksums right, content wrong: refused, or opened as a filter that stays within bounds."""
    good = parts(specimen.build(range(60), fpr=0.05).to_bytes())
    kind, hash_id, tag, count, capacity, values, contents = good
    number = st.one_of(
        st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2, 63, 64, 2**32, 2**63, 2**64 - 1])
    )
    choice = data.draw(st.integers(0, 5))
    if choice == 0:
        values[data.draw(st.integers(0, len(values) - 1))] = data.draw(number)
    elif choice == 1:
        count, capacity = data.draw(number), data.draw(number)
    elif choice == 2:
        kind, hash_id = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
    elif choice == 3:
        values = data.draw(st.lists(number, max_size=8))
    else:
        type_, piece, content = contents[0]
        content = bytearray(content)
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        cut = data.draw(st.integers(0, len(content))) if choice == 5 else len(content)
        contents[0] = (type_, piece, bytes(content[:cut]))
    try:
        f = tamis.from_bytes(frame(kind, hash_id, tag, count, capacity, values, contents))
    except (tamis.FormatError, tamis.IncompatibleError):
        return
    assert len(f) >= 0
    repr(f)
    twin = f.copy()
    assert twin.to_bytes() == f.to_bytes()
    if isinstance(f, tamis.StaticFunction):  # by a kind that changed
        assert f.get(range(200)).tolist() == twin.get(range(200)).tolist()
        return
    f.contains(range(200))
    assert f.expected_fpr >= 0
    if not f.inserts:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tamis.CapacityWarning)
        try:
            twin.update(range(300))
        except tamis.CapacityError:
            assert twin.to_bytes()
        else:
            assert twin.contains(range(300)).all() or not twin.one_sided


OPENED_BY = {
    "v1-bloom-blocked": tamis.load,
    "v1-sharded-ribbon-3": tamis.load,
    "v1-collection": tamis.Collection.open,
    "v1-text": tamis.text.SearchIndex.open,
    "v1-runs": tamis.Collection.open,
    "v1-snapshot": lambda path: snapshot.load(path, None),
}


@pytest.mark.parametrize("name", OPENED_BY)
def test_optional_sections_are_skipped_and_other_unknown_ones_refused(name, tmp_path):
    *head, contents = parts((GOLDEN / f"{name}.tamis").read_bytes())
    path = tmp_path / "f"
    for type_, known in ((2**31 + 1, True), (2**31 + 999, True), (999, False)):
        later = frame(*head, [(type_, 0, b"of a later version"), *contents])
        path.write_bytes(later)
        if known:
            OPENED_BY[name](path)
            at = later.index(b"of a later")  # it is checked all the same
            path.write_bytes(later[:at] + b"!" + later[at + 1 :])
        with pytest.raises(tamis.FormatError):
            OPENED_BY[name](path)


@pytest.mark.parametrize("field", range(1, 6))
@pytest.mark.parametrize("name", ["v1-runs", "v1-snapshot"])
def test_a_container_with_fields_of_a_filter_is_refused(name, field, tmp_path):
    """Hash, seed, count, capacity and parameters are zero, and no section has pieces."""
    *head, contents = parts((GOLDEN / f"{name}.tamis").read_bytes())
    head[field] = [0] if field == 5 else 1
    path = tmp_path / "f"
    path.write_bytes(frame(*head, contents))
    for check in (OPENED_BY[name], _native.check_file):
        with pytest.raises(tamis.FormatError, match="a container has no hash, counts or"):
            check(path)


@pytest.mark.parametrize("name", ["v1-runs", "v1-snapshot"])
def test_a_container_with_pieces_is_refused(name, tmp_path):
    *head, contents = parts((GOLDEN / f"{name}.tamis").read_bytes())
    contents[0] = (contents[0][0], 9, contents[0][2])
    path = tmp_path / "f"
    path.write_bytes(frame(*head, contents))
    for check in (OPENED_BY[name], _native.check_file):
        with pytest.raises(tamis.FormatError, match="a container has no pieces"):
            check(path)


def test_sizes_in_a_header_claim_no_memory():
    """A header of a few bytes may speak of petabytes; it is refused by what is there."""
    huge = 2**50
    for kind, values in (
        (1, [0, huge, 6, huge]),
        (1, [2, huge, 6, huge]),
        (2, [huge, 8, 0, 1]),
        (3, [huge, 2, 8, 5]),
        (3, [2**20, 2**28, 32, 5]),
        (4, [3, 8, 10, 2**30, 0]),
        (5, [0, 8, huge, 0, huge]),
        (5, [1, 8, 8 * huge, 0, 1, huge]),
        (5, [2, 8, 8 * huge, 2**31, 0, huge, 0, 1, 2**42]),
        (5, [3, 0, 2**41, 2**31, 0, 0, 0, 0, 2**42]),
        (6, [8, 0, huge]),
        (6, [8, 0, 1, 2**42, 2**42]),
        (9, [huge, 8, 1, huge, 0]),
        (19, [huge, 8, 0, huge, 0]),
        (12, [2**48, 3, 6, 12, 0, 0]),
        (12, [huge, 1, 6, 12, 0, 0]),
        (13, [6, 10, 2**48, 100, 0, 0, 0]),
        (10, [0, 8, huge]),
        (10, [4, 8, 2**62]),
        (11, [0, huge, 0, 0, 0, 0, 0, 0, 0]),
    ):
        for content in (b"", bytes(64)):
            with pytest.raises(tamis.FormatError):
                tamis.from_bytes(frame(kind, 1, 0, huge, huge, values, [(1, 0, content)]))
    header = bytearray(tamis.Bloom.build([1], fpr=0.1).to_bytes())
    for at in (40, 48):  # the length, and the number of parameters
        lying = header.copy()
        struct.pack_into("<Q", lying, at, 2**60)
        with pytest.raises(tamis.FormatError):
            tamis.from_bytes(bytes(lying))


def test_what_is_not_a_frame(tmp_path):
    for data in (b"", b"\0", b"tamis", b"x" * 1000, bytearray(3), memoryview(b"\x89tamis\r\n")):
        with pytest.raises(tamis.FormatError):
            tamis.from_bytes(data)
    for wrong in ("text", 5, None):
        with pytest.raises(TypeError):
            tamis.from_bytes(wrong)
    (tmp_path / "empty").write_bytes(b"")
    for mmap in (False, True):
        with pytest.raises(tamis.FormatError):
            tamis.load(tmp_path / "empty", mmap=mmap)
        with pytest.raises(FileNotFoundError):
            tamis.load(tmp_path / "nowhere", mmap=mmap)
        with pytest.raises(IsADirectoryError if not mmap else OSError):
            tamis.load(tmp_path, mmap=mmap)
    newer = bytearray(tamis.Bloom.build([1], fpr=0.1).to_bytes())
    newer[8] = 2
    with pytest.raises(tamis.FormatError, match="version 2 is not supported"):
        tamis.from_bytes(newer)


def test_a_failed_save_leaves_what_was_there(tmp_path):
    f = tamis.Bloom.build(range(10), fpr=0.1)
    path = tmp_path / "f"
    path.mkdir()
    with pytest.raises(OSError, match="f"):
        f.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    with pytest.raises(FileNotFoundError):
        f.save(tmp_path / "no" / "where")
    (tmp_path / "damaged").write_bytes(b"nothing")
    with pytest.raises(tamis.FormatError, match="damaged: this is not a tamis file"):
        tamis.load(tmp_path / "damaged")
    with pytest.raises(FileNotFoundError) as raised:
        tamis.load(tmp_path / "no-such-file")
    assert raised.value.filename == str(tmp_path / "no-such-file")


def test_a_saved_file_is_readable_as_others_are(tmp_path):
    other, mine = tmp_path / "other", tmp_path / "mine"
    other.write_bytes(b"")
    f = tamis.Bloom.build([1], fpr=0.1)
    f.save(mine)
    assert mine.stat().st_mode == other.stat().st_mode
    mine.chmod(0o600)
    f.save(mine)
    assert mine.stat().st_mode & 0o777 == 0o600


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / ("long" * 60))
    tamis.Bloom.build([1], fpr=0.1).save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert 1 in tamis.load(tmp_path / "link")


class Mine(tamis.Bloom):
    """A user's own filter."""


def test_a_subclass_stays_what_it_is():
    mine = Mine.build([1, 2], fpr=0.1)
    for twin in (pickle.loads(pickle.dumps(mine)), mine.copy(), mine | mine):
        assert type(twin) is Mine
        assert 1 in twin


def test_what_is_not_bytes_is_named():
    for data in ("text", [1, 2], None, np.zeros(4)):
        with pytest.raises(TypeError, match="data must be bytes or a buffer of them, not "):
            tamis.from_bytes(data)


if __name__ == "__main__":  # until 0.1.0 is released; frozen from then on
    for name, filter_ in [
        *golden_filters(),
        ("v1-staticfunction", golden_function()),
        ("v1-learnedbloom", golden_learned()),
        ("v1-stablelearned", golden_stable_learned()),
        *golden_models(),
    ]:
        filter_.save(GOLDEN / f"{name}.tamis")
    for name, save in golden_containers():
        save(GOLDEN / f"{name}.tamis")
    save_golden_index(GOLDEN / "v1-skipping.tamis")
