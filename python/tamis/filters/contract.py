"""The contract: what every filter has, whatever its structure."""

from __future__ import annotations

import secrets
from typing import Any, ClassVar, Self, cast

from tamis import _native
from tamis._files import save_whole
from tamis._types import FilePath
from tamis.errors import IncompatibleError


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

    The attributes say what a filter can do: take keys in after it was built (``inserts``),
    give them back (``deletes``), be merged with another (``merges``), refuse keys that it has no
    room for instead of erring more (``bounded``), and whether it never denies a key that is there
    (``one_sided``).
    """

    __slots__ = ()

    # Of a stack these depend on its layers, so they are asked of an instance.
    inserts: bool = False
    deletes: bool = False
    bounded: bool = False
    merges: ClassVar[bool] = False
    one_sided: ClassVar[bool] = True

    def __or__(self, other: Any) -> Self:
        """Merge; `IncompatibleError` where the two filters cannot be."""
        if isinstance(other, Contract):
            one, two = type(self).__name__, type(other).__name__
            raise IncompatibleError(f"a {one} and a {two} filter do not merge")
        return NotImplemented

    @classmethod
    def _built(cls, distinct: _native.Distinct, **arguments: Any) -> _native.Kernel:
        """Plan and build the kernel of distinct keys, with the arguments of `build`."""
        raise NotImplementedError


def _reopened(cls: type[Saved], data: bytes) -> Saved:
    """Make a filter, or a function, of its pickled bytes; the class may be a user's own."""
    return cls._of(_native.open_bytes(data, None))


def random_seed(seed: int | None, key: bytes | None) -> int:
    """Return the seed of a filter that faces strangers: random unless it, or a key, is given."""
    if seed is not None:
        return seed
    return 0 if key is not None else secrets.randbits(64)
