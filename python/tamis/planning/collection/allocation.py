"""Many filters under one budget: how many bits of each to keep in memory.

Minimize Σ uᵢ·εᵢ(mᵢ) with Σ mᵢ ≤ B over whole bits, where uᵢ is how often filter i is asked and εᵢ
how its rate falls with the bits kept of it (`curves`). Mersy, Wang, Sintos, Krishnan 2024 pose the
problem and solve a relaxation with a conic solver (`baselines`, to compare with); the exact optimum
is a search for one price (`prices`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from tamis.planning import ribbon
from tamis.planning.collection import baselines
from tamis.planning.collection.curves import (
    Curve,
    Floats,
    Ints,
    Mixed,
    Ribbon,
    Segmented,
    Truncated,
)
from tamis.planning.collection.prices import best_kinds, least, optimal

Kind = Literal["segmented", "ribbon", "truncated"]
Method = Literal[
    "optimal",
    "relaxation",
    "further relaxation",
    "untruncated",
    "proportional",
    "top utility",
    "elastic",
    "greedy",
]

KINDS: tuple[Kind, ...] = get_args(Kind)
"""The kinds of filters that are cut to a prefix, in the order of their numbers in a plan."""

_METHODS: dict[Method, Callable[[Mixed, Floats, int], Ints]] = {
    "optimal": optimal,
    "relaxation": baselines.relaxation,
    "further relaxation": baselines.further_relaxation,
    "untruncated": baselines.untruncated,
    "proportional": baselines.proportional,
    "top utility": baselines.top_utility,
    "elastic": baselines.elastic,
    "greedy": baselines.greedy,
}

_WIDE = 256
_BLOOM: dict[str, type[Segmented] | type[Truncated]] = {
    "segmented": Segmented,
    "truncated": Truncated,
}
AnyCurve = TypeVar("AnyCurve", bound=Curve)
BloomCurve = TypeVar("BloomCurve", bound=Segmented | Truncated)


@dataclass(frozen=True)
class Allocation:
    """How many bits of each filter to keep, and what that leads to.

    >>> print(plan_collection([1000, 1000, 1000], [1, 10, 100], budget=9000, kind="segmented"))
    3 filters, 9,000 of 9,000 bits, weighted rate 0.0772
    """

    kept: Ints
    rates: Floats
    kinds: npt.NDArray[np.uint8]
    utility: Floats = field(repr=False)
    budget: int
    bits: int
    expected_fpr: float

    def __str__(self) -> str:
        return (
            f"{len(self.kept):,} filters, {self.bits:,} of {self.budget:,} bits, "
            f"weighted rate {self.expected_fpr:.3g}"
        )


def plan_collection(
    keys: npt.ArrayLike,
    utility: npt.ArrayLike | None = None,
    *,
    budget: int | None = None,
    target: float | None = None,
    kind: Kind | Literal["auto"] = "auto",
    method: Method = "optimal",
    fpr: float = 1e-4,
    bits: npt.ArrayLike | None = None,
    hashes: npt.ArrayLike | None = None,
) -> Allocation:
    """Allocate a budget in bits to filters of so many keys; or find the least for a target rate.

    ``utility`` says how often each filter is asked (all alike without it, as in Monkey), ``fpr`` is
    the rate of the full filters. Bloom filters of other sizes are given by ``bits`` and ``hashes``.
    With ``kind="auto"`` each filter has the kind that serves it best. ``method`` names the optimum,
    the relaxations of Mersy et al. 2024 (for Bloom filters only) or one of their baselines.

    >>> p = plan_collection([1000, 1000], [1, 9], budget=10_000, kind="ribbon")
    >>> p.kept.tolist(), round(p.expected_fpr, 3)
    ([3036, 6964], 0.021)
    >>> plan_collection([1000, 1000], target=0.1, kind="ribbon").bits
    7084
    """
    counts = _counts("keys", keys)
    weights = utilities(utility, len(counts))
    if (budget is None) == (target is None):
        given = "neither" if budget is None else "both"
        raise ValueError(f"{given} of budget and target given; exactly one is wanted")
    if kind != "auto" and kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; auto, {', '.join(KINDS)} are possible")
    if not (isinstance(fpr, float | int) and 2.0**-32 <= fpr < 1):
        raise ValueError(f"fpr is {fpr!r}; a rate from 2**-32 to below 1 is wanted")
    if (bits is None) != (hashes is None) or (bits is not None and kind in ("auto", "ribbon")):
        raise ValueError("bits and hashes go together, with kind segmented or truncated")
    if kind == "auto":
        numbers, sizes = _distinct(counts)
        segmented, ribbons = _blooms(Segmented, numbers, fpr), _ribbons(numbers, fpr)
        which = best_kinds(segmented, ribbons, sizes, weights, budget, target)
        mixed = Mixed.of(which, (segmented, ribbons), sizes)
    else:
        which = np.full(len(counts), KINDS.index(kind), np.uint8)
        mixed = Mixed.of(which, [full(counts, kind, fpr, bits, hashes)] * len(KINDS))
    if budget is not None:
        if isinstance(budget, bool) or not isinstance(budget, int | np.integer) or budget < 0:
            raise ValueError(f"budget is {budget!r}; a whole number of bits from 0 on is wanted")
        kept = allocate(method, mixed, weights, int(budget))
    else:
        if method != "optimal":
            raise ValueError(f"method is {method!r} with a target; only optimal finds the least")
        if not (isinstance(target, float | int) and 0 < target <= 1):
            raise ValueError(f"target is {target!r}; a rate above 0 and up to 1 is wanted")
        kept = least(mixed, weights, float(target))
    return allocation(mixed, kept, weights, which, budget)


def allocate(method: Method, curve: Mixed, utility: Floats, budget: int) -> Ints:
    """Allocate a budget in bits by a method; how many bits to keep of each filter."""
    if method not in _METHODS:
        raise ValueError(f"method is {method!r}; one of {', '.join(_METHODS)} is possible")
    return _METHODS[method](curve, utility, budget)


def allocation(
    curve: Curve,
    kept: Ints,
    utility: Floats,
    kinds: npt.NDArray[np.uint8],
    budget: int | None = None,
) -> Allocation:
    """Say what keeping these bits leads to."""
    rates, bits = curve.rate(kept), int(kept.sum())
    return Allocation(
        kept,
        rates,
        kinds,
        utility,
        bits if budget is None else budget,
        bits,
        weighted_rate(utility, rates),
    )


def weighted_rate(utility: Floats, rates: Floats) -> float:
    """Return the mean of rates weighted by utility; 0 if no filter has any utility."""
    total = float(utility.sum())
    return float(utility @ rates) / total if total > 0 else 0.0


def full(
    keys: Ints,
    kind: Kind,
    fpr: float = 1e-4,
    bits: npt.ArrayLike | None = None,
    hashes: npt.ArrayLike | None = None,
) -> Curve:
    """The full filters of a kind that reach a rate, as a curve of what may be kept of them."""
    if bits is None or hashes is None:
        # Sizes follow from the number of keys alone, and many sets have the same.
        numbers, which = _distinct(keys)
        if kind == "ribbon":
            return _ribbons(numbers, fpr).take(which)
        return _blooms(_BLOOM[kind], numbers, fpr).take(which)
    sizes, probes = _counts("bits", bits), _counts("hashes", hashes)
    if not len(sizes) == len(probes) == len(keys):
        raise ValueError("bits, hashes and keys differ in length")
    if ((keys > 0) & ((probes < 1) | (sizes < probes))).any():
        raise ValueError("hashes: each filter has from 1 to as many as it has bits")
    return _BLOOM[kind](sizes * (keys > 0), probes, keys)


def _ribbons(keys: Ints, fpr: float) -> Ribbon:
    slots, codes = ribbon_slots(keys)
    columns = np.full(len(keys), max(1, math.ceil(-math.log2(fpr))), np.int64)
    return _known(Ribbon(slots, columns, np.minimum(slots, _WIDE), codes, keys))


def _blooms(kind: type[BloomCurve], keys: Ints, fpr: float) -> BloomCurve:
    bits, hashes = bloom_size(keys, fpr)
    return _known(kind(bits * (keys > 0), hashes, keys))


def _known(curve: AnyCurve) -> AnyCurve:
    """Compute what a curve needs of its filters, so that `take` hands it on."""
    curve.worth(0.0, np.zeros(len(curve.bits)))
    return curve


def _distinct(numbers: Ints) -> tuple[Ints, npt.NDArray[np.intp]]:
    """The distinct numbers, and for each of all where it is among them."""
    if not len(numbers) or int(numbers.max()) > 4 * len(numbers):
        return np.unique(numbers, return_inverse=True)
    there = np.zeros(int(numbers.max()) + 1, np.bool_)
    there[numbers] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[numbers]


def bloom_size(keys: Ints, fpr: float) -> tuple[Ints, Ints]:
    """Size Bloom filters as the textbook does: n·log2(1/ε)/ln 2 bits, log2(1/ε) probes, rounded.

    >>> bloom_size(np.array([1000]), 1e-4)
    (array([19171]), array([13]))
    """
    bits = np.ceil(keys * (-math.log(fpr) / math.log(2) ** 2)).astype(np.int64)
    hashes = np.round(bits / np.maximum(keys, 1) * math.log(2)).astype(np.int64)
    return bits, np.clip(hashes, 1, np.clip(bits, 1, 64))


def ribbon_slots(keys: Ints) -> tuple[Ints, Ints]:
    """Bits of a ribbon's column and of its codes, which a set that was built may exceed a little.

    >>> ribbon_slots(np.array([0, 1, 100, 1000, 10**6]))[0]
    array([      0,       2,     101,    1012, 1003226])
    """
    slots = keys + 1 + np.maximum(keys - _WIDE, 0) // 64
    codes = np.zeros_like(slots)
    large = np.flatnonzero(keys > ribbon.DIRECT)
    sizes, which = np.unique(keys[large], return_inverse=True)
    levels = [(size, ribbon.levels(size)) for size in sizes.tolist()]
    codes[large] = np.array([ribbon_codes(each) for _, each in levels], np.int64)[which]
    slots[large] = np.array([ribbon.most_slots(*each) for each in levels], np.int64)[which]
    return np.where(keys > 0, slots, 0), codes


def ribbon_codes(levels: tuple[int, ...]) -> int:
    """Bits before the columns: per level whole words of codes, all together whole cache lines."""
    words = sum(math.ceil(math.ceil((slots - 64) / ribbon.BUCKET) / 32) for slots in levels)
    return 512 * math.ceil(words / 8)


def _counts(name: str, values: npt.ArrayLike) -> Ints:
    given = np.asarray(values)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(
            f"{name} is of shape {given.shape}, {given.dtype}; a row of ints is wanted"
        )
    if given.size and (int(given.min()) < 0 or int(given.max()) > 2**48):
        raise ValueError(f"{name} has values below 0 or above 2**48")
    return given.astype(np.int64)


def utilities(utility: npt.ArrayLike | None, length: int) -> Floats:
    """Read utilities: one finite number from 0 on per filter, or 1 for all."""
    if utility is None:
        return np.ones(length)
    weights = np.asarray(utility, np.float64)
    if weights.shape != (length,):
        raise ValueError(f"utility is of shape {weights.shape}; one number per filter is wanted")
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError("utility has values that are negative or not finite")
    return weights
