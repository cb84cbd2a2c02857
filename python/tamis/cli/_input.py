"""Input records: text, CSV, Parquet and Arrow, compressed or not, in bounded memory.

Records are read in batches: lists of lines (bytes), Arrow record batches, or without pyarrow
`CsvBatch`. Batches are large, so that only a regular expression, and CSV without pyarrow, run
Python code for each key.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tamis._columns import drop_null, join, pyarrow
from tamis._compressed import DAMAGED, decompress
from tamis.cli._csv import CsvBatch, column_names, read_csv
from tamis.cli._integers import parse_column, parse_integers
from tamis.cli._output import print_stderr, progress
from tamis.cli._stream import BLOCK, open_stream, read_lines, seekable

Format = Literal["auto", "text", "csv", "tsv", "parquet", "arrow"]

LogFormat = Literal["combined", "common"]

_ACCESS_LOG = re.compile(
    rb"(?P<host>\S+) \S+ (?P<user>\S+) \[(?P<time>[^\]]+)\] "
    rb'"(?P<method>[A-Z]+) (?P<path>[^ "]+)[^"]*" (?P<status>\d{3}) (?P<size>\d+|-)'
    rb'(?: "(?P<referer>[^"]*)" "(?P<agent>[^"]*)")?'
)
"""A line of a web server's log, in the common log format or the longer combined one."""

_BATCH_ROWS = 1 << 16
"""CsvBatch of a table read at a time."""


@dataclass(frozen=True)
class Source:
    """An input: a path or "-", the columns that hold the keys, and how to read them."""

    path: str
    columns: tuple[str, ...] = ()
    """The columns of the keys; the values of several columns are a tuple."""
    format: Format = "auto"
    integers: bool = False
    default_columns: tuple[str, ...] = ()
    """The columns to read if ``columns`` is empty and the table has all of these."""
    column_option: str = "--column"
    """The option that sets ``columns``, for error messages."""
    regex: str | None = None
    """Finds the key in a line: the first group, or the whole match if there is no group."""
    log_format: LogFormat | None = None
    """The format of a web server's log; ``columns`` are fields of it."""
    is_log: bool = False
    """Whether the command has --regex and --log-format; a web server's log is then refused unless
    one of them is set."""
    prints: bool = False
    """Whether results are printed while reading: then there is no progress bar."""

    @property
    def name(self) -> str:
        """The name used in messages."""
        return "standard input" if self.path == "-" else self.path

    def batches(self, *, all_columns: bool = True) -> Iterator[Any]:
        """Read the records, or only the key columns; raise ValueError if there are none."""
        empty = True
        try:
            for batch in self._read(all_columns):
                if len(batch):
                    empty = False
                    yield batch
        except DAMAGED as error:
            raise ValueError(f"{self.name} is damaged or truncated: {error}") from None
        if empty:
            raise ValueError(f"{self.name} is empty: expected at least one record")

    def read_keys(self) -> Iterator[Any]:
        """Read the keys; empty lines and nulls are skipped."""
        empty = True
        for batch in self.batches(all_columns=False):
            filled = list(filter(None, batch)) if isinstance(batch, list) else batch
            if empty and self.format == "auto" and self._looks_like_a_log(filled):
                print_stderr(
                    f"tamis: {self.name} looks like the log of a web server: each line is a key"
                )
            column = self.key_column(filled)
            if not isinstance(column, list):
                column = drop_null(column)
            if len(column):
                empty = False
                yield column
        if empty:
            raise ValueError(f"{self.name} has no keys: expected at least one")

    def _looks_like_a_log(self, lines: Any) -> bool:
        """Return whether whole lines of a web server's log are read as keys."""
        lines = lines if isinstance(lines, list) and self._pattern() is None else []
        return bool(lines and isinstance(lines[0], bytes) and _ACCESS_LOG.match(lines[0]))

    def read_costs(self, column: str) -> Iterator[tuple[Any, Any]]:
        """Read the keys of a table, and the numbers in another column; null keys are skipped."""
        for batch in self.batches():
            if isinstance(batch, list):
                raise ValueError(
                    f"--cost-column is {column!r}, but {self.name} is text, which has no columns; "
                    "use a table"
                )
            if column not in column_names(batch):
                columns = ", ".join(column_names(batch))
                raise ValueError(f"{self.name} has no column {column!r}; its columns are {columns}")
            keys, costs = self.key_column(batch), batch.column(column)
            if isinstance(batch, CsvBatch):
                yield keys, self._costs(column, costs)
                continue
            filled = keys.is_valid()
            yield keys.filter(filled), self._costs(column, costs.filter(filled))

    def _costs(self, name: str, column: Any) -> Any:
        if isinstance(column, list):
            try:
                return np.array(column, dtype=float)
            except ValueError as error:
                raise ValueError(
                    f"--cost-column must be a column of numbers, but {name!r} of {self.name} is "
                    f"not: {error}"
                ) from None
        arrow = pyarrow("a table")
        try:
            costs = column.cast(arrow.float64())
        except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError) as error:
            raise ValueError(
                f"--cost-column must be a column of numbers, but {name!r} of {self.name} is not: "
                f"{error}"
            ) from None
        if costs.null_count:
            raise ValueError(f"{self.name} has queries without a cost in its column {name!r}")
        return costs.to_numpy(zero_copy_only=False)

    def key_column(self, batch: Any) -> Any:
        """Return the keys of a batch, one per record."""
        if isinstance(batch, list):
            if (pattern := self._pattern()) is not None:
                # One group gives bytes, several a tuple.
                groups = self._groups(pattern)
                found = (match for line in batch if (match := pattern.search(line)))
                batch = [match.group(*groups) for match in found]
                if len(groups) > 1:
                    columns = [list(values) for values in zip(*batch, strict=True)]
                    return list(zip(*map(self._values, columns), strict=True))
            return self._values(batch)
        names = self.columns_of(column_names(batch))
        columns = [self._values(batch.column(name)) for name in names]
        if len(columns) == 1:
            return columns[0]
        if isinstance(batch, CsvBatch):
            return list(zip(*columns, strict=True))
        return _struct_column(columns, names)

    def _values(self, column: Any) -> Any:
        """Return the values of a column of keys, with ``integers`` as integers."""
        if isinstance(column, list):
            keys = [key.encode() if isinstance(key, str) else key for key in column]
            return parse_integers(self.name, keys) if self.integers else keys
        if not self.integers:
            return column
        types = pyarrow("a table").types
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        # Polars and DuckDB write large strings and views.
        text = any(
            test(column.type)
            for test in (types.is_string, types.is_large_string, types.is_string_view)
        )
        return parse_column(self.name, column) if text else column

    def columns_of(self, names: list[str]) -> list[str]:
        """Return the names of the columns that hold the keys."""
        if not self.columns and len(names) == 1:
            return names
        columns = self.columns or self.default_columns
        if columns and all(column in names for column in columns):
            return list(columns)
        listed = ", ".join(names)
        if not self.columns:
            raise ValueError(
                f"{self.name} has the columns {listed}; choose one with {self.column_option}"
            )
        missing = next(column for column in self.columns if column not in names)
        raise ValueError(f"{self.name} has no column {missing!r}; its columns are {listed}")

    def _read(self, all_columns: bool) -> Iterator[Any]:
        size = None if self.path == "-" else os.stat(self.path).st_size
        with (
            progress(self.name, size, prints=self.prints) as advance,
            open_stream(self.path, advance) as file,
        ):
            try:
                yield from self._batches(decompress(file, BLOCK), all_columns)
            except Exception as error:
                # The errors of pyarrow do not name the file.
                if not type(error).__module__.startswith("pyarrow"):
                    raise
                raise ValueError(f"{self.name}: {error}") from None

    def _batches(self, stream: io.BufferedReader, all_columns: bool) -> Iterator[Any]:
        pattern = self._pattern()
        match "text" if pattern is not None else self._detect(stream):
            case "text" if pattern is not None:
                yield from self._matching(pattern, read_lines(self.name, stream))
            case "text":
                if self.columns:
                    columns = ", ".join(map(repr, self.columns))
                    raise ValueError(
                        f"{self.column_option} is {columns}, but {self.name} is text, "
                        "which has no columns; use --format csv to read it as a table"
                    )
                yield from read_lines(self.name, stream)
            case "csv":
                yield from self._csv(stream, ",", all_columns)
            case "tsv":
                yield from self._csv(stream, "\t", all_columns)
            case "parquet":
                yield from self._parquet(stream, all_columns)
            case _:
                yield from self._arrow(stream)

    def _detect(self, stream: io.BufferedReader) -> str:
        if self.format != "auto":
            return self.format
        start = stream.peek(8)
        if start.startswith(b"PAR1"):
            return "parquet"
        if start.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
            return "arrow"
        if self.is_log and _ACCESS_LOG.match(start):
            raise ValueError(
                f"{self.name} looks like the log of a web server: pass --log-format combined to "
                "use the path of each request, or --regex to use another part of each line "
                "('.+' for all of it)"
            )
        endings = self.path.lower().split("/")[-1].split(".")[1:]
        return next((e for e in reversed(endings) if e in ("csv", "tsv", "parquet")), "text")

    def _csv(self, stream: io.BufferedReader, delimiter: str, all_columns: bool) -> Iterator[Any]:
        """Read every value as text, unchanged: 007 is not 7."""
        try:
            import pyarrow as arrow
            from pyarrow import csv as arrow_csv
        except ImportError:
            yield from self._csv_without_pyarrow(stream, delimiter, all_columns)
            return

        header = stream.peek(BLOCK).split(b"\n")[0].decode("utf-8-sig").rstrip("\r")
        if not header:
            return
        names = next(csv.reader([header], delimiter=delimiter))
        wanted = names if all_columns else self.columns_of(names)
        if not all_columns or self.columns:
            self.columns_of(names)
        yield from arrow_csv.open_csv(
            stream,
            arrow_csv.ReadOptions(block_size=BLOCK, use_threads=False),
            arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, arrow.string()), include_columns=wanted
            ),
        )

    def _csv_without_pyarrow(
        self, stream: io.BufferedReader, delimiter: str, all_columns: bool
    ) -> Iterator[Any]:
        """Read CSV without pyarrow."""
        for batch in read_csv(self.name, stream, delimiter, _BATCH_ROWS):
            if not all_columns or self.columns:
                self.columns_of(batch.names)
            yield batch

    def _pattern(self) -> re.Pattern[bytes] | None:
        if self.regex is not None and self.log_format is not None:
            raise ValueError("pass at most one of --regex and --log-format")
        if (self.regex or self.log_format) and self.format not in ("auto", "text"):
            raise ValueError(f"--regex and --log-format read text, not --format {self.format}")
        if self.log_format is not None:
            return _ACCESS_LOG
        try:
            return None if self.regex is None else re.compile(self.regex.encode())
        except re.error as error:
            raise ValueError(f"--regex is not a regular expression: {error}") from None

    def _groups(self, pattern: re.Pattern[bytes]) -> list[int | str]:
        """Return the groups of the pattern that are the key."""
        if self.log_format is None:
            return [min(pattern.groups, 1)]
        fields = list(pattern.groupindex)
        for columns in (self.columns, self.default_columns):
            if columns and all(column in fields for column in columns):
                return list(columns)
        for column in self.columns:
            if column not in fields:
                raise ValueError(
                    f"{self.column_option} must be a field of the log ({', '.join(fields)}), "
                    f"not {column!r}"
                )
        return ["path"]

    def _matching(
        self, pattern: re.Pattern[bytes], batches: Iterator[list[bytes]]
    ) -> Iterator[list[bytes]]:
        """Yield the lines that match and have a key; print how many do not."""
        groups, lines, skipped = self._groups(pattern), 0, 0
        for batch in batches:
            found = [
                line
                for line in batch
                if (m := pattern.search(line)) and all(m[group] for group in groups)
            ]
            filled = sum(map(bool, batch))
            lines, skipped = lines + filled, skipped + filled - len(found)
            yield found
        option = "--log-format" if self.regex is None else "--regex"
        if skipped == lines > 0:
            raise ValueError(f"{self.name} has no line that matches {option}")
        if skipped:
            print_stderr(
                f"tamis: {skipped:,} of {lines:,} lines of {self.name} do not match {option}"
            )

    def _parquet(self, stream: io.BufferedReader, all_columns: bool) -> Iterator[Any]:
        pyarrow("a Parquet file")
        from pyarrow import parquet

        with seekable(stream) as file:
            table = parquet.ParquetFile(file)
            columns = None if all_columns else self.columns_of(table.schema_arrow.names)
            yield from table.iter_batches(_BATCH_ROWS, columns=columns)

    def _arrow(self, stream: io.BufferedReader) -> Iterator[Any]:
        pyarrow("an Arrow file")
        from pyarrow import ipc

        if not stream.peek(8).startswith(b"ARROW1"):
            for batch in ipc.open_stream(stream):
                yield self._validated(batch)
            return
        with seekable(stream) as file:
            table = ipc.open_file(file)
            for i in range(table.num_record_batches):
                yield self._validated(table.get_batch(i))

    def _validated(self, batch: Any) -> Any:
        """Return the batch after checking offsets and indices, which pyarrow does not do."""
        try:
            batch.validate(full=True)
        except (ValueError, IndexError) as error:
            raise ValueError(f"{self.name} is damaged: {error}") from None
        return batch


def _struct_column(columns: list[Any], names: list[str]) -> Any:
    """Return Arrow columns as one column of rows; a row with a null is null."""
    arrow = pyarrow("a table")
    from pyarrow import compute

    arrays = [each.combine_chunks() if hasattr(each, "chunks") else each for each in columns]
    nulls = np.logical_or.reduce(
        [compute.is_null(each).to_numpy(zero_copy_only=False) for each in arrays]
    )
    return arrow.StructArray.from_arrays(arrays, names, mask=arrow.array(nulls))


def split_log(log: Source) -> tuple[Any, Any]:
    """Read a query log into memory: the half to learn from, and the half to measure on."""
    queries = join(list(log.read_keys()))
    half = len(queries) // 2
    if not half:
        raise ValueError(f"{log.name} has one query: expected at least two, to split it in halves")
    return queries[:half], queries[half:]
