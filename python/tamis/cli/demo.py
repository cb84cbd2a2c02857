"""``tamis demo``: the main job in one command, from keys and a log to a picture of the gain."""

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
from tamis.cli._input import Source, halves
from tamis.cli._options import FILE, as_json, asked, example, log, reading
from tamis.cli._output import note, progress, say, share, show_json, size, table
from tamis.cli._scene import Scene, scene
from tamis.pictures import figure_axes
from tamis.report import Report

_BATCH = 1 << 16
"""Questions that the guard is asked at a time."""

_AROUND = (0.6, 0.8, 1.0, 1.2, 1.4)
"""Budgets of the picture, as shares of the one that is asked for."""


class Run(NamedTuple):
    """A filter of one size, before the store for all questions of the log."""

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
@click.option("--keys", type=FILE, help="Your own keys; else a list of blocked hosts is made.")
@reading
@asked
@click.option("--hosts", type=click.IntRange(1), default=200_000, help="Hosts to make.")
@click.option("--questions", type=click.IntRange(1), default=1_000_000, help="Questions to make.")
@click.option("--bits-per-key", type=float, default=10.0, help="The memory for each filter.")
@click.option("--miss-cost", default="1ms", help="What a read in vain costs.")
@click.option("--seed", type=int, default=0, help="Of what is made.")
@click.option("-o", "--output", type=click.Path(file_okay=False), default="tamis-demo",
              help="The folder for the database, the picture and the report.")  # fmt: skip
@as_json
def command(
    keys: str | None,
    column: str | None,
    format: Any,
    integers: bool,
    queries: str | None,
    queries_column: str | None,
    hosts: int,
    questions: int,
    bits_per_key: float,
    miss_cost: str,
    seed: int,
    output: str,
    as_json: bool,
) -> None:
    """Show what a filter that knows its workload saves: a table, a picture, a report.

    Keys are stored in SQLite. A log of questions is shown to `tamis.advise`; then each kind of
    filter that it names stands before the store, at equal memory, while another log of the same
    kind is replayed. What counts is the reads of the store that find nothing. Of your own log
    (--queries) the first half is learned from and the second replayed.
    """
    if (keys is None) != (queries is None):
        raise click.UsageError("give --keys and --queries, or neither")
    tell: Callable[[str], None] = (lambda text: None) if as_json else say
    if keys is not None and queries is not None:
        source = Source(keys, column, format, integers)
        of = _own(source, log(source, queries, queries_column))
    else:
        of = scene(hosts, questions, seed)
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    database = _stored(folder / "keys.db", of.keys)
    workload = tamis.Workload.from_queries(of.sample, keys=of.keys)
    advice = tamis.advise(
        of.keys, workload, bits_per_key=bits_per_key, miss_cost=miss_cost, needs={"store"}
    )
    tell(f"{len(of.keys):,} keys, stored in {database}. A log of {len(of.sample):,} questions:\n")
    tell(f"{workload}\n")
    shown = replace(advice, ruled_out=(), unjudged=())
    tell(f"What tamis.advise says of it:\n\n{shown}\n")
    tell(f"Now the filters before the store, for {len(of.questions):,} other questions:\n")
    runs = list(_replayed(of, workload, advice, database, bits_per_key, miss_cost))
    here = [run for run in runs if run.bits_per_key == bits_per_key]
    if as_json:
        show_json({"questions": len(of.questions), "runs": [run._asdict() for run in runs]})
    else:
        heads, *rows = _cells(here)
        say(table(heads, rows) + "\n")
        say(_verdict(here))
    _shown(runs, here, of, advice, workload, folder)
    if not as_json and keys is None:
        say("\nOne more command for your own keys, one for your own log:")
        say("  tamis build users.csv --column email --fpr 0.001 -o users.tamis")
        say("  tamis demo --keys users.csv --column email --queries log.csv")


def _own(keys: Source, queries: Source) -> Scene:
    return Scene(join(list(keys.read_keys())), *halves(queries))


def _stored(path: Path, keys: Any) -> Path:
    """Write the keys to a table of SQLite, as any program would."""
    path.unlink(missing_ok=True)
    values = [key.decode() if isinstance(key, bytes) else key for key in as_list(keys)]
    if not all(isinstance(value, str | int) for value in values[:1]):
        raise ValueError(
            f"keys are of type {type(values[0]).__name__}; text or integers are wanted"
        )
    kind = "INTEGER" if isinstance(values[0], int) else "TEXT"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"CREATE TABLE keys (key {kind} PRIMARY KEY) WITHOUT ROWID")
        db.executemany("INSERT OR IGNORE INTO keys VALUES (?)", zip(values, strict=True))
    return path


def _replayed(
    of: Scene,
    workload: tamis.Workload,
    advice: Any,
    database: Path,
    bits_per_key: float,
    miss_cost: str,
) -> Iterator[Run]:
    """Let each kind of filter that the advice names answer the questions, in several sizes."""
    kinds: dict[str, str] = {}
    for choice in advice.choices:
        kinds.setdefault(choice.filter, choice.name)
    with progress("replaying", len(_AROUND) * len(kinds)) as advance:
        for share_of_budget in _AROUND:
            each = bits_per_key * share_of_budget
            here = advice if share_of_budget == 1.0 else tamis.advise(
                of.keys, workload, bits_per_key=each, miss_cost=miss_cost, needs={"store"}
            )  # fmt: skip
            found = {choice.name: choice for choice in here.choices}
            for name in kinds.values():
                if name in found:
                    chosen = name == advice.best.name
                    yield _run(of, found[name], each, database, chosen)
                advance(1)


def _run(of: Scene, choice: Any, bits_per_key: float, database: Path, chosen: bool) -> Run:
    f = choice.build(of.keys, seed=0)
    store = tamis.stores.SQLite(database, table="keys", key="key", value="key")
    with tamis.Guard(store, f) as g:
        for start in range(0, len(of.questions), _BATCH):
            g.get_many(of.questions[start : start + _BATCH])
        stats, bits = g.stats, g.filter.size_in_bits
    predicted = choice.expected_fpr * stats.negatives
    wasted = stats.false_positives
    return Run(
        choice.name, bits_per_key, bits, wasted, predicted, stats.reads_saved, chosen
    )  # fmt: skip


def _cells(runs: list[Run]) -> list[list[str]]:
    """The filters of one size, from the fewest reads wasted, under their header."""
    return [["filter", "memory", "reads saved", "reads wasted", "predicted"]] + [
        [
            f"{run.filter}{' (recommended)' if run.recommended else ''}",
            size(run.bits),
            f"{run.reads_saved:,}",
            f"{run.reads_wasted:,}",
            f"{run.predicted:,.0f}",
        ]
        for run in sorted(runs, key=lambda run: run.reads_wasted)
    ]


def _verdict(runs: list[Run]) -> str:
    """Say what the recommended filter saves, beside the best and the usual other."""
    chosen = next(run for run in runs if run.recommended)
    lines = []
    for name in ("Ribbon", "Bloom"):
        other = next((run for run in runs if run.filter.startswith(name)), None)
        if other is not None and chosen.reads_wasted and other is not chosen:
            times = other.reads_wasted / chosen.reads_wasted
            lines.append(f"{times:.1f} times as many with {other.filter}")
    beside = f": {', '.join(lines)}" if lines else ""
    asked = chosen.reads_saved + chosen.reads_wasted
    rate = share(chosen.reads_wasted / max(asked, 1))
    return f"{chosen.filter} wastes {rate} of the questions for absent keys{beside}."


def _drawn(runs: list[Run], questions: int) -> Any:
    """Draw reads wasted by memory, one line per filter; return the axes."""
    ax = figure_axes(8, 5)
    million = 1e6 / questions
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
    ax.set_ylabel("store reads wasted per million questions")
    ax.set_title("Store reads that find nothing, by the memory of the filter before it")
    ax.grid(alpha=0.3, which="both")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4, frameon=False)
    return ax


def _shown(
    runs: list[Run], here: list[Run], of: Scene, advice: Any, workload: Any, folder: Path
) -> None:
    """Write the picture and the report, and say where they are."""
    try:
        ax = _drawn(runs, len(of.questions))
    except ImportError as error:
        note(f"tamis: {error}")
        return
    for ending in ("png", "svg"):
        path = folder / f"reads_wasted.{ending}"
        ax.get_figure().savefig(path, dpi=150, bbox_inches="tight")
    heads, *rows = _cells(here)
    report = Report("What a filter before a store saves")
    report.text(
        f"{len(of.keys):,} keys in SQLite, {len(of.questions):,} questions, "
        f"{here[0].bits_per_key:g} bits per key for each filter."
    )
    report.table(heads, rows, first=True).text(_verdict(here))
    report.picture(
        ax, "Further down is better. A line is a kind of filter, a point a size that was measured."
    )
    report.heading("What was known beforehand").text(str(workload).splitlines()[0] + ".")
    report.picture(workload.plot(figure_axes(7, 4)))
    report.heading("What was advised").lines(str(advice))
    report.save(folder / "report.html")
    note(f"Picture: {folder / 'reads_wasted.png'} (and .svg); report: {folder / 'report.html'}")
