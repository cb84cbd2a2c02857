"""The plain filters: one contract, one class per structure.

``tamis.planning`` chooses sizes, the native kernels hold the bits, and the classes here are the
names that users know.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._types import Key, Keys
from tamis.planning import bloom as bloom_planning
from tamis.planning import quotient as quotient_planning
from tamis.planning.arguments import check_capacity

Layout = Literal["blocked", "standard", "segmented"]


class Contract(_native.Filter):
    """What every filter has beside the native methods; the base of each public class.

    The class attributes say what a filter can do: take keys in after it was built (``inserts``),
    give them back (``deletes``), be merged with another (``merges``), and whether it never denies
    a key that is there (``one_sided``).
    """

    __slots__ = ()

    inserts: ClassVar[bool] = False
    deletes: ClassVar[bool] = False
    merges: ClassVar[bool] = False
    one_sided: ClassVar[bool] = True

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


class Bloom(_native.Inserting, Contract):
    """A Bloom filter: insertions, unions and intersections, at about 1.5 bits per halved rate.

    ``layout="blocked"`` keeps a key's bits in one cache line and is the fastest;
    ``"standard"`` spreads them over the whole filter and is the smallest for a rate;
    ``"segmented"`` is as small and can be cut to a prefix, see `truncate`.

    >>> f = Bloom(capacity=1000, fpr=0.01)
    >>> f.add("ada"); f.update(["grace", "edsger"])
    >>> "ada" in f, len(f)
    (True, 3)
    >>> f.contains(["ada", "alan", "grace"])
    array([ True, False,  True])

    References: Bloom 1970; Putze, Sanders, Singler 2009 (blocked).
    """

    inserts = True
    merges = True

    def __new__(
        cls,
        capacity: int,
        *,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        layout: Layout = "blocked",
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Make an empty filter for ``capacity`` keys at a rate or within a budget."""
        check_capacity(capacity)
        bits, hashes = bloom_planning.size(layout, capacity, fpr=fpr, bits_per_key=bits_per_key)
        return cls._of(_native.bloom(layout, bits, hashes, capacity, seed, key))

    @classmethod
    def build(
        cls,
        keys: Keys,
        *,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        layout: Layout = "blocked",
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Build the filter of these keys, sized for the distinct ones among them.

        >>> len(Bloom.build([1, 2, 2, 3], bits_per_key=10))
        3
        """
        distinct = _native.Distinct(keys, seed, key)
        bits, hashes = bloom_planning.size(
            layout, len(distinct), fpr=fpr, bits_per_key=bits_per_key
        )
        return cls._of(_native.bloom_build(layout, bits, hashes, distinct))

    @property
    def layout(self) -> Layout:
        """Where a key's bits may lie."""
        return _native.bloom_shape(self._kernel)[0]

    @property
    def hashes(self) -> int:
        """How many bits a key has (k)."""
        return _native.bloom_shape(self._kernel)[2]

    def __or__(self, other: Bloom) -> Self:
        """Return the filter of all keys of both; its `len` is an estimate from its bits."""
        if not isinstance(other, Bloom):
            return NotImplemented
        return self._of(_native.bloom_union(self._kernel, other._kernel))

    def __and__(self, other: Bloom) -> Self:
        """Return a filter of the keys that are in both; its `len` is an estimate.

        It denies no common key, but errs more than one built from the common keys: bits that
        only chance set in both stay.
        """
        if not isinstance(other, Bloom):
            return NotImplemented
        return self._of(_native.bloom_intersection(self._kernel, other._kernel))

    def cardinality(self) -> float:
        """Estimate from the set bits how many distinct keys are in; infinite if all are set.

        >>> 990 < Bloom.build(range(1000), fpr=0.01).cardinality() < 1010
        True
        """
        return _native.bloom_cardinality(self._kernel)

    def truncate(self, bits: int) -> Self:
        """Return this segmented filter cut to its first ``bits`` bits: smaller, and errs more.

        >>> f = Bloom.build(range(1000), bits_per_key=10, layout="segmented")
        >>> half = f.truncate(5000)
        >>> half.size_in_bits, bool(half.contains(range(1000)).all())
        (5000, True)
        """
        if self.layout != "segmented":
            raise ValueError(f"layout is {self.layout!r}; only a segmented filter can be truncated")
        return self._of(_native.bloom_truncated(self._kernel, bits))

    def _told(self) -> str:
        return f"{self.layout}, {self.hashes} hashes"


class Quotient(_native.Deleting, Contract):
    """A quotient filter: insertions, deletions, counts, growth and merging without the keys.

    It stores a fingerprint of each key, sorted, at (r + 2.125)/0.95 bits for a rate of about 2^−r.
    A key that is added again is counted. When it is full it doubles by itself: the rate keeps
    rising with the number of keys, and `CapacityError` says that no bit is left to give.

    >>> f = Quotient(capacity=1000, fpr=2**-8)
    >>> f.update(["ada", "grace", "ada"])
    >>> f.count("ada"), len(f)
    (2, 3)
    >>> f.remove("ada"); f.remove("ada")
    >>> "ada" in f
    False

    References: Bender et al. 2012; Pandey, Bender, Johnson, Patro 2017.
    """

    inserts = True
    deletes = True
    merges = True

    def __new__(
        cls,
        capacity: int,
        *,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Make an empty filter for ``capacity`` keys at a rate or within a budget."""
        check_capacity(capacity)
        size = quotient_planning.size(capacity, fpr=fpr, bits_per_key=bits_per_key)
        return cls._of(_native.quotient(*size, capacity, seed, key))

    @classmethod
    def build(
        cls,
        keys: Keys,
        *,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Build the filter of these keys, each counted once.

        >>> len(Quotient.build([1, 2, 2, 3], fpr=0.01))
        3
        """
        distinct = _native.Distinct(keys, seed, key)
        size = quotient_planning.size(len(distinct), fpr=fpr, bits_per_key=bits_per_key)
        return cls._of(_native.quotient_build(*size, distinct))

    @property
    def remainder_bits(self) -> int:
        """How many bits of each fingerprint a slot holds (r); one less after each doubling."""
        return _native.quotient_shape(self._kernel)[1]

    @property
    def quotients(self) -> int:
        """How many quotients there are (Q): fingerprints are numbers below Q·2^r."""
        return _native.quotient_shape(self._kernel)[0]

    @property
    def load(self) -> float:
        """The share of the slots that are in use."""
        _, _, used, slots = _native.quotient_shape(self._kernel)
        return used / slots

    def count(self, key: Key) -> int:
        """Tell how often the key was added and not removed; more only by a shared fingerprint."""
        return _native.quotient_count(self._kernel, key)

    def grow(self) -> None:
        """Double the capacity now: twice the slots, one remainder bit less, the same answers.

        >>> f = Quotient.build(range(100), fpr=2**-8)
        >>> before = f.expected_fpr
        >>> f.grow()
        >>> f.capacity, f.remainder_bits, f.expected_fpr == before
        (200, 7, True)
        """
        _native.quotient_grow(self._kernel)

    def fingerprints(
        self, start: int = 0, stop: int | None = None
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Return the quotients, remainders and counts that are stored, in order.

        ``start`` and ``stop`` bound the quotients, to walk through a large filter in parts.

        >>> quotients, remainders, counts = Quotient.build(range(3), fpr=0.01).fingerprints()
        >>> len(quotients), int(counts.sum())
        (3, 3)
        """
        stop = self.quotients if stop is None else stop
        if not 0 <= start <= stop <= self.quotients:
            raise ValueError(
                f"start and stop are {start} and {stop}; 0 <= start <= stop <= {self.quotients} "
                "is wanted"
            )
        return _native.quotient_fingerprints(self._kernel, start, stop)

    def __or__(self, other: Quotient) -> Self:
        """Return the filter of the insertions into both, counts added, doubled where needed."""
        if not isinstance(other, Quotient):
            return NotImplemented
        return self._of(_native.quotient_merge(self._kernel, other._kernel))

    def _told(self) -> str:
        return f"{self.remainder_bits}-bit remainders"


_CLASSES: dict[int, type[Contract]] = {1: Bloom, 2: Quotient}


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


def _public(kernel: _native.Kernel) -> Contract:
    return _CLASSES[kernel.kind]._of(kernel)
