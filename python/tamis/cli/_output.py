"""Output of commands: tables, JSON, records, and progress bars on a terminal."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, BinaryIO, cast

import click

from tamis._columns import pyarrow
from tamis._progress import progress_bar
from tamis.cli._csv import CsvBatch, column_names


def say(text: str) -> None:
    """Print to standard output, with colours only on a terminal.

    If the reader has closed the pipe (``| head``), the rest is dropped and the command goes on: it
    may have a report or a filter to write.
    """
    try:
        click.echo(text, color=colours())
    except BrokenPipeError:
        drop_output()


def drop_output() -> None:
    """Discard further output, because the flush at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def colours() -> bool | None:
    """Return False if NO_COLOR is set, else None: colours only on a terminal."""
    return False if os.environ.get("NO_COLOR") else None


def print_stderr(text: str) -> None:
    """Print a message to standard error."""
    click.echo(text, err=True, color=colours())


def show_json(facts: Any) -> None:
    """Print as one line of JSON; NaN and infinity become null."""
    say(json.dumps(_plain(facts)))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Format rows under a header; the first ``left`` columns are left-aligned.

    >>> print(table(["filter", "bits"], [["Bloom", "9.6"], ["Ribbon", "7.0"]]))
    filter   bits
    Bloom     9.6
    Ribbon    7.0
    """
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width + 1)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def facts(pairs: Mapping[str, str]) -> str:
    """Format names and values, one pair per line."""
    width = max(map(len, pairs))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in pairs.items())


def progress(
    description: str, total: int | None, *, prints: bool = False
) -> AbstractContextManager[Callable[[int], None]]:
    """Show a progress bar, unless the command prints to the same terminal."""
    return progress_bar(description, total, show=False if prints and sys.stdout.isatty() else None)


class Writer:
    """Writes records: lines as lines, tables as CSV or in the format of the path's extension."""

    def __init__(self, path: str | None) -> None:
        self._path, self._extension = path, (path or "").rpartition(".")[2].lower()
        self._table: Any = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, wrong: type[BaseException] | None, *_: object) -> None:
        if self._table is not None:
            self._table.close()
        # Without records the file is created empty; on an error an existing file is not changed.
        if self._path is not None and (wrong is None or "_file" in vars(self)):
            self._file.close()

    @cached_property
    def _file(self) -> BinaryIO:
        return cast(BinaryIO, io.FileIO(self._path, "wb") if self._path else sys.stdout.buffer)

    def write(self, batch: Any) -> None:
        """Write a list of lines or an Arrow record batch."""
        if isinstance(batch, list):
            if batch:
                self._file.write(b"\n".join(batch) + b"\n")
                self._file.flush()
            return
        if self._table is None:
            self._table = self._writer(batch)
        self._table.write(batch)

    def write_table(self, table: Any) -> None:
        """Write an Arrow table, or only its header if it has no rows."""
        if self._table is None:
            self._table = self._writer(table)
        for batch in table.to_batches():
            self.write(batch)

    def _writer(self, batch: Any) -> Any:
        if self._extension in ("parquet", "pq"):
            pyarrow("a Parquet file")
            from pyarrow import parquet

            return parquet.ParquetWriter(self._file, batch.schema)
        if self._extension in ("arrow", "feather", "ipc"):
            pyarrow("an Arrow file")
            from pyarrow import ipc

            return ipc.new_file(self._file, batch.schema)
        return _CSV(self._file, column_names(batch), "\t" if self._extension == "tsv" else ",")


class _CSV:
    """Writes batches as CSV, quoting only where necessary."""

    def __init__(self, file: BinaryIO, names: list[str], delimiter: str) -> None:
        self._text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=False)
        self._rows = csv.writer(self._text, delimiter=delimiter, lineterminator="\n")
        self._rows.writerow(names)

    def write(self, batch: Any) -> None:
        if isinstance(batch, CsvBatch):
            self._rows.writerows(batch.tolist())
            return
        self._rows.writerows(zip(*(column.to_pylist() for column in batch.columns), strict=True))

    def close(self) -> None:
        self._text.detach()
