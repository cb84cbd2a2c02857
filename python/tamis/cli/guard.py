"""``tamis guard``: a filter before an existing table, and a log of questions replayed."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import tamis
from tamis.cli._input import Source
from tamis.cli._options import FILE, as_json, example, reading
from tamis.cli._output import facts, say, share, show_json, size
from tamis.cli.build import KINDS

_URLS = ("postgres://", "postgresql://")


@click.command(
    "guard",
    epilog=example(
        "tamis guard shop.db --table users --key email --queries log.csv -c email",
        "tamis guard postgresql://localhost/shop --table users --key email --queries log.txt",
    ),
)
@click.argument("database")
@click.option("--table", required=True, help="The table to guard, in place.")
@click.option("--key", required=True, help="Its key column: unique; text, integers or blobs.")
@click.option("--value", help="The column that is read; the key column unless given.")
@click.option("--queries", type=FILE, required=True, help='The log to replay, or "-".')
@reading
@click.option("--filter", type=FILE, help="A filter of the table's keys that was built before.")
@click.option(
    "--kind",
    type=click.Choice([name for name, cls in KINDS.items() if cls.inserts is True]),
    default="telescoping",
    help="Otherwise: the filter to fill from the table.",
)
@click.option("--fpr", type=float, default=0.005, help="Its rate.")
@click.option("--snapshot", type=FILE, help="Keep the filter in this file between runs.")
@click.option("--remove", is_flag=True, help="Take the tables and triggers away again.")
@as_json
def command(
    database: str,
    table: str,
    key: str,
    value: str | None,
    queries: str,
    column: str | None,
    format: Any,
    integers: bool,
    filter: str | None,
    kind: str,
    fpr: float,
    snapshot: str | None,
    remove: bool,
    as_json: bool,
) -> None:
    """Put a filter before a table of DATABASE and replay a log of questions through it.

    DATABASE is an SQLite file or the URL of a PostgreSQL database. Guarding in place adds three
    tables and triggers beside the table, all named tamis_TABLE_…, which keep the filter right
    whoever writes to the table; the table itself is only read. --remove takes them away at the end.
    """
    source = Source(queries, column, format, integers)
    with closing(_store(database, table=table, key=key, value=value or key)) as store:
        if filter is not None:
            f = tamis.load(filter)
        else:
            rows = max(sum(map(len, store.contents()[1])), 1)
            f = KINDS[kind](capacity=rows, fpr=fpr)
        with tamis.Guard(store, f, snapshot=snapshot) as g:
            start = time.perf_counter()
            for batch in source.read_keys():
                g.get_many(batch)
            seconds, stats = time.perf_counter() - start, g.stats
            bits = g.filter.size_in_bits
    if remove:
        _store(database, table=table, key=key, value=value or key).unguard()
    if as_json:
        show_json(
            asdict(stats)
            | {"observed_fpr": stats.observed_fpr, "filter_bits": bits, "seconds": seconds}
        )
        return
    say(
        facts(
            {
                "filter": f"{type(f).__name__}, {size(bits)}",
                "questions": f"{stats.queries:,} in {seconds:.1f} s",
                "reads saved": f"{stats.reads_saved:,} "
                f"({share(stats.reads_saved / max(stats.queries, 1))} of the questions)",
                "reads of rows": f"{stats.true_positives:,}",
                "reads wasted": f"{stats.false_positives:,} "
                f"({share(stats.observed_fpr)} of the questions for absent keys, "
                f"{share(stats.expected_fpr)} expected)",
                "adaptations": f"{stats.adaptations:,}",
            }
        )
    )


def _store(database: str, **names: Any) -> Any:
    if database.startswith(_URLS):
        return tamis.stores.Postgres(database, **names)
    # SQLite would make a missing file, and call a wrong one "not a database".
    if not Path(database).is_file():
        raise ValueError(f"{database} is no file and no URL of PostgreSQL")
    return tamis.stores.SQLite(database, **names)
