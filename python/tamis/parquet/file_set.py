"""The data files of an index: where they are, and which of them changed since."""

from __future__ import annotations

import glob
import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs

from tamis._checks import check_number, thread_count
from tamis._objects import StorageOptions, as_filesystem, check_key, split_url
from tamis.parquet.location import Location
from tamis.parquet.manifest import File
from tamis.parquet.sources import (
    TABLE_LOGS,
    Buckets,
    Stamp,
    cloud_names,
    is_below,
    list_cloud,
    list_local,
    list_names,
    list_remote,
    refuse_table,
    split_pattern,
)

Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, a folder, a pattern with ``*``, ``?``, ``[…]`` or ``**``, or a list of them."""

_TAIL = 8  # bytes of the length of a footer and of the magic


@dataclass(frozen=True)
class FileSet:
    """Sources in one file system, without excluded files.

    ``folders``, if not None, are the real paths of the folders in which files may be opened. An
    index of unknown origin may name any file, and its folder may have links to any file, so only
    files below its own folder are opened.
    """

    filesystem: fs.FileSystem
    uri: str | None
    sources: tuple[str, ...]
    excluded: frozenset[str] = frozenset()
    folders: tuple[str, ...] | None = None
    immutable: bool = False
    """Whether sources are files that never change, as in a snapshot of a table."""

    @classmethod
    def of(cls, source: Source, filesystem: Any = None, *, immutable: bool = False) -> FileSet:
        """Find the file system of sources: as given, by their URLs, or the local one."""
        names, uri = source_names(source), None
        if filesystem is not None and not isinstance(filesystem, StorageOptions):
            filesystem = as_filesystem(filesystem)
        elif all(name.startswith("file://") for name in names):
            names, filesystem, uri = [name[7:] for name in names], fs.LocalFileSystem(), "file"
        elif any("://" in name for name in names):
            uri, names = _split_urls(names)
            filesystem = fs.PyFileSystem(Buckets(uri, filesystem))
        else:
            filesystem = fs.LocalFileSystem()
        if isinstance(filesystem, fs.LocalFileSystem):
            names = [os.path.abspath(name) for name in names]
            names = [glob.escape(name) if os.path.exists(name) else name for name in names]
        file_set = cls(filesystem, uri, tuple(dict.fromkeys(names)), immutable=immutable)
        if immutable and any(split_pattern(each)[1] for each in file_set.sources):
            raise ValueError("source must be a list of files, without patterns, if immutable=True")
        return file_set

    @property
    def buckets(self) -> Buckets | None:
        """The buckets of the sources, if these are URLs."""
        handler = getattr(self.filesystem, "handler", None)
        return handler if isinstance(handler, Buckets) else None

    @property
    def local(self) -> bool:
        """Whether the files are on this machine."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def to_json(self) -> dict[str, Any]:
        """Return the file set as JSON values."""
        return {
            "filesystem": self.filesystem.type_name,
            "uri": self.uri,
            "sources": list(self.sources),
            "excluded": sorted(self.excluded),
        }

    @classmethod
    def from_manifest(cls, content: dict[str, Any], location: Location) -> FileSet:
        """Read the output of `to_json`, if all its sources are below the folder of the index."""
        if location.target is None:
            return cls.from_json(content, location.folder)
        sources, folder = tuple(content["sources"]), location.folder.rstrip("/") + "/"
        heads = (split_pattern(each)[0].rstrip("/") + "/" for each in sources)
        below = all(each.startswith(folder) and ".." not in each.split("/") for each in heads)
        given, filesystem = location.filesystem, None
        if given is None or isinstance(given, StorageOptions):
            scheme = split_url(location.path, "path")[0]
            if content["uri"] == scheme:
                filesystem = fs.PyFileSystem(Buckets(scheme, given))
        elif content["uri"] is None:
            filesystem = as_filesystem(given)
            if filesystem.type_name != content["filesystem"]:
                filesystem = None
        if filesystem is None or not below:
            raise ValueError(
                f"source must be given: the index was built over {describe(content)}, and without "
                f"it an index opens only files below its own folder, {folder}"
            )
        return cls(filesystem, content["uri"], sources, frozenset(content["excluded"]))

    @classmethod
    def from_json(cls, content: dict[str, Any], folder: str) -> FileSet:
        """Read the output of `to_json`, if all its sources are local and below a folder."""
        sources, uri, below = tuple(content["sources"]), content["uri"], (os.path.realpath(folder),)
        local = content["filesystem"] == "local" and uri in (None, "file")
        if not local or not all(is_below(split_pattern(each)[0], below) for each in sources):
            raise ValueError(
                f"source must be given: the index was built over {describe(content)}, and without "
                f"it an index opens only files below its own folder, {below[0]}"
            )
        return cls(fs.LocalFileSystem(), uri, sources, frozenset(content["excluded"]), below)

    def of_same(self, source: Source) -> FileSet:
        """Find other sources in the same file system."""
        buckets = self.buckets
        given = None if self.local else self.filesystem if buckets is None else buckets.options
        return FileSet.of(source, given, immutable=self.immutable)

    def with_source(self, other: FileSet) -> FileSet:
        """Add the sources of another set in the same file system."""
        sources = tuple(dict.fromkeys([*self.sources, *other.sources]))
        folders = self.folders
        if folders is not None:
            heads = (os.path.realpath(split_pattern(each)[0]) for each in other.sources)
            folders = (*folders, *heads)
        back = self.excluded - set(other.files())
        return replace(self, sources=sources, excluded=back, folders=folders)

    def without_source(self, other: FileSet) -> FileSet:
        """Remove the sources of another set, and exclude their files."""
        sources = tuple(each for each in self.sources if each not in other.sources)
        rest = replace(self, sources=sources)
        named = self.files().keys() & other.files().keys()
        return replace(rest, excluded=self.excluded | named)

    def files(self) -> dict[str, Stamp]:
        """List the current files."""
        found: dict[str, Stamp] = {}
        buckets = self.buckets
        for source in self.sources:
            if self.local:
                found.update(list_local(source, self.folders))
            elif buckets is not None:
                found.update(list_cloud(buckets, source))
            else:
                found.update(list_remote(self.filesystem, source))
        return {path: found[path] for path in sorted(found) if path not in self.excluded}

    def unlisted(self, known: set[str]) -> dict[str, Stamp]:
        """List the current files that are not known."""
        file_set = self
        if self.immutable:  # known files need no request
            rest = (path for path in self.named() if path not in known)
            file_set = replace(self, sources=tuple(map(glob.escape, rest)))
        return {path: stamp for path, stamp in file_set.files().items() if path not in known}

    def named(self) -> list[str]:
        """Return the paths of sources that are files, without asking whether they are there."""
        named = (split_pattern(source)[0] for source in self.sources)
        return [path for path in named if path not in self.excluded]

    def refuse_tables(self) -> None:
        """Raise if a source is within the folder of a table; listing finds tables within a source.

        Files that are named one by one may belong to a table.
        """
        if self.immutable:
            return
        heads = list(dict.fromkeys(split_pattern(source)[0] for source in self.sources))
        waiting = [head for head in heads if not self._is_file(head)]
        seen = set()
        while waiting:
            above = waiting.pop().rstrip("/").rpartition("/")[0]
            if above in seen or not above:
                continue
            seen.add(above)
            waiting.append(above)
            names = [log for log in TABLE_LOGS if self._names(f"{above}/{log}")]
            refuse_table(above, names, self._names)

    def _is_file(self, path: str) -> bool:
        if self.buckets is not None:
            return self.buckets.stamp(path) is not None
        return bool(self.filesystem.get_file_info(path).type == fs.FileType.File)

    def _names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if there is no such folder."""
        if self.buckets is not None:
            return cloud_names(self.buckets, folder)
        return list_names(self.filesystem, folder)

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


def source_text(source: Source) -> str:
    """Return sources as text, for messages."""
    names = source_names(source)
    return repr(names[0] if isinstance(source, str | os.PathLike) else names)


def describe(content: dict[str, Any]) -> str:
    """Return up to three of the sources in the output of `to_json`, as text."""
    scheme = f"{content['uri']}://" if content["uri"] else ""
    named = [scheme + each for each in content["sources"]]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return ", ".join(named[:3]) + more


def _split_urls(urls: Sequence[str]) -> tuple[str, list[str]]:
    """Return the scheme of URLs, and the bucket and key of each."""
    paths, schemes = [], set()
    for url in urls:
        scheme, bucket, key = split_url(url, "source")
        head = split_pattern(key)[0].strip("/")
        if head:
            check_key(head, url)
        schemes.add(scheme)
        paths.append(f"{bucket}/{key}")
    if len(schemes) > 1:
        raise ValueError(f"source must be URLs of one scheme, not of {', '.join(sorted(schemes))}")
    return schemes.pop(), paths


@dataclass(frozen=True)
class FileCheck:
    """The current files: which indexed files are unchanged, which changed, which are new."""

    fresh: npt.NDArray[np.bool_]
    stale: list[str]
    unknown: dict[str, Stamp]


class FileWatch:
    """Checks which files are unchanged: by their ETags, or else by size, time and footer.

    The footer of a file is read once after opening, and again if its size or times changed since
    the last check, or were so recent then that another change could go unnoticed.
    """

    def __init__(self, recheck: float, threads: int | None) -> None:
        what = "a number of seconds of at least 0"
        self.recheck, self._threads = check_number("recheck", recheck, what, minimum=0), threads
        self._confirmed: dict[str, Stamp] = {}
        self._last: tuple[float, FileSet, Sequence[File], FileCheck] | None = None

    def check(self, file_set: FileSet, files: Sequence[File]) -> FileCheck:
        """Check the files, or return the last check if it is less than ``recheck`` seconds old."""
        last = self._last
        same = last is not None and last[1] is file_set and last[2] is files
        if last and same and time.monotonic() - last[0] < self.recheck:
            return last[3]
        begin = time.monotonic()
        now = (
            dict.fromkeys(file_set.named(), Stamp(0, 0)) if file_set.immutable else file_set.files()
        )
        found = FileCheck(np.zeros(len(files), np.bool_), [], now)
        unsettled: list[tuple[int, File, Stamp]] = []
        for number, file in enumerate(files):
            stamp = now.pop(file.path, None)
            if stamp is None:
                continue
            if file_set.immutable:
                found.fresh[number] = True
            elif stamp.tag is not None and file.tag is not None:
                same = (stamp.tag, stamp.size) == (file.tag, file.size)
                found.fresh[number] = same
                if not same:
                    found.stale.append(file.path)
            elif stamp.size != file.size or stamp.time != file.time:
                found.stale.append(file.path)
            elif self._confirmed.get(file.path) == stamp:
                found.fresh[number] = True
            else:
                unsettled.append((number, file, stamp))
        paths = (file.path for _, file, _ in unsettled)
        footers = map_in_order(file_set.footer, paths, self._threads) if unsettled else ()
        for (number, file, stamp), footer in zip(unsettled, footers, strict=True):
            if footer != file.footer:
                found.stale.append(file.path)
                continue
            found.fresh[number] = True
            if stamp.settled:
                self._confirmed[file.path] = stamp
        self._last = (begin, file_set, files, found)
        return found


Task = TypeVar("Task")
Result = TypeVar("Result")


def map_in_order(
    run: Callable[[Task], Result], tasks: Iterable[Task], threads: int | None
) -> Iterator[Result]:
    """Run tasks on threads, a few ahead of the consumer, and yield their results in order."""
    workers = thread_count(threads)
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="tamis-parquet") as pool:
        try:
            for task in tasks:
                waiting.append(pool.submit(run, task))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
