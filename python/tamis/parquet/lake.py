"""The files of a data lake: where they are, and whether they changed since they were indexed."""

from __future__ import annotations

import glob
import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs

from tamis._checks import check_number
from tamis._objects import EXTRAS, check_secret, open_fsspec, open_uri, protocols, public_name
from tamis.parquet.listing import (
    TABLE_LOGS,
    Stamp,
    is_below,
    list_local,
    list_names,
    list_remote,
    list_tagged,
    refuse_table,
    split_pattern,
)
from tamis.parquet.location import Location
from tamis.parquet.manifest import File
from tamis.parquet.threads import map_in_order

Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, a folder, a pattern with ``*``, ``?`` (not in a URI), ``[…]`` or ``**``, or a list."""

_TAIL = 8  # bytes of the length of a footer and of the magic


@dataclass(frozen=True)
class Lake:
    """Sources in one file system, without excluded files.

    ``folders``, if not None, are the real paths of all that may be opened. An index from others
    may name any file, and its folder may have links to any, so what it names is opened only below
    its own folder.
    """

    filesystem: fs.FileSystem
    uri: str | None
    sources: tuple[str, ...]
    excluded: frozenset[str] = frozenset()
    folders: tuple[str, ...] | None = None
    lister: Any = field(default=None, compare=False)
    """A file system of fsspec that lists files with their ETags, if there is one."""
    immutable: bool = False
    """Whether sources are files that never change, as those of a snapshot of a table."""

    @classmethod
    def of(cls, source: Source, filesystem: Any = None, *, immutable: bool = False) -> Lake:
        """Find the file system of sources: as given, by their URI, or the local one."""
        names = source_names(source)
        uri = lister = None
        if filesystem is not None:
            filesystem = as_filesystem(filesystem)
            inner = getattr(getattr(filesystem, "handler", None), "fs", None)
            lister = inner if protocols(inner) & EXTRAS.keys() else None
        elif "://" in names[0]:
            uri = names[0].split("://")[0]
            for name in names:
                check_secret(name, "source")
            lister = _lister(names[0])
            filesystem, names = _uris(names)
        else:
            filesystem = fs.LocalFileSystem()
        if isinstance(filesystem, fs.LocalFileSystem):
            names = [os.path.abspath(name) for name in names]
            names = [glob.escape(name) if os.path.exists(name) else name for name in names]
        lake = cls(filesystem, uri, tuple(dict.fromkeys(names)), lister=lister, immutable=immutable)
        if immutable and any(split_pattern(each)[1] for each in lake.sources):
            raise ValueError("source must be a list of files, without patterns, if immutable=True")
        return lake

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
    def beside(cls, content: dict[str, Any], location: Location) -> Lake:
        """Read the output of `to_json`, if all its sources are below the folder of the index."""
        target, sources = location.target, content["sources"]
        if target is None:
            return cls.from_json(content, location.folder)
        folder = location.folder.rstrip("/") + "/"
        heads = (split_pattern(each)[0].rstrip("/") + "/" for each in sources)
        below = all(each.startswith(folder) and ".." not in each.split("/") for each in heads)
        if location.filesystem is None:
            scheme, _, rest = location.path.partition("://")
            options = rest.partition("?")[1] + rest.partition("?")[2]
            user = rest.partition("/")[0].rpartition("@")[0]
            start = f"{scheme}://{user}{'@' if user else ''}"
            below = below and content["uri"] == scheme
            lake = cls.of([f"{start}{each}{options}" for each in sources]) if below else None
        else:
            same = as_filesystem(location.filesystem).type_name == content["filesystem"]
            below = below and same and content["uri"] is None
            lake = cls.of(sources, location.filesystem) if below else None
        # A URI of some names, such as those with a percent sign, means another object.
        if lake is None or lake.sources != tuple(sources):
            raise ValueError(
                f"source must be given: the index was built over {describe(content)}, and without "
                f"it an index opens only files below its own folder, {folder}"
            )
        return replace(lake, excluded=frozenset(content["excluded"]))

    @classmethod
    def from_json(cls, content: dict[str, Any], folder: str) -> Lake:
        """Read the output of `to_json`, if all its sources are local and below a folder."""
        sources, uri, below = tuple(content["sources"]), content["uri"], (os.path.realpath(folder),)
        local = content["filesystem"] == "local" and uri in (None, "file")
        if not local or not all(is_below(split_pattern(each)[0], below) for each in sources):
            raise ValueError(
                f"source must be given: the index was built over {describe(content)}, and without "
                f"it an index opens only files below its own folder, {below[0]}"
            )
        return cls(fs.LocalFileSystem(), uri, sources, frozenset(content["excluded"]), below)

    def of_same(self, source: Source) -> Lake:
        """Find other sources in the same file system."""
        given = None if self.local or self.uri else self.filesystem
        return Lake.of(source, given, immutable=self.immutable)

    def with_source(self, other: Lake) -> Lake:
        """Add the sources of another lake in the same file system."""
        sources = tuple(dict.fromkeys([*self.sources, *other.sources]))
        folders = self.folders
        if folders is not None:
            heads = (os.path.realpath(split_pattern(each)[0]) for each in other.sources)
            folders = (*folders, *heads)
        back = self.excluded - set(other.files())
        return replace(self, sources=sources, excluded=back, folders=folders)

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
            if self.local:
                found.update(list_local(source, self.folders))
            elif self.lister is not None:
                found.update(list_tagged(self.lister, source))
            else:
                found.update(list_remote(self.filesystem, source))
        return {path: found[path] for path in sorted(found) if path not in self.excluded}

    def unlisted(self, known: set[str]) -> dict[str, Stamp]:
        """List the current files that are not known."""
        lake = self
        if self.immutable:  # those that are known need no request
            rest = (path for path in self.named() if path not in known)
            lake = replace(self, sources=tuple(map(glob.escape, rest)))
        return {path: stamp for path, stamp in lake.files().items() if path not in known}

    def untimed(self, file: File) -> bool:
        """Whether a file was indexed when listings had no times: then its footer decides."""
        return self.lister is not None and file.time == 0

    def named(self) -> list[str]:
        """Return the paths of sources that are files, without asking whether they are there."""
        named = (split_pattern(source)[0] for source in self.sources)
        return [path for path in named if path not in self.excluded]

    def refuse_tables(self) -> None:
        """Raise if a source is within the folder of a table; listing finds tables within a source.

        Files that are named one by one may be those of a table.
        """
        if self.immutable:
            return
        heads = list(dict.fromkeys(split_pattern(source)[0] for source in self.sources))
        infos = self.filesystem.get_file_info(heads)
        waiting = [each.path for each in infos if each.type != fs.FileType.File]
        seen = set()
        while waiting:
            above = waiting.pop().rstrip("/").rpartition("/")[0]
            if above in seen or not above:
                continue
            seen.add(above)
            waiting.append(above)
            logs = self.filesystem.get_file_info([f"{above}/{log}" for log in TABLE_LOGS])
            names = [each.base_name for each in logs if each.type == fs.FileType.Directory]
            refuse_table(above, names, lambda path: list_names(self.filesystem, path))

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


def source_names(source: Source) -> list[str]:
    """Return sources as a list of paths."""
    if isinstance(source, str | os.PathLike):
        given = [source]
    else:
        given = list(source) if isinstance(source, Iterable) else []
    if not given or not all(isinstance(each, str | os.PathLike) for each in given):
        raise TypeError(f"source must be a path, a pattern or a list of them, not {source!r}")
    return [os.fspath(each) for each in given]


def public_source(source: Source) -> str:
    """Return sources as they were given, but without credentials."""
    if isinstance(source, str | os.PathLike):
        return repr(public_name(source))
    return repr([public_name(each) for each in source_names(source)])


def describe(content: dict[str, Any]) -> str:
    """Return the sources of a lake as JSON, up to three of them, as text."""
    scheme = f"{content['uri']}://" if content["uri"] else ""
    named = [scheme + each for each in content["sources"]]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return ", ".join(named[:3]) + more


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


def _lister(uri: str) -> Any:
    """Return a file system of fsspec that lists the objects of a URI, if its client is there."""
    if uri.split("://")[0] not in EXTRAS:
        return None
    try:
        return open_fsspec(uri)[0]
    except (ImportError, ValueError):
        return None


def _uris(names: Sequence[str]) -> tuple[fs.FileSystem, list[str]]:
    """Return the file system of URIs and the paths in it; that of the first serves all others."""
    filesystem, first = _uri(names[0])
    paths = [first]
    for name in names[1:]:
        parts = [each.partition("://")[2].partition("?")[0] for each in (names[0], name)]
        bucket = parts[0].partition("/")[0]
        # A new client costs more than its first request, so others are made only where they must.
        plain = glob.escape(parts[0].rpartition("@")[2]) == first and "%" not in name
        options = [each.partition("?")[2] for each in (names[0], name)]
        if plain and options[0] == options[1] and parts[1].startswith(f"{bucket}/"):
            whole, wild = parts[1].rpartition("@")[2], split_pattern(parts[1])[1]
            paths.append(whole if wild else glob.escape(whole))
        else:
            paths.append(_uri(name)[1])
    return filesystem, paths


def _uri(name: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URI and the path in it, in which ``*`` and ``[…]`` are wild."""
    base, mark, options = name.partition("?")  # options of the file system, such as its endpoint
    head, wild = split_pattern(base)
    whole = (head if wild else base) + mark + options
    try:
        filesystem, path = fs.FileSystem.from_uri(whole)
    except (pa.ArrowException, OSError, ValueError, ImportError) as error:
        if name.split("://")[0] not in EXTRAS or isinstance(error, FileNotFoundError):
            raise ValueError(
                f"source must be a URI that pyarrow opens: {public_name(name)}"
            ) from None
        inner, path = open_uri(whole)  # az://, which only fsspec knows
        filesystem = as_filesystem(inner)
    return filesystem, path + base[len(head) :] if wild else glob.escape(path)


@dataclass(frozen=True)
class FileCheck:
    """The current files: which indexed files are unchanged, which changed, which are new."""

    fresh: npt.NDArray[np.bool_]
    stale: list[str]
    unknown: dict[str, Stamp]


class FileWatch:
    """Checks which files are unchanged: by their ETags, or else by size, time and footer.

    The footer of a file is read once after opening, and again if its size or times differ from
    those of the last check, or were so recent then that another change could go unnoticed.
    """

    def __init__(self, recheck: float, threads: int | None) -> None:
        what = "a number of seconds from 0 on"
        self.recheck, self._threads = check_number("recheck", recheck, what, least=0), threads
        self._confirmed: dict[str, Stamp] = {}
        self._last: tuple[float, Lake, Sequence[File], FileCheck] | None = None

    def check(self, lake: Lake, files: Sequence[File]) -> FileCheck:
        """Check the files, or return the last check if it is less than ``recheck`` seconds old."""
        last = self._last
        same = last is not None and last[1] is lake and last[2] is files
        if last and same and time.monotonic() - last[0] < self.recheck:
            return last[3]
        begin = time.monotonic()
        now = dict.fromkeys(lake.named(), Stamp(0, 0)) if lake.immutable else lake.files()
        found = FileCheck(np.zeros(len(files), np.bool_), [], now)
        doubtful: list[tuple[int, File, Stamp]] = []
        for number, file in enumerate(files):
            stamp = now.pop(file.path, None)
            if stamp is None:
                continue
            if lake.immutable:
                found.fresh[number] = True
            elif stamp.tag is not None and file.tag is not None:
                same = (stamp.tag, stamp.size) == (file.tag, file.size)
                found.fresh[number] = same
                if not same:
                    found.stale.append(file.path)
            elif stamp.size != file.size or (stamp.time != file.time and not lake.untimed(file)):
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
