"""Output of commands: tables, JSON, records, and progress bars on a terminal."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any, BinaryIO, NamedTuple, cast

import click

from tamis._columns import pyarrow
from tamis._files import save_atomically
from tamis._progress import progress_bar
from tamis.cli._readers import CsvBatch, column_names


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


def write_records(
    path: str | None, batches: Iterable[Any], *, is_json: Callable[[], bool] = lambda: False
) -> None:
    """Write lists of lines, Arrow record batches or `CsvBatch` to a file or to standard output.

    The name of the file decides the format and the compression. A regular file is written under
    another name and replaced at the end, so that it may be the input, and an error changes nothing.
    ``is_json`` tells after the first batch whether lines are JSON objects.
    """
    if path is None:
        try:
            _Records(sys.stdout.buffer, _OutputName.of(""), is_json).write_all(batches)
        except BrokenPipeError:  # the reader has enough
            drop_output()
        return
    name = _OutputName.of(path)
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe or a device
        with open(path, "wb") as file:
            _Records(file, name, is_json).write_all(batches)
        return

    def write(descriptor: int) -> None:
        with open(descriptor, "wb", closefd=False) as file:
            _Records(file, name, is_json).write_all(read)

    read = _Reading(batches)
    try:
        save_atomically(path, write)
    except OSError:
        if read.error is not None:
            raise read.error from None
        raise


class _Reading:
    """Iterates over batches, and keeps an error of the input apart from errors of the output."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches, self.error = batches, cast(OSError | None, None)

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._batches
        except OSError as error:
            self.error = error
            raise


_FORMATS = {
    "csv": "csv", "tsv": "tsv", "jsonl": "jsonl", "ndjson": "jsonl", "parquet": "parquet",
    "pq": "parquet", "arrow": "arrow", "feather": "arrow", "ipc": "arrow",
}  # fmt: skip

_COMPRESSORS: dict[str, Callable[[Any], Any]] = {
    "gz": lambda file: gzip.GzipFile(fileobj=file, mode="wb"),
    "bz2": lambda file: bz2.BZ2File(file, "wb"),
    "xz": lambda file: lzma.LZMAFile(file, "wb"),  # noqa: SIM115
    "zst": lambda file: pyarrow("a zstd file").CompressedOutputStream(file, "zstd"),
}


class _OutputName(NamedTuple):
    """The format and the compression that the name of a file asks for."""

    path: str
    ending: str
    format: str | None
    compression: str | None

    @classmethod
    def of(cls, path: str) -> _OutputName:
        """Read the endings of a name.

        >>> _OutputName.of("once.csv.gz")[1:]
        ('csv', 'csv', 'gz')
        """
        endings = os.path.basename(path).lower().split(".")[1:]
        compression = endings.pop() if endings and endings[-1] in _COMPRESSORS else None
        ending = endings[-1] if endings else ""
        return cls(path, ending, _FORMATS.get(ending), compression)

    def table_format(self) -> str:
        """Return the format of a table: CSV if the name has no ending."""
        if self.ending and self.format is None:
            raise ValueError(
                f"the name of an output of tables must end in .{', .'.join(_FORMATS)}, optionally "
                f"followed by .{', .'.join(_COMPRESSORS)}, not {self.path!r}"
            )
        return self.format or "csv"

    def check_lines(self, is_json: bool) -> None:
        """Raise if lines of text, or of JSON, cannot be written to a file of this name."""
        if self.format not in (None, "jsonl" if is_json else None):
            what = "JSON lines" if is_json else "lines of text"
            raise ValueError(f"the input is {what}, which cannot be written as {self.path!r}")


class _Records:
    """Writes records to an open file."""

    def __init__(self, file: BinaryIO, name: _OutputName, is_json: Callable[[], bool]) -> None:
        self._name, self._is_json, self._table = name, is_json, cast(Any, None)
        compressor = None if name.compression is None else _COMPRESSORS[name.compression]
        self._compressed = None if compressor is None else compressor(file)
        self._file: Any = file if self._compressed is None else self._compressed

    def write_all(self, batches: Iterable[Any]) -> None:
        """Write all batches and the end of the file."""
        with nullcontext() if self._compressed is None else closing(self._compressed):
            for batch in batches:
                self._write(batch)
            if self._table is not None:
                self._table.close()

    def _write(self, batch: Any) -> None:
        if isinstance(batch, list):
            self._name.check_lines(self._is_json())
            if batch:
                self._file.write(b"\n".join(batch) + b"\n")
                self._file.flush()
            return
        if self._table is None:
            self._table = self._table_writer(batch)
        for each in [batch] if isinstance(batch, CsvBatch) else _record_batches(batch):
            self._table.write(each)

    def _table_writer(self, batch: Any) -> Any:
        match self._name.table_format():
            case "parquet":
                pyarrow("a Parquet file")
                from pyarrow import parquet

                return parquet.ParquetWriter(self._file, _schema(batch, "a Parquet file"))
            case "arrow":
                pyarrow("an Arrow file")
                from pyarrow import ipc

                return ipc.new_file(self._file, _schema(batch, "an Arrow file"))
            case "jsonl":
                return _JSONLines(self._file, column_names(batch))
            case format:
                return _CSV(self._file, column_names(batch), "\t" if format == "tsv" else ",")


def _record_batches(table: Any) -> list[Any]:
    return list(table.to_batches()) if hasattr(table, "to_batches") else [table]


def _schema(batch: Any, what: str) -> Any:
    if isinstance(batch, CsvBatch):
        raise ImportError(f"{what} needs pyarrow: pip install 'tamis[arrow]'")
    return batch.schema


def _rows(batch: Any) -> Iterable[Sequence[Any]]:
    if isinstance(batch, CsvBatch):
        rows: list[list[Any]] = batch.tolist()
        return rows
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


class _JSONLines:
    """Writes rows as JSON objects, one per line."""

    def __init__(self, file: BinaryIO, names: list[str]) -> None:
        self._file, self._names = file, names

    def write(self, batch: Any) -> None:
        for row in _rows(batch):
            record = dict(zip(self._names, map(_plain, row), strict=True))
            self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")

    def close(self) -> None:
        pass


class _CSV:
    """Writes batches as CSV, quoting only where necessary."""

    def __init__(self, file: BinaryIO, names: list[str], delimiter: str) -> None:
        self._text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=False)
        self._rows = csv.writer(self._text, delimiter=delimiter, lineterminator="\n")
        self._rows.writerow(names)

    def write(self, batch: Any) -> None:
        self._rows.writerows(_rows(batch))

    def close(self) -> None:
        self._text.detach()
