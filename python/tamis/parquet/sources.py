"""Sources: a file, a folder, a pattern or a bucket, and the files that it names."""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from pyarrow import fs

from tamis._objects import StorageOptions, check_key, named_errors, open_bucket

SUFFIXES = (".parquet", ".parq", ".pq")
"""Suffixes of the files that are read from a folder; a pattern or a path matches any suffix."""

_WILD = re.compile(r"[*?\[]")
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
_ESCAPED = re.compile(r"\[([*?\[])\]")  # as `glob.escape` writes it


def split_pattern(source: str) -> tuple[str, bool]:
    """Return the path, or the folder before the first wildcard, and whether there is a wildcard."""
    literal = _ESCAPED.sub("", source)
    if _WILD.search(literal) is None:
        return _ESCAPED.sub(r"\1", source), False
    wild = _WILD.search(source)
    assert wild is not None
    return source[: wild.start()].rpartition("/")[0] or "/", True


TABLE_LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi", "metadata": "Iceberg"}
"""Folders that make their parent a table; Iceberg's has files ``*.metadata.json``."""

FILES_OF_TABLES = {
    "Delta": "deltalake.DeltaTable(…).file_uris()",
    "Hudi": "the base files of its latest commit",
    "Iceberg": "[task.file.file_path for task in table.scan().plan_files()] of pyiceberg",
}


@dataclass(frozen=True)
class Stamp:
    """Size and times of a file.

    ``change``, its ctime and inode, is known for local files only, and ``tag``, its ETag, for
    objects that are listed by obstore. ``time`` is 0 if it is unknown.
    """

    size: int
    time: int
    change: tuple[int, int] | None = None
    tag: str | None = None

    @property
    def settled(self) -> bool:
        """Whether a later change would change the stamp; a recent time is too coarse for that."""
        if self.tag is not None:
            return True
        if self.time == 0:
            return False
        latest = max(self.time, self.change[0] if self.change else 0)
        coarse = 50_000_000 if self.change else 2_000_000_000
        return latest + coarse < time.time_ns()


def list_local(source: str, folders: Sequence[str] | None) -> Iterator[tuple[str, Stamp]]:
    """List the local files of a source, which must be below ``folders`` unless that is None."""
    head, wild = split_pattern(source)
    if folders is not None:
        check_below(head, folders)
    if not wild and not os.path.isdir(head):
        found: Iterable[str] = [head]
    else:
        found = filter(_matcher(source), _walk(head, _deep(source), folders))
    for path in found:
        try:
            status = os.stat(path)
        except OSError as error:
            if error.errno in _ABSENT:
                continue
            raise
        if stat.S_ISREG(status.st_mode):
            change = (status.st_ctime_ns, status.st_ino)
            yield path, Stamp(status.st_size, status.st_mtime_ns, change)


def list_remote(filesystem: fs.FileSystem, source: str) -> Iterator[tuple[str, Stamp]]:
    """List the files of a source in a file system of pyarrow."""
    head, wild = split_pattern(source)
    infos, matches = [], _matcher(source)
    inner = getattr(getattr(filesystem, "handler", None), "fs", None)
    if inner is not None and hasattr(
        inner, "invalidate_cache"
    ):  # fsspec may cache listings, which hide new files
        inner.invalidate_cache()
    if not wild:
        infos = [filesystem.get_file_info(head)]
    if wild or infos[0].type == fs.FileType.Directory:
        selector = fs.FileSelector(head, recursive=_deep(source), allow_not_found=True)
        listed = filesystem.get_file_info(selector)
        folders: dict[str, list[str]] = {head: []}
        for each in listed:
            folder, _, name = each.path.rpartition("/")
            folders.setdefault(folder, []).append(name)
        for folder, names in folders.items():
            refuse_table(folder, names, lambda path: list_names(filesystem, path))
        infos = [each for each in listed if matches(each.path)]
    for info in infos:
        if info.type == fs.FileType.File:
            yield info.path, Stamp(info.size, info.mtime_ns or 0)


def list_cloud(buckets: Buckets, source: str) -> Iterator[tuple[str, Stamp]]:
    """List the files of a source in an object store, with their ETags."""
    head, wild = split_pattern(source)
    alone = None if wild else buckets.stamp(head)
    if alone is not None:
        yield head, alone
        return
    matches, start = _matcher(source), len(head.rstrip("/")) + 1
    listed = list(buckets.entries(head, _deep(source)))
    folders: dict[str, set[str]] = {}
    for path, _ in listed:
        parts = path[start:].split("/")
        for depth, name in enumerate(parts):
            folders.setdefault("/".join([head.rstrip("/"), *parts[:depth]]), set()).add(name)
    for folder, names in folders.items():
        refuse_table(folder, names, lambda path: cloud_names(buckets, path))
    for path, stamp in listed:
        if stamp is not None and matches(path):
            yield path, stamp


def cloud_names(buckets: Buckets, folder: str) -> list[str]:
    """Return the names in a folder of an object store; none if there is no such folder."""
    return [path.rpartition("/")[2] for path, _ in buckets.entries(folder, deep=False)]


def list_names(filesystem: fs.FileSystem, folder: str) -> list[str]:
    """Return the names in a folder; none if there is no such folder."""
    selector = fs.FileSelector(folder, allow_not_found=True)
    return [each.base_name for each in filesystem.get_file_info(selector)]


def refuse_table(
    folder: str, names: Iterable[str], list_folder: Callable[[str], list[str]]
) -> None:
    """Raise if a folder is a table: its log says which of its files and rows are current."""
    for log in TABLE_LOGS.keys() & set(names):
        if log == "metadata":
            inside = list_folder(f"{folder.rstrip('/')}/{log}")
            if not any(name.endswith(".metadata.json") for name in inside):
                continue
        table = TABLE_LOGS[log]
        raise ValueError(
            f"source must not be the folder of a {table} table, which also holds deleted and old "
            f"rows: {folder} has {log}. Pass the list of its current files instead: "
            f"{FILES_OF_TABLES[table]}"
        )


def is_below(path: str, folders: Sequence[str]) -> bool:
    """Whether a path, with all links followed, is below one of the folders."""
    real = os.path.realpath(path)
    return any(real == each or real.startswith(each.rstrip("/") + "/") for each in folders)


def check_below(path: str, folders: Sequence[str]) -> None:
    """Raise if a path leads out of the folders."""
    if not is_below(path, folders):
        raise ValueError(
            f"source must be given: {path} is a link to {os.path.realpath(path)}, and without it "
            f"an index opens only files below its own folder, {folders[0]}"
        )


def _walk(head: str, deep: bool, folders: Sequence[str] | None) -> Iterator[str]:
    """Yield the paths in a local folder, following links, which must stay below ``folders``."""
    waiting = [(head, {os.path.realpath(head)})]
    while waiting:
        folder, followed = waiting.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            if error.errno in _ABSENT:
                continue
            raise
        refuse_table(folder, [entry.name for entry in entries], os.listdir)
        for entry in entries:
            path, links = f"{folder.rstrip('/')}/{entry.name}", followed
            if entry.is_symlink():
                if folders is not None:
                    check_below(path, folders)
                real = os.path.realpath(path)
                if real in followed or os.path.realpath(folder).startswith(real + "/"):
                    continue  # a circle of links
                links = followed | {real}
            if not entry.is_dir():
                yield path
            elif deep:
                waiting.append((path, links))


def _deep(source: str) -> bool:
    """Whether a source has files in subfolders: a folder has, a pattern may."""
    head, wild = split_pattern(source)
    return not wild or "**" in source or "/" in source[len(head.rstrip("/")) + 1 :]


def _matcher(source: str) -> Callable[[str], bool]:
    """Return which paths in the folder of a source belong to it."""
    head, wild = split_pattern(source)
    if not wild:
        return lambda path: path.endswith(SUFFIXES) and _visible(path[len(head) :])
    pattern = _pattern(source)
    return lambda path: pattern.fullmatch(path) is not None


def _visible(path: str) -> bool:
    """Whether no part of a path is hidden: writers hide files that are not data."""
    return not any(part[:1] in ("_", ".") for part in Path(path).parts)


def check_pattern(source: str) -> None:
    """Raise if a source is not a valid pattern."""
    _matcher(source)


def find_foreign(sources: Sequence[str], paths: Iterable[str]) -> str | None:
    """Return a path that no source names, or None."""
    split = [split_pattern(source) for source in sources]
    named = {head.rstrip("/") for head, wild in split if not wild}
    patterns = [_pattern(source) for source, (_, wild) in zip(sources, split, strict=True) if wild]
    for path in paths:
        above = [path[:at] for at, letter in enumerate(path) if letter == "/"]
        if named.isdisjoint([path, *above]) and not any(each.fullmatch(path) for each in patterns):
            return path
    return None


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
    try:
        return re.compile("".join(out))
    except re.error as error:
        raise ValueError(f"source must be a pattern, not {source!r}: {error}") from None


class Buckets(fs.FileSystemHandler):  # type: ignore[misc]
    """The buckets of one store, with one client for each. For pyarrow, a file system to read."""

    def __init__(self, scheme: str, options: StorageOptions | None) -> None:
        self.scheme, self.options = scheme, options
        self._stores: dict[str, Any] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Buckets):
            return NotImplemented
        return (self.scheme, self.options) == (other.scheme, other.options)

    __hash__ = None  # type: ignore[assignment]

    def _split(self, path: str) -> tuple[Any, str]:
        """Return the client of a bucket, and the key."""
        bucket, _, key = path.partition("/")
        if bucket not in self._stores:
            self._stores[bucket] = open_bucket(self.scheme, bucket, self.options)
        return self._stores[bucket], key

    def name(self, path: str) -> str:
        """Return the URL of a path."""
        return f"{self.scheme}://{path}"

    def stamp(self, path: str) -> Stamp | None:
        """Return the stamp of an object, or None if there is none."""
        store, key = self._split(path.rstrip("/"))
        if not key:
            return None
        check_key(key, self.name(path))
        try:
            with named_errors(self.name(path)):
                return _stamp(store.head(key))
        except FileNotFoundError:
            return None

    def entries(self, folder: str, deep: bool) -> Iterator[tuple[str, Stamp | None]]:
        """Yield the objects in a folder with their stamps, and its folders without, unless deep."""
        store, key = self._split(folder.rstrip("/"))
        if key:
            check_key(key, self.name(folder))
        start = folder.partition("/")[0] + "/"
        with named_errors(self.name(folder)):
            if deep:
                for chunk in store.list(key or None, chunk_size=1000):
                    yield from ((start + each["path"], _stamp(each)) for each in chunk)
                return
            found = store.list_with_delimiter(key or None)
        yield from ((start + each, None) for each in found["common_prefixes"])
        yield from ((start + each["path"], _stamp(each)) for each in found["objects"])

    def open_input_file(self, path: str) -> pa.PythonFile:
        """Open an object to read it."""
        store, key = self._split(path)
        return pa.PythonFile(_Reader(store, key, self.name(path)), mode="r")

    open_input_stream = open_input_file

    def get_type_name(self) -> str:
        """Return the name of the file system."""
        return "obstore"

    def normalize_path(self, path: str) -> str:
        """Return the path."""
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[fs.FileInfo]:
        """Return which paths are objects, and their sizes."""
        found = []
        for path in paths:
            stamp = self.stamp(path)
            kind = fs.FileType.NotFound if stamp is None else fs.FileType.File
            found.append(fs.FileInfo(path, kind, size=None if stamp is None else stamp.size))
        return found

    def _unsupported(self, *arguments: Any, **options: Any) -> NoReturn:
        raise NotImplementedError("files of an index are only read")

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = _unsupported
    delete_root_dir_contents = delete_file = move = copy_file = _unsupported
    open_output_stream = open_append_stream = _unsupported


def _stamp(described: Any) -> Stamp:
    time = int(described["last_modified"].timestamp() * 1000) * 1_000_000
    return Stamp(int(described["size"]), time, tag=described["e_tag"])


class _Reader:
    """An object as pyarrow reads Python files: each read is one request."""

    closed = False

    def __init__(self, store: Any, key: str, name: str) -> None:
        self._store, self._key, self._name, self._at = store, key, name, 0
        with named_errors(name):
            self._size = int(store.head(key)["size"])

    def read(self, size: int = -1) -> bytes:
        """Read bytes from the position on."""
        end = self._size if size < 0 else min(self._at + size, self._size)
        if end <= self._at:
            return b""
        with named_errors(self._name):
            content = bytes(self._store.get_range(self._key, start=self._at, end=end))
        self._at += len(content)
        return content

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def seekable(self) -> bool:
        """Whether the position can be set."""
        return True

    def close(self) -> None:
        """Do nothing."""
