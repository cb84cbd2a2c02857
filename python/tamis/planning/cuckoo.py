"""Cuckoo filters: buckets and fingerprint bits for a rate or a budget.

With B buckets of four slots and V = 2^f − 1 fingerprints, there are B·V/2 identities of a
fingerprint and its two buckets. An absent key shares its identity with none of n keys with
probability (1 − 2/(B·V))^n. At a load of 0.95 the rate is 7.6/V, slightly less for high rates.
"""

import math
from typing import NamedTuple, Self

from tamis._checks import check_int, rate_or_budget

LOAD = 0.95
"""The planned load, for fingerprints of four bits or more. It must stay below 0.973, where the
fullest chunk of 2^14 buckets first refuses a key."""

MAX_FINGERPRINT_BITS = 32

SLOTS = 4
"""Slots of a bucket."""

# With V fingerprints, keys of a bucket can move to V other buckets, and a pair of buckets with too
# many keys of its own ends the build: with 1, 3 and 7 others, a million keys reach these loads
# (tests/filters/test_cuckoo.py). Longer fingerprints are better for every rate and budget.
_SHORT_LOADS = {1: 1 / 16, 2: 1 / 6, 3: 1 / 2}
MIN_FINGERPRINT_BITS = 4
"""The shortest fingerprints that are chosen for a rate or a budget."""

# Below about 2,000 keys, the load at which the first key is refused varies by more than the
# difference between `LOAD` and 0.973. From filling tables of 4 to 512 buckets until they refused a
# key, 2·10⁶ slots of each: n keys always fitted into 1.04·n + 28 slots (with 4 bits, all but one
# time in 10⁴); 8 keys fit into two buckets, which all of them share.
_SMALL = (1.04, 28)
_TINY = 2 * SLOTS

# A chunk of this many buckets fits a core's cache, and of 4·2^14 slots at `LOAD` it is rarely
# (8 standard deviations) as full as 0.98.
_CHUNK = 2**14

# log2 of the range of even fingerprints: 32 buckets, a few cache lines. Measured from 2^5 to 2^7,
# and over the whole chunk: the load is the same, except for fingerprints of 4 bits, which reach
# 0.97 with the short ranges and not 0.8 without.
_NEAR = 5

# Limit of the expected `overfull` identities of a filter of a given rate, so that all keys fit.
_OVERFULL = 1e-3

# In large filters, the padding after the last bucket is taken from the slots.
_LARGE = 100_000


_FEW = 64
"""Below this number of keys, the budget applies to the fingerprints alone."""


class CuckooSize(NamedTuple):
    """A cuckoo filter's size: chunks, buckets of each, fingerprint bits (f), log2 of a range."""

    chunks: int
    buckets: int
    fingerprint_bits: int
    near: int = _NEAR

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self.chunks * self.buckets * SLOTS

    @property
    def bits(self) -> int:
        """The size in bits: all slots, and padding."""
        return self.slots * self.fingerprint_bits + (64 if self.fingerprint_bits <= 16 else 128)

    @property
    def _identities(self) -> float:
        return float(self.chunks * self.buckets * (2**self.fingerprint_bits - 1) / 2)

    def rate(self, keys: int) -> float:
        """Predict the rate of a filter of this size that holds ``keys`` keys.

        >>> round(CuckooSize(1, 250, 12).rate(950) * 2**12, 1)
        7.6
        """
        if self._identities <= 1:
            return float(keys > 0)
        return -math.expm1(keys * math.log1p(-1 / self._identities))

    def coarser(self, keys: int) -> Self | None:
        """Return the size with fingerprints one bit shorter, or None if they are the shortest."""
        if self.fingerprint_bits <= MIN_FINGERPRINT_BITS:
            return None
        return self._replace(fingerprint_bits=self.fingerprint_bits - 1)

    def overfull(self, keys: int) -> float:
        """Predict how many identities are shared by more than eight keys, too many for two buckets.

        With short fingerprints this happens, so that the filter may refuse a key before its
        capacity at any useful load.

        >>> [f"{size(10**6, fingerprint_bits=bits).overfull(10**6):.0e}" for bits in (4, 5, 6)]
        ['8e-03', '3e-05', '1e-07']
        """
        mean = keys / self._identities
        if mean == 0:
            return 0.0
        # The tail of a Poisson distribution; its terms fall fast, as the mean is below one or two.
        chance = (math.exp(i * math.log(mean) - mean - math.lgamma(i + 1)) for i in range(9, 99))
        return float(self._identities * sum(chance))


def size(
    keys: int,
    *,
    fpr: float | None = None,
    bits_per_key: float | None = None,
    fingerprint_bits: int | None = None,
    attempt: int = 0,
) -> CuckooSize:
    """Find the shortest fingerprints with at most this rate, or the longest within this budget.

    For a rate, fingerprints are also long enough that all keys fit: see `CuckooSize.overfull`.
    With ``fingerprint_bits``, from 1 to 32, only the number of buckets is chosen. Each ``attempt``
    has 1/32 more buckets, for keys that did not fit.

    >>> size(1_000_000, fpr=2**-8)
    CuckooSize(chunks=16, buckets=16446, fingerprint_bits=11, near=5)
    >>> size(1_000_000, bits_per_key=12.7)
    CuckooSize(chunks=16, buckets=16446, fingerprint_bits=12, near=5)
    """
    if fingerprint_bits is not None:
        if fpr is not None or bits_per_key is not None:
            raise ValueError("pass exactly one of fpr, bits_per_key or fingerprint_bits")
        length = check_int("fingerprint_bits", fingerprint_bits, MAX_FINGERPRINT_BITS, minimum=1)
        return _with_buckets(keys, length, attempt)
    fpr, bits_per_key = rate_or_budget(fpr, bits_per_key)
    useful = range(MIN_FINGERPRINT_BITS, MAX_FINGERPRINT_BITS + 1)
    sizes = [_with_buckets(keys, bits, attempt) for bits in useful]
    if fpr is not None:
        for found in sizes:
            if found.rate(keys) <= fpr and found.overfull(keys) <= _OVERFULL:
                return found
        lowest = sizes[-1].rate(keys)
        raise ValueError(
            f"fpr must be at least {lowest:.2g} for a cuckoo filter of {keys} keys, not {fpr}"
        )
    assert bits_per_key is not None
    if keys < _FEW:
        # Whole buckets and the padding exceed the budget per key.
        within = [found for found in sizes if found.fingerprint_bits <= bits_per_key * LOAD]
    else:
        within = [found for found in sizes if found.bits <= bits_per_key * keys]
    if not within:
        needed = sizes[0].bits / max(keys, 1)
        raise ValueError(
            f"bits_per_key must be at least {needed:.2f} for a cuckoo filter of {keys} keys, "
            f"not {bits_per_key}"
        )
    return within[-1]


def _with_buckets(keys: int, fingerprint_bits: int, attempt: int) -> CuckooSize:
    """Choose the number of buckets, in chunks of an even number of buckets."""
    load = _SHORT_LOADS.get(fingerprint_bits, LOAD)
    slots = keys / load - (16 if keys >= _LARGE else 0)
    factor, more = _SMALL
    small = factor * keys + more if keys > _TINY else keys
    slack = 1 + attempt / 32
    if small > slots:
        pairs = math.ceil(small * slack / (2 * SLOTS))
        return CuckooSize(1, 2 * max(1, pairs), fingerprint_bits)
    buckets = slots * slack / SLOTS
    chunks = max(1, round(buckets / _CHUNK))
    return CuckooSize(chunks, 2 * max(1, math.floor(buckets / chunks / 2)), fingerprint_bits)
