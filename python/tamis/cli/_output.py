"""What commands print: tables, JSON, records, and progress bars on a terminal."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, BinaryIO, cast

from tamis._progress import progress_bar


def say(text: str) -> None:
    """Print to standard output."""
    print(text, flush=True)


def note(text: str) -> None:
    """Print a message to standard error."""
    print(text, file=sys.stderr, flush=True)


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


def share(rate: float) -> str:
    """Format a rate: as a percentage unless it is tiny.

    >>> share(0.0123), share(0.0000012), share(0)
    ('1.23 %', '1.2e-06', '0')
    """
    if rate >= 0.0001:
        return f"{100 * rate:.3g} %"
    return f"{rate:.2g}"


def size(bits: float) -> str:
    """Format a size in bytes.

    >>> size(8 * 1_500_000), size(800)
    ('1.50 MB', '100 bytes')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bits / 8 >= scale:
            return f"{bits / 8 / scale:.2f} {unit}"
    return f"{math.ceil(bits / 8)} bytes"


def progress(
    what: str, total: int | None, *, prints: bool = False
) -> AbstractContextManager[Callable[[int], None]]:
    """Show a progress bar, unless the command prints to the same terminal."""
    return progress_bar(what, total, show=False if prints and sys.stdout.isatty() else None)


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
        # Without records the file is created empty; on an error an existing file is left as it is.
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
            self._table = self._writer(batch.schema)
        self._table.write(batch)

    def write_table(self, table: Any) -> None:
        """Write an Arrow table, or only its header if it has no rows."""
        if self._table is None:
            self._table = self._writer(table.schema)
        for batch in table.to_batches():
            self.write(batch)

    def _writer(self, schema: Any) -> Any:
        if self._extension in ("parquet", "pq"):
            from pyarrow import parquet

            return parquet.ParquetWriter(self._file, schema)
        if self._extension in ("arrow", "feather", "ipc"):
            from pyarrow import ipc

            return ipc.new_file(self._file, schema)
        return _CSV(self._file, schema, "\t" if self._extension == "tsv" else ",")


class _CSV:
    """Writes record batches as CSV, quoting only where necessary."""

    def __init__(self, file: BinaryIO, schema: Any, delimiter: str) -> None:
        self._text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=False)
        self._rows = csv.writer(self._text, delimiter=delimiter, lineterminator="\n")
        self._rows.writerow(schema.names)

    def write(self, batch: Any) -> None:
        self._rows.writerows(zip(*(column.to_pylist() for column in batch.columns), strict=True))

    def close(self) -> None:
        self._text.detach()
