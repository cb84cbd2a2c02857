"""Confidence intervals of observed rates."""

from __future__ import annotations

SIGMAS = 4.0
"""Width of the interval: a count is outside once in 15,000 times, as four sigmas of a normal."""


def interval(count: int, trials: int, variance: float) -> tuple[float, float]:
    """Return a confidence interval of the rate from ``count`` of ``trials``.

    ``variance`` is the variance of the count. It exceeds the count if false positives come in
    clusters, one per key. The number of clusters is assumed to have a Poisson distribution, and
    its exact interval is scaled by their mean size.

    >>> low, high = interval(100, 10_000, 100.0)
    >>> round(low, 4), round(high, 4)
    (0.0065, 0.0146)
    >>> interval(0, 0, 0.0)
    (0.0, 1.0)
    """
    if trials == 0:
        return 0.0, 1.0
    from scipy.special import gammaincinv, ndtr  # slow to import

    cluster = max(1.0, variance / count) if count else 1.0
    tail = float(ndtr(-SIGMAS))
    low = gammaincinv(count / cluster, tail) if count else 0.0
    high = gammaincinv(count / cluster + 1, 1 - tail)
    return float(cluster * low / trials), min(float(cluster * high / trials), 1.0)
