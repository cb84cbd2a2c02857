"""`tamis.spark`: build and use filters in Apache Spark.

Keys are hashed where they are, and only their hashes, 16 bytes per key, cross the shuffle. Each
shard of a filter is built by one task, so the memory of a task depends on the size of a shard, not
on the number of keys. The result has the same bytes as that of `tamis.Sharded.build`.
"""

from __future__ import annotations

import functools
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tamis import filters, planning
from tamis._types import FilePath
from tamis.filters.contract import Filter
from tamis.filters.ribbon import Ribbon
from tamis.filters.sharded import MOST_SHARDS, Sharded, split
from tamis.filters.stacked import Stacked
from tamis.planning.arguments import MOST_KEYS, whole
from tamis.workload import Workload
from tamis.workload.unseen import LogStatistics

try:
    import pyarrow as pa
    from pyspark import SparkFiles
    from pyspark.sql import functions
    from pyspark.sql.types import (
        AtomicType,
        BinaryType,
        DataType,
        DecimalType,
        FractionalType,
        IntegralType,
        StringType,
    )
except ImportError:
    raise ImportError("tamis.spark needs pyspark and pyarrow: pip install tamis[spark]") from None

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


SHARDS = 32
"""The default number of shards."""

_BATCH = 1 << 20
"""Keys that a task collects before it splits them: large parts have little overhead."""

_PARTS = "shard int, part binary"


def build(
    df: DataFrame,
    column: str,
    *,
    filter: type[Filter] = Ribbon,
    shards: int = SHARDS,
    capacity: int | None = None,
    workload: Workload | None = None,
    path: FilePath | None = None,
    seed: int = 0,
    key: bytes | None = None,
    **arguments: Any,
) -> Any:
    """Build a filter of the values of a column of text, bytes or integers. Nulls are skipped.

    ``filter`` is the class of the shards; other arguments are passed to its ``build``. The result
    is a `Sharded` filter, or with ``shards=1`` one of the class itself. ``path`` also saves it.

    With ``capacity``, a filter of a class that can be merged, such as `Bloom`, is built as one:
    each task builds one of this capacity, and they are merged. A `Stacked` filter is planned for
    the number of distinct keys, which Spark estimates first.

    A task holds the hashes of one shard, 16 bytes per key, and what its build needs.
    """
    shards = whole("shards", shards, MOST_SHARDS, least=1)
    keys = df.select(_key_column(df, column)).where(functions.col(column).isNotNull())
    if capacity is not None and not issubclass(filter, Stacked):
        built = _merged(keys, filter, whole("capacity", capacity, MOST_KEYS), seed, key, arguments)
    else:
        if issubclass(filter, Stacked):
            arguments = _planned(keys, workload, capacity, arguments)
        built = _sharded(keys, filter, shards, seed, key, arguments)
    if path is not None:
        built.save(path)
    return built


def _key_column(df: DataFrame, column: str) -> Column:
    """Return the column of keys, or raise an error if it is of another type than keys have."""
    if column not in df.columns:
        raise ValueError(f"column must be one of {', '.join(df.columns)}, not {column!r}")
    kind = df.schema[column].dataType
    if not isinstance(kind, (BinaryType, IntegralType, StringType)):
        raise TypeError(
            f"column must be of text, bytes or integers; {column!r} is of type "
            f"{kind.simpleString()}"
        )
    return functions.col(column)


def _sharded(
    keys: DataFrame,
    filter: type[Filter],
    shards: int,
    seed: int,
    key: bytes | None,
    arguments: dict[str, Any],
) -> Any:
    def split_keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for column in _collected(batches):
            parts = split(column, shards, seed=seed, key=key)
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
        empty = [filter.from_hashes(part, key=key, **arguments)
                 for part in split([], shards, seed=seed, key=key)]  # fmt: skip
        built = dict(enumerate(empty))
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
        for column in _collected(batches):
            part.update(column)
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
        estimate = functions.approx_count_distinct(keys.columns[0], 0.01)
        count = keys.select(estimate).head()[0]
        build["plan"] = planning.planner.plan(max(count, capacity or 0, 64), workload, **arguments)
    elif arguments:
        raise ValueError(f"pass plan or {', '.join(arguments)}, not both")
    return {**build, "capacity": capacity}


def _collected(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.ChunkedArray]:
    """Join batches of one column into columns of about `_BATCH` values."""
    some: list[pa.Array] = []
    count = 0
    for batch in batches:
        some.append(batch.column(0))
        count += len(batch)
        if count >= _BATCH:
            yield pa.chunked_array(some)
            some, count = [], 0
    if count:
        yield pa.chunked_array(some)


# Logs.


def workload(
    df: DataFrame,
    column: str,
    *,
    keys: DataFrame | None = None,
    top: int = 1_000_000,
    order_by: str | None = None,
) -> Workload:
    """Count the queries of a log for absent keys: the ``top`` most frequent ones are kept.

    ``keys`` has the keys of the set in a column of the same name; queries for them are removed, and
    counted. Null queries are ignored. The fraction of unseen values is estimated from all counts,
    also of values that are not kept: by leaving one out and, if ``order_by`` is a column of times
    or numbers that grow with time, by splitting the log, as `tamis.Workload.from_queries` does.
    """
    top = whole("top", top, MOST_KEYS, least=1)
    names = [column] if order_by is None else [column, order_by]
    _key_column(df, column)
    log = df.select(*names).where(functions.col(column).isNotNull())
    absent = log if keys is None else log.join(keys.select(column).distinct(), column, "left_anti")
    early = functions.lit(False)
    if order_by is not None:
        median = absent.select(functions.percentile_approx(order_by, 0.5, 100_000)).head()[0]
        early = functions.col(order_by) < functions.lit(median)
    counts = absent.groupBy(column).agg(
        functions.count("*").alias("queries"), functions.count_if(early).alias("before")
    ).cache()  # fmt: skip
    try:
        found = _log_statistics(counts)
        ranked = counts.orderBy(functions.desc("queries"), column).limit(top)
        table = ranked.select(column, "queries").toArrow()
    finally:
        counts.unpersist()
    removed = 0 if keys is None else log.count() - found.total
    kept = table["queries"].to_numpy()
    return Workload.from_log_statistics(table[column], kept, found, removed)


def _log_statistics(counts: DataFrame) -> LogStatistics:
    """Add up what the estimate of the unseen fraction needs, over all values of a log."""
    queries, before = functions.col("queries"), functions.col("before")
    row = counts.select(
        functions.count("*"),
        functions.sum(queries),
        functions.count_if(queries == 1),
        functions.sum(before),
        functions.count_if(before == 1),
        functions.sum(functions.when(before == 0, queries)),
    ).head()
    return LogStatistics(*(int(value or 0) for value in row))


# Queries.


def keep(df: DataFrame, column: str, filter: Any, *, key: bytes | None = None) -> DataFrame:
    """Return the rows whose key may be in the filter. Rows with a null key are dropped.

    Only the column of keys is passed to Python. ``filter`` is a filter, or the path of a saved one
    on storage that all workers can read; each worker maps the file, so its memory is shared by the
    tasks of a machine. ``key`` is the secret key of a filter that has one.
    """
    return df.where(_condition(df.sparkSession, filter, key)(_key_column(df, column)))


def register(spark: SparkSession, name: str, filter: Any, *, key: bytes | None = None) -> None:
    """Register a filter as an SQL function of one key, which returns whether it may be present.

    ``register(spark, "known_user", f)`` allows ``SELECT * FROM log WHERE known_user(user)``. A null
    key gives false.
    """
    spark.udf.register(name, _condition(spark, filter, key))


def semi_join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str],
    *,
    fpr: float = 0.01,
    shards: int = SHARDS,
) -> DataFrame:
    """Return the rows of ``left`` with a match in ``right``, which should be the small side.

    A filter of the keys of ``right`` drops most rows of ``left`` that have no match before they
    are shuffled. The join then removes the rest, so the result is exact.
    """
    names = [on] if isinstance(on, str) else list(on)
    if not names:
        raise ValueError("on must be the name of a column, or several, not an empty list")
    for name in names:
        _check_joined(left.schema[name].dataType, right.schema[name].dataType, name)
    both = [_join_key(side, names) for side in (left, right)]
    built = build(both[1].select("tamis_key"), "tamis_key", fpr=fpr, shards=shards)
    thinned = keep(both[0], "tamis_key", built).drop("tamis_key")
    return thinned.join(right.select(*names).distinct(), names, "left_semi")


def _check_joined(left: DataType, right: DataType, name: str) -> None:
    """Refuse columns in which values that Spark takes for equal may have different hashes."""
    if left != right:
        raise TypeError(
            f"on must name columns of equal types; {name!r} is {left.simpleString()} on the left "
            f"and {right.simpleString()} on the right: cast one of them"
        )
    exact = (AtomicType,) if not isinstance(left, FractionalType) else (DecimalType,)
    collated = isinstance(left, StringType) and left != StringType()
    if collated or not isinstance(left, exact):
        raise TypeError(
            "on must name columns of text without a collation, bytes, integers, decimals, dates or "
            f"times; {name!r} is {left.simpleString()}"
        )


def _join_key(df: DataFrame, names: list[str]) -> DataFrame:
    """Add a column with the key of a row: a hash of the columns it is joined on."""
    present = functools.reduce(lambda a, b: a & b, (functions.col(n).isNotNull() for n in names))
    hashed = functions.xxhash64(*(functions.col(name) for name in names))
    return df.withColumn("tamis_key", functions.when(present, hashed))


def _condition(spark: SparkSession, filter: Any, key: bytes | None) -> Any:
    """Return a Spark function that says which keys of a column may be in the filter."""
    if isinstance(filter, Filter):
        name = _ship(spark, filter)
        get: Any = SparkFiles.get
    else:
        name, get = os.fsdecode(filter), str
        filters.load(name, mmap=True, key=key)  # an error is raised here, not in a task

    def contains(keys: pa.Array) -> pa.Array:
        opened = _opened(get(name), key)
        if not keys.null_count:
            return pa.array(opened.contains(keys))
        answers = pa.array(opened.contains(keys.drop_null()))
        found = pa.array([False] * len(keys))
        return pa.compute.replace_with_mask(found, keys.is_valid(), answers)

    contains.__annotations__ = {"keys": pa.Array, "return": pa.Array}
    return functions.arrow_udf(contains, "boolean")


def _ship(spark: SparkSession, filter: Filter) -> str:
    """Send a filter to all workers as a file; return its name there."""
    name = f"tamis-{secrets.token_hex(8)}"
    path = os.path.join(_shipped().name, name)
    filter.save(path)
    spark.sparkContext.addFile(path)
    return name


@functools.cache
def _shipped() -> tempfile.TemporaryDirectory[str]:
    """Return the folder of shipped filters: workers may fetch them until this process ends."""
    return tempfile.TemporaryDirectory(prefix="tamis-spark-")


@functools.lru_cache(maxsize=16)
def _opened(path: str, key: bytes | None) -> Any:
    """Map a filter; a worker does this once."""
    return filters.load(path, mmap=True, key=key)
