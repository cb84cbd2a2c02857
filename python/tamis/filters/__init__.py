"""The public filter classes, one module per kind.

`tamis.planning` chooses the sizes, and the native kernels store the bits.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tamis import _native
from tamis._checks import check_path
from tamis._objects import check_local, is_object, storage_of
from tamis._types import FilePath
from tamis.errors import FormatError
from tamis.planning.kinds import BY_NUMBER, KINDS

if TYPE_CHECKING:
    from tamis._saved import Saved
    from tamis.filters.adaptive_cuckoo import AdaptiveCuckoo
    from tamis.filters.adaptive_stacked import AdaptiveStacked
    from tamis.filters.bloom import Bloom
    from tamis.filters.contract import Filter
    from tamis.filters.cuckoo import Cuckoo
    from tamis.filters.fuse import Fuse
    from tamis.filters.learned_bloom import LearnedBloom
    from tamis.filters.quotient import Quotient
    from tamis.filters.ribbon import Ribbon
    from tamis.filters.sharded import Sharded, split
    from tamis.filters.stable import StableBloom
    from tamis.filters.stable_learned import StableLearned
    from tamis.filters.stacked import Stacked
    from tamis.filters.static_function import StaticFunction
    from tamis.filters.telescoping import Extending, Telescoping
    from tamis.filters.windowed import Windowed

__all__ = [
    "AdaptiveCuckoo",
    "AdaptiveStacked",
    "Bloom",
    "Cuckoo",
    "Extending",
    "Filter",
    "Fuse",
    "LearnedBloom",
    "Quotient",
    "Ribbon",
    "Sharded",
    "StableBloom",
    "StableLearned",
    "Stacked",
    "StaticFunction",
    "Telescoping",
    "Windowed",
    "from_bytes",
    "load",
    "split",
]

_MODULES = {
    "AdaptiveCuckoo": "tamis.filters.adaptive_cuckoo",
    "AdaptiveStacked": "tamis.filters.adaptive_stacked",
    "Bloom": "tamis.filters.bloom",
    "Cuckoo": "tamis.filters.cuckoo",
    "Extending": "tamis.filters.telescoping",
    "Filter": "tamis.filters.contract",
    "Fuse": "tamis.filters.fuse",
    "LearnedBloom": "tamis.filters.learned_bloom",
    "Model": "tamis.learned.classifier",
    "Quotient": "tamis.filters.quotient",
    "Ribbon": "tamis.filters.ribbon",
    "Sharded": "tamis.filters.sharded",
    "StableBloom": "tamis.filters.stable",
    "StableLearned": "tamis.filters.stable_learned",
    "Stacked": "tamis.filters.stacked",
    "StaticFunction": "tamis.filters.static_function",
    "Telescoping": "tamis.filters.telescoping",
    "Windowed": "tamis.filters.windowed",
    "split": "tamis.filters.sharded",
}
"""The module of each name, imported when the name is first used."""


class _Classes(Mapping[str, "type[Saved]"]):
    """The class of each kind, imported when it is looked up."""

    def __getitem__(self, kind: str) -> type[Saved]:
        name = KINDS[kind].filter
        found: type[Saved] = getattr(importlib.import_module(_MODULES[name]), name)
        return found

    def __iter__(self) -> Iterator[str]:
        return (kind.name for kind in KINDS.values() if kind.filter in _MODULES)

    def __len__(self) -> int:
        return sum(1 for _ in self)


CLASSES: Mapping[str, type[Saved]] = _Classes()
"""The class of each kind in `tamis.planning.kinds`."""

if not TYPE_CHECKING:  # else a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'tamis.filters' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_Expected = TypeVar("_Expected", bound="Saved")


@overload
def from_bytes(data: bytes | bytearray | memoryview, *, key: bytes | None = None) -> Filter: ...
@overload
def from_bytes(
    data: bytes | bytearray | memoryview, *, key: bytes | None = None, expect: type[_Expected]
) -> _Expected: ...
def from_bytes(
    data: bytes | bytearray | memoryview,
    *,
    key: bytes | None = None,
    expect: type[Saved] | None = None,
) -> Saved:
    """Open a filter from the bytes of `to_bytes`; raise `FormatError` if they are damaged.

    With ``expect``, a class such as `Ribbon`, `StaticFunction` or `Filter`, `FormatError` is also
    raised if the bytes are of another class, and a type checker knows the class of the result.

    >>> "ada" in from_bytes(Bloom.build(["ada"], fpr=0.01).to_bytes())
    True
    """
    return _public(_native.open_bytes(data, key), expect)


@overload
def load(
    path: FilePath,
    *,
    mmap: bool = False,
    key: bytes | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, str] | None = None,
) -> Filter: ...
@overload
def load(
    path: FilePath,
    *,
    mmap: bool = False,
    key: bytes | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, str] | None = None,
    expect: type[_Expected],
) -> _Expected: ...
def load(
    path: FilePath,
    *,
    mmap: bool = False,
    key: bytes | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, str] | None = None,
    expect: type[Saved] | None = None,
) -> Saved:
    """Open a filter from a file that `save` wrote; raise `FormatError` if it is damaged.

    ``expect`` is explained at `from_bytes`. With ``mmap``, the file is memory-mapped: it is
    verified in the same way, but not copied, and its memory is shared between processes. Insertions
    stay private to this process. While the file is mapped, it may be replaced (as `save` does) or
    deleted, but never written to in place or truncated: answers would be wrong, or the process
    would end with ``SIGBUS``.

    ``path`` may be a URL such as "s3://bucket/key", opened with ``storage_options``, or a path in a
    ``filesystem`` of fsspec or pyarrow. A filter is read as a whole, because a query may need any
    of its bits; with ``mmap``, to a temporary file.
    """
    filesystem = storage_of(filesystem, storage_options)
    try:
        if is_object(path, filesystem):
            return _public(_open_object(path, filesystem, mmap, key), expect)
        check_local(path, filesystem)
        return _public(_native.open_file(check_path(path), mmap, key), expect)
    except FormatError as error:
        raise FormatError(f"{os.fsdecode(path)}: {error}") from None


def open_part(path: str, offset: int, key: bytes | None, *, mapped: bool) -> Any:
    """Open the filter that begins at an offset of a file, a multiple of 64, and ends with it."""
    return _public(_native.open_file(path, mapped, key, offset), None)


def _open_object(path: str, filesystem: Any, mmap: bool, key: bytes | None) -> _native.Handle:
    import tempfile

    from tamis import _ranges

    file = _ranges.open_object(path, filesystem)
    _native.FrameHeader.size(file.read_at(0, min(file.size, 64)))  # refuses anything but a frame
    if not mmap:
        return _native.open_bytes(_ranges.read_all(file), key)
    with tempfile.NamedTemporaryFile(prefix=".tamis-") as copy:
        file.copy_to(copy.fileno(), file.size)
        return _native.open_file(copy.name, True, key)


def _public(handle: _native.Handle, expect: type[Saved] | None) -> Saved:
    found = CLASSES[BY_NUMBER[handle.kind].name]
    if expect is not None and not issubclass(found, expect):
        raise FormatError(f"expected {expect.__name__}, not {found.__name__}")
    return found._of(handle)
