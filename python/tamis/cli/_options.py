"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import tee
from typing import Any, TypeVar, get_args

import click

from tamis.cli._input import Format, LogFormat, Source
from tamis.workload import Workload

_F = TypeVar("_F", bound=Callable[..., Any])

FILE = click.Path(dir_okay=False)


class _OutputFile(click.Path):
    """A file to write: its folder is checked before the work starts, not after."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        folder = os.path.dirname(os.fsdecode(path))
        if folder and not os.path.isdir(folder):
            self.fail(f"the folder {folder!r} does not exist", param, ctx)
        return path


OUTPUT = _OutputFile(dir_okay=False)


def example(*lines: str) -> str:
    """Format the examples shown under a command's help."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def as_json(command: _F) -> _F:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")(command)


def input_format(command: _F) -> _F:
    """Add the format and the type of the keys that are read."""
    for option in (
        click.option("--integers", is_flag=True, help="Read keys as integers, not as text."),
        click.option(
            "--format",
            type=click.Choice(get_args(Format)),
            default="auto",
            show_default=False,
            help="Input format (default: detected).",
        ),
    ):
        command = option(command)
    return command


def key_input(command: _F) -> _F:
    """Add the column, format and type of the keys."""
    option = click.option(
        "-c",
        "--column",
        "columns",
        multiple=True,
        help="Column that holds the keys; repeat it for keys of several columns.",
    )
    return option(input_format(command))


def sizing(command: _F) -> _F:
    """Add the false-positive rate and the memory per key."""
    for option in (
        click.option("--bits-per-key", type=float, help="Memory budget in bits per key."),
        click.option("--fpr", type=float, help="Target false-positive rate."),
    ):
        command = option(command)
    return command


def log_lines(command: _F) -> _F:
    """Add the ways to find the key in a line of a log."""
    for option in (
        click.option(
            "--log-format",
            type=click.Choice(get_args(LogFormat)),
            help="Read a web server's log; the column is one of host, user, time, method, path, "
            "status, size, referer and agent (default: path).",
        ),
        click.option(
            "--regex",
            metavar="PATTERN",
            help="Find the query in each line of a log: the first group, or the whole match.",
        ),
    ):
        command = option(command)
    return command


def query_log(command: _F) -> _F:
    """Add a log of queries."""
    command = log_lines(command)
    for option in (
        click.option(
            "--queries-column",
            "queries_columns",
            multiple=True,
            help="Column of the query log (default: same name as --column); repeatable.",
        ),
        click.option("--queries", type=FILE, help='Query log: a file, or "-".'),
    ):
        command = option(command)
    return command


def query_costs(command: _F) -> _F:
    """Add the column of a log with the cost of a false positive."""
    return click.option(
        "--cost-column",
        help="Column of the query log with the cost of a false positive (default: all cost 1).",
    )(command)


def read_workload(log: Source, keys: Any, cost_column: str | None) -> Workload:
    """Count the queries of a log, with their costs if a column has them."""
    if cost_column is None:
        return Workload.from_batches(log.read_keys(), keys=keys)
    queries, costs = tee(log.read_costs(cost_column))
    return Workload.from_batches(
        (each for each, _ in queries), keys=keys, costs=(each for _, each in costs)
    )


def zipf_shape(command: _F) -> _F:
    """Add a Zipf workload, as an alternative to a log."""
    return click.option(
        "--zipf",
        metavar="EXPONENT,UNIVERSE[,SAMPLE]",
        help="Zipf workload, instead of a query log.",
    )(command)


def log_source(
    keys: Source,
    path: str,
    columns: tuple[str, ...],
    regex: str | None = None,
    log_format: LogFormat | None = None,
) -> Source:
    """Return the source of a query log for these keys."""
    return Source(path, columns, "auto", keys.integers, default_columns=keys.columns,
                  column_option="--queries-column", regex=regex, log_format=log_format,
                  is_log=True)  # fmt: skip


def secret(command: _F) -> _F:
    """Add the secret hash key."""
    return click.option(
        "--secret",
        type=FILE,
        callback=lambda _, __, path: None if path is None else _secret(path),
        help="File with the 16-byte secret key of the hash.",
    )(command)


def _secret(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read(17)
    if len(data) != 16:
        raise ValueError(f"--secret must be a file of exactly 16 bytes; {path} is not")
    return data
