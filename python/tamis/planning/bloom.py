"""Bloom filters: the rate of each layout, and the best size for a rate or a budget.

The rate of a filter is the probability that an absent key finds all of its k bits set, over
random hashes of the n keys and of the absent one. The textbook's (1 − e^(−kn/m))^k is a limit of
the standard layout; each function here computes the rate of the layout as the kernel has it
(``src/bloom/``, ``src/block.rs``).
"""

import math
from bisect import bisect_left
from functools import cache, lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tamis._checks import one_of, rate_or_budget

BLOCK_BITS = 512
"""Bits of a block of the blocked layout: a cache line."""

WORDS = 8
"""Words of a block; a key has at most one probe more in one word than in another."""

MAX_HASHES = {"blocked": 16, "standard": 64, "segmented": 64}
"""The largest number of probes per key to try, by layout."""

# Below this, a rate of the blocked layout is rounding: the terms of its sum are of order 1.
_ROUNDING = 1e-13
_MIN_RATE = 1e-10


# The factor by which the rate of a coarser filter is higher, and the highest useful rate.
_STEP = 1.05
_COARSEST = 0.5


class BloomSize(NamedTuple):
    """A Bloom filter's size: its layout, bits (m) and probes per key (k)."""

    layout: str
    bits: int
    hashes: int

    def rate(self, keys: int) -> float:
        """Predict the rate of a filter of this size that holds ``keys`` keys.

        >>> round(BloomSize("standard", 10_000, 7).rate(1000), 5)
        0.0082
        >>> round(BloomSize("blocked", 10_240, 7).rate(1000), 5)
        0.00874
        """
        match self.layout:
            case "blocked":
                return _blocked_rate(keys, self.bits // BLOCK_BITS, self.hashes)
            case "standard":
                return _standard_rate(keys, self.bits, self.hashes)
            case "segmented":
                return self.truncated_rate(keys, self.bits)
        raise _unknown(self.layout)

    def truncated_rate(self, keys: int, kept: int) -> float:
        """Predict the rate of a filter that is not blocked, cut to its first ``kept`` bits.

        Bits that were cut off count as set. Segments are independent, so the rate is the product
        over them of the fraction of set bits. In a standard filter, keys have different numbers of
        probes left, which increases the rate: (1 − p(1 − w))^k if a fraction p is kept, of which w
        are set (the sum of Eq. 3 of Mersy et al. 2024).

        >>> full = BloomSize("segmented", 10_000, 7)
        >>> round(full.truncated_rate(1000, 10_000), 5), full.truncated_rate(1000, 0)
        (0.00821, 1.0)
        >>> standard = BloomSize("standard", 10_000, 7)
        >>> [round(each.truncated_rate(1000, 5000), 3) for each in (full, standard)]
        [0.096, 0.136]
        """
        if self.layout == "standard":
            empty = (1 - 1 / self.bits) ** (self.hashes * keys)
            return float((1 - kept / self.bits * empty) ** self.hashes)
        length, longer = divmod(self.bits, self.hashes)
        answer, start = 1.0, 0
        for segment in range(self.hashes):
            here = length + (segment < longer)
            hit = -math.expm1(keys * math.log1p(-1 / here)) if here > 1 else float(keys > 0)
            kept_here = min(max(kept - start, 0), here) / here
            answer *= 1 - kept_here * (1 - hit)
            start += here
        return answer

    def coarser(self, keys: int) -> "BloomSize | None":
        """Return the next coarser size for these keys, or None if this is the coarsest.

        >>> BloomSize("standard", 10_000, 7).coarser(1000)
        BloomSize(layout='standard', bits=9900, hashes=7)
        """
        keys = max(keys, 1)
        rate = max(self.rate(keys), _MIN_RATE)
        while (rate := rate * _STEP) <= _COARSEST:
            found = size(keys, fpr=rate, layout=self.layout)
            if found.bits < self.bits:  # in small filters a step may be less than a bit
                return found
        return None


def size(
    keys: int,
    *,
    fpr: float | None = None,
    bits_per_key: float | None = None,
    layout: str = "blocked",
) -> BloomSize:
    """Find the smallest filter with at most this rate, or the best one within this budget.

    >>> size(1000, fpr=0.01, layout="standard")
    BloomSize(layout='standard', bits=9595, hashes=7)
    >>> size(1000, bits_per_key=10, layout="segmented")
    BloomSize(layout='segmented', bits=10000, hashes=7)
    """
    one_of("layout", layout, MAX_HASHES)
    fpr, bits_per_key = rate_or_budget(fpr, bits_per_key)
    keys = max(keys, 1)
    unit = BLOCK_BITS if layout == "blocked" else 1
    if bits_per_key is not None:
        return _best(layout, keys, max(1, math.floor(keys * bits_per_key / unit)) * unit)
    assert fpr is not None
    if layout == "blocked" and fpr < _MIN_RATE:
        raise ValueError(
            f"fpr must be at least {_MIN_RATE} for a blocked filter, not {fpr}; use another layout"
        )

    def enough(units: int) -> bool:
        return _best(layout, keys, units * unit).rate(keys) <= fpr

    # No layout does better than the limit of the standard one, log2(1/fpr)/ln 2 bits per key.
    lower_bound = math.floor(keys * -math.log2(fpr) / math.log(2) / unit)
    low, high = 0, max(1, lower_bound)
    while not enough(high):
        low, high = high, high + max(1, high // 8)
    return _best(layout, keys, (bisect_left(range(high), True, low + 1, key=enough)) * unit)


def _unknown(layout: object) -> ValueError:
    return ValueError(f"layout must be 'blocked', 'standard' or 'segmented', not {layout!r}")


OVERHEAD = 1 / math.log(2)
"""Bits of a filter per bit of information, with a real number of hashes: 1.44."""


def rate_of_bits(bits: float) -> float:
    """About the rate of a large filter with these bits per item, with a real number of hashes.

    >>> round(rate_of_bits(9.6), 4)
    0.0099
    """
    return float(2.0 ** (-bits * math.log(2)))


def bits_per_item(rate: npt.ArrayLike) -> Any:
    """Bits per item of a large filter of this rate, with a whole number k of hashes.

    A rate α takes k/−ln(1 − α^(1/k)) bits; the best k is next to log2(1/α). With a real k it
    would be log2(1/α)/ln 2, up to 2 % less (Deeds, Hentschel, Idreos 2020, 5.1).

    >>> round(bits_per_item(0.5), 4), round(bits_per_item(0.01), 4), bits_per_item(1.0)
    (1.4427, 9.593, 0.0)
    """
    rate = np.asarray(rate, float)
    ideal = -np.log2(rate)
    best = np.full(rate.shape, math.inf)
    for k in (np.floor(ideal), np.ceil(ideal)):
        k = np.clip(k, 1, MAX_HASHES["standard"])
        with np.errstate(divide="ignore"):  # a rate of 1 takes no bits
            best = np.minimum(best, k / -np.log1p(-(rate ** (1 / k))))
    return float(best) if best.ndim == 0 else best


@lru_cache(maxsize=4096)
def _best(layout: str, keys: int, bits: int) -> BloomSize:
    """Find the number of probes with the lowest rate for these bits; of equal ones, the smaller.

    The rate falls with the number of probes up to one optimum, then rises.
    """
    best = BloomSize(layout, bits, 1)
    lowest = best.rate(keys)
    for hashes in range(2, min(MAX_HASHES[layout], bits) + 1):
        size = BloomSize(layout, bits, hashes)
        if (this := size.rate(keys)) >= lowest:
            break
        best, lowest = size, this
    return best


def _standard_rate(keys: int, bits: int, hashes: int) -> float:
    """E[(X/m)^k] for X set bits after kn throws into m bins, to second order around E[X].

    The mean and variance of X are exact; the textbook keeps only the mean, and is low for small
    filters (Bose et al. 2008).
    """
    if bits == 1:
        return float(keys > 0)
    throws = hashes * keys
    empty = math.exp(throws * math.log1p(-1 / bits))
    both_empty = math.exp(throws * math.log1p(-2 / bits)) if bits > 2 else float(throws == 0)
    fill = 1 - empty
    variance = max(0.0, empty / bits + (1 - 1 / bits) * both_empty - empty**2)
    if fill == 0:
        return 0.0
    correction = hashes * (hashes - 1) / 2 * variance * fill ** (hashes - 2)
    return float(min(1.0, fill**hashes + correction))


def _blocked_rate(keys: int, blocks: int, hashes: int) -> float:
    """The exact rate of the blocked layout, as a sum over which bits of the absent key are missed.

    Let the absent key probe c_w bits of word w. By inclusion and exclusion, the probability that
    all are set is a sum over i, where i_w of the distinct bits probed in word w are required to be
    missed, of a coefficient times the probability that no key sets any of them. A key falls into
    this block with probability 1/B, starts at each word equally likely, and misses i_w bits of a
    word with t probes with probability (1 − i_w/64)^t; g(i) is the product over the words, averaged
    over the starts. All n keys miss with probability (1 − (1 − g(i))/B)^n.
    """
    coefficients, misses = _blocked_terms(hashes)
    terms = coefficients * np.exp(keys * np.log1p((misses - 1) / blocks))
    total = float(terms.sum())
    return total if total > _ROUNDING else 0.0


@cache
def _blocked_terms(hashes: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The coefficients and g(i) of `_blocked_rate`, over all i."""
    full_rounds, rest = (hashes - 1) // WORDS, (hashes - 1) % WORDS + 1
    probes = [
        [full_rounds + ((word - first) % WORDS < rest) for word in range(WORDS)]
        for first in range(WORDS)
    ]
    probed = probes[0]  # by symmetry, the absent key may start at the first word
    missed = np.array(list(product(*(range(count + 1) for count in probed))))
    coefficients = np.prod(
        [np.array(_all_hit(count))[missed[:, word]] for word, count in enumerate(probed)], axis=0
    )
    by_first = [np.prod((1 - missed / 64) ** np.array(counts), axis=1) for counts in probes]
    return coefficients, np.mean(by_first, axis=0)


def _all_hit(probes: int) -> list[float]:
    """Coefficients of "all probed bits of a word are hit" by "i given bits are missed".

    ``probes`` independent positions among 64 are D distinct ones; all are hit with probability
    Σ_i (−1)^i·C(D, i)·P(i given bits are missed).
    """
    distinct = np.zeros(probes + 1)
    distinct[0] = 1
    for _ in range(probes):
        old = np.arange(probes + 1) / 64
        distinct = distinct * old + np.concatenate(([0.0], (distinct * (1 - old))[:-1]))
    return [
        sum((-1) ** i * math.comb(d, i) * float(distinct[d]) for d in range(i, probes + 1))
        for i in range(probes + 1)
    ]
