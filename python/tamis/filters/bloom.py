"""`tamis.Bloom`: Bloom filters in three layouts."""

from __future__ import annotations

from typing import Literal, Self, SupportsIndex

from tamis import _native
from tamis._checks import MAX_KEYS, check_int
from tamis._types import Keys
from tamis.filters.contract import Filter
from tamis.planning import bloom as planning

Layout = Literal["blocked", "standard", "segmented"]


class Bloom(_native.Bloom, Filter):
    """A Bloom filter: supports insertion, union and intersection.

    Halving the false-positive rate takes about 1.5 bits per key. ``layout="blocked"`` stores all
    bits of a key in one cache line, and has the fastest queries; ``"standard"`` spreads them over
    the whole filter, and is the smallest for a rate; ``"segmented"`` is as small, and the best to
    cut to a prefix, see `truncate`.

    >>> f = Bloom(capacity=1000, fpr=0.01)
    >>> f.add("ada"); f.update(["grace", "edsger"])
    >>> "ada" in f, len(f)
    (True, 3)
    >>> f.contains(["ada", "alan", "grace"])
    array([ True, False,  True])

    References: Bloom 1970; Putze, Sanders, Singler 2009 (blocked).
    """

    _kind = "bloom"

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
        """Create an empty filter for ``capacity`` keys, from a rate or a budget."""
        capacity = check_int("capacity", capacity, MAX_KEYS)
        size = planning.size(capacity, fpr=fpr, bits_per_key=bits_per_key, layout=layout)
        return cls._of(cls._empty(size, capacity, seed, key))

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
        """Build a filter of these keys, sized for the number of distinct keys.

        Up to 2²⁰ keys, distinct ones are counted. Of more, their number is estimated, and the
        filter is sized for 1 % more than that, or for all keys if they are fewer. Then `len` is
        an estimate from the set bits, typically within 0.1 %.

        >>> len(Bloom.build([1, 2, 2, 3], bits_per_key=10))
        3
        """

        def size(count: int) -> planning.BloomSize:
            return planning.size(count, fpr=fpr, bits_per_key=bits_per_key, layout=layout)

        return cls._of(cls._build_any(keys, size, seed, key))

    @property
    def _size(self) -> planning.BloomSize:
        return planning.BloomSize(self.layout, self.size_in_bits, self.hashes)

    def __or__(self, other: Bloom) -> Self:
        """Return a filter of the keys of both; its `len` is an estimate from its bits."""
        if not isinstance(other, Bloom):
            return super().__or__(other)
        return self._of(self._union(other))

    def __and__(self, other: Bloom) -> Self:
        """Return a filter of the keys that are in both; its `len` is an estimate.

        It accepts every common key, but its false-positive rate is higher than if it were
        built from the common keys: some bits are set in both only by chance.
        """
        if not isinstance(other, Bloom):
            return NotImplemented
        return self._of(self._intersection(other))

    def truncate(self, bits: SupportsIndex) -> Self:
        """Return the first ``bits`` bits as a smaller filter with a higher false-positive rate.

        Mersy, Wang, Sintos, Krishnan 2024 (Definition 3.1) truncate standard filters; a truncated
        segmented filter has a lower rate. Truncated filters merge with others of the same full
        size: the result has as many bits as the shorter.

        >>> for layout in ("standard", "segmented"):
        ...     half = Bloom.build(range(1000), bits_per_key=10, layout=layout).truncate(5000)
        ...     print(half.size_in_bits, round(half.expected_fpr, 3), 7 in half)
        5000 0.135 True
        5000 0.095 True
        """
        if self.layout == "blocked":
            raise ValueError("layout must be 'standard' or 'segmented' to truncate, not 'blocked'")
        bits = check_int("bits", bits, self.size_in_bits)
        return self._of(self._truncated(bits))

    def _describe(self) -> str:
        return f"{self.layout}, {self.hashes} hashes"
