"""Workloads from logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions

from tamis.planning.arguments import MOST_KEYS, whole
from tamis.spark.columns import key_column
from tamis.workload import Workload
from tamis.workload.unseen import LogStatistics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
    key_column(df, column)
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
