"""Indexes whose manifest or sources were forged are refused, or work."""

import itertools
import json

import pytest
from frames import with_documents
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import SOAK

import tamis

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
fs = pytest.importorskip("pyarrow.fs")

from lakes import forge, users, with_sources  # noqa: E402

from tamis.parquet import SkippingIndex, manifest  # noqa: E402


def nodes(content, path=()):
    """The places of all values in JSON."""
    yield path
    if isinstance(content, dict | list):
        items = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in items:
            yield from nodes(value, (*path, key))


def nested(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


JSON = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from(
        [0, 1, -1, 2**31, 2**63, 2**64, 10**400, 0.5, float("nan"), float("inf"), 1e400]
    ),
    st.sampled_from(
        ["", "\0", "\ud800", "..", "/", "*", "[z-a]", "**/" * 9, "x" * 5000, "y/" * 3000]
    ),
    st.sampled_from(
        ["user", "n", "text", "decimal", "auto", "s3", "file", "local", "AAAA", "AAAAAAAAAAA="]
    ),
    st.text(max_size=5),
    st.sampled_from([[], {}, [[]], [["user", "text"]], [["n", "integer"], ["n", "integer"]]]),
    st.just(nested(500)),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@pytest.fixture(scope="module")
def small_lake(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forged")
    pq.write_table(users(0, 60), folder / "a.parquet", row_group_size=20)
    pq.write_table(users(60, 60), folder / "b.parquet", row_group_size=20)
    ix = SkippingIndex.build(folder, columns=["user", "n"], path=folder / "index.tamis")
    ix.remove(folder / "b.parquet")
    return folder, (folder / "index.tamis").read_bytes()


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ([], "the sources of the index do not name its file"),
        (["{folder}/b*.parquet"], "the sources of the index do not name its file"),
    ],
    ids=["emptied", "of another file"],
)
def test_sources_that_lose_files_are_refused(small_lake, sources, said):
    folder, content = small_lake
    path = folder / "index.tamis"
    path.write_bytes(content)
    forge(path, with_sources(sources=[each.format(folder=folder) for each in sources]))
    with pytest.raises(tamis.FormatError, match=said):
        SkippingIndex.open(path)


def test_copies_of_sources_that_differ_are_refused(small_lake):
    folder, content = small_lake
    path = folder / "index.tamis"
    turn = itertools.count()

    def change(document):
        return document if next(turn) else with_sources(sources=[])(document)

    path.write_bytes(content)
    forge(path, change)
    with pytest.raises(tamis.FormatError, match="the two copies of the sources of the index"):
        SkippingIndex.open(path)


@settings(max_examples=3000 if SOAK else 300)
@given(st.data())
def test_a_forged_manifest_is_refused_or_works(small_lake, data):
    folder, content = small_lake
    path = folder / "index.tamis"
    path.write_bytes(content)
    both = data.draw(st.booleans())
    value = data.draw(JSON)
    turn = itertools.count()

    def change(content):
        if next(turn) == 1 and not both:
            return content
        places = [place for place in nodes(content) if place]
        *above, last = data.draw(st.sampled_from(places))
        holder = content
        for key in above:
            holder = holder[key]
        if data.draw(st.integers(0, 5)) == 0:
            del holder[last]
        else:
            holder[last] = value
        return content

    forge(path, change)
    works_or_refused(path)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"sources":' * 50_000, "{", "5", "NaN", "9" * 5000, '{"sources": {}}']
)
def test_a_manifest_of_any_json_is_refused(small_lake, text):
    folder, content = small_lake
    path = folder / "index.tamis"
    for changed in ({0}, {1}, {0, 1}):
        turn = itertools.count()
        forged = with_documents(
            content,
            lambda own: text.encode() if next(turn) in changed else own,  # noqa: B023
        )
        path.write_bytes(forged)
        works_or_refused(path)


def works_or_refused(path):
    """Whether an index is refused, or answers all queries."""
    try:
        ix = SkippingIndex.open(path)
    except tamis.FormatError:
        return
    except ValueError as error:
        assert str(error).startswith("source must be given: ")  # noqa: PT017
        return
    for where in ({name: None} for name in ix.columns):
        ix.row_groups(where)
        assert ix.dataset(where, on_error="skip").to_table().num_rows >= 0
        assert ix.scan(where, on_error="skip").num_rows >= 0
    assert ix.size_in_bytes >= 0
    assert 0 <= ix.expected_fpr <= 1
    ix.allocate(memory=10**6, utility="accesses")


@pytest.mark.parametrize("fpr", [0.0, 1e-13, 1.0, "0.1"])
def test_a_rate_that_no_filter_has_is_refused_when_the_index_is_opened(fpr):
    options = {"kind": "auto", "fpr": 1e-4, "seed": 0, "utility": None}
    sources = {
        "filesystem": "local", "uri": None, "sources": ["/lake"], "excluded": [],
        "columns": [["user", "text"]], "options": options,
    }  # fmt: skip
    assert manifest.read_sources(sources)["options"] == options
    with pytest.raises(ValueError, match="fpr"):
        manifest.read_sources({**sources, "options": {**options, "fpr": fpr}})


def test_a_manifest_with_a_path_twice_is_refused(small_lake):
    """One of the two entries would say that row groups are at places where they are not."""
    folder, content = small_lake
    (folder / "index.tamis").write_bytes(content)
    valid = manifest.read(str(folder / "index.tamis")).manifest
    document = json.loads(json.dumps(valid.concatenate(valid).to_json()))
    with pytest.raises(ValueError, match="files of the index"):
        manifest.Manifest.from_json(document)
    for number, file in enumerate(document["files"]):
        file[0] = f"{number}.parquet"
    assert len(manifest.Manifest.from_json(document).files) == 2
