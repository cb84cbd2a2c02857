"""A plan: the layers of a filter, their sizes, and the predicted rates."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, SupportsIndex

from tamis._checks import MAX_BITS_PER_KEY, MAX_KEYS, check_int, check_share, one_of
from tamis._format import facts_html, format_rate, table_html
from tamis.planning.kinds import FUNCTION, KINDS, LAYERS, fingerprint_layer
from tamis.planning.ribbon import column_rate
from tamis.planning.stacked.metrics import Checks, lower_bound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tamis._types import Keys
    from tamis.filters.stacked import Stacked
    from tamis.workload import Workload

MALFORMED = (
    KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""What text raises that is not JSON, or not of the form that was written."""

_MAX_LAYERS = 64
_ONE = 1 + 1e-9  # a share, with rounding

# The highest useful rate of a Bloom layer; the factor by which it gets coarser, and a larger one
# for very low rates; and a rate for a layer that was planned to be empty.
_COARSEST = 0.5
_STEP, _LONG_STEP = 1.05, 2.0
_LOW = 2.0**-32
# Parts of a column by which a ribbon layer gets coarser.
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
            fineness = {"fpr": min(self.rate or _LOW, 1 - _LOW)}
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
            rate = min(self.rate or _LOW, 1 - _LOW)
            rate *= _STEP if rate >= _LOW else _LONG_STEP
            return None if rate > _COARSEST else replace(self, rate=rate)
        kind, length = KINDS[self.kind], self.fingerprint
        if length is None:
            return None
        shorter = (math.ceil(_PARTS * length) - 1) / _PARTS if kind.fractional else length - 1
        if shorter < kind.coarsest:
            return None
        rate = column_rate(shorter) if kind.fractional else 2 * self.rate
        return replace(self, rate=rate, fingerprint=shorter)


@dataclass(frozen=True, repr=False)
class Plan:
    """The layers of a filter, and its predicted size and rates.

    ``negatives`` is how many of the workload's most frequent negatives are stored, and ``psi`` (ψ)
    the fraction of queries that are for them. ``expected_fpr`` (EFPR) is the rate under the
    workload, ``fpr_bound`` (EFPB) that under any other. ``checks`` are the layers that each kind of
    query passes, ``expected_checks`` their mean over the workload. ``budget`` is the requested
    budget in bits per key, if any. ``expected_cost`` is the mean cost of the false positives per
    query for an absent key, if the workload has costs.

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
        """Build a filter of these keys; the arguments are those of `Stacked.from_plan`."""
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
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "workload"}
        if self.expected_cost is None:
            del plain["expected_cost"]
        plain["layers"] = [asdict(layer) for layer in self.layers]
        plain["checks"] = self.checks._asdict()
        return json.dumps(plain)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what `to_json` wrote.

        >>> import tamis
        >>> p = tamis.plan(1000, bits_per_key=10)
        >>> Plan.from_json(p.to_json()) == p
        True
        """
        try:
            plain = json.loads(text)
            layers = tuple(Layer(**layer) for layer in plain.pop("layers"))
            checks = Checks(**plain.pop("checks"))
            plan = cls(**plain, layers=layers, checks=checks)
            _check(plan)
        except MALFORMED as error:
            raise ValueError(f"text is not a plan ({error}); pass the output of to_json") from None
        return plan

    def plot(self, ax: Any = None) -> Any:
        """Plot the rate against the fraction ψ of queries for stored negatives; return the axes."""
        from tamis.plotting import draw_plan

        return draw_plan(self, ax)

    def __str__(self) -> str:
        lines = [
            f"{self.describe()} for {self.n_keys:,} keys",
            f"  predicted rate {format_rate(self.expected_fpr)}, at most "
            f"{format_rate(self.fpr_bound)} under any workload",
            f"  {self.bits_per_key:.3f} bits per key, {self.expected_checks:.3f} checks per query",
        ]
        if self.negatives:
            lines.append(
                f"  {self.negatives:,} frequent negatives stored: {format_rate(self.psi)} of the "
                f"queries, at a rate of {format_rate(self.frequent_fpr)}"
            )
        if self.expected_cost is not None:
            lines.append(f"  expected cost {self.expected_cost:.3g} per query for an absent key")
        if self.n_keys and 0 < self.fpr_bound < 1:
            above = self.bits_per_key / self.lower_bound - 1
            lines.append(
                f"  {format_rate(above)} above the {self.lower_bound:.3f} bits per key that any "
                "filter with these rates needs"
            )
        lines += ["", "  layer  kind      stores          items         bits  bits/item       rate"]
        for number, layer in enumerate(self.layers, 1):
            each = layer.bits / layer.items if layer.items else 0.0
            rate = "exact" if layer.exact else format_rate(layer.rate)
            lines.append(
                f"  {number:>5}  {layer.kind:<9} {layer.stores:<9} {layer.items:>11,} "
                f"{layer.bits:>12,} {each:>10.2f} {rate:>10}"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"<tamis.Plan: {self.describe().lower()} for {self.n_keys:,} keys, "
            f"{self.bits_per_key:.2f} bits per key, "
            f"predicted rate {format_rate(self.expected_fpr)}>"
        )

    def _repr_html_(self) -> str:
        facts = {
            "keys": f"{self.n_keys:,}",
            "size": f"{self.bits_per_key:.2f} bits per key",
            "predicted rate": format_rate(self.expected_fpr),
            "bound under any workload": format_rate(self.fpr_bound),
            "frequent negatives stored": f"{self.negatives:,}",
        }
        rows = [
            [layer.kind, layer.stores, f"{layer.items:,}", f"{layer.bits:,}",
             "exact" if layer.exact else format_rate(layer.rate)]
            for layer in self.layers
        ]  # fmt: skip
        layers = table_html("layers", ["kind", "stores", "items", "bits", "rate"], rows)
        return facts_html(f"tamis.Plan: {self.describe().lower()}", facts) + layers

    def describe(self) -> str:
        """Describe the layers in a few words."""
        if len(self.layers) == 1:
            return f"A plain {self.layers[0].kind} filter"
        if self.last == "exact":
            return f"A stack of a {self.layers[0].kind} layer and an exact one"
        return f"A stack of {len(self.layers)} {self.layers[0].kind} layers"


def _check(plan: Plan) -> None:
    """Raise ValueError or TypeError for a plan that was not made by planning."""
    if plan.workload is not None:
        raise ValueError("workload must not be in the text of a plan")
    if not 1 <= len(plan.layers) <= _MAX_LAYERS:
        raise ValueError(f"layers must be 1 to {_MAX_LAYERS}, not {len(plan.layers)}")
    check_int("n_keys", plan.n_keys, MAX_KEYS)
    check_int("negatives", plan.negatives, MAX_KEYS)
    one_of("last", plan.last, ("alternating", "exact"))
    _finite("psi", plan.psi, _ONE)
    for name in ("expected_fpr", "fpr_bound", "bits_per_key", "expected_checks"):
        _finite(name, getattr(plan, name))
    for name, value in plan.checks._asdict().items():
        _finite(f"checks.{name}", value)
    if plan.budget is not None:
        _finite("budget", plan.budget, MAX_BITS_PER_KEY)
    if plan.expected_cost is not None:
        _finite("expected_cost", plan.expected_cost)
    for index, layer in enumerate(plan.layers):
        _check_layer(layer, last=index > 0 and index == len(plan.layers) - 1)


def _check_layer(layer: Layer, last: bool) -> None:
    names = [kind.name for kind in (*LAYERS, FUNCTION)[: len(LAYERS) + last]]
    one_of("kind", layer.kind, names)
    one_of("stores", layer.stores, ("keys", "negatives", "both"))
    _finite("rate", layer.rate, _ONE)
    check_int("items", layer.items, MAX_KEYS)
    check_int("bits", layer.bits, 2**60)
    kind = KINDS[layer.kind]
    one_of("layout", layer.layout, [None, *(o.arguments.get("layout") for o in kind.options)])
    if kind.fractional:
        _finite("fingerprint", layer.fingerprint, kind.lengths[-1])  # type: ignore[index]
        if layer.fingerprint < kind.coarsest:  # type: ignore[operator]
            raise ValueError(
                f"fingerprint must be at least {kind.coarsest}, not {layer.fingerprint}"
            )
    elif kind.lengths is not None:
        check_int("fingerprint", layer.fingerprint, kind.lengths[-1], kind.lengths[0])
    elif layer.fingerprint is not None:  # it has none, but may say so
        check_int("fingerprint", layer.fingerprint, 64)


def _finite(name: str, value: object, most: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not (math.isfinite(value) and 0 <= value <= most):
        raise ValueError(f"{name} must be finite, and from 0 to {most:g}, not {value}")
