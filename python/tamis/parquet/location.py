"""Where the file of an index is: on this machine, or in an object store."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tamis._checks import check_path
from tamis._files import save_whole
from tamis._objects import Object, is_object, locate, public_name, save_object, upload
from tamis._ranges import CACHE, ObjectFile
from tamis._types import FilePath


@dataclass
class Location:
    """The path of an index, which may be an object of a store.

    ``tag`` is that of the object when this process opened or wrote it. An object that has another
    one was replaced by another process, and is not overwritten.
    """

    path: str
    filesystem: Any = None
    cache: int = CACHE
    target: Object | None = None
    tag: str | None = None

    @classmethod
    def of(cls, path: FilePath, filesystem: Any = None, cache: int = CACHE) -> Location:
        """Find the file or object."""
        if is_object(path, filesystem):
            return cls(path, filesystem, cache, locate(path, filesystem))
        if filesystem is not None:
            raise TypeError(f"path must be a str with index_filesystem, not {path!r}")
        return cls(check_path(path))

    @property
    def name(self) -> str:
        """The path, for messages."""
        return public_name(self.path)

    @property
    def folder(self) -> str:
        """The folder of the file or object; without the scheme of a URI."""
        if self.target is not None:
            return self.target.path.rpartition("/")[0]
        return os.path.dirname(os.path.abspath(self.path))

    def open(self) -> str | ObjectFile:
        """Return what to open."""
        if self.target is None:
            return self.path
        file = ObjectFile(self.target, self.cache)
        self.tag = file.tag
        return file

    @contextmanager
    def written(self, write: Callable[[int], None]) -> Iterator[str]:
        """Replace the file or object as a whole, and yield the path of a file to open again."""
        if self.target is None:
            save_whole(self.path, write)
            yield self.path
            return
        with tempfile.NamedTemporaryFile(prefix=".tamis-") as file:
            write(file.fileno())
            upload(file.name, self.target, self.tag)
            after = self.target.info()
            self.tag = None if after is None else after.tag
            yield file.name

    @staticmethod
    def save(path: FilePath, filesystem: Any, write: Callable[[int], None]) -> None:
        """Write another file or object as a whole."""
        other = Location.of(path, filesystem)
        if other.target is None:
            save_whole(other.path, write)
        else:
            save_object(other.target, write)
