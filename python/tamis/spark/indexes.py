"""Skipping indexes: a file per task."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tamis._checks import parse_budget
from tamis._types import FilePath
from tamis.collection import Collection
from tamis.parquet import SkippingIndex, building, merging
from tamis.parquet.answering import State
from tamis.parquet.lake import Lake, Source, public_source, source_names
from tamis.parquet.location import Location
from tamis.parquet.reading import Options, column_families, file_schema, read_footer

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

    All workers must be able to read ``source``: paths on storage that they mount, or URIs. The file
    has the same bytes as that of `SkippingIndex.build`, whose arguments the others are. ``utility``
    is a column. A task holds the filters of one file; the driver merges them on disk.
    """
    names = [columns] if isinstance(columns, str) else list(columns)
    size = None if memory is None else parse_budget(memory, "memory")
    # An error in the arguments is raised here, not in a task.
    Collection.build({"": [0]}, kind=kind, fpr=fpr, seed=seed)
    location = Location.of(path)
    lake = Lake.of(source)
    lake.refuse_tables()
    files = list(lake.files())
    if not files:
        raise FileNotFoundError(f"source matches no files: {public_source(source)}")
    options = Options(kind, fpr, seed, utility)
    families = _families(lake, files, names)
    locate = _locator(lake, source_names(source)[0])

    def build_parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for file in batch.column(0).to_pylist():
                part = pa.array([_build_part(locate(file), families, options)], pa.binary())
                yield pa.RecordBatch.from_arrays([part], ["part"])

    tasks = spark.createDataFrame([(file,) for file in files], "file string")
    tasks = tasks.repartitionByRange(len(files), "file")
    with tempfile.TemporaryDirectory(prefix="tamis-spark-") as folder:
        states = [
            _opened(row.part, os.path.join(folder, str(i)), lake)
            for i, row in enumerate(tasks.mapInArrow(build_parts, "part binary").toLocalIterator())
        ]
        state = merging.merge_states(states, lake, hybrid=hybrid)
        return SkippingIndex.created(state, location, memory=size, source=source)


def _families(lake: Lake, files: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return the family of each column, from as few footers as have all of them."""
    footers, found = [], set[str]()
    for file in files:
        footers.append(read_footer(lake, file))
        found.update(file_schema(footers[-1], names).names)
        if set(names) <= found:
            break
    return column_families(names, footers)


def _locator(lake: Lake, first: str) -> Any:
    """Return a function of the path of a file that gives what a task opens: a path or a URI."""
    if lake.uri is None:
        return str
    scheme, _, rest = first.partition("://")
    user = rest.partition("/")[0].rpartition("@")[0]
    options = "".join(rest.partition("?")[1:])
    start = f"{scheme}://{user}@" if user else f"{scheme}://"
    return lambda path: f"{start}{path}{options}"


def _build_part(source: str, columns: dict[str, str], options: Options) -> bytes:
    """Build the index of a file; return the content of its file."""
    lake = Lake.of(source)
    state = building.build_state(
        lake, lake.files(), columns, options, None, hybrid=False, threads=1, progress=False
    )
    with tempfile.TemporaryFile() as file:
        building.writer_of(state)(file.fileno())
        file.seek(0)
        return file.read()


def _opened(content: bytes, path: str, lake: Lake) -> State:
    with open(path, "wb") as file:
        file.write(content)
    return building.part_state(path, lake)
