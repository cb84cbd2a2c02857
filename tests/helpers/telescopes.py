"""Shared by the tests of filters."""

import pytest

import tamis

SHAPES = [
    (tamis.Telescoping, "growing"),
    (tamis.Telescoping, "block"),
    (tamis.Telescoping, "plain"),
    (tamis.Extending, "growing"),
    (tamis.Extending, "block"),
]


shapes = pytest.mark.parametrize(
    ("cls", "selectors"), SHAPES, ids=lambda value: getattr(value, "__name__", value)
)


def ask(f, remote, asked, batch=4096):
    """Ask for absent keys in batches, adapting after each; how many were taken for present."""
    wrong = 0
    for start in range(0, len(asked), batch):
        part = asked[start : start + batch]
        fooled = part[f.contains(part)]
        wrong += len(fooled)
        if len(fooled):
            f.adapt_many(fooled, remote)
    return wrong
