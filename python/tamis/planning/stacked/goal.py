"""The goal of a plan, and the stacks that searches find for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tamis.planning.kinds import layer_check
from tamis.planning.stacked import predictions
from tamis.planning.stacked.predictions import Checks

FLOOR = 2.0**-64
"""Rates below this count as equal. No workload could show a difference; and if all queries are for
known negatives, there is always a lower rate, so that a search would never end."""


class Stack(NamedTuple):
    """A stack that a search found: its layers, its predicted size and its cost.

    ``rates`` has the rate of each layer, and ``lengths`` the fingerprint length of each, empty for
    kinds without fingerprints. An ``exact`` stack ends with a one-bit function, which is not
    counted as a layer. ``cost`` is what a budget is spent to minimize: see `Goal.cost`.
    """

    kind: str
    negatives: int
    psi: float
    rates: tuple[float, ...]
    lengths: tuple[float, ...]
    exact: bool
    bits: float
    cost: float

    @property
    def expected_fpr(self) -> float:
        """EFPR, the rate under the workload."""
        if self.exact:
            return float(predictions.exact_rate(self.rates[0], self.psi))
        return float(predictions.expected_rate(self.rates, self.psi))

    @property
    def fpr_bound(self) -> float:
        """EFPB, the rate under any workload."""
        return self.rates[0] / 2 if self.exact else float(predictions.infrequent_rate(self.rates))


@dataclass(frozen=True)
class Goal:
    """The objective and the constraints of a plan.

    With a ``budget`` in bits, the rate or the cost of a query is minimized; with a rate ``fpr``,
    the bits are. ``present`` is the fraction of queries for keys in the set.
    """

    keys: int
    budget: float = math.inf
    fpr: float = 1.0
    max_fpr_bound: float = 1.0
    max_checks: float = math.inf
    present: float = 0.0
    penalties: Checks = field(default_factory=lambda: Checks(0.0, 0.0, 0.0))
    miss_cost: float = 1.0
    check_cost: float = 0.0

    @property
    def minimizes_bits(self) -> bool:
        """Whether the bits are minimized, not the cost of a query."""
        return math.isinf(self.budget)

    @property
    def min_cost(self) -> float:
        """A lower bound of the cost of a query, for any stack."""
        return (1 - self.present) * FLOOR * self.miss_cost

    def objective(self, bits: Any, cost: Any) -> Any:
        """Return the one of the two that is minimized."""
        return bits if self.minimizes_bits else cost

    def score(self, stack: Stack) -> float:
        """Return the objective of a stack; lower is better."""
        return float(self.objective(stack.bits, stack.cost))

    def mean_checks(self, psi: Any, checks: Checks) -> Any:
        """Return the mean number of layers that a query passes."""
        negatives = psi * checks.frequent + (1 - psi) * checks.infrequent
        return self.present * checks.keys + (1 - self.present) * negatives

    def cost(self, rate: Any, psi: Any, checks: Checks, kind: str) -> Any:
        """Return the cost of a query: wasted reads and checks, times the penalties.

        By default, it is a multiple of the rate. The penalty per kind of lookup follows Deeds,
        Hentschel and Idreos 2020, 5.1. The cost rises with the rate and with every number of
        checks, which all searches rely on; and a rate k times as high costs at most k times as
        much, which `sweep` relies on. Rates below `FLOOR` cost the same.
        """
        rate = max(rate, FLOOR) if isinstance(rate, float) else np.maximum(rate, FLOOR)
        penalty = 1 + sum(p * c for p, c in zip(self.penalties, checks, strict=True))
        wasted = (1 - self.present) * rate * self.miss_cost
        if self.check_cost:
            check = self.check_cost * layer_check(kind, self.keys)
            wasted = wasted + self.mean_checks(psi, checks) * check
        return wasted * penalty

    def allowed(self, rate: Any, bound: Any, psi: Any, checks: Checks, bits: Any) -> Any:
        """Return whether a stack meets every constraint; an array if the arguments are arrays."""
        kept = (bits <= self.budget) & (rate <= self.fpr) & (bound <= self.max_fpr_bound)
        if math.isinf(self.max_checks):
            return kept
        return kept & (self.mean_checks(psi, checks) <= self.max_checks)
