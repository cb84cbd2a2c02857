"""``tamis guard``: a filter in front of an existing table, and a query log replayed."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

import tamis
from tamis._format import format_duration, format_rate, format_size
from tamis.cli._input import Source
from tamis.cli._options import (
    FILE,
    FILTER_OUTPUT,
    Command,
    as_json,
    example,
    input_format,
    log_lines,
)
from tamis.cli._output import facts, say, show_json
from tamis.cli.build import BUILDABLE
from tamis.guard.statistics import GuardStats

_URLS = ("postgres://", "postgresql://")


@click.command(
    "guard",
    cls=Command,
    epilog=example(
        "tamis guard shop.db --table users --key email --queries log.txt",
        "tamis guard postgresql://db/shop --table users --key id --queries log.txt",
    ),
)
@click.argument("database")
@click.option("--table", required=True, help="Table to guard in place.")
@click.option(
    "--key", required=True, help="Key column of the table: unique text, integers or blobs."
)
@click.option("--value", help="Column to read (default: the key column).")
@click.option(
    "--where", help='Guard only the rows that satisfy this condition, such as "paid = 1".'
)
@click.option("--queries", type=FILE, required=True, help='Query log to replay: a file, or "-".')
@click.option("--queries-column", help="Column of the query log (default: same name as --key).")
@log_lines
@input_format
@click.option("--filter", type=FILE, help="Saved filter of the table's keys.")
@click.option(
    "--kind",
    type=click.Choice([name for name, cls in BUILDABLE.items() if cls.inserts is True]),
    default="telescoping",
    help="Kind of filter to build from the table, if --filter is not given.",
)
@click.option("--fpr", type=float, default=0.005, help="Target false-positive rate of that filter.")
@click.option("--snapshot", type=FILTER_OUTPUT, help="File that keeps the filter between runs.")
@click.option(
    "--serve",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve a page that shows the guard at work, on this port of the loopback (0: any free "
    "one), until Ctrl-C.",
)
@click.option("--remove", is_flag=True, help="Drop the guard's tables and triggers at the end.")
@as_json
def command(
    database: str,
    table: str,
    key: str,
    value: str | None,
    where: str | None,
    queries: str,
    queries_column: str | None,
    regex: str | None,
    log_format: Any,
    format: Any,
    integers: bool,
    filter: str | None,
    kind: str,
    fpr: float,
    snapshot: str | None,
    serve: int | None,
    remove: bool,
    as_json: bool,
) -> None:
    """Put a filter in front of a table of DATABASE and replay a query log through it.

    DATABASE is an SQLite file or a PostgreSQL URL. Guarding a table in place adds tables and
    triggers named tamis_TABLE_…, which keep the filter correct when other programs write to the
    table; --remove drops them at the end. The table itself is only read.
    """
    log = Source(queries, () if queries_column is None else (queries_column,), format, integers,
                 default_columns=(key,),
                 column_option="--queries-column", regex=regex, log_format=log_format,
                 is_log=format == "auto")  # fmt: skip
    names = {"table": table, "key": key, "value": value or key, "where": where}
    with closing(_store(database, **names)) as store:
        rows, types = 0, set[type]()
        for part in store.contents()[1]:
            rows += len(part)
            types.update(map(type, part))
        f = tamis.load(filter) if filter else BUILDABLE[kind](capacity=max(rows, 1), fpr=fpr)
        with tamis.Guard(store, f, snapshot=snapshot, name=table) as g:
            if serve is not None:
                click.echo(f"serving {g.serve(serve).url} until Ctrl-C", err=True)
            start = time.perf_counter()
            for batch in log.read_keys():
                _check_types(table, types, batch)
                g.get_many(batch)
            seconds, stats = time.perf_counter() - start, g.stats
            bits = g.filter.size_in_bits
            _show(stats, f, bits, seconds, as_json)
            if serve is not None:
                _wait_for_interrupt()
    if remove:
        _store(database, **names).unguard()


def _check_types(table: str, types: set[type], batch: Any) -> None:
    """Raise `ValueError` if all keys are integers and the queries are text, or the reverse."""
    first: Any = next((key for key in batch if key is not None), None)
    first = first.as_py() if hasattr(first, "as_py") else first
    if types == {int} and isinstance(first, (str, bytes)):
        raise ValueError(
            f"all keys of {table!r} are integers, and the queries are text: pass --integers"
        )
    if types == {bytes} and isinstance(first, (int, Decimal)):
        raise ValueError(f"all keys of {table!r} are text or blobs, and the queries are integers")


def _wait_for_interrupt() -> None:
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


def _show(stats: GuardStats, f: Any, bits: int, seconds: float, as_json: bool) -> None:
    if as_json:
        show_json(
            asdict(stats)
            | {"observed_fpr": stats.observed_fpr, "filter_bits": bits, "seconds": seconds}
        )
        return
    say(
        facts(
            {
                "filter": f"{type(f).__name__}, {format_size(bits)}",
                "queries": f"{stats.queries:,} in {format_duration(seconds)}",
                "reads saved": f"{stats.reads_saved:,} "
                f"({format_rate(stats.reads_saved / max(stats.queries, 1))} of the queries)",
                "reads of rows": f"{stats.true_positives:,}",
                "reads wasted": f"{stats.wasted_reads:,} "
                f"({format_rate(stats.wasted_reads / max(stats.negatives, 1))} of the queries for "
                f"absent keys, {format_rate(stats.expected_fpr)} expected)",
                "adaptations": f"{stats.adaptations:,}",
            }
        )
    )


def _store(database: str, **names: Any) -> Any:
    if database.startswith(_URLS):
        return tamis.stores.Postgres(database, **names)
    # SQLite would create a missing file.
    if not Path(database).is_file():
        raise ValueError(f"DATABASE must be an SQLite file or a PostgreSQL URL, not {database!r}")
    return tamis.stores.SQLite(database, **names)
