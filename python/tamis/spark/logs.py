"""Workloads from logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions
from pyspark.sql.types import DatetimeType, IntegralType, NumericType

from tamis._checks import MAX_KEYS, check_int
from tamis.spark.key_columns import key_column, quoted, type_of
from tamis.workload import Workload
from tamis.workload.unseen import LogStatistics

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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
