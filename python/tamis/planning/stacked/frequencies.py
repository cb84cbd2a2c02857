"""ψ(n): the fraction of the queries for absent keys that are for the n most frequent negatives.

A curve is concave, starts at 0 and ends at 1 − ℓ for all known negatives, where ℓ is the fraction
of queries for unseen values.
"""

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

_HEAD = 32
_POINTS = 1 << 16


class Frequencies(Protocol):
    """The interface of a workload to the planner."""

    @property
    def size(self) -> int:
        """The number of known negatives."""
        ...

    def psi(self, n: Any) -> Any:
        """Return the fraction of queries for the n most frequent negatives; n can be an array."""
        ...

    def rank(self, psi: float) -> int:
        """Return about the smallest n with this fraction."""
        ...


@dataclass(frozen=True)
class Zipf:
    """The curve of frequencies 1/rank^exponent over a universe, whose most frequent are known.

    Sums of powers are computed by the Euler–Maclaurin formula, without an array of the size of the
    universe.

    >>> curve = Zipf(1.0, 10**8, 5 * 10**7)
    >>> round(curve.psi(1_000_000), 6), round(curve.psi(curve.size), 6)
    (0.757596, 0.963515)
    """

    exponent: float
    universe: int
    size: int

    def psi(self, n: Any) -> Any:
        """Return the fraction of queries for the n most frequent negatives."""
        if isinstance(n, int):
            return self._sum_to(min(n, self.size)) / self._total
        return self._sums_to(np.minimum(n, self.size)) / self._total

    def rank(self, psi: float) -> int:
        """Return the smallest n with this fraction, or all."""
        return bisect.bisect_left(range(self.size), psi * self._total, key=self._sum_to)

    @cached_property
    def _total(self) -> float:
        return self._sum_to(self.universe)

    @cached_property
    def _first(self) -> npt.NDArray[np.float64]:
        ranks = np.arange(1, _HEAD + 1, dtype=float)
        return np.concatenate(([0.0], np.cumsum(ranks**-self.exponent)))

    def _sums_to(self, n: Any) -> Any:
        """Return Σ 1/i^s for i from 1 to n: the first terms exactly, the rest as an integral."""
        n = np.asarray(n, float)
        tail = self._tail(np.maximum(n, _HEAD), np.log)
        return np.where(n > _HEAD, tail, self._first[np.minimum(n, _HEAD).astype(int)])

    def _sum_to(self, n: int) -> float:
        """The same for one number, for searches."""
        return float(self._tail(n, math.log) if n > _HEAD else self._first[n])

    def _tail(self, end: Any, log: Callable[[Any], Any]) -> Any:
        s, start = self.exponent, float(_HEAD)
        integral = log(end / start) if s == 1 else (end ** (1 - s) - start ** (1 - s)) / (1 - s)
        ends = (end**-s - start**-s) / 2 - s / 12 * (end ** (-s - 1) - start ** (-s - 1))
        return self._total_of_first + integral + ends

    @cached_property
    def _total_of_first(self) -> float:
        return float(self._first[-1])


@dataclass(frozen=True, eq=False)
class Steps:
    """A curve through given points, linear between them: exact if frequencies are equal.

    ``ranks`` and ``mass`` start at 0 and rise.
    """

    ranks: npt.NDArray[np.float64]
    mass: npt.NDArray[np.float64]

    @classmethod
    def of(cls, frequencies: npt.NDArray[Any], *, total: float = 1.0) -> "Steps":
        """Return the curve of descending frequencies, scaled to ``total``.

        If there are more than 2^16 distinct ones, only the first 2^15 ranks, and as many others on
        a logarithmic scale, are kept. A chord is below a concave curve, so ψ is never overstated.

        >>> Steps.of(np.array([4, 2, 2]), total=0.5).psi([0, 1, 2, 3]).tolist()
        [0.0, 0.25, 0.375, 0.5]
        """
        known = len(frequencies)
        ends = np.flatnonzero(frequencies[1:] != frequencies[:-1]) + 1
        ends = np.concatenate(([0], ends, [known] if known else [])).astype(np.int64)
        if len(ends) > _POINTS:
            half = _POINTS // 2
            further = np.geomspace(half, known, half).astype(np.int64)
            ends = np.unique(np.concatenate((np.arange(half), further)))
        parts = np.add.reduceat(frequencies, ends[:-1], dtype=float) if known else np.zeros(0)
        mass = np.concatenate(([0.0], np.cumsum(parts)))
        return cls(ends.astype(float), mass * (total / mass[-1] if mass[-1] else 0.0))

    @property
    def size(self) -> int:
        """The number of known negatives."""
        return int(self.ranks[-1])

    def psi(self, n: Any) -> Any:
        """Return the fraction of queries for the n most frequent negatives."""
        answer = np.interp(n, self.ranks, self.mass)
        return float(answer) if np.ndim(n) == 0 else answer

    def rank(self, psi: float) -> int:
        """Return about the smallest n with this fraction."""
        return math.ceil(np.interp(psi, self.mass, self.ranks))
