"""Containers: frames (`docs/format.md`) that hold JSON documents and other frames.

A container is read by its header, and each section when it is needed; everything is checked as it
is read. It is written section by section, and the header, which has the checksums, at the end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, TypeAlias

from tamis import _native
from tamis.errors import FormatError

ReadAt: TypeAlias = Callable[[int, int], bytes]
"""Reads bytes of a file or object, from an offset on."""

CONTAINED, JSON = 7, 8
"""Section types."""

_START = 4096
"""Bytes to read first, in which most headers fit."""

_CHUNK = 1 << 24
"""Bytes of a section that are read or copied at once."""


class Frame:
    """An opened container: its kind and sections. Damage raises `FormatError`."""

    def __init__(self, read_at: ReadAt, length: int) -> None:
        self._read_at = read_at
        start = read_at(0, min(length, _START))
        size = _native.FrameHeader.size(start)
        if len(start) < size <= length:
            start = read_at(0, size)
        header = _native.FrameHeader.read(start, length)
        self.kind, self.sections = header.kind, header.sections
        for section in header.optional:
            self._checked(section)

    @classmethod
    def of_file(cls, file: BinaryIO) -> Frame:
        """Open a container that is a whole file."""
        descriptor = file.fileno()
        return cls(lambda at, length: read_at(descriptor, at, length), os.fstat(descriptor).st_size)

    def expect(self, kind: str, sections: Iterable[int]) -> None:
        """Raise `FormatError` unless the container has this kind and these section types."""
        if self.kind != kind:
            raise FormatError(f"expected a file of kind {kind!r}, not {self.kind!r}")
        if [section.kind for section in self.sections] != list(sections):
            raise FormatError(f"a file of kind {kind!r} has the wrong sections")

    def json(self, number: int) -> Any:
        """Return the JSON document in a section."""
        try:
            return json.loads(self._checked(self.sections[number]))
        except (ValueError, RecursionError) as error:
            raise FormatError(f"section {number} is not JSON: {error}") from None

    def contained(self, number: int) -> _native.FrameSection:
        """Check the header of the frame in a section; return where the frame is."""
        section = self.sections[number]
        self._check_padding(section)
        start = self._read_at(section.offset, min(section.length, _START))
        size = _native.FrameHeader.size(start)
        if len(start) < size <= section.length:
            start = self._read_at(section.offset, size)
        if _native.checksum(start[:size]) != section.checksum:
            raise FormatError(f"section {number} is damaged: its header differs")
        return section

    def container(self, number: int) -> Frame:
        """Open the container in a section."""
        section = self.contained(number)
        return Frame(lambda at, length: self._read_at(section.offset + at, length), section.length)

    def _checked(self, section: _native.FrameSection) -> bytes:
        self._check_padding(section)
        content = self._read_at(section.offset, section.length)
        if len(content) != section.length or _native.checksum(content) != section.checksum:
            raise FormatError(f"a section of type {section.kind} is damaged: its checksum differs")
        return content

    def _check_padding(self, section: _native.FrameSection) -> None:
        if any(self._read_at(section.offset - section.padding, section.padding)):
            raise FormatError(f"a section of type {section.kind} is not where it should be")


class FrameWriter:
    """Writes a container with a known number of sections to an open file, from its position on."""

    def __init__(self, descriptor: int, kind: str, sections: int) -> None:
        self._descriptor, self._kind, self._count = descriptor, kind, sections
        self._sections = list[_native.FrameSection]()
        self._begin = os.lseek(descriptor, 0, os.SEEK_CUR)
        empty = [_native.FrameSection(JSON, 0, 0)] * sections
        os.lseek(descriptor, len(_native.FrameHeader.write(kind, empty)), os.SEEK_CUR)

    def json(self, document: Any) -> None:
        """Add a section with a JSON document."""
        content = to_json(document)
        self._pad()
        write_all(self._descriptor, content)
        checksum = _native.checksum(content)
        self._sections.append(_native.FrameSection(JSON, len(content), checksum))

    def frame(self, write: Callable[[int], object]) -> None:
        """Add a frame, which ``write`` writes to the file."""
        start = self._pad()
        write(self._descriptor)
        length = os.lseek(self._descriptor, 0, os.SEEK_CUR) - start
        head = read_at(self._descriptor, start, min(length, _START))
        size = _native.FrameHeader.size(head)
        checksum = _native.checksum(read_at(self._descriptor, start, size))
        self._sections.append(_native.FrameSection(CONTAINED, length, checksum))

    def close(self) -> None:
        """Write the header."""
        assert len(self._sections) == self._count
        end = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        os.lseek(self._descriptor, self._begin, os.SEEK_SET)
        write_all(self._descriptor, _native.FrameHeader.write(self._kind, self._sections))
        os.lseek(self._descriptor, end, os.SEEK_SET)

    def _pad(self) -> int:
        """Write zeros up to the next multiple of 64; return the position."""
        position = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        write_all(self._descriptor, bytes((self._begin - position) % 64))
        return position + (self._begin - position) % 64


def json_frame(kind: str, document: Any) -> bytes:
    """Return a container of one JSON document."""
    content = to_json(document)
    section = _native.FrameSection(JSON, len(content), _native.checksum(content))
    header = _native.FrameHeader.write(kind, [section])
    return header + bytes(-len(header) % 64) + content


def to_json(document: Any) -> bytes:
    """Return a document as JSON; equal documents have equal bytes."""
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def read_at(descriptor: int, offset: int, length: int) -> bytes:
    """Read bytes of an open file, fewer only at its end."""
    content = bytearray()
    while len(content) < length:
        some = os.pread(descriptor, min(length - len(content), _CHUNK), offset + len(content))
        if not some:
            break
        content += some
    return bytes(content)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all bytes at the position of an open file."""
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)


def copy_range(source: int, offset: int, length: int, target: int) -> None:
    """Copy bytes of an open file to the position of another."""
    end = offset + length
    while offset < end:
        some = os.pread(source, min(end - offset, _CHUNK), offset)
        if not some:
            raise FormatError("the file is cut short")
        write_all(target, some)
        offset += len(some)
