"""How the rate of a truncated filter falls with the bits that are kept of it.

A curve holds many filters of one kind as arrays and answers for all of them at once:

* `rate(kept)`: the rate of each filter cut to its first ``kept`` bits;
* `worth(log_price, log_utility)`: how many bits each filter should keep if a bit costs
  ``exp(log_price)`` of weighted rate.

All curves are convex on whole bits (ribbons: on whole columns), so what is worth a price is a
prefix, and one price for all filters is the optimum of Mersy, Wang, Sintos, Krishnan 2024.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


class Curve(Protocol):
    """Filters of one kind, each with its rate by bits kept."""

    @property
    def bits(self) -> Ints:
        """The bits of each full filter."""
        ...

    def take(self, which: npt.NDArray[np.intp]) -> Self:
        """Select some of the filters."""
        ...

    def rate(self, kept: Ints) -> Floats:
        """Predict the rate of each filter cut to its first bits."""
        ...

    def worth(self, log_price: float, log_utility: Floats) -> Ints:
        """Tell how many bits of each are worth this price."""
        ...


class Arrays:
    """Equally long arrays that are selected from together."""

    def take(self, which: npt.NDArray[np.intp]) -> Self:
        """Select some of the filters."""
        return type(self)(*(getattr(self, field.name)[which] for field in fields(self)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Truncated(Arrays):
    """Bloom filters whose probes fall anywhere: m bits, k hashes, n keys.

    Of k probes, V ~ Bin(k, p) fall into the share p = m'/m that is kept, so the rate is E[w^V] with
    w = 1 − (1 − 1/m)^(kn), which the paper sums (Eq. 3) and which is (1 − p(1−w))^k.
    """

    bits: Ints
    hashes: Ints
    keys: Ints

    @cached_property
    def _zeros(self) -> Floats:
        """1 − w: the share of bits that no key sets."""
        with np.errstate(divide="ignore"):
            lone = np.log1p(-1 / np.maximum(self.bits, 1))
        zeros: Floats = np.exp(np.maximum(self.hashes * self.keys, 1e-300) * lone)
        return zeros

    @cached_property
    def _log_slope(self) -> Floats:
        """Log of what the first bit gains: k·(1−w)/m."""
        with np.errstate(divide="ignore"):
            return np.log(self.hashes * self._zeros / np.maximum(self.bits, 1))

    def rate(self, kept: Ints) -> Floats:
        """(1 − p(1−w))^k."""
        share = kept / np.maximum(self.bits, 1)
        rate: Floats = np.power(1 - share * self._zeros, self.hashes)
        return np.where(self.keys > 0, rate, 0.0)

    def worth(self, log_price: float, log_utility: Floats) -> Ints:
        """Where the derivative is the price, corrected to whole bits by the gain of a bit."""
        k, slope = self.hashes, self._zeros / np.maximum(self.bits, 1)
        # −d/dm' (1 − s·m')^k = k·s·(1 − s·m')^(k−1) ≥ price
        with np.errstate(divide="ignore", invalid="ignore"):
            first = log_utility + self._log_slope
            base = np.exp((log_price - first) / np.maximum(k - 1, 1))
            place = (1 - base) / slope
        place = np.where(k > 1, place, np.where(first >= log_price, self.bits, 0))
        place = np.clip(np.nan_to_num(place, nan=0.0), 0, self.bits)
        found = place.astype(np.int64)
        # The derivative is that gain at a point of the next bit, by Rolle; it is the middle but for
        # a share of a bit that is far below k·s.
        beyond = place - found - 0.5
        close = np.flatnonzero(np.abs(beyond) <= k * slope)
        more = beyond > 0
        near = self.take(close)
        gain = near._log_gain(found[close], slope[close], log_utility[close])
        more[close] = (found[close] < near.bits) & (gain >= log_price)
        found += more
        return np.where((self.keys > 0) & (slope > 0), found, 0)

    def _log_gain(self, kept: Ints, slope: Floats, log_utility: Floats) -> Floats:
        """Log of utility × (rate with ``kept`` bits − rate with one more), without cancellation."""
        with np.errstate(divide="ignore", invalid="ignore"):
            base = np.maximum(1 - slope * kept, 0)
            drop = -np.expm1(self.hashes * np.log1p(-np.minimum(slope / base, 1)))
            gain: Floats = log_utility + self.hashes * np.log(base) + np.log(drop)
        return np.nan_to_num(gain, nan=-np.inf)


@dataclass(frozen=True)
class Segmented(Arrays):
    """Bloom filters whose probe j stays in segment j: m bits, k hashes, n keys.

    A prefix keeps the first segments whole, each a factor w = 1 − (1 − 1/length)^n, and a share of
    the next: the paper's lower bound (Eq. 4) at each whole segment. Segments have ⌊m/k⌋ bits, the
    first m mod k one more.
    """

    bits: Ints
    hashes: Ints
    keys: Ints

    @cached_property
    def _segments(self) -> tuple[Ints, Ints, Floats, Floats]:
        """Return the short length, how many are longer, and 1 − w of the long and the short."""
        length, longer = np.divmod(self.bits, np.maximum(self.hashes, 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            long, short = (
                np.where(self.keys > 0, np.exp(self.keys * np.log1p(-1 / each)), 1.0)
                for each in (length + 1, length)
            )
        return length, longer, long, np.nan_to_num(short, nan=0.0)

    def rate(self, kept: Ints) -> Floats:
        """w^whole·(1 − part·(1−w))."""
        length, longer, long, short = self._segments
        in_long = np.minimum(kept, longer * (length + 1))
        first, rest = np.divmod(in_long, length + 1)
        rate = (1 - long) ** first * (1 - rest / (length + 1) * long)
        second, rest = np.divmod(kept - in_long, np.maximum(length, 1))
        rate = rate * (1 - short) ** second * (1 - rest / np.maximum(length, 1) * short)
        return np.where(self.keys > 0, rate, 0.0)

    def worth(self, log_price: float, log_utility: Floats) -> Ints:
        """Whole segments: a bit of segment j gains w^j·(1−w)/length."""
        length, longer, long, short = self._segments
        with np.errstate(divide="ignore", invalid="ignore"):
            decay_long, decay_short = np.log1p(-long), np.log1p(-short)
            start = log_utility + np.log(long / (length + 1))
            first = np.clip(_steps(start - log_price, -decay_long), 0, longer)
            start = log_utility + longer * decay_long + np.log(short / np.maximum(length, 1))
            second = np.clip(_steps(start - log_price, -decay_short), 0, self.hashes - longer)
        second = np.where(first == longer, second, 0)
        return np.where(self.keys > 0, first * (length + 1) + second * length, 0)


@dataclass(frozen=True)
class Ribbon(Arrays):
    """Ribbon filters by columns: slots of a column, columns, rows' width, bits before the columns.

    Each column kept halves the rate. A part of one tells only of rows that lie inside it, so a plan
    takes whole columns and gives the remainder to one filter that can use it.
    """

    slots: Ints
    columns: Ints
    width: Ints
    codes: Ints
    keys: Ints

    @property
    def bits(self) -> Ints:
        """The bits of each full filter."""
        return np.where(self.keys > 0, self.codes + self.slots * self.columns, 0)

    def whole(self, kept: Ints) -> tuple[Ints, Ints]:
        """Return the columns kept and the bits behind them."""
        columns, rest = np.divmod(np.maximum(kept - self.codes, 0), np.maximum(self.slots, 1))
        return np.minimum(columns, self.columns), np.where(columns < self.columns, rest, 0)

    def rate(self, kept: Ints) -> Floats:
        """2^−columns, and half of it for the rows inside the part that follows."""
        columns, rest = self.whole(kept)
        starts = np.maximum(self.slots - self.width + 1, 1)
        inside = np.clip((rest - self.width + 1) / starts, 0, 1)
        rate = 0.5**columns * (1 - inside / 2)
        return np.where(self.keys > 0, rate, 0.0)

    def worth(self, log_price: float, log_utility: Floats) -> Ints:
        """Whole columns: a bit of column j gains 2^−(j+1)/slots, the first also pays the codes."""
        slots = np.maximum(self.slots, 1)
        first = log_utility - np.log(2 * (slots + self.codes)) >= log_price
        second = log_utility - np.log(4 * slots)
        more = _steps(second - log_price, np.full(len(slots), np.log(2)))
        columns = np.clip(1 + more, 1, np.maximum(self.columns, 1))
        return np.where(first & (self.keys > 0), self.codes + slots * columns, 0)


@dataclass(frozen=True)
class Exponential(Arrays):
    """A rate of exp(−decay·kept): the paper's relaxations, which a plan may minimize instead."""

    bits: Ints
    decay: Floats

    def rate(self, kept: Ints) -> Floats:
        """exp(−decay·kept)."""
        return np.exp(-self.decay * kept)

    def worth(self, log_price: float, log_utility: Floats) -> Ints:
        """Bit j gains exp(−decay·j)·(1 − exp(−decay))."""
        with np.errstate(divide="ignore"):
            start = log_utility + np.log(-np.expm1(-self.decay))
        return np.clip(_steps(start - log_price, self.decay), 0, self.bits)


def _steps(above: Floats, decay: Floats) -> Ints:
    """How many steps have a gain at or above the price: j = 0, 1, … while above − j·decay ≥ 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        steps = np.floor(above / decay) + 1
    # A decay of 0 never ends, one that is infinite ends with the first step.
    steps = np.where(np.isnan(steps), np.where(above >= 0, 1.0, 0.0), steps)
    return np.where(above >= 0, np.minimum(steps, 2.0**52), 0).astype(np.int64)
