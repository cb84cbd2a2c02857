"""Parquet files of strangers: claims are checked before pyarrow allocates memory for them.

A column chunk is a sequence of pages. Each begins with a header (a Thrift struct in the compact
protocol) that says how many bytes the page has, and how many once it is decompressed. pyarrow
allocates what the header says, so a file of 100 bytes could claim 2 GB. `CheckedFile` looks at the
headers of a chunk in the bytes that pyarrow reads anyway. `ParquetReader` also reads text as
dictionaries, in which a few bytes stand for a long value in every row, and decodes it only if that
takes little memory.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tamis.errors import FormatError

LARGE = 64 << 20
"""Bytes of a page that any file may claim; pages usually have 1 MiB."""

RATIO = 100
"""How many times its compressed size a larger page may claim, or the text of many rows the file."""

_TEXT = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
)
_PADDING = 100  # bytes that pyarrow reads past a chunk of some old writers
_DEEPEST = 8  # structs in a struct; a page header has three
_UNCOMPRESSED, _COMPRESSED, _DICTIONARY_HEADER = 2, 3, 7  # fields of a page header
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 12


class ParquetReader:
    """Reads a Parquet file in batches, in bounded memory."""

    def __init__(
        self,
        source: Any,
        path: str,
        *,
        footer: pq.FileMetaData | None = None,
        groups: Iterable[int] | None = None,
        pre_buffer: bool = False,
    ) -> None:
        """Open a file of pyarrow or Python; ``groups`` are the row groups that will be read."""
        if not isinstance(source, pa.NativeFile):
            source = pa.PythonFile(source, mode="r")
        footer = pq.read_metadata(source) if footer is None else footer
        groups = range(footer.num_row_groups) if groups is None else groups
        self.path, self.size, self.footer = path, source.size(), footer
        self.schema: pa.Schema = footer.schema.to_arrow_schema()
        coded = [field.name for field in self.schema if any(kind(field.type) for kind in _TEXT)]
        self._file = pq.ParquetFile(
            CheckedFile(source, path, footer, groups),
            metadata=footer,
            read_dictionary=coded,
            pre_buffer=pre_buffer,
        )

    def batches(self, rows: int, columns: list[str] | None, **options: Any) -> Iterator[Any]:
        """Yield record batches in the types of the schema."""
        most = max(4 * LARGE, RATIO * self.size)
        for batch in self._file.iter_batches(rows, columns=columns, **options):
            names = batch.schema.names
            arrays = [
                _decode(
                    batch.column(name), self.schema.field(name).type, most, f"{self.path}: {name}"
                )
                for name in names
            ]
            yield pa.record_batch(arrays, names)


def _decode(column: pa.Array, kind: pa.DataType, most: int, name: str) -> pa.Array:
    """Return a column in the type of the schema, if its text takes no more than these bytes."""
    if column.type == kind:
        return column
    lengths = pc.binary_length(column.dictionary)
    if (pc.max(lengths).as_py() or 0) * len(column) > most:
        total = pc.sum(lengths.take(column.indices)).as_py()
        if total > most:
            raise FormatError(f"{name} claims to have {total} bytes of text in {len(column)} rows")
    return column.dictionary_decode().cast(kind)


class CheckedFile:
    """A Parquet file, as pyarrow reads Python files, whose chunks are checked as they are read."""

    closed = False

    def __init__(
        self, source: pa.NativeFile, path: str, footer: pq.FileMetaData, numbers: Iterable[int]
    ) -> None:
        self._source, self._path, self._at = source, path, 0
        chunks = []
        for number in numbers:
            group = footer.row_group(number)
            for column in range(group.num_columns):
                chunk = group.column(column)
                chunks.append((chunk_start(chunk), chunk.total_compressed_size, number, column))
        self._chunks = sorted(chunks)

    def read(self, size: int = -1) -> bytes:
        """Read bytes, and check the pages of all chunks that begin in them."""
        size = self._source.size() - self._at if size < 0 else size
        content: bytes = self._source.read_at(size, self._at)
        view = memoryview(content)
        start, self._at = self._at, self._at + len(content)
        first = bisect.bisect_left(self._chunks, (start,))
        for at, length, number, column in self._chunks[first:]:
            if at >= self._at:
                break
            try:
                check_pages(view[at - start :][: length + _PADDING], length)
            except ValueError as error:
                where = f"row group {number}: column {column}"
                raise FormatError(f"{self._path}: {where}: {error}") from None
        return content

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._source.size()}
        self._at = base[whence] + offset
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def size(self) -> int:
        """Return the length of the file."""
        return int(self._source.size())

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def close(self) -> None:
        """Do nothing: who opened the source closes it."""


def chunk_start(chunk: pq.ColumnChunkMetaData) -> int:
    """Return the position of a column chunk, as pyarrow computes it."""
    data: int = chunk.data_page_offset
    dictionary: int | None = chunk.dictionary_page_offset
    return dictionary if dictionary is not None and 0 < dictionary < data else data


def check_pages(content: memoryview, length: int) -> None:
    """Raise `ValueError` if a page of a chunk claims far more than it has.

    The chunk has ``length`` bytes; headers beyond, which pyarrow might read, may be anything else.
    """
    at = 0
    while at < len(content):
        try:
            header, start = _read_struct(content, at, 0)
            compressed, claimed = header[_COMPRESSED], header[_UNCOMPRESSED]
        except (IndexError, KeyError, ValueError):
            if at >= length:
                return
            raise ValueError(f"the page header at byte {at} is damaged") from None
        if not (compressed >= 0 and 0 <= claimed <= max(LARGE, RATIO * compressed)):
            raise ValueError(f"a page of {compressed} bytes claims to have {claimed} uncompressed")
        values = header.get((_DICTIONARY_HEADER, 1), 0)
        if not 0 <= values <= claimed:
            raise ValueError(f"a dictionary of {claimed} bytes claims to have {values} values")
        at = start + compressed


def _read_struct(content: memoryview, at: int, depth: int) -> tuple[dict[Any, int], int]:
    """Read the integers of a Thrift struct, by field or (field, field); return the end, too."""
    found: dict[Any, int] = {}
    field = 0
    while kind := content[at] & 15:
        delta, at = content[at] >> 4, at + 1
        if delta:
            field += delta
        else:
            field, at = _read_integer(content, at)
        if kind in (_I16, _I32, _I64):
            found[field], at = _read_integer(content, at)
        elif kind == _STRUCT and depth < _DEEPEST:
            inner, at = _read_struct(content, at, depth + 1)
            found.update({(field, own): value for own, value in inner.items()})
        elif kind == _BINARY:
            size, at = _read_varint(content, at)
            at += size
        elif kind in (_BYTE, _DOUBLE):
            at += 1 if kind == _BYTE else 8
        elif kind not in (_TRUE, _FALSE):  # page headers have no lists
            raise ValueError(f"type {kind}")
    return found, at + 1


def _read_varint(content: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while content[at] & 128:
        value |= (content[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
    return value | content[at] << shift, at + 1


def _read_integer(content: memoryview, at: int) -> tuple[int, int]:
    value, at = _read_varint(content, at)
    return (value >> 1) ^ -(value & 1), at
