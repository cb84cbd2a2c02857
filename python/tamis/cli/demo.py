"""``tamis demo``: filters in front of a database, from keys and a query log to a chart."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click

import tamis
from tamis._columns import as_list, join
from tamis.cli._input import Source, split_log
from tamis.cli._options import FILE, as_json, example, key_input, log_source, query_log
from tamis.cli._output import note, progress, say, show_json, table
from tamis.cli._scene import Scene, scene
from tamis.pictures import figure_axes
from tamis.planning.formats import format_rate, format_size
from tamis.report import Report

_BATCH = 1 << 16
"""Queries per batch."""

_BUDGETS = (0.6, 0.8, 1.0, 1.2, 1.4)
"""Budgets in the chart, relative to --bits-per-key."""


class Run(NamedTuple):
    """What one filter of one size did for all queries of the log."""

    filter: str
    bits_per_key: float
    bits: int
    reads_wasted: int
    predicted: float
    reads_saved: int
    recommended: bool


@click.command(
    "demo", epilog=example("tamis demo", "tamis demo --keys blocked.txt --queries log.txt")
)
@click.option("--keys", type=FILE, help="File of keys (default: a generated blocklist of hosts).")
@key_input
@query_log
@click.option("--hosts", type=click.IntRange(1), default=200_000,
              help="Number of blocked hosts to generate.")  # fmt: skip
@click.option("--visits", type=click.IntRange(1), default=1_000_000,
              help="Number of queries to generate.")  # fmt: skip
@click.option("--bits-per-key", type=float, default=10.0,
              help="Memory budget of each filter in bits per key.")  # fmt: skip
@click.option("--miss-cost", default="1ms", help="Cost of a wasted read.")
@click.option("--seed", type=int, default=0, help="Seed of the generated data.")
@click.option("-o", "--output", type=click.Path(file_okay=False), default="tamis-demo",
              help="Folder for the database, the chart and the report.")  # fmt: skip
@as_json
def command(
    keys: str | None,
    column: str | None,
    format: Any,
    integers: bool,
    queries: str | None,
    queries_column: str | None,
    regex: str | None,
    log_format: Any,
    hosts: int,
    visits: int,
    bits_per_key: float,
    miss_cost: str,
    seed: int,
    output: str,
    as_json: bool,
) -> None:
    """Compare what filters save in front of a database: a table, a chart, a report.

    Keys are stored in SQLite. `tamis.advise` ranks the filters for a query log. Then each kind of
    filter, at equal memory, is put in front of the database while a second log is replayed, and
    the reads that find nothing are counted. With your own log (--queries), the first half is used
    for the advice and the second half is replayed.
    """
    if (keys is None) != (queries is None):
        raise click.UsageError("pass both of --keys and --queries, or neither")
    say_text: Callable[[str], None] = (lambda text: None) if as_json else say
    if keys is not None and queries is not None:
        source = Source(keys, column, format, integers)
        data = _own(source, log_source(source, queries, queries_column, regex, log_format))
    else:
        data = scene(hosts, visits, seed)
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    database = _store(folder / "keys.db", data.keys)
    workload = tamis.Workload.from_queries(data.sample, keys=data.keys)
    advice = tamis.advise(
        data.keys, workload, bits_per_key=bits_per_key, miss_cost=miss_cost, needs={"store"}
    )
    say_text(
        f"{len(data.keys):,} keys, stored in {database}. A log of {len(data.sample):,} queries:\n"
    )
    say_text(f"{workload}\n")
    shown = replace(advice, ruled_out=(), unjudged=())
    say_text(f"Advice:\n\n{shown}\n")
    say_text(f"Each filter in front of the database, for {len(data.queries):,} other queries:\n")
    runs = list(_replay_all(data, workload, advice, database, bits_per_key, miss_cost))
    here = [run for run in runs if run.bits_per_key == bits_per_key]
    if as_json:
        show_json({"queries": len(data.queries), "runs": [run._asdict() for run in runs]})
    else:
        heads, *rows = _cells(here)
        say(table(heads, rows) + "\n")
        say(_verdict(here))
    _save_report(runs, here, data, advice, workload, folder)
    if not as_json and keys is None:
        say("\nWith your own keys and query log:")
        say("  tamis build users.csv --column email --fpr 0.001 -o users.tamis")
        say("  tamis demo --keys users.csv --column email --queries log.csv")


def _own(keys: Source, queries: Source) -> Scene:
    return Scene(join(list(keys.read_keys())), *split_log(queries))


def _store(path: Path, keys: Any) -> Path:
    """Write the keys to a table of SQLite."""
    path.unlink(missing_ok=True)
    values = [key.decode() if isinstance(key, bytes) else key for key in as_list(keys)]
    if not all(isinstance(value, str | int) for value in values[:1]):
        raise ValueError(f"keys must be text or integers, not {type(values[0]).__name__}")
    kind = "INTEGER" if isinstance(values[0], int) else "TEXT"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"CREATE TABLE keys (key {kind} PRIMARY KEY) WITHOUT ROWID")
        db.executemany("INSERT OR IGNORE INTO keys VALUES (?)", zip(values, strict=True))
    return path


def _replay_all(
    data: Scene,
    workload: tamis.Workload,
    advice: Any,
    database: Path,
    bits_per_key: float,
    miss_cost: str,
) -> Iterator[Run]:
    """Replay the log through each kind of filter in the advice, in several sizes."""
    kinds: dict[str, str] = {}
    for choice in advice.choices:
        kinds.setdefault(choice.filter, choice.name)
    with progress("replaying", len(_BUDGETS) * len(kinds)) as advance:
        for share_of_budget in _BUDGETS:
            each = bits_per_key * share_of_budget
            here = advice if share_of_budget == 1.0 else tamis.advise(
                data.keys, workload, bits_per_key=each, miss_cost=miss_cost, needs={"store"}
            )  # fmt: skip
            found = {choice.name: choice for choice in here.choices}
            for name in kinds.values():
                if name in found:
                    chosen = name == advice.best.name
                    yield _replay(data, found[name], each, database, chosen)
                advance(1)


def _replay(data: Scene, choice: Any, bits_per_key: float, database: Path, chosen: bool) -> Run:
    f = choice.build(data.keys, seed=0)
    store = tamis.stores.SQLite(database, table="keys", key="key", value="key")
    with tamis.Guard(store, f) as g:
        for start in range(0, len(data.queries), _BATCH):
            g.get_many(data.queries[start : start + _BATCH])
        stats, bits = g.stats, g.filter.size_in_bits
    predicted = choice.expected_fpr * stats.negatives
    wasted = stats.false_positives
    return Run(
        choice.name, bits_per_key, bits, wasted, predicted, stats.reads_saved, chosen
    )  # fmt: skip


def _cells(runs: list[Run]) -> list[list[str]]:
    """Return the table of the filters of one size, by wasted reads, with its header."""
    return [["filter", "memory", "reads saved", "reads wasted", "predicted"]] + [
        [
            f"{run.filter}{' (recommended)' if run.recommended else ''}",
            format_size(run.bits),
            f"{run.reads_saved:,}",
            f"{run.reads_wasted:,}",
            f"{run.predicted:,.0f}",
        ]
        for run in sorted(runs, key=lambda run: run.reads_wasted)
    ]


def _verdict(runs: list[Run]) -> str:
    """Compare the recommended filter with the smallest and with the most common kind."""
    chosen = next(run for run in runs if run.recommended)
    lines = []
    for name in ("Ribbon", "Bloom"):
        other = next((run for run in runs if run.filter.startswith(name)), None)
        if other is not None and chosen.reads_wasted and other is not chosen:
            times = other.reads_wasted / chosen.reads_wasted
            lines.append(f"{other.filter} wastes {times:.1f} times as many")
    others = f"; {', '.join(lines)}" if lines else ""
    asked = chosen.reads_saved + chosen.reads_wasted
    rate = format_rate(chosen.reads_wasted / max(asked, 1))
    return f"{chosen.filter} wastes a read on {rate} of the queries for absent keys{others}."


def _draw(runs: list[Run], queries: int) -> Any:
    """Draw wasted reads by memory, one line per kind of filter; return the axes."""
    ax = figure_axes(8, 5)
    million = 1e6 / queries
    order = sorted(runs, key=lambda run: run.reads_wasted, reverse=True)
    for name in dict.fromkeys(run.filter for run in order):
        line = [run for run in runs if run.filter == name]
        chosen = line[0].recommended
        memory = [run.bits / 8e6 for run in line]
        points = ax.plot(
            memory,
            [max(run.reads_wasted, 0.5) * million for run in line],
            marker="o",
            linewidth=3.5 if chosen else 1.5,
            zorder=3 if chosen else 2,
            label=f"{name} (recommended)" if chosen else name,
        )
        predicted = [max(run.predicted, 0.5) * million for run in line]
        ax.plot(memory, predicted, linestyle=":", linewidth=1, color=points[0].get_color())
    ax.plot([], [], linestyle=":", color="gray", label="predicted")
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.12g}")
    ax.set_xlabel("memory of the filter (MB)")
    ax.set_ylabel("wasted reads per million queries")
    ax.set_title("Database reads that find nothing, by the memory of the filter")
    ax.grid(alpha=0.3, which="both")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4, frameon=False)
    return ax


def _save_report(
    runs: list[Run], here: list[Run], data: Scene, advice: Any, workload: Any, folder: Path
) -> None:
    """Save the chart and the report, and print where they are."""
    try:
        ax = _draw(runs, len(data.queries))
    except ImportError as error:
        note(f"tamis: {error}")
        return
    for ending in ("png", "svg"):
        path = folder / f"reads_wasted.{ending}"
        ax.get_figure().savefig(path, dpi=150, bbox_inches="tight")
    heads, *rows = _cells(here)
    report = Report("Filters in front of a database")
    report.text(
        f"{len(data.keys):,} keys in SQLite, {len(data.queries):,} queries, "
        f"{here[0].bits_per_key:g} bits per key for each filter."
    )
    report.table(heads, rows, first=True).text(_verdict(here))
    report.picture(
        ax, "Lower is better. Each line is a kind of filter, each point a measured size."
    )
    report.heading("Workload").text(str(workload).splitlines()[0] + ".")
    report.picture(workload.plot(figure_axes(7, 4)))
    report.heading("Advice").lines(str(advice))
    report.save(folder / "report.html")
    note(f"chart: {folder / 'reads_wasted.png'} (and .svg); report: {folder / 'report.html'}")
