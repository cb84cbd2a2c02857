"""``tamis demo``: filters in front of a database, from keys and a query log to a chart."""

from __future__ import annotations

import logging
import sqlite3
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

import tamis
from tamis import traces
from tamis._columns import as_list, join
from tamis._format import format_rate, format_size
from tamis.advice.rendering import WIDTH, cells, head
from tamis.cli._input import Source, split_log
from tamis.cli._options import FILE, Command, as_json, example, key_input, log_source, query_log
from tamis.cli._output import print_stderr, progress, say, show_json, table
from tamis.plotting import figure_axes, spread_apart
from tamis.report import Report

_BATCH = 1 << 16
"""Queries per batch."""

_BUDGETS = (0.6, 0.8, 1.0, 1.2, 1.4)
"""Budgets in the chart, relative to --bits-per-key."""


class Run(NamedTuple):
    """The results of one filter of one size on all queries of the log."""

    filter: str
    bits_per_key: float
    bits: int
    reads_wasted: int
    predicted: float
    reads_saved: int
    recommended: bool


@click.command(
    "demo",
    cls=Command,
    epilog=example("tamis demo", "tamis demo --keys blocked.txt --queries log.txt"),
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
    columns: tuple[str, ...],
    format: Any,
    integers: bool,
    queries: str | None,
    queries_columns: tuple[str, ...],
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
        source = Source(keys, columns, format, integers)
        data = _read_data(source, log_source(source, queries, queries_columns, regex, log_format))
    else:
        data = generate_data(hosts, visits, seed)
    folder = Path(output)
    _open_folder(folder)
    database = _store(folder / "keys.db", data.keys)
    workload = tamis.Workload.from_queries(data.sample, keys=data.keys)
    advice = tamis.advise(
        data.keys, workload, bits_per_key=bits_per_key, miss_cost=miss_cost, needs={"store"}
    )
    say_text(
        f"{len(data.keys):,} keys, stored in {database}. A log of {len(data.sample):,} queries:\n"
    )
    say_text(f"{workload}\n")
    shown = replace(advice, ruled_out=(), unknowns=())
    say_text(f"Advice:\n\n{shown}\n")
    # The guard warns if a rate is above the expected one; the table shows it anyway.
    logging.getLogger("tamis.guard").setLevel(logging.ERROR)
    say_text(f"Each filter in front of the database, for {len(data.queries):,} other queries:\n")
    runs = list(_replay_all(data, workload, advice, database, bits_per_key, miss_cost))
    at_budget = [run for run in runs if run.bits_per_key == bits_per_key]
    if as_json:
        show_json({"queries": len(data.queries), "runs": [run._asdict() for run in runs]})
    else:
        heads, *rows = _cells(at_budget)
        say(table(heads, rows) + "\n")
        say(textwrap.fill(_verdict(at_budget), WIDTH))
    _save_report(runs, at_budget, data, advice, workload, folder)
    if not as_json and keys is None:
        say("\nWith your own keys and query log:")
        say("  tamis build users.csv --column email --fpr 0.001 -o users.tamis")
        say("  tamis demo --keys users.csv --column email --queries log.csv")


def _read_data(keys: Source, queries: Source) -> DemoData:
    known = join(list(keys.read_keys()))
    return DemoData(known, *split_log(queries, known))


_APPLICATION_ID = 0x74616D69
"""Marks the database of a demo: "tami" in ASCII."""


def _open_folder(folder: Path) -> None:
    """Create the folder, or empty it of an earlier demo; a folder with other files is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    database = folder / "keys.db"
    if database.is_file():
        with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as db:
            if db.execute("PRAGMA application_id").fetchone() == (_APPLICATION_ID,):
                return
    if any(folder.iterdir()):
        raise ValueError(f"--output must be a new or empty folder, not {str(folder)!r}")


def _store(path: Path, keys: Any) -> Path:
    """Write the keys to an SQLite table."""
    path.unlink(missing_ok=True)
    values = [key.decode() if isinstance(key, bytes) else key for key in as_list(keys)]
    if not all(isinstance(value, str | int) for value in values[:1]):
        raise ValueError(f"keys must be text or integers, not {type(values[0]).__name__}")
    kind = "INTEGER" if isinstance(values[0], int) else "TEXT"
    try:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            db.execute(f"CREATE TABLE keys (key {kind} PRIMARY KEY) WITHOUT ROWID")
            db.executemany("INSERT OR IGNORE INTO keys VALUES (?)", zip(values, strict=True))
    except BaseException:
        path.unlink(missing_ok=True)  # or the next demo would refuse its folder
        raise
    return path


def _replay_all(
    data: DemoData,
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
            budget = bits_per_key * share_of_budget
            advised = advice if share_of_budget == 1.0 else tamis.advise(
                data.keys, workload, bits_per_key=budget, miss_cost=miss_cost, needs={"store"}
            )  # fmt: skip
            found = {choice.name: choice for choice in advised.choices}
            for name in kinds.values():
                if name in found:
                    chosen = name == advice.best.name
                    yield _replay(data, found[name], budget, database, chosen)
                advance(1)


def _replay(data: DemoData, choice: Any, bits_per_key: float, database: Path, chosen: bool) -> Run:
    f = choice.build(data.keys, seed=0)
    store = tamis.stores.SQLite(database, table="keys", key="key", value="key")
    with tamis.Guard(store, f) as g:
        for start in range(0, len(data.queries), _BATCH):
            g.get_many(data.queries[start : start + _BATCH])
        stats, bits = g.stats, g.filter.size_in_bits
    predicted = choice.expected_fpr * stats.negatives
    wasted = stats.wasted_reads
    saved = stats.negatives - wasted  # a key that a batch has twice is read once
    return Run(choice.name, bits_per_key, bits, wasted, predicted, saved, chosen)


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
    queries = chosen.reads_saved + chosen.reads_wasted
    rate = format_rate(chosen.reads_wasted / max(queries, 1))
    return f"{chosen.filter} wastes a read on {rate} of the queries for absent keys{others}."


_STRONG, _MUTED = "#d9480f", "#98a2ae"
"""The colour of the recommended filter, and of the others; readable on light and dark pages."""

_CAPTION = (
    "Lines: measured; dotted: predicted. Measured rates jump because a few hot keys get most of "
    "the queries: whether one of them is a false positive is chance, and counts thousands of times."
)


def _draw(runs: list[Run], queries: int) -> Any:
    """Draw wasted reads by memory, one line per kind of filter; return the axes."""
    ax = figure_axes(6.4, 4.4)  # text large enough for a phone
    million = 1e6 / queries
    lines: dict[str, list[Run]] = {}
    for run in runs:
        lines.setdefault(run.filter, []).append(run)
    for line in lines.values():
        chosen = line[0].recommended
        style = {"color": _STRONG if chosen else _MUTED, "zorder": 4 if chosen else 2}
        memory = [run.bits / 8e6 for run in line]
        wasted = [max(run.reads_wasted, 0.5) * million for run in line]
        predicted = [max(run.predicted, 0.5) * million for run in line]
        width = 3.5 if chosen else 1.4
        ax.plot(memory, wasted, "o-", linewidth=width, markersize=1.5 + width, **style)
        ax.plot(memory, predicted, ":", linewidth=1, alpha=1.0 if chosen else 0.5, **style)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.12g}")
    ax.set_xlabel("memory of the filter (MB)")
    ax.set_ylabel("wasted reads per million queries")
    ax.set_title("Database reads that find nothing, by the memory of the filter")
    ax.grid(alpha=0.25, which="major")
    ax.spines[["top", "right"]].set_visible(False)
    _label_lines(ax, lines, million)
    return ax


def _label_lines(ax: Any, lines: dict[str, list[Run]], million: float) -> None:
    """Write the name of each filter to the right of its line, apart from the others."""
    ends = {name: (line[-1].bits / 8e6, max(line[-1].reads_wasted, 0.5) * million)
            for name, line in lines.items()}  # fmt: skip
    places = ax.transAxes.inverted().transform(ax.transData.transform(list(ends.values())))
    order = sorted(range(len(ends)), key=lambda i: places[i][1])
    heights = spread_apart([float(places[i][1]) for i in order], 0.065)
    names = list(ends)
    for i, height in zip(order, heights, strict=True):
        chosen = lines[names[i]][0].recommended
        ax.annotate(
            f"{names[i]} (recommended)" if chosen else names[i],
            ends[names[i]],
            xytext=(1.03, height),
            textcoords="axes fraction",
            va="center",
            fontsize=10,
            fontweight="bold" if chosen else "normal",
            color=_STRONG if chosen else "#6b7280",
            arrowprops={"arrowstyle": "-", "color": _MUTED, "linewidth": 0.6, "shrinkB": 3,
                        "relpos": (0, 0.5)},
        )  # fmt: skip


def _save_report(
    runs: list[Run], at_budget: list[Run], data: DemoData, advice: Any, workload: Any, folder: Path
) -> None:
    """Save the report, with its charts if matplotlib is installed, and print where it is."""
    heads, *rows = _cells(at_budget)
    report = Report("Filters in front of a database")
    report.text(
        f"{len(data.keys):,} keys in SQLite, {len(data.queries):,} queries, "
        f"{at_budget[0].bits_per_key:g} bits per key for each filter."
    )
    report.table(heads, rows, first=True).text(_verdict(at_budget))
    saved = "report: "
    try:
        ax = _draw(runs, len(data.queries))
    except ImportError as error:
        print_stderr(f"tamis: {error}; the report has no charts")
    else:
        # The image files include the explanation; the report has it as a caption.
        below = ax.get_figure().text(
            0.02, -0.03, textwrap.fill(_CAPTION, 96), fontsize=8.5, va="top"
        )
        for ending in ("png", "svg"):
            path = folder / f"reads_wasted.{ending}"
            ax.get_figure().savefig(path, dpi=150, bbox_inches="tight")
        below.remove()
        report.figure(ax, f"Lower is better. {_CAPTION}")
        saved = f"chart: {folder / 'reads_wasted.png'} (and .svg); report: "
    report.heading("Workload").text(str(workload).splitlines()[0] + ".")
    with suppress(ImportError):
        report.figure(workload.plot(figure_axes(7, 4)))
    heads, *rows = cells(advice)
    report.heading("Advice").text(head(advice) + ".").table(heads, rows, first=True)
    report.text(f"{advice.best.name}: {advice.best.reason}")
    report.bullets(f"{each.name}: {each.reason}" for each in advice.ruled_out)
    report.save(folder / "report.html")
    print_stderr(f"{saved}{folder / 'report.html'}")


Hosts = npt.NDArray[np.bytes_]

_HOSTS = 1_000_000
_PRESENT = 0.02
"""The fraction of visits to blocked hosts."""

_BLOCKED_FROM = 10**8
"""Ranks from here on are blocked; the Zipf-distributed visits have lower ranks."""

_SYLLABLES = [
    start + end
    for start in ("b", "ch", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "st", "t", "v", "z")
    for end in ("a", "e", "i", "o")
]


def _choice(*options: str) -> Hosts:
    return np.array(options, dtype="S")


_WORDS = _choice(*(one + two for one in _SYLLABLES[::4] for two in _SYLLABLES))
_DOMAINS = _choice(".com", ".net", ".org", ".io", ".info", ".shop", ".news", ".xyz")
_PREFIXES = _choice("", "", "", "", "www.", "www.", "m.", "api.")
_BLOCKED_PREFIXES = _choice(
    "ads.", "track.", "click.", "pixel.", "stats.", "login-", "secure-", "win-"
)


class DemoData(NamedTuple):
    """The blocked hosts, the queries to learn from, and the queries to replay."""

    keys: Any
    sample: Any
    queries: Any


def generate_data(keys: int, queries: int, seed: int) -> DemoData:
    """Generate a blocklist of about ``keys`` hosts, a log to learn from, and one to replay.

    >>> blocked, before, after = generate_data(100, 1000, seed=0)
    >>> len(before), len(after), 0 < int(np.isin(after, blocked).sum()) < 60
    (1000, 1000, True)
    """
    ranks = range(_BLOCKED_FROM, _BLOCKED_FROM + keys)
    blocked = np.unique(_hosts(traces.ranked(ranks, seed=seed), _BLOCKED_PREFIXES))
    visits = _hosts(traces.zipf(2 * queries, universe=_HOSTS, seed=seed), _PREFIXES)
    random = np.random.default_rng(seed)
    present = np.flatnonzero(random.random(len(visits)) < _PRESENT)
    visits = visits.astype(max(visits.dtype, blocked.dtype))
    visits[present] = random.choice(blocked, len(present))
    return DemoData(blocked, visits[:queries], visits[queries:])


def _hosts(ranked: npt.NDArray[np.uint64], prefixes: Hosts) -> Hosts:
    """Return the host name of each scattered rank; few ranks share one."""
    host = np.char.add(_pick(_WORDS, ranked, 0), _pick(_WORDS, ranked, 16))
    host = np.char.add(host, _pick(_DOMAINS, ranked, 32))
    return np.char.add(_pick(prefixes, ranked, 40), host)


def _pick(options: Hosts, ranked: npt.NDArray[np.uint64], shift: int) -> Hosts:
    bits = (ranked >> np.uint64(shift)).astype(np.uint16)
    return options[bits % len(options)]
