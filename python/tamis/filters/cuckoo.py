"""`tamis.Cuckoo`: the cuckoo filter, with both buckets of a key close together."""

from __future__ import annotations

from typing import Self, SupportsIndex

from tamis import _native
from tamis._checks import MAX_KEYS, check_int
from tamis._types import Keys
from tamis.errors import BuildError, CapacityError
from tamis.filters.contract import Filter
from tamis.planning import cuckoo as planning

# Each attempt has 1/32 more buckets than the one before; one build in thousands needs a second.
_ATTEMPTS = 32


class Cuckoo(_native.Cuckoo, Filter):
    """A cuckoo filter: supports insertion and deletion, with faster queries than `Quotient`.

    It stores a fingerprint of f bits per key, in f/0.95 bits, for a rate of about 7.6/2^f. A key
    that is added again is stored again. If a key does not fit, `CapacityError` is raised
    and the filter is unchanged.

    >>> f = Cuckoo(capacity=1000, fpr=0.01)
    >>> f.update(["ada", "grace", "ada"])
    >>> f.remove("ada")
    >>> "ada" in f, len(f)
    (True, 2)
    >>> f.remove("ada")
    >>> "ada" in f
    False

    References: Fan, Andersen, Kaminsky, Mitzenmacher 2014; Wang, Zhou, Shi, Qian 2019.
    """

    _kind = "cuckoo"

    def __new__(
        cls,
        capacity: SupportsIndex,
        *,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        fingerprint_bits: int | None = None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Create an empty filter for ``capacity`` keys, from a rate, a budget or a length."""
        capacity = check_int("capacity", capacity, MAX_KEYS)
        size = planning.size(
            capacity, fpr=fpr, bits_per_key=bits_per_key, fingerprint_bits=fingerprint_bits
        )
        return cls._of(cls._empty(size, capacity, seed, key))

    @classmethod
    def build(
        cls,
        keys: Keys,
        *,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        fingerprint_bits: int | None = None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Build a filter of these keys, each stored once.

        >>> len(Cuckoo.build([1, 2, 2, 3], fpr=0.01))
        3
        """
        distinct = _native.Distinct(keys, seed, key)
        kernel = cls._plan_kernel(
            distinct, fpr=fpr, bits_per_key=bits_per_key, fingerprint_bits=fingerprint_bits
        )
        return cls._of(kernel)

    @classmethod
    def _build_kernel(
        cls, size: planning.CuckooSize, distinct: _native.Distinct, capacity: int = 0
    ) -> _native.Handle:
        capacity, bits = max(capacity, len(distinct)), size.fingerprint_bits
        for attempt in range(_ATTEMPTS):
            try:
                return cls._build(size, distinct)
            except CapacityError:
                size = planning.size(capacity, fingerprint_bits=bits, attempt=attempt + 1)
        raise BuildError(
            f"{len(distinct)} keys do not fit into twice the planned number of slots, because too "
            "many share a fingerprint; use another seed or longer fingerprints"
        )

    @property
    def load(self) -> float:
        """The fraction of slots in use.

        >>> round(Cuckoo.build(range(100_000), fpr=0.01).load, 2)
        0.95
        """
        return len(self) / self._size.slots

    @property
    def _size(self) -> planning.CuckooSize:
        return planning.CuckooSize(self._chunks, self._buckets, self.fingerprint_bits, self._near)

    def truncate(self, fingerprint_bits: SupportsIndex) -> Self:
        """Return a smaller filter with shorter fingerprints and a higher false-positive rate.

        Each bit removed about doubles the rate. Every key is still accepted, but a truncated
        filter does not support `add`, `update` and `remove`: only the full fingerprint determines
        the buckets of a key.

        >>> f = Cuckoo.build(range(10_000), fingerprint_bits=16)
        >>> cut = f.truncate(8)
        >>> cut.contains(range(10_000)).all(), round(f.size_in_bits / cut.size_in_bits, 1)
        (np.True_, 2.0)
        """
        kept = check_int("fingerprint_bits", fingerprint_bits, self.fingerprint_bits, minimum=1)
        return self._of(self._truncated(kept))

    def _describe(self) -> str:
        kept, full_bits = self.fingerprint_bits, self._whole_fingerprint_bits
        return f"{kept}-bit fingerprints" + (f" cut from {full_bits}" if kept < full_bits else "")
