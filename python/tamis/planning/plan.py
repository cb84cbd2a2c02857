"""A plan: which layers, how large, and what they are predicted to do."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, SupportsIndex

from tamis.planning.kinds import KINDS, fingerprint_layer
from tamis.planning.stacked.metrics import Checks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tamis._types import Keys
    from tamis.filters.stacked import Stacked
    from tamis.workload import Workload

# A Bloom layer that accepts more than half is of little use; how much coarser it gets at a time, of
# which a layer of a very low rate would need hundreds; and a rate for a layer that was planned to
# be empty, and so has none.
_COARSEST = 0.5
_STEP, _LONG_STEP = 1.05, 2.0
_LOW = 2.0**-32


@dataclass(frozen=True)
class Layer:
    """One layer of a plan.

    ``stores`` is "keys", "negatives" or, for a function, "both"; ``rate`` (α) the share of what it
    does not store that it accepts; ``fingerprint`` the bits of a fingerprint, for kinds that have
    one; ``items`` and ``bits`` what is expected to be stored, and the room for it.
    """

    kind: str
    stores: str
    rate: float
    items: int
    bits: int
    fingerprint: int | None = None
    layout: str | None = None

    def size(self, items: int) -> Any:
        """Find the size of this layer for other items, as fine as it is planned."""
        kind = KINDS[self.kind]
        fineness: dict[str, Any] = {"fingerprint_bits": self.fingerprint or 0}
        if kind.continuous:
            fineness = {"fpr": min(self.rate or _LOW, 1 - _LOW)}
        return kind.layer_size(
            items, **fineness, **({"layout": self.layout} if self.layout else {})
        )

    def bits_for(self, items: int) -> int:
        """Predict the bits of this layer for other items; chance makes some a little larger."""
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
        if self.fingerprint is None or self.fingerprint <= lengths.start:
            return None
        return replace(self, rate=2 * self.rate, fingerprint=self.fingerprint - 1)


@dataclass(frozen=True)
class Plan:
    """A filter to be built, and what it is predicted to do.

    ``negatives`` is how many of the workload's most frequent negatives are stored, and ``psi`` (ψ)
    their share of the questions. ``expected_fpr`` (EFPR) is the rate under the workload,
    ``fpr_bound`` (EFPB) that under any other. ``checks`` are the layers met by each kind of
    question, ``expected_checks`` their mean over the workload. ``budget`` is what was asked for,
    in bits per key, if it was.

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
        """Build the filter of these keys; the arguments are those of `Stacked.from_plan`."""
        from tamis.filters.stacked import Stacked

        return Stacked.from_plan(
            self, keys, negatives=negatives, capacity=capacity, seed=seed, key=key
        )

    def rate_at(self, psi: float) -> float:
        """Predict the rate when stored negatives are ``psi`` (ψ) of the negative questions.

        It is linear in ψ: from `fpr_bound` at 0 through `expected_fpr` at the plan's own.
        """
        if not 0 <= psi <= 1:
            raise ValueError(f"psi is {psi}; a share from 0 to 1 is wanted")
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

    def to_json(self) -> str:
        """Return the plan as JSON text, without its workload."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "workload"}
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
            plain["layers"] = tuple(Layer(**layer) for layer in plain["layers"])
            plain["checks"] = Checks(**plain["checks"])
            return cls(**plain)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"text is not a plan ({error}); what to_json wrote is wanted"
            ) from None

    def plot(self, ax: Any = None) -> Any:
        """Draw the rate by the share ψ of stored negatives among the questions; return the axes."""
        from tamis.pictures import draw_plan

        return draw_plan(self, ax)

    def __str__(self) -> str:
        lines = [
            f"{self.describe()} for {self.n_keys:,} keys: {self.bits_per_key:.3f} bits per key",
            f"  predicted rate {self.expected_fpr:.3g}, at most {self.fpr_bound:.3g} "
            f"under any workload; {self.expected_checks:.3f} checks per question",
        ]
        if self.negatives:
            lines.append(
                f"  {self.negatives:,} frequent negatives stored: {self.psi:.1%} of the questions, "
                f"wrong at a rate of {self.frequent_fpr:.3g}"
            )
        lines += ["", "  layer  kind      stores          items         bits  bits/item       rate"]
        for number, layer in enumerate(self.layers, 1):
            each = layer.bits / layer.items if layer.items else 0.0
            rate = "exact" if layer.kind == "function" else f"{layer.rate:.4g}"
            lines.append(
                f"  {number:>5}  {layer.kind:<9} {layer.stores:<9} {layer.items:>11,} "
                f"{layer.bits:>12,} {each:>10.2f} {rate:>10}"
            )
        return "\n".join(lines)

    def describe(self) -> str:
        """Say in a few words which layers it has."""
        if len(self.layers) == 1:
            return f"A plain {self.layers[0].kind} filter"
        if self.last == "exact":
            return f"A stack of a {self.layers[0].kind} layer and an exact one"
        return f"A stack of {len(self.layers)} {self.layers[0].kind} layers"
