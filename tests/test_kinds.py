"""The table of kinds, against what files and Python know of each kind."""

import re
from pathlib import Path

import pytest

import tamis
from contract import SPECIMENS
from reference import frame, parts
from tamis import _native
from tamis.planning import layers

KINDS = {row.number: row for row in _native.kinds()}


def test_every_number_of_the_format_has_a_row():
    text = (Path(__file__).parent.parent / "docs" / "format.md").read_text(encoding="utf-8")
    listed = re.search(r"\| kind: (.*) \|", text)
    assert listed
    assert sorted(KINDS) == [int(kind.split()[0]) for kind in listed[1].split(", ")]


def test_no_name_or_number_is_taken_twice():
    rows = _native.kinds()
    assert len({row.name for row in rows}) == len({row.number for row in rows}) == len(rows)


def test_planning_knows_the_layers():
    rows = {row.name: row for row in _native.kinds() if row.layer}
    assert set(rows) == set(layers.KINDS)
    for name, known in layers.KINDS.items():
        assert (rows[name].inserts, rows[name].deletes) == (known.inserts, known.deletes)


@pytest.mark.parametrize("specimen", SPECIMENS, ids=str)
def test_classes_offer_what_their_kind_can_do(specimen):
    frame = specimen.build(range(100), fpr=0.01).to_bytes()
    row, cls = KINDS[int.from_bytes(frame[10:12], "little")], specimen.cls
    # Where that depends on the filter, the class has a property, and the row says no.
    offered = [getattr(cls, name) is True for name in ("inserts", "deletes", "bounded")]
    assert [row.inserts, row.deletes, row.bounded] == offered


@pytest.mark.parametrize("specimen", SPECIMENS, ids=str)
def test_no_kind_holds_itself(specimen):
    """Otherwise bytes could choose how deep opening them recurses."""
    outer = specimen.build(range(100), fpr=0.01).to_bytes()
    kind, hash_id, tag, *numbers, contents = parts(outer)
    itself = 3, 0, frame(kind, 0, 0, *numbers, contents)
    for index in (i for i, (type_, _, _) in enumerate(contents) if type_ == 3):
        deeper = [*contents[:index], itself, *contents[index + 1 :]]
        with pytest.raises(tamis.FormatError, match="is not one"):
            tamis.from_bytes(frame(kind, hash_id, tag, *numbers, deeper))
