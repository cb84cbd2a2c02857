"""The plain filters: one contract, one module per structure.

``tamis.planning`` chooses sizes, the native kernels hold the bits, and the classes here are the
names that users know.
"""

from __future__ import annotations

import os
from typing import Any

from tamis import _native
from tamis.filters.bloom import Bloom
from tamis.filters.contract import Contract, Saved
from tamis.filters.quotient import Quotient
from tamis.filters.ribbon import Ribbon
from tamis.filters.static_function import StaticFunction

__all__ = [
    "Bloom",
    "Contract",
    "Quotient",
    "Ribbon",
    "Saved",
    "StaticFunction",
    "from_bytes",
    "load",
]

# By the kind that a file names; see docs/format.md.
_CLASSES: dict[int, type[Saved]] = {1: Bloom, 2: Quotient, 5: Ribbon, 6: StaticFunction}


def from_bytes(data: bytes | bytearray | memoryview, *, key: bytes | None = None) -> Any:
    """Open a filter from the bytes of `to_bytes`; `FormatError` if any of them changed.

    >>> "ada" in from_bytes(Bloom.build(["ada"], fpr=0.01).to_bytes())
    True
    """
    return _public(_native.open_bytes(data, key))


def load(path: str | os.PathLike[str], *, mmap: bool = False, key: bytes | None = None) -> Any:
    """Open a filter from a file that `save` wrote; `FormatError` if it is damaged.

    With ``mmap`` it answers from the mapped file: checked as strictly, but shared with other
    processes and not copied. Insertions stay private to this process.
    """
    return _public(_native.open_file(os.fspath(path), mmap, key))


def _public(kernel: _native.Kernel) -> Saved:
    return _CLASSES[kernel.kind]._of(kernel)
