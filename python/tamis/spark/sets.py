"""Collections: a set for each value of a column."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions
from pyspark.sql.types import BinaryType

from tamis import _native
from tamis._checks import parse_budget
from tamis._types import FilePath
from tamis.collection import Collection
from tamis.collection.storage import full_filter
from tamis.filters.sharded import split
from tamis.spark.key_columns import collected, key_column, quoted, type_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TOGETHER = 1 << 24
"""Keys from which a task returns a collection and begins another: a cell holds less than 2 GB."""


def build_sets(
    df: DataFrame,
    column: str,
    by: str,
    path: FilePath | None,
    seed: int,
    key: bytes | None,
    *,
    kind: str = "auto",
    fpr: float = 1e-4,
    budget: int | str | None = None,
    utility: Any = None,
    hybrid: bool = False,
) -> Collection:
    """Build a collection with a set for each value of the column ``by``."""
    if isinstance(type_of(df, by, argument="by"), BinaryType):
        raise TypeError(f"by must be a column whose values name sets; {by!r} is binary: use hex(…)")
    values = key_column(df, column)
    if budget is not None:
        parse_budget(budget)
    options: dict[str, Any] = {"kind": kind, "fpr": fpr, "seed": seed, "key": key}
    # An error in the arguments is raised here, not in a task.
    Collection.build({"": [0]}, **options)
    name = functions.coalesce(quoted(by).cast("string"), functions.lit("null"))
    keys = df.where(values.isNotNull()).select(name.alias("name"), values.alias("key"))

    def split_keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in collected(batches):
            order = pc.sort_indices(table["name"])
            found = table["key"].take(order)
            runs = pc.run_end_encode(table["name"].take(order).combine_chunks())
            ends = runs.run_ends.to_pylist()
            hashed = [
                split(found.slice(start, end - start), 1, seed=seed, key=key)[0]
                for start, end in itertools.pairwise([0, *ends])
            ]
            columns = [runs.values, pa.array(hashed, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, ["name", "part"])

    def build_parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (  # one by one, since a batch may have many large parts
            (name.as_py(), part.as_py())
            for batch in batches
            for name, part in zip(batch["name"], batch["part"], strict=True)
        )
        sets = (
            (name, _native.Shard([part for _, part in same], key).keys)
            for name, same in itertools.groupby(rows, lambda row: row[0])
        )
        for content in _bounded(sets, options):
            yield pa.RecordBatch.from_arrays([pa.array([content], pa.binary())], ["part"])

    parts = keys.mapInArrow(split_keys, "name string, part binary")
    parts = parts.repartition("name").sortWithinPartitions("name")
    found = parts.mapInArrow(build_parts, "part binary").toLocalIterator()
    built = [_opened(row.part, key) for row in found] or [Collection.build({}, **options)]
    if utility is None:
        return Collection.merge(*built, path=path, key=key, budget=budget, hybrid=hybrid)
    # Only the merged collection has all names, by which utilities may be given.
    merged = Collection.merge(*built, key=key, hybrid=hybrid)
    merged.allocate(budget=budget, utility=utility)
    if path is not None:
        merged.save(path)
    return merged


def _bounded(
    sets: Iterator[tuple[str, _native.Distinct]], options: dict[str, Any]
) -> Iterator[bytes]:
    """Build collections of a bounded number of keys, as bytes."""
    waiting: list[tuple[str, _native.Full]] = []
    keys = 0
    for name, distinct in sets:
        waiting.append((name, full_filter(distinct, options["kind"], options["fpr"])))
        keys += len(distinct)
        if keys >= _TOGETHER:
            yield _content(Collection.build(waiting, **options))
            waiting, keys = [], 0
    if waiting:
        yield _content(Collection.build(waiting, **options))


def _content(collection: Collection) -> bytes:
    with tempfile.TemporaryFile() as file:
        collection.write(file.fileno())
        file.seek(0)
        return file.read()


def _opened(content: bytes, key: bytes | None) -> Collection:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "part")
        with open(path, "wb") as file:
            file.write(content)
        return Collection.open(path, allocate=False, key=key)
