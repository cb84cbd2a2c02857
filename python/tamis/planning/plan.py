"""A plan: the layers of a filter, their sizes, and the predicted rates.

`tamis.planning.plan_text` prints a plan, and writes and reads it as JSON.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, SupportsIndex

from tamis._checks import check_share
from tamis._format import format_rate
from tamis.planning.kinds import FUNCTION, KINDS, fingerprint_layer
from tamis.planning.stacked.predictions import Checks, lower_bound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tamis._types import Keys
    from tamis.filters.stacked import Stacked
    from tamis.workload import Workload

# Layers of any rate: the highest useful rate, the factor by which the next coarser layer has a
# higher rate, and the factor for rates below `_MIN_RATE`. A layer that was planned to be empty is
# built with `_MIN_RATE`.
_COARSEST = 0.5
_STEP, _LONG_STEP = 1.05, 2.0
_MIN_RATE = 2.0**-32
# Layers of fractional lengths get coarser by this fraction of a bit.
_PARTS = 8


@dataclass(frozen=True)
class Layer:
    """One layer of a plan.

    ``stores`` is "keys", "negatives" or, for a function, "both"; ``rate`` (α) is its false-positive
    rate; ``fingerprint`` is the length of a fingerprint in bits, for kinds that have one (of a
    ribbon the number of columns, which need not be whole); ``items`` is the expected number of
    items, and ``bits`` the size for them.
    """

    kind: str
    stores: str
    rate: float
    items: int
    bits: int
    fingerprint: float | None = None
    layout: str | None = None

    @property
    def exact(self) -> bool:
        """Whether it is the static function at the end of an exact stack."""
        return self.kind == FUNCTION.name

    def size(self, items: int) -> Any:
        """Find the size of this layer for another number of items, at the planned rate."""
        kind = KINDS[self.kind]
        fineness: dict[str, Any] = {"fingerprint_bits": self.fingerprint or 0}
        if kind.continuous:
            fineness = {"fpr": min(self.rate or _MIN_RATE, 1 - _MIN_RATE)}
        return kind.layer_size(
            items, **fineness, **({"layout": self.layout} if self.layout else {})
        )

    def bits_for(self, items: int) -> int:
        """Predict the bits of this layer for another number of items; some are slightly larger."""
        if KINDS[self.kind].continuous:
            return int(self.size(items).bits)
        return fingerprint_layer(self.kind, items, self.fingerprint or 0).bits

    def coarser(self) -> Layer | None:
        """Return the next coarser layer, or None if this is the coarsest."""
        lengths = KINDS[self.kind].lengths
        if lengths is None:
            rate = min(self.rate or _MIN_RATE, 1 - _MIN_RATE)
            rate *= _STEP if rate >= _MIN_RATE else _LONG_STEP
            return None if rate > _COARSEST else replace(self, rate=rate)
        kind, length = KINDS[self.kind], self.fingerprint
        if length is None:
            return None
        shorter = (math.ceil(_PARTS * length) - 1) / _PARTS if kind.fractional else length - 1
        if shorter < kind.coarsest:
            return None
        rate = kind.fractional.rate(shorter) if kind.fractional else 2 * self.rate
        return replace(self, rate=rate, fingerprint=shorter)


@dataclass(frozen=True, repr=False)
class Plan:
    """The layers of a filter, and its predicted size and rates.

    ``negatives`` is how many of the workload's most frequent negatives are stored, and ``psi`` (ψ)
    the fraction of queries that are for them. ``expected_fpr`` (EFPR) is the rate under the
    workload, ``fpr_bound`` (EFPB) the rate under any other. ``checks`` are the layers that each
    kind of query passes, ``expected_checks`` their mean over the workload. ``budget`` is the
    requested budget in bits per key, if any. ``expected_cost`` is the mean cost of the false
    positives per query for an absent key, if the workload has costs.

    >>> import tamis
    >>> workload = tamis.Workload.zipf(exponent=1.0, universe=10**8, sample=5 * 10**7)
    >>> p = tamis.plan(1_000_000, workload, bits_per_key=10)
    >>> p.expected_fpr < 1e-4, p.bits_per_key <= 10
    (True, True)
    """

    n_keys: int
    layers: tuple[Layer, ...]
    negatives: int
    psi: float
    last: str
    expected_fpr: float
    fpr_bound: float
    bits_per_key: float
    expected_checks: float
    checks: Checks
    budget: float | None = None
    expected_cost: float | None = None
    workload: Workload | None = field(default=None, compare=False, repr=False)

    def build(
        self,
        keys: Keys,
        *,
        negatives: Keys | Iterator[Keys] | None = None,
        capacity: SupportsIndex | None = None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Stacked:
        """Build a filter of these keys; see `Stacked.from_plan` for the arguments."""
        from tamis.filters.stacked import Stacked

        return Stacked.from_plan(
            self, keys, negatives=negatives, capacity=capacity, seed=seed, key=key
        )

    def rate_at(self, psi: float) -> float:
        """Predict the rate if ``psi`` (ψ) of the queries for absent keys are for stored negatives.

        It is linear in ψ: `fpr_bound` at 0, and `expected_fpr` at the ψ of the plan.
        """
        psi = check_share("psi", psi)
        return psi * self.frequent_fpr + (1 - psi) * self.fpr_bound

    @property
    def frequent_fpr(self) -> float:
        """The rate of a stored negative; 0 if the last layer is exact."""
        if self.last == "exact":
            return 0.0
        rate = 1.0
        for layer in self.layers[::2]:
            rate *= layer.rate
        return rate

    @property
    def bits(self) -> int:
        """The bits of all layers."""
        return sum(layer.bits for layer in self.layers)

    @property
    def lower_bound(self) -> float:
        """The fewest bits per key of any filter with these rates, by information theory.

        If the last layer is exact, log2(1/ε) + (|N_f|/|P|)·log2(1/(1 − ε)), ε being `fpr_bound`.
        """
        ratio = self.negatives / max(self.n_keys, 1)
        return lower_bound(self.fpr_bound, ratio, self.frequent_fpr if self.negatives else 0.0)

    def to_json(self) -> str:
        """Return the plan as JSON text, without its workload."""
        from tamis.planning.plan_text import write_plan

        return write_plan(self)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read the output of `to_json`; raise `ValueError` for anything else.

        >>> import tamis
        >>> p = tamis.plan(1000, bits_per_key=10)
        >>> Plan.from_json(p.to_json()) == p
        True
        """
        from tamis.planning.plan_text import read_plan

        return read_plan(text)

    def plot(self, ax: Any = None) -> Any:
        """Plot the rate against the fraction ψ of queries for stored negatives; return the axes."""
        from tamis.plotting import draw_plan

        return draw_plan(self, ax)

    def __str__(self) -> str:
        from tamis.planning.plan_text import plan_text

        return plan_text(self)

    def __repr__(self) -> str:
        return (
            f"<tamis.Plan: {self.describe().lower()} for {self.n_keys:,} keys, "
            f"{self.bits_per_key:.2f} bits per key, "
            f"predicted rate {format_rate(self.expected_fpr)}>"
        )

    def _repr_html_(self) -> str:
        from tamis.planning.plan_text import plan_html

        return plan_html(self)

    def describe(self) -> str:
        """Describe the layers in a few words."""
        if len(self.layers) == 1:
            return f"A plain {self.layers[0].kind} filter"
        if self.last == "exact":
            return f"A stack of a {self.layers[0].kind} layer and an exact one"
        return f"A stack of {len(self.layers)} {self.layers[0].kind} layers"
