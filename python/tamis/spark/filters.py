"""Filters of a column: in shards, merged, or one for each value of another column."""

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

from tamis import _native, filters, planning
from tamis._checks import MAX_KEYS, check_int, parse_budget
from tamis._types import FilePath
from tamis.collection import Collection
from tamis.collection.storage import full_filter
from tamis.filters.contract import Filter
from tamis.filters.ribbon import Ribbon
from tamis.filters.sharded import MAX_SHARDS, Sharded, split
from tamis.filters.stacked import Stacked
from tamis.spark.key_columns import SecretKey, collected, key_column, quoted, secret, type_of
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
    key: SecretKey | None = None,
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

    ``key`` is a function that returns the secret key. It is called on the driver and in every task,
    so that no pickled task contains the key.

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
    shards = check_int("shards", shards, MAX_SHARDS, minimum=1)
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
    key: SecretKey | None,
    arguments: dict[str, Any],
) -> Any:
    none = split([], shards, seed=seed, key=secret(key))
    if not issubclass(filter, Stacked):  # a stack was checked when it was planned
        # An error in the arguments is raised here, not in a task.
        filter.from_hashes(none[0], key=secret(key), **arguments)

    def split_keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in collected(batches):
            parts = split(table.column(0), shards, seed=seed, key=secret(key))
            rows = [pa.array(range(shards), pa.int32()), pa.array(parts, pa.binary())]
            yield pa.RecordBatch.from_arrays(rows, ["shard", "part"])

    def build_shard(table: pa.Table) -> pa.Table:
        parts = table["part"].to_pylist()
        built = filter.from_hashes(*parts, key=secret(key), **arguments)
        index = pa.array([table["shard"][0].as_py()], pa.int32())
        frame = pa.array([built.to_bytes()], pa.binary())
        return pa.Table.from_arrays([index, frame], ["shard", "part"])

    parts = keys.mapInArrow(split_keys, _PARTS)
    rows = parts.groupBy("shard").applyInArrow(build_shard, _PARTS).toLocalIterator()
    built = {row.shard: filters.from_bytes(row.part, key=secret(key)) for row in rows}
    if not built:  # no row, so no part of any shard
        built = {
            i: filter.from_hashes(part, key=secret(key), **arguments) for i, part in enumerate(none)
        }
    return built[0] if shards == 1 else Sharded.join(built)


def _merged(
    keys: DataFrame,
    filter: Any,
    capacity: int,
    seed: int,
    key: SecretKey | None,
    arguments: dict[str, Any],
) -> Any:
    if not filter.merges:
        raise ValueError(
            f"capacity must be None for a {filter.__name__} filter, which cannot be merged"
        )

    def make() -> Any:
        return filter(capacity, seed=seed, key=secret(key), **arguments)

    make()  # an error in the arguments is raised here, not in a task

    def insert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part = make()
        for table in collected(batches):
            part.update(table.column(0))
        yield pa.RecordBatch.from_arrays([pa.array([part.to_bytes()], pa.binary())], ["part"])

    merged = make()
    for row in keys.mapInArrow(insert, "part binary").toLocalIterator():
        merged |= filters.from_bytes(row.part, key=secret(key))
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


_TOGETHER = 1 << 24
"""Keys from which a task returns a collection and begins another: a cell holds less than 2 GB."""


def build_sets(
    df: DataFrame,
    column: str,
    by: str,
    path: FilePath | None,
    seed: int,
    key: SecretKey | None,
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
    options: dict[str, Any] = {"kind": kind, "fpr": fpr, "seed": seed}
    # An error in the arguments is raised here, not in a task.
    Collection.build({"": [0]}, **options, key=secret(key))
    name = functions.coalesce(quoted(by).cast("string"), functions.lit("null"))
    keys = df.where(values.isNotNull()).select(name.alias("name"), values.alias("key"))

    def split_keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in collected(batches):
            order = pc.sort_indices(table["name"])
            found = table["key"].take(order)
            runs = pc.run_end_encode(table["name"].take(order).combine_chunks())
            ends = runs.run_ends.to_pylist()
            hashed = [
                split(found.slice(start, end - start), 1, seed=seed, key=secret(key))[0]
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
            (name, _native.Shard([part for _, part in same], secret(key)).keys)
            for name, same in itertools.groupby(rows, lambda row: row[0])
        )
        for content in _bounded(sets, {**options, "key": secret(key)}):
            yield pa.RecordBatch.from_arrays([pa.array([content], pa.binary())], ["part"])

    parts = keys.mapInArrow(split_keys, "name string, part binary")
    parts = parts.repartition("name").sortWithinPartitions("name")
    found = parts.mapInArrow(build_parts, "part binary").toLocalIterator()
    known = secret(key)
    built = [_opened(row.part, known) for row in found] or [
        Collection.build({}, **options, key=known)
    ]
    if utility is None:
        return Collection.merge(*built, path=path, key=known, budget=budget, hybrid=hybrid)
    # Only the merged collection has all names, by which utilities may be given.
    merged = Collection.merge(*built, key=known, hybrid=hybrid)
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
