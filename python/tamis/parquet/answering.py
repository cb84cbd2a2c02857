"""What an answer is made from: files, zones and filters as they were at one moment."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from tamis.collection import Collection
from tamis.errors import FormatError
from tamis.parquet import columns as families
from tamis.parquet.lake import Lake, Look
from tamis.parquet.manifest import Manifest
from tamis.parquet.reading import Options, unified
from tamis.planning.collection.allocation import Method
from tamis.planning.collection.curves import Floats, Ints

Flags = npt.NDArray[np.bool_]

_GROUP = 40  # bytes per row group of the arrays of `State` and of what is counted


@dataclass(frozen=True)
class State:
    """The index at one moment; replaced as a whole, so that no answer sees half a change."""

    lake: Lake
    options: Options
    manifest: Manifest
    collection: Collection | None
    """The filters: that of column c of row group i is number ``len(columns)``·i + c."""
    utility: Floats
    order: Ints = field(init=False)
    """The row groups, the most used first."""
    starts: Ints = field(init=False)
    owners: Ints = field(init=False)
    """The number of each row group's file."""

    def __post_init__(self) -> None:
        starts = self.manifest.starts
        derived = {
            "order": np.argsort(-self.utility, kind="stable"),
            "starts": starts,
            "owners": np.repeat(np.arange(len(starts) - 1), np.diff(starts)),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def sources(self) -> dict[str, Any]:
        """What must be known to read all files without an index."""
        columns = list(self.manifest.columns.items())
        return {**self.lake.to_json(), "columns": columns, "options": asdict(self.options)}

    @property
    def own_bytes(self) -> int:
        """About what is in memory beside the filters."""
        return self.manifest.size_in_bytes + _GROUP * len(self.utility)

    @property
    def least_bytes(self) -> int:
        """The smallest budget."""
        least = 0 if self.collection is None else self.collection.least_budget
        return self.own_bytes + least

    def check(self, memory: int | None) -> None:
        """Refuse a budget that is too small."""
        if memory is not None and memory < self.least_bytes:
            raise ValueError(
                f"memory is {memory} bytes; {len(self.manifest.files)} files with "
                f"{len(self.utility)} row groups take {self.least_bytes} without a bit of filters"
            )

    def within(self, memory: int | None, method: Method = "optimal") -> State:
        """Keep as many bits of the filters as a budget allows, in a copy."""
        self.check(memory)
        if self.collection is None:
            return self
        collection = copy.copy(self.collection)
        weights = np.repeat(self.utility, len(self.manifest.columns))
        budget = None if memory is None else memory - self.own_bytes
        collection.allocate(budget=budget, utility=weights, method=method)
        return State(self.lake, self.options, self.manifest, collection, self.utility)

    def may_hold(self, predicates: Sequence[families.Predicate]) -> tuple[Flags, int]:
        """Tell which row groups may hold rows that meet all predicates; filters found damaged."""
        may = np.ones(len(self.utility), np.bool_)
        names = list(self.manifest.columns)
        collection = self.collection
        damaged = may.size * len(names) if collection is None else len(collection.damaged)
        for predicate in predicates:
            if predicate.null:
                continue
            column = names.index(predicate.column)
            codes = predicate.codes
            low, high = self.manifest.low[column], self.manifest.high[column]
            may &= np.searchsorted(codes, low) < np.searchsorted(codes, high, side="right")
            if collection is None:
                continue
            found = np.zeros(len(may), np.bool_)
            try:
                for keys in predicate.keys:
                    _, ids = collection.candidates_many(keys, part=column)
                    found[ids // len(names)] = True
            except FormatError:  # in what hybrid mode reads
                damaged += 1
                continue
            may &= found
        return may, damaged

    def places(self, groups: Ints) -> tuple[Ints, Ints]:
        """Return the files of row groups, and their numbers there."""
        owners = self.owners[groups]
        return owners, groups - self.starts[owners]

    def damaged_files(self) -> set[int]:
        """Return the numbers of files of which a filter is damaged."""
        if self.collection is None:
            return set(range(len(self.manifest.files)))
        groups = self.collection.damaged // len(self.manifest.columns)
        return set(self.owners[groups].tolist())


@dataclass(frozen=True)
class Answer:
    """The row groups to read, the most used first, and the files to read whole."""

    state: State
    groups: Ints
    ranks: Ints
    among: int
    unindexed: list[str]

    @classmethod
    def of(cls, state: State, look: Look, may: Flags) -> Answer:
        """Take the row groups of files that are as they were."""
        there = look.fresh[state.owners]
        order = state.order[there[state.order]]
        ranks = np.flatnonzero(may[order])
        return cls(state, order[ranks], ranks, len(order), [*look.stale, *look.unknown])

    def reach(self, visited: int) -> int:
        """How many row groups were decided about when so many were read."""
        if visited == len(self.groups):
            return self.among
        return int(self.ranks[visited - 1]) + 1 if visited else 0


def saved_filters(path: str, frame: int, manifest: Manifest, hybrid: bool) -> Collection | None:
    """Open the filters of an index; None if they are damaged, or not those of the manifest."""
    parts = len(manifest.columns)
    try:
        collection = Collection.open(
            path, parts=parts, length=frame, hybrid=hybrid, salvage=True, allocate=False
        )
    except FormatError:
        return None
    return collection if len(collection) == parts * len(manifest.rows) else None


def unread(lake: Lake, columns: Sequence[Sequence[str]] | None) -> Manifest:
    """Make a manifest that knows no file: all are read whole, for columns that can be indexed."""
    schemas = []
    for path in lake.files():
        with lake.filesystem.open_input_file(path) as source:
            schemas.append(pq.read_schema(source))
    schema = unified(schemas)
    found = {field.name: families.family(field.type) for field in schema}
    known = found.items() if columns is None else columns
    named = {name: kind for name, kind in known if kind is not None}
    none = np.zeros((len(named), 0), np.uint64)
    return Manifest(named, schema, (), np.zeros(0, np.int64), none, none)
