"""Where a collection is saved: a pickle has the path instead of the content."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from tamis import _native
from tamis._objects import StorageOptions, is_object
from tamis.planning.collection.curves import Weights

if TYPE_CHECKING:
    from tamis.collection.collection import Collection


class Origin(NamedTuple):
    """The file that a collection was opened from or written to."""

    path: str
    options: dict[str, Any]
    filters: _native.Filters
    """The filters in the file; a collection has other filters if it changed since."""
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
        """Return where filters are, or None if the file is temporary."""
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
            f"{what} must be saved before it is pickled, because the pickle only has its path: "
            "call save(path) first"
        )
    check_picklable(origin.options.get("filesystem"), what)
    return origin


def reduce_collection(collection: Collection) -> tuple[Any, ...]:
    """Return the content of a pickle of a collection: its path, and how to open it."""
    memory = collection._memory
    origin, inputs = saved_origin(collection._origin, memory.filters, "a collection"), memory.inputs
    options = {
        **origin.options,
        "hybrid": collection.hybrid,
        "parts": inputs.parts,
        "salvage": inputs.salvage,
    }
    utility = None if origin.utility is inputs.weights else inputs.utility
    present = inputs.present if collection.hybrid else None
    return _reopened, (
        type(collection),
        origin.path,
        options,
        memory.allocation.budget,
        utility,
        present,
        memory.allocation.method,
    )


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
