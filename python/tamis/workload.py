"""`tamis.Workload`: what is known about the questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, SupportsIndex

from tamis.planning.arguments import MOST_KEYS, whole
from tamis.planning.stacked.curve import Curve, Zipf

if TYPE_CHECKING:
    from tamis._types import Keys


class Workload:
    """The negatives that are asked for, from the most to the least frequent.

    >>> w = Workload.zipf(exponent=1.0, universe=10**8, sample=5 * 10**7)
    >>> round(w.psi(1_000_000), 4), round(w.unseen, 4)
    (0.7576, 0.0365)
    """

    def __init__(self, curve: Curve, *, values: Any = None, present: float = 0.0) -> None:
        self.curve = curve
        self.present = present
        self._values = values

    @classmethod
    def zipf(
        cls, exponent: float, universe: SupportsIndex, sample: SupportsIndex | None = None
    ) -> Self:
        """Make the shape of frequencies 1/rank^exponent, the first ``sample`` of them known."""
        universe = whole("universe", universe, MOST_KEYS)
        known = universe if sample is None else whole("sample", sample, universe)
        return cls(Zipf(float(exponent), universe, known))

    @property
    def unseen(self) -> float:
        """The share of questions for values never seen (ℓ)."""
        return 1 - float(self.curve.psi(self.curve.size))

    def psi(self, n: SupportsIndex) -> float:
        """The share of questions that ask for the n most frequent negatives (ψ)."""
        return float(self.curve.psi(whole("n", n, MOST_KEYS)))

    def head(self, n: SupportsIndex) -> Keys:
        """Return the values of the n most frequent negatives."""
        if self._values is None:
            raise ValueError("the workload is a shape without values; give the negatives")
        return self._values[: whole("n", n, MOST_KEYS)]  # type: ignore[no-any-return]
