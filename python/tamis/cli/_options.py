"""Options that several commands share."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import tee
from typing import Any, TypeVar, get_args

import click

from tamis.cli._input import Format, Source, compared
from tamis.cli._lines import LogFormat
from tamis.workload import Workload

_F = TypeVar("_F", bound=Callable[..., Any])

FILE = click.Path(dir_okay=False)


class _OutputFile(click.Path):
    """A file to write: its folder and its name are checked before the work starts, not after."""

    def __init__(self, content: str | None = None, replaces: str | None = None) -> None:
        super().__init__(dir_okay=False)
        self.content = content
        """The content, if it has one format only, so that the name chooses none."""
        self.replaces = replaces
        """The parameter whose input files the output may replace: it is moved there at the end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        folder, name = os.path.split(os.fsdecode(path))
        if folder and not os.path.isdir(folder):
            self.fail(f"the folder {folder!r} does not exist", param, ctx)
        ending = name.rpartition(".")[2].lower() if "." in name else ""
        if self.content is not None and ending in _DATA_ENDINGS:
            self.fail(f"{self.content} is not a .{ending} file; name it {name}.tamis", param, ctx)
        return path


_DATA_ENDINGS = {
    "txt", "log", "csv", "tsv", "json", "jsonl", "ndjson", "parquet", "pq", "arrow", "feather",
    "ipc", "gz", "bz2", "xz", "zst", "db", "sqlite", "html",
}  # fmt: skip
"""Endings of files that hold data: a filter does not replace them."""

OUTPUT = _OutputFile()
FILTER_OUTPUT = _OutputFile("a filter")
INDEX_OUTPUT = _OutputFile("an index")
MERGED_OUTPUT = _OutputFile("a filter", replaces="filters")
RECORDS_OUTPUT = _OutputFile(replaces="input")


_NO_SPACE = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
"""Errors of writing, which native code raises without the name of the file."""


class Command(click.Command):
    """A command that loses nothing: neither the first value of an option, nor an input file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse an option that is given twice, of which only the last value would count."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for param in given:
            single = isinstance(param, click.Option) and not (param.multiple or param.is_flag)
            if single and given.count(param) > 1:
                raise click.UsageError(f"{max(param.opts, key=len)} is given twice", ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Refuse an output that is also an input, by whatever name or link."""
        outputs = []
        for param in self.params:
            if isinstance(param.type, _OutputFile) and (path := ctx.params.get(param.name or "")):
                self._check_output(ctx, param, path)
                outputs.append(path)
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.filename is None and error.errno in _NO_SPACE and len(outputs) == 1:
                error.filename = outputs[0]
            raise

    def _check_output(self, ctx: click.Context, output: click.Parameter, path: str) -> None:
        files = [(each, name) for each in self.params for name in _files_of(each, ctx)]
        for param, other in files:
            replaces = isinstance(output.type, _OutputFile) and output.type.replaces == param.name
            if param is not output and not replaces and _same_file(path, other):
                raise click.UsageError(
                    f"{max(output.opts, key=len)} must not be {other!r}, which the command also "
                    f"{'writes' if isinstance(param.type, _OutputFile) else 'reads'}",
                    ctx,
                )


def _files_of(param: click.Parameter, ctx: click.Context) -> list[str]:
    """Return the values of a parameter that may name files."""
    if not (isinstance(param, click.Argument) or isinstance(param.type, click.Path)):
        return []
    value = ctx.meta.get(_SECRET) if param.name == "secret" else ctx.params.get(param.name or "")
    values = value if isinstance(value, tuple) else (value,)
    return [each for each in values if isinstance(each, str) and each != "-"]


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them does not exist
        return os.path.realpath(one) == os.path.realpath(other)


def example(*lines: str) -> str:
    """Format the examples shown under a command's help."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def as_json(command: _F) -> _F:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")(command)


def input_format(command: _F) -> _F:
    """Add the format and the type of the keys that are read."""
    for option in (
        click.option("--integers", is_flag=True, help="Read all keys that are text as integers."),
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
        help="Column that holds the keys; repeat it for keys of several columns. NAME:int reads "
        "the text of a column as integers.",
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
        return Workload.from_batches(compared(keys, log.read_keys()), keys=keys)
    queries, costs = tee(log.read_costs(cost_column))
    return Workload.from_batches(
        compared(keys, (each for each, _ in queries)),
        keys=keys,
        costs=(each for _, each in costs),
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


_SECRET = "tamis.secret"


def secret(command: _F) -> _F:
    """Add the secret hash key."""
    return click.option(
        "--secret",
        type=FILE,
        callback=_read_secret,
        help="File with the 16-byte secret key of the hash.",
    )(command)


def _read_secret(ctx: click.Context, _: click.Parameter, path: str | None) -> bytes | None:
    if path is None:
        return None
    ctx.meta[_SECRET] = path
    with open(path, "rb") as file:
        data = file.read(17)
    if len(data) != 16:
        raise ValueError(f"--secret must be a file of exactly 16 bytes; {path} is not")
    return data
