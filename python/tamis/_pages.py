"""Untrusted Parquet files: sizes are checked before pyarrow allocates memory for them.

A column chunk is a sequence of pages. Each begins with a header that says how many bytes the page
has, and how many once it is decompressed. pyarrow allocates what the header says, so a file of 100
bytes could claim 2 GB. `CheckedFile` looks at the headers of a chunk in the bytes that pyarrow
reads anyway, and into pages whose content makes claims of its own: delta encodings count their
values once more, and a dictionary can stand for a long value in every row. `ParquetReader` reads
text with such a dictionary without decoding it, to see first how much memory it takes.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tamis import _native
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


class LongText(FormatError):
    """A column has a dictionary with a long value, which may be that of many rows."""


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
        verified: set[int] | None = None,
    ) -> None:
        """Open a file of pyarrow or Python; ``groups`` are the row groups that will be read.

        ``verified`` are chunks whose content was found to be harmless by an earlier reader of the
        same file; those that are found now are added to it.
        """
        if not isinstance(source, pa.NativeFile):
            source = pa.PythonFile(source, mode="r")
        self.footer = pq.read_metadata(source) if footer is None else footer
        groups = range(self.footer.num_row_groups) if groups is None else groups
        self.path, self.size = path, source.size()
        self.schema: pa.Schema = self.footer.schema.to_arrow_schema()
        self._groups, self._pre_buffer = list(groups), pre_buffer
        self._most_text = most_text(self.size)
        self._checked = CheckedFile(source, path, self.footer, self._groups, verified)
        self._file = self._open()

    def _open(self, read_dictionary: list[str] | None = None) -> pq.ParquetFile:
        return pq.ParquetFile(
            self._checked,
            metadata=self.footer,
            read_dictionary=read_dictionary,
            pre_buffer=self._pre_buffer,
        )

    def batches(self, rows: int, columns: list[str] | None, **options: Any) -> Iterator[Any]:
        """Yield record batches of the row groups in the types of the schema."""
        for number in self._groups:
            options["row_groups"] = [number]
            own_rows = self.footer.row_group(number).num_rows
            self._checked.limit_text(self._most_text, max(min(rows, own_rows), 1))
            batches = self._file.iter_batches(rows, columns=columns, **options)
            try:
                first = next(batches, None)
            except LongText:
                yield from self._decoded(rows, columns, **options)
                continue
            if first is not None:
                yield first
                yield from batches

    def _decoded(self, rows: int, columns: list[str] | None, **options: Any) -> Iterator[Any]:
        """Read text as dictionaries, and decode it if that takes little memory."""
        text = [field.name for field in self.schema if any(kind(field.type) for kind in _TEXT)]
        coded = dictionary_columns(self.footer, options["row_groups"], text)
        self._checked.limit_text(self._most_text, rows, coded)
        for batch in self._open(coded).iter_batches(rows, columns=columns, **options):
            names = batch.schema.names
            yield pa.record_batch([self._decode(name, batch.column(name)) for name in names], names)

    def _decode(self, name: str, column: pa.Array) -> pa.Array:
        kind = self.schema.field(name).type
        if column.type == kind:
            return column
        lengths = pc.binary_length(column.dictionary)
        if (pc.max(lengths).as_py() or 0) * len(column) > self._most_text:
            total = pc.sum(lengths.take(column.indices)).as_py()
            if total > self._most_text:
                raise FormatError(
                    f"{self.path}: {name} claims to have {total} bytes of text in "
                    f"{len(column)} rows"
                )
        return column.dictionary_decode().cast(kind)


class CheckedFile:
    """A Parquet file, as pyarrow reads Python files, whose chunks are checked as they are read."""

    closed = False

    def __init__(
        self,
        source: pa.NativeFile,
        path: str,
        footer: pq.FileMetaData,
        numbers: Iterable[int],
        verified: set[int] | None = None,
    ) -> None:
        self._source, self._path, self._footer = source, path, footer
        self._verified = set() if verified is None else verified
        self._longest, self._coded = 0, frozenset[str]()
        self._at, self._size = 0, int(source.size())
        chunks = []
        for number in numbers:
            group = footer.row_group(number)
            for column in range(group.num_columns):
                chunk = group.column(column)
                chunks.append((chunk_start(chunk), chunk.total_compressed_size, number, column))
        self._chunks = sorted(chunks)

    def limit_text(self, most: int, rows: int, coded: Iterable[str] = ()) -> None:
        """Let this many rows of text have this many bytes, but in columns read as dictionaries.

        `LongText` is raised for dictionaries with a value that is too long in every row.
        """
        self._longest, self._coded = most // rows, frozenset(coded)

    def read(self, size: int = -1) -> bytes:
        """Read bytes, and check the pages of all chunks that begin in them."""
        size = self._size - self._at if size < 0 else size
        content: bytes = self._source.read_at(size, self._at)
        start, self._at = self._at, self._at + len(content)
        for i in range(bisect.bisect_left(self._chunks, (start,)), len(self._chunks)):
            at, length, number, column = self._chunks[i]
            if at >= self._at:
                break
            try:
                pages = _native.check_pages(content, at - start, length, _PADDING, LARGE, RATIO)
                chunk = number * self._footer.num_columns + column
                if pages and chunk not in self._verified:
                    for page in pages:
                        self._look_into(content, page, number, column)
                    if not self._coded:  # else long values are allowed now, not later
                        self._verified.add(chunk)
            except ValueError as error:
                where = f"{self._path}: row group {number}: column {column}"
                kind = LongText if isinstance(error, LongText) else FormatError
                raise kind(f"{where}: {error}") from None
        return content

    def _look_into(self, content: bytes, page: _native.Page, number: int, column: int) -> None:
        """Raise `ValueError` if the content of a page claims too much."""
        kind = self._footer.schema.column(column)
        if page.encoding is None:
            # Text within lists and structs cannot be read as dictionaries.
            text = kind.physical_type == "BYTE_ARRAY" and kind.name == kind.path
            if not text or kind.name in self._coded or page.uncompressed <= self._longest:
                return
        at, end = page.start, page.start + page.compressed
        if len(content) < end:
            raise ValueError(f"a page of {page.compressed} bytes ends after the chunk")
        levels = (kind.max_definition_level > 0) + (kind.max_repetition_level > 0)
        size = page.uncompressed
        if page.levels is not None:
            at, size, levels = at + page.levels, size - page.levels, 0
        data = content[at:end]
        codec = self._footer.row_group(number).column(column).compression
        if page.is_compressed and codec != "UNCOMPRESSED" and size:
            try:
                data = decompress(data, size, codec)
            except (pa.ArrowException, ValueError, OSError) as error:
                raise ValueError(f"a page cannot be decompressed: {error}") from None
        if page.encoding is None:
            longest = _native.longest_value(data, page.values)
            if longest is None:
                raise ValueError("a dictionary is damaged")
            if longest > self._longest:
                raise LongText(f"a dictionary has a value of {longest} bytes")
        else:
            encoding, values = page.encoding, page.values
            _native.check_delta_page(data, levels, encoding, values, LARGE, RATIO)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position."""
        if whence == os.SEEK_CUR:
            offset += self._at
        elif whence == os.SEEK_END:
            offset += self._size
        self._at = offset
        return offset

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def size(self) -> int:
        """Return the length of the file."""
        return self._size

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def close(self) -> None:
        """Do nothing: the caller closes the source."""


def most_text(size: int) -> int:
    """Return how many bytes the text of many rows may have, in a file of this size."""
    return max(4 * LARGE, RATIO * size)


def dictionary_columns(
    footer: pq.FileMetaData, groups: Iterable[int], names: Iterable[str]
) -> list[str]:
    """Return which of these columns pyarrow can read as dictionaries: not from delta encodings."""
    found = set(names)
    for number in groups:
        group = footer.row_group(number)
        for column in range(group.num_columns):
            chunk = group.column(column)
            if any(encoding.startswith("DELTA") for encoding in chunk.encodings):
                found.discard(chunk.path_in_schema)
    return [name for name in names if name in found]


def decompress(data: bytes, size: int, codec: str) -> bytes:
    """Decompress a page; Parquet calls two formats LZ4, of which the raw one is in use."""
    name = "lz4_raw" if codec == "LZ4" else codec.lower()
    return bytes(pa.decompress(data, size, name, asbytes=True))


def chunk_start(chunk: pq.ColumnChunkMetaData) -> int:
    """Return the position of a column chunk, as pyarrow computes it."""
    data: int = chunk.data_page_offset
    dictionary: int | None = chunk.dictionary_page_offset
    return dictionary if dictionary is not None and 0 < dictionary < data else data
