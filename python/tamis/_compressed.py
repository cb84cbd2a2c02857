"""Compressed files, recognized by their first bytes: gzip, bzip2, xz and Zstandard."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from typing import Any

from tamis._columns import pyarrow

_READERS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": lambda file: pyarrow("a zstd file").CompressedInputStream(file, "zstd"),
}
"""Decompressors by the first bytes of the file."""

DAMAGED = (EOFError, lzma.LZMAError, zlib.error)
"""Errors of the decompressors for a file that is damaged or truncated."""

MAX_LINE = 64 << 20
"""Maximum length of a line in bytes: a small file can decompress to a line of any length."""


def decompress(file: io.BufferedReader, block: int) -> io.BufferedReader:
    """Return the decompressed content of a file, read ``block`` bytes at a time."""
    start = file.peek(8)
    for magic, reader in _READERS.items():
        if start.startswith(magic):
            return io.BufferedReader(reader(file), block)
    return file
