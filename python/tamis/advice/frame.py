"""Advice as a pandas or Polars data frame."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any, Literal

from tamis._checks import one_of
from tamis.advice.situation import Choice

_FIRST = ("name", "family", "bits_per_key", "expected_fpr", "fpr_bound", "expected_fnr", "cost")
_LAST = ("absent_time", "present_time", "bits", "keys", "filter", "reason")
_LIBRARIES = ("pandas", "polars")


def to_frame(choices: Sequence[Choice], library: Literal["pandas", "polars"] | None) -> Any:
    """Return one row per choice, with the columns of measured values if they were measured."""
    measured = tuple(
        name
        for name in Choice.__dataclass_fields__
        if name.startswith("measured_") and any(getattr(each, name) is not None for each in choices)
    )
    columns = {
        name: [getattr(each, name) for each in choices] for name in (*_FIRST, *measured, *_LAST)
    }
    return _library(library).DataFrame(columns)


def _library(name: str | None) -> Any:
    if name is not None:
        one_of("library", name, _LIBRARIES)
    # What the caller already works with goes first.
    names = (name,) if name else sorted(_LIBRARIES, key=lambda each: each not in sys.modules)
    for each in names:
        try:
            return importlib.import_module(each)
        except ImportError:
            continue
    raise ImportError(f"a data frame needs {' or '.join(names)}: pip install {names[0]}")
