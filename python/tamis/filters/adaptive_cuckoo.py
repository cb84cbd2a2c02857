"""`tamis.AdaptiveCuckoo`: cuckoo filters that move elements to fix false positives."""

from __future__ import annotations

from typing import Any, Literal, Self, SupportsIndex

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._checks import MAX_KEYS, check_int
from tamis._types import Key, Keys, Remote
from tamis.errors import BuildError, CapacityError
from tamis.filters.contract import Filter, random_seed
from tamis.planning import adaptive_cuckoo as planning

AdaptiveCuckooKind = Literal["swapping", "cyclic", "cuckooing"]

# Each attempt has 1/16 more bins than the one before.
_ATTEMPTS = 32


class AdaptiveCuckoo(_native.AdaptiveCuckoo, Filter):
    """An adaptive cuckoo filter: fixes most false positives by moving the element that caused it.

    ``kind`` is how an element moves: within its bin (``"swapping"``), to the next of its
    2^``selector_bits`` fingerprints (``"cyclic"``), or to another of its bins (``"cuckooing"``). An
    element has few states, so a false positive may come back; `Telescoping` remembers them. The
    hashes of the keys are kept in memory, in 128 bits per slot that `size_in_bits` does not count,
    so no remote is needed.

    >>> f = AdaptiveCuckoo.build(range(1000), fpr=0.05, kind="cyclic", selector_bits=2, seed=1)
    >>> wrong = [key for key in range(1000, 2000) if key in f]
    >>> fixed = f.adapt_many(wrong)
    >>> len(wrong) > 0, f.contains(wrong).mean() < 0.2, f.contains(range(1000)).all()
    (True, np.True_, np.True_)

    References: Mitzenmacher, Pontarelli, Reviriego 2018; Kopelowitz, McCauley, Porat 2021.
    """

    _kind = "adaptive_cuckoo"

    def __new__(
        cls,
        capacity: SupportsIndex,
        *,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        kind: AdaptiveCuckooKind = "swapping",
        selector_bits: int | None = None,
        seed: int | None = None,
        key: bytes | None = None,
    ) -> Self:
        """Create an empty filter for ``capacity`` keys, with a random ``seed`` by default."""
        capacity = check_int("capacity", capacity, MAX_KEYS)
        size = planning.size(
            capacity, fpr=fpr, bits_per_key=bits_per_key, kind=kind, selector_bits=selector_bits
        )
        made = cls._of(cls._empty(size, capacity, random_seed(seed, key), key))
        made._seed_is_random = seed is None
        return made

    @classmethod
    def build(
        cls,
        keys: Keys,
        *,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        kind: AdaptiveCuckooKind = "swapping",
        selector_bits: int | None = None,
        seed: int | None = None,
        key: bytes | None = None,
    ) -> Self:
        """Build a filter of these keys, each stored once.

        >>> len(AdaptiveCuckoo.build([1, 2, 2, 3], fpr=0.01))
        3
        """
        distinct = _native.Distinct(keys, random_seed(seed, key), key)
        kernel = cls._plan_kernel(
            distinct, fpr=fpr, bits_per_key=bits_per_key, kind=kind, selector_bits=selector_bits
        )
        return cls._of(kernel)

    @classmethod
    def _build_kernel(
        cls, size: planning.AdaptiveCuckooSize, distinct: _native.Distinct, capacity: int = 0
    ) -> _native.Handle:
        for attempt in range(_ATTEMPTS):
            try:
                return cls._build(size.grown(attempt), distinct)
            except CapacityError:
                continue
        raise BuildError(
            f"{len(distinct)} keys do not fit into three times the planned number of slots; use "
            "another seed"
        )

    def add(self, key: Key, remote: Remote | None = None) -> None:
        """Insert a key. ``remote`` is unused; other adaptive filters need it."""
        super().add(key)

    def update(self, keys: Keys, remote: Remote | None = None) -> None:
        """Insert many keys; if one is refused, none is inserted."""
        super().update(keys)

    def remove(self, key: Key, remote: Remote | None = None) -> None:
        """Remove one insertion of the key; raise `KeyError` if there is none."""
        super().remove(key)

    def remove_many(self, keys: Keys, remote: Remote | None = None) -> npt.NDArray[np.bool_]:
        """Remove one insertion of each key; return for each whether it was present."""
        return super().remove_many(keys)

    def adapt(self, key: Key, remote: Remote | None = None) -> bool:
        """Report a false positive; return whether an element was moved."""
        keys: Any = [key]  # of any one kind
        return bool(self.adapt_many(keys)[0])

    def adapt_many(self, keys: Keys, remote: Remote | None = None) -> npt.NDArray[np.bool_]:
        """Report false positives; return for each whether an element was moved."""
        return self._adapt(keys)

    @property
    def kind(self) -> AdaptiveCuckooKind:
        """How an element moves."""
        return "swapping" if self._motion == 0 else "cuckooing" if self._motion == 4 else "cyclic"

    @property
    def load(self) -> float:
        """The fraction of slots in use.

        >>> round(AdaptiveCuckoo.build(range(100_000), fpr=0.01).load, 2)
        0.95
        """
        return len(self) / self._size.slots

    @property
    def _size(self) -> planning.AdaptiveCuckooSize:
        return planning.AdaptiveCuckooSize(self._motion, self.fingerprint_bits, self._bins)

    def _describe(self) -> str:
        return f"{self.kind}, {self.fingerprint_bits}-bit fingerprints"
