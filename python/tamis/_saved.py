"""What is saved as one file: filters, static functions and trained classifiers."""

from __future__ import annotations

from typing import Any, ClassVar, Self, cast

from tamis import _native
from tamis._files import save_whole
from tamis._types import FilePath


class Saved(_native.Stored):
    """What has a size and is saved, copied and pickled; the base of each public class."""

    __slots__ = ()

    @property
    def bits_per_key(self) -> float:
        """The memory per key: of the keys it was made for, or of those it holds if more."""
        return self.size_in_bits / max(len(self), self.capacity, 1)

    def save(self, path: FilePath) -> None:
        """Write the filter to a file: whole and flushed under this name, or not at all."""
        save_whole(path, self._write)

    def copy(self) -> Self:
        """Return a filter of its own with the same content."""
        return self._of(self._copied())

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.seed is None:
            raise TypeError(
                "a filter with a secret key is not pickled, since the key would be; "
                "use to_bytes() and tamis.from_bytes(data, key=...)"
            )
        return _reopened, (type(self), self.to_bytes())

    def __repr__(self) -> str:
        return (
            f"<tamis.{type(self).__name__}: {len(self):,} of {self.capacity:,} keys, "
            f"{self.size_in_bits:,} bits, {self._describe()}>"
        )

    _kind: ClassVar[str]
    """The name of its row in `tamis.planning.kinds`."""

    def _describe(self) -> str:
        """Say in a few words how this filter differs from others of its class."""
        raise NotImplementedError

    @classmethod
    def _of(cls, handle: _native.Handle) -> Self:
        """Make the public object around a kernel."""
        native: Any = next(base for base in cls.__mro__ if base.__module__ == _native.__name__)
        return cast(Self, native.__new__(cls, handle))


def _reopened(cls: type[Saved], data: bytes) -> Saved:
    """Make a filter, or a function, of its pickled bytes; the class may be a user's own."""
    return cls._of(_native.open_bytes(data, None))
