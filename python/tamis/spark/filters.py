"""Filters of a column, in shards or merged."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions

from tamis import filters, planning
from tamis._checks import MAX_KEYS, check_int
from tamis._types import FilePath
from tamis.filters.contract import Filter
from tamis.filters.ribbon import Ribbon
from tamis.filters.sharded import MAX_SHARDS, Sharded, split
from tamis.filters.stacked import Stacked
from tamis.spark.key_columns import collected, key_column
from tamis.spark.sets import build_sets
from tamis.workload import Workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHARDS = 32
"""The default number of shards."""

_PARTS = "shard int, part binary"


def build(
    df: DataFrame,
    column: str,
    *,
    by: str | None = None,
    filter: type[Filter] | None = None,
    shards: int | None = None,
    capacity: int | None = None,
    workload: Workload | None = None,
    path: FilePath | None = None,
    seed: int = 0,
    key: bytes | None = None,
    **arguments: Any,
) -> Any:
    """Build a filter of the values of a column of text, bytes or integers. Nulls are skipped.

    ``filter`` is the class of the shards, `Ribbon` by default; other arguments are passed to its
    ``build``. The result is a `Sharded` filter, or with ``shards=1`` a filter of the class itself.
    ``path``, which may be a URL, also saves it.

    With ``capacity``, a filter of a class that can be merged, such as `Bloom`, is built as one:
    each task builds a filter of this capacity, and these are merged. A `Stacked` filter is planned
    for the number of distinct keys, which Spark estimates first.

    With ``by``, the result is a `Collection` with a set for each value of that column, named by the
    value as text, and "null". Other arguments are passed to `Collection.build`: ``kind``,
    ``fpr``, ``budget``, ``utility`` and ``hybrid``.

    A task holds the hashes of one shard or set, 16 bytes per key, and the memory of its build.
    """
    if by is not None:
        given = {"filter": filter, "shards": shards, "capacity": capacity, "workload": workload}
        wrong = [name for name, value in given.items() if value is not None]
        if wrong:
            raise ValueError(f"{wrong[0]} must be None with by, which gives a Collection")
        return build_sets(df, column, by, path, seed, key, **arguments)
    filter = Ribbon if filter is None else filter
    if not (isinstance(filter, type) and issubclass(filter, Filter)):
        raise TypeError(f"filter must be a class of filters, such as tamis.Ribbon, not {filter!r}")
    if workload is not None and not issubclass(filter, Stacked):
        raise ValueError(
            f"workload must be None for a {filter.__name__} filter, only a Stacked one"
        )
    shards = SHARDS if shards is None else shards
    shards = check_int("shards", shards, MAX_SHARDS, least=1)
    values = key_column(df, column)
    keys = df.where(values.isNotNull()).select(values.alias("key"))
    if capacity is not None and not issubclass(filter, Stacked):
        built = _merged(
            keys, filter, check_int("capacity", capacity, MAX_KEYS), seed, key, arguments
        )
    else:
        if issubclass(filter, Stacked):
            arguments = _planned(keys, workload, capacity, arguments)
        built = _sharded(keys, filter, shards, seed, key, arguments)
    if path is not None:
        built.save(path)
    return built


def _sharded(
    keys: DataFrame,
    filter: type[Filter],
    shards: int,
    seed: int,
    key: bytes | None,
    arguments: dict[str, Any],
) -> Any:
    none = split([], shards, seed=seed, key=key)
    if not issubclass(filter, Stacked):  # a stack was checked when it was planned
        # An error in the arguments is raised here, not in a task.
        filter.from_hashes(none[0], key=key, **arguments)

    def split_keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in collected(batches):
            parts = split(table.column(0), shards, seed=seed, key=key)
            rows = [pa.array(range(shards), pa.int32()), pa.array(parts, pa.binary())]
            yield pa.RecordBatch.from_arrays(rows, ["shard", "part"])

    def build_shard(table: pa.Table) -> pa.Table:
        parts = table["part"].to_pylist()
        built = filter.from_hashes(*parts, key=key, **arguments)
        index = pa.array([table["shard"][0].as_py()], pa.int32())
        frame = pa.array([built.to_bytes()], pa.binary())
        return pa.Table.from_arrays([index, frame], ["shard", "part"])

    parts = keys.mapInArrow(split_keys, _PARTS)
    rows = parts.groupBy("shard").applyInArrow(build_shard, _PARTS).toLocalIterator()
    built = {row.shard: filters.from_bytes(row.part, key=key) for row in rows}
    if not built:  # no row, so no part of any shard
        built = {i: filter.from_hashes(part, key=key, **arguments) for i, part in enumerate(none)}
    return built[0] if shards == 1 else Sharded.join(built)


def _merged(
    keys: DataFrame,
    filter: Any,
    capacity: int,
    seed: int,
    key: bytes | None,
    arguments: dict[str, Any],
) -> Any:
    if not filter.merges:
        raise ValueError(
            f"capacity must be None for a {filter.__name__} filter, which cannot be merged"
        )
    make = functools.partial(filter, capacity, seed=seed, key=key, **arguments)
    make()  # an error in the arguments is raised here, not in a task

    def insert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part = make()
        for table in collected(batches):
            part.update(table.column(0))
        yield pa.RecordBatch.from_arrays([pa.array([part.to_bytes()], pa.binary())], ["part"])

    merged = make()
    for row in keys.mapInArrow(insert, "part binary").toLocalIterator():
        merged |= filters.from_bytes(row.part, key=key)
    return merged


def _planned(
    keys: DataFrame, workload: Workload | None, capacity: int | None, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a stack with a plan for the estimated number of keys."""
    build: dict[str, Any] = {
        name: arguments.pop(name) for name in ("plan", "negatives") if name in arguments
    }
    if build.get("plan") is None:
        estimate = functions.approx_count_distinct("key", 0.01)
        count = keys.select(estimate).head()[0]
        build["plan"] = planning.planner.plan(max(count, capacity or 0, 64), workload, **arguments)
    elif arguments:
        raise ValueError(f"pass plan or {', '.join(arguments)}, not both")
    return {**build, "capacity": capacity}
