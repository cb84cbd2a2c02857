"""``tamis skip``: row groups of Parquet files that need not be read."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import click

import tamis
from tamis.cli._options import FILE, as_json, example
from tamis.cli._output import Writer, facts, note, say, share, show_json, size

_READ: dict[str, Callable[[str], Any]] = {
    "text": str,
    "binary": str.encode,
    "integer": int,
    "date": datetime.date.fromisoformat,
    "timestamp": datetime.datetime.fromisoformat,
    "timestamp with zone": datetime.datetime.fromisoformat,
    "decimal": decimal.Decimal,
}
"""How a value on the command line is read, by what its column holds."""

_memory = click.option("--memory", help="The budget for what is kept in memory, such as 64MB.")


@click.group(
    "skip",
    no_args_is_help=False,
    epilog=example(
        'tamis skip build "events/*.parquet" -c user -o events.tamis',
        "tamis skip query events.tamis --where user=ada",
    ),
)
def command() -> None:
    """Index Parquet files by columns, and read only the row groups that may hold what is asked."""


@command.command(
    "build", epilog=example('tamis skip build "events/*.parquet" -c user -c day -o events.tamis')
)
@click.argument("sources", nargs=-1, required=True)
@click.option(
    "-c", "--column", "columns", multiple=True, required=True, help="To index; repeat it."
)
@click.option("-o", "--output", type=FILE, required=True, help="The file to write.")
@click.option("--fpr", type=float, default=1e-4, help="The rate of the full filters.")
@click.option("--utility", help="A column that says how often each row is needed.")
@as_json
def build(
    sources: tuple[str, ...],
    columns: tuple[str, ...],
    output: str,
    fpr: float,
    utility: str | None,
    as_json: bool,
) -> None:
    """Index SOURCES: Parquet files, folders or patterns, here or as a URI."""
    index = tamis.parquet.SkippingIndex.build(
        list(sources), columns=list(columns), path=output, fpr=fpr, utility=utility
    )
    _tell(index, output, as_json)


@command.command("add", epilog=example('tamis skip add events.tamis "more/*.parquet"'))
@click.argument("index", type=FILE)
@click.argument("sources", nargs=-1)
@as_json
def add(index: str, sources: tuple[str, ...], as_json: bool) -> None:
    """Index more files, or without SOURCES what is new or changed among those it knows."""
    opened = tamis.parquet.SkippingIndex.open(index)
    read = opened.add(list(sources)) if sources else opened.refresh()
    opened.save(index)
    if not as_json:
        note(f"files read: {read:,}")
    _tell(opened, index, as_json)


@command.command(
    "query", epilog=example("tamis skip query events.tamis --where user=ada --limit 10")
)
@click.argument("index", type=FILE)
@click.option("--where", "wheres", multiple=True, required=True,
              help="COLUMN=VALUE; of one column given twice, either.")  # fmt: skip
@click.option("--select", help="The columns to print, with commas; all unless given.")
@click.option("--limit", type=click.IntRange(0), help="The most rows.")
@click.option("--groups", is_flag=True, help="Only name the row groups that may hold rows.")
@click.option("-o", "--output", type=FILE, help="Write there: .csv, .tsv, .parquet or .arrow.")
@_memory
@as_json
def query(
    index: str,
    wheres: tuple[str, ...],
    select: str | None,
    limit: int | None,
    groups: bool,
    output: str | None,
    memory: str | None,
    as_json: bool,
) -> int:
    """Read the rows that are as asked, from the row groups that may hold them.

    Rows are printed as CSV, and what was skipped on standard error. The exit code is 1 if there are
    no rows (or, with --groups, no row groups). --json tells only what was read and skipped.
    """
    opened = tamis.parquet.SkippingIndex.open(index, memory=memory)
    where = _where(opened.columns, wheres)
    if groups:
        named = opened.row_groups(where)
        if as_json:
            show_json([group._asdict() for group in named])
        elif named:
            say("\n".join(f"{group.path}\t{group.number}" for group in named))
        return 0 if named else 1
    rows = opened.scan(where, columns=select.split(",") if select else None, limit=limit)
    stats = opened.stats
    if as_json and output is None:
        show_json({"rows": rows.num_rows, **_done(stats)})
        return 0 if rows.num_rows else 1
    with Writer(output) as writer:
        writer.write_table(rows)
    if as_json:
        show_json({"rows": rows.num_rows, **_done(stats)})
    else:
        note(
            f"tamis: {rows.num_rows:,} rows; {stats.skipped:,} of {stats.considered:,} row groups "
            f"skipped, {stats.wasted:,} read in vain"
        )
    return 0 if rows.num_rows else 1


@command.command("stats", epilog=example("tamis skip stats events.tamis --memory 1MB"))
@click.argument("index", type=FILE)
@_memory
@as_json
def stats(index: str, memory: str | None, as_json: bool) -> None:
    """Tell what is in INDEX, how much of it is in memory, and at what rate."""
    _tell(tamis.parquet.SkippingIndex.open(index, memory=memory), index, as_json)


def _done(stats: Any) -> dict[str, int]:
    names = ("considered", "skipped", "read", "wasted", "stale_files", "unknown_files", "damaged")
    return {name: getattr(stats, name) for name in names}


def _tell(index: Any, path: str, as_json: bool) -> None:
    found = {
        "file": path,
        "files": len(index.files),
        "row_groups": len(index),
        "columns": index.columns,
        "bytes": index.size_in_bytes,
        "expected_fpr": index.expected_fpr,
    }
    if as_json:
        show_json(found)
        return
    say(
        facts(
            {
                "index": path,
                "files": f"{found['files']:,}",
                "row groups": f"{found['row_groups']:,}",
                "columns": ", ".join(f"{name} ({kind})" for name, kind in index.columns.items()),
                "in memory": size(8 * index.size_in_bytes),
                "expected rate": share(index.expected_fpr),
            }
        )
    )


def _where(columns: dict[str, str], given: tuple[str, ...]) -> dict[str, list[Any]]:
    """Read COLUMN=VALUE, each value as its column wants it."""
    where: dict[str, list[Any]] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals:
            raise click.UsageError(f"--where is {each!r}; COLUMN=VALUE is wanted")
        if name not in columns:
            raise ValueError(f"--where names {name!r}; the index has {', '.join(columns)}")
        try:
            value = _READ[columns[name]](text)
        except (ValueError, decimal.InvalidOperation):
            raise ValueError(f"--where is {each!r}; {name} holds {columns[name]}") from None
        where.setdefault(name, []).append(value)
    return where
