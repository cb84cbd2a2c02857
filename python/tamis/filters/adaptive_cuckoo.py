"""`tamis.AdaptiveCuckoo`: cuckoo filters that move their elements away from mistakes."""

from __future__ import annotations

from typing import Any, Literal, Self, SupportsIndex

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._types import Key, Keys, Remote
from tamis.errors import BuildError, CapacityError
from tamis.filters.contract import Contract, random_seed
from tamis.planning import adaptive_cuckoo as planning
from tamis.planning.arguments import MOST_KEYS, whole

Kind = Literal["swapping", "cyclic", "cuckooing"]

# Each has a sixteenth more bins than the one before.
_ATTEMPTS = 32


class AdaptiveCuckoo(_native.AdaptiveCuckoo, Contract):
    """An adaptive cuckoo filter: mistakes are fixed by moving what caused them, as far as it can.

    ``kind`` says how an element moves: within its bin (``"swapping"``), to its next fingerprint of
    2^``selector_bits`` (``"cyclic"``), or to another of its bins (``"cuckooing"``). Its states are
    few, so a mistake may come back; `Telescoping` remembers. The hashes of the keys are held
    beside the filter, 128 bits per slot that `size_in_bits` does not count, so it adapts without a
    remote.

    >>> f = AdaptiveCuckoo.build(range(1000), fpr=0.05, kind="cyclic", selector_bits=2, seed=1)
    >>> wrong = [key for key in range(1000, 2000) if key in f]
    >>> fixed = f.adapt_many(wrong)
    >>> len(wrong) > 0, f.contains(wrong).mean() < 0.2, f.contains(range(1000)).all()
    (True, np.True_, np.True_)

    References: Mitzenmacher, Pontarelli, Reviriego 2018; Kopelowitz, McCauley, Porat 2021.
    """

    inserts = True
    deletes = True
    bounded = True
    _kind = "adaptive_cuckoo"

    def __new__(
        cls,
        capacity: SupportsIndex,
        *,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        kind: Kind = "swapping",
        selector_bits: int | None = None,
        seed: int | None = None,
        key: bytes | None = None,
    ) -> Self:
        """Make an empty filter for ``capacity`` keys; ``seed`` is random unless it is given."""
        capacity = whole("capacity", capacity, MOST_KEYS)
        size = planning.size(
            capacity, fpr=fpr, bits_per_key=bits_per_key, kind=kind, selector_bits=selector_bits
        )
        return cls._of(cls._empty(size, capacity, random_seed(seed, key), key))

    @classmethod
    def build(
        cls,
        keys: Keys,
        *,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        kind: Kind = "swapping",
        selector_bits: int | None = None,
        seed: int | None = None,
        key: bytes | None = None,
    ) -> Self:
        """Build the filter of these keys, each stored once.

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
        cls, size: planning.Size, distinct: _native.Distinct, capacity: int = 0
    ) -> _native.Handle:
        for attempt in range(_ATTEMPTS):
            try:
                return cls._build(size.roomier(attempt), distinct)
            except CapacityError:
                continue
        raise BuildError(
            f"{len(distinct)} keys do not fit three times the slots that are planned for them; use "
            "another seed"
        )

    def add(self, key: Key, remote: Remote | None = None) -> None:
        """Insert a key. The remote is not needed, and is there for all adaptive filters alike."""
        super().add(key)

    def update(self, keys: Keys, remote: Remote | None = None) -> None:
        """Insert many keys, or none of them."""
        super().update(keys)

    def remove(self, key: Key, remote: Remote | None = None) -> None:
        """Take one insertion of the key back; `KeyError` if there is none."""
        super().remove(key)

    def adapt(self, key: Key, remote: Remote | None = None) -> bool:
        """Move what an absent key was taken for; whether anything moved."""
        keys: Any = [key]  # of any one kind
        return bool(self.adapt_many(keys)[0])

    def adapt_many(self, keys: Keys, remote: Remote | None = None) -> npt.NDArray[np.bool_]:
        """Move what absent keys were taken for; for each, whether anything moved."""
        return self._adapt(keys)

    @property
    def kind(self) -> Kind:
        """How an element moves."""
        return "swapping" if self._motion == 0 else "cuckooing" if self._motion == 4 else "cyclic"

    @property
    def load(self) -> float:
        """The share of the slots that are in use.

        >>> round(AdaptiveCuckoo.build(range(100_000), fpr=0.01).load, 2)
        0.95
        """
        return len(self) / self._size.slots

    @property
    def _size(self) -> planning.Size:
        return planning.Size(self._motion, self.fingerprint_bits, self._bins)

    def _describe(self) -> str:
        return f"{self.kind}, {self.fingerprint_bits}-bit fingerprints"
