"""Tables in row groups, their queries, and the exact answers: what data skipping is measured on.

EV is the paper's own table, with its own 2,500 queries; a limit of 5 rows gives its utilities
exactly. RE (Connecticut's sales of real estate) and NASA (the log of a web server) cannot be had
here. For RE stand the departures of `flights` in order of time, like RE a register of events with
two categorical attributes (tail number and destination); for NASA the requests of
`trace_twitter52`, like NASA a log of requests with one attribute of many values, few of them hot.
Their queries are made as in the paper: the 2,500 most common combinations of values, in a limit
of 5 rows; the utility of a row is the number of queries that reach it in a scan.
"""

from __future__ import annotations

import atexit
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from experiments import data
from tamis.parquet import SkippingIndex

# Name: kind of filter, method of allocation, whether the truncated part is read from disk.
METHODS = {
    "range (R)": ("truncated", "optimal", False),
    "on disk (D)": ("truncated", "optimal", True),
    "proportional (PT)": ("truncated", "proportional", False),
    "top utility (TU)": ("truncated", "top utility", False),
    "elastic (EBF)": ("truncated", "elastic", False),
    "paper": ("truncated", "relaxation", False),
    "ours": ("ribbon", "optimal", False),
    "ours, overhead inside": ("ribbon", "optimal", False),
    "HTU": ("truncated", "top utility", True),
    "HBB": ("truncated", "relaxation", True),
    "ours, hybrid": ("ribbon", "optimal", True),
    "ours, for reads": ("ribbon", "optimal", True),
}
FIXED = ("range (R)", "on disk (D)")  # no budget
TABLES = ("RE", "EV", "NASA")
DATA = ("flights", "ev", "ev_queries", "trace_twitter52")
STANDS = (
    "EV is the paper's own table; flights (tail number, destination) stand in for RE, also a "
    "register of events with two categorical attributes, and trace_twitter52 for NASA, also a "
    "log of requests with one skewed attribute"
)
ROWS, LIMIT, QUERIES = 1000, 5, 2500


class Lake:
    """A table in row groups, its queries, and the exact answers."""

    def __init__(
        self, folder: Path, frame: Any, columns: list[str], queries: Any, limit: int = LIMIT
    ) -> None:
        self.folder, self.columns, self.limit = folder, columns, limit
        self.path = folder / "table.parquet"
        pq.write_table(frame.to_arrow(), self.path, row_group_size=ROWS, compression="zstd")
        self.queries = queries
        where = pl.DataFrame(queries).with_row_index("query")
        placed = frame.with_row_index("row").with_columns(group=pl.col("row") // ROWS)
        found = where.join(placed, on=list(queries[0]), how="inner").sort("query", "row")
        self.groups = -(-len(frame) // ROWS)
        reached = visits(found, len(frame), len(queries), limit)
        whole = np.arange(len(frame)) // ROWS
        self.utility = np.bincount(whole, reached, self.groups) / np.bincount(whole)
        self.truth = self._counts(found)
        # By column: which row groups have the value of each query.
        self.has = [
            self._counts(where.join(placed.select(column, "group").unique(), on=column)) > 0
            for column in columns
        ]
        self.indexes: dict[str, SkippingIndex] = {}
        collection = self.built("truncated").collection
        assert collection is not None
        self.bloom_bits = int(collection.full.sum())

    def _counts(self, found: Any) -> Any:
        counts = found.group_by("query", "group").len()
        table = np.zeros((len(self.queries), self.groups), np.int64)
        table[counts["query"].to_numpy(), counts["group"].to_numpy()] = counts["len"]
        return table

    def built(self, kind: str) -> SkippingIndex:
        """Return the index with full filters of a kind."""
        if kind not in self.indexes:
            path = self.folder / f"{kind}.tamis"
            self.indexes[kind] = SkippingIndex.build(
                self.path, columns=self.columns, path=path, kind=kind, utility=self.utility
            )
        return self.indexes[kind]

    def index(self, method: str, percent: int) -> SkippingIndex:
        """Return the index of a method with a budget in percent of full Bloom filters.

        The budget is for the bits alone, as in the paper, without zones and names; or for all
        memory of the collection, if the overhead is inside.
        """
        kind, allocation, hybrid = METHODS[method]
        full = self.built(kind)
        least = full._state.min_bytes
        bits = 0 if method in FIXED else self.bloom_bits * percent // 800
        if method.endswith("inside"):
            bits = max(bits - full.collection.min_budget, 0)
        path = self.folder / f"{kind}.tamis"
        ix = SkippingIndex.open(path, source=self.path, memory=least, hybrid=hybrid, recheck=3600)
        ix.allocate(memory=least + bits, method=allocation)
        if method == "ours, for reads":
            c = ix.collection
            c.allocate(budget=c.min_budget + bits, present=self.present())
        return ix

    def present(self) -> Any:
        """Return for each filter the share of the queries reaching it whose value it has."""
        order = np.argsort(-self.utility, kind="stable")
        before = np.cumsum(self.truth[:, order], axis=1) - self.truth[:, order]
        reached = np.zeros_like(self.truth, dtype=bool)
        reached[:, order] = before < self.limit
        shares = [(has & reached).sum(0) / np.maximum(reached.sum(0), 1) for has in self.has]
        return np.stack(shares, axis=1).ravel()

    def skipped(self, ix: SkippingIndex, queries: Any, columns: Any = None) -> tuple[float, float]:
        """Return the skip rate, and the wasted reads of row groups per query.

        With ``columns``, only their predicates are asked for, of the row groups that a query with
        all predicates visits.
        """
        order = np.argsort(-self.utility, kind="stable")
        considered = skipped = wasted = 0
        for number in queries:
            hits = self.truth[number, order]
            reached = np.flatnonzero(np.cumsum(hits) >= self.limit)
            end = int(reached[0]) + 1 if len(reached) else len(order)
            may = np.zeros(self.groups, np.bool_)
            where = {c: self.queries[number][c] for c in columns or self.queries[number]}
            may[[group for _, group in ix.row_groups(where)]] = True
            assert may[self.truth[number] > 0].all(), "a row would be missed"
            seen = may[order][:end]
            considered += end
            skipped += end - int(seen.sum())
            wasted += int((seen & (hits[:end] == 0)).sum())
        return skipped / considered, wasted / len(queries)

    def timed(self, ix: SkippingIndex, queries: Any) -> tuple[float, float, float]:
        """Return processor time per query in ms, the part wasted, and filters read from disk."""
        before, reads = ix.stats.wasted_seconds, ix.collection.tail_reads
        clock, processor = time.perf_counter(), time.process_time()
        for number in queries:
            ix.scan(self.queries[number], limit=self.limit)
        spent = (time.process_time() - processor) / len(queries) * 1000
        wasted = (ix.stats.wasted_seconds - before) / (time.perf_counter() - clock)
        return spent, spent * wasted, (ix.collection.tail_reads - reads) / len(queries)


def visits(found: Any, rows: int, queries: int, limit: int) -> Any:
    """Return how many queries reach each row before their limit is met (as in the paper)."""
    stops = found.group_by("query").agg(pl.col("row").slice(limit - 1, 1).first())
    ends = stops["row"].drop_nulls().to_numpy()
    reached = np.bincount(ends, minlength=rows)
    reached[-1] += queries - len(ends)
    return reached[::-1].cumsum()[::-1].astype(float)


@cache
def folder() -> Path:
    """Return a folder that lasts as long as the process."""
    kept = tempfile.TemporaryDirectory(prefix="tamis-")
    atexit.register(kept.cleanup)
    return Path(kept.name)


@cache
def frame(name: str, quick: bool) -> tuple[Any, list[str]]:
    """Return a table, and the columns that are queried."""
    if name == "EV":
        columns = data.table("ev_queries").column_names
        return pl.from_arrow(data.table("ev")).drop("utility"), columns
    if name == "RE":
        found = pl.from_arrow(data.table("flights"))
        found = found.sort("year", "month", "day", "sched_dep_time", maintain_order=True)
        return found.head(100_000) if quick else found, ["tailnum", "dest"]
    found = pl.from_arrow(data.table("trace_twitter52"))
    return found.head(200_000) if quick else found, ["key"]


def common(rows: Any, columns: list[str], count: int) -> Any:
    """Return the most common combinations of values, as queries."""
    counts = rows.drop_nulls(columns).group_by(columns).len()
    down = [True, *[False] * len(columns)]
    return counts.sort("len", *columns, descending=down).head(count).select(columns).to_dicts()


@cache
def lake(name: str, quick: bool, limit: int = LIMIT, first: int = QUERIES) -> Lake:
    """Return a table of the paper or its stand-in, with the first of its queries."""
    rows, columns = frame(name, quick)
    if name == "EV":
        queries = pl.from_arrow(data.table("ev_queries")).to_dicts()
    else:
        queries = common(rows, columns, QUERIES)
    own = folder() / f"{name} {limit} {first}"
    own.mkdir(exist_ok=True)
    return Lake(own, rows, columns, queries[:first], limit)


def spread(count: int, wanted: int) -> list[int]:
    """Return so many numbers below ``count``, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, wanted)).astype(int)).tolist()
