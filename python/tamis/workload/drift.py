"""How far a workload moved, and what that does to a plan made for the earlier one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tamis.planning.stacked.frequencies import Frequencies, Steps
from tamis.workload.counting import hashes

if TYPE_CHECKING:
    from tamis.planning.plan import Plan

Array = npt.NDArray[np.float64]

_BLOCKS = 4096


@dataclass(frozen=True)
class Drift:
    """The distance between two workloads.

    ``total_variation`` (δ) is the largest change of the share of any set of questions, so it bounds
    the change of ψ; ``kl`` is the relative entropy, which bounds it by Pinsker's inequality: δ ≤
    √(kl/2) (Deeds, Hentschel, Idreos 2020, 4.5). A value that one workload does not know has there
    an equal part of what is unseen, which it shares with all that neither knows.
    """

    total_variation: float
    kl: float
    _before: Frequencies = field(repr=False)
    _after: Frequencies = field(repr=False)

    def psi(self, n: int) -> tuple[float, float]:
        """The share of questions, before and after, for the n values most frequent before (ψ)."""
        return float(self._before.psi(n)), float(self._after.psi(n))

    def rate(self, plan: Plan) -> float:
        """Predict the rate after the change of a filter that was planned before it."""
        return plan.rate_at(min(1.0, self.psi(plan.negatives)[1]))

    def rate_bound(self, plan: Plan) -> float:
        """Bound that rate by the total variation: it is linear in ψ, and ψ moves by at most δ."""
        return plan.rate_at(max(0.0, plan.psi - self.total_variation))

    def __str__(self) -> str:
        return (
            f"total variation {self.total_variation:.4g} "
            f"(at most {math.sqrt(self.kl / 2):.4g} by the relative entropy of {self.kl:.4g})"
        )


def by_value(a_values: Any, a: Array, b_values: Any, b: Array) -> Drift:
    """Compare frequencies of values; ``a`` does not rise."""
    left, right = hashes(a_values), hashes(b_values)
    _, in_a, in_b = np.intersect1d(left, right, assume_unique=True, return_indices=True)
    only_a, only_b = len(left) - len(in_a), len(right) - len(in_b)
    # What each does not know: the other's own values, and everything else.
    a_share = max(0.0, 1 - a.sum()) / (only_b + 1)
    b_share = max(0.0, 1 - b.sum()) / (only_a + 1)
    b_at_a = np.full(len(left), b_share)
    b_at_a[in_a] = b[in_b]
    b_alone = np.ones(len(right), bool)
    b_alone[in_b] = False
    before = np.concatenate((a, np.full(only_b, a_share), [a_share]))
    after = np.concatenate((b_at_a, b[b_alone], [b_share]))
    # Not concave, since the order is that of before; `Steps` needs no order.
    return _drift(before, after, Steps.of(a, total=a.sum()), Steps.of(b_at_a, total=b_at_a.sum()))


def by_rank(a: Frequencies, b: Frequencies) -> Drift:
    """Compare shapes, as if every value kept its rank; ranks far down in blocks."""
    most = max(a.size, b.size, 1)
    ends = np.unique(np.geomspace(1, most, _BLOCKS).astype(np.int64))
    before, after = (np.diff(curve.psi(ends), prepend=0.0) for curve in (a, b))
    before = np.concatenate((before, [1 - before.sum()]))
    after = np.concatenate((after, [1 - after.sum()]))
    return _drift(before, after, a, b)


def _drift(before: Array, after: Array, a: Frequencies, b: Frequencies) -> Drift:
    asked = before > 0
    with np.errstate(divide="ignore"):
        kl = float((before[asked] * np.log(before[asked] / after[asked])).sum())
    return Drift(float(np.abs(before - after).sum() / 2), max(kl, 0.0), a, b)
