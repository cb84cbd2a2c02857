"""A kind of filter has a native row, a class, a specimen and a page: none may be missing."""

import ast
import importlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
from contract import SPECIMENS
from reference import frame, parts

import tamis
from tamis import _native, filters
from tamis.filters import CLASSES
from tamis.filters.contract import Filter
from tamis.planning.kinds import FUNCTION, KINDS, LayerKind

ROOT = Path(__file__).parents[2]
NATIVE = {row.name: row for row in _native.kinds()}
NUMBERS = {row.number: row for row in _native.kinds()}
NAMES = sorted({*NATIVE, *KINDS, *CLASSES})

# Opened by classes of their own, a part at a time, not by `tamis.load`.
INDEXES = {
    "collection": "tamis", "text": "tamis.text", "runs": "tamis.collection",
    "skipping": "tamis.parquet", "snapshot": "tamis",
}  # fmt: skip
# Public, but not in `tamis` itself.
ELSEWHERE = {"model": "tamis.learned"}
# Kinds that share the page of another.
PAGES = {
    "extending": "telescoping", "function": "ribbon", "model": "learned", "runs": "collection",
    "skipping": "parquet", "snapshot": "guard",
}  # fmt: skip
# The classes of the native contract, which belong to no kind.
SHARED = {"Stored", "Filter", "Inserting", "Deleting", "Adapting"}


def test_no_name_or_number_is_taken_twice():
    rows = _native.kinds()
    assert len(NATIVE) == len(NUMBERS) == len(rows)


@pytest.mark.parametrize("name", NAMES)
def test_python_plans_the_layers_that_stacks_open(name):
    # A static function ends a stack, but is not chosen as the kind of the layers.
    planned = KINDS[name].layer is not None or KINDS[name] is FUNCTION
    assert NATIVE[name].layer == planned


def test_plans_take_every_kind_that_can_be_a_layer():
    layers = {kind.name for kind in KINDS.values() if kind.layer is not None}
    assert set(get_args(LayerKind)) == {"auto"} | layers


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_has_a_public_class(name):
    public = KINDS[name].filter
    if name in INDEXES:
        assert hasattr(importlib.import_module(INDEXES[name]), public)
        return
    assert CLASSES[name].__name__ == public
    if name in ELSEWHERE:
        assert hasattr(importlib.import_module(ELSEWHERE[name]), public)
        return
    assert public in filters.__all__
    assert public in tamis.__all__
    assert getattr(tamis, public) is CLASSES[name]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in INDEXES])
def test_every_kind_has_a_native_class_with_a_stub(name):
    native = next(base for base in CLASSES[name].__mro__ if base.__module__ == _native.__name__)
    assert native.__name__ not in SHARED
    stub = Path(filters.__file__).parents[1].joinpath("_native.pyi").read_text(encoding="utf-8")
    assert native.__name__ in {
        node.name for node in ast.parse(stub).body if isinstance(node, ast.ClassDef)
    }


@pytest.mark.parametrize("name", [name for name in NAMES if name not in INDEXES])
def test_every_filter_has_a_specimen(name):
    if issubclass(CLASSES[name], Filter):
        assert name in {specimen.cls._kind for specimen in SPECIMENS}


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_has_a_page(name):
    page = f"{PAGES.get(name, name)}.md"
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert KINDS[name].filter in text
    assert page in navigation()


def navigation():
    """The pages that the documentation lists: those of mkdocs.yml, and those that its hook adds."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- .*: (\S+\.md)$", text.partition("\nnav:\n")[2], re.MULTILINE)
    assert "hooks: [docs/nav.py," in text
    spec = importlib.util.spec_from_file_location("nav", ROOT / "docs" / "nav.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    config = SimpleNamespace(nav=[*listed, {"Filters": []}], docs_dir=str(ROOT / "docs"))
    hook.on_config(config)
    return [*listed, *config.nav[-1]["Filters"]]


def test_no_page_is_listed_twice():
    assert len(navigation()) == len(set(navigation()))


def test_every_number_of_the_format_has_a_row():
    text = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
    listed = re.search(r"\| kind: (.*) \|", text)
    assert listed
    assert sorted(NUMBERS) == [int(kind.split()[0]) for kind in listed[1].split(", ")]
    described = {int(number) for number in re.findall(r"\*\* \(kind (\d+)\)", text)}
    assert described == set(NUMBERS)


@pytest.mark.parametrize("specimen", SPECIMENS, ids=str)
def test_classes_offer_what_their_kind_can_do(specimen):
    frame = specimen.build(range(100), fpr=0.01).to_bytes()
    row, cls = NUMBERS[int.from_bytes(frame[10:12], "little")], specimen.cls
    # Where that depends on the filter, the class has a property, and the row says no.
    for ability in ("inserts", "deletes", "bounded", "merges"):
        assert getattr(row, ability) == (getattr(cls, ability) is True)
    assert row.forgets == (not cls.one_sided)
    assert row.adapts == hasattr(cls, "adapt")
    assert row.counts == hasattr(cls, "count")


@pytest.mark.parametrize("specimen", SPECIMENS, ids=str)
def test_no_kind_holds_itself(specimen):
    """Otherwise bytes could choose how deep opening them recurses."""
    outer = specimen.build(range(100), fpr=0.01).to_bytes()
    kind, hash_id, tag, *numbers, contents = parts(outer)
    itself = 3, 0, frame(kind, 0, 0, *numbers, contents)
    for index in (i for i, (type_, _, _) in enumerate(contents) if type_ == 3):
        deeper = [*contents[:index], itself, *contents[index + 1 :]]
        with pytest.raises(tamis.FormatError, match="is not a filter"):
            tamis.from_bytes(frame(kind, hash_id, tag, *numbers, deeper))
