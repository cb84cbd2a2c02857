"""Read the rows of an answer: as a dataset for other engines, or one row group at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tamis.parquet.answering import Answer, State
from tamis.parquet.columns import Predicate
from tamis.parquet.reading import unify_schemas
from tamis.parquet.threads import map_in_order

FOOTERS = 16
"""Footers that are cached."""

AHEAD = 8
"""Row groups from which threads read ahead: starting them takes as long as reading one."""

FORMAT = ds.ParquetFileFormat()


class Footers:
    """A cache of footers, which take longer to read than a row group."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], pq.FileMetaData] = {}
        self._lock = threading.Lock()

    def of(self, state: State, owner: int) -> pq.FileMetaData:
        """Return the footer of an indexed file."""
        file = state.manifest.files[owner]
        with self._lock:
            footer = self._kept.pop((file.path, file.footer), None)
        if footer is None:
            with state.lake.filesystem.open_input_file(file.path) as source:
                footer = pq.read_metadata(source)
        with self._lock:
            self._kept[file.path, file.footer] = footer
            while len(self._kept) > FOOTERS:
                del self._kept[next(iter(self._kept))]
        return footer


def whole_file(state: State, path: str) -> ds.ParquetFileFragment:
    """Return all row groups of a file."""
    return FORMAT.make_fragment(path, state.lake.filesystem)


def schema_of(answer: Answer) -> pa.Schema:
    """Return the schema of all files, including those that are not indexed."""
    known = answer.state.manifest.schema
    others = [whole_file(answer.state, path).physical_schema for path in answer.unindexed]
    return unify_schemas([known, *others]) if others else known


def expression(predicates: Sequence[Predicate], schema: pa.Schema) -> ds.Expression | None:
    """Return the conjunction of predicates over a schema."""
    joined = None
    for predicate in predicates:
        own = predicate.expression(schema)
        joined = own if joined is None else joined & own
    return joined


def dataset(answer: Answer, predicates: Sequence[Predicate]) -> ds.Dataset:
    """Return the rows of the answer's row groups that match the predicates."""
    state, schema = answer.state, schema_of(answer)
    owners, numbers = state.locate(answer.groups)
    chosen: dict[int, list[int]] = {}  # files by their most used row group
    for owner, number in zip(owners.tolist(), numbers.tolist(), strict=True):
        chosen.setdefault(owner, []).append(number)
    filesystem = state.lake.filesystem
    fragments = [
        FORMAT.make_fragment(state.manifest.files[owner].path, filesystem, row_groups=sorted(own))
        for owner, own in chosen.items()
    ]
    fragments += [whole_file(state, path) for path in answer.unindexed]
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
    """Columns to read: those of predicates first, the others only if any row matches."""

    schema: pa.Schema
    columns: list[str]
    predicates: Sequence[Predicate]

    @classmethod
    def of(
        cls, answer: Answer, predicates: Sequence[Predicate], columns: Sequence[str] | None
    ) -> Projection:
        """Select these columns, all by default."""
        schema = schema_of(answer)
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

    def of_group(self, file: pq.ParquetFile, number: int) -> pa.Table:
        """Read the matching rows of a row group."""
        filtered = [predicate.column for predicate in self.predicates]
        table = self._read(file, number, filtered)
        mask = None
        for predicate in self.predicates:
            own = predicate.mask(table.column(predicate.column))
            mask = own if mask is None else pc.and_(mask, own)
        if mask is not None and not pc.any(mask, min_count=0).as_py():
            return self.empty
        rest = self._read(file, number, [name for name in self.columns if name not in filtered])
        both = dict(zip(table.column_names, table.columns, strict=True))
        both.update(zip(rest.column_names, rest.columns, strict=True))
        found = pa.table([both[name] for name in self.columns], schema=self.empty.schema)
        return found if mask is None else found.filter(mask)

    def _read(self, file: pq.ParquetFile, number: int, columns: list[str]) -> pa.Table:
        """Read columns in the types of the schema; columns missing from the file are null."""
        there = [name for name in columns if name in file.schema_arrow.names]
        table = file.read_row_group(number, columns=there, use_threads=False)
        rows = file.metadata.row_group(number).num_rows
        fields = [self.schema.field(name) for name in columns]
        arrays = [
            table.column(field.name).cast(field.type)
            if field.name in there
            else pa.nulls(rows, field.type)
            for field in fields
        ]
        return pa.table(arrays, schema=pa.schema(fields))


def visits(
    answer: Answer, footers: Footers, projection: Projection, threads: int | None
) -> Iterator[Visit]:
    """Read the answer's row groups in order, on several threads if there are many."""
    state = answer.state

    def open_file(path: str, footer: pq.FileMetaData | None) -> pq.ParquetFile:
        source = state.lake.filesystem.open_input_file(path)
        return pq.ParquetFile(source, metadata=footer, pre_buffer=not state.lake.local)

    def read(group: int) -> Visit:
        begin = time.perf_counter()
        owner = int(state.owners[group])
        with open_file(state.manifest.files[owner].path, footers.of(state, owner)) as file:
            table = projection.of_group(file, group - int(state.starts[owner]))
        return Visit(group, table, time.perf_counter() - begin)

    groups = answer.groups.tolist()
    several = threads != 1 and len(groups) >= AHEAD
    yield from map_in_order(read, groups, threads) if several else map(read, groups)
    for path in answer.unindexed:
        with open_file(path, None) as file:
            for number in range(file.num_row_groups):
                yield Visit(None, projection.of_group(file, number), 0.0)
