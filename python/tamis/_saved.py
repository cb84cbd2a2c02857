"""Objects that can be saved to a file: filters, static functions and classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self, cast

from tamis import _native
from tamis._format import facts_html, format_rate, format_size
from tamis._objects import save_path, storage_of
from tamis._types import FilePath


class Saved(_native.Stored):
    """An object that has a size and can be saved, copied and pickled."""

    __slots__ = ()

    @property
    def bits_per_key(self) -> float:
        """Bits per key of the capacity, or per stored key if there are more."""
        return self.size_in_bits / max(len(self), self.capacity, 1)

    def save(
        self,
        path: FilePath,
        *,
        filesystem: Any = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Write the filter to a file, atomically: complete and flushed, or not at all.

        ``path`` may be a URL such as "s3://bucket/key", opened with ``storage_options``, or a path
        in a ``filesystem`` of fsspec or pyarrow.
        """
        save_path(path, self._write, storage_of(filesystem, storage_options))

    def copy(self) -> Self:
        """Return an independent copy."""
        return self._of(self._copied())

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.seed is None:
            raise TypeError(
                "a filter with a secret key cannot be pickled, because the pickle would contain "
                "the key; use to_bytes() and tamis.from_bytes(data, key=...)"
            )
        return _reopened, (type(self), self.to_bytes())

    def __repr__(self) -> str:
        return (
            f"<tamis.{type(self).__name__}: {len(self):,} of {self.capacity:,} keys, "
            f"{self.size_in_bits:,} bits, {self._describe()}>"
        )

    def _repr_html_(self) -> str:
        facts = {
            "keys": f"{len(self):,} of {self.capacity:,}",
            "size": f"{format_size(self.size_in_bits)}, {self.bits_per_key:.2f} bits per key",
        }
        for name, attribute in (
            ("expected false-positive rate", "expected_fpr"),
            ("bound under any workload", "fpr_bound"),
        ):
            if hasattr(self, attribute):
                facts[name] = format_rate(getattr(self, attribute))
        facts["structure"] = self._describe()
        facts["hash"] = "secret key" if self.seed is None else f"seed {self.seed}"
        return facts_html(f"tamis.{type(self).__name__}", facts)

    _kind: ClassVar[str]
    """The name of the kind in `tamis.planning.kinds`."""

    def _describe(self) -> str:
        """Describe the parameters of this filter, for its repr."""
        raise NotImplementedError

    @classmethod
    def _of(cls, handle: _native.Handle) -> Self:
        """Create the public object for a kernel."""
        native: Any = next(base for base in cls.__mro__ if base.__module__ == _native.__name__)
        return cast(Self, native.__new__(cls, handle))


def _reopened(cls: type[Saved], data: bytes) -> Saved:
    """Create an object from its pickled bytes; the class may be a user-defined subclass."""
    return cls._of(_native.open_bytes(data, None))
