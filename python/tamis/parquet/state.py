"""The state of an index that a query reads, its answer, and the statistics of queries."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tamis._checks import check_iterable, parse_budget, shown
from tamis._locks import fork_safe_lock
from tamis.collection import Collection
from tamis.collection.allocation_inputs import HALF_LIFE, Accesses, with_unseen
from tamis.errors import FormatError
from tamis.parquet.file_set import FileCheck, FileSet
from tamis.parquet.manifest import Manifest
from tamis.parquet.predicate import Predicate
from tamis.parquet.row_groups import Options
from tamis.parquet.schema import file_schema, join_schema, read_footer
from tamis.planning.collection.allocation import Method
from tamis.planning.collection.curves import Floats, Ints

Flags = npt.NDArray[np.bool_]

OnError: TypeAlias = Literal["raise", "skip"]
"""What to do about files that cannot be read."""

Memory: TypeAlias = int | dict[str, int]
"""A budget in bytes: one for all columns, or one for each."""

Budget: TypeAlias = int | str | Mapping[str, int | str]
"""Bytes of memory, or a size such as "64MB": one for all columns, or one for each."""


def parse_memory(memory: Budget | None) -> Memory | None:
    """Return a budget in bytes."""
    if isinstance(memory, Mapping):
        return {name: parse_budget(size, f"memory[{name!r}]") for name, size in memory.items()}
    return None if memory is None else parse_budget(memory, "memory")


_GROUP = 40  # bytes per row group of the arrays of `State` and of the access counts


@dataclass(frozen=True)
class State:
    """Files, zones and filters of an index; replaced as a whole, so that queries see no mixture."""

    file_set: FileSet
    options: Options
    manifest: Manifest
    collection: Collection | None
    """The filters: column c of row group i is number ``len(columns)``·i + c. None if damaged."""
    utility: Floats
    order: Ints = field(init=False)
    """The row groups by utility, the most used first."""
    starts: Ints = field(init=False)
    """The first row group of each file, and the end."""
    owners: Ints = field(init=False)
    """The file of each row group."""

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
        """Stored twice in the file, to find all data files if the manifest is damaged."""
        columns = list(self.manifest.columns.items())
        return {**self.file_set.to_json(), "columns": columns, "options": asdict(self.options)}

    @property
    def own_bytes(self) -> int:
        """Memory apart from the filters, approximately."""
        return self.manifest.size_in_bytes + _GROUP * len(self.utility)

    @property
    def min_bytes(self) -> int:
        """The smallest possible budget."""
        filters = 0 if self.collection is None else self.collection.min_budget
        return self.own_bytes + filters

    def check(self, memory: Memory | None) -> None:
        """Raise if a budget is too small, or is not one per column."""
        if isinstance(memory, dict):
            if memory.keys() != self.manifest.columns.keys():
                columns = ", ".join(map(repr, self.manifest.columns))
                raise ValueError(
                    f"memory must have a budget for each of the columns {columns}, "
                    f"not for {', '.join(map(repr, memory))}"
                )
            memory = sum(memory.values())
        if memory is not None and memory < self.min_bytes:
            raise ValueError(
                f"memory must be at least {self.min_bytes} bytes for "
                f"{len(self.manifest.files)} files with {len(self.utility)} row groups, "
                f"not {memory}"
            )

    def allocate(self, memory: Memory | None, method: Method = "optimal") -> State:
        """Return a copy that has as many bits of the filters in memory as a budget allows."""
        self.check(memory)
        if self.collection is None:
            return self
        collection = copy.copy(self.collection)
        weights = np.repeat(self.utility, len(self.manifest.columns))
        budget: int | list[int] | None = None
        if isinstance(memory, dict):
            # Each column pays its share of the memory that is not filters.
            total = max(sum(memory.values()), 1)
            each = (memory[name] for name in self.manifest.columns)
            budget = [size - -(-self.own_bytes * size // total) for size in each]
        elif memory is not None:
            budget = memory - self.own_bytes
        collection.allocate(budget=budget, utility=weights, method=method)
        return State(self.file_set, self.options, self.manifest, collection, self.utility)

    def may_match(self, predicates: Sequence[Predicate]) -> tuple[Flags, int]:
        """Return which row groups may match all predicates, and the number of damaged filters."""
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
            except FormatError:  # hybrid mode read damaged bits
                damaged += 1
                continue
            may &= found
        return may, damaged

    def locate(self, groups: Ints) -> tuple[Ints, Ints]:
        """Return the file of each row group, and its number within the file."""
        owners = self.owners[groups]
        return owners, groups - self.starts[owners]

    def numbers_of(self, groups: Iterable[tuple[str, int]]) -> list[int]:
        """Return the numbers of row groups, given by path and number in the file, if indexed."""
        places = {file.path: number for number, file in enumerate(self.manifest.files)}
        what = "an iterable of row groups, as row_groups returns"
        check_iterable("groups", groups, what)
        found = []
        for group in groups:
            if not (isinstance(group, tuple | list) and len(group) == 2):
                raise TypeError(f"groups must be {what}, not {shown(group)}")
            path, number = group
            owner = places.get(path)
            if owner is not None and 0 <= number < self.manifest.files[owner].groups:
                found.append(int(self.starts[owner]) + number)
        return found

    def damaged_files(self) -> set[int]:
        """Return the numbers of the files that have a damaged filter."""
        if self.collection is None:
            return set(range(len(self.manifest.files)))
        groups = self.collection.damaged // len(self.manifest.columns)
        return set(self.owners[groups].tolist())


@dataclass(frozen=True)
class Answer:
    """The row groups to read, the most used first, and the files to read in full."""

    state: State
    groups: Ints
    ranks: Ints
    """The position of each row group in the order of utility."""
    considered: int
    unindexed: dict[str, pq.FileMetaData]
    """Files that are new or changed, to read in full."""
    unreadable: dict[str, str]
    """New or changed files that cannot be read, and why."""
    schema: pa.Schema
    """The common schema of all files."""

    @classmethod
    def of(cls, state: State, files: FileCheck, may: Flags) -> Answer:
        """Select the row groups that may match, of files that have not changed."""
        fresh = files.fresh[state.owners]
        order = state.order[fresh[state.order]]
        ranks = np.flatnonzero(may[order])
        unindexed, unreadable, schema = {}, {}, state.manifest.schema
        for path in (*files.stale, *files.unknown):
            try:
                footer = read_footer(state.file_set, path)
                own = file_schema(footer, state.manifest.columns)
                schema = join_schema(schema, path, own, state.manifest.columns)
                unindexed[path] = footer
            except (FormatError, TypeError, OSError) as error:
                unreadable[path] = str(error)
        return cls(state, order[ranks], ranks, len(order), unindexed, unreadable, schema)

    def check_readable(self, on_error: OnError) -> None:
        """Raise if a file cannot be read, unless such files are to be skipped."""
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip', not {on_error!r}")
        if self.unreadable and on_error == "raise":
            reason = next(iter(self.unreadable.values()))
            more = len(self.unreadable) - 1
            others = f" (and {more} more files, see stats.unreadable)" if more else ""
            raise FormatError(
                f"{reason}{others}; with on_error='skip' the other files are read without it"
            )

    def considered_after(self, read: int) -> int:
        """Return how many row groups were read or skipped by the time ``read`` were read."""
        if read == len(self.groups):
            return self.considered
        return int(self.ranks[read - 1]) + 1 if read else 0


@dataclass
class SkippingStats:
    """What an index has done since it was opened, and the state of its files at the last query."""

    queries: int = 0
    considered: int = 0
    """Row groups that queries had to decide about."""
    skipped: int = 0
    """Row groups that were skipped."""
    read: int = 0
    """Row groups that `SkippingIndex.scan` read."""
    wasted: int = 0
    """Row groups that `SkippingIndex.scan` read and that had no matching row."""
    wasted_seconds: float = 0.0
    rows: int = 0
    """Rows that `SkippingIndex.scan` returned."""
    stale_files: int = 0
    """Files that changed since they were indexed; they are read in full."""
    unknown_files: int = 0
    """Files that are not indexed; they are read in full."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """New and changed files that could not be read at the last query or refresh, and why."""
    damaged: int = 0
    """Filters that return maybe for every key because their bits are damaged."""

    @property
    def skip_rate(self) -> float:
        """The fraction of row groups that were skipped."""
        return self.skipped / self.considered if self.considered else 0.0


class Usage:
    """Counts queries, and the used rows of each row group; several threads may count at once."""

    def __init__(self) -> None:
        self.stats = SkippingStats()
        self._accesses, self._groups = Accesses(), 0
        self._lock = fork_safe_lock()

    @property
    def accesses(self) -> Floats:
        """Used rows of each row group, decayed."""
        return self._accesses.array(self._groups)

    def per_row(self, rows: Ints) -> Floats:
        """Return the fraction of rows used in each row group, plus `UNSEEN` spread evenly."""
        mean = self.accesses / np.maximum(rows, 1)
        return with_unseen(mean, float(mean.sum()) or 1.0)

    def replace_groups(self, remaining: Flags, groups: int) -> None:
        """Keep the counts of the row groups that remain, and start new ones at 0."""
        with self._lock:
            kept = self._accesses.without(np.flatnonzero(~remaining).tolist())
            self._accesses = kept.extend(groups - int(remaining.sum()))
            self._groups = groups

    def count_query(self, files: FileCheck, answer: Answer, damaged: int) -> None:
        """Count a query, and describe the files that it found."""
        with self._lock:
            self.stats.queries += 1
            self.stats.stale_files, self.stats.unknown_files = len(files.stale), len(files.unknown)
            self.stats.damaged = damaged
            self.stats.unreadable = answer.unreadable

    def count_skipped(self, considered: int, read: int) -> None:
        """Count row groups that were skipped, of all that a query had to decide about."""
        with self._lock:
            self.stats.considered += considered
            self.stats.skipped += considered - read

    def count_read(self, group: int, groups: int, rows: int, seconds: float) -> None:
        """Count a row group that was read, one of ``groups``, and its matching rows."""
        with self._lock:
            self.stats.read += 1
            self.stats.rows += rows
            if rows == 0:
                self.stats.wasted += 1
                self.stats.wasted_seconds += seconds
        if rows:
            self.record([group], groups, rows)

    def record(self, used: Sequence[int], groups: int, rows: float) -> None:
        """Count used rows in row groups, unless an update changed how many there are."""
        with self._lock:
            if self._groups == groups:
                self._accesses.record(list(used), rows, HALF_LIFE, groups)
