"""Names for the types of arguments."""

import datetime
import os
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

SingleKey: TypeAlias = str | bytes | int | np.integer[Any] | datetime.date | np.datetime64 | Decimal
"""One key that is not a tuple; a `datetime.datetime` is a `datetime.date`."""

Key: TypeAlias = SingleKey | tuple[SingleKey, ...]
"""One key."""


class ArrowArray(Protocol):
    """Anything with Arrow's PyCapsule interface for an array."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """Export the schema and the array."""
        ...


class ArrowStream(Protocol):
    """Anything with Arrow's PyCapsule interface for a stream."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the stream."""
        ...


Keys: TypeAlias = (
    Iterable[str]
    | Iterable[bytes]
    | Iterable[int]
    | Iterable[datetime.date]
    | Iterable[Decimal]
    | Iterable[tuple[SingleKey, ...]]
    | npt.NDArray[Any]
    | ArrowArray
    | ArrowStream
)
"""Many keys: a list or other iterable, a NumPy array, an Arrow column or table."""

Time: TypeAlias = float | datetime.date | datetime.timedelta | np.datetime64 | np.timedelta64
"""A time: seconds, or a timestamp, which is UTC if it has no time zone."""

Times: TypeAlias = Time | Iterable[Time] | npt.NDArray[Any] | ArrowArray | ArrowStream
"""One time for all keys, or one for each."""

FilePath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""Where a file is."""


class Remote(Protocol):
    """The stored hashes, as rows (high half, low half), insertions under way included."""

    def run(self, low: int, high: int, /) -> npt.NDArray[np.uint64]:
        """Return the hashes whose first word is from ``low`` to ``high``, with repetitions."""
        ...

    def scan(self) -> Iterable[npt.NDArray[np.uint64]]:
        """Return all of them, in parts."""
        ...
