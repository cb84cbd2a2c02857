"""Collections that were built in parts, and collections that are sent to other processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tamis import _native
from tamis._objects import StorageOptions, is_object
from tamis._types import FilePath
from tamis.collection import storage
from tamis.errors import IncompatibleError
from tamis.planning.collection.curves import Weights

if TYPE_CHECKING:
    from tamis.collection.collection import Collection


def merge_filters(
    parts: Sequence[Collection], path: FilePath | None, key: bytes | None, filesystem: Any
) -> tuple[_native.Filters, Weights]:
    """Copy the full filters of collections to a new one, in the order of their names.

    Of collections with several parts, such as the columns of row groups, the sets that belong
    together stay together, in the order of the first one of each.
    """
    if not parts:
        raise ValueError("parts is empty: pass one or more collections to merge")
    widths = {part._parts for part in parts}
    if len(widths) > 1:
        raise IncompatibleError(f"parts must be opened with the same parts=, not {sorted(widths)}")
    width = widths.pop()
    names = [name for part in parts for name in part.names]
    first = names[::width]
    order = np.array(sorted(range(len(first)), key=first.__getitem__), np.int64)
    order = (order[:, None] * width + np.arange(width)).reshape(-1)
    repeated = [name for name, after in zip(sorted(names), sorted(names)[1:]) if name == after]  # noqa: B905
    if repeated:
        raise ValueError(f"parts must have different names; {repeated[0]!r} is there twice")
    filters = copy_filters([part._filters for part in parts], names, path, key, filesystem)
    filters.reorder(order.tolist())
    return filters, np.concatenate([part._utility for part in parts])[order]


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


class Origin(NamedTuple):
    """The file that a collection was opened from or written to, by which it is pickled."""

    path: str
    options: dict[str, Any]
    filters: _native.Filters
    """The filters in the file: those of a collection that was changed since are others."""
    utility: Weights

    @classmethod
    def of(
        cls,
        path: Any,
        filters: _native.Filters,
        utility: Weights,
        *,
        filesystem: Any = None,
        **options: Any,
    ) -> Origin | None:
        """Note where filters are, unless the file is temporary."""
        if path is None or not isinstance(path, str | bytes | os.PathLike):
            return None
        if filesystem is not None:
            options["filesystem"] = filesystem
        remote = is_object(path, filesystem)
        name = os.fsdecode(path) if remote else os.path.abspath(os.fsdecode(path))
        return cls(name, options, filters, utility)


def check_picklable(filesystem: Any, what: str) -> None:
    """Raise if a pickle would contain credentials."""
    if isinstance(filesystem, StorageOptions):
        raise TypeError(
            f"{what} that was opened with storage_options cannot be pickled, because the pickle "
            "would contain them; set them in the environment"
        )
    if filesystem is not None:
        raise TypeError(
            f"{what} in a file system that was given cannot be pickled, because the pickle would "
            "contain the credentials of the file system; open it by a URL"
        )


def saved_origin(origin: Origin | None, filters: _native.Filters, what: str) -> Origin:
    """Return where filters are saved; raise if they cannot be pickled by their path."""
    if filters.seed is None:
        raise TypeError(
            f"{what} with a secret key cannot be pickled, because the pickle would contain the "
            "key; open its file in the other process, with key=..."
        )
    if origin is None or origin.filters is not filters:
        raise TypeError(
            f"{what} can be pickled only as it is in a file, because the pickle has its path: "
            "call save(path) first"
        )
    check_picklable(origin.options.get("filesystem"), what)
    return origin


def reduce_collection(collection: Collection) -> tuple[Any, ...]:
    """Return what a pickle of a collection has: its path, and how it was opened."""
    origin = saved_origin(collection._origin, collection._filters, "a collection")
    planned = collection._planned
    options = {
        **origin.options,
        "hybrid": collection.hybrid,
        "parts": collection._parts,
        "salvage": collection._salvage,
    }
    utility = None if origin.utility is collection._utility else collection.utility
    present = collection._present if collection.hybrid else None
    return _reopened, (
        type(collection), origin.path, options, planned.budget, utility, present, planned.method,
    )  # fmt: skip


def _reopened(
    cls: type[Collection],
    path: str,
    options: dict[str, Any],
    budget: int | None,
    utility: Any,
    present: Any,
    method: Any,
) -> Collection:
    collection = cls.open(path, allocate=False, **options)
    collection.allocate(budget=budget, utility=utility, present=present, method=method)
    return collection
