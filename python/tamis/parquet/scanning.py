"""From an answer to rows: a dataset that other engines read, or tables one row group at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as ds

from tamis.parquet.answering import Answer, State
from tamis.parquet.columns import Predicate
from tamis.parquet.reading import unified
from tamis.parquet.threads import in_order

FOOTERS = 16
"""Files whose footers are kept in memory once rows of them were read."""

AHEAD = 8
"""Row groups from which threads are started to read them: starting takes as long as reading one."""

FORMAT = ds.ParquetFileFormat()


class Footers:
    """Files with their footers, which take longer to read than a row group: the last few."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], ds.ParquetFileFragment] = {}
        self._lock = threading.Lock()

    def fragment(self, state: State, owner: int) -> ds.ParquetFileFragment:
        """Return an indexed file."""
        file = state.manifest.files[owner]
        with self._lock:
            fragment = self._kept.pop((file.path, file.footer), None)
        if fragment is None:
            fragment = whole(state, file.path)
            fragment.ensure_complete_metadata()
        with self._lock:
            self._kept[file.path, file.footer] = fragment
            while len(self._kept) > FOOTERS:
                del self._kept[next(iter(self._kept))]
        return fragment


def whole(state: State, path: str) -> ds.ParquetFileFragment:
    """Return a file as it is now."""
    return FORMAT.make_fragment(path, state.lake.filesystem)


def schema_of(answer: Answer) -> pa.Schema:
    """Return the columns of all files, also of those that are not indexed."""
    known = answer.state.manifest.schema
    others = [whole(answer.state, path).physical_schema for path in answer.unindexed]
    return unified([known, *others]) if others else known


def expression(predicates: Sequence[Predicate], schema: pa.Schema) -> ds.Expression | None:
    """Join predicates for columns of a schema."""
    joined = None
    for predicate in predicates:
        own = predicate.expression(schema)
        joined = own if joined is None else joined & own
    return joined


def dataset(answer: Answer, predicates: Sequence[Predicate]) -> ds.Dataset:
    """Return the rows of the answer's row groups that meet the predicates."""
    state, schema = answer.state, schema_of(answer)
    owners, numbers = state.places(answer.groups)
    chosen: dict[int, list[int]] = {}  # files by their most used row group
    for owner, number in zip(owners.tolist(), numbers.tolist(), strict=True):
        chosen.setdefault(owner, []).append(number)
    filesystem = state.lake.filesystem
    fragments = [
        FORMAT.make_fragment(state.manifest.files[owner].path, filesystem, row_groups=sorted(own))
        for owner, own in chosen.items()
    ]
    fragments += [whole(state, path) for path in answer.unindexed]
    found = ds.FileSystemDataset(fragments, schema, FORMAT, filesystem)
    matching = expression(predicates, schema)
    return found if matching is None else found.filter(matching)


@dataclass(frozen=True)
class Visit:
    """What was read: the matching rows of a row group, or of a file that is not indexed."""

    group: int | None
    table: pa.Table
    seconds: float


def visits(
    answer: Answer,
    footers: Footers,
    predicates: Sequence[Predicate],
    columns: list[str] | None,
    threads: int | None,
) -> Iterator[Visit]:
    """Read the answer's row groups one after the other, or on several threads ahead."""
    state, schema = answer.state, schema_of(answer)
    matching = expression(predicates, schema)

    def read(group: int) -> Visit:
        begin = time.perf_counter()
        owner = int(state.owners[group])
        number = group - int(state.starts[owner])
        part = footers.fragment(state, owner).subset(row_group_ids=[number])
        table = part.to_table(schema, columns, matching, use_threads=False)
        return Visit(group, table, time.perf_counter() - begin)

    groups = answer.groups.tolist()
    several = threads != 1 and len(groups) >= AHEAD
    yield from in_order(read, groups, threads) if several else map(read, groups)
    for path in answer.unindexed:
        yield Visit(None, whole(state, path).to_table(schema, columns, matching), 0.0)


def joined(answer: Answer, tables: Sequence[pa.Table], columns: list[str] | None) -> pa.Table:
    """Put tables together; none have the columns too."""
    if tables:
        return pa.concat_tables(tables)
    empty = schema_of(answer).empty_table()
    return empty if columns is None else empty.select(columns)
