"""JSON that was changed by someone else: read as what it says, or refused with `ValueError`."""

import json
import warnings

import pytest
from frames import with_documents, with_values
from hypothesis import example, given
from hypothesis import strategies as st
from reference import frame, parts
from stand_in import tiny

import tamis
from tamis.guard import snapshot
from tamis.planning.adaptive_stacked import AdaptivePlan
from tamis.planning.plan import Plan

WORKLOAD = tamis.Workload.zipf(1.0, universe=5000, sample=1000)
PLANS = [
    json.loads(tamis.plan(1000, WORKLOAD, bits_per_key=10, layer=layer, last=last).to_json())
    for layer, last in (("bloom", "alternating"), ("cuckoo", "alternating"), ("ribbon", "exact"))
]
ADAPTIVE = tiny("quotient", keys=range(10)).to_bytes()
DEEP = "[" * 100_000

strange = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.sampled_from([2**63, 2**64, -(2**63), 10**400]),
    st.floats(),
    st.sampled_from(["", "bloom", "function", "exact", "blocked", "columns", "\ud800", "1"]),
    st.lists(st.integers(0, 3), max_size=3),
    st.dictionaries(st.sampled_from(["kind", "x"]), st.none(), max_size=2),
)


def places(node, path=()):
    """Every place in a JSON document."""
    yield path
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from places(value, (*path, key))


@st.composite
def forged(draw, valid):
    """The text of a document with one to three places replaced, removed or doubled."""
    text = json.dumps(valid)
    for _ in range(draw(st.integers(1, 3))):
        document = json.loads(text)
        *path, last = draw(st.sampled_from([place for place in places(document) if place]))
        parent = document
        for key in path:
            parent = parent[key]
        change = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add"]))
        if change == "replace":
            parent[last] = draw(strange)
        elif change == "remove":
            del parent[last]
        elif isinstance(parent, dict):
            parent[draw(st.sampled_from(["workload", "more"]))] = draw(strange)
        else:
            parent.append(parent[last])
        text = json.dumps(document)
    return text


def texts_of(*valid):
    return st.one_of(*(forged(document) for document in valid))


@given(texts_of(*PLANS))
@example("")
@example("[]")
@example("null")
@example('"layers"')
@example(DEEP)
@example('{"layers": ' + DEEP)
@example(json.dumps({**PLANS[0], "budget": 1e308}))
def test_plans(text):
    try:
        plan = Plan.from_json(text)
    except ValueError:
        return
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert plan.bits >= 0
    assert plan.rate_at(0.5) >= 0
    for layer in plan.layers:
        layer.coarser()
    str(plan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tamis.CapacityWarning)
        try:
            built = plan.build(range(50), negatives=range(100, 300))
        except ValueError:
            return
    assert built.contains(range(50)).all()


@given(st.data())
def test_adaptive_plans(data):
    """In a file they are part of a filter, so the error is `FormatError`."""
    *head, sections = parts(ADAPTIVE)
    *rest, (type_, piece, valid) = sections
    document = json.loads(valid)
    for name in ("ranks", "mass"):  # short, so that other places are found too
        document[name] = document[name][:4]
    text = data.draw(forged(document)).encode()
    try:
        plan = AdaptivePlan.from_json(text)
    except ValueError:
        with pytest.raises(tamis.FormatError):
            tamis.from_bytes(frame(*head, [*rest, (type_, piece, text)]))
        return
    assert AdaptivePlan.from_json(plan.to_json()) is not None
    f = tamis.from_bytes(frame(*head, [*rest, (type_, piece, text)]))
    assert f.contains(range(10)).all()
    repr(f)


@pytest.mark.parametrize("text", ["", "[]", "null", "1e999", DEEP, '{"stack": ' + DEEP])
def test_what_is_no_adaptive_plan(text):
    with pytest.raises(ValueError, match="adaptive stack"):
        AdaptivePlan.from_json(text.encode())


def test_an_adaptive_plan_without_mass():
    *_, sections = parts(ADAPTIVE)
    document = json.loads(sections[-1][2])
    for name, value in (("mass", []), ("ranks", 1.0), ("mass", [10**400]), ("mean_fpr", 10**400)):
        with pytest.raises(ValueError, match="adaptive stack"):
            AdaptivePlan.from_json(json.dumps({**document, name: value}).encode())


KNOWN = {"unseen": 0.1, "removed": 3, "present": 0.2, "error": 0}


@given(st.one_of(forged(KNOWN), forged({"zipf": [1.0, 100, 50], **KNOWN})))
@example(DEEP)
@example("[]")
@example("null")
def test_workloads(tmp_path_factory, text):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path_factory.getbasetemp() / "forged.parquet"
    table = pa.table({"value": [5, 6, 7], "count": [3, 2, 1]})
    pq.write_table(table.replace_schema_metadata({"tamis": text}), path)
    try:
        workload = tamis.Workload.load(path)
    except tamis.FormatError:
        return
    str(workload)
    tamis.plan(100, workload, bits_per_key=10, layer="bloom", rates="equal")


def test_workloads_of_other_columns(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    for columns in (
        {"count": ["a", "b"]},
        {"count": [[1], [2]]},
        {"count": [None, 1]},
        {"count": [1, 2]},
        {"count": [-1]},
        {"count": [float("nan")]},
        {"value": [1]},
        {},
    ):
        table = pa.table(columns).replace_schema_metadata({"tamis": json.dumps(KNOWN)})
        pq.write_table(table, tmp_path / "w")
        with pytest.raises(tamis.FormatError, match="w is not a saved workload"):
            tamis.Workload.load(tmp_path / "w")
    for damaged in (b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1"):
        (tmp_path / "w").write_bytes(damaged)
        with pytest.raises(tamis.FormatError):
            tamis.Workload.load(tmp_path / "w")
    with pytest.raises(FileNotFoundError):
        tamis.Workload.load(tmp_path / "nowhere")


def test_snapshots(tmp_path):
    """Their checksums are no secret, so the document may say anything."""
    path = tmp_path / "snapshot"
    snapshot.save(path, tamis.Bloom.build(range(10), fpr=0.1), b"store", "7")
    valid = path.read_bytes()
    for fields in (
        {"store": "00", "position": 1},
        {"store": 7, "position": "1"},
        {"store": "0"},
        {},
    ):
        path.write_bytes(with_values(valid, lambda _, fields=fields: fields))
        with pytest.raises(tamis.FormatError, match="snapshot"):
            snapshot.load(path, None)
    for text in (b"", b"[]", b"null", b"{}", DEEP.encode(), b"\xff", b'{"check": 1}'):
        path.write_bytes(with_documents(valid, lambda _, text=text: text))
        with pytest.raises(tamis.FormatError, match="snapshot"):
            snapshot.load(path, None)
