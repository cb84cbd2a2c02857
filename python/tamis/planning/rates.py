"""Rates that fit what was observed."""

from __future__ import annotations

from scipy.special import gammaincinv, ndtr

SIGMAS = 4.0
"""A fair count leaves its interval once in 15,000 times, as a normal one does at four sigmas."""


def interval(count: int, trials: int, variance: float) -> tuple[float, float]:
    """Return the rates between which ``count`` of ``trials`` is not surprising.

    ``variance`` is that of the count: above the count itself where false positives come in
    clusters, one for each key that fools the filter. The number of clusters is taken as Poisson's,
    and its exact interval is scaled by their mean size.

    >>> low, high = interval(100, 10_000, 100.0)
    >>> round(low, 4), round(high, 4)
    (0.0065, 0.0146)
    >>> interval(0, 0, 0.0)
    (0.0, 1.0)
    """
    if trials == 0:
        return 0.0, 1.0
    cluster = max(1.0, variance / count) if count else 1.0
    tail = float(ndtr(-SIGMAS))
    low = gammaincinv(count / cluster, tail) if count else 0.0
    high = gammaincinv(count / cluster + 1, 1 - tail)
    return float(cluster * low / trials), min(float(cluster * high / trials), 1.0)
