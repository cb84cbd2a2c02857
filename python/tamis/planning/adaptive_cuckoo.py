"""Adaptive cuckoo filters: bins and fingerprint bits for a rate or a budget.

A key is in one of d bins of b slots; a slot in use matches an absent key with probability
1/(2^f − 1). Cyclic filters have s selector bits per fingerprint; in the other kinds, the slot of a
fingerprint determines its hash function (``src/adaptive_cuckoo/``).
"""

import math
from typing import NamedTuple, Self

from tamis._checks import check_int, one_of, rate_or_budget, shown

LOAD = 0.95
"""The planned load. The limit is 0.976 for four bins of one slot (Fotakis et al. 2003), and 0.980
for two bins of four (Dietzfelbinger and Weidling 2007)."""

MAX_FINGERPRINT_BITS = 32
MAX_SELECTOR_BITS = 3
KINDS = ("swapping", "cyclic", "cuckooing")
"""How an element moves after a false positive."""

# Small sets have a few more slots, because their load varies more.
_SPARE, _SMALL = 8, 1000
# Bits after the last slot.
_PADDING = 72
_CUCKOOING = 4


class AdaptiveCuckooSize(NamedTuple):
    """A filter's motion (0 swapping, s cyclic, 4 cuckooing), fingerprint bits (f) and bins."""

    motion: int
    fingerprint_bits: int
    bins: int

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self.bins * (4 if self.motion == 0 else 1)

    @property
    def slot_bits(self) -> int:
        """Bits per slot: f, plus s in a cyclic filter."""
        return self.fingerprint_bits + (0 if self.motion == _CUCKOOING else self.motion)

    @property
    def bits(self) -> int:
        """The bits of all slots, without the hashes that are kept in addition."""
        return self.slots * self.slot_bits

    def rate(self, keys: int) -> float:
        """Predict the rate of a filter of this size that holds ``keys`` keys.

        >>> round(AdaptiveCuckooSize(0, 11, 250).rate(950) * 2**11, 2)
        7.59
        """
        fitting = min(1.0, keys / self.slots) / (2**self.fingerprint_bits - 1)
        probes = 8 if self.motion == 0 else 4
        return 1.0 if fitting >= 1 else -math.expm1(probes * math.log1p(-fitting))

    def grown(self, attempt: int) -> Self:
        """Return the size with a sixteenth more bins per attempt, for keys that did not fit."""
        return self._replace(bins=math.ceil(self.bins * (1 + attempt / 16)))

    def coarser(self, keys: int) -> Self | None:
        """Return the size with fingerprints one bit shorter, or None if they have one bit."""
        if self.fingerprint_bits == 1:
            return None
        return self._replace(fingerprint_bits=self.fingerprint_bits - 1)


def motion_number(kind: str, selector_bits: int | None = None) -> int:
    """Return the number of a kind in a file.

    >>> motion_number("swapping"), motion_number("cyclic", 2)
    (0, 2)
    """
    one_of("kind", kind, KINDS)
    if kind != "cyclic":
        if selector_bits is not None:
            raise ValueError(
                f"selector_bits must be None for kind {kind!r}, not {shown(selector_bits)}"
            )
        return 0 if kind == "swapping" else _CUCKOOING
    bits = 1 if selector_bits is None else selector_bits
    return check_int("selector_bits", bits, MAX_SELECTOR_BITS, minimum=1)


def size(
    keys: int,
    *,
    fpr: float | None = None,
    bits_per_key: float | None = None,
    kind: str = "swapping",
    selector_bits: int | None = None,
) -> AdaptiveCuckooSize:
    """Find the shortest fingerprints with at most this rate, or the longest within this budget.

    >>> size(1_000_000, bits_per_key=12)
    AdaptiveCuckooSize(motion=0, fingerprint_bits=11, bins=263158)
    """
    motion = motion_number(kind, selector_bits)
    fpr, bits_per_key = rate_or_budget(fpr, bits_per_key)
    slots = math.ceil(keys / LOAD) + (_SPARE if keys < _SMALL else 0)
    bins = math.ceil(slots / (4 if motion == 0 else 1))
    if fpr is not None:
        for bits in range(1, MAX_FINGERPRINT_BITS + 1):
            if (found := AdaptiveCuckooSize(motion, bits, bins)).rate(keys) <= fpr:
                return found
        raise ValueError(
            f"fpr must be at least {found.rate(keys):.2g} for an adaptive cuckoo filter, not {fpr}"
        )
    assert bits_per_key is not None
    shortest = AdaptiveCuckooSize(motion, 1, bins)
    if keys < _SMALL:  # a few slots and bytes more, regardless of the budget
        slot_bits = math.floor(bits_per_key)
    else:
        slot_bits = math.floor((bits_per_key * keys - _PADDING) / shortest.slots)
    bits = slot_bits - shortest.slot_bits + 1
    if bits < 1:
        raise ValueError(
            f"bits_per_key must be at least {shortest.slot_bits / LOAD:.2f} for an adaptive cuckoo "
            f"filter of {keys} keys, not {bits_per_key}"
        )
    return AdaptiveCuckooSize(motion, min(bits, MAX_FINGERPRINT_BITS), bins)
