"""Bytes of the input: open a file or standard input, and split text into lines."""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from tamis._compressed import MAX_LINE

BLOCK = 4 << 20
"""Bytes read at a time."""


class _CountedFile(io.RawIOBase):
    """A file that reports the bytes read to a progress bar."""

    def __init__(self, file: io.FileIO, advance: Callable[[int], None]) -> None:
        self._file, self._advance = file, advance

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
        self._advance(count)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def open_stream(path: str, advance: Callable[[int], None]) -> io.BufferedReader:
    """Open a file, or standard input for "-"; ``advance`` is called with the bytes read."""
    file = io.FileIO(sys.stdin.fileno(), closefd=False) if path == "-" else io.FileIO(path)
    return io.BufferedReader(_CountedFile(file, advance), BLOCK)


def seekable(stream: io.BufferedReader) -> Any:
    """Return a seekable file: the stream itself if it is one, else a copy on disk."""
    if isinstance(stream.raw, _CountedFile) and stream.seekable():
        return stream
    copy = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    shutil.copyfileobj(stream, copy, BLOCK)
    copy.seek(0)
    return copy


def read_lines(name: str, stream: io.BufferedReader) -> Iterator[list[bytes]]:
    """Split blocks of text into lines."""
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
