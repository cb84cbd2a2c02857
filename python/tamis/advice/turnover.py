"""The loss of stacked and adaptive filters while keys are replaced, until a rebuild.

The turnover τ is how many keys are replaced during the expected queries, per key: 0.5 if half as
many keys leave, and join, as there are. Every key is equally likely to leave, at any time; t is the
fraction of the queries so far. Of the keys at the build, the fraction e^(−τt) is still in the set.

*A stack* stores the known negatives that its first layer accepted at the build. At time t, the
fraction e^(−τt) of its keys was there at the build; because of the other keys, the first layer
accepts known negatives that the layers below do not store. Keys that have left are still queried,
as often as before, and are negatives that no layer stores. If π of the queries are for keys in the
set, the fraction of queries for known negatives is (1 − π)/(1 − π·e^(−τt)) times the original one.
So the stack recognizes only this fraction of the queries that it was planned for:

    κ = mean over t of e^(−τt)·(1 − π)/(1 − π·e^(−τt)).

*An adaptive filter* loses its corrections for an element that leaves. An element that is in the
filter during a fraction x of H queries meets the d(x·H) distinct absent keys among them, and has
e^(d(x·H)·ε/n) − 1 false positives, as without turnover. Per key, e^(−τ) elements stay from the
first to the last query, and (2τ + τ²(1 − x))·e^(−τx) dx stay for the fraction x: elements that
leave after x of the queries, that join x before the end, or that join and leave in between.
"""

from __future__ import annotations

import copy
import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tamis.advice.situation import Floats, Situation
from tamis.planning.stacked.frequencies import Frequencies, Steps, Zipf
from tamis.workload import Workload

MAX_TURNOVER = 10_000.0
"""Up to this turnover, the integrals are accurate to one percent."""

_POINTS = 48

_CURVE = 4096


class Stays(NamedTuple):
    """Stays of elements: the distinct absent keys that each meets, and elements per key."""

    distinct: Floats
    elements: Floats


def recognized_share(turnover: float, present: float) -> float:
    """Return κ: the fraction of the planned queries that a stack recognizes, on average.

    >>> recognized_share(0, present=0.5), round(recognized_share(1, present=0.5), 3)
    (1.0, 0.49)
    """
    if not turnover:
        return 1.0
    times, weights = _points()
    stayed = np.exp(-turnover * times)
    return float(weights @ (stayed * (1 - present) / np.maximum(1 - present * stayed, 1e-12)))


def recognized_workload(situation: Situation) -> Workload | None:
    """Return the workload scaled to the queries that a stack recognizes, on average."""
    w = situation.workload
    share = recognized_share(situation.turnover, situation.present)
    if w is None or share == 1:
        return w
    scaled = copy.copy(w)
    scaled.curve = _scaled(w.curve, share)
    return scaled


def stays(situation: Situation) -> Stays:
    """Return how long elements stay in an adaptive filter, and how many absent keys they meet."""
    turnover = situation.turnover
    if not turnover:
        return Stays(np.array([situation.distinct]), np.ones(1))
    part, weights = _points()
    density = (2 * turnover + turnover**2 * (1 - part)) * np.exp(-turnover * part)
    met = [situation.distinct_of(situation.queries * each) for each in (*part, 1.0)]
    return Stays(np.array(met), np.append(weights * density, math.exp(-turnover)))


def _scaled(curve: Frequencies, share: float) -> Frequencies:
    if isinstance(curve, Steps):
        return Steps(curve.ranks, curve.mass * share)
    assert isinstance(curve, Zipf)
    head = np.arange(min(curve.size, _CURVE) + 1)
    tail = np.geomspace(max(len(head), 1), max(curve.size, 1), _CURVE).astype(np.int64)
    ranks = np.unique(np.concatenate([head, tail[tail <= curve.size]]))
    return Steps(ranks.astype(float), share * np.asarray(curve.psi(ranks), float))


@lru_cache(maxsize=1)
def _points() -> tuple[Floats, Floats]:
    """Return points between 0 and 1 and their weights: Gauss-Legendre quadrature in t^(1/4).

    The points are dense near 0, because with a large turnover most keys leave at small t.
    """
    points, weights = np.polynomial.legendre.leggauss(_POINTS)
    root = (points + 1) / 2
    return root**4, 2 * weights * root**3
