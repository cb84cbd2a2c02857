"""One layer of a stack: how large it is for its items, and how it is built of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from tamis import _native
from tamis.errors import BuildError, CapacityError
from tamis.planning import bloom, cuckoo, fuse, quotient, ribbon
from tamis.planning.layers import FUSE_ARITY, KINDS, fingerprints
from tamis.planning.plan import Layer

# A Bloom layer that lets more than half through is of little use; how much coarser it gets at a
# time; and the finest, for a layer that was planned to be empty.
_COARSEST = 0.5
_STEP = 1.05
_FINEST = 2.0**-32
_ATTEMPTS = 32


@dataclass(frozen=True)
class Spec:
    """The kind of a layer and how fine it is: a rate for Bloom filters, else fingerprint bits."""

    kind: str
    rate: float
    fingerprint: int
    layout: str

    @classmethod
    def of(cls, layer: Layer) -> Self:
        """Take it from a planned layer."""
        rate = min(max(layer.rate, _FINEST), 1 - _FINEST)
        return cls(layer.kind, rate, layer.fingerprint or 0, layer.layout or "")

    def coarser(self) -> Self | None:
        """Return the next coarser layer, or None where this is the coarsest."""
        if self.kind == "bloom":
            rate = self.rate * _STEP
            return None if rate > _COARSEST else replace(self, rate=rate)
        if self.fingerprint <= KINDS[self.kind].shortest:
            return None
        return replace(self, rate=2 * self.rate, fingerprint=self.fingerprint - 1)

    def bits(self, items: int) -> int:
        """Predict the size of this layer of so many items; chance makes some a little larger."""
        if self.kind == "bloom":
            return bloom.size(self.layout, items, fpr=self.rate).bits
        return fingerprints(self.kind, items, self.fingerprint)[0]

    def build(self, items: _native.Distinct, room: int) -> _native.Kernel:
        """Build the layer of these items, with room for more where its kind takes more."""
        match self.kind:
            case "bloom":
                size = bloom.size(self.layout, room, fpr=self.rate)
                return _native.bloom_build(self.layout, *size, items)
            case "cuckoo":
                return self._cuckoo(items, room)
            case "quotient":
                quotients = quotient.size(room, fpr=0.5).quotients
                return _native.quotient_build(quotients, self.fingerprint, items, room)
            case "fuse":
                fused = fuse.size(FUSE_ARITY, len(items), fpr=2.0**-self.fingerprint)
                return _native.fuse_build(FUSE_ARITY, *fused, items)
            case "ribbon":
                levels = ribbon.levels(len(items))
                return _native.ribbon_build(self.layout, self.fingerprint, levels, items)
        raise ValueError(f"kind is {self.kind!r}; no such layer is known")

    def function(self, items: _native.Assigned) -> _native.Kernel:
        """Build the function of one bit that has these values."""
        return _native.function_build(1, ribbon.levels(len(items)), items)

    def _cuckoo(self, items: _native.Distinct, room: int) -> _native.Kernel:
        for attempt in range(_ATTEMPTS):
            size = cuckoo.size(room, fingerprint_bits=self.fingerprint, attempt=attempt)
            try:
                return _native.cuckoo_build(*size, items)
            except CapacityError:
                continue
        raise BuildError(f"{len(items)} items do not fit a layer: too many share fingerprints")
