"""The data files of an index in an object store: listed by obstore, read by pyarrow through it.

A path is a bucket and a key, as ``bucket/folder/a.parquet``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyarrow import fs

from tamis._objects import StorageOptions, check_key, named_errors, open_bucket
from tamis.parquet.sources import Stamp


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
