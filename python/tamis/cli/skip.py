"""``tamis skip``: index Parquet files and skip row groups."""

from __future__ import annotations

import datetime
import decimal
import os
from collections.abc import Callable
from typing import Any, Literal

import click

import tamis
from tamis._format import format_rate, format_size
from tamis.cli._options import FILE, INDEX_OUTPUT, OUTPUT, Command, as_json, example
from tamis.cli._output import facts, print_stderr, say, show_json, write_records

_READ: dict[str, Callable[[str], Any]] = {
    "text": str,
    "binary": str.encode,
    "integer": int,
    "date": datetime.date.fromisoformat,
    "timestamp": datetime.datetime.fromisoformat,
    "timestamp with zone": datetime.datetime.fromisoformat,
    "decimal": decimal.Decimal,
}
"""Parsers of values on the command line, by the type of the column."""

_memory = click.option(
    "--memory", help="Memory budget, such as 64MB (default: everything in memory)."
)

_source = click.option(
    "--source",
    multiple=True,
    help="Files, folder, pattern or URL of the data, if not below the folder of INDEX; repeatable.",
)


@click.group(
    "skip",
    no_args_is_help=False,
    epilog=example(
        'tamis skip build "events/*.parquet" -c user -o events.tamis',
        "tamis skip query events.tamis --where user=ada",
    ),
)
def command() -> None:
    """Index columns of Parquet files, and read only row groups that may match a query."""


@command.command(
    "build",
    cls=Command,
    short_help="Index Parquet files.",
    epilog=example('tamis skip build "events/*.parquet" -c user -c day -o events.tamis'),
)
@click.argument("sources", nargs=-1, required=True)
@click.option(
    "-c", "--column", "columns", multiple=True, required=True, help="Column to index; repeatable."
)
@click.option("-o", "--output", type=INDEX_OUTPUT, required=True, help="Index file to write.")
@click.option("--fpr", type=float, default=1e-4, help="False-positive rate of the full filters.")
@click.option("--utility", help="Column with the utility of each row: how often it is used.")
@as_json
def build(
    sources: tuple[str, ...],
    columns: tuple[str, ...],
    output: str,
    fpr: float,
    utility: str | None,
    as_json: bool,
) -> None:
    """Index SOURCES: Parquet files, folders or patterns, local or as URLs."""
    index = tamis.parquet.SkippingIndex.build(
        list(sources), columns=list(columns), path=output, fpr=fpr, utility=utility
    )
    _print_summary(index, output, as_json)


@command.command(
    "add",
    cls=Command,
    short_help="Add files to an index, or update it.",
    epilog=example('tamis skip add events.tamis "more/*.parquet"'),
)
@click.argument("index", type=FILE)
@click.argument("sources", nargs=-1)
@_source
@as_json
def add(index: str, sources: tuple[str, ...], source: tuple[str, ...], as_json: bool) -> None:
    """Add SOURCES to INDEX; without SOURCES, update it with new and changed files."""
    opened = tamis.parquet.SkippingIndex.open(index, source=source or None)
    read = opened.add(list(sources)) if sources else opened.refresh()
    opened.save(index)
    _note_unreadable(opened)
    if not as_json:
        print_stderr(f"files read: {read:,}")
    _print_summary(opened, index, as_json)


@command.command(
    "query",
    cls=Command,
    short_help="Print the rows that match.",
    epilog=example("tamis skip query events.tamis --where user=ada --limit 10"),
)
@click.argument("index", type=FILE)
@click.option("--where", "wheres", multiple=True, required=True,
              help="COLUMN=VALUE. Repeat a column for alternatives.")  # fmt: skip
@click.option("--select", help="Columns to print, separated by commas (default: all).")
@click.option("--limit", type=click.IntRange(0), help="Maximum number of rows.")
@click.option("--on-error", type=click.Choice(["raise", "skip"]), default="raise",
              help="What to do about new files that cannot be read.")  # fmt: skip
@click.option("--groups", is_flag=True, help="Print the row groups that may match, not the rows.")
@click.option("-o", "--output", type=OUTPUT, help="Write to a .csv, .tsv, .parquet or .arrow file.")
@_source
@_memory
@as_json
def query(
    index: str,
    wheres: tuple[str, ...],
    select: str | None,
    limit: int | None,
    on_error: Literal["raise", "skip"],
    groups: bool,
    output: str | None,
    source: tuple[str, ...],
    memory: str | None,
    as_json: bool,
) -> int:
    """Print the rows that match, reading only row groups that may contain them.

    Rows are printed as CSV, and a summary on standard error. The exit code is 1 if no row matches
    (with --groups, if no row group does). --json prints the summary only.
    """
    opened = tamis.parquet.SkippingIndex.open(index, memory=memory, source=source or None)
    where = _where(opened.columns, wheres)
    if output is not None and os.path.realpath(output) in map(os.path.realpath, opened.files):
        raise click.UsageError(f"--output must not be {output!r}, a file of the index")
    if groups:
        found = opened.row_groups(where)
        _note_unreadable(opened)
        if as_json:
            show_json([group._asdict() for group in found])
        elif found:
            say("\n".join(f"{group.path}\t{group.number}" for group in found))
        return 0 if found else 1
    columns = select.split(",") if select else None
    rows = opened.scan(where, columns=columns, limit=limit, on_error=on_error)
    _note_unreadable(opened)
    stats = opened.stats
    if as_json and output is None:
        show_json({"rows": rows.num_rows, **_summary(stats)})
        return 0 if rows.num_rows else 1
    write_records(output, [rows])
    if as_json:
        show_json({"rows": rows.num_rows, **_summary(stats)})
    else:
        print_stderr(
            f"tamis: {rows.num_rows:,} rows; {stats.skipped:,} of {stats.considered:,} row groups "
            f"skipped, {stats.wasted:,} read without a match"
        )
    return 0 if rows.num_rows else 1


@command.command(
    "stats",
    cls=Command,
    short_help="Describe an index.",
    epilog=example("tamis skip stats events.tamis --memory 1MB"),
)
@click.argument("index", type=FILE)
@_source
@_memory
@as_json
def stats(index: str, source: tuple[str, ...], memory: str | None, as_json: bool) -> None:
    """Print the size of INDEX, its memory, and its expected false-positive rate."""
    opened = tamis.parquet.SkippingIndex.open(index, memory=memory, source=source or None)
    _print_summary(opened, index, as_json)


def _note_unreadable(index: Any) -> None:
    for reason in index.stats.unreadable.values():
        print_stderr(f"tamis: not read: {reason}")


def _summary(stats: Any) -> dict[str, int]:
    names = ("considered", "skipped", "read", "wasted", "stale_files", "unknown_files", "damaged")
    found = {name: getattr(stats, name) for name in names}
    return {**found, "unreadable_files": len(stats.unreadable)}


def _print_summary(index: Any, path: str, as_json: bool) -> None:
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
                "in memory": format_size(8 * index.size_in_bytes),
                "expected rate": format_rate(index.expected_fpr),
            }
        )
    )


def _where(columns: dict[str, str], given: tuple[str, ...]) -> dict[str, list[Any]]:
    """Parse COLUMN=VALUE, each value by the type of its column."""
    where: dict[str, list[Any]] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals:
            raise click.UsageError(f"--where must be COLUMN=VALUE, not {each!r}")
        if name not in columns:
            raise ValueError(f"--where must use the columns {', '.join(columns)}, not {name!r}")
        try:
            value = _READ[columns[name]](text)
        except (ValueError, decimal.InvalidOperation):
            raise ValueError(
                f"--where must have a value of type {columns[name]} for {name}, not {text!r}"
            ) from None
        where.setdefault(name, []).append(value)
    return where
