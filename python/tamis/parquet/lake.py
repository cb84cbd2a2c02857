"""The files of a lake: where they are, and whether they are still what was indexed."""

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
from tamis.parquet.threads import in_order

Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""Files, folders and patterns with ``*``, ``?``, ``[…]`` and ``**``; one or a list."""

SUFFIXES = (".parquet", ".parq", ".pq")
"""What a file in a folder must end in to be taken; a pattern or a path takes any."""

_WILD = re.compile(r"[*?\[]")
_TAIL = 8  # the length of a footer, and a magic


@dataclass(frozen=True)
class Stamp:
    """What the file system says of a file. ``change`` is what only a local one tells."""

    size: int
    time: int
    change: tuple[int, int] | None = None

    @property
    def settled(self) -> bool:
        """Whether a change from now on would show: times are coarse."""
        latest = max(self.time, self.change[0] if self.change else 0)
        coarse = 50_000_000 if self.change else 2_000_000_000
        return latest + coarse < time.time_ns()


@dataclass(frozen=True)
class Lake:
    """Sources in one file system, without the files that were taken out."""

    filesystem: fs.FileSystem
    uri: str | None
    sources: tuple[str, ...]
    excluded: frozenset[str] = frozenset()

    @classmethod
    def of(cls, source: Source, filesystem: Any = None) -> Lake:
        """Find the file system of sources: given, by their URI, or the local one."""
        given = [source] if isinstance(source, str | os.PathLike) else list(source)
        if not given or not all(isinstance(each, str | os.PathLike) for each in given):
            raise TypeError(f"source is {source!r}; a path, a pattern or a list of them is wanted")
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
        """Whether the files are this machine's."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can say."""
        return {
            "filesystem": self.filesystem.type_name,
            "uri": self.uri,
            "sources": list(self.sources),
            "excluded": sorted(self.excluded),
        }

    @classmethod
    def from_json(cls, said: dict[str, Any], filesystem: Any = None) -> Lake:
        """Read what `to_json` returned; a file system that has no URI is to be given."""
        sources = tuple(str(each) for each in said["sources"])
        uri, kind = said["uri"], said["filesystem"]
        if filesystem is not None:
            filesystem = as_filesystem(filesystem)
        elif uri is not None:
            filesystem, _ = _uri(f"{uri}://{sources[0]}")
        elif kind == "local":
            filesystem = fs.LocalFileSystem()
        else:
            raise ValueError(f"filesystem is None; the files of the index are in one of {kind}")
        return cls(filesystem, uri, sources, frozenset(map(str, said["excluded"])))

    def of_same(self, source: Source) -> Lake:
        """Find other sources in the same file system."""
        return Lake.of(source, None if self.local or self.uri else self.filesystem)

    def with_source(self, other: Lake) -> Lake:
        """Add the sources of another lake in the same file system."""
        sources = tuple(dict.fromkeys([*self.sources, *other.sources]))
        back = self.excluded - set(other.files())
        return replace(self, sources=sources, excluded=back)

    def without_source(self, other: Lake) -> Lake:
        """Take the sources of another lake out, and the files that they name."""
        sources = tuple(each for each in self.sources if each not in other.sources)
        rest = replace(self, sources=sources)
        named = self.files().keys() & other.files().keys()
        return replace(rest, excluded=self.excluded | named)

    def files(self) -> dict[str, Stamp]:
        """List the files that there are now."""
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
                below = self.filesystem.get_file_info(fs.FileSelector(source, recursive=True))
                taken = (each for each in below if _plain(each.path[len(source) :]))
                yield from self._stamps(each for each in taken if each.path.endswith(SUFFIXES))
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
        """Digest the footer of a file; None if there is none, or no file."""
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
    """Take a file system of pyarrow, or of fsspec."""
    if isinstance(given, fs.FileSystem):
        return given
    if hasattr(given, "protocol") and hasattr(given, "open"):
        return fs.PyFileSystem(fs.FSSpecHandler(given))
    kind = type(given).__name__
    raise TypeError(f"filesystem is of type {kind}; one of pyarrow.fs or of fsspec is wanted")


def _uri(name: str) -> tuple[fs.FileSystem, str]:
    wild = _WILD.search(name)
    head = name[: wild.start()].rpartition("/")[0] if wild else name
    filesystem, path = fs.FileSystem.from_uri(head)
    return filesystem, path + name[len(head) :]


def _plain(path: str) -> bool:
    """Whether no part of a path is hidden, as writers hide what is not data."""
    return not any(part[:1] in ("_", ".") for part in Path(path).parts)


def _pattern(source: str) -> re.Pattern[str]:
    """Translate a pattern: ``*`` and ``?`` stay within one folder, ``**`` does not."""
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
class Look:
    """The files as they are now: which entries hold, and which files have none that does."""

    fresh: npt.NDArray[np.bool_]
    stale: list[str]
    unknown: dict[str, Stamp]


class Watch:
    """Tells which files are still what was read, by size, time and footer.

    A footer is read once after opening; then again whenever the file system says something else of
    the file than it did at that time, or said it so soon after a change that a second may hide.
    """

    def __init__(self, recheck: float, threads: int | None) -> None:
        self._recheck, self._threads = recheck, threads
        self._confirmed: dict[str, Stamp] = {}
        self._last: tuple[float, Lake, Sequence[File], Look] | None = None

    def look(self, lake: Lake, files: Sequence[File]) -> Look:
        """Look at the files, or remember if that was less than ``recheck`` seconds ago."""
        last = self._last
        same = last is not None and last[1] is lake and last[2] is files
        if last and same and time.monotonic() - last[0] < self._recheck:
            return last[3]
        begin, now = time.monotonic(), lake.files()
        look = Look(np.zeros(len(files), np.bool_), [], now)
        doubtful: list[tuple[int, File, Stamp]] = []
        for number, file in enumerate(files):
            stamp = now.pop(file.path, None)
            if stamp is None:
                continue
            if (stamp.size, stamp.time) != (file.size, file.time):
                look.stale.append(file.path)
            elif self._confirmed.get(file.path) == stamp:
                look.fresh[number] = True
            else:
                doubtful.append((number, file, stamp))
        paths = (file.path for _, file, _ in doubtful)
        footers = in_order(lake.footer, paths, self._threads) if doubtful else ()
        for (number, file, stamp), footer in zip(doubtful, footers, strict=True):
            if footer != file.footer:
                look.stale.append(file.path)
                continue
            look.fresh[number] = True
            if stamp.settled:
                self._confirmed[file.path] = stamp
        self._last = (begin, lake, files, look)
        return look
