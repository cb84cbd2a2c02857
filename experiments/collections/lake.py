"""Data skipping: wasted reads of row groups, by how a memory budget is allocated.

The paper's own table and queries (`ev`, limit 5, which gives its utilities exactly): skip rate,
wasted time and latency against the budget (its Figures 2 to 4 and 6), and how they depend on the
limit and on the predicates (Figure 5). Then `flights` by tail number and destination, and a
million rows in a thousand row groups from `trace_twitter52`.

Skip rates are exact, computed from the row groups that an index returns and from the matching
rows; times are processor times of `SkippingIndex.scan` on some of the queries. Budgets are
relative to full Bloom filters with a rate of 1e-4, without the memory per row group besides the
bits, which is the same for all. All have zones.
"""

import argparse
import itertools
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))
import data
from tamis.parquet import SkippingIndex

# Name: kind of filter, method of allocation, whether the truncated part is read from disk.
METHODS = {
    "zones": ("truncated", "optimal", False),
    "on disk": ("truncated", "optimal", True),
    "proportional": ("truncated", "proportional", False),
    "top utility": ("truncated", "top utility", False),
    "elastic": ("truncated", "elastic", False),
    "paper": ("truncated", "relaxation", False),
    "segmented": ("segmented", "optimal", False),
    "ribbon": ("ribbon", "optimal", False),
    "HTU": ("truncated", "top utility", True),
    "HBB": ("truncated", "relaxation", True),
    "ribbon, hybrid": ("ribbon", "optimal", True),
}
FIXED = ("zones", "on disk")  # no budget


class Lake:
    """A table in row groups, its queries, and the exact answers."""

    def __init__(self, folder, frame, columns, queries, *, rows, limit, utility=None):
        self.folder, self.columns, self.limit = folder, columns, limit
        self.path = folder / "table.parquet"
        pq.write_table(frame.to_arrow(), self.path, row_group_size=rows, compression="zstd")
        self.queries = queries
        where = pl.DataFrame(queries).with_row_index("query")
        placed = frame.with_row_index("row").with_columns(group=pl.col("row") // rows)
        found = where.join(placed, on=list(queries[0]), how="inner").sort("query", "row")
        self.groups = -(-len(frame) // rows)
        if utility is None:
            utility = visits(found, len(frame), len(queries), limit)
        whole = np.arange(len(frame)) // rows
        self.utility = np.bincount(whole, utility, self.groups) / np.bincount(whole)
        counts = found.group_by("query", "group").len()
        self.truth = np.zeros((len(queries), self.groups), np.int64)
        self.truth[counts["query"].to_numpy(), counts["group"].to_numpy()] = counts["len"]
        self.indexes = {}
        self.bloom_bits = int(self.built("truncated").collection.full.sum())

    def built(self, kind):
        """Return the index with full filters of a kind."""
        if kind not in self.indexes:
            path = self.folder / f"{kind}.tamis"
            self.indexes[kind] = SkippingIndex.build(
                self.path, columns=self.columns, path=path, kind=kind, utility=self.utility
            )
        return self.indexes[kind]

    def index(self, method, percent):
        """Return the index of a method with a budget in percent of full Bloom filters."""
        kind, allocation, hybrid = METHODS[method]
        least = self.built(kind)._state.least_bytes
        share = 0 if method in FIXED else percent
        path = self.folder / f"{kind}.tamis"
        ix = SkippingIndex.open(
            path, source=self.path, memory=least, hybrid=hybrid, recheck=3600
        )
        ix.allocate(memory=least + self.bloom_bits * share // 800, method=allocation)
        return ix

    def skipped(self, ix, queries):
        """Return the skip rate, and the wasted reads of row groups per query."""
        order = np.argsort(-self.utility, kind="stable")
        considered = skipped = wasted = 0
        for number in queries:
            hits = self.truth[number, order]
            reached = np.flatnonzero(np.cumsum(hits) >= self.limit)
            end = int(reached[0]) + 1 if len(reached) else len(order)
            may = np.zeros(self.groups, np.bool_)
            named = ix.row_groups(self.queries[number])
            may[[group for _, group in named]] = True
            assert may[self.truth[number] > 0].all(), "a row would be missed"
            seen = may[order][:end]
            considered += end
            skipped += end - int(seen.sum())
            wasted += int((seen & (hits[:end] == 0)).sum())
        return skipped / considered, wasted / len(queries)

    def timed(self, ix, queries):
        """Return processor time per query in ms, and the part of it that was wasted."""
        before = ix.stats.wasted_seconds
        clock, processor = time.perf_counter(), time.process_time()
        for number in queries:
            ix.scan(self.queries[number], limit=self.limit)
        spent = (time.process_time() - processor) / len(queries) * 1000
        wasted = (ix.stats.wasted_seconds - before) / (time.perf_counter() - clock)
        return spent, spent * wasted


def visits(found, rows, queries, limit):
    """Return how many queries reach each row before their limit is met (as in the paper)."""
    stops = found.group_by("query").agg(pl.col("row").slice(limit - 1, 1).first())
    ends = stops["row"].drop_nulls().to_numpy()
    reached = np.bincount(ends, minlength=rows)
    reached[-1] += queries - len(ends)
    return reached[::-1].cumsum()[::-1].astype(float)


def spread(count, wanted):
    return np.unique(np.linspace(0, count - 1, min(count, wanted)).astype(int)).tolist()


def figures(name, lake, budgets, exact, timed):
    """Print skip rate, wasted reads, wasted time and latency by budget."""
    print(
        f"\n{name}: {lake.groups:,} row groups, columns {', '.join(lake.columns)}, "
        f"limit {lake.limit}, {lake.bloom_bits / 8e6:.2f} MB of full Bloom filters"
    )
    asked, some = spread(len(lake.queries), exact), spread(len(lake.queries), timed)
    titles = ["skip rate", "wasted reads", "wasted ms", "latency ms"]
    tables = {title: {} for title in titles}
    for method in METHODS:
        for percent in budgets[:1] if method in FIXED else budgets:
            ix = lake.index(method, percent)
            values = (*lake.skipped(ix, asked), *reversed(lake.timed(ix, some)))
            for title, value in zip(titles, values, strict=True):
                tables[title][method, percent] = value
    for title in titles:
        print(f"\n{title:>16}", *(f"{percent:>7}%" for percent in budgets))
        for method in METHODS:
            row = [tables[title].get((method, percent)) for percent in budgets]
            cells = ["" if value is None else f"{value:.4g}" for value in row]
            print(f"{method:>16}", *(f"{cell:>8}" for cell in cells))
    ordered(tables["skip rate"], budgets)


def ordered(rates, budgets):
    """Print whether ours skips at least as much as the paper, and that as the baselines."""
    baselines = ("proportional", "top utility", "elastic")
    for percent in budgets:
        ours, paper = rates["ribbon", percent], rates["paper", percent]
        best = max(rates[each, percent] for each in baselines)
        answer = "yes" if ours >= paper - 1e-3 and paper >= best - 1e-2 else "NO"
        print(f"{percent:>4}%: ribbon ≥ paper ≥ baselines (to 0.001, 0.01): {answer}")


def ev(folder, quick):
    frame = pl.from_arrow(data.table("ev"))
    asked = pl.from_arrow(data.table("ev_queries"))
    columns, given = asked.columns, frame["utility"].to_numpy()
    frame, queries = frame.drop("utility"), asked.to_dicts()
    lake = Lake(folder, frame, columns, queries, rows=1000, limit=5)
    same = np.allclose(
        lake.utility[:-1], given[: len(given) // 1000 * 1000].reshape(-1, 1000).mean(1)
    )
    print(f"utilities of a limit of 5 are those of the table: {'yes' if same else 'NO'}")
    budgets = (10, 30, 50) if quick else (10, 20, 30, 40, 50, 60, 70, 80, 90)
    figures("ev", lake, budgets, 100 if quick else 2500, 10 if quick else 60)

    print(
        "\nev: skip rate by limit (Figure 5, left), ribbon / the paper's method, first 100 queries"
    )
    shares = (10, 30, 50, 100)
    print(f"{'limit':>16}", *(f"{share:>14}%" for share in shares))
    for limit in (1, 5, 25, 125):
        own = Lake(folder, frame, columns, queries[:100], rows=1000, limit=limit)
        print(f"{limit:>16}", *compared(own, shares))
    print("\nev: skip rate by predicates (Figure 5, right), limit 5")
    print(f"{'columns':>34}", *(f"{share:>14}%" for share in shares))
    singles = [(column,) for column in columns]
    pairs = list(itertools.combinations(columns, 2))[:: 5 if quick else 3]
    for chosen in [*singles, *pairs, tuple(columns)]:
        few = [{column: query[column] for column in chosen} for query in queries[:100]]
        own = Lake(folder, frame, list(chosen), few, rows=1000, limit=5)
        label = "all" if len(chosen) > 2 else " and ".join(chosen)
        print(f"{label:>34}", *compared(own, shares))


def compared(lake, shares):
    asked = range(len(lake.queries))
    for share in shares:
        ours, paper = (lake.skipped(lake.index(m, share), asked)[0] for m in ("ribbon", "paper"))
        yield f"{ours:.4f}/{paper:.4f}".rjust(15)


def flights(folder, quick):
    """Sorted by time, with more queries for recent rows; queries are modelled, rows are real."""
    frame = pl.from_arrow(data.table("flights")).sort("year", "month", "day", "sched_dep_time")
    rows, rng = 1000, np.random.default_rng(0)
    frame = frame.reverse()
    groups = -(-len(frame) // rows)
    weight = 0.98 ** np.arange(groups)
    budgets = (10, 30, 50) if quick else (10, 20, 30, 50, 70, 90)
    for columns in (["tailnum"], ["tailnum", "dest"]):
        known = frame.with_row_index("row").drop_nulls(columns)
        chance = weight[known["row"].to_numpy() // rows]
        picked = rng.choice(len(known), 600, p=chance / chance.sum())
        queries = known[picked].select(columns).to_dicts()
        lake = Lake(folder, frame, columns, queries, rows=rows, limit=1)
        figures("flights", lake, budgets, 100 if quick else 600, 10 if quick else 60)


def twitter(folder, quick):
    """Requests in a thousand row groups; the keys queried are those of the last requests."""
    frame = pl.from_arrow(data.table("trace_twitter52")).reverse()
    rng = np.random.default_rng(0)
    # Queries repeat the latest tenth of the trace.
    picked = rng.integers(0, len(frame) // 10, 1000)
    queries = frame[picked].select("key").to_dicts()
    lake = Lake(folder, frame, ["key"], queries, rows=1000, limit=20)
    budgets = (10, 30, 50) if quick else (10, 20, 30, 50, 70, 90)
    figures("trace_twitter52", lake, budgets, 100 if quick else 1000, 2 if quick else 20)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer budgets and queries")
    parser.add_argument("--only", choices=["ev", "flights", "twitter"])
    arguments = parser.parse_args()
    for run in (ev, flights, twitter):
        if arguments.only in (None, run.__name__):
            with tempfile.TemporaryDirectory() as folder:
                run(Path(folder), arguments.quick)


if __name__ == "__main__":
    main()
