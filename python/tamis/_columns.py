"""Columns of values in whatever form they came: taken from, joined, without a loop over them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def column(keys: Any) -> Any:
    """Return keys as a list, a NumPy array or a pyarrow column, whichever they are nearest to."""
    if isinstance(keys, list | np.ndarray):
        return keys
    if hasattr(keys, "__arrow_c_stream__"):
        found = pyarrow("an Arrow column").chunked_array(keys)
        return found.combine_chunks() if found.num_chunks == 1 else found
    if hasattr(keys, "__arrow_c_array__"):
        return pyarrow("an Arrow column").array(keys)
    return list(keys)


def take(values: Any, indices: npt.NDArray[np.int64]) -> Any:
    """Return the values at these indices, in their order."""
    if isinstance(values, list):
        match indices.tolist():
            case []:
                return []
            case [index]:
                return [values[index]]
            case several:
                return list(operator.itemgetter(*several)(values))
    return values[indices] if isinstance(values, np.ndarray) else values.take(indices)


def join(columns: Sequence[Any]) -> Any:
    """Return columns one after the other: as they are if they are alike, else as a list."""
    first = columns[0]
    if len(columns) == 1:
        return first
    if all(isinstance(each, np.ndarray) for each in columns):
        kinds = {each.dtype.kind for each in columns}
        # Signed and unsigned integers would meet as floats.
        if len(kinds) == 1:
            return np.concatenate(columns)
    elif not any(isinstance(each, list | np.ndarray) for each in columns):
        if all(each.type == first.type for each in columns):
            chunks = [c for each in columns for c in getattr(each, "chunks", [each])]
            return pyarrow("an Arrow column").chunked_array(chunks, type=first.type)
    return [value for each in columns for value in listed(each)]


def listed(values: Any) -> list[Any]:
    """Return the values as a list of Python objects."""
    if isinstance(values, list):
        return values
    return list(values.tolist() if isinstance(values, np.ndarray) else values.to_pylist())


def pyarrow(what: str) -> Any:
    """Import pyarrow, or say which extra has it."""
    try:
        import pyarrow
    except ImportError:
        raise ImportError(f"{what} needs pyarrow: pip install tamis[arrow]") from None
    return pyarrow
