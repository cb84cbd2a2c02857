"""Streams of queries to measure filters with: seeded, and fast enough to be forgotten.

Each generator gives unsigned 64-bit keys. A key stands for a *rank*, 0 for the first: `ranked` maps
ranks to keys that look random and never collide, by the seed alone. So members and queries are
chosen by rank, and ranks that no stream reaches make keys that are never asked for.

>>> members = ranked(range(1000, 2000), seed=1)
>>> queries = zipf(5000, exponent=1.0, universe=1000, seed=1)
>>> bool(np.isin(queries, members).any())
False

References: Hörmann, Derflinger 1996 (sampling Zipf's law); Anderson, Plimpton 2015 (FireHose);
Lee, McCauley, Singh, Stein 2021, section 6 (the adversary).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tamis.planning.arguments import whole

__all__ = ["Adversary", "active_set", "phase_shift", "power_law", "ranked", "uniform", "zipf"]

Integers: TypeAlias = npt.NDArray[np.uint64]
Reals: TypeAlias = npt.NDArray[np.float64]

_PIECE = 1 << 15
"""Keys made at a time: the arrays of a piece stay in the second-level cache."""

_MOST = 2**48
"""The most ranks: a double still tells neighbours apart when a rank is rounded from one."""


def ranked(ranks: npt.ArrayLike | Iterable[int], *, seed: int = 0) -> Integers:
    """Return the key of each rank: one-to-one, and scattered over all 64-bit integers.

    >>> len(np.unique(ranked(range(1000), seed=3)))
    1000
    """
    if isinstance(ranks, range):
        ranks = np.arange(ranks.start, ranks.stop, ranks.step, dtype=np.uint64)
    keys = np.array(ranks, dtype=np.uint64)
    for start in range(0, len(keys), _PIECE):
        _scatter(keys[start : start + _PIECE], seed)
    return keys


def uniform(n: int, *, universe: int, seed: int = 0) -> Integers:
    """Return n queries, each of the ranks below ``universe`` equally likely.

    >>> len(np.unique(uniform(10_000, universe=100)))
    100
    """
    n, universe = whole("n", n, _MOST), _some("universe", universe)
    random = _random(seed)
    return _stream(n, seed, lambda at, m: random.integers(0, universe, m, dtype=np.uint64))


def zipf(n: int, *, exponent: float = 1.0, universe: int = 10**6, seed: int = 0) -> Integers:
    """Return n queries of Zipf's law: rank r, from 0, with probability ∝ (r + 1)^−exponent.

    >>> queries = zipf(10_000, exponent=1.0, universe=1000, seed=5)
    >>> bool((queries == ranked([0], seed=5)).mean() > 0.1)
    True
    """
    n, universe = whole("n", n, _MOST), _some("universe", universe)
    draw = _zipf_ranks(_exponent(exponent), universe, _random(seed))
    return _stream(n, seed, lambda at, m: draw(m))


def phase_shift(
    n: int, *, exponent: float = 1.0, universe: int = 10**6, at: float = 0.5, seed: int = 0
) -> Integers:
    """Return n queries of Zipf's law whose popularity is reversed after the share ``at`` of them.

    Before the shift it is the stream of `zipf`; after it rank r is asked for as often as rank
    ``universe`` − 1 − r was.

    >>> queries = phase_shift(10_000, universe=1000, seed=5)
    >>> bool((queries[5000:] == ranked([999], seed=5)).mean() > 0.1)
    True
    """
    n, universe = whole("n", n, _MOST), _some("universe", universe)
    if not 0 <= at <= 1:
        raise ValueError(f"at is {at}; a share from 0 to 1 is wanted")
    draw, shift = _zipf_ranks(_exponent(exponent), universe, _random(seed)), round(at * n)

    def ranks(start: int, m: int) -> Integers:
        drawn = draw(m)
        after = drawn[max(shift - start, 0) :]
        np.subtract(universe - 1, after, out=after)
        return drawn

    return _stream(n, seed, ranks)


def power_law(n: int, *, exponent: float = 0.5, universe: int = 100_000, seed: int = 0) -> Integers:
    """Return n queries like those of FireHose's power law: a static range, every key soon seen.

    The density of the ranks falls as r^−exponent, 0 ≤ exponent < 1: the first share x of them gets
    the share x^(1 − exponent) of the queries.

    >>> queries = power_law(100_000, universe=100, seed=2)
    >>> round(float(np.isin(queries, ranked(range(25), seed=2)).mean()), 1)
    0.5
    """
    n, universe = whole("n", n, _MOST), _some("universe", universe)
    if not 0 <= exponent < 1:
        raise ValueError(f"exponent is {exponent}; from 0 to below 1 is wanted")
    random, power = _random(seed), 1 / (1 - exponent)

    def ranks(at: int, m: int) -> Integers:
        share = random.random(m)
        np.power(share, power, out=share)
        share *= universe
        return _below(share, universe)

    return _stream(n, seed, ranks)


def active_set(n: int, *, active: int = 131_072, repeats: float = 57.0, seed: int = 0) -> Integers:
    """Return n queries from a set that drifts, like FireHose's active set.

    Of the endless sequence of keys, ``active`` neighbours are asked for at any time: a key enters
    at one end, is asked for more and more, then less, and leaves at the other. The bell is that of
    the mean of three uniform numbers. Over its life a key is asked for ``repeats`` times on
    average; 57 is the average in the telescoping filter's experiments.

    >>> queries = active_set(10_000, active=100, repeats=10.0)
    >>> 1000 <= len(np.unique(queries)) <= 1100
    True
    """
    n, active = whole("n", n, _MOST), _some("active", active)
    if not 1 <= repeats <= _MOST:
        raise ValueError(f"repeats is {repeats}; a number from 1 is wanted")
    random = _random(seed)

    def ranks(at: int, m: int) -> Integers:
        place = random.random(m)
        place += random.random(m)
        place += random.random(m)
        place *= active / 3
        place += np.arange(at, at + m) / repeats
        return place.astype(np.uint64)

    return _stream(n, seed, ranks)


class Adversary:
    """The telescoping filter's adversary, who asks again what was a false positive.

    Rounds of ten subrounds; a subround asks every query that is left once; after a round only those
    are left that were a false positive in it. It ends after ``rounds`` rounds, or when at most 1 %
    of the number of stored keys are left. Iterate over it for the subrounds, and `tell` the answers
    to each.

    >>> adversary = Adversary(100, stored=1000, seed=1)
    >>> for queries in adversary:
    ...     adversary.tell(np.zeros(len(queries), dtype=bool))   # never fooled
    >>> adversary.round, len(adversary.queries), adversary.rate
    (1, 0, 0.0)
    """

    def __init__(
        self, size: int, *, stored: int, rounds: int = 50, subrounds: int = 10, seed: int = 0
    ) -> None:
        """Begin with ``size`` distinct queries, of ranks from 0, against ``stored`` keys."""
        self.queries = ranked(range(whole("size", size, _MOST)), seed=seed)
        self.round = 0
        """How many rounds are over."""
        self.rate = 0.0
        """The share of false positives among the questions of the latest round."""
        self._least = 0.01 * whole("stored", stored, _MOST)
        self._rounds, self._subrounds = _some("rounds", rounds), _some("subrounds", subrounds)
        self._answers: npt.NDArray[np.bool_] | None = None

    def __iter__(self) -> Iterator[Integers]:
        while self.round < self._rounds and len(self.queries) > self._least:
            fooled = np.zeros(len(self.queries), dtype=bool)
            false_positives = 0
            for _ in range(self._subrounds):
                self._answers = None
                yield self.queries
                if self._answers is None:
                    raise RuntimeError("tell() the answers to a subround before the next")
                fooled |= self._answers
                false_positives += int(np.count_nonzero(self._answers))
            self.rate = false_positives / (self._subrounds * len(self.queries))
            self.queries = self.queries[fooled]
            self.round += 1

    def tell(self, false_positives: npt.NDArray[np.bool_]) -> None:
        """Say which queries of this subround were false positives."""
        answers = np.asarray(false_positives, dtype=bool)
        if answers.shape != self.queries.shape:
            raise ValueError(
                f"false_positives is of shape {answers.shape}; one answer is wanted for each of "
                f"the {len(self.queries)} queries"
            )
        self._answers = answers


def _zipf_ranks(s: float, universe: int, random: np.random.Generator) -> Callable[[int], Integers]:
    """Return a function that draws m ranks by rejection-inversion: exact, without a table.

    H integrates x^−s. A point of [H(1.5) − 1, H(n + 0.5)] is inverted to x and rounded to k; the
    part of k's stretch that is longer than k^−s is rejected. Everything left of ``sure`` is kept.
    """

    def integral(x: Reals | float) -> Reals:
        return np.log(x) if s == 1 else np.asarray(np.expm1((1 - s) * np.log(x)) / (1 - s))

    def inverse(y: Reals) -> Reals:
        if s != 1:
            y *= 1 - s
            # Rounding may leave the least point of the domain, 1 + y(1 − s) = 0 for s > 1, behind.
            np.maximum(y, -1, out=y)
            with np.errstate(divide="ignore"):
                np.log1p(y, out=y)
            y /= 1 - s
        return np.exp(y, out=y)

    first, last = float(integral(1.5)) - 1, float(integral(universe + 0.5))
    sure = 2 - float(inverse(np.array([float(integral(2.5)) - 2.0**-s]))[0])

    def draw(m: int) -> Integers:
        pieces, found = [], 0
        while found < m:
            y = random.random(m - found)
            y *= last - first
            y += first
            x = inverse(y.copy())
            k = np.clip(np.rint(x), 1, universe)
            doubtful = np.flatnonzero(k - x > sure)
            of = k[doubtful]
            rejected = doubtful[y[doubtful] < integral(of + 0.5) - of**-s]
            k -= 1
            pieces.append(np.delete(k, rejected).astype(np.uint64))
            found += len(pieces[-1])
        return np.concatenate(pieces)

    return draw


def _stream(n: int, seed: int, ranks: Callable[[int, int], Integers]) -> Integers:
    """Return the keys of n ranks, which ``ranks`` gives from a position on."""
    keys = np.empty(n, dtype=np.uint64)
    for start in range(0, n, _PIECE):
        piece = keys[start : start + _PIECE]
        piece[:] = ranks(start, len(piece))
        _scatter(piece, seed)
    return keys


def _scatter(ranks: Integers, seed: int) -> None:
    """Replace ranks by their keys: SplitMix64, whose steps can all be undone."""
    shift = int(np.random.SeedSequence(_seed(seed)).generate_state(1, np.uint64)[0])
    ranks *= np.uint64(0x9E3779B97F4A7C15)
    ranks += np.uint64(shift)
    for bits, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        ranks ^= ranks >> np.uint64(bits)
        ranks *= np.uint64(factor)
    ranks ^= ranks >> np.uint64(31)


def _below(places: Reals, universe: int) -> Integers:
    ranks = places.astype(np.uint64)
    return np.minimum(ranks, universe - 1, out=ranks)


def _random(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(_seed(seed)))


def _seed(seed: int) -> int:
    return whole("seed", seed, 2**64 - 1)


def _some(name: str, value: int) -> int:
    if not (number := whole(name, value, _MOST)):
        raise ValueError(f"{name} is 0; at least 1 is wanted")
    return number


def _exponent(exponent: float) -> float:
    if not 0 <= exponent <= 10:
        raise ValueError(f"exponent is {exponent}; a number from 0 to 10 is wanted")
    return float(exponent)
