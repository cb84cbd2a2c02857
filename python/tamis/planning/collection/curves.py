"""How the false-positive rate of a truncated filter falls with the bits kept.

A curve holds many filters of one kind as arrays:

* `rate(kept)`: the rate of each filter cut to its first ``kept`` bits;
* `worth(log_price, log_utility)`: how many bits each filter should keep if a bit costs
  ``exp(log_price)`` of weighted rate.

All curves are convex in whole bits (ribbons: in whole columns). So the bits worth a price are a
prefix, and one price for all filters gives the optimum of Mersy, Wang, Sintos, Krishnan 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Weights: TypeAlias = npt.NDArray[np.float32]
"""Utilities in memory."""


class Curve(Protocol):
    """Filters of one kind, and their rates as functions of the bits kept."""

    @property
    def bits(self) -> Ints:
        """Bits of each full filter."""
        ...

    def take(self, which: npt.NDArray[np.intp]) -> Self:
        """Select some of the filters."""
        ...

    def rate(self, kept: Ints) -> Floats:
        """Predict the rate of each filter cut to its first bits."""
        ...

    def worth(self, log_price: float, log_utility: Floats) -> Ints:
        """Return how many bits of each filter are worth this price."""
        ...


class Arrays:
    """Arrays of equal length that are indexed together."""

    def take(self, which: npt.NDArray[np.intp]) -> Self:
        """Select some of the filters, including their cached values."""
        given = [field.name for field in fields(self)]  # type: ignore[arg-type]
        taken = type(self)(*(getattr(self, name)[which] for name in given))
        for name in vars(self).keys() - set(given):
            value = vars(self)[name]
            vars(taken)[name] = value.take(which) if isinstance(value, Arrays) else value[which]
        return taken


@dataclass(frozen=True)
class Truncated(Arrays):
    """Bloom filters whose probes fall anywhere: m bits, k hashes, n keys.

    Of k probes, V ~ Bin(k, p) fall into the fraction p = m'/m that is kept, so the rate is E[w^V]
    with w = 1 − (1 − 1/m)^(kn). The paper sums it (Eq. 3); the closed form is (1 − p(1−w))^k.

    The fraction W of bits that are set varies, and E[W^k] is above w^k (Bose et al. 2008): twice as
    high with 3 keys, by 1 % with 100. So w is raised until w^k is about E[W^k].
    """

    bits: Ints
    hashes: Ints
    keys: Ints

    @cached_property
    def _zeros(self) -> Floats:
        """1 − w: the fraction of bits that no key sets."""
        bits = np.maximum(self.bits, 1)
        with np.errstate(divide="ignore"):
            lone = np.log1p(-1 / bits)
        zeros: Floats = np.exp(np.maximum(self.hashes * self.keys, 1e-300) * lone)
        # The variance of the number of bits that are set, if b = kn probes fall into m bits, is
        # m·(z − (1 + b/m)·z²) with z = exp(−b/m). E[W^k] ≈ w^k·exp(k(k−1)/2·Var[W]/w²).
        load = self.hashes * self.keys / bits
        variance = np.maximum(zeros - (1 + load) * zeros**2, 0) / bits
        ones = np.maximum(1 - zeros, 1e-15)
        above = np.minimum((self.hashes - 1) / 2 * variance / ones**2, 50)
        return np.where(self.keys > 0, 1 - np.minimum(ones * np.exp(above), 1), 1.0)

    @cached_property
    def _log_slope(self) -> Floats:
        """Log of the gain of the first bit: k·(1−w)/m."""
        with np.errstate(divide="ignore"):
            return np.log(self.hashes * self._slope)

    @cached_property
    def _slope(self) -> Floats:
        """The slope s in the rate (1 − s·m')^k: (1−w)/m; 0 without keys."""
        slope: Floats = np.where(self.keys > 0, self._zeros / np.maximum(self.bits, 1), 0.0)
        return slope

    @cached_property
    def _end(self) -> Floats:
        """1/s: where the rate would be 0."""
        with np.errstate(divide="ignore"):
            return np.where(self._slope > 0, 1 / self._slope, 0.0)

    def rate(self, kept: Ints) -> Floats:
        """(1 − p(1−w))^k."""
        share = kept / np.maximum(self.bits, 1)
        rate: Floats = np.power(1 - share * self._zeros, self.hashes)
        return np.where(self.keys > 0, rate, 0.0)

    def worth(self, log_price: float, log_utility: Floats) -> Ints:
        """Solve for the derivative at the price, then round by the exact gain of a bit."""
        k, slope = self.hashes, self._slope
        # −d/dm' (1 − s·m')^k = k·s·(1 − s·m')^(k−1) ≥ price
        above = log_price - log_utility
        above -= self._log_slope
        single = k <= 1
        base = above / np.maximum(k - 1, 1)
        np.exp(np.minimum(base, 0.0, out=base), out=base)
        place = np.minimum((1 - base) * self._end, self.bits)
        if single.any():
            place[single] = np.where(above <= 0, self.bits, 0)[single]
        found = place.astype(np.int64)
        # By the mean value theorem the gain of the next bit is the derivative at a point within it:
        # the middle, up to far less than k·s of a bit.
        beyond = place
        beyond -= found
        beyond -= 0.5
        more = beyond > 0
        close = np.flatnonzero(np.abs(beyond, out=beyond) <= k * slope)
        near = self.take(close)
        gain = near._log_gain(found[close], near._slope, log_utility[close])
        more[close] = (found[close] < near.bits) & (gain >= log_price)
        found += more
        return found

    def _log_gain(self, kept: Ints, slope: Floats, log_utility: Floats) -> Floats:
        """Log of utility × (rate with ``kept`` bits − rate with one more), without cancellation."""
        with np.errstate(divide="ignore", invalid="ignore"):
            base = np.maximum(1 - slope * kept, 0)
            drop = -np.expm1(self.hashes * np.log1p(-np.minimum(slope / base, 1)))
            gain: Floats = log_utility + self.hashes * np.log(base) + np.log(drop)
        return np.nan_to_num(gain, nan=-np.inf)


@dataclass(frozen=True)
class _Segments(Arrays):
    """Length of the short segments, number of longer ones, and 1 − w of the long and the short."""

    length: Ints
    longer: Ints
    long: Floats
    short: Floats

    @cached_property
    def logs(self) -> _Logs:
        with np.errstate(divide="ignore", invalid="ignore"):
            return _Logs(
                np.log(self.long / (self.length + 1)),
                -np.log1p(-self.long),
                np.log(self.short / np.maximum(self.length, 1)),
                -np.log1p(-self.short),
            )


@dataclass(frozen=True)
class _Logs(Arrays):
    """Logs of the gain of a bit of the first long segment, and of 1/w; likewise for the short."""

    long: Floats
    long_decay: Floats
    short: Floats
    short_decay: Floats


@dataclass(frozen=True)
class Segmented(Arrays):
    """Bloom filters whose probe j stays in segment j: m bits, k hashes, n keys.

    A prefix keeps the first segments whole, each a factor w = 1 − (1 − 1/length)^n, and a part of
    the next. At whole segments this is the paper's lower bound (Eq. 4). Segments have ⌊m/k⌋ bits,
    the first m mod k one more.
    """

    bits: Ints
    hashes: Ints
    keys: Ints

    @cached_property
    def _segments(self) -> _Segments:
        length, longer = np.divmod(self.bits, np.maximum(self.hashes, 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            long, short = (
                np.where(self.keys > 0, np.exp(self.keys * np.log1p(-1 / each)), 1.0)
                for each in (length + 1, length)
            )
        return _Segments(length, longer, long, np.nan_to_num(short, nan=0.0))

    def rate(self, kept: Ints) -> Floats:
        """w^whole·(1 − part·(1−w))."""
        s = self._segments
        length, longer, long, short = s.length, s.longer, s.long, s.short
        in_long = np.minimum(kept, longer * (length + 1))
        first, rest = np.divmod(in_long, length + 1)
        rate = (1 - long) ** first * (1 - rest / (length + 1) * long)
        second, rest = np.divmod(kept - in_long, np.maximum(length, 1))
        rate = rate * (1 - short) ** second * (1 - rest / np.maximum(length, 1) * short)
        return np.where(self.keys > 0, rate, 0.0)

    def worth(self, log_price: float, log_utility: Floats) -> Ints:
        """Whole segments: a bit of segment j gains w^j·(1−w)/length."""
        length, longer, logs = self._segments.length, self._segments.longer, self._segments.logs
        above = log_utility - log_price
        with np.errstate(invalid="ignore"):
            first = np.clip(_steps(above + logs.long, logs.long_decay), 0, longer)
            above += logs.short - longer * logs.long_decay
            second = np.clip(_steps(above, logs.short_decay), 0, self.hashes - longer)
        second = np.where(first == longer, second, 0)
        return np.where(self.keys > 0, first * (length + 1) + second * length, 0)


@dataclass(frozen=True)
class Ribbon(Arrays):
    """Ribbon filters by columns: slots per column, columns, row width, bits before the columns.

    Each column halves the rate. A part of a column only checks the rows that lie inside it, so a
    plan takes whole columns and gives the remainder to one filter that can use it.
    """

    slots: Ints
    columns: Ints
    width: Ints
    codes: Ints
    keys: Ints

    @property
    def bits(self) -> Ints:
        """Bits of each full filter."""
        return np.where(self.keys > 0, self.codes + self.slots * self.columns, 0)

    @cached_property
    def log_first(self) -> Floats:
        """Log of the gain of a bit of the codes and the first column."""
        logs: Floats = -np.log(2 * np.maximum(self.slots + self.codes, 1))
        return np.where(self.keys > 0, logs, -np.inf)

    @cached_property
    def log_second(self) -> Floats:
        """Log of the gain of a bit of the second column."""
        logs: Floats = -np.log(4 * np.maximum(self.slots, 1))
        return logs

    def whole_columns(self, kept: Ints) -> tuple[Ints, Ints]:
        """Return the whole columns kept, and the bits after them."""
        behind = np.maximum(kept - self.codes, 0)
        # Exact, as bits are below 2**48 and columns at most 32, and faster than integer division.
        columns = (behind / np.maximum(self.slots, 1)).astype(np.int64)
        rest = behind - columns * self.slots
        return np.minimum(columns, self.columns), np.where(columns < self.columns, rest, 0)

    def rate(self, kept: Ints) -> Floats:
        """2^−columns, and half of it for rows inside the part that follows."""
        columns, rest = self.whole_columns(kept)
        starts = np.maximum(self.slots - self.width + 1, 1)
        inside = np.clip((rest - self.width + 1) / starts, 0, 1)
        rate = np.ldexp(1 - inside / 2, -columns.astype(np.int32))
        return np.where(self.keys > 0, rate, 0.0)

    def worth(self, log_price: float, log_utility: Floats) -> Ints:
        """Whole columns: a bit of column j gains 2^−(j+1)/slots; the first also pays the codes."""
        above = log_utility - log_price
        first = above + self.log_first >= 0
        above += self.log_second
        columns = np.clip(np.floor(above / np.log(2)) + 2, 1, self.columns).astype(np.int64)
        return np.where(first, self.codes + self.slots * columns, 0)


@dataclass(frozen=True)
class Exponential(Arrays):
    """A rate of exp(−decay·kept), as in the paper's relaxations."""

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


@dataclass(frozen=True)
class Mixed:
    """Filters of several kinds, each with its own curve; ``slice(None)`` selects all."""

    parts: tuple[tuple[npt.NDArray[np.intp] | slice, Curve], ...]
    length: int

    @classmethod
    def of(
        cls,
        which: npt.NDArray[np.uint8],
        curves: Sequence[Curve],
        sizes: npt.NDArray[np.intp] | None = None,
    ) -> Mixed:
        """Take filter i from ``curves[which[i]]``, at index i, or ``sizes[i]`` if given."""
        numbers = np.bincount(which, minlength=len(curves)).tolist()
        if len(which) in numbers and len(which) > 0:
            curve = curves[numbers.index(len(which))]
            return cls(((slice(None), curve if sizes is None else curve.take(sizes)),), len(which))
        chosen = ((np.flatnonzero(which == i), curve) for i, curve in enumerate(curves))
        parts = tuple(
            (own, curve.take(own if sizes is None else sizes[own]))
            for own, curve in chosen
            if len(own)
        )
        return cls(parts, len(which))

    def _ints(self, answer: Callable[[npt.NDArray[np.intp] | slice, Curve], Ints]) -> Ints:
        if len(self.parts) == 1:
            return answer(*self.parts[0])
        out = np.zeros(self.length, np.int64)
        for own, curve in self.parts:
            out[own] = answer(own, curve)
        return out

    @property
    def bits(self) -> Ints:
        """Bits of each full filter."""
        return self._ints(lambda _, curve: curve.bits)

    def take(self, which: npt.NDArray[np.intp]) -> Mixed:
        """Select some of the filters; a sample may have one several times."""
        if len(self.parts) == 1:
            return Mixed(((slice(None), self.parts[0][1].take(which)),), len(which))
        part_of, index = np.empty(self.length, np.uint8), np.empty(self.length, np.intp)
        for i, (own, curve) in enumerate(self.parts):
            part_of[own], index[own] = i, np.arange(len(curve.bits))
        parts: list[tuple[npt.NDArray[np.intp] | slice, Curve]] = []
        for i, (_, curve) in enumerate(self.parts):
            places = np.flatnonzero(part_of[which] == i)
            if len(places):
                taken = curve.take(index[which[places]])
                parts.append((places if len(places) < len(which) else slice(None), taken))
        return Mixed(tuple(parts), len(which))

    def rate(self, kept: Ints) -> Floats:
        """Predict the rate of each filter cut to its first bits."""
        if len(self.parts) == 1:
            return self.parts[0][1].rate(kept)
        out = np.zeros(self.length)
        for own, curve in self.parts:
            out[own] = curve.rate(kept[own])
        return out

    def worth(self, log_price: float, log_utility: Floats) -> Ints:
        """Return how many bits of each filter are worth this price."""
        return self._ints(lambda own, curve: curve.worth(log_price, log_utility[own]))


def _steps(above: Floats, decay: Floats) -> Ints:
    """Return how many steps gain at least the price: j = 0, 1, … while above − j·decay ≥ 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        steps = np.floor(above / decay) + 1
    # With a decay of 0 there is no last step; with an infinite one, the first step is the last.
    steps = np.where(np.isnan(steps), np.where(above >= 0, 1.0, 0.0), steps)
    return np.where(above >= 0, np.minimum(steps, 2.0**52), 0).astype(np.int64)
