"""Skipping indexes: a file per task."""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tamis._checks import parse_budget
from tamis._types import FilePath
from tamis.collection import Collection
from tamis.parquet import SkippingIndex, build
from tamis.parquet.file_set import FileSet, Source, source_text
from tamis.parquet.location import Location
from tamis.parquet.row_groups import Options
from tamis.parquet.schema import file_schema, find_column_types, read_footer
from tamis.parquet.state import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def index(
    spark: SparkSession,
    source: Source,
    columns: str | Sequence[str],
    path: FilePath,
    *,
    memory: int | str | None = None,
    utility: str | None = None,
    kind: Any = "auto",
    fpr: float = 1e-4,
    seed: int = 0,
    hybrid: bool = False,
) -> SkippingIndex:
    """Build a skipping index of Parquet files, one task per file, and save it to ``path``.

    All workers must be able to read ``source``: paths on storage that they mount, or URLs, with
    credentials in their environment. The file has the same bytes as the file of
    `SkippingIndex.build`, which explains the other arguments. ``utility`` is a column. A task holds
    the filters of one file; the driver merges them on disk.
    """
    names = [columns] if isinstance(columns, str) else list(columns)
    size = None if memory is None else parse_budget(memory, "memory")
    # An error in the arguments is raised here, not in a task.
    Collection.build({"": [0]}, kind=kind, fpr=fpr, seed=seed)
    location = Location.of(path)
    file_set = FileSet.of(source)
    file_set.refuse_tables()
    files = list(file_set.files())
    if not files:
        raise FileNotFoundError(f"source matches no files: {source_text(source)}")
    options = Options(kind, fpr, seed, utility)
    types = _column_types(file_set, files, names)
    scheme = file_set.uri

    def build_parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for file in batch.column(0).to_pylist():
                part = pa.array([_build_part(_located(scheme, file), types, options)], pa.binary())
                yield pa.RecordBatch.from_arrays([part], ["part"])

    tasks = spark.createDataFrame([(file,) for file in files], "file string")
    tasks = tasks.repartitionByRange(len(files), "file")
    with tempfile.TemporaryDirectory(prefix="tamis-spark-") as folder:
        states = [
            _opened(row.part, os.path.join(folder, str(i)), file_set)
            for i, row in enumerate(tasks.mapInArrow(build_parts, "part binary").toLocalIterator())
        ]
        state = build.merge_states(states, file_set, hybrid=hybrid)
        return SkippingIndex.created(state, location, memory=size)


def _column_types(file_set: FileSet, files: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return the type of each column, from as few footers as have all of them."""
    footers, found = [], set[str]()
    for file in files:
        footers.append(read_footer(file_set, file))
        found.update(file_schema(footers[-1], names).names)
        if set(names) <= found:
            break
    return find_column_types(names, footers)


def _located(scheme: str | None, path: str) -> str:
    """Return the source that a task opens for a file."""
    return path if scheme in (None, "file") else f"{scheme}://{glob.escape(path)}"


def _build_part(source: str, columns: dict[str, str], options: Options) -> bytes:
    """Build the index of a file; return the content of its file."""
    file_set = FileSet.of(source)
    state = build.build_state(
        file_set, file_set.files(), columns, options, None, hybrid=False, threads=1, progress=False
    )
    with tempfile.TemporaryFile() as file:
        build.writer_of(state)(file.fileno())
        file.seek(0)
        return file.read()


def _opened(content: bytes, path: str, file_set: FileSet) -> State:
    with open(path, "wb") as file:
        file.write(content)
    return build.part_state(path, file_set)
