"""Columns of keys in Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions
from pyspark.sql.types import BinaryType, IntegralType, StringType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BATCH = 1 << 20
"""Keys that a task collects before it splits them: large parts have little overhead."""


def key_column(df: DataFrame, column: str) -> Column:
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


def collected(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join batches into tables of about `BATCH` rows."""
    some: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        some.append(batch)
        count += len(batch)
        if count >= BATCH:
            yield pa.Table.from_batches(some)
            some, count = [], 0
    if count:
        yield pa.Table.from_batches(some)
