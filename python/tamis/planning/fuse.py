"""Binary fuse filters: the number of slots and segments, and the length of fingerprints.

A filter of r-bit slots has a rate of exactly 2^−r. There must be somewhat more slots than keys for
peeling to succeed (``src/fuse/build.rs``). With K segments, one per slot of a key, the limit
is 1/0.818 (K = 3) or 1/0.772 (K = 4) slots per key, and more for small sets. With many segments,
the limit is 1/0.918 or 1/0.977, but the overhead falls slowly with the number of keys, so this
pays off only for larger sets (Graf and Lemire 2022; the limits are from Walzer 2021).
"""

import math
from typing import NamedTuple, Self

from tamis._checks import check_int, rate_or_budget

MAX_FINGERPRINT_BITS = 32


class FuseSize(NamedTuple):
    """A fuse filter's size: slots per key (K), bits (r), slots per segment (L), segments (S)."""

    arity: int
    fingerprint_bits: int
    segment_length: int
    segments: int

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self.segment_length * self.segments

    @property
    def bits(self) -> int:
        """The bits of all slots."""
        return self.slots * self.fingerprint_bits

    def rate(self, keys: int) -> float:
        """Predict the rate, which is the same for any number of keys above 0.

        >>> size(1000, fpr=0.01).rate(1000)
        0.0078125
        """
        return 2.0**-self.fingerprint_bits if keys else 0.0

    def coarser(self, keys: int) -> Self | None:
        """Return the size with slots one bit shorter, or None if they have one bit."""
        if self.fingerprint_bits == 1:
            return None
        return self._replace(fingerprint_bits=self.fingerprint_bits - 1)


class Fit(NamedTuple):
    """Slots for n keys, from `fewest_slots` in ``src/fuse/tests.rs``.

    With these, at least nine of ten first attempts succeed (the fewest near 11,500 keys), in tables
    at most 1 % longer than the shortest with this property: ``benches/fuse_sizes.py`` prints both.

    * ``few·n + few_root·√n + 8`` in K segments;
    * ``(many + many_factor·n^−many_power)·n`` in ``segments·n^0.42`` segments, up to 10⁸ keys.
      Beyond, segments would get too long: their length and the slots per key stay the same.
    """

    few: float
    few_root: float
    many: float
    many_factor: float
    many_power: float
    segments: float


FITS = {
    3: Fit(1.2219, 1.5, 1.0894, 2.15, 0.289, 0.62),
    4: Fit(1.2949, 1.1, 1.0238, 2.05, 0.27, 1.0),
}
_SEGMENTS_POWER = 0.42
# The second formula is fitted from here on; below, the first is smaller in reality.
_MANY_FROM = 1000
# Peeling works on several segments at a time (9 bytes per slot, from both ends). Longer ones leave
# the caches: a build of 3·10⁸ keys took several times as long per key as one of 10⁸.
_MAX_SEGMENT = 1 << 16


def size(
    keys: int,
    *,
    fpr: float | None = None,
    bits_per_key: float | None = None,
    fingerprint_bits: int | None = None,
    arity: int = 3,
) -> FuseSize:
    """Find the shortest fingerprints with at most this rate, or the max_length within this budget.

    With ``fingerprint_bits``, only the number of slots is chosen.

    >>> size(1_000_000, fpr=2**-8)
    FuseSize(arity=3, fingerprint_bits=8, segment_length=5508, segments=205)
    >>> size(1_000_000, bits_per_key=10, arity=4)
    FuseSize(arity=4, fingerprint_bits=9, segment_length=3242, segments=331)
    """
    arity = check_int("arity", arity, max(FITS), min(FITS))
    table = _table(arity, keys)
    if fingerprint_bits is not None:
        return FuseSize(arity, fingerprint_bits, *table)
    fpr, bits_per_key = rate_or_budget(fpr, bits_per_key)
    if fpr is not None:
        length = max(1, math.ceil(-math.log2(fpr)))
        if length > MAX_FINGERPRINT_BITS:
            raise ValueError(
                f"fpr must be at least 2**-{MAX_FINGERPRINT_BITS} for a fuse filter, not {fpr}"
            )
        return FuseSize(arity, length, *table)
    assert bits_per_key is not None
    slots_per_key = max(math.prod(table), 1) / max(keys, 1)
    if bits_per_key < slots_per_key:
        raise ValueError(
            f"bits_per_key must be at least {slots_per_key:.2f} for a fuse filter of {keys} keys, "
            f"not {bits_per_key}"
        )
    bits = math.floor(bits_per_key / slots_per_key)
    return FuseSize(arity, min(bits, MAX_FINGERPRINT_BITS), *table)


def _table(arity: int, keys: int) -> tuple[int, int]:
    """Return the length and number of the segments that take the fewest slots."""
    if keys <= 1:
        return 1, arity * keys
    fit = FITS[arity]
    few = fit.few * keys + fit.few_root * math.sqrt(keys) + 8
    # Two of n keys have the same three slots with probability n/(2·L²), which must stay small.
    max_length = max(_MAX_SEGMENT, math.ceil(math.sqrt(5 * keys)))
    # A larger set needs as many slots per key as one that has segments of this length.
    fitted = min(keys, (max_length * fit.segments / fit.many) ** (1 / (1 - _SEGMENTS_POWER)))
    many = (fit.many + fit.many_factor * fitted**-fit.many_power) * keys
    if keys < _MANY_FROM or few <= many:
        return math.ceil(few / arity), arity
    segments = max(round(fit.segments * keys**_SEGMENTS_POWER), math.ceil(many / max_length))
    return math.ceil(many / segments), segments
