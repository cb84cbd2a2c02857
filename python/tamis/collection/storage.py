"""Full filters in a file, by name, for `Collection` and `tamis.text.SearchIndex`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._checks import check_int, check_path, one_of, shown
from tamis._files import name_in_errors, open_regular
from tamis._objects import is_object, locate, save_path
from tamis._ranges import CACHE, ObjectFile, open_object
from tamis._types import FilePath, Keys
from tamis.errors import FormatError
from tamis.planning import ribbon
from tamis.planning.collection import sliced
from tamis.planning.collection.allocation import PREFIX_KINDS, bloom_size
from tamis.planning.collection.curves import Floats, Segmented, Truncated, Weights

Item = TypeVar("Item")

_NO_LIMIT = 2**62
"""Larger than any number of sets."""

Hashed: TypeAlias = _native.Distinct | _native.Full
"""Hashed keys, or full filters (see `full_filter`)."""

Sets: TypeAlias = Mapping[str, Keys] | Iterable[tuple[str, Keys | Hashed]]
"""Keys by name, as a mapping or pairs."""


def create_filters(
    path: FilePath | None,
    seed: int,
    key: bytes | None,
    texts: _native.TextOptions | None = None,
    filesystem: Any = None,
) -> _native.Filters:
    """Create an empty set of filters in a temporary file, in the folder of ``path`` if it is local.

    The native object duplicates the descriptor, so the file lives as long as the object.
    """
    folder = None
    if path is not None and not is_object(path, filesystem):
        folder = Path(os.path.realpath(check_path(path))).parent
    with tempfile.TemporaryFile(prefix=".tamis-", dir=folder) as spill:
        return _native.Filters(spill.fileno(), seed, key, texts)


def open_filters(
    path: FilePath | ObjectFile,
    key: bytes | None,
    *,
    texts: bool = False,
    offset: int = 0,
    length: int | None = None,
    filesystem: Any = None,
    cache: int = CACHE,
) -> tuple[_native.Filters, Floats]:
    """Open a collection or text index in a file; return its full filters and utilities."""
    if isinstance(path, ObjectFile) or is_object(path, filesystem):
        return _open_object(open_object(path, filesystem, cache), key, texts, offset, length)
    with (
        open_regular(path) as file,
        tempfile.TemporaryFile(prefix=".tamis-") as spill,
        path_in_errors(path),
    ):
        return _native.Filters.open(file.fileno(), spill.fileno(), key, texts, offset, length)


def _open_object(
    file: ObjectFile, key: bytes | None, texts: bool, offset: int, length: int | None
) -> tuple[_native.Filters, Floats]:
    """Copy everything before the bits of the filters, which are read when they are needed."""
    length = max(file.size - offset, 0) if length is None else length
    with (
        tempfile.TemporaryFile(prefix=".tamis-") as copy,
        tempfile.TemporaryFile(prefix=".tamis-") as spill,
        path_in_errors(file),
    ):
        start = file.read_at(offset, min(length, 4096))
        before = _native.Filters.bits_offset(start, length)
        file.copy_to(copy.fileno(), offset + max(before, len(start)))
        return _native.Filters.open(copy.fileno(), spill.fileno(), key, texts, offset, length, file)


def save_filters(
    path: FilePath, filters: _native.Filters, utility: Weights, filesystem: Any = None
) -> None:
    """Write full filters and utilities to a file, atomically."""
    numbers = utility.astype(np.float64)
    save_path(path, lambda descriptor: filters.write(descriptor, numbers), filesystem)


def save_and_reopen(
    path: FilePath | None,
    filters: _native.Filters,
    utility: Weights,
    key: bytes | None,
    filesystem: Any = None,
) -> _native.Filters:
    """Write new filters to a file and open it, so that their directory is on disk.

    Without ``path``, or if that is an object, the file is temporary.
    """
    texts = filters.texts is not None
    if path is not None and not is_object(path, filesystem):
        save_filters(path, filters, utility, filesystem)
        return open_filters(path, key, texts=texts)[0]
    with tempfile.NamedTemporaryFile(prefix=".tamis-") as file, tempfile.TemporaryFile() as spill:
        filters.write(file.fileno(), utility.astype(np.float64))
        if path is not None:
            assert isinstance(path, str)
            locate(path, filesystem).upload(file.name)
        return _native.Filters.open(file.fileno(), spill.fileno(), key, texts)[0]


def is_local(path: FilePath | ObjectFile | None, filesystem: Any) -> bool:
    """Whether filters are in a local file, where reading the rest of a filter is fast."""
    return not (path is None or isinstance(path, ObjectFile) or is_object(path, filesystem))


@contextmanager
def path_in_errors(path: FilePath | ObjectFile) -> Iterator[None]:
    """Put the path of a file that is damaged or cannot be read into the error."""
    name = path.name if isinstance(path, ObjectFile) else os.fsdecode(path)
    try:
        with name_in_errors(name):
            yield
    except FormatError as error:
        raise FormatError(f"{name}: {error}") from None


def pairs(
    items: Mapping[str, Item] | Iterable[tuple[str, Item]], what: str
) -> Iterator[tuple[str, Item]]:
    """Yield named items, given as a mapping or as pairs."""
    wrong: object = items
    if isinstance(items, Iterable):
        for wrong in items.items() if isinstance(items, Mapping) else items:
            if not (isinstance(wrong, tuple | list) and len(wrong) == 2):
                break
            yield wrong[0], wrong[1]
        else:
            return
    raise TypeError(
        f"{what}s must be a mapping from names, or pairs of a name and a {what}, "
        f"not {shown(wrong)} ({type(wrong).__name__})"
    )


def unknown_name(name: str, names: Sequence[str], argument: str) -> KeyError:
    """Return the error for a name that is not in the collection."""
    if not names:
        return KeyError(f"{argument} must be empty, as the collection has no sets, not {name!r}")
    known = f"among the {len(names):,} names, such as {names[0]!r}"
    return KeyError(f"{argument} must be {known}, not {name!r}")


class Names(Sequence[str]):
    """The names of sets, by number or by an array of numbers."""

    def __init__(self, filters: _native.Filters) -> None:
        self._filters = filters

    def __len__(self) -> int:
        return len(self._filters)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice | npt.ArrayLike) -> Any: ...
    def __getitem__(self, index: Any) -> Any:
        """Return a name, or an array of names."""
        ids = np.arange(len(self))[index]
        if np.ndim(ids) == 0:
            return self._filters.name(int(ids))
        names = np.empty(len(ids), object)
        names[:] = [self._filters.name(id) for id in ids.tolist()]
        return names

    def __iter__(self) -> Iterator[str]:
        return iter(self._filters.names())

    def __repr__(self) -> str:
        return f"<{len(self):,} names>"

    def find(self, name: str, argument: str = "name") -> int:
        """Return the number of a name; `KeyError` if there is none."""
        if not isinstance(name, str):
            raise TypeError(f"{argument} must be a str, not {shown(name)} ({type(name).__name__})")
        id = self._filters.find(name)
        if id is None:
            raise unknown_name(name, self, argument)
        return id

    def ids(self, sets: Iterable[str] | npt.NDArray[np.integer[Any]], argument: str) -> list[int]:
        """Return the numbers of sets that are given by name or number."""
        if not isinstance(sets, Iterable) or isinstance(sets, str):
            raise TypeError(f"{argument} must be a list of names or numbers, not {sets!r}")
        try:
            ids = [
                self.find(each, argument) if isinstance(each, str) else int(each) for each in sets
            ]
        except (TypeError, ValueError):
            raise TypeError(
                f"{argument} must be a list of names or numbers, not {shown(sets)}"
            ) from None
        if ids and not 0 <= min(ids) <= max(ids) < len(self):
            raise ValueError(f"{argument} must have numbers from 0 to {len(self) - 1}")
        return ids

    def check_new(
        self, items: Mapping[str, Item] | Iterable[tuple[str, Item]], what: str
    ) -> Iterator[tuple[str, Item]]:
        """Yield named items to be added; raise if a name is not a str, or is taken.

        Each must be added before the next is requested.
        """
        for name, item in pairs(items, what):
            if not isinstance(name, str):
                raise TypeError(f"name must be a str, not {name!r} of type {type(name).__name__}")
            if self._filters.find(name) is not None:
                raise ValueError(f"name must be new, but there is already a {what} named {name!r}")
            yield name, item


class FullSize(NamedTuple):
    """The size of a full filter, as `_native.Full` takes it."""

    kind: str
    hashes: int
    bits: int = 0
    levels: Sequence[int] = ()


def full_size(keys: int, kind: str, fpr: float) -> FullSize:
    """Size the full filter of a set; kind "auto" is the smaller of ribbon and segmented."""
    if keys == 0:
        return FullSize("empty", 0)
    if kind == "sliced":
        length, segments = sliced.filter_size(keys, fpr)
        return FullSize("segmented", segments, length * segments)
    # Whole columns: collections cut them where it is worth most.
    size = ribbon.size(keys, fpr=fpr).in_whole_columns()
    bits, hashes = _bloom_size(keys, fpr, Truncated if kind == "truncated" else Segmented)
    if kind == "auto":
        kind = "ribbon" if size.bits <= bits else "segmented"
    if kind == "ribbon":
        return FullSize(kind, size.columns, levels=size.levels)
    return FullSize(kind, hashes, bits)


@lru_cache(maxsize=65536)
def _bloom_size(keys: int, fpr: float, kind: type[Segmented] | type[Truncated]) -> tuple[int, int]:
    bits, hashes = bloom_size(np.array([keys], np.int64), fpr, kind)
    return max(int(bits[0]), int(hashes[0])), int(hashes[0])


def full_filter(keys: _native.Distinct, kind: str, fpr: float) -> _native.Full:
    """Build the full filter of a set; several threads may do so at once."""
    return _native.Full(keys, *full_size(len(keys), kind, fpr))


def add_sets(
    filters: _native.Filters, sets: Sets, kind: str, fpr: float, key: bytes | None
) -> None:
    """Add the full filters of named sets."""
    one_of("kind", kind, ("auto", "sliced", *PREFIX_KINDS))
    for name, keys in Names(filters).check_new(sets, "set"):
        if not isinstance(keys, _native.Distinct | _native.Full):
            keys = _native.Distinct(keys, filters.seed or 0, key)
        filters.add(
            name, full_filter(keys, kind, fpr) if isinstance(keys, _native.Distinct) else keys
        )


def read_limit(name: str, limit: int | None) -> int:
    """Return a limit as a number; None is no limit."""
    if limit is None:
        return _NO_LIMIT
    return check_int(name, limit, _NO_LIMIT)


class BudgetError(ValueError):
    """A budget that is too small for sizes and weights alone."""


def filter_bits(budget: int, overhead: int, what: str) -> int:
    """Return the bits that a budget in bytes leaves for filters."""
    if budget < overhead:
        raise BudgetError(
            f"budget must be at least {overhead} bytes, the sizes and weights of {what}, "
            f"not {budget}"
        )
    return 8 * (budget - overhead)
