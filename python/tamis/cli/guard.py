"""``tamis guard``: a filter in front of an existing table, and a query log replayed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import click

import tamis
from tamis._columns import as_list
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
from tamis.cli._output import facts, print_stderr, say, show_json
from tamis.cli.build import BUILDABLE
from tamis.guard.statistics import GuardStats

_STORES = {
    ("postgres", "postgresql"): tamis.stores.Postgres,
    ("mysql", "mariadb"): tamis.stores.MySQL,
}
"""The stores by the scheme of a URL."""


@click.command(
    "guard",
    cls=Command,
    epilog=example(
        "tamis guard shop.db --table users --key email --queries log.txt --dry-run",
        "tamis guard postgresql://db/shop --table users --key id --queries log.txt",
        "tamis guard mysql://db/shop --table users --key id --print-sql --role app",
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
@click.option("--queries", type=FILE, help='Query log to replay: a file, or "-".')
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
@click.option(
    "--snapshot",
    type=FILTER_OUTPUT,
    help="File that keeps the filter between runs; it requires --install.",
)
@click.option(
    "--serve",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve a page that shows the guard at work, on this port of the loopback (0: any free "
    "one), until Ctrl-C.",
)
@click.option("--dry-run", is_flag=True, help="Replay against a copy of the keys; only read.")
@click.option("--install", is_flag=True, help="Create the guard's tables and triggers, to stay.")
@click.option("--remove", is_flag=True, help="Drop the guard's tables and triggers, at the end.")
@click.option(
    "--print-sql",
    is_flag=True,
    help="Print the statements that --install runs, and the rights that a guard needs.",
)
@click.option("--role", default="tamis", help="Role or user to grant them to, with --print-sql.")
@as_json
def command(
    database: str,
    table: str,
    key: str,
    value: str | None,
    where: str | None,
    queries: str | None,
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
    dry_run: bool,
    install: bool,
    remove: bool,
    print_sql: bool,
    role: str,
    as_json: bool,
) -> None:
    """Put a filter in front of a table of DATABASE and replay a query log through it.

    DATABASE is an SQLite file, or the URL of a PostgreSQL, MariaDB or MySQL database. Guarding a
    table in place adds tables and triggers named tamis_TABLE_…, which keep the filter correct when
    other programs write to the table. What the replay has added is dropped at its end, unless
    --install is given. --dry-run adds nothing, and takes the keys of the table as they are at the
    start. The table itself is only read.
    """
    log = Source(queries or "", () if queries_column is None else (queries_column,), format,
                 integers, default_columns=(key,),
                 column_option="--queries-column", regex=regex, log_format=log_format,
                 is_log=format == "auto")  # fmt: skip
    _check_options(log, dry_run, snapshot, serve, install=install, remove=remove, sql=print_sql)
    opened = partial(_open, database, table=table, key=key, value=value or key, where=where)
    with closing(opened(install=False)) as original:
        if print_sql:
            _print_sql(original.sql(role), as_json)
            return
        keeps = dry_run or install or (original.installed and not remove)
        try:
            if log.path:
                keys = _Keys(table, original, copied=dry_run)
                built = partial(BUILDABLE[kind], capacity=max(keys.count, 1), fpr=fpr)
                f = tamis.load(filter) if filter else built()
                with (
                    closing(keys.copy() if dry_run else opened()) as store,
                    tamis.Guard(store, f, snapshot=snapshot, name=table) as g,
                ):
                    _replay(g, f, log, keys, serve, as_json)
            elif install:
                opened().close()
        finally:
            if not keeps and original.installed:
                original.unguard()
    if not log.path:
        print_stderr(f"tamis: the guard's tables are {'installed' if install else 'removed'}")


def _check_options(
    log: Source,
    dry_run: bool,
    snapshot: str | None,
    serve: int | None,
    **modes: bool,
) -> None:
    """Raise `click.UsageError` if options contradict each other, or there is nothing to do."""
    given = [
        f"--{name.replace('sql', 'print-sql')}" for name, is_given in modes.items() if is_given
    ]
    if dry_run:
        given.append("--dry-run")
    if len(given) > 1:
        raise click.UsageError(f"pass at most one of {' and '.join(given)}")
    if modes["sql"] and log.path:
        raise click.UsageError("pass at most one of --print-sql and --queries")
    if not log.path and (dry_run or not given):
        raise click.UsageError("--queries is missing: a log to replay")
    if not log.path and serve is not None:
        raise click.UsageError("--serve requires --queries")
    if snapshot is not None and not modes["install"]:
        raise click.UsageError("--snapshot requires --install, or it would be of no use later")


class _Keys:
    """The keys of a table at the start: how many, of which types, and if asked for, a copy."""

    def __init__(self, table: str, store: Any, *, copied: bool) -> None:
        self._table, self._store = table, store
        self.count, self._types = 0, set[type]()
        self._copy: list[list[Any]] = []
        for part in store.read_keys():
            self.count += len(part)
            self._types.update(map(type, part))
            if copied:
                self._copy.append(part)

    def copy(self) -> tamis.stores.Memory:
        """Return a store of the copy."""
        store, owner = tamis.stores.Memory(), "tamis guard"
        store.lease(owner, 60)
        for part in self._copy:
            store.put_many(part, [b""] * len(part), owner)
        store.release(owner)
        return store

    def of_queries(self, batch: Any) -> Any:
        """Return queries as the store that they go to takes them."""
        first: Any = next((key for key in batch if key is not None), None)
        first = first.as_py() if hasattr(first, "as_py") else first
        if self._types == {int} and isinstance(first, (str, bytes)):
            raise ValueError(
                f"all keys of {self._table!r} are integers, and the queries are text: pass "
                "--integers"
            )
        if self._types == {bytes} and isinstance(first, (int, Decimal)):
            raise ValueError(
                f"all keys of {self._table!r} are text or blobs, and the queries are integers"
            )
        if self._copy and self._store.translates_keys:
            return list(map(self._store.to_plain, as_list(batch)))
        return batch


def _replay(
    g: tamis.Guard, f: Any, log: Source, keys: _Keys, serve: int | None, as_json: bool
) -> None:
    """Ask the guard for all keys of a log, and print what it saved."""
    if serve is not None:
        click.echo(f"serving {g.serve(serve).url} until Ctrl-C", err=True)
    start = time.perf_counter()
    for batch in log.read_keys():
        g.get_many(keys.of_queries(batch))
    seconds = time.perf_counter() - start
    _show(g.stats, f, g.filter.size_in_bits, seconds, as_json)
    if serve is not None:
        with suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)


def _print_sql(statements: Sequence[str], as_json: bool) -> None:
    if as_json:
        show_json({"statements": statements})
    else:
        say("\n".join(f"{statement};" for statement in statements))


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


def _open(database: str, **options: Any) -> Any:
    scheme, url, _ = database.partition("://")
    for schemes, store in _STORES.items():
        if url and scheme in schemes:
            return store(database, **options)
    # SQLite would create a missing file.
    if not Path(database).is_file():
        raise ValueError(
            "DATABASE must be an SQLite file or a URL (postgresql://, mysql://), not "
            f"{database.rpartition('@')[2]!r}"  # without a password
        )
    return tamis.stores.SQLite(database, **options)
