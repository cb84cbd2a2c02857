"""Merge collections of different sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tamis import _native
from tamis._types import FilePath
from tamis.collection import storage
from tamis.collection.allocation_inputs import AllocationInputs
from tamis.collection.utility import Accesses
from tamis.errors import IncompatibleError

if TYPE_CHECKING:
    from tamis.collection.collection import Collection


def merge_filters(
    parts: Sequence[Collection], path: FilePath | None, key: bytes | None, filesystem: Any
) -> tuple[_native.Filters, AllocationInputs]:
    """Copy the full filters of collections to a temporary file, in the order of their names.

    Sets that belong together, such as the columns of a row group, stay together, in the order of
    the name of the first.
    """
    if not parts:
        raise ValueError("parts is empty: pass one or more collections to merge")
    widths = {part._memory.inputs.parts for part in parts}
    if len(widths) > 1:
        raise IncompatibleError(f"parts must be opened with the same parts=, not {sorted(widths)}")
    width = widths.pop()
    names = [name for part in parts for name in part.names]
    first = names[::width]
    order = np.array(sorted(range(len(first)), key=first.__getitem__), np.int64)
    order = (order[:, None] * width + np.arange(width)).reshape(-1)
    repeated = [name for name, after in zip(sorted(names), sorted(names)[1:]) if name == after]  # noqa: B905
    if repeated:
        raise ValueError(f"parts must have different names; {repeated[0]!r} occurs twice")
    full = [part._memory.filters for part in parts]
    filters = copy_filters(full, names, path, key, filesystem)
    filters.reorder(order.tolist())
    weights = np.concatenate([part._memory.inputs.weights for part in parts])[order]
    return filters, AllocationInputs(weights, Accesses(), parts=width, unsaved=True)


def copy_filters(
    parts: Sequence[_native.Filters],
    names: Sequence[str],
    path: FilePath | None,
    key: bytes | None,
    filesystem: Any = None,
) -> _native.Filters:
    """Copy all filters of parts, under these names."""
    seed = parts[0].seed
    if seed is None and key is None:
        raise ValueError("key must be given: the parts have a secret key")
    filters = storage.create_filters(path, seed or 0, key, filesystem=filesystem)
    start = 0
    for part in parts:
        filters.copy_from(part, range(len(part)), names[start : start + len(part)])
        start += len(part)
    return filters
