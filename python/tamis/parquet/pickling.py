"""Indexes that are sent to other processes, by their paths."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tamis.collection.origin import check_picklable
from tamis.parquet.answering import Memory
from tamis.planning.collection.curves import Floats

if TYPE_CHECKING:
    from tamis.parquet.index import SkippingIndex


def reduce_index(index: SkippingIndex) -> tuple[Any, ...]:
    """Return what a pickle of an index has: its path, its sources, and how it was opened."""
    state, location, lake = index._state, index._location, index._state.lake
    if location is None or index._rewrite:
        raise TypeError(
            "an index can be pickled only as it is in a file, because the pickle has its path: "
            "build it with a path, or call refresh() if it is damaged"
        )
    check_picklable(location.path, location.filesystem, "an index")
    source: list[str] | None = None  # files below the folder of the index need none
    if lake.local and lake.folders is None:
        source = list(lake.sources)
    elif not lake.local:
        source = index._given
        if source is None and location.target is None:
            check_picklable("", lake.filesystem, "an index of files")
    for each in source or ():
        check_picklable(each, None, "an index of files")
    path = location.path if location.target else os.path.abspath(location.path)
    options = {
        "source": source,
        "cache": location.cache,
        "hybrid": state.collection is not None and state.collection.hybrid,
        "immutable": lake.immutable,
        "recheck": index._watch.recheck,
        "threads": index._threads,
    }
    return _reopened, (type(index), path, options, index._memory, state.utility)


def _reopened(
    cls: type[SkippingIndex],
    path: str,
    options: dict[str, Any],
    memory: Memory | None,
    utility: Floats,
) -> SkippingIndex:
    index = cls.open(path, memory=memory, **options)
    if len(index) == len(utility) and (index.utility != utility).any():
        index.allocate(memory=memory, utility=utility)
    return index
