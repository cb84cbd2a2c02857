"""Quotient filters: slots and remainder bits for a rate or a budget.

A filter of Q quotients and r-bit remainders distinguishes Q·2^r fingerprints. An absent key shares
its fingerprint with none of n keys with probability (1 − 1/(Q·2^r))^n. Each slot takes r bits and
2.125 bits of metadata (``src/quotient``).
"""

import math
from typing import NamedTuple, Self

from tamis._checks import rate_or_budget

LOAD = 0.95
"""The planned load: above it, insertions get slow."""

METADATA_BITS = 2.125
"""Bits per slot besides the remainder: occupied, run end, and 1/64 of a byte of offset."""

MAX_REMAINDER_BITS = 56

_BLOCK = 64
# The last runs extend past the last quotient by about 1/(2·(1 − load)) slots, and hardly ever by
# ten times that. In large filters, these slots are taken from the quotients, to keep the load at
# `LOAD`; in small ones, the kernel appends a block if necessary.
_TAIL = 2 * _BLOCK
_LARGE = 100_000


class QuotientSize(NamedTuple):
    """A quotient filter's size: quotients (Q) and bits of a remainder (r)."""

    quotients: int
    remainder_bits: int

    @property
    def bits(self) -> int:
        """The memory of all slots; the kernel appends at most one block for the last runs."""
        return math.ceil((self.quotients + _BLOCK) * (self.remainder_bits + METADATA_BITS)) + 64

    def rate(self, keys: int) -> float:
        """Predict the rate of a filter of this size that holds ``keys`` keys.

        >>> round(QuotientSize(1000, 8).rate(950) * 2**8, 3)
        0.948
        """
        fingerprints = self.quotients * 2.0**self.remainder_bits
        return -math.expm1(keys * math.log1p(-1 / fingerprints)) if fingerprints > 1 else 1.0

    def coarser(self, keys: int) -> Self | None:
        """Return the size with remainders one bit shorter, or None if they have one bit."""
        if self.remainder_bits == 1:
            return None
        return self._replace(remainder_bits=self.remainder_bits - 1)


def size(
    keys: int,
    *,
    fpr: float | None = None,
    bits_per_key: float | None = None,
    fingerprint_bits: int | None = None,
) -> QuotientSize:
    """Find the shortest remainders with at most this rate, or the longest within this budget.

    With ``fingerprint_bits``, the length of a remainder, only the quotients are chosen.

    >>> size(1_000_000, fpr=2**-8)
    QuotientSize(quotients=1052480, remainder_bits=8)
    >>> size(1_000_000, bits_per_key=12)
    QuotientSize(quotients=1052480, remainder_bits=9)
    """
    count = quotients(keys)
    if fingerprint_bits is not None:
        return QuotientSize(count, fingerprint_bits)
    fpr, bits_per_key = rate_or_budget(fpr, bits_per_key)
    if fpr is not None:
        for remainder_bits in range(1, MAX_REMAINDER_BITS + 1):
            if (found := QuotientSize(count, remainder_bits)).rate(keys) <= fpr:
                return found
        raise ValueError(
            f"fpr must be at least {found.rate(keys):.2g} for a quotient filter of {keys} keys, "
            f"not {fpr}"
        )
    assert bits_per_key is not None
    # The smallest filter is one block, regardless of the budget.
    tail = _TAIL if keys >= _LARGE else 0
    slots = 1 / LOAD if count == _BLOCK else (count + tail) / keys
    remainder_bits = math.floor(bits_per_key / slots - METADATA_BITS)
    if remainder_bits < 1:
        needed = slots * (METADATA_BITS + 1)
        raise ValueError(
            f"bits_per_key must be at least {needed:.2f} for a quotient filter of {keys} keys, "
            f"not {bits_per_key}"
        )
    return QuotientSize(count, min(remainder_bits, MAX_REMAINDER_BITS))


def quotients(keys: int) -> int:
    """Choose the number of quotients for these keys, in whole blocks."""
    slots = max(1, math.floor(keys / LOAD))
    if keys < _LARGE:
        return math.ceil(slots / _BLOCK) * _BLOCK
    return slots // _BLOCK * _BLOCK - _TAIL


def max_slots(capacity: int, quotients: int) -> int:
    """Predict how many slots a filter fills before it doubles, or a telescoping one is full.

    Keys that share a fingerprint can take more slots than keys, so 1/32 is added. If blocks were
    rounded up, they fill to `LOAD`. The kernel applies this rule during insertion, also in a filter
    that was opened from a file: see ``src/quotient/capacity.rs``.

    >>> max_slots(1000, quotients(1000)), max_slots(10, quotients(10))
    (1037, 61)
    """
    rounded_up = quotients // _BLOCK * math.ceil(_BLOCK * LOAD)
    return max(capacity + math.ceil(capacity / 32), rounded_up)
