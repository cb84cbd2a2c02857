"""Untrusted Arrow files and streams: sizes are checked before pyarrow allocates memory.

A message has a head (a Flatbuffers table) and a body of buffers. A compressed buffer begins with
its length once it is decompressed, which pyarrow allocates, so a few bytes could claim gigabytes; a
batch without buffers can claim any number of rows. `CheckedStream` checks the messages of a stream
as pyarrow reads it, `check_file` those of a file before it is read.
"""

from __future__ import annotations

import os
import struct
from typing import Any, BinaryIO

from tamis.errors import FormatError

LARGE = 64 << 20
"""Bytes that any buffer, or rows that any batch may claim."""

RATIO = 100
"""How many times its compressed size a larger buffer may claim."""

_PIECE = 4 << 20  # bytes to read at a time: a claim of more is not believed before they are there
_CONTINUATION = b"\xff\xff\xff\xff"
_MAGIC = b"ARROW1"
_DICTIONARY, _BATCH = 2, 3  # kinds of messages


class CheckedStream:
    """An Arrow stream, as pyarrow reads Python files, whose messages are checked first."""

    closed = False

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self._name, self._rest = stream, name, memoryview(b"")

    def read(self, size: int) -> bytes:
        """Read this many bytes; fewer at the end."""
        found = bytearray()
        while len(found) < size:
            if not self._rest and not self._next():
                break
            more = self._rest[: size - len(found)]
            self._rest = self._rest[len(more) :]
            if not found and len(more) == size:
                return bytes(more)
            found += more
        return bytes(found)

    def _next(self) -> bool:
        """Read and check the next message; False at the end."""
        prefix = self._take(4)
        if prefix == _CONTINUATION:
            prefix += self._take(4)
        length = int.from_bytes(prefix[-4:], "little", signed=True)
        if length <= 0 or len(prefix) < 4:
            self._rest = memoryview(prefix)
            return bool(prefix)
        head = self._take(length)
        try:
            message = Message(head)
            body = self._take(message.body_length)
            message.check(len(body), lambda at: body[at : at + 8])
        except (ValueError, struct.error, IndexError) as error:
            raise FormatError(f"{self._name} is damaged: {error}") from None
        self._rest = memoryview(prefix + head + body)
        return True

    def _take(self, length: int) -> bytes:
        """Read this many bytes, or those that there are."""
        found = bytearray()
        while len(found) < length:
            piece = self._stream.read(min(length - len(found), _PIECE))
            if not piece:
                break
            found += piece
        return bytes(found)

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def close(self) -> None:
        """Do nothing: the caller closes the stream."""


def check_file(file: BinaryIO, name: str) -> None:
    """Raise `FormatError` if a message of an Arrow file claims too much; rewind the file."""
    size = file.seek(0, os.SEEK_END)

    def read(at: int, length: int) -> bytes:
        if not (at >= 0 and length >= 0 and at + length <= size):
            raise ValueError(f"{length} bytes at byte {at} of {size} are missing")
        file.seek(at)
        return file.read(length)

    try:
        tail = len(_MAGIC) + 4
        end = read(size - tail, tail)
        length = int.from_bytes(end[:4], "little", signed=True)
        if not end.endswith(_MAGIC):
            raise ValueError("its end is missing")
        footer = _table(read(size - tail - length, length))
        for field in (2, 3):  # dictionaries, record batches
            for block in footer.structs(field, "<qi4xq"):
                offset, head_length, body_length = block
                head = read(offset, head_length)
                skip = 8 if head.startswith(_CONTINUATION) else 4
                body = offset + head_length
                read(body + body_length, 0)
                Message(head[skip:]).check(body_length, lambda at, body=body: read(body + at, 8))
    except (ValueError, struct.error, IndexError) as error:
        raise FormatError(f"{name} is damaged: {error}") from None
    file.seek(0)


class Message:
    """The head of a message."""

    def __init__(self, head: bytes) -> None:
        self._root = _table(head)
        self.body_length = self._root.scalar(3, "<q")
        if self.body_length < 0:
            raise ValueError(f"a message claims a body of {self.body_length} bytes")

    def check(self, length: int, read: Any) -> None:
        """Check what it claims of a body of ``length`` bytes; ``read`` returns 8 bytes of it."""
        kind, batch = self._root.scalar(1, "<B"), self._root.table(2)
        if kind == _DICTIONARY and batch is not None:
            batch = batch.table(1)
        if kind not in (_DICTIONARY, _BATCH) or batch is None:
            return
        rows = batch.scalar(0, "<q")
        if not 0 <= rows <= max(LARGE, 8 * RATIO * length):
            raise ValueError(f"a batch of {length} bytes claims to have {rows} rows")
        if batch.table(3) is None:  # not compressed
            return
        for at, size in batch.structs(2, "<qq"):
            if size < 8 or not 0 <= at <= length - size:
                continue  # it is empty, or pyarrow refuses it
            claimed = int.from_bytes(read(at), "little", signed=True)
            if claimed > max(LARGE, RATIO * size):  # -1 if it is not compressed
                raise ValueError(f"a buffer of {size} bytes claims to have {claimed} uncompressed")


class _Table:
    """A table of Flatbuffers: fields by number, each at an offset that another table has."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        offsets = at - self._unpack("<i", at)
        size = self._unpack("<H", offsets)
        count = max(size // 2 - 2, 0)
        if offsets < 0 or offsets + size > len(data):
            raise ValueError("a table is damaged")
        self._fields = struct.unpack_from(f"<{count}H", data, offsets + 4)

    def _unpack(self, form: str, at: int) -> int:
        if at < 0:
            raise ValueError("a table is damaged")
        return int(struct.unpack_from(form, self._data, at)[0])

    def _place(self, field: int) -> int:
        """Return where a field is, 0 if it is missing."""
        offset = self._fields[field] if field < len(self._fields) else 0
        return self._at + offset if offset else 0

    def scalar(self, field: int, form: str) -> int:
        """Return a number, 0 by default."""
        at = self._place(field)
        return self._unpack(form, at) if at else 0

    def table(self, field: int) -> _Table | None:
        """Return a table within it."""
        at = self._place(field)
        return _Table(self._data, at + self._unpack("<I", at)) if at else None

    def structs(self, field: int, form: str) -> list[tuple[int, ...]]:
        """Return a vector of structs."""
        at = self._place(field)
        if not at:
            return []
        at += self._unpack("<I", at)
        count, size = self._unpack("<I", at), struct.calcsize(form)
        if count > (len(self._data) - at) // size:
            raise ValueError(f"a vector claims to have {count} elements")
        return list(struct.iter_unpack(form, self._data[at + 4 : at + 4 + count * size]))


def _table(data: bytes) -> _Table:
    return _Table(data, int(struct.unpack_from("<I", data, 0)[0]))
