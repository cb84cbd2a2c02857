"""The command line: ``tamis COMMAND``, one module per command.

Exit codes: 0, done; 1, done, and the answer is no (`query` found nothing, `verify` found a fault);
2, wrong input: one line on standard error says which; 130, interrupted.
"""

from __future__ import annotations

import importlib
import os
import sqlite3
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import click

from tamis import __version__

_COMMANDS = {
    "advise": "Rank all filters for keys, questions and a budget.",
    "bench": "Measure the filters on this machine, beside other packages.",
    "build": "Build a filter of the keys of a file.",
    "dedup": "Drop the records of a stream that were seen before.",
    "demo": "Show it all: a blocklist, a log, advice, guards, a picture.",
    "guard": "Put a filter before a table and replay a log of questions.",
    "inspect": "Tell what is in a file.",
    "merge": "Merge filters of equal shape.",
    "plan": "Find the best stack of layers for a workload.",
    "query": "Ask a filter for keys.",
    "search": "Find documents by their words.",
    "skip": "Skip row groups of Parquet files.",
    "verify": "Check a filter: its bytes, its keys, its rate.",
}


class _Commands(click.Group):
    """The commands by name; a module is imported when its command is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"tamis.cli.{name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="tamis")
@click.pass_context
def commands(ctx: click.Context) -> None:
    r"""Membership filters that know their workload.

    A filter answers "is this key in the set?" from a few bits per key and never misses a key that
    is there.

    \b
      tamis build blocked.txt --fpr 0.001 -o blocked.tamis
      tamis query blocked.tamis example.org

    Input is text (one key per line), CSV, Parquet or Arrow, compressed or not; "-" is standard
    input. Exit codes: 0 done, 1 the answer is no, 2 wrong input.
    """
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; what is wrong with its input is said in one line."""
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warned
            code = commands.main(arguments, prog_name="tamis", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "tamis"
        return _refused(f"{error.format_message()} ({where} --help)")
    except click.ClickException as error:
        return _refused(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        print("tamis: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read has enough; the flush at exit would complain once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if "TAMIS_TRACEBACK" in os.environ or not _about_input(error):
            raise
        return _refused(_message(error))


_WRONG_INPUT = (
    ValueError, TypeError, LookupError, ArithmeticError, OSError, ImportError,
    MemoryError, sqlite3.Error,
)  # fmt: skip
"""What is raised about wrong input; with `TAMIS_TRACEBACK=1` it is shown whole."""


def _warned(message: Warning | str, *_: Any, **__: Any) -> None:
    print("tamis:", message, file=sys.stderr)


def _about_input(error: Exception) -> bool:
    # psycopg is imported where it is used, so its errors are told by their module.
    return isinstance(error, _WRONG_INPUT) or type(error).__module__.startswith("psycopg")


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error) or type(error).__name__


def _refused(message: str) -> int:
    print("tamis:", " ".join(message.split()), file=sys.stderr)
    return 2
