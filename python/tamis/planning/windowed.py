"""Windowed filters: slices, generations and bits for a rate or a budget.

With k slices per key and l generations remembered, a slice of age a has the keys of min(a + 1, k)
generations of g keys; the newest generation is assumed to be complete, which is the worst moment.
An absent key is accepted if k consecutive slices of k + l have its bits (``src/windowed/``).
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tamis._checks import rate_or_budget

MAX_SLICES = 48
"""The largest number of slices to try. A query reads about 2(k + l)/k of them, and more slices save
little: at a rate of 1 %, 32 slices need 20.2 bits per key of the window, 48 need 19.7, and any
number needs at least 19.6."""

MIN_STEP = 1e-6
"""Seconds of a generation, at least, as in the kernel."""

MAX_SECONDS = 1e15
"""Seconds of a window, at most."""

_WORD = 64
_AT_ONCE = 62
# Keys of a generation per bit of a slice: from slices that are next to empty to full ones.
_LOADS = np.geomspace(1e-6, 3.0, 600)


class WindowedSize(NamedTuple):
    """A windowed filter's size: k, l, bits per slice, and keys per generation."""

    hashes: int
    ages: int
    slice_bits: int
    generation: int

    @property
    def bits(self) -> int:
        """The bits of all slices."""
        return (self.hashes + self.ages) * self.slice_bits

    def rate(self) -> float:
        """Predict the rate just before a slice is dropped, when it is highest.

        >>> round(WindowedSize(10, 38, 4096, 270).rate(), 4)
        0.0121
        """
        load = -math.log1p(-1 / self.slice_bits) * self.generation
        return float(_rates(self.hashes, self.ages, np.array([load]))[self.ages - 1, 0])


def size(
    window: int, *, fpr: float | None = None, bits_per_key: float | None = None
) -> WindowedSize:
    """Find the smallest filter with at most this rate, or the best one within this budget.

    >>> size(10_000, fpr=0.01)
    WindowedSize(hashes=9, ages=38, slice_bits=4224, generation=264)
    >>> size(10_000, bits_per_key=20).bits <= 200_000
    True
    """
    fpr, bits_per_key = rate_or_budget(fpr, bits_per_key)
    window = max(window, 1)
    if fpr is not None:
        return min(_for_rate(window, fpr), key=lambda found: found.bits)
    assert bits_per_key is not None
    return min(_for_bits(window, math.floor(window * bits_per_key)), key=WindowedSize.rate)


def _for_rate(window: int, fpr: float) -> list[WindowedSize]:
    found = []
    for hashes in range(1, MAX_SLICES):
        for ages, load in enumerate(_loads(hashes, fpr), start=1):
            if load == 0 or ages > window:
                continue
            generation = math.ceil(window / ages)
            words = math.ceil(generation / load / _WORD)
            found.append(WindowedSize(hashes, ages, words * _WORD, generation))
    if not found:
        raise ValueError(f"fpr must be at least about 1e-9 for a windowed filter, not {fpr}")
    best = sorted(found, key=lambda size: size.bits)[:64]
    # The loads are interpolated, so the last word is determined by the exact rate.
    return [_fewest_words(size, fpr) for size in best]


def _fewest_words(size: WindowedSize, fpr: float) -> WindowedSize:
    """Find the fewest words per slice with at most this rate, a few dozen candidates at a time."""
    low, high = 0, size.slice_bits // _WORD  # too few, and enough
    while size._replace(slice_bits=high * _WORD).rate() > fpr:
        low, high = high, 2 * high
    while high - low > 1:
        words = np.unique(np.linspace(low + 1, high - 1, _AT_ONCE).astype(np.int64))
        loads = -np.log1p(-1 / (words * _WORD)) * size.generation
        enough = _rates(size.hashes, size.ages, loads)[size.ages - 1] <= fpr
        first = int(enough.argmax()) if enough.any() else len(words)
        low = int(words[first - 1]) if first else low
        high = int(words[first]) if first < len(words) else high
    return size._replace(slice_bits=high * _WORD)


def _for_bits(window: int, bits: int) -> list[WindowedSize]:
    found = []
    for hashes in range(1, MAX_SLICES):
        for ages in range(1, min(MAX_SLICES - hashes, window) + 1):
            words = bits // (hashes + ages) // _WORD
            if words:
                found.append(WindowedSize(hashes, ages, words * _WORD, math.ceil(window / ages)))
    if not found:  # fewer bits than two words: the smallest filter
        return [WindowedSize(1, 1, _WORD, window)]
    return _best_ages(found)


def _best_ages(sizes: list[WindowedSize]) -> list[WindowedSize]:
    """Keep, for each number of hashes (k), the ages (l) with the lowest rate."""
    best = []
    for hashes in {size.hashes for size in sizes}:
        same = [size for size in sizes if size.hashes == hashes]
        loads = np.array([size.generation / size.slice_bits for size in same])
        rates = _rates(hashes, max(size.ages for size in same), loads)
        own = rates[[size.ages - 1 for size in same], range(len(same))]
        best.append(same[int(own.argmin())])
    return best


@lru_cache(maxsize=4096)
def _loads(hashes: int, fpr: float) -> tuple[float, ...]:
    """Return for each l the keys of a generation per bit of a slice at this rate."""
    rates = _rates(hashes, MAX_SLICES - hashes, _LOADS)
    with np.errstate(divide="ignore"):
        logs = np.log(rates)
    loads = [np.exp(np.interp(math.log(fpr), row, np.log(_LOADS), left=-np.inf)) for row in logs]
    return tuple(float(load) for load in loads)


def _rates(hashes: int, max_ages: int, loads: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the rate for l = 1 to ``max_ages`` (rows) and each load."""
    runs = np.zeros((hashes, len(loads)))  # P(the last i slices had the bit)
    runs[0] = 1
    found = np.zeros(len(loads))
    rows = []
    for age in range(hashes + max_ages):
        has_bit = -np.expm1(-min(age + 1, hashes) * loads)
        total = runs.sum(axis=0)
        found = found + runs[-1] * has_bit
        runs[1:] = runs[:-1] * has_bit
        runs[0] = total * (1 - has_bit)
        if age >= hashes:
            rows.append(found)
    return np.array(rows)
