"""Read the bytes of an input as lines of text or batches of a table, and text as integers."""

from __future__ import annotations

import csv
import io
import itertools
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from tamis._columns import pyarrow
from tamis._compressed import MAX_LINE, decompress

BLOCK = 4 << 20
"""Bytes read at a time."""

BATCH_ROWS = 1 << 16
"""Rows of a table read at a time."""

MAX_RATIO = 200
"""Bytes of a decompressed table per byte of the file: Parquet files, which are compressed already,
and Arrow files stay far below."""

MIN_INFLATED = 64 << 20
"""Bytes that any file may inflate to."""


class _CountedFile(io.RawIOBase):
    """A file that reports the bytes read to a progress bar."""

    def __init__(self, file: io.FileIO, advance: Callable[[int], None]) -> None:
        self._file, self._advance, self.count = file, advance, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer) or 0
        self.count += count
        self._advance(count)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class Input(NamedTuple):
    """An opened file: its name for messages, its content, and the bytes read of the file."""

    name: str
    stream: io.BufferedReader
    """The decompressed content."""
    file: _CountedFile


@contextmanager
def open_input(name: str, path: str, advance: Callable[[int], None]) -> Iterator[Input]:
    """Open a file, or standard input for "-"; ``advance`` is called with the bytes read."""
    raw = io.FileIO(sys.stdin.fileno(), closefd=False) if path == "-" else io.FileIO(path)
    counted = _CountedFile(raw, advance)
    raw_file: Any = counted
    with io.BufferedReader(raw_file, BLOCK) as file:
        yield Input(name, decompress(file, BLOCK), counted)


def _seekable(given: Input) -> Any:
    """Return a seekable file: the stream itself if it is one, else a copy on disk.

    A copy that is much longer than the file, or that takes most of the free space, raises
    ValueError: a small compressed file can inflate without end.
    """
    name, stream, file = given
    if stream.raw is file and stream.seekable():
        return stream
    copy = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    try:
        length, available = 0, shutil.disk_usage(tempfile.gettempdir()).free // 2
        while block := stream.read(BLOCK):
            length += len(block)
            if length > max(MAX_RATIO * file.count, MIN_INFLATED):
                raise ValueError(
                    f"{name} inflates to more than {MAX_RATIO} times its size: decompress it first"
                )
            if length > available:
                raise ValueError(
                    f"{name} needs more than half of the free space in {tempfile.gettempdir()}: "
                    "decompress it first, or set TMPDIR"
                )
            copy.write(block)
        copy.seek(0)
    except BaseException:
        copy.close()
        raise
    return copy


def read_lines(given: Input) -> Iterator[list[bytes]]:
    """Split blocks of text into lines."""
    name, stream, _ = given
    rest = b""
    # Do not wait for a full block: the writer of a pipe may wait for the answer.
    while block := stream.read1(BLOCK):
        if b"\0" in block:
            raise ValueError(f"{name} is not text: it contains zero bytes")
        complete, newline, begun = block.rpartition(b"\n")
        if not newline:
            rest += block
            if len(rest) > MAX_LINE:
                limit = f"{MAX_LINE >> 20} MiB"
                raise ValueError(f"{name} is not text: it has a line longer than {limit}")
            continue
        yield _split_lines(rest + complete)
        rest = begun
    if rest:
        yield _split_lines(rest)


def _split_lines(block: bytes) -> list[bytes]:
    return block.replace(b"\r\n", b"\n").removesuffix(b"\r").split(b"\n")


class CsvBatch(np.ndarray[Any, Any]):
    """Rows of text, one column per name. It is an array, so that a mask selects rows."""

    names: list[str]

    @classmethod
    def of(cls, rows: list[list[str]], names: list[str]) -> Self:
        """Create a batch of rows, each with a value for each name."""
        batch = np.array(rows, dtype=object).reshape(len(rows), len(names)).view(cls)
        batch.names = names
        return batch

    def __array_finalize__(self, other: Any) -> None:
        self.names = getattr(other, "names", [])

    def column(self, name: str) -> list[str]:
        """Return the values of a column."""
        values: list[str] = np.asarray(self)[:, self.names.index(name)].tolist()
        return values

    def append_column(self, name: str, values: npt.NDArray[Any]) -> CsvBatch:
        """Return the rows with a column at the end."""
        joined = [[*row, value] for row, value in zip(self.tolist(), values.tolist(), strict=True)]
        return CsvBatch.of(joined, [*self.names, name])


def column_names(batch: Any) -> list[str]:
    """Return the column names of a `CsvBatch` or an Arrow record batch."""
    return list(batch.names if isinstance(batch, CsvBatch) else batch.schema.names)


Columns: TypeAlias = Callable[[list[str]], list[str] | None]
"""Which of these columns to read; None for all of them."""


def read_csv(given: Input, delimiter: str, columns: Columns) -> Iterator[Any]:
    """Read CSV with a header. Every value is text, unchanged: 007 is not 7."""
    try:
        import pyarrow as arrow
        from pyarrow import csv as arrow_csv
    except ImportError:
        for rows in read_csv_rows(given.name, given.stream, delimiter, BATCH_ROWS):
            columns(rows.names)
            yield rows
        return

    header = given.stream.peek(BLOCK).split(b"\n")[0].decode("utf-8-sig").rstrip("\r")
    if not header:
        return
    names = next(csv.reader([header], delimiter=delimiter))
    yield from arrow_csv.open_csv(
        given.stream,
        arrow_csv.ReadOptions(block_size=BLOCK, use_threads=False),
        arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, arrow.string()),
            include_columns=columns(names) or names,
        ),
    )


def read_csv_rows(name: str, stream: Any, delimiter: str, batch_rows: int) -> Iterator[CsvBatch]:
    r"""Read CSV without pyarrow; ValueError if it is malformed.

    >>> [batch.column("b") for batch in read_csv_rows("x", io.BytesIO(b"a,b\n1,2\n3,4\n"), ",", 10)]
    [['2', '4']]
    """
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    rows = filter(None, csv.reader(text, delimiter=delimiter, strict=True))
    try:
        names = next(rows, [])
        while several := list(itertools.islice(rows, batch_rows)):
            wrong = next((row for row in several if len(row) != len(names)), None)
            if wrong is not None:
                raise ValueError(
                    f"{name} has a row with {len(wrong)} values for {len(names)} columns"
                )
            yield CsvBatch.of(several, names)
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{name} is not a CSV file: {error}") from None
    finally:
        text.detach()


def read_parquet(given: Input, columns: Columns) -> Iterator[Any]:
    """Read a Parquet file."""
    pyarrow("a Parquet file")
    from pyarrow import parquet

    with _seekable(given) as file:
        table = parquet.ParquetFile(file)
        yield from table.iter_batches(BATCH_ROWS, columns=columns(table.schema_arrow.names))


def read_arrow(given: Input) -> Iterator[Any]:
    """Read an Arrow file or stream; pyarrow does not check offsets and indices unless asked."""
    pyarrow("an Arrow file")
    from pyarrow import ipc

    def validated(batch: Any) -> Any:
        try:
            batch.validate(full=True)
        except (ValueError, IndexError) as error:
            raise ValueError(f"{given.name} is damaged: {error}") from None
        return batch

    if not given.stream.peek(8).startswith(b"ARROW1"):
        yield from map(validated, ipc.open_stream(given.stream))
        return
    with _seekable(given) as file:
        table = ipc.open_file(file)
        for i in range(table.num_record_batches):
            yield validated(table.get_batch(i))


def parse_integers(name: str, texts: list[bytes]) -> list[int]:
    """Parse decimal integers, with or without a sign and spaces around them.

    ``name`` says for messages what is read, such as "keys.txt" or "column 'id' of keys.csv".
    """
    for text in texts:
        if b"_" in text:  # Python accepts 1_000
            raise ValueError(f"{name} is read as integers, but contains {text!r}")
    try:
        return list(map(int, texts))
    except ValueError as error:
        wrong = str(error).partition(": ")[2]
        raise ValueError(f"{name} is read as integers, but contains {wrong}") from None


def parse_column(name: str, column: Any) -> Any:
    """Parse an Arrow column of text as `parse_integers` does."""
    arrow = pyarrow("a table")
    from pyarrow import compute

    column = column.cast(arrow.large_string())
    # Without the pattern, Arrow would accept 0x10.
    if compute.all(compute.match_substring_regex(column, "^-?[0-9]+$"), min_count=0).as_py():
        for type_ in (arrow.int64(), arrow.uint64()):
            try:
                return column.cast(type_)
            except arrow.ArrowInvalid:
                continue
    # The rest: an error, a rare notation, or numbers that do not fit into one Arrow integer type.
    numbers = parse_integers(name, [text.encode() for text in column.drop_null().to_pylist()])
    for number in numbers:
        if not -(2**63) <= number < 2**64:
            raise ValueError(
                f"{name} is read as integers, but contains {number}: an integer key is from "
                "-2**63 to 2**64-1"
            )
    found = iter(numbers)
    integers = [next(found) if valid else None for valid in column.is_valid().to_pylist()]
    return arrow.array(integers, arrow.decimal128(20, 0))  # equal to the integers as keys
