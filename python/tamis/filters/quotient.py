"""`tamis.Quotient`: the rank-and-select quotient filter."""

from __future__ import annotations

from typing import NamedTuple, Self, SupportsIndex

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._checks import MAX_KEYS, check_int
from tamis._types import Keys
from tamis.filters.contract import Filter
from tamis.planning import quotient as planning


class Fingerprints(NamedTuple):
    """The stored fingerprints, one row each, and how often each was added."""

    quotients: npt.NDArray[np.uint64]
    remainders: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.uint64]


class Quotient(_native.Quotient, Filter):
    """A quotient filter: supports insertion, deletion, counting, growth and merging.

    It stores a sorted fingerprint of each key, in (r + 2.125)/0.95 bits, for a rate of about 2^−r.
    A key that is added again is counted. A full filter doubles automatically, without the keys;
    the rate then rises with the number of keys. `CapacityError` is raised if the fingerprints
    have no bit left to double again.

    >>> f = Quotient(capacity=1000, fpr=2**-8)
    >>> f.update(["ada", "grace", "ada"])
    >>> f.count("ada"), len(f)
    (2, 3)
    >>> f.remove("ada"); f.remove("ada")
    >>> "ada" in f
    False

    References: Bender et al. 2012; Pandey, Bender, Johnson, Patro 2017.
    """

    _kind = "quotient"

    def __new__(
        cls,
        capacity: SupportsIndex,
        *,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Create an empty filter for ``capacity`` keys, from a rate or a budget."""
        capacity = check_int("capacity", capacity, MAX_KEYS)
        size = planning.size(capacity, fpr=fpr, bits_per_key=bits_per_key)
        return cls._of(cls._empty(size, capacity, seed, key))

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
        """Build a filter of these keys, each counted once.

        >>> len(Quotient.build([1, 2, 2, 3], fpr=0.01))
        3
        """
        distinct = _native.Distinct(keys, seed, key)
        return cls._of(cls._plan_kernel(distinct, fpr=fpr, bits_per_key=bits_per_key))

    @property
    def _size(self) -> planning.QuotientSize:
        return planning.QuotientSize(self.quotients, self.remainder_bits)

    def truncate(self, remainder_bits: SupportsIndex) -> Self:
        """Return a smaller filter with shorter remainders and a higher false-positive rate.

        Each bit removed about doubles the rate. Keys whose fingerprints become equal are counted
        together. The result supports all operations.

        >>> f = Quotient.build(range(10_000), fpr=2**-12)
        >>> cut = f.truncate(4)
        >>> len(cut), cut.remainder_bits, round(cut.expected_fpr / f.expected_fpr)
        (10000, 4, 249)
        """
        kept = check_int("remainder_bits", remainder_bits, self.remainder_bits, minimum=1)
        return self._of(self._truncated(kept))

    def fingerprints(
        self, start: SupportsIndex = 0, stop: SupportsIndex | None = None
    ) -> Fingerprints:
        """Return the stored quotients, remainders and counts, in order.

        ``start`` and ``stop`` select a range of quotients, to process a large filter in parts.

        >>> quotients, remainders, counts = Quotient.build(range(3), fpr=0.01).fingerprints()
        >>> len(quotients), int(counts.sum())
        (3, 3)
        """
        stop = check_int("stop", self.quotients if stop is None else stop, self.quotients)
        start = check_int("start", start, stop)
        found = self._fingerprints(start, stop)
        return Fingerprints(found.quotients, found.remainders, found.counts)

    def __or__(self, other: Quotient) -> Self:
        """Return a filter of the keys of both, with their counts added; it grows if necessary."""
        if not isinstance(other, Quotient):
            return super().__or__(other)
        return self._of(self._merged(other))

    def _describe(self) -> str:
        return f"{self.remainder_bits}-bit remainders"
