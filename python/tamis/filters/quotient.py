"""`tamis.Quotient`: the rank-and-select quotient filter."""

from __future__ import annotations

from typing import Any, Self, SupportsIndex

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._types import Key, Keys
from tamis.filters.contract import Contract
from tamis.planning import quotient as planning
from tamis.planning.arguments import MOST_KEYS, whole


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
        capacity: SupportsIndex,
        *,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Make an empty filter for ``capacity`` keys at a rate or within a budget."""
        capacity = whole("capacity", capacity, MOST_KEYS)
        size = planning.size(capacity, fpr=fpr, bits_per_key=bits_per_key)
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
        return cls._of(cls._built(distinct, fpr=fpr, bits_per_key=bits_per_key))

    @classmethod
    def _built(cls, distinct: _native.Distinct, **rate: Any) -> _native.Kernel:
        return _native.quotient_build(*planning.size(len(distinct), **rate), distinct)

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

    def truncate(self, remainder_bits: SupportsIndex) -> Self:
        """Return a filter with only so many bits of each remainder: smaller, and errs more.

        Each bit less about doubles the rate. Keys whose fingerprints become equal are counted
        together; the filter takes keys, gives them back, grows and merges as before.

        >>> f = Quotient.build(range(10_000), fpr=2**-12)
        >>> cut = f.truncate(4)
        >>> len(cut), cut.remainder_bits, round(cut.expected_fpr / f.expected_fpr)
        (10000, 4, 249)
        """
        kept = whole("remainder_bits", remainder_bits, self.remainder_bits, least=1)
        return self._of(_native.quotient_truncated(self._kernel, kept))

    def fingerprints(
        self, start: SupportsIndex = 0, stop: SupportsIndex | None = None
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Return the quotients, remainders and counts that are stored, in order.

        ``start`` and ``stop`` bound the quotients, to walk through a large filter in parts.

        >>> quotients, remainders, counts = Quotient.build(range(3), fpr=0.01).fingerprints()
        >>> len(quotients), int(counts.sum())
        (3, 3)
        """
        stop = whole("stop", self.quotients if stop is None else stop, self.quotients)
        start = whole("start", start, stop)
        return _native.quotient_fingerprints(self._kernel, start, stop)

    def __or__(self, other: Quotient) -> Self:
        """Return the filter of the insertions into both, counts added, doubled where needed."""
        if not isinstance(other, Quotient):
            return super().__or__(other)
        return self._of(_native.quotient_merge(self._kernel, other._kernel))

    def _told(self) -> str:
        return f"{self.remainder_bits}-bit remainders"
