"""`SkippingIndex`: which row groups of which Parquet files may hold what is asked for."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds

from tamis._files import save_whole
from tamis._types import FilePath
from tamis.collection import HALF_LIFE, UNSEEN, Collection, parse_budget
from tamis.errors import FormatError
from tamis.parquet import columns as families
from tamis.parquet import manifest as persisted
from tamis.parquet import scanning
from tamis.parquet.answering import Answer, State, saved_filters, unread
from tamis.parquet.lake import Lake, Source, Watch
from tamis.parquet.reading import Options, Reader
from tamis.parquet.statistics import Statistics
from tamis.planning.collection.allocation import Kind, Method, utilities
from tamis.planning.collection.curves import Floats

Where: TypeAlias = Mapping[str, Any]
"""What each column has to be: a value, None for null, or a list of which one is enough."""


class RowGroup(NamedTuple):
    """A row group: the path of its file, and its number there."""

    path: str
    number: int


class SkippingIndex:
    """An index that tells which row groups of Parquet files may hold what is asked for.

    Every row group has a filter and a zone (least and greatest value) per indexed column. The full
    filters are in one file; of each, as many bits are in memory as one budget allows and use
    suggests (`tamis.Collection`). An answer never misses a row: files that are new, that changed
    in size, time or footer, or whose entry is damaged are read whole.

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
        path: str | None,
        memory: int | None,
        recheck: float,
        threads: int | None,
    ) -> None:
        self._state = state
        self._path, self._memory, self._threads = path, memory, threads
        self._watch = Watch(recheck, threads)
        self._accesses = np.zeros(len(state.utility))
        self._footers = scanning.Footers()
        self._rewrite = False
        self._lock, self._updating = threading.Lock(), threading.Lock()
        self.stats = Statistics()

    @classmethod
    def build(
        cls,
        source: Source,
        *,
        columns: str | Sequence[str],
        path: FilePath | None = None,
        filesystem: Any = None,
        memory: int | str | None = None,
        utility: str | npt.ArrayLike | None = None,
        kind: Kind | Literal["auto"] = "auto",
        fpr: float = 1e-4,
        hybrid: bool = False,
        recheck: float = 0.0,
        seed: int = 0,
        threads: int | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Read columns of files and build the filters of their row groups.

        ``source`` is a file, a folder, a pattern such as "events/*.parquet", or a list of them, on
        this machine, in a ``filesystem`` of pyarrow or fsspec, or as a URI. The index goes to
        ``path``; without one it lasts as long as the object. ``memory`` is the budget in bytes, or
        as "64MB". ``utility`` says how often each row group is needed: one number for each, or the
        name of a column that says it of each row. ``fpr`` is the rate of the full filters.

        Before every answer the files are looked at: new and changed ones are read whole. With
        ``recheck``, a look is good for so many seconds. Row groups are read on ``threads`` (one per
        core), a batch of rows at a time; ``progress`` shows a bar, by default on a terminal.
        """
        names = [columns] if isinstance(columns, str) else list(columns)
        if not names or len(set(names)) < len(names):
            raise ValueError(f"columns is {columns!r}; one or more names, each once, are wanted")
        lake = Lake.of(source, filesystem)
        stamps = lake.files()
        if not stamps:
            raise FileNotFoundError(f"source is {source!r}; there are no such files")
        by_row = utility if isinstance(utility, str) else None
        options = Options(kind, fpr, seed, by_row)
        reader = Reader(lake, stamps, names, None, options, threads)
        collection = Collection.build((), parts=len(names), seed=seed, hybrid=hybrid)
        collection.extend(reader.sets(0, progress), allocate=False)
        manifest = reader.manifest
        given = reader.utility if by_row or utility is None else utility
        weights = utilities(given, len(manifest.rows))
        state = State(lake, options, manifest, collection, weights)
        target = None if path is None else os.fsdecode(path)
        index = cls(state, path=target, memory=_memory(memory), recheck=recheck, threads=threads)
        index._settle(state)
        return index

    @classmethod
    def open(
        cls,
        path: FilePath,
        *,
        memory: int | str | None = None,
        source: Source | None = None,
        filesystem: Any = None,
        hybrid: bool = False,
        recheck: float = 0.0,
        threads: int | None = None,
    ) -> Self:
        """Open an index, and read as many bits of its filters as the budget allows.

        What is damaged says maybe to all, see ``stats.damaged`` and `refresh`. If so much is
        damaged that the index does not know its files, that is a `FormatError`, unless ``source``
        names them. ``filesystem`` is needed if it was at `build`. With ``hybrid``, a filter that
        says maybe is asked again with the rest of it, from the file of the index.
        """
        target, size = os.fsdecode(path), _memory(memory)
        try:
            opened = persisted.read(target)
        except FormatError:
            if source is None:
                raise
            opened = None
        if source is not None:
            lake = Lake.of(source, filesystem)
        else:
            assert opened is not None
            lake = Lake.from_json(opened.sources, filesystem)
        options = Options("auto", 1e-4, 0, None)
        if opened:
            options = replace(options, **opened.sources["options"])
        manifest, collection = opened.manifest if opened else None, None
        if opened and manifest and opened.frame is not None:
            collection = saved_filters(target, opened.frame, manifest, hybrid)
        if manifest is None:
            manifest = unread(lake, opened.sources["columns"] if opened else None)
        weights = np.ones(len(manifest.rows))
        if collection is not None:
            weights = collection.utility[:: len(manifest.columns)].copy()
        state = State(lake, options, manifest, collection, weights)
        state = state.within(size)
        index = cls(state, path=target, memory=size, recheck=recheck, threads=threads)
        index._rewrite = opened is None or not opened.whole
        return index

    def row_groups(self, where: Where) -> list[RowGroup]:
        """Name the row groups that may hold rows of which every column is as asked.

        The most used come first. A column is asked for one value, or for any of a list; None is
        null, which no filter knows, so that it skips nothing.
        """
        answer = self._answer(families.predicates(where, self.columns))
        self._count(answer.among, answer.among - len(answer.groups))
        files = answer.state.manifest.files
        owners, numbers = answer.state.places(answer.groups)
        found = zip(owners.tolist(), numbers.tolist(), strict=True)
        named = [RowGroup(files[owner].path, number) for owner, number in found]
        for path in answer.unindexed:
            count = scanning.whole(answer.state, path).metadata.num_row_groups
            named += [RowGroup(path, number) for number in range(count)]
        return named

    def dataset(self, where: Where | None = None) -> ds.Dataset:
        """Return the rows that are as asked as a pyarrow dataset, of row groups that may hold any.

        DuckDB, Polars and pyarrow read it, and push further predicates down to it.
        """
        predicates = families.predicates(where or {}, self.columns)
        answer = self._answer(predicates)
        self._count(answer.among, answer.among - len(answer.groups))
        return scanning.dataset(answer, predicates)

    def scan(
        self, where: Where, *, columns: Sequence[str] | None = None, limit: int | None = None
    ) -> pa.Table:
        """Read the rows that are as asked, from the most used row groups first.

        With ``limit``, reading ends once so many rows are found. What is read is counted in
        ``stats``, and which row groups had rows is recorded for ``allocate(utility="accesses")``.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"limit is {limit}; a number from 0 on, or None, is wanted")
        predicates = families.predicates(where, self.columns)
        answer = self._answer(predicates)
        wanted = scanning.Wanted.of(answer, predicates, columns)
        # Reading ahead pays if all is read.
        threads = self._threads if limit is None else 1
        visits = scanning.visits(answer, self._footers, wanted, threads)
        tables, rows, visited = [], 0, 0
        for visit in visits if limit != 0 else ():
            tables.append(visit.table)
            rows += visit.table.num_rows
            if visit.group is not None:
                visited += 1
                self._visited(answer.state, visit.group, visit.table.num_rows, visit.seconds)
            if limit is not None and rows >= limit:
                break
        considered = answer.among if limit is None else answer.reach(visited)
        self._count(considered, considered - visited)
        return pa.concat_tables([wanted.nothing, *tables]).slice(0, limit)

    def add(self, source: Source, *, progress: bool | None = None) -> int:
        """Index more files, also those that were taken out; how many files were read."""
        with self._updating:
            other = self._state.lake.of_same(source)
            if not other.files():
                raise FileNotFoundError(f"source is {source!r}; there are no such files")
            return self._update(self._state.lake.with_source(other), progress)

    def remove(self, source: Source) -> None:
        """Take files out: they are no part of any answer until they are added again."""
        with self._updating:
            lake = self._state.lake
            rest = lake.without_source(lake.of_same(source))
            if rest == lake:
                raise FileNotFoundError(f"source is {source!r}; the index has no such files")
            self._update(rest, None)

    def refresh(self, *, progress: bool | None = None) -> int:
        """Read the files that are new, changed or damaged, and forget those that are gone.

        The file of the index is written anew if anything was. How many files were read.
        """
        with self._updating:
            return self._update(self._state.lake, progress)

    def allocate(
        self,
        *,
        memory: int | str | None = None,
        utility: npt.ArrayLike | Literal["accesses"] | None = None,
        method: Method = "optimal",
    ) -> None:
        """Keep other bits in memory: for another budget (None: all), with other utilities.

        ``utility`` is one number per row group, in the order of the files and within them, or
        "accesses", what `scan` and `record` have counted: a row group's is the mean of its rows'.
        """
        with self._updating:
            state, size = self._state, _memory(memory)
            if isinstance(utility, str):
                if utility != "accesses":
                    raise ValueError(f"utility is {utility!r}; numbers, or 'accesses', are wanted")
                utility = self._by_accesses(state)
            weights = state.utility if utility is None else utilities(utility, len(state.utility))
            self._state = replace(state, utility=weights).within(size, method)
            self._memory = size

    def record(self, groups: Iterable[RowGroup], rows: int = 1) -> None:
        """Count that so many rows of each of these row groups were used; older use counts less."""
        state = self._state
        places = {file.path: number for number, file in enumerate(state.manifest.files)}
        for path, number in groups:
            owner = places.get(path)
            if owner is not None and 0 <= number < state.manifest.files[owner].groups:
                self._use(state, int(state.starts[owner]) + number, rows)

    def save(self, path: FilePath | None = None) -> None:
        """Write the index with its utilities: whole, or not at all; by default where it is from."""
        target = self._path if path is None else os.fsdecode(path)
        if target is None:
            raise ValueError("path is None; the index was built without one")
        self._write(self._state, target)

    @property
    def columns(self) -> dict[str, str]:
        """The indexed columns, and what each holds."""
        return dict(self._state.manifest.columns)

    @property
    def files(self) -> list[str]:
        """The files that are indexed."""
        return [file.path for file in self._state.manifest.files]

    @property
    def utility(self) -> Floats:
        """How often each row group is used, relative to the others, in the order of the files."""
        return self._state.utility.copy()

    @property
    def accesses(self) -> Floats:
        """Rows of each row group that were used, older use counting less."""
        return self._accesses.copy()

    @property
    def collection(self) -> Collection | None:
        """The filters: that of column c of row group i has number ``len(columns)``·i + c."""
        return self._state.collection

    @property
    def expected_fpr(self) -> float:
        """The expected rate of the filters in memory, weighted by utility; 1 if all are damaged."""
        collection = self._state.collection
        return 1.0 if collection is None else collection.expected_fpr

    @property
    def size_in_bytes(self) -> int:
        """What is in memory: filters, zones, and what is known of each file."""
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

    def _answer(self, predicates: list[families.Predicate]) -> Answer:
        state = self._state
        look = self._watch.look(state.lake, state.manifest.files)
        may, damaged = state.may_hold(predicates)
        with self._lock:
            self.stats.questions += 1
            self.stats.stale_files, self.stats.unknown_files = len(look.stale), len(look.unknown)
            self.stats.damaged = damaged
        return Answer.of(state, look, may)

    def _update(self, lake: Lake, progress: bool | None) -> int:
        """Bring the index to the files of a lake as they are now."""
        state, stamps = self._state, lake.files()
        look = Watch(0.0, self._threads).look(lake, state.manifest.files)
        gone = set(np.flatnonzero(~look.fresh).tolist()) | state.damaged_files()
        rest, stay = state.manifest.without(gone)
        kept = {file.path for file in rest.files}
        unread = {path: stamp for path, stamp in stamps.items() if path not in kept}
        if not gone and not unread and lake == state.lake and not self._rewrite:
            return 0
        width = len(rest.columns)
        if state.collection is None:
            collection = Collection.build((), parts=width, seed=state.options.seed)
        else:
            # A copy: answers under way keep what they have.
            collection = copy.copy(state.collection)
            collection.drop(np.flatnonzero(np.repeat(~stay, width)))
        reader = Reader(lake, unread, (), rest, state.options, self._threads)
        first = 1 + int(collection.names[-1]) if len(collection) else 0
        collection.extend(reader.sets(first, progress), allocate=False)
        manifest, before = rest.and_(reader.manifest), state.utility[stay]
        added = reader.utility
        if state.options.utility is None and len(before):
            added = np.full(len(added), before.mean())
        weights = np.concatenate([before, added])
        with self._lock:
            self._accesses = np.concatenate([self._accesses[stay], np.zeros(len(added))])
        self._settle(State(lake, state.options, manifest, collection, weights))
        return len(unread)

    def _settle(self, state: State) -> None:
        """Write a new state to the file of the index, if it has one, and answer from it."""
        state.check(self._memory)
        if self._path is not None and state.collection is not None:
            hybrid = state.collection.hybrid
            frame = self._write(state.within(state.least_bytes), self._path)
            self._rewrite = False
            saved = saved_filters(self._path, frame, state.manifest, hybrid)
            state = replace(state, collection=saved)
        self._state = state.within(self._memory)

    def _write(self, state: State, target: str) -> int:
        """Write a state; how long the frame of its filters is."""
        collection = state.collection
        if collection is None or len(collection.damaged):
            raise ValueError("filters of the index are damaged: refresh() makes them anew")
        frame = 0

        def write(descriptor: int) -> None:
            nonlocal frame
            collection.write(descriptor)
            frame = os.fstat(descriptor).st_size
            persisted.write(descriptor, state.manifest, state.sources)

        save_whole(target, write)
        return frame

    def _count(self, considered: int, skipped: int) -> None:
        with self._lock:
            self.stats.considered += considered
            self.stats.skipped += skipped

    def _visited(self, state: State, group: int, rows: int, seconds: float) -> None:
        with self._lock:
            self.stats.read += 1
            self.stats.rows += rows
            if rows == 0:
                self.stats.wasted += 1
                self.stats.wasted_seconds += seconds
        if rows:
            self._use(state, group, rows)

    def _use(self, state: State, group: int, rows: int) -> None:
        with self._lock:
            if len(self._accesses) == len(state.utility):  # else files have come or gone since
                self._accesses *= 0.5 ** (1 / HALF_LIFE)
                self._accesses[group] += rows

    def _by_accesses(self, state: State) -> Floats:
        """The mean use of the rows of each row group, a part of it spread evenly."""
        mean = self.accesses / np.maximum(state.manifest.rows, 1)
        even = UNSEEN * (float(mean.sum()) or 1.0) / max(len(mean), 1)
        used: Floats = mean + even
        return used


def _memory(memory: int | str | None) -> int | None:
    return None if memory is None else parse_budget(memory)
