"""What filters lose while keys are replaced, until they are built again.

The turnover τ is how many keys are replaced during the expected queries, per key: 0.5 if half as
many leave, and join, as there are keys. Those that leave are any of the keys, at any time; t is the
fraction of the queries so far. Of the keys at the time of the build, e^(−τt) are still in the set.

*A stack* stores the known negatives that its first layer accepted when it was built. Of the keys
that it has at time t, e^(−τt) were there then; with the others, the first layer accepts known
negatives that the layers below do not know. Keys that have left are still queried, as often as
before, and are negatives that no layer knows. If π of the queries are for keys in the set, those
for known negatives are (1 − π)/(1 − π·e^(−τt)) of what they were. So of the queries that the stack
was planned for, it recognizes only the fraction

    κ = mean over t of e^(−τt)·(1 − π)/(1 − π·e^(−τt)).

*An adaptive filter* loses what it learned with the element that moved. An element that is in the
filter during a fraction x of H queries meets the d(x·H) distinct absent keys among them, and has
e^(d(x·H)·ε/n) − 1 false positives, as always. Per key, e^(−τ) elements stay from the first to the
last query, and (2τ + τ²(1 − x))·e^(−τx) dx are in the filter for x: those that leave after x of the
queries, that join so much before the end, and that do both in between.
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


def kept(turnover: float, present: float) -> float:
    """Return κ: the fraction of the planned queries that a stack recognizes, on average.

    >>> kept(0, 0.5), round(kept(1, 0), 3), round(kept(1, 0.5), 3)
    (1.0, 0.632, 0.49)
    """
    if not turnover:
        return 1.0
    there, weights = _points()
    stayed = np.exp(-turnover * there)
    return float(weights @ (stayed * (1 - present) / np.maximum(1 - present * stayed, 1e-12)))


def fading(situation: Situation) -> Workload | None:
    """Return the workload as a stack recognizes it while keys are replaced, on average."""
    w = situation.workload
    share = kept(situation.turnover, situation.present)
    if w is None or share == 1:
        return w
    faded = copy.copy(w)
    faded.curve = _scaled(w.curve, share)
    return faded


def stays(situation: Situation) -> Stays:
    """Return how long elements stay in an adaptive filter, and what they meet."""
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
    """Return points between 0 and 1, and their weights: those of Gauss and Legendre for t^(1/4).

    With a large turnover everything happens at small t.
    """
    points, weights = np.polynomial.legendre.leggauss(_POINTS)
    root = (points + 1) / 2
    return root**4, 2 * weights * root**3
