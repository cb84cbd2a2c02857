"""Synthetic query traces for measuring filters: seeded, and faster than the filters themselves.

Each generator returns unsigned 64-bit keys. A key stands for a *rank*, starting from 0: `ranked`
maps ranks to scattered keys that never collide, and depends only on the seed. So members and
queries are chosen by rank, and ranks that no trace reaches give keys that are never queried.

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

from tamis._checks import check_int, check_number, check_share

__all__ = ["Adversary", "active_set", "phase_shift", "power_law", "ranked", "uniform", "zipf"]

Integers: TypeAlias = npt.NDArray[np.uint64]
Reals: TypeAlias = npt.NDArray[np.float64]

_PIECE = 1 << 15
"""Keys generated at a time: the arrays of a piece fit in the second-level cache."""

_MAX_RANKS = 2**48
"""Maximum number of ranks: doubles of this size still distinguish neighbouring ranks."""


def ranked(ranks: npt.ArrayLike | Iterable[int], *, seed: int = 0) -> Integers:
    """Return the key of each rank: one-to-one, and scattered over all 64-bit integers.

    >>> len(np.unique(ranked(range(1000), seed=3)))
    1000
    """
    if isinstance(ranks, range):
        ranks = np.arange(ranks.start, ranks.stop, ranks.step, dtype=np.uint64)
    try:
        with np.errstate(invalid="raise"):
            keys = np.array(ranks, dtype=np.uint64)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"ranks must be ints from 0 to 2**64-1: {error}") from None
    for start in range(0, len(keys), _PIECE):
        _scatter(keys[start : start + _PIECE], seed)
    return keys


def uniform(n: int, *, universe: int, seed: int = 0) -> Integers:
    """Return n queries, uniformly distributed over the ranks below ``universe``.

    >>> len(np.unique(uniform(10_000, universe=100)))
    100
    """
    n, universe = check_int("n", n, _MAX_RANKS), _positive("universe", universe)
    random = _random(seed)
    return _stream(n, seed, lambda at, m: random.integers(0, universe, m, dtype=np.uint64))


def zipf(n: int, *, exponent: float = 1.0, universe: int = 10**6, seed: int = 0) -> Integers:
    """Return n Zipf-distributed queries: rank r, from 0, with probability ∝ (r + 1)^−exponent.

    >>> queries = zipf(10_000, exponent=1.0, universe=1000, seed=5)
    >>> bool((queries == ranked([0], seed=5)).mean() > 0.1)
    True
    """
    n, universe = check_int("n", n, _MAX_RANKS), _positive("universe", universe)
    draw = _zipf_ranks(_exponent(exponent), universe, _random(seed))
    return _stream(n, seed, lambda at, m: draw(m))


def phase_shift(
    n: int, *, exponent: float = 1.0, universe: int = 10**6, at: float = 0.5, seed: int = 0
) -> Integers:
    """Return n Zipf-distributed queries whose ranks are reversed after the fraction ``at`` of them.

    Before the shift, the trace is the same as of `zipf`; after it, rank r is as frequent as rank
    ``universe`` − 1 − r was.

    >>> queries = phase_shift(10_000, universe=1000, seed=5)
    >>> bool((queries[5000:] == ranked([999], seed=5)).mean() > 0.1)
    True
    """
    n, universe = check_int("n", n, _MAX_RANKS), _positive("universe", universe)
    at = check_share("at", at)
    draw, shift = _zipf_ranks(_exponent(exponent), universe, _random(seed)), round(at * n)

    def ranks(start: int, m: int) -> Integers:
        drawn = draw(m)
        after = drawn[max(shift - start, 0) :]
        np.subtract(universe - 1, after, out=after)
        return drawn

    return _stream(n, seed, ranks)


def power_law(n: int, *, exponent: float = 0.5, universe: int = 100_000, seed: int = 0) -> Integers:
    """Return n queries like FireHose's power law: a fixed range, in which every key occurs soon.

    The density of the ranks is proportional to r^−exponent, 0 ≤ exponent < 1: the first fraction x
    of them gets the fraction x^(1 − exponent) of the queries.

    >>> queries = power_law(100_000, universe=100, seed=2)
    >>> round(float(np.isin(queries, ranked(range(25), seed=2)).mean()), 1)
    0.5
    """
    n, universe = check_int("n", n, _MAX_RANKS), _positive("universe", universe)
    exponent = check_number("exponent", exponent, "a number from 0 to below 1", minimum=0, below=1)
    random, power = _random(seed), 1 / (1 - exponent)

    def ranks(at: int, m: int) -> Integers:
        share = random.random(m)
        np.power(share, power, out=share)
        share *= universe
        return _below(share, universe)

    return _stream(n, seed, ranks)


def active_set(n: int, *, active: int = 131_072, repeats: float = 57.0, seed: int = 0) -> Integers:
    """Return n queries from a drifting set of keys, like FireHose's active set.

    At any time, ``active`` consecutive keys of an endless sequence are queried: a key enters at one
    end, becomes more frequent, then less, and leaves at the other end. The popularity has the
    density of the mean of three uniform numbers. A key is queried ``repeats`` times on average; 57
    is the average in the experiments of the telescoping filter.

    >>> queries = active_set(10_000, active=100, repeats=10.0)
    >>> 1000 <= len(np.unique(queries)) <= 1100
    True
    """
    n, active = check_int("n", n, _MAX_RANKS), _positive("active", active)
    repeats = check_number(
        "repeats", repeats, f"a number from 1 to {_MAX_RANKS}", minimum=1, maximum=_MAX_RANKS
    )
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
    """The adversary of the telescoping filter's paper, who repeats false positives.

    A round has ten subrounds, each of which makes every remaining query once. After a round, only
    the queries that were a false positive in it remain. It ends after ``rounds`` rounds, or when
    the remaining queries are at most 1 % of the number of stored keys. Iterate over it for the
    queries of each subround, and pass the answers to `report`.

    >>> adversary = Adversary(100, stored=1000, seed=1)
    >>> for queries in adversary:
    ...     adversary.report(np.zeros(len(queries), dtype=bool))   # no false positives
    >>> adversary.round, len(adversary.queries), adversary.rate
    (1, 0, 0.0)
    """

    def __init__(
        self, size: int, *, stored: int, rounds: int = 50, subrounds: int = 10, seed: int = 0
    ) -> None:
        """Start with ``size`` distinct queries, ranks from 0, against ``stored`` keys."""
        self.queries = ranked(range(check_int("size", size, _MAX_RANKS)), seed=seed)
        self.round = 0
        """Number of completed rounds."""
        self.rate = 0.0
        """Fraction of false positives among the queries of the latest round."""
        self._min_queries = 0.01 * check_int("stored", stored, _MAX_RANKS)
        self._rounds, self._subrounds = (
            _positive("rounds", rounds),
            _positive("subrounds", subrounds),
        )
        self._answers: npt.NDArray[np.bool_] | None = None

    def __iter__(self) -> Iterator[Integers]:
        while self.round < self._rounds and len(self.queries) > self._min_queries:
            accepted = np.zeros(len(self.queries), dtype=bool)
            false_positives = 0
            for _ in range(self._subrounds):
                self._answers = None
                yield self.queries
                if self._answers is None:
                    raise RuntimeError(
                        "call report() with the answers to a subround before the next one"
                    )
                accepted |= self._answers
                false_positives += int(np.count_nonzero(self._answers))
            self.rate = false_positives / (self._subrounds * len(self.queries))
            self.queries = self.queries[accepted]
            self.round += 1

    def report(self, false_positives: npt.NDArray[np.bool_]) -> None:
        """Report which queries of this subround were false positives."""
        answers = np.asarray(false_positives, dtype=bool)
        if answers.shape != self.queries.shape:
            raise ValueError(
                f"false_positives must have one answer for each of the {len(self.queries)} "
                f"queries, not shape {answers.shape}"
            )
        self._answers = answers


def _zipf_ranks(s: float, universe: int, random: np.random.Generator) -> Callable[[int], Integers]:
    """Return a function that draws m ranks by rejection-inversion: exact, without a table.

    H is the integral of x^−s. A point of [H(1.5) − 1, H(n + 0.5)] is inverted to x and rounded to
    k; the part of k's interval in excess of k^−s is rejected. If k − x ≤ ``sure``, x is accepted
    without computing H.
    """

    def integral(x: Reals | float) -> Reals:
        return np.log(x) if s == 1 else np.asarray(np.expm1((1 - s) * np.log(x)) / (1 - s))

    def inverse(y: Reals) -> Reals:
        if s != 1:
            y *= 1 - s
            # Rounding can leave the domain, which ends at 1 + y(1 − s) = 0 for s > 1.
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
            candidates = k[doubtful]
            rejected = doubtful[y[doubtful] < integral(candidates + 0.5) - candidates**-s]
            k -= 1
            pieces.append(np.delete(k, rejected).astype(np.uint64))
            found += len(pieces[-1])
        return np.concatenate(pieces)

    return draw


def _stream(n: int, seed: int, ranks: Callable[[int, int], Integers]) -> Integers:
    """Return the keys of n ranks; ``ranks(start, m)`` returns m ranks from a position on."""
    keys = np.empty(n, dtype=np.uint64)
    for start in range(0, n, _PIECE):
        piece = keys[start : start + _PIECE]
        piece[:] = ranks(start, len(piece))
        _scatter(piece, seed)
    return keys


def _scatter(ranks: Integers, seed: int) -> None:
    """Replace ranks by their keys, in place: SplitMix64, whose steps are all invertible."""
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
    return check_int("seed", seed, 2**64 - 1)


def _positive(name: str, value: int) -> int:
    return check_int(name, value, _MAX_RANKS, minimum=1)


def _exponent(exponent: float) -> float:
    return check_number("exponent", exponent, "a number from 0 to 10", minimum=0, maximum=10)
