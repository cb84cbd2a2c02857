"""The contract: what every structure and every filter has, whatever it is made of."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from tamis import _native


class Saved(_native.Stored):
    """What has a size and is saved, copied and pickled; the base of each public class."""

    __slots__ = ()

    @property
    def bits_per_key(self) -> float:
        """The memory per key: of the keys it was made for, or of those it holds if more."""
        return self.size_in_bits / max(len(self), self.capacity, 1)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the filter to a file: whole and flushed under this name, or not at all."""
        target = Path(path)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                self._write(descriptor)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        directory = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

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
        from tamis.filters import from_bytes

        return from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        return (
            f"<tamis.{type(self).__name__}: {len(self):,} of {self.capacity:,} keys, "
            f"{self.size_in_bits:,} bits, {self._told()}>"
        )

    def _told(self) -> str:
        """Say in a few words how this filter differs from others of its class."""
        raise NotImplementedError

    @classmethod
    def _of(cls, kernel: _native.Kernel) -> Self:
        """Make the public filter around a kernel."""
        native: Any = next(base for base in cls.__mro__ if base.__module__ == _native.__name__)
        return cast(Self, native.__new__(cls, kernel))


class Contract(_native.Filter, Saved):
    """What every filter has beside the native methods.

    The class attributes say what a filter can do: take keys in after it was built (``inserts``),
    give them back (``deletes``), be merged with another (``merges``), and whether it never denies
    a key that is there (``one_sided``).
    """

    __slots__ = ()

    inserts: ClassVar[bool] = False
    deletes: ClassVar[bool] = False
    merges: ClassVar[bool] = False
    one_sided: ClassVar[bool] = True
