"""Read row groups on several threads and build their filters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tamis import _native
from tamis._checks import one_of
from tamis._progress import progress_bar
from tamis.collection.storage import full_filter
from tamis.errors import FormatError
from tamis.parquet import column_types
from tamis.parquet.file_set import FileSet, map_in_order
from tamis.parquet.manifest import File, Manifest
from tamis.parquet.schema import (
    file_schema,
    find_column_types,
    join_schema,
    read_footer,
    unify_schemas,
)
from tamis.parquet.sources import Stamp
from tamis.planning.collection.allocation import PREFIX_KINDS
from tamis.planning.collection.curves import Floats

BATCH = 1 << 16
"""Rows in memory at a time, per thread."""

TOGETHER = 64
"""Maximum row groups that one task reads: opening a file costs as much as reading a small one."""

_ROWS = 1 << 20  # maximum number of rows that one task reads
_HASHES = 1 << 20  # of a column, before repetitions are dropped
_EMPTY_ZONE = (2**64 - 1, 0)


@dataclass(frozen=True)
class Options:
    """The kind, rate and seed of the filters, and the column that holds the utility of rows."""

    kind: str
    fpr: float
    seed: int
    utility: str | None

    def __post_init__(self) -> None:
        one_of("kind", self.kind, ("auto", *PREFIX_KINDS))


@dataclass(frozen=True)
class Group:
    """A row group: a filter and a zone per column, and the mean utility of its rows."""

    rows: int
    filters: list[_native.Full]
    zones: list[tuple[int, int]]
    utility: float


def read_groups(
    file_set: FileSet,
    path: str,
    footer: pq.FileMetaData,
    numbers: range,
    columns: Mapping[str, str],
    options: Options,
) -> list[Group]:
    """Read row groups of a file."""
    types = {field.name: field.type for field in file_schema(footer, columns)}
    names = [name for name in types if name in columns or name == options.utility]
    # Read text as dictionaries, so that each distinct value is hashed once.
    text = [
        name
        for name in names
        if column_types.column_type(types[name]) in ("text", "binary")
        and not pa.types.is_fixed_size_binary(types[name])
    ]
    coded = dictionary_columns(footer, numbers, text)
    with file_set.filesystem.open_input_file(path) as source:
        file = pq.ParquetFile(source, metadata=footer, read_dictionary=coded)
        return [_group(file, number, columns, names, options) for number in numbers]


def _group(
    file: pq.ParquetFile,
    number: int,
    columns: Mapping[str, str],
    names: list[str],
    options: Options,
) -> Group:
    hashes = {name: _native.Spill(1, None, options.seed) for name in columns}
    limits = dict.fromkeys(columns, _HASHES)
    zones = dict.fromkeys(columns, _EMPTY_ZONE)
    rows, total = file.metadata.row_group(number).num_rows, 0.0
    batches: Iterable[pa.RecordBatch] = ()
    if names:
        batches = file.iter_batches(BATCH, row_groups=[number], columns=names, use_threads=False)
    for batch in batches:
        for name in columns.keys() & set(names):
            values = column_types.values(batch.column(name))
            hashes[name].add(values)
            # A file of a few bytes can hold a hundred million equal values.
            if hashes[name].lengths()[0] > limits[name]:
                hashes[name].compact()
                limits[name] = max(_HASHES, 2 * hashes[name].lengths()[0])
            found = column_types.zone(columns[name], values)
            if found is not None:
                low, high = zones[name]
                zones[name] = (min(low, found[0]), max(high, found[1]))
        if options.utility is not None:
            total += pc.sum(batch.column(options.utility)).as_py() or 0
    filters = [
        full_filter(hashes[name].distinct(0, 1), options.kind, options.fpr) for name in columns
    ]
    mean = float(total) / max(rows, 1) if options.utility is not None else 1.0
    return Group(rows, filters, [zones[name] for name in columns], mean)


def dictionary_columns(
    footer: pq.FileMetaData, groups: Iterable[int], names: Sequence[str]
) -> list[str]:
    """Return which of these columns pyarrow can read as dictionaries: not from delta encodings."""
    found = set(names)
    for number in groups:
        group = footer.row_group(number)
        for column in range(group.num_columns):
            chunk = group.column(column)
            if any(encoding.startswith("DELTA") for encoding in chunk.encodings):
                found.discard(chunk.path_in_schema)
    return [name for name in names if name in found]


def tasks(footer: pq.FileMetaData) -> Iterator[range]:
    """Split the row groups of a file into tasks."""
    start, rows = 0, 0
    for number in range(footer.num_row_groups):
        rows += footer.row_group(number).num_rows
        if number + 1 - start == TOGETHER or rows >= _ROWS:
            yield range(start, number + 1)
            start, rows = number + 1, 0
    if start < footer.num_row_groups:
        yield range(start, footer.num_row_groups)


class Reader:
    """Reads files, builds the filters of their row groups, and then describes them.

    With ``skip``, files that cannot be read are left out, and listed in ``unreadable``.
    """

    def __init__(
        self,
        file_set: FileSet,
        stamps: Mapping[str, Stamp],
        columns: Sequence[str] | Mapping[str, str],
        known: Manifest | None,
        options: Options,
        threads: int | None,
        *,
        skip: bool = False,
    ) -> None:
        self._file_set, self._options, self._threads, self._skip = file_set, options, threads, skip
        self.unreadable: dict[str, str] = {}
        found = map_in_order(self._read_footer, stamps.items(), threads)
        self._files = [each for each in found if each is not None]
        if known:
            self.columns = known.columns
        elif isinstance(columns, Mapping):
            self.columns = dict(columns)
        else:
            self.columns = find_column_types(columns, [footer for _, footer in self._files])
        schemas = [file_schema(footer, self.columns) for _, footer in self._files]
        self.schema = known.schema if known else unify_schemas(schemas[:1])
        self._files = [
            each
            for each, schema in zip(self._files, schemas, strict=True)
            if self._joins(each[0].path, schema)
        ]
        self._groups: list[Group] = []

    def _read_footer(self, item: tuple[str, Stamp]) -> tuple[File, pq.FileMetaData] | None:
        path, stamp = item
        try:
            footer = read_footer(self._file_set, path)
        except (FormatError, OSError) as error:
            self._fail(path, error)
            return None
        digest = self._file_set.footer(path) or ""
        groups = footer.num_row_groups
        return File(path, stamp.size, stamp.time, digest, groups, stamp.tag), footer

    def _fail(self, path: str, error: Exception) -> None:
        if not self._skip:
            raise error
        self.unreadable[path] = str(error)

    def _joins(self, path: str, schema: pa.Schema) -> bool:
        """Whether the types of a file agree with the files before; join its schema."""
        utility = self._options.utility
        if utility is not None and utility not in schema.names:
            raise ValueError(
                f"utility must name a column of every file, but {path} has no column {utility!r}"
            )
        try:
            self.schema = join_schema(self.schema, path, schema, self.columns)
        except (TypeError, ValueError) as error:
            self._fail(path, error)
            return False
        return True

    def sets(self, first: int, progress: bool | None) -> Iterator[tuple[str, _native.Full]]:
        """Yield the filters of each row group, column by column, named by consecutive numbers."""
        total = sum(file.groups for file, _ in self._files)
        pieces = (
            (file, footer, numbers) for file, footer in self._files for numbers in tasks(footer)
        )

        def run(piece: tuple[File, pq.FileMetaData, range]) -> tuple[File, list[Group] | Exception]:
            file, footer, numbers = piece
            try:
                columns, options = self.columns, self._options
                return file, read_groups(
                    self._file_set, file.path, footer, numbers, columns, options
                )
            except FormatError as error:
                return file, error
            except (pa.ArrowException, OSError, OverflowError) as error:
                return file, FormatError(f"{file.path}: {error}")

        waiting: list[Group] = []
        with progress_bar("reading row groups", total, show=progress) as advance:
            for file, found in map_in_order(run, pieces, self._threads):
                if isinstance(found, Exception):
                    self._fail(file.path, found)
                    found = []
                waiting += found
                advance(len(found))
                # A file is indexed as a whole, or not at all.
                if file.path in self.unreadable:
                    waiting = []
                elif len(waiting) == file.groups:
                    for group in waiting:
                        for full in group.filters:
                            yield str(first), full
                            first += 1
                        self._groups.append(Group(group.rows, [], group.zones, group.utility))
                    waiting = []

    @property
    def manifest(self) -> Manifest:
        """The manifest of the files, after `sets` is exhausted."""
        zones = np.array([group.zones for group in self._groups], np.uint64)
        zones = zones.reshape(len(self._groups), len(self.columns), 2).transpose(2, 1, 0)
        rows = np.array([group.rows for group in self._groups], np.int64)
        files = tuple(file for file, _ in self._files if file.path not in self.unreadable)
        low, high = np.ascontiguousarray(zones)
        return Manifest(self.columns, self.schema, files, rows, low, high)

    @property
    def utility(self) -> Floats:
        """The mean utility of the rows of each row group."""
        return np.array([group.utility for group in self._groups])
