"""Where the file of an index is, on this machine or in an object store; and pickles, its path."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tamis._checks import check_path
from tamis._files import save_atomically
from tamis._objects import Object, check_local, is_object, locate, storage_of
from tamis._ranges import CACHE, ObjectFile
from tamis._types import FilePath
from tamis.collection.origin import check_picklable
from tamis.planning.collection.curves import Floats

if TYPE_CHECKING:
    from tamis.parquet.index import SkippingIndex


@dataclass
class Location:
    """The path of an index, which may be an object of a store.

    ``tag`` is the ETag of the object when this process opened or wrote it. An object with another
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
        check_local(path, filesystem, "index_filesystem")
        return cls(check_path(path))

    @classmethod
    def of_new(
        cls, path: FilePath | None, filesystem: Any, storage_options: Mapping[str, str] | None
    ) -> Location | None:
        """Find the file or object of a new index, or None if it has no path."""
        return None if path is None else cls.of(path, storage_of(filesystem, storage_options))

    @property
    def folder(self) -> str:
        """The folder of the file or object; without the scheme of a URL."""
        if self.target is not None:
            return self.target.path.rpartition("/")[0]
        return os.path.dirname(os.path.abspath(self.path))

    def open(self) -> str | ObjectFile:
        """Return the path, or the object opened for reading."""
        if self.target is None:
            return self.path
        file = ObjectFile(self.target, self.cache)
        self.tag = file.tag
        return file

    @contextmanager
    def written(self, write: Callable[[int], None]) -> Iterator[str]:
        """Replace the file or object as a whole, and yield the path of a file to open again."""
        if self.target is None:
            save_atomically(self.path, write)
            yield self.path
            return
        with tempfile.NamedTemporaryFile(prefix=".tamis-") as file:
            write(file.fileno())
            self.tag = self.target.upload(file.name, self.tag)
            yield file.name


def is_hybrid(hybrid: bool | None, location: Location | None) -> bool:
    """Whether to read the rest of filters: by default, if the index is on this machine."""
    return location is None or location.target is None if hybrid is None else hybrid


def pickled(index: SkippingIndex) -> tuple[Any, ...]:
    """Return the content of a pickle of an index: its path, its sources, and how it was opened."""
    state, location, file_set = index._state, index._location, index._state.file_set
    if location is None or index._rewrite:
        raise TypeError(
            "an index must be saved before it is pickled, because the pickle only has its path: "
            "build it with a path, or call refresh() if it is damaged"
        )
    check_picklable(location.filesystem, "an index")
    source: list[str] | None = None  # files below the folder of the index need none
    if file_set.buckets is not None:
        check_picklable(file_set.buckets.options, "an index of files")
        source = [file_set.buckets.name(each) for each in file_set.sources]
    elif not file_set.local:
        check_picklable(file_set.filesystem, "an index of files")
    elif file_set.folders is None:
        source = list(file_set.sources)
    options = {
        "source": source,
        "cache": location.cache,
        "hybrid": state.collection is not None and state.collection.hybrid,
        "immutable": file_set.immutable,
        "recheck": index._watch.recheck,
        "threads": index._threads,
    }
    path = location.path if location.target else os.path.abspath(location.path)
    return _reopened, (type(index), path, options, index._memory, state.utility)


def _reopened(
    cls: type[SkippingIndex],
    path: str,
    options: dict[str, Any],
    memory: int | dict[str, int] | None,
    utility: Floats,
) -> SkippingIndex:
    index = cls.open(path, memory=memory, **options)
    if len(index) == len(utility) and (index.utility != utility).any():
        index.allocate(memory=memory, utility=utility)
    return index
