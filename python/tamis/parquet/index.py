"""`SkippingIndex`: which row groups of which Parquet files may match a query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds

from tamis._checks import (
    check_int,
    check_number,
    check_parts,
    parse_budget,
)
from tamis._locks import fork_safe_lock
from tamis._objects import save_path, storage_of
from tamis._ranges import CACHE
from tamis._types import FilePath
from tamis.collection import Collection
from tamis.parquet import build, scan
from tamis.parquet.file_set import FileSet, FileWatch, Source, source_text
from tamis.parquet.location import Location, is_hybrid, pickled
from tamis.parquet.predicate import Predicate, predicates
from tamis.parquet.row_groups import Options
from tamis.parquet.state import Answer, Budget, Flags, Memory, OnError, State, Usage, parse_memory
from tamis.planning.collection.allocation import Method, PrefixKind, utilities
from tamis.planning.collection.curves import Floats

Where: TypeAlias = Mapping[str, Any]
"""The condition on each column: a value, None for null, or a list of alternatives."""


class RowGroup(NamedTuple):
    """A row group: the path of its file, and its number in the file."""

    path: str
    number: int


class SkippingIndex:
    """An index of Parquet files: skips row groups that cannot match a query.

    Each row group has a filter and a zone (minimum and maximum) per indexed column. The full
    filters are in one file. A memory budget limits how many bits are in memory, and row groups that
    are used often get more of them (`tamis.Collection`). No matching row is missed: files that are
    new, that changed in size, time or footer, or whose entries are damaged are read in full.

    >>> import pathlib, tempfile
    >>> import pyarrow as pa, pyarrow.parquet as pq
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> events = pa.table({"user": [f"user {i % 700}" for i in range(5000)], "n": range(5000)})
    >>> pq.write_table(events, folder / "a.parquet", row_group_size=100)
    >>> SkippingIndex.build(folder / "*.parquet", columns=["user"], path=folder / "events.tamis")
    <tamis.parquet.SkippingIndex: 1 files, 50 row groups, columns user>
    >>> ix = SkippingIndex.open(folder / "events.tamis", memory="64kB")
    >>> len(ix.row_groups({"user": "user 7"})), ix.scan({"user": "user 7"}).num_rows
    (8, 8)
    >>> ix.dataset({"user": ["user 7", "user 8"]}).count_rows()
    16

    References: Mersy, Wang, Sintos, Krishnan 2024.
    """

    def __init__(
        self,
        state: State,
        *,
        location: Location | None,
        memory: Memory | None,
        recheck: float,
        threads: int | None,
    ) -> None:
        self._state = state
        self._location, self._memory, self._threads = location, memory, threads
        self._watch = FileWatch(recheck, threads)
        self._footers, self._usage = scan.Footers(), Usage()
        self._usage.replace_groups(np.ones(0, np.bool_), len(state.utility))
        self._rewrite = False
        """Whether the file of the index is damaged, so that an update has to write it."""
        self._updating = fork_safe_lock()
        self.stats = self._usage.stats

    @classmethod
    def build(
        cls,
        source: Source,
        *,
        columns: str | Sequence[str],
        path: FilePath | None = None,
        filesystem: Any = None,
        index_filesystem: Any = None,
        storage_options: Mapping[str, str] | None = None,
        memory: Budget | None = None,
        utility: str | npt.ArrayLike | None = None,
        kind: PrefixKind | Literal["auto"] = "auto",
        fpr: float = 1e-4,
        hybrid: bool | None = None,
        recheck: float = 0.0,
        seed: int = 0,
        threads: int | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Read columns of files and build the filters of their row groups.

        ``source`` is a file, a folder, a pattern such as "events/*.parquet", or a list of them: on
        this machine, at URLs such as "s3://bucket/events", or in a ``filesystem`` of pyarrow or
        fsspec. The index is saved to ``path``, which may be a URL or a path in an
        ``index_filesystem``; without a path it is temporary. ``storage_options`` are for the URLs
        of both. ``memory`` is the budget in bytes, or as "64MB", for all columns; or by column,
        as {"user": "10MB", …}.
        ``utility`` says how often each row group is used: one number per row group, or the name of
        a column with a number per row. ``fpr`` is the false-positive rate of the full filters.

        Every query checks the files first; new and changed files are read in full. With
        ``recheck``, a check is valid for this many seconds. Row groups are read on ``threads``
        (default: one per core). ``progress`` shows a progress bar (default: on a terminal).
        """
        names = build.column_names(columns)
        files = storage_of(filesystem, storage_options)
        file_set = FileSet.of(source, files)
        file_set.refuse_tables()
        stamps = file_set.files()
        if not stamps:
            raise FileNotFoundError(f"source matches no files: {source_text(source)}")
        by_row = utility if isinstance(utility, str) else None
        options = Options(kind, fpr, seed, by_row)
        location = Location.of_new(path, index_filesystem, storage_options)
        state = build.build_state(
            file_set,
            stamps,
            names,
            options,
            None if by_row else utility,
            hybrid=is_hybrid(hybrid, location),
            threads=threads,
            progress=progress,
        )
        return cls.created(
            state,
            location,
            memory=parse_memory(memory),
            recheck=recheck,
            threads=threads,
        )

    @classmethod
    def open(
        cls,
        path: FilePath,
        *,
        memory: Budget | None = None,
        source: Source | None = None,
        filesystem: Any = None,
        index_filesystem: Any = None,
        storage_options: Mapping[str, str] | None = None,
        cache: int | str = CACHE,
        hybrid: bool | None = None,
        immutable: bool = False,
        recheck: float = 0.0,
        threads: int | None = None,
    ) -> Self:
        """Open an index and load as many bits of its filters as the budget allows.

        The index stores the sources of `build` and `add`. Without ``source``, it opens only files
        below its own folder, so that an index of unknown origin cannot name others; files elsewhere
        need ``source``, and a ``filesystem`` if one was given to `build`.

        Damaged filters return maybe for every key; see ``stats.damaged`` and `refresh`. A lost
        list of files raises `FormatError`, unless ``source`` names them. If the bits in memory
        return maybe, the rest of the filter is read from the file of the index, if that is local or
        with ``hybrid``.

        ``path`` may be a URL, or a path in an ``index_filesystem`` of pyarrow or fsspec;
        ``storage_options`` are for URLs. Only the parts of an object that are needed are read, and
        ``cache`` limits the bytes of it that are cached on disk.

        With ``immutable``, ``source`` is the list of the current files, which never change under
        their names, as in a snapshot of a Delta or Iceberg table: no file is checked.
        """
        index_files = storage_of(index_filesystem, storage_options)
        location = Location.of(path, index_files, parse_budget(cache, "cache"))
        size = parse_memory(memory)
        state, intact = build.open_state(
            location,
            source,
            storage_of(filesystem, storage_options),
            hybrid=is_hybrid(hybrid, location),
            immutable=immutable,
        )
        state = state.allocate(size)
        index = cls(state, location=location, memory=size, recheck=recheck, threads=threads)
        index._rewrite = not intact
        return index

    @classmethod
    def merge(
        cls,
        *parts: SkippingIndex,
        path: FilePath | None = None,
        index_filesystem: Any = None,
        storage_options: Mapping[str, str] | None = None,
        memory: int | str | None = None,
        hybrid: bool | None = None,
        recheck: float = 0.0,
        threads: int | None = None,
    ) -> Self:
        """Merge indexes of different files, such as parts built by several processes.

        They must have the same columns and options of `build`, and their files must be in the same
        file system. Row groups come in the order of the paths of their files, so that the result
        has the same filters as one `build`, however the files were divided. It has the sources
        of all parts.
        """
        if not parts:
            raise ValueError("parts is empty: pass one or more indexes to merge")
        check_parts(parts, SkippingIndex, "an index")
        states = [part._state for part in parts]
        file_set = build.merge_file_sets([state.file_set for state in states])
        location = Location.of_new(path, index_filesystem, storage_options)
        state = build.merge_states(states, file_set, hybrid=is_hybrid(hybrid, location))
        return cls.created(
            state, location, memory=parse_memory(memory), recheck=recheck, threads=threads
        )

    @classmethod
    def created(
        cls,
        state: State,
        location: Location | None,
        *,
        memory: Memory | None,
        recheck: float = 0.0,
        threads: int | None = None,
    ) -> Self:
        """Return an index with a new state, and write its file if it has one."""
        index = cls(state, location=location, memory=memory, recheck=recheck, threads=threads)
        index._replace_state(state, np.ones(len(state.utility), np.bool_))
        return index

    def row_groups(self, where: Where) -> list[RowGroup]:
        """Return the row groups that may contain rows that match, the most used first.

        ``where`` maps each column to a value, or to a list of alternatives. None matches null,
        which filters do not store, so it skips nothing. New and changed files that cannot be read
        are not part of the result; ``stats.unreadable`` lists them.
        """
        answer = self._answer(predicates(where, self.columns))
        self._usage.count_skipped(answer.considered, len(answer.groups))
        files = answer.state.manifest.files
        owners, numbers = answer.state.locate(answer.groups)
        found = [
            RowGroup(files[owner].path, number)
            for owner, number in zip(owners.tolist(), numbers.tolist(), strict=True)
        ]
        for path, footer in answer.unindexed.items():
            found += [RowGroup(path, number) for number in range(footer.num_row_groups)]
        return found

    def dataset(self, where: Where | None = None, *, on_error: OnError = "raise") -> ds.Dataset:
        """Return the matching rows as a pyarrow dataset over row groups that may contain any.

        DuckDB, Polars and pyarrow read it, and push further predicates down to it. A new or changed
        file that cannot be read raises `FormatError`; with ``on_error="skip"`` it is left out.
        """
        conditions = predicates(where or {}, self.columns)
        answer = self._answer(conditions)
        answer.check_readable(on_error)
        self._usage.count_skipped(answer.considered, len(answer.groups))
        return scan.dataset(answer, conditions)

    def scan(
        self,
        where: Where,
        *,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        on_error: OnError = "raise",
    ) -> pa.Table:
        """Read the matching rows, from the most used row groups first.

        With ``limit``, reading ends when enough rows are found. ``stats`` counts reads, and
        the row groups with matches are recorded for ``allocate(utility="accesses")``. A new or
        changed file that cannot be read raises `FormatError`; with ``on_error="skip"`` it is left
        out.
        """
        limit = None if limit is None else check_int("limit", limit, 2**62)
        conditions = predicates(where, self.columns)
        answer = self._answer(conditions)
        answer.check_readable(on_error)
        projection = scan.Projection.of(answer, conditions, columns)
        # Reading ahead pays only if everything is read.
        threads = self._threads if limit is None else 1
        visits = scan.visits(answer, self._footers, projection, limit=limit, threads=threads)
        tables, rows, visited = [], 0, 0
        for visit in visits if limit != 0 else ():
            tables.append(visit.table)
            rows += visit.table.num_rows
            if visit.group is not None:
                visited += 1
                groups = len(answer.state.utility)
                self._usage.count_read(visit.group, groups, visit.table.num_rows, visit.seconds)
            if limit is not None and rows >= limit:
                break
        considered = answer.considered if limit is None else answer.considered_after(visited)
        self._usage.count_skipped(considered, visited)
        return pa.concat_tables([projection.empty, *tables]).slice(0, limit)

    def add(self, source: Source, *, progress: bool | None = None) -> int:
        """Index more files, or files that were removed, as `refresh` does."""
        with self._updating:
            other = self._state.file_set.of_same(source)
            other.refuse_tables()
            if not other.files():
                raise FileNotFoundError(f"source matches no files: {source_text(source)}")
            return self._update(self._state.file_set.with_source(other), progress)

    def remove(self, source: Source) -> None:
        """Remove files: queries ignore them until they are added again."""
        with self._updating:
            file_set = self._state.file_set
            rest = file_set.without_source(file_set.of_same(source))
            if rest == file_set:
                raise FileNotFoundError(
                    f"source matches no files of the index: {source_text(source)}"
                )
            self._update(rest, None)

    def refresh(self, *, progress: bool | None = None) -> int:
        """Index files that are new, changed or damaged, and drop files that are gone.

        Files that cannot be read are not indexed; ``stats.unreadable`` lists them. Rewrites the
        file of the index if anything changed. Returns the number of files that were indexed.
        """
        with self._updating:
            return self._update(self._state.file_set, progress)

    def allocate(
        self,
        *,
        memory: Budget | None = None,
        utility: npt.ArrayLike | Literal["accesses"] | None = None,
        method: Method = "optimal",
    ) -> None:
        """Load bits for another budget (None: the full filters) or other utilities.

        ``utility`` is one number per row group, in file order, or "accesses": the rows that `scan`
        and `record` counted in each row group, divided by its number of rows.
        """
        with self._updating:
            state, size = self._state, parse_memory(memory)
            if isinstance(utility, str):
                if utility != "accesses":
                    raise ValueError(f"utility must be numbers or 'accesses', not {utility!r}")
                utility = self._usage.per_row(state.manifest.rows)
            weights = state.utility if utility is None else utilities(utility, len(state.utility))
            self._state = replace(state, utility=weights).allocate(size, method)
            self._memory = size

    def record(self, groups: Iterable[RowGroup], rows: float = 1) -> None:
        """Count ``rows`` used rows in each of these row groups; earlier use decays."""
        state = self._state
        rows = check_number("rows", rows, "a number of at least 0", minimum=0)
        self._usage.record(state.numbers_of(groups), len(state.utility), rows)

    def save(
        self,
        path: FilePath | None = None,
        *,
        index_filesystem: Any = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Write the index and its utilities atomically, by default to its own file.

        An object that another process replaced since it was opened is not overwritten; that raises
        `OSError`.
        """
        if path is not None:
            files = storage_of(index_filesystem, storage_options)
            save_path(path, build.writer_of(self._state), files)
            return
        if self._location is None:
            raise ValueError("path must be given: the index was built without one")
        with self._location.written(build.writer_of(self._state)):
            pass

    @property
    def columns(self) -> dict[str, str]:
        """The indexed columns and their types."""
        return dict(self._state.manifest.columns)

    @property
    def files(self) -> list[str]:
        """The indexed files."""
        return [file.path for file in self._state.manifest.files]

    @property
    def utility(self) -> Floats:
        """How often each row group is used, relative to the others, in file order."""
        return self._state.utility.copy()

    @property
    def accesses(self) -> Floats:
        """Used rows of each row group, decayed."""
        return self._usage.accesses

    @property
    def collection(self) -> Collection | None:
        """The filters: column c of row group i is number ``len(columns)``·i + c."""
        return self._state.collection

    @property
    def expected_fpr(self) -> float:
        """Expected false-positive rate, weighted by utility; 1 if all filters are damaged."""
        collection = self._state.collection
        return 1.0 if collection is None else collection.expected_fpr

    @property
    def size_in_bytes(self) -> int:
        """Memory of filters, zones and the list of files."""
        state = self._state
        filters = 0 if state.collection is None else state.collection.size_in_bytes
        return state.own_bytes + filters

    def __len__(self) -> int:
        return len(self._state.manifest.rows)

    def __repr__(self) -> str:
        return (
            f"<tamis.parquet.SkippingIndex: {len(self.files):,} files, {len(self):,} row groups, "
            f"columns {', '.join(self.columns)}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return pickled(self)

    def _answer(self, conditions: list[Predicate]) -> Answer:
        state = self._state
        files = self._watch.check(state.file_set, state.manifest.files)
        may, damaged = state.may_match(conditions)
        answer = Answer.of(state, files, may)
        self._usage.count_query(files, answer, damaged)
        return answer

    def _update(self, file_set: FileSet, progress: bool | None) -> int:
        """Bring the index up to date with the current files of a set."""
        update = build.update_state(
            self._state, file_set, force=self._rewrite, threads=self._threads, progress=progress
        )
        if update is None:
            return 0
        same = update.remaining.all() and file_set == self._state.file_set and not self._rewrite
        if update.files_read or not same:
            self._replace_state(update.state, update.remaining)
        self.stats.unreadable = update.unreadable
        return update.files_read

    def _replace_state(self, state: State, remaining: Flags) -> None:
        """Write a new state to the file of the index, if it has one, and answer queries from it.

        ``remaining`` selects the row groups of the previous state that are part of it.
        """
        state.check(self._memory)
        if self._location is not None and state.collection is not None:
            # Writing needs no bits in memory.
            saved = build.write_state(state.allocate(state.min_bytes), self._location)
            self._rewrite = False
            state = replace(state, collection=saved)
        state = state.allocate(self._memory)
        self._usage.replace_groups(remaining, len(state.utility))
        self._state = state
