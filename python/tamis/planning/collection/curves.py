"""How the rate of a truncated filter falls with the bits that are kept of it.

A curve holds many filters of one kind as arrays and answers for all of them at once:

* `rate(kept)`: the rate of each filter cut to its first ``kept`` bits;
* `worth(log_price, log_utility)`: how many bits each filter should keep if a bit costs
  ``exp(log_price)`` of weighted rate.

All curves are convex on whole bits (ribbons: on whole columns), so what is worth a price is a
prefix, and one price for all filters is the optimum of Mersy, Wang, Sintos, Krishnan 2024.
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
        """Select some of the filters, with what was computed of them already."""
        given = [field.name for field in fields(self)]  # type: ignore[arg-type]
        taken = type(self)(*(getattr(self, name)[which] for name in given))
        for name in vars(self).keys() - set(given):
            value = vars(self)[name]
            vars(taken)[name] = value.take(which) if isinstance(value, Arrays) else value[which]
        return taken


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
            return np.log(self.hashes * self._slope)

    @cached_property
    def _slope(self) -> Floats:
        """What a bit takes off 1 − s·m', whose k-th power is the rate: (1−w)/m; 0 without keys."""
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
        """Where the derivative is the price, corrected to whole bits by the gain of a bit."""
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
        # The derivative is that gain at a point of the next bit, by Rolle; it is the middle but for
        # a share of a bit that is far below k·s.
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
    """The short length, how many segments are longer, and 1 − w of the long and the short."""

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
    """Logs of what a bit of the first long segment gains, and of 1/w; likewise of the short."""

    long: Floats
    long_decay: Floats
    short: Floats
    short_decay: Floats


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

    @cached_property
    def log_first(self) -> Floats:
        """Log of what a bit gains of the codes and the first column."""
        logs: Floats = -np.log(2 * np.maximum(self.slots + self.codes, 1))
        return np.where(self.keys > 0, logs, -np.inf)

    @cached_property
    def log_second(self) -> Floats:
        """Log of what a bit of the second column gains."""
        logs: Floats = -np.log(4 * np.maximum(self.slots, 1))
        return logs

    def whole(self, kept: Ints) -> tuple[Ints, Ints]:
        """Return the columns kept and the bits behind them."""
        behind = np.maximum(kept - self.codes, 0)
        # Bits are below 2**48 and columns at most 32, so this is exact, and quicker than whole
        # numbers are divided.
        columns = (behind / np.maximum(self.slots, 1)).astype(np.int64)
        rest = behind - columns * self.slots
        return np.minimum(columns, self.columns), np.where(columns < self.columns, rest, 0)

    def rate(self, kept: Ints) -> Floats:
        """2^−columns, and half of it for the rows inside the part that follows."""
        columns, rest = self.whole(kept)
        starts = np.maximum(self.slots - self.width + 1, 1)
        inside = np.clip((rest - self.width + 1) / starts, 0, 1)
        rate = np.ldexp(1 - inside / 2, -columns.astype(np.int32))
        return np.where(self.keys > 0, rate, 0.0)

    def worth(self, log_price: float, log_utility: Floats) -> Ints:
        """Whole columns: a bit of column j gains 2^−(j+1)/slots, the first also pays the codes."""
        above = log_utility - log_price
        first = above + self.log_first >= 0
        above += self.log_second
        columns = np.clip(np.floor(above / np.log(2)) + 2, 1, self.columns).astype(np.int64)
        return np.where(first, self.codes + self.slots * columns, 0)


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


@dataclass(frozen=True)
class Mixed:
    """Filters of several kinds, each on the curve of its own; ``slice(None)`` are all."""

    parts: tuple[tuple[npt.NDArray[np.intp] | slice, Curve], ...]
    length: int

    @classmethod
    def of(
        cls,
        which: npt.NDArray[np.uint8],
        curves: Sequence[Curve],
        sizes: npt.NDArray[np.intp] | None = None,
    ) -> Mixed:
        """Take filter i from ``curves[which[i]]``, where it is number i, or ``sizes[i]``."""
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
        """The bits of each full filter."""
        return self._ints(lambda _, curve: curve.bits)

    def take(self, which: npt.NDArray[np.intp]) -> Mixed:
        """Select some of the filters."""
        if len(self.parts) == 1:
            return Mixed(((slice(None), self.parts[0][1].take(which)),), len(which))
        place = np.full(self.length, -1, np.intp)
        place[which] = np.arange(len(which))
        parts: list[tuple[npt.NDArray[np.intp] | slice, Curve]] = []
        for own, curve in self.parts:
            chosen = np.flatnonzero(place[own] >= 0)
            if len(chosen):
                parts.append((place[own][chosen], curve.take(chosen)))
        if len(parts) == 1:
            ((places, curve),) = parts
            parts = [(slice(None), curve.take(np.argsort(np.arange(len(which))[places])))]
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
        """Tell how many bits of each are worth this price."""
        return self._ints(lambda own, curve: curve.worth(log_price, log_utility[own]))


def _steps(above: Floats, decay: Floats) -> Ints:
    """How many steps have a gain at or above the price: j = 0, 1, … while above − j·decay ≥ 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        steps = np.floor(above / decay) + 1
    # A decay of 0 never ends, one that is infinite ends with the first step.
    steps = np.where(np.isnan(steps), np.where(above >= 0, 1.0, 0.0), steps)
    return np.where(above >= 0, np.minimum(steps, 2.0**52), 0).astype(np.int64)
