"""Read parts of an object, with few requests and a cache of bounded size.

A request takes as long as the transfer of some megabytes, so ranges that are near each other are
fetched together, large ones in parallel. Bytes that are read again, such as the rest of a filter in
hybrid mode, are cached in blocks in a temporary file, from which the least recently used blocks are
dropped.
"""

from __future__ import annotations

import errno
import os
import tempfile
from bisect import bisect_right
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

from tamis._locks import fork_safe_lock
from tamis._objects import Object, locate

CACHE = 256_000_000
"""Bytes of an object that are cached, by default."""

BLOCK = 1 << 16
"""Bytes of a block of the cache, and of the smallest request."""

SMALL = 1 << 20
"""An object of at most this size is read by one request."""

GAP = 1 << 18
"""Ranges with at most this many bytes between them are fetched together."""

REQUEST = 8 << 20
"""Bytes of one request, at most."""

PARALLEL = 8
"""Requests at a time."""


class _Staged(NamedTuple):
    """Ranges of an object in a temporary file."""

    starts: list[int]
    ends: list[int]
    places: list[int]
    file: IO[bytes]


class ObjectFile:
    """An object that is open for reading; several threads may read at once."""

    def __init__(self, target: Object, cache: int = CACHE) -> None:
        self.target = target
        self._staged: dict[int, _Staged] = {}
        self._file: IO[bytes] | None = None
        (self.size, self.tag), self._read = target.open()
        self._process = os.getpid()
        self._lock = fork_safe_lock()
        self._content: bytes | None = None
        self._count = max(cache, 0) // BLOCK  # of blocks
        self._slots: dict[int, int] = {}  # blocks in the order of their last use

    def __del__(self) -> None:
        for file in (self._file, *(s.file for s in self._staged.values())):
            if file is not None:
                file.close()

    @property
    def name(self) -> str:
        """The URL or path."""
        return self.target.name

    def read_at(self, offset: int, length: int) -> bytes:
        """Read bytes, which must be within the object."""
        end = offset + length
        if not 0 <= offset <= end <= self.size:
            raise OSError(errno.EINVAL, f"bytes {offset} to {end} could not all be read", self.name)
        if self.size <= SMALL:
            if self._content is None:
                [self._content] = self._fetch([(0, self.size)])
            return self._content[offset:end]
        with self._lock:  # held while reading, so that no other thread closes the file
            for staged in self._staged.values():
                found = bisect_right(staged.starts, offset) - 1
                if found >= 0 and end <= staged.ends[found]:
                    place = staged.places[found] + offset - staged.starts[found]
                    return os.pread(staged.file.fileno(), length, place)
        first, last = offset // BLOCK, -(-end // BLOCK)
        if last - first > self._count:
            return self._fetch([(offset, end)])[0]
        return self._cached(first, last)[offset - first * BLOCK : end - first * BLOCK]

    def _cached(self, first: int, last: int) -> bytes:
        """Return blocks, and fetch the ones that are not cached."""
        found: dict[int, bytes] = {}
        with self._lock:
            for block in range(first, last):
                slot = self._slots.pop(block, None)
                if slot is not None and self._file is not None:
                    self._slots[block] = slot
                    found[block] = os.pread(self._file.fileno(), BLOCK, slot * BLOCK)
        # Blocks are as long as they were when written; only the last one is shorter.
        missing = [block for block in range(first, last) if block not in found]
        runs: list[list[int]] = []
        for block in missing:
            if runs and runs[-1][-1] == block - 1:
                runs[-1].append(block)
            else:
                runs.append([block])
        spans = [(run[0] * BLOCK, min((run[-1] + 1) * BLOCK, self.size)) for run in runs]
        for run, content in zip(runs, self._fetch(spans), strict=True):
            for i, block in enumerate(run):
                found[block] = content[i * BLOCK : (i + 1) * BLOCK]
        with self._lock:
            for block in missing:
                self._keep(block, found[block])
        return b"".join(found[block] for block in range(first, last))

    def _keep(self, block: int, content: bytes) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix=".tamis-")  # noqa: SIM115
        slot = self._slots.pop(block, None)
        if slot is None:
            full = len(self._slots) >= self._count
            slot = self._slots.pop(next(iter(self._slots))) if full else len(self._slots)
        os.pwrite(self._file.fileno(), content.ljust(BLOCK, b"\0"), slot * BLOCK)
        self._slots[block] = slot

    @property
    def cached_bytes(self) -> int:
        """Bytes of the blocks in the cache."""
        return len(self._slots) * BLOCK

    def stage(self, starts: Sequence[int], ends: Sequence[int]) -> int:
        """Fetch ranges that are about to be read, until `unstage` is called with the result."""
        if self.size <= SMALL:
            return -1
        ranges = sorted(zip(starts, ends, strict=True))
        spans = _join(ranges, GAP)
        places, total = [], 0
        for start, end in spans:
            places.append(total)
            total += end - start
        file = tempfile.TemporaryFile(prefix=".tamis-")  # noqa: SIM115
        try:
            pairs = zip(places, spans, strict=True)
            self._fetch_into(file.fileno(), [(place, *span) for place, span in pairs])
        except BaseException:
            file.close()
            raise
        staged = _Staged([s for s, _ in spans], [e for _, e in spans], places, file)
        with self._lock:
            token = max(self._staged, default=0) + 1
            self._staged[token] = staged
        return token

    def unstage(self, token: int) -> None:
        """Drop the ranges that `stage` fetched."""
        with self._lock:
            staged = self._staged.pop(token, None)
        if staged is not None:
            staged.file.close()

    def copy_to(self, descriptor: int, end: int) -> None:
        """Write the first ``end`` bytes to an open file."""
        self._fetch_into(descriptor, [(0, 0, end)])

    def _fetch_into(self, descriptor: int, spans: Sequence[tuple[int, ...]]) -> None:
        """Write spans (place in the file, start, end) to an open file, several at a time."""
        pieces = [
            (place + at - start, at, min(at + REQUEST, end))
            for place, start, end in spans
            for at in range(start, end, REQUEST)
        ]
        for first in range(0, len(pieces), PARALLEL):
            some = pieces[first : first + PARALLEL]
            contents = self._fetch([(start, end) for _, start, end in some])
            for (place, _, _), content in zip(some, contents, strict=True):
                if os.pwrite(descriptor, content, place) != len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _fetch(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read spans of the object, by a request for each."""
        if os.getpid() != self._process:
            text = "the parent process opened it: open it again in a forked process"
            raise OSError(errno.EPERM, text, self.name)
        if self._content is not None:
            return [self._content[start:end] for start, end in spans]
        filled = [(start, end) for start, end in spans if start < end]
        contents = iter(self._read(filled) if filled else ())
        found = [next(contents) if start < end else b"" for start, end in spans]
        for (start, end), content in zip(spans, found, strict=True):
            if len(content) != end - start:
                text = f"{len(content)} bytes instead of {end - start} were read from {start} on"
                raise OSError(errno.EIO, text, self.name)
        return found


def _join(ranges: Sequence[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Join sorted ranges that have at most ``gap`` bytes between them."""
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        if joined and start - joined[-1][1] <= gap:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def open_object(path: str | ObjectFile, filesystem: Any = None, cache: int = CACHE) -> ObjectFile:
    """Open an object by its URL or by its path in a file system, unless it is open already."""
    return path if isinstance(path, ObjectFile) else ObjectFile(locate(path, filesystem), cache)


def read_all(file: ObjectFile) -> bytes:
    """Read a whole object."""
    if file.size <= SMALL:
        return file.read_at(0, file.size)
    with tempfile.TemporaryFile(prefix=".tamis-") as copy:
        file.copy_to(copy.fileno(), file.size)
        copy.seek(0)
        return copy.read()
