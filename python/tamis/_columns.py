"""Columns of values (lists, NumPy arrays, Arrow columns): take and join without a Python loop."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def column(keys: Any) -> Any:
    """Return keys as a list, a NumPy array or a pyarrow column, without a copy where possible."""
    if isinstance(keys, list | np.ndarray | str | bytes | bytearray):
        return keys  # a single key is rejected where it is hashed
    if hasattr(keys, "__arrow_c_stream__"):
        return _takeable(pyarrow("an Arrow column").chunked_array(keys))
    if hasattr(keys, "__arrow_c_array__"):
        return _takeable(pyarrow("an Arrow column").array(keys))
    if not isinstance(keys, Iterable):
        raise TypeError(
            "keys must be a list, a NumPy array, an Arrow column or another iterable of keys, "
            f"not {type(keys).__name__}"
        )
    return list(keys)


def pieces(keys: Any) -> Iterable[Any]:
    """Yield the keys of an iterator in lists of bounded length; anything else as it is."""
    if not isinstance(keys, Iterator) or hasattr(keys, "__arrow_c_stream__"):
        yield keys
        return
    while piece := list(itertools.islice(keys, _PIECE)):
        yield piece


_PIECE = 1 << 16
"""Keys of an iterator that are held at a time."""


def _takeable(values: Any) -> Any:
    """Cast string and binary views, which pyarrow's ``take`` and ``filter`` do not support."""
    arrow = pyarrow("an Arrow column")
    views = {arrow.string_view(): arrow.large_string(), arrow.binary_view(): arrow.large_binary()}
    return values.cast(views[values.type]) if values.type in views else values


def keep(values: Any, mask: npt.NDArray[np.bool_]) -> Any:
    """Return the values of an Arrow column, or the rows of a table or batch, where mask is true."""
    if not hasattr(values, "schema"):
        return _takeable(values).filter(mask).cast(values.type)
    columns = [keep(each, mask) for each in values.columns]
    if not columns:
        return values.filter(mask)
    return type(values).from_arrays(columns, schema=values.schema)


def drop_null(values: Any) -> Any:
    """Return the values of an Arrow column that are not null, to be hashed."""
    return _takeable(values).drop_null() if values.null_count else values


def take(values: Any, indices: npt.NDArray[np.int64]) -> Any:
    """Return the values at these indices."""
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
    """Concatenate columns: in their own type if all have the same, otherwise as a list."""
    first = columns[0]
    if len(columns) == 1:
        return first
    if all(isinstance(each, np.ndarray) for each in columns):
        # Concatenating signed and unsigned integers would give floats.
        if all(each.dtype.kind == first.dtype.kind for each in columns):
            return np.concatenate(columns)
    elif all(getattr(each, "type", None) == getattr(first, "type", 0) for each in columns):
        chunks = [chunk for each in columns for chunk in getattr(each, "chunks", [each])]
        return pyarrow("an Arrow column").chunked_array(chunks, type=first.type)
    return [value for each in columns for value in as_list(each)]


def as_list(values: Any) -> list[Any]:
    """Return the values as a list of Python objects."""
    if isinstance(values, list):
        return values
    return list(values.tolist() if isinstance(values, np.ndarray) else values.to_pylist())


def show_key(key: Any) -> str:
    """Format a key for a message; bytes that are text, such as the lines of a file, as text.

    >>> show_key(b"ada"), show_key("ada"), show_key(7), show_key(bytes([255]))[0]
    ("'ada'", "'ada'", '7', 'b')
    """
    if isinstance(key, bytes):
        try:
            key = key.decode()
        except UnicodeDecodeError:
            return repr(key)
    return repr(key)


def pyarrow(what: str) -> Any:
    """Import pyarrow, or raise ImportError that names the extra to install."""
    try:
        import pyarrow
    except ImportError:
        raise ImportError(f"{what} needs pyarrow: pip install tamis[arrow]") from None
    return pyarrow
