"""Read the rows of an answer: as a dataset for other engines, or one row group at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tamis._locks import fork_safe_lock
from tamis.errors import FormatError
from tamis.parquet import column_types
from tamis.parquet.file_set import map_in_order
from tamis.parquet.predicate import Predicate
from tamis.parquet.row_groups import BATCH
from tamis.parquet.state import Answer, State

FOOTERS = 16
"""Footers that are cached."""

AHEAD = 8
"""Row groups from which threads read ahead: starting them takes as long as reading one."""

FORMAT = ds.ParquetFileFormat()


class Footers:
    """A cache of footers, which take longer to read than a row group."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], pq.FileMetaData] = {}
        self._lock = fork_safe_lock()

    def of(self, state: State, owner: int) -> pq.FileMetaData:
        """Return the footer of an indexed file."""
        file = state.manifest.files[owner]
        with self._lock:
            footer = self._kept.pop((file.path, file.footer), None)
        if footer is None:
            with state.file_set.filesystem.open_input_file(file.path) as source:
                footer = pq.read_metadata(source)
        with self._lock:
            self._kept[file.path, file.footer] = footer
            while len(self._kept) > FOOTERS:
                del self._kept[next(iter(self._kept))]
        return footer


def expression(predicates: Sequence[Predicate], schema: pa.Schema) -> ds.Expression | None:
    """Return the conjunction of predicates over a schema."""
    joined = None
    for predicate in predicates:
        own = predicate.expression(schema)
        joined = own if joined is None else joined & own
    return joined


def dataset(answer: Answer, predicates: Sequence[Predicate]) -> ds.Dataset:
    """Return the rows of the answer's row groups that match the predicates."""
    state, schema = answer.state, answer.schema
    owners, numbers = state.locate(answer.groups)
    chosen: dict[int, list[int]] = {}  # files by their most used row group
    for owner, number in zip(owners.tolist(), numbers.tolist(), strict=True):
        chosen.setdefault(owner, []).append(number)
    filesystem = state.file_set.filesystem
    fragments = [
        FORMAT.make_fragment(state.manifest.files[owner].path, filesystem, row_groups=sorted(own))
        for owner, own in chosen.items()
    ]
    fragments += [FORMAT.make_fragment(path, filesystem) for path in answer.unindexed]
    found = ds.FileSystemDataset(fragments, schema, FORMAT, filesystem)
    matching = expression(predicates, schema)
    return found if matching is None else found.filter(matching)


@dataclass(frozen=True)
class Visit:
    """The matching rows of a row group; ``group`` is None if its file is not indexed."""

    group: int | None
    table: pa.Table
    seconds: float


@dataclass(frozen=True)
class Projection:
    """Columns to read: first the columns of predicates, then the others if any row matches."""

    schema: pa.Schema
    columns: list[str]
    predicates: Sequence[Predicate]

    @classmethod
    def of(
        cls, answer: Answer, predicates: Sequence[Predicate], columns: Sequence[str] | None
    ) -> Projection:
        """Select these columns, all by default."""
        schema = answer.schema
        names = schema.names if columns is None else list(columns)
        unknown = [name for name in names if name not in schema.names]
        if unknown:
            known = ", ".join(schema.names)
            raise ValueError(f"columns must be among {known}, not {unknown[0]!r}")
        return cls(schema, names, predicates)

    @property
    def empty(self) -> pa.Table:
        """A table without rows."""
        return pa.schema([self.schema.field(name) for name in self.columns]).empty_table()

    def of_group(self, file: pq.ParquetFile, number: int, limit: int | None) -> pa.Table:
        """Read the matching rows of a row group, or at least ``limit`` of them.

        Rows are read in batches, so that only matching rows take memory: a small file can hold a
        hundred million equal rows.
        """
        filtered = [predicate.column for predicate in self.predicates]
        masks, found = [], 0
        matching: dict[str, list[pa.ChunkedArray]] = {name: [] for name in self.columns}
        for rows, batch in self._batches(file, number, filtered):
            mask = pa.chunked_array([pa.repeat(True, rows)])
            for predicate in self.predicates:
                mask = pc.and_(mask, predicate.mask(batch[predicate.column]))
            masks.append(mask)
            self._keep(batch, mask, matching)
            found += pc.sum(mask, min_count=0).as_py()
            if limit is not None and found >= limit:
                break
        if not found:
            return self.empty
        mask, start = pa.chunked_array([c for each in masks for c in each.chunks], pa.bool_()), 0
        others = [name for name in self.columns if name not in filtered]
        for rows, batch in self._batches(file, number, others) if others else ():
            own = mask.slice(start, rows)
            self._keep(
                {name: each.slice(0, len(own)) for name, each in batch.items()}, own, matching
            )
            start += rows
            if start >= len(mask):
                break
        schema = self.empty.schema
        arrays = [
            pa.chunked_array([c for each in matching[field.name] for c in each.chunks], field.type)
            for field in schema
        ]
        return pa.table(arrays, schema=schema)

    def _keep(
        self,
        batch: dict[str, pa.ChunkedArray],
        mask: pa.ChunkedArray,
        matching: dict[str, list[pa.ChunkedArray]],
    ) -> None:
        """Add the matching values of a batch, in the types of the schema."""
        for name in batch.keys() & matching.keys():
            kept = batch[name].filter(mask)
            matching[name].append(kept.cast(self.schema.field(name).type))

    def _batches(
        self, file: pq.ParquetFile, number: int, columns: list[str]
    ) -> Iterator[tuple[int, dict[str, pa.ChunkedArray]]]:
        """Read columns, before they are cast to the types of the schema, and count their rows."""
        names = file.schema_arrow.names
        # Without any of the columns, another one tells how many rows there are.
        there = [name for name in columns if name in names] or names[:1]
        for batch in file.iter_batches(
            BATCH, columns=there, row_groups=[number], use_threads=False
        ):
            arrays = {}
            for name in columns:
                if name in there:
                    array = batch.column(name)
                    array = array.cast(column_types.filterable(array.type))
                else:
                    array = pa.nulls(len(batch), self.schema.field(name).type)
                arrays[name] = pa.chunked_array([array])
            yield len(batch), arrays


def visits(
    answer: Answer,
    footers: Footers,
    projection: Projection,
    *,
    limit: int | None,
    threads: int | None,
) -> Iterator[Visit]:
    """Read the answer's row groups in order, on several threads if there are many."""
    state = answer.state

    def read(path: str, footer: pq.FileMetaData, number: int) -> pa.Table:
        try:
            with state.file_set.filesystem.open_input_file(path) as source:
                remote = not state.file_set.local
                file = pq.ParquetFile(source, metadata=footer, pre_buffer=remote)
                return projection.of_group(file, number, limit)
        except (FileNotFoundError, PermissionError):
            raise
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{path}: row group {number}: {error}") from error

    def visit(group: int) -> Visit:
        begin = time.perf_counter()
        owner = int(state.owners[group])
        path, number = state.manifest.files[owner].path, group - int(state.starts[owner])
        table = read(path, footers.of(state, owner), number)
        return Visit(group, table, time.perf_counter() - begin)

    groups = answer.groups.tolist()
    several = threads != 1 and len(groups) >= AHEAD
    yield from map_in_order(visit, groups, threads) if several else map(visit, groups)
    for path, metadata in answer.unindexed.items():
        for number in range(metadata.num_row_groups):
            yield Visit(None, read(path, metadata, number), 0.0)
