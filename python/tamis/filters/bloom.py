"""`tamis.Bloom`: Bloom filters in three layouts."""

from __future__ import annotations

from typing import Any, Literal, Self, SupportsIndex

from tamis import _native
from tamis._types import Keys
from tamis.filters.contract import Contract
from tamis.planning import bloom as planning
from tamis.planning.arguments import MOST_KEYS, whole

Layout = Literal["blocked", "standard", "segmented"]


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
        capacity: SupportsIndex,
        *,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        layout: Layout = "blocked",
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Make an empty filter for ``capacity`` keys at a rate or within a budget."""
        capacity = whole("capacity", capacity, MOST_KEYS)
        bits, hashes = planning.size(layout, capacity, fpr=fpr, bits_per_key=bits_per_key)
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
        return cls._of(cls._built(distinct, layout=layout, fpr=fpr, bits_per_key=bits_per_key))

    @classmethod
    def _built(
        cls, distinct: _native.Distinct, *, layout: Layout = "blocked", **rate: Any
    ) -> _native.Kernel:
        bits, hashes = planning.size(layout, len(distinct), **rate)
        return _native.bloom_build(layout, bits, hashes, distinct)

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
            return super().__or__(other)
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

    def truncate(self, bits: SupportsIndex) -> Self:
        """Return this segmented filter cut to its first ``bits`` bits: smaller, and errs more.

        >>> f = Bloom.build(range(1000), bits_per_key=10, layout="segmented")
        >>> half = f.truncate(5000)
        >>> half.size_in_bits, bool(half.contains(range(1000)).all())
        (5000, True)
        """
        if self.layout != "segmented":
            raise ValueError(f"layout is {self.layout!r}; only a segmented filter can be truncated")
        bits = whole("bits", bits, self.size_in_bits)
        return self._of(_native.bloom_truncated(self._kernel, bits))

    def _told(self) -> str:
        return f"{self.layout}, {self.hashes} hashes"
