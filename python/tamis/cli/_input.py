"""Input records: text, CSV, JSON lines, Parquet and Arrow, compressed or not, in bounded memory.

Records are read in batches: lists of lines (bytes), Arrow record batches, or without pyarrow
`CsvBatch`. Batches are large, so that only lines that are searched, JSON, and CSV without pyarrow
run Python code for each key.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

import numpy as np

from tamis._columns import as_list, drop_null, join, pyarrow
from tamis._compressed import DAMAGED
from tamis.cli._lines import (
    FIELDS,
    MAX_SEARCHED,
    JsonLines,
    LineKeys,
    LogFormat,
    LogLines,
    PatternLines,
    parse_json_line,
    parse_log_line,
    search_lines,
)
from tamis.cli._output import print_stderr, progress
from tamis.cli._readers import (
    Input,
    column_names,
    open_input,
    parse_column,
    parse_integers,
    read_arrow,
    read_csv,
    read_lines,
    read_parquet,
)
from tamis.errors import KeyKindWarning

Format = Literal["auto", "text", "csv", "tsv", "jsonl", "parquet", "arrow"]

_ENDINGS: dict[str, Format] = {
    "csv": "csv", "tsv": "tsv", "jsonl": "jsonl", "ndjson": "jsonl", "parquet": "parquet",
}  # fmt: skip
"""Formats by the ending of a name, which may be followed by the ending of a compression."""


@dataclass
class Source:
    """An input: a path or "-", the columns that hold the keys, and how to read them."""

    path: str
    columns: tuple[str, ...] = ()
    """The columns of the keys, of which the values are a tuple if there are several. "name:int"
    reads a column as integers."""
    format: Format = "auto"
    integers: bool = False
    """Whether all keys that are text are read as integers."""
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
    _lines: LineKeys | None = field(default=None, init=False)
    """How to find the key in a line, known after the input was opened; None if it is the line."""
    _is_table: bool = field(default=False, init=False)
    _empty_is_null: bool = field(default=False, init=False)
    """Whether an empty value of a table is null, as CSV has no other way to write null."""

    @property
    def name(self) -> str:
        """The name used in messages."""
        return "standard input" if self.path == "-" else self.path

    @property
    def is_json(self) -> bool:
        """Whether the lines are JSON objects; known after the first batch."""
        return isinstance(self._lines, JsonLines)

    @property
    def may_lack_keys(self) -> bool:
        """Whether a record may have no key; known after the first batch."""
        return self.is_json or self._is_table

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
        """Read the keys. Empty lines are skipped; records with a null key also, and counted."""
        empty, records, keyed = True, 0, 0
        for batch in self.batches(all_columns=False):
            filled = list(filter(None, batch)) if isinstance(batch, list) else batch
            if empty and self.format == "auto" and self._looks_like_a_log(filled):
                print_stderr(
                    f"tamis: {self.name} looks like the log of a web server: each line is a key"
                )
            column = self.key_column(filled)
            keys = without_null(column)
            records, keyed = records + len(column), keyed + len(keys)
            if len(keys):
                empty = False
                yield keys
        if empty:
            raise ValueError(f"{self.name} has no keys: expected at least one")
        self.report_null(records - keyed, records, "are skipped")

    def report_null(self, nulls: int, records: int, effect: str) -> None:
        """Print how many records have no key, and what happens to them."""
        if nulls:
            print_stderr(
                f"tamis: {nulls:,} of {records:,} records of {self.name} have no key (a null) "
                f"and {effect}"
            )

    def _looks_like_a_log(self, lines: Any) -> bool:
        """Return whether whole lines of a web server's log are read as keys."""
        lines = lines if isinstance(lines, list) and self._lines is None else []
        return bool(lines and isinstance(lines[0], bytes) and parse_log_line(lines[0]))

    def read_costs(self, column: str) -> Iterator[tuple[Any, Any]]:
        """Read the keys of a table, and the numbers in another column; null keys are skipped."""
        nulls = records = 0
        for batch in self.batches():
            if isinstance(batch, list):
                raise ValueError(
                    f"--cost-column is {column!r}, but {self.name} is not a table; use CSV, "
                    "Parquet or Arrow"
                )
            if column not in column_names(batch):
                columns = ", ".join(column_names(batch))
                raise ValueError(f"{self.name} has no column {column!r}; its columns are {columns}")
            keys, costs = self.key_column(batch), batch.column(column)
            filled = is_filled(keys)
            records, nulls = records + len(filled), nulls + int((~filled).sum())
            if isinstance(costs, list):
                costs = [cost for cost, has_key in zip(costs, filled, strict=True) if has_key]
            else:
                costs = costs.filter(filled)
            yield without_null(keys), self._costs(column, costs)
        self.report_null(nulls, records, "are skipped")

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
        """Return the keys of a batch, one per record; null where a record has none."""
        if isinstance(batch, list):
            if self._lines is None:
                return self._values(self.name, batch, self.integers)
            found = [self._lines.find(line) for line in batch]
            names = list(self._lines.columns)
            blank = (None,) * len(names)
            parts = zip(*(blank if values is None else values for values in found), strict=True)
            columns: list[Any] = [list(part) for part in parts]
        else:
            names = self.columns_of(column_names(batch))
            columns = [self._without_empty(batch.column(name)) for name in names]
        for i, (name, is_int) in enumerate(zip(names, self._are_integers(names), strict=True)):
            columns[i] = self._values(f"column {name!r} of {self.name}", columns[i], is_int)
        if len(columns) == 1:
            return columns[0]
        if columns and not isinstance(columns[0], list):
            return _struct_column(columns, names)
        rows = zip(*columns, strict=True)
        return [None if None in row else row for row in rows]

    def _without_empty(self, column: Any) -> Any:
        """Return a column of CSV with nulls for empty values."""
        if not self._empty_is_null:
            return column
        if isinstance(column, list):
            return [value or None for value in column]
        arrow = pyarrow("a table")
        from pyarrow import compute

        return compute.if_else(compute.equal(column, ""), arrow.scalar(None, column.type), column)

    def _values(self, name: str, column: Any, is_int: bool) -> Any:
        """Return the values of a column of keys, text as integers if ``is_int``."""
        if isinstance(column, list):
            keys = [key.encode() if isinstance(key, str) else key for key in column]
            texts = [key for key in keys if isinstance(key, bytes)]
            if not is_int or not texts:
                return keys
            parsed = iter(parse_integers(name, texts))
            return [next(parsed) if isinstance(key, bytes) else key for key in keys]
        if not is_int:
            return column
        types = pyarrow("a table").types
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        # Polars and DuckDB write large strings and views.
        text = any(
            test(column.type)
            for test in (types.is_string, types.is_large_string, types.is_string_view)
        )
        return parse_column(name, column) if text else column

    def columns_of(self, names: list[str]) -> list[str]:
        """Return the names of the columns that hold the keys."""
        if not self.columns and len(names) == 1:
            return names
        given = self.columns or self.default_columns
        found = [_column_name(each, names) for each in given]
        for name in found:
            if name is not None and found.count(name) > 1:
                raise ValueError(f"{self.column_option} names the column {name!r} twice")
            if name is not None and names.count(name) > 1:
                raise ValueError(f"{self.name} has two columns named {name!r}")
        columns = [name for name in found if name is not None]
        if given and len(columns) == len(given):
            return columns
        listed = ", ".join(names)
        if not self.columns:
            raise ValueError(
                f"{self.name} has the columns {listed}; choose one with {self.column_option}"
            )
        missing = next(each for each, name in zip(given, found, strict=True) if name is None)
        raise ValueError(f"{self.name} has no column {missing!r}; its columns are {listed}")

    def _are_integers(self, names: list[str]) -> list[bool]:
        """Return which of these key columns are read as integers."""
        typed = {*self.columns, *self.default_columns}
        return [self.integers or (f"{name}:int" in typed and name not in typed) for name in names]

    def _read(self, all_columns: bool) -> Iterator[Any]:
        size = None if self.path == "-" else os.stat(self.path).st_size
        with (
            progress(self.name, size, prints=self.prints) as advance,
            open_input(self.name, self.path, advance) as given,
        ):
            try:
                yield from self._batches(given, all_columns)
            except Exception as error:
                # The errors of pyarrow do not name the file.
                if not type(error).__module__.startswith("pyarrow"):
                    raise
                raise ValueError(f"{self.name}: {error}") from None

    def _batches(self, given: Input, all_columns: bool) -> Iterator[Any]:
        self._lines = searched = self._searched_lines()
        if searched is not None:
            yield from self._matching(searched, read_lines(given))
            return
        format = self._detect(given)
        self._empty_is_null = format in ("csv", "tsv")
        self._is_table = format in ("csv", "tsv", "parquet", "arrow")

        def columns(names: list[str]) -> list[str] | None:
            if all_columns and not self.columns:
                return None
            chosen = self.columns_of(names)  # raises if a column is missing
            return None if all_columns else chosen

        match format:
            case "text":
                self._refuse_columns()
                yield from read_lines(given)
            case "jsonl":
                yield from self._json_lines(read_lines(given))
            case "csv" | "tsv":
                yield from read_csv(given, "," if format == "csv" else "\t", columns)
            case "parquet":
                yield from read_parquet(given, columns)
            case _:
                yield from read_arrow(given)

    def _refuse_columns(self) -> None:
        if self.columns:
            columns = ", ".join(map(repr, self.columns))
            raise ValueError(
                f"{self.column_option} is {columns}, but {self.name} is text, "
                "which has no columns; use --format csv to read it as a table"
            )

    def _detect(self, given: Input) -> Format:
        if self.format != "auto":
            return self.format
        start = given.stream.peek(8)
        if start.startswith(b"PAR1"):
            return "parquet"
        if start.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
            return "arrow"
        if self.is_log and parse_log_line(start[:MAX_SEARCHED].partition(b"\n")[0]):
            raise ValueError(
                f"{self.name} looks like the log of a web server: pass --log-format combined to "
                "use the path of each request, or --regex to use another part of each line "
                "('.+' for all of it)"
            )
        endings = self.path.lower().split("/")[-1].split(".")[1:]
        return next((_ENDINGS[each] for each in reversed(endings) if each in _ENDINGS), "text")

    def _json_lines(self, batches: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
        """Yield lines of JSON. The first batch has the columns: an object may leave out nulls."""
        for batch in batches:
            lines = [line for line in batch if line.strip()]
            if lines and self._lines is None:
                names: dict[str, None] = {}
                for line in lines:
                    names |= dict.fromkeys(parse_json_line(self.name, line))
                self._lines = JsonLines(self.name, self.columns_of(list(names)))
            yield lines

    def _searched_lines(self) -> LogLines | PatternLines | None:
        """Return how --regex or --log-format find the key in a line, if one of them is given."""
        if self.regex is not None and self.log_format is not None:
            raise ValueError("pass at most one of --regex and --log-format")
        if (self.regex or self.log_format) and self.format not in ("auto", "text"):
            raise ValueError(f"--regex and --log-format read text, not --format {self.format}")
        if self.log_format is not None:
            return LogLines(self._log_columns())
        try:
            return None if self.regex is None else PatternLines(re.compile(self.regex.encode()))
        except re.error as error:
            raise ValueError(f"--regex is not a regular expression: {error}") from None

    def _log_columns(self) -> list[str]:
        """Return the fields of a web server's log that are the key."""
        fields = list(FIELDS)
        for given in (self.columns, self.default_columns):
            names = [_column_name(each, fields) for each in given]
            if names and None not in names:
                return [name for name in names if name]
        for column in self.columns:
            if _column_name(column, fields) is None:
                raise ValueError(
                    f"{self.column_option} must be a field of the log ({', '.join(fields)}), "
                    f"not {column!r}"
                )
        return ["path"]

    def _matching(
        self, keys: LogLines | PatternLines, batches: Iterator[list[bytes]]
    ) -> Iterator[list[bytes]]:
        """Yield the lines that match and have a key; print how many do not."""
        lines = unmatched = too_long = 0
        for batch in batches:
            searched = search_lines(keys, batch)
            lines += len(searched.found) + searched.unmatched + searched.too_long
            unmatched, too_long = unmatched + searched.unmatched, too_long + searched.too_long
            yield searched.found
        if too_long:
            print_stderr(
                f"tamis: {too_long:,} of {lines:,} lines of {self.name} are longer than "
                f"{MAX_SEARCHED:,} bytes and were not searched"
            )
        if unmatched + too_long == lines > 0:
            raise ValueError(f"{self.name} has no line that matches {keys.option}")
        if unmatched:
            print_stderr(
                f"tamis: {unmatched:,} of {lines:,} lines of {self.name} do not match {keys.option}"
            )


def _column_name(given: str, names: list[str]) -> str | None:
    """Return the name of a column that is given as "name" or "name:int"; None if there is none."""
    if given in names:
        return given
    name, colon, type_ = given.rpartition(":")
    return name if colon and type_ == "int" and name in names else None


def is_filled(column: Any) -> Any:
    """Return which values of a column are not null."""
    if isinstance(column, list):
        return np.array([value is not None for value in column], bool)
    return np.asarray(column.is_valid())


def without_null(column: Any) -> Any:
    """Return the values of a column that are not null."""
    if isinstance(column, list):
        return [value for value in column if value is not None] if None in column else column
    return drop_null(column)


def _struct_column(columns: list[Any], names: list[str]) -> Any:
    """Return Arrow columns as one column of rows; a row with a null is null."""
    arrow = pyarrow("a table")
    from pyarrow import compute

    arrays = [each.combine_chunks() if hasattr(each, "chunks") else each for each in columns]
    nulls = np.logical_or.reduce(
        [compute.is_null(each).to_numpy(zero_copy_only=False) for each in arrays]
    )
    return arrow.StructArray.from_arrays(arrays, names, mask=arrow.array(nulls))


def split_log(log: Source, keys: Any) -> tuple[Any, Any]:
    """Read a query log into memory: the half to learn from, and the half to measure on."""
    queries = join(list(compared(keys, log.read_keys())))
    half = len(queries) // 2
    if not half:
        raise ValueError(f"{log.name} has one query: expected at least two, to split it in halves")
    return queries[:half], queries[half:]


def _first_kind(keys: Any) -> str | None:
    """Return "text" or "integers", by the first key; None if it is neither, or there is none."""
    first: Any = next(iter(keys), None) if hasattr(keys, "__len__") else None
    first = first.as_py() if hasattr(first, "as_py") else first
    kinds = {"text": (str, bytes), "integers": (int, Decimal, np.integer)}
    return next((kind for kind, types in kinds.items() if isinstance(first, types)), None)


def compared(keys: Any, batches: Iterable[Any]) -> Iterator[Any]:
    """Iterate over batches of queries, of which the first is compared with the keys.

    In an input, bytes are always text, so more can be told than by `tamis.Workload.from_batches`.
    """
    for number, batch in enumerate(batches):
        kinds = _first_kind(keys), _first_kind(batch)
        if number == 0 and None not in kinds and kinds[0] != kinds[1]:
            warnings.warn(
                f"the keys are {kinds[0]} and the queries are {kinds[1]}, which are never equal: "
                "read text as integers with --integers, or a column with -c NAME:int",
                KeyKindWarning,
                stacklevel=1,
            )
        yield batch


_FEW = 1000
"""Keys of which the kind is tested."""


def warn_if_integers(f: Any, keys: Any) -> None:
    """Warn if a filter accepts more of these texts as integers than as text.

    A filter does not know the kind of its keys. By chance it accepts about a fraction ``fpr`` of
    the texts as integers, give or take a few standard deviations.
    """
    first = keys[:_FEW]
    texts = [key for key in as_list(first) if isinstance(key, str | bytes)]
    if not texts or len(texts) < len(first) or not all(map(_INTEGER.fullmatch, map(_text, texts))):
        return
    numbers = [number for number in map(int, map(_text, texts)) if -(2**63) <= number < 2**64]
    found, by_chance = int(f.contains(numbers).sum()), f.expected_fpr * len(texts)
    if found > by_chance + 4 * math.sqrt(by_chance) and found > int(f.contains(texts).sum()):
        warnings.warn(
            f"{found:,} of {len(texts):,} keys may be in the filter as integers, and fewer as "
            "text, as which they were read: pass --integers if they are integers",
            KeyKindWarning,
            stacklevel=1,
        )


_INTEGER = re.compile(r"-?\d{1,20}", re.ASCII)


def _text(key: str | bytes) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else key
