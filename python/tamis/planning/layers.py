"""What each kind of layer costs: the bits it takes for a rate, the rates it can have.

A Bloom layer has any rate; the others have one rate per length of their fingerprints. Sizes come
from the modules of the filters themselves, so that planned bits are those of the built layer, in
small layers as in large ones.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tamis.planning import bloom, cuckoo, fuse, quotient, ribbon

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Kind:
    """What planning knows of a kind of layer.

    ``shortest`` and ``longest`` bound the bits of a fingerprint, where there is one. ``check`` is
    the time of one check relative to a Bloom layer's: "ask ns" of `make demo`.
    """

    name: str
    inserts: bool
    deletes: bool
    check: float
    shortest: int = 0
    longest: int = 0

    @property
    def continuous(self) -> bool:
        """Whether any rate is possible."""
        return not self.longest


KINDS = {
    kind.name: kind
    for kind in (
        Kind("bloom", inserts=True, deletes=False, check=1.0),
        Kind("cuckoo", inserts=True, deletes=True, check=0.3, shortest=4, longest=32),
        Kind("quotient", inserts=True, deletes=True, check=0.45, shortest=1, longest=32),
        Kind("fuse", inserts=False, deletes=False, check=0.35, shortest=1, longest=32),
        Kind("ribbon", inserts=False, deletes=False, check=0.4, shortest=1, longest=32),
        Kind("function", inserts=False, deletes=False, check=0.4, shortest=1, longest=1),
    )
}

LAYOUTS = {"bloom": "standard", "ribbon": "interleaved"}
"""The layout of a layer, for the kinds that have several: the smallest, then the fastest."""

FUSE_ARITY = 4
"""The smaller of the two kinds of fuse filter."""

_MOST_HASHES = bloom.MOST_HASHES["standard"]


def bloom_bits(rate: npt.ArrayLike) -> Any:
    """Bits per item of a large Bloom layer of this rate, with a whole number k of hashes.

    A rate α takes k/−ln(1 − α^(1/k)) bits; the best k is next to log2(1/α). With a real k it
    would be log2(1/α)/ln 2, up to 2 % less (Deeds, Hentschel, Idreos 2020, 5.1).

    >>> round(bloom_bits(0.5), 4), round(bloom_bits(0.01), 4), bloom_bits(1.0)
    (1.4427, 9.593, 0.0)
    """
    rate = np.asarray(rate, float)
    ideal = -np.log2(rate)
    best = np.full(rate.shape, math.inf)
    for k in (np.floor(ideal), np.ceil(ideal)):
        k = np.clip(k, 1, _MOST_HASHES)
        with np.errstate(divide="ignore"):  # a rate of 1 takes no bits
            best = np.minimum(best, k / -np.log1p(-(rate ** (1 / k))))
    return float(best) if best.ndim == 0 else best


@lru_cache(maxsize=65536)
def fingerprints(kind: str, items: int, length: int) -> tuple[int, float]:
    """Bits and rate of a layer of so many items with fingerprints of this length.

    >>> fingerprints("ribbon", 1000, 8), fingerprints("fuse", 0, 8)
    ((8128, 0.00390625), (0, 0.0))
    """
    if items == 0:
        return 0, 0.0
    match kind:
        case "cuckoo":
            found = cuckoo.size(items, fingerprint_bits=length)
            return found.bits, cuckoo.rate(items, found)
        case "quotient":
            count = quotient.quotients(items)
            # The kernel appends at most one block to what these sizes leave for the last runs.
            bits = math.ceil((count + 64) * (length + quotient.METADATA_BITS)) + 64
            return bits, quotient.rate(items, quotient.Size(count, length))
        case "fuse":
            return fuse.size(FUSE_ARITY, items, fpr=0.5).slots * length, 2.0**-length
        case "ribbon" | "function":
            size = ribbon.Size(length, ribbon.levels(items))
            return ribbon.most_bits(items, size), 2.0**-length
    raise ValueError(f"kind is {kind!r}; {', '.join(KINDS)} are possible")


def bloom_layer(items: int, bits: int) -> float:
    """Rate of a Bloom layer of so many items and bits.

    >>> round(bloom_layer(1000, 10_000), 5)
    0.0082
    """
    if items == 0 or bits < 1:
        return 0.0 if items == 0 else 1.0
    size = bloom.size(LAYOUTS["bloom"], items, bits_per_key=bits / items)
    return bloom.rate(LAYOUTS["bloom"], items, size)
