"""The distance between two workloads, and the rate of a plan made for the earlier one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tamis.planning.stacked.frequencies import Frequencies, Steps
from tamis.workload.counts import hashes

if TYPE_CHECKING:
    from tamis.planning.plan import Plan

Array = npt.NDArray[np.float64]

_BLOCKS = 4096


@dataclass(frozen=True)
class Drift:
    """The distance between two workloads.

    ``total_variation`` (δ) is the largest change in the fraction of queries for any set of values,
    so it bounds the change of ψ. ``kl`` is the relative entropy, which bounds δ by Pinsker's
    inequality: δ ≤ √(kl/2) (Deeds, Hentschel, Idreos 2020, 4.5). The unseen fraction of a workload
    is split evenly among the values that only the other one has, and one part for all others.
    """

    total_variation: float
    kl: float
    _before: Frequencies = field(repr=False)
    _after: Frequencies = field(repr=False)

    def psi(self, n: int) -> tuple[float, float]:
        """Return ψ(n) before and after, both for the n values most frequent before."""
        return float(self._before.psi(n)), float(self._after.psi(n))

    def rate(self, plan: Plan) -> float:
        """Predict the false-positive rate, after the drift, of a filter planned before it."""
        return plan.rate_at(min(1.0, self.psi(plan.negatives)[1]))

    def rate_bound(self, plan: Plan) -> float:
        """Bound `rate` by the total variation: it is linear in ψ, which changes by at most δ."""
        return plan.rate_at(max(0.0, plan.psi - self.total_variation))

    def __str__(self) -> str:
        return (
            f"total variation {self.total_variation:.4g} "
            f"(at most {math.sqrt(self.kl / 2):.4g} given a relative entropy of {self.kl:.4g})"
        )


def by_value(a_values: Any, a: Array, b_values: Any, b: Array) -> Drift:
    """Compare the frequencies of values; ``a`` is in descending order."""
    left, right = hashes(a_values), hashes(b_values)
    _, in_a, in_b = np.intersect1d(left, right, assume_unique=True, return_indices=True)
    only_a, only_b = len(left) - len(in_a), len(right) - len(in_b)
    # Split each unseen fraction among the values that only the other has, and one for the rest.
    a_share = max(0.0, 1 - a.sum()) / (only_b + 1)
    b_share = max(0.0, 1 - b.sum()) / (only_a + 1)
    b_at_a = np.full(len(left), b_share)
    b_at_a[in_a] = b[in_b]
    b_alone = np.ones(len(right), bool)
    b_alone[in_b] = False
    before = np.concatenate((a, np.full(only_b, a_share), [a_share]))
    after = np.concatenate((b_at_a, b[b_alone], [b_share]))
    # In the order of `a`, so the curve of `b` need not be concave; `Steps` does not require it.
    return _drift(before, after, Steps.of(a, total=a.sum()), Steps.of(b_at_a, total=b_at_a.sum()))


def by_rank(a: Frequencies, b: Frequencies) -> Drift:
    """Compare shapes, as if every value kept its rank; high ranks are compared in blocks."""
    ranks = max(a.size, b.size, 1)
    ends = np.unique(np.geomspace(1, ranks, _BLOCKS).astype(np.int64))
    before, after = (np.diff(curve.psi(ends), prepend=0.0) for curve in (a, b))
    before = np.concatenate((before, [1 - before.sum()]))
    after = np.concatenate((after, [1 - after.sum()]))
    return _drift(before, after, a, b)


def _drift(before: Array, after: Array, a: Frequencies, b: Frequencies) -> Drift:
    seen = before > 0
    with np.errstate(divide="ignore"):
        kl = float((before[seen] * np.log(before[seen] / after[seen])).sum())
    return Drift(float(np.abs(before - after).sum() / 2), max(kl, 0.0), a, b)
