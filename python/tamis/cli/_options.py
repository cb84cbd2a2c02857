"""Options that several commands have, once each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click

from tamis.cli._input import Format, Source

_F = TypeVar("_F", bound=Callable[..., Any])

FILE = click.Path(dir_okay=False)


def example(*lines: str) -> str:
    """Write the examples under a command's help."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def as_json(command: _F) -> _F:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")(command)


def reading(command: _F) -> _F:
    """Add what it takes to read keys: their column, format and type."""
    for option in (
        click.option("--integers", is_flag=True, help="Keys are integers, not text."),
        click.option(
            "--format",
            type=click.Choice(get_args(Format)),
            default="auto",
            help="Of the input; by its content and name unless given.",
        ),
        click.option("-c", "--column", help="The column with the keys."),
    ):
        command = option(command)
    return command


def sizing(command: _F) -> _F:
    """Add the rate or the budget."""
    for option in (
        click.option("--bits-per-key", type=float, help="The memory for each key."),
        click.option("--fpr", type=float, help="The rate of false positives."),
    ):
        command = option(command)
    return command


def asked(command: _F) -> _F:
    """Add a log of questions."""
    for option in (
        click.option(
            "--queries-column", help="Its column; named as that of the keys if not given."
        ),
        click.option("--queries", type=FILE, help='A log of the questions, or "-".'),
    ):
        command = option(command)
    return command


def log(keys: Source, path: str, column: str | None) -> Source:
    """Return the source of a log of questions for these keys."""
    return Source(path, column, "auto", keys.integers, usual=keys.column)


def secret(command: _F) -> _F:
    """Add the secret key of a filter that faces strangers."""
    return click.option(
        "--secret",
        type=FILE,
        callback=lambda _, __, path: None if path is None else _secret(path),
        help="A file of 16 bytes: the secret key that the filter's keys are hashed with.",
    )(command)


def _secret(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read(17)
    if len(data) != 16:
        raise ValueError(f"{path} does not have 16 bytes, as a secret key has")
    return data
