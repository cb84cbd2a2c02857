"""Columns of keys in Spark, and where tasks get a secret key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, functions
from pyspark.sql.types import BinaryType, DataType, IntegralType, StringType

if TYPE_CHECKING:
    from pyspark.sql import Column

BATCH = 1 << 20
"""Keys that a task collects before it splits them: large parts have little overhead."""


def type_of(df: DataFrame, column: str, *, frame: str = "df", argument: str = "column") -> DataType:
    """Return the type of a column, or raise an error that names the arguments."""
    if not isinstance(df, DataFrame):
        raise TypeError(f"{frame} must be a Spark DataFrame, not a {type(df).__name__}")
    if column not in df.columns:
        of = "" if frame == "df" else f" of {frame}"
        raise ValueError(
            f"{argument} must be one of the columns{of}, {', '.join(df.columns)}, not {column!r}"
        )
    return df.schema[column].dataType


def quoted(column: str) -> Column:
    """Return a column by its name; dots and backticks are part of the name."""
    return functions.col("`" + column.replace("`", "``") + "`")


def key_column(df: DataFrame, column: str) -> Column:
    """Return the column of keys; TypeError if its type is not a type of keys."""
    kind = type_of(df, column)
    if not isinstance(kind, (BinaryType, IntegralType, StringType)) or is_collated(kind):
        raise TypeError(
            "column must be of text without a collation, bytes or integers; "
            f"{column!r} is of type {kind.simpleString()}"
        )
    return quoted(column)


def is_collated(kind: DataType) -> bool:
    """Return whether Spark considers texts of this type equal that have different bytes."""
    return isinstance(kind, StringType) and kind != StringType()


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


SecretKey = Callable[[], bytes]
"""A function that returns the secret key, called on the driver and in every task."""


def secret(key: SecretKey | None) -> bytes | None:
    """Return the secret key, which is never part of a pickled task.

    >>> secret(b"0123456789abcdef")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    TypeError: key must be a function that returns the key, not bytes: ...
    """
    if key is None:
        return None
    if not callable(key):
        raise TypeError(
            f"key must be a function that returns the key, not {type(key).__name__}: Spark pickles "
            "tasks and writes them to disk and network; for example lambda: "
            'bytes.fromhex(os.environ["FILTER_KEY"])'
        )
    value = key()
    on_driver = TaskContext.get() is None
    if on_driver and isinstance(value, bytes) and value in cloudpickle.dumps(key):
        raise ValueError(
            "key must be a function that reads the key where it is called, such as from the "
            "environment: this one contains the key, and Spark pickles it with every task"
        )
    return value
