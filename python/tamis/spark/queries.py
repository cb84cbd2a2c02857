"""Queries: rows and joins reduced by a filter, and workloads from logs."""

from __future__ import annotations

import functools
import os
import secrets
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import SparkFiles
from pyspark.sql import functions
from pyspark.sql.types import (
    AtomicType,
    DataType,
    DatetimeType,
    DecimalType,
    FractionalType,
    IntegralType,
    NumericType,
)

from tamis import filters
from tamis._checks import MAX_KEYS, check_int
from tamis.filters.contract import Filter
from tamis.spark.filters import SHARDS, build
from tamis.spark.key_columns import SecretKey, is_collated, key_column, quoted, secret, type_of
from tamis.workload import Workload
from tamis.workload.unseen import LogStatistics

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def keep(df: DataFrame, column: str, filter: Any, *, key: SecretKey | None = None) -> DataFrame:
    """Return the rows whose key may be in the filter. Rows with a null key are dropped.

    Only the column of keys is passed to Python. ``filter`` is a filter, or the path of a saved one
    on storage that all workers can read; each worker maps the file, so its memory is shared by the
    tasks of a machine. ``key`` is a function that returns the secret key of a filter that has one;
    it is called in every task, so that no pickled task contains the key.
    """
    keys = key_column(df, column)
    return df.where(_condition(df.sparkSession, filter, key)(keys))


def register(spark: SparkSession, name: str, filter: Any, *, key: SecretKey | None = None) -> None:
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
        of_left = type_of(left, name, frame="left", argument="on")
        _check_joined(of_left, type_of(right, name, frame="right", argument="on"), name)
    hashed = _join_key(names)
    built = build(right.select(hashed.alias("key")), "key", fpr=fpr, shards=shards)
    reduced = left.where(_condition(left.sparkSession, built, None)(hashed))
    return reduced.join(right.select(*map(quoted, names)), names, "left_semi")


def _check_joined(left: DataType, right: DataType, name: str) -> None:
    """Refuse columns in which values that Spark considers equal may have different hashes."""
    if left != right:
        raise TypeError(
            f"on must name columns of equal types; {name!r} is {left.simpleString()} on the left "
            f"and {right.simpleString()} on the right: cast one of them"
        )
    exact = (AtomicType,) if not isinstance(left, FractionalType) else (DecimalType,)
    if is_collated(left) or not isinstance(left, exact):
        raise TypeError(
            "on must name columns of text without a collation, bytes, integers, decimals, dates or "
            f"times; {name!r} is {left.simpleString()}"
        )


def _join_key(names: list[str]) -> Column:
    """Return the key of a row: a hash of the columns it is joined on; null if one of them is."""
    columns = [quoted(name) for name in names]
    present = functools.reduce(lambda a, b: a & b, (each.isNotNull() for each in columns))
    return functions.when(present, functions.xxhash64(*columns))


def _condition(spark: SparkSession, filter: Any, key: SecretKey | None) -> Any:
    """Return a Spark function that says which keys of a column may be in the filter."""
    if isinstance(filter, Filter):
        name = _ship(spark, filter, key)
        get: Any = SparkFiles.get
    elif isinstance(filter, str | bytes | os.PathLike):
        name, get = os.fsdecode(filter), str
        filters.load(name, mmap=True, key=secret(key))  # an error is raised here, not in a task
    else:
        kind = type(filter).__name__
        raise TypeError(f"filter must be a filter or the path of a saved one, not a {kind}")

    def contains(keys: pa.Array) -> pa.Array:
        opened = _opened(get(name), secret(key))
        if not keys.null_count:
            return pa.array(opened.contains(keys))
        answers = pa.array(opened.contains(keys.drop_null()))
        found = pa.array([False] * len(keys))
        return pa.compute.replace_with_mask(found, keys.is_valid(), answers)

    contains.__annotations__ = {"keys": pa.Array, "return": pa.Array}
    return functions.arrow_udf(contains, "boolean")


def _ship(spark: SparkSession, filter: Filter, key: SecretKey | None) -> str:
    """Send a filter to all workers as a file; return its name there."""
    name = f"tamis-{secrets.token_hex(8)}"
    path = os.path.join(_shipped().name, name)
    filter.save(path)
    filters.load(path, mmap=True, key=secret(key))  # a wrong key is an error here, not in a task
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
    including values that are not kept: by leaving one out and, if ``order_by`` is a column of times
    or numbers that grow with time, by splitting the log, as `tamis.Workload.from_queries` does.
    """
    top = check_int("top", top, MAX_KEYS, minimum=1)
    columns = [key_column(df, column).alias("value")]
    if order_by is not None:
        columns.append(_times(df, order_by).alias("at"))
    log = df.select(*columns).where("value IS NOT NULL")
    absent = log
    if keys is not None:
        absent = log.join(_stored(keys, df, column), "value", "left_anti")
    early = functions.lit(False)
    if order_by is not None:
        median = absent.select(functions.percentile_approx("at", 0.5, 100_000)).head()[0]
        early = functions.col("at") < functions.lit(median)
    counts = absent.groupBy("value").agg(
        functions.count("*").alias("queries"), functions.count_if(early).alias("before")
    ).cache()  # fmt: skip
    try:
        found = _log_statistics(counts)
        ranked = counts.orderBy(functions.desc("queries"), "value").limit(top)
        table = ranked.select("value", "queries").toArrow()
    finally:
        counts.unpersist()
    removed = 0 if keys is None else log.count() - found.total
    kept = table["queries"].to_numpy()
    return Workload.from_log_statistics(table["value"], kept, found, removed)


def _times(df: DataFrame, order_by: str) -> Column:
    kind = type_of(df, order_by, argument="order_by")
    if not isinstance(kind, (DatetimeType, NumericType)):
        raise TypeError(
            f"order_by must be a column of times or numbers; {order_by!r} is of type "
            f"{kind.simpleString()}"
        )
    return quoted(order_by)


def _stored(keys: DataFrame, df: DataFrame, column: str) -> DataFrame:
    """Return the distinct keys of the set; TypeError if the queries are of another type."""
    queried, stored = type_of(df, column), type_of(keys, column, frame="keys")
    if stored != queried and not (
        isinstance(stored, IntegralType) and isinstance(queried, IntegralType)
    ):
        # Spark would cast one of them, and consider different keys equal.
        raise TypeError(
            f"keys must have a column of the type of the log; {column!r} is "
            f"{stored.simpleString()} in keys and {queried.simpleString()} in df: cast one of them"
        )
    return keys.select(quoted(column).alias("value")).distinct()


def _log_statistics(counts: DataFrame) -> LogStatistics:
    """Compute the statistics for the estimate of the unseen fraction, over all values."""
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
