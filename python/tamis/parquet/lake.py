"""The files of a data lake: where they are, and whether they changed since they were indexed."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs

from tamis.parquet.manifest import File
from tamis.parquet.threads import map_in_order

Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, a folder, a pattern with ``*``, ``?``, ``[…]`` or ``**``, or a list of them."""

SUFFIXES = (".parquet", ".parq", ".pq")
"""Suffixes of the files that are read from a folder; a pattern or a path matches any suffix."""

_WILD = re.compile(r"[*?\[]")
_TAIL = 8  # bytes of the length of a footer and of the magic


@dataclass(frozen=True)
class Stamp:
    """Size and times of a file. ``change``, its ctime and inode, is known for local files only."""

    size: int
    time: int
    change: tuple[int, int] | None = None

    @property
    def settled(self) -> bool:
        """Whether a later change would show: times are coarse."""
        latest = max(self.time, self.change[0] if self.change else 0)
        coarse = 50_000_000 if self.change else 2_000_000_000
        return latest + coarse < time.time_ns()


@dataclass(frozen=True)
class Lake:
    """Sources in one file system, without excluded files."""

    filesystem: fs.FileSystem
    uri: str | None
    sources: tuple[str, ...]
    excluded: frozenset[str] = frozenset()

    @classmethod
    def of(cls, source: Source, filesystem: Any = None) -> Lake:
        """Find the file system of sources: as given, by their URI, or the local one."""
        given = [source] if isinstance(source, str | os.PathLike) else list(source)
        if not given or not all(isinstance(each, str | os.PathLike) for each in given):
            raise TypeError(f"source must be a path, a pattern or a list of them, not {source!r}")
        names = [os.fspath(each) for each in given]
        uri = None
        if filesystem is not None:
            filesystem = as_filesystem(filesystem)
        elif "://" in names[0]:
            uri = names[0].split("://")[0]
            roots = [_uri(name) for name in names]
            filesystem, names = roots[0][0], [name for _, name in roots]
        else:
            filesystem = fs.LocalFileSystem()
        if isinstance(filesystem, fs.LocalFileSystem):
            names = [os.path.abspath(name) for name in names]
            names = [glob.escape(name) if os.path.exists(name) else name for name in names]
        return cls(filesystem, uri, tuple(dict.fromkeys(names)))

    @property
    def local(self) -> bool:
        """Whether the files are on this machine."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def to_json(self) -> dict[str, Any]:
        """Return the lake as JSON values."""
        return {
            "filesystem": self.filesystem.type_name,
            "uri": self.uri,
            "sources": list(self.sources),
            "excluded": sorted(self.excluded),
        }

    @classmethod
    def from_json(cls, content: dict[str, Any], filesystem: Any = None) -> Lake:
        """Read the output of `to_json`; a file system without a URI must be given."""
        sources = tuple(str(each) for each in content["sources"])
        uri, kind = content["uri"], content["filesystem"]
        if filesystem is not None:
            filesystem = as_filesystem(filesystem)
        elif uri is not None:
            filesystem, _ = _uri(f"{uri}://{sources[0]}")
        elif kind == "local":
            filesystem = fs.LocalFileSystem()
        else:
            raise ValueError(f"filesystem must be the {kind} file system of the index, not None")
        return cls(filesystem, uri, sources, frozenset(map(str, content["excluded"])))

    def of_same(self, source: Source) -> Lake:
        """Find other sources in the same file system."""
        return Lake.of(source, None if self.local or self.uri else self.filesystem)

    def with_source(self, other: Lake) -> Lake:
        """Add the sources of another lake in the same file system."""
        sources = tuple(dict.fromkeys([*self.sources, *other.sources]))
        back = self.excluded - set(other.files())
        return replace(self, sources=sources, excluded=back)

    def without_source(self, other: Lake) -> Lake:
        """Remove the sources of another lake, and exclude their files."""
        sources = tuple(each for each in self.sources if each not in other.sources)
        rest = replace(self, sources=sources)
        named = self.files().keys() & other.files().keys()
        return replace(rest, excluded=self.excluded | named)

    def files(self) -> dict[str, Stamp]:
        """List the current files."""
        found: dict[str, Stamp] = {}
        for source in self.sources:
            found.update(self._of_source(source))
        return {path: found[path] for path in sorted(found) if path not in self.excluded}

    def _of_source(self, source: str) -> Iterator[tuple[str, Stamp]]:
        wild = _WILD.search(source)
        if wild is None:
            info = self.filesystem.get_file_info(source)
            if info.type == fs.FileType.File:
                yield from self._stamps([info])
            elif info.type == fs.FileType.Directory:
                infos = self.filesystem.get_file_info(fs.FileSelector(source, recursive=True))
                visible = (each for each in infos if _visible(each.path[len(source) :]))
                yield from self._stamps(each for each in visible if each.path.endswith(SUFFIXES))
            return
        head = source[: wild.start()].rpartition("/")[0]
        deep = "/" in source[len(head) + 1 :] or "**" in source
        selector = fs.FileSelector(head or "/", recursive=deep, allow_not_found=True)
        pattern = _pattern(source)
        infos = self.filesystem.get_file_info(selector)
        yield from self._stamps(each for each in infos if pattern.fullmatch(each.path))

    def _stamps(self, infos: Iterable[fs.FileInfo]) -> Iterator[tuple[str, Stamp]]:
        for info in infos:
            if info.type != fs.FileType.File:
                continue
            if self.local:
                try:
                    status = os.stat(info.path)
                except FileNotFoundError:
                    continue
                change = (status.st_ctime_ns, status.st_ino)
                yield info.path, Stamp(status.st_size, status.st_mtime_ns, change)
            else:
                yield info.path, Stamp(info.size, info.mtime_ns or 0)

    def footer(self, path: str) -> str | None:
        """Return a digest of the footer of a file, or None if it cannot be read."""
        try:
            with self.filesystem.open_input_file(path) as file:
                size = file.size()
                tail = file.read_at(min(_TAIL, size), max(size - _TAIL, 0))
                length = min(int.from_bytes(tail[:4], "little") + _TAIL, size)
                return hashlib.blake2b(
                    file.read_at(length, size - length), digest_size=16
                ).hexdigest()
        except (OSError, pa.ArrowException):
            return None


def as_filesystem(given: Any) -> fs.FileSystem:
    """Return a pyarrow file system, given one of pyarrow or fsspec."""
    if isinstance(given, fs.FileSystem):
        return given
    if hasattr(given, "protocol") and hasattr(given, "open"):
        return fs.PyFileSystem(fs.FSSpecHandler(given))
    kind = type(given).__name__
    raise TypeError(
        f"filesystem must be a file system of pyarrow.fs or fsspec, not {given!r} of type {kind}"
    )


def _uri(name: str) -> tuple[fs.FileSystem, str]:
    wild = _WILD.search(name)
    head = name[: wild.start()].rpartition("/")[0] if wild else name
    filesystem, path = fs.FileSystem.from_uri(head)
    return filesystem, path + name[len(head) :]


def _visible(path: str) -> bool:
    """Whether no part of a path is hidden: writers hide files that are not data."""
    return not any(part[:1] in ("_", ".") for part in Path(path).parts)


def _pattern(source: str) -> re.Pattern[str]:
    """Translate a pattern: ``*`` and ``?`` match within one folder, ``**`` across folders."""
    out = []
    for part in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", source):
        match part:
            case "**/":
                out.append("(?:.*/)?")
            case "**":
                out.append(".*")
            case "*":
                out.append("[^/]*")
            case "?":
                out.append("[^/]")
            case _ if part.startswith("[") and part.endswith("]"):
                inner = part[1:-1].replace("\\", "\\\\").replace("[", r"\[")
                out.append(f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]")
            case _:
                out.append(re.escape(part))
    return re.compile("".join(out))


@dataclass(frozen=True)
class FileCheck:
    """The current files: which indexed files are unchanged, which changed, which are new."""

    fresh: npt.NDArray[np.bool_]
    stale: list[str]
    unknown: dict[str, Stamp]


class FileWatch:
    """Checks which files are unchanged, by size, time and footer.

    The footer of a file is read once after opening, and again if its size or times differ from
    those of the last check, or were so recent then that another change could go unnoticed.
    """

    def __init__(self, recheck: float, threads: int | None) -> None:
        self._recheck, self._threads = recheck, threads
        self._confirmed: dict[str, Stamp] = {}
        self._last: tuple[float, Lake, Sequence[File], FileCheck] | None = None

    def check(self, lake: Lake, files: Sequence[File]) -> FileCheck:
        """Check the files, or return the last check if it is less than ``recheck`` seconds old."""
        last = self._last
        same = last is not None and last[1] is lake and last[2] is files
        if last and same and time.monotonic() - last[0] < self._recheck:
            return last[3]
        begin, now = time.monotonic(), lake.files()
        found = FileCheck(np.zeros(len(files), np.bool_), [], now)
        doubtful: list[tuple[int, File, Stamp]] = []
        for number, file in enumerate(files):
            stamp = now.pop(file.path, None)
            if stamp is None:
                continue
            if (stamp.size, stamp.time) != (file.size, file.time):
                found.stale.append(file.path)
            elif self._confirmed.get(file.path) == stamp:
                found.fresh[number] = True
            else:
                doubtful.append((number, file, stamp))
        paths = (file.path for _, file, _ in doubtful)
        footers = map_in_order(lake.footer, paths, self._threads) if doubtful else ()
        for (number, file, stamp), footer in zip(doubtful, footers, strict=True):
            if footer != file.footer:
                found.stale.append(file.path)
                continue
            found.fresh[number] = True
            if stamp.settled:
                self._confirmed[file.path] = stamp
        self._last = (begin, lake, files, found)
        return found
