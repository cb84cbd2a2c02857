"""The command line: ``tamis COMMAND``, one module per command.

Exit codes: 0, success; 1, success and the answer is no (`query` found nothing, `verify` found an
error); 2, invalid input, with one line on standard error; 130, interrupted.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sqlite3
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import click

from tamis import __version__
from tamis.cli._output import colours, drop_output, print_stderr, say

_GROUPS = {
    "Choose a filter": {
        "advise": "Rank filters for keys, a workload and a budget or a rate.",
        "plan": "Find the best filter for a workload, without building it.",
        "demo": "Compare filters in front of a database.",
        "bench": "Measure filters on this machine, next to other packages.",
    },
    "Build and query filters": {
        "build": "Build a filter from a file of keys.",
        "query": "Look up keys in a filter.",
        "inspect": "Describe a saved filter.",
        "verify": "Check a filter: its bytes, its keys, its false-positive rate.",
        "merge": "Merge filters.",
    },
    "Use filters": {
        "guard": "Replay a query log against a filter in front of a table.",
        "skip": "Skip row groups of Parquet files.",
        "search": "Search documents by words.",
        "dedup": "Drop records of a stream that were seen before.",
    },
}
"""The commands as the help lists them."""

_COMMANDS = {name: text for group in _GROUPS.values() for name, text in group.items()}


class _Formatter(click.HelpFormatter):
    """Help with colours; `click.echo` removes them where the output is not a terminal."""

    def write_heading(self, heading: str) -> None:
        super().write_heading(click.style(heading, bold=True))

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, click.style("Usage: ", bold=True))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        named = [(click.style(name, fg="cyan"), text) for name, text in rows]
        super().write_dl(named, col_max, col_spacing)


class _Context(click.Context):
    formatter_class = _Formatter


def _with_colours(command: click.Command) -> click.Command:
    """Make the command, or all commands of a group, print their help with colours."""
    command.context_class = _Context
    for each in getattr(command, "commands", {}).values():
        each.context_class = _Context
    return command


class _Commands(click.Group):
    """The commands by name; a module is imported when its command runs."""

    context_class = _Context

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        return _with_colours(importlib.import_module(f"tamis.cli.{name}").command)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        close = difflib.get_close_matches(name, _COMMANDS, n=1)
        if name not in _COMMANDS and close and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, _COMMANDS))
        for heading, group in _GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), text) for name, text in group.items()])


# Not a raw string: click does not rewrap a paragraph that starts with the character \b.
@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    invoke_without_command=True,
    help="""Membership filters that know their workload.

    A filter answers "is this key in the set?" from a few bits per key. It never rejects a key that
    is in the set.

    \b
      tamis demo
      tamis advise blocked.txt --queries log.txt --bits-per-key 10
      tamis build blocked.txt --fpr 0.001 -o blocked.tamis
      tamis query blocked.tamis example.org

    `tamis COMMAND --help` shows the options of a command and an example. Input is text (one key
    per line), CSV, Parquet or Arrow, optionally compressed; "-" is standard input. Exit codes:
    0 success, 1 the answer is no, 2 invalid input.
    """,
)
@click.version_option(__version__, prog_name="tamis")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """Print the help if no command is given."""
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; invalid input is reported in one line."""
    sys.exit(_run(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: Sequence[str]) -> int:
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _print_warning
            code = commands.main(
                arguments, prog_name="tamis", standalone_mode=False, color=colours()
            )
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "tamis"
        return _fail(f"{error.format_message()} (see {command} --help)")
    except click.ClickException as error:
        return _fail(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        print_stderr("tamis: interrupted")
        return 130
    except BrokenPipeError:
        drop_output()
        return 0
    except Exception as error:
        if "TAMIS_TRACEBACK" in os.environ or not _about_input(error):
            raise
        message = _message(error)
        # After an ImportError the command itself may be missing, and with it its options.
        return _fail(
            message if isinstance(error, ImportError) else _with_options(message, arguments)
        )


_INPUT_ERRORS = (
    ValueError, TypeError, LookupError, ArithmeticError, OSError, ImportError,
    MemoryError, sqlite3.Error,
)  # fmt: skip
"""Errors that invalid input raises; with `TAMIS_TRACEBACK=1` the traceback is shown."""


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print_stderr(f"tamis: {message}")


def _about_input(error: Exception) -> bool:
    # psycopg is imported only where it is used, so its errors are recognized by their module.
    return isinstance(error, _INPUT_ERRORS) or type(error).__module__.startswith("psycopg")


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        path = os.fsdecode(error.filename)
        folder = os.path.dirname(path) or "."
        if isinstance(error, FileNotFoundError) and not os.path.isdir(folder):
            return f"the folder {folder!r} does not exist"
        return f"{path}: {error.strerror}"
    if isinstance(error, OSError) and error.args[:1] == (error.errno,) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _with_options(message: str, arguments: Sequence[str]) -> str:
    """Replace the names of Python arguments in a message by the options of the command.

    A name that is also an English word is replaced only where it is the subject of the message, or
    in a list of arguments.

    >>> _with_options("bits_per_key is -1.0; ...", ["build", "keys.txt"])
    '--bits-per-key is -1.0; ...'
    >>> _with_options("the capacity is too low", ["build", "keys.txt"])
    'the capacity is too low'
    >>> _with_options("pass at most one of fpr, bits_per_key and budget", ["advise", "1000"])
    'pass at most one of --fpr, --bits-per-key and --budget'
    """
    lists = re.match(r"pass (exactly|at most) one of ", message) is not None
    for param in _command(arguments).params:
        if isinstance(param, click.Option) and param.name:
            name, option = re.escape(param.name), max(param.opts, key=len)
            word = "_" not in name and name != "fpr" and not lists
            pattern = (
                rf"(^|(?<= and )){name}(?= (is|has|must)\b)" if word else rf"(?<![\w-]){name}\b"
            )
            message = re.sub(pattern, option, message)
            if param.name == "secret":
                message = re.sub(r"pass key=$", "pass --secret", message)
                message = re.sub(r"^key is given", "--secret is given", message)
    return message


def _command(arguments: Sequence[str]) -> click.Command:
    """Return the command that these arguments run."""
    command: click.Command = commands
    for name in arguments:
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), name) or command
    return command


def _fail(message: str) -> int:
    print_stderr(click.style("tamis:", fg="red") + " " + " ".join(message.split()))
    return 2
