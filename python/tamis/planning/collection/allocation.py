"""Many filters under one budget: how many bits of each to keep in memory.

Minimize Σ uᵢ·εᵢ(mᵢ) with Σ mᵢ ≤ B over whole bits, where uᵢ is how often filter i is queried and εᵢ
is its false-positive rate with mᵢ bits (`curves`). Mersy, Wang, Sintos, Krishnan 2024 pose the
problem and solve a relaxation with a conic solver (`baselines`, for comparison). The exact optimum
is found by a search for one price per bit (`prices`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from tamis._checks import MAX_BYTES, check_int, check_number, one_of, shown
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
from tamis.planning.collection.prices import best_kinds, fewest_bits, optimal

PrefixKind = Literal["segmented", "ribbon", "truncated"]
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

PREFIX_KINDS: tuple[PrefixKind, ...] = get_args(PrefixKind)
"""The kinds of filters that can be cut to a prefix, in the order of their numbers in a plan."""

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

_BLOOM: dict[str, type[Segmented] | type[Truncated]] = {
    "segmented": Segmented,
    "truncated": Truncated,
}
AnyCurve = TypeVar("AnyCurve", bound=Curve)
BloomCurve = TypeVar("BloomCurve", bound=Segmented | Truncated)


@dataclass(frozen=True)
class Allocation:
    """How many bits of each filter to keep, and the expected false-positive rates.

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
    kind: PrefixKind | Literal["auto"] = "auto",
    method: Method = "optimal",
    fpr: float = 1e-4,
    bits: npt.ArrayLike | None = None,
    hashes: npt.ArrayLike | None = None,
) -> Allocation:
    """Allocate a budget in bits to filters, or find the smallest budget for a target rate.

    ``keys`` has the number of keys of each filter. ``utility`` says how often each is queried
    (default: equally, as in Monkey). ``fpr`` is the false-positive rate of the full filters; for
    Bloom filters of other sizes, pass ``bits`` and ``hashes``. ``kind="auto"`` chooses the best
    kind for each filter. ``method`` is "optimal", a relaxation of Mersy et al. 2024 (for Bloom
    filters only), or one of their baselines.

    >>> p = plan_collection([1000, 1000], [1, 9], budget=10_000, kind="ribbon")
    >>> p.kept.tolist(), round(p.expected_fpr, 3)
    ([3036, 6964], 0.021)
    >>> plan_collection([1000, 1000], target=0.1, kind="ribbon").bits
    7084
    """
    counts = _counts("keys", keys)
    weights = utilities(utility, len(counts))
    if (budget is None) == (target is None):
        raise ValueError("pass exactly one of budget or target")
    one_of("kind", kind, ("auto", *PREFIX_KINDS))
    fpr = check_number("fpr", fpr, "a rate from 2**-32 to below 1", minimum=2.0**-32, below=1)
    if (bits is None) != (hashes is None) or (bits is not None and kind in ("auto", "ribbon")):
        raise ValueError(
            "bits and hashes must be passed together, with kind 'segmented' or 'truncated'"
        )
    if kind == "auto":
        which, mixed = best_curves(counts, weights, fpr, budget, target)
    else:
        which = np.full(len(counts), PREFIX_KINDS.index(kind), np.uint8)
        mixed = Mixed.of(which, [full(counts, kind, fpr, bits, hashes)] * len(PREFIX_KINDS))
    if budget is not None:
        budget = check_int("budget", budget, 8 * MAX_BYTES - 1)
        kept = allocate(method, mixed, weights, budget)
    else:
        if method != "optimal":
            raise ValueError(f"method must be 'optimal' with a target, not {method!r}")
        rate = check_number("target", target, "a rate above 0 and up to 1", above=0, maximum=1)
        kept = fewest_bits(mixed, weights, rate)
    return allocation(mixed, kept, weights, which, budget)


def best_curves(
    keys: Ints, utility: Floats, fpr: float, budget: int | None, target: float | None = None
) -> tuple[npt.NDArray[np.uint8], Mixed]:
    """Choose the best kind for each filter: indices into `PREFIX_KINDS`, and the curves."""
    numbers, sizes = _distinct(keys)
    segmented, ribbons = _blooms(Segmented, numbers, fpr), _ribbons(numbers, fpr)
    which = best_kinds(segmented, ribbons, sizes, utility, budget, target)
    return which, Mixed.of(which, (segmented, ribbons), sizes)


def allocate(method: Method, curve: Mixed, utility: Floats, budget: int) -> Ints:
    """Return the bits to keep of each filter, by a method, within a budget in bits."""
    one_of("method", method, _METHODS)
    return _METHODS[method](curve, utility, budget)


def allocation(
    curve: Curve,
    kept: Ints,
    utility: Floats,
    kinds: npt.NDArray[np.uint8],
    budget: int | None = None,
) -> Allocation:
    """Return the allocation that keeps these bits."""
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
    kind: PrefixKind,
    fpr: float = 1e-4,
    bits: npt.ArrayLike | None = None,
    hashes: npt.ArrayLike | None = None,
) -> Curve:
    """Return the curve of full filters of a kind and rate, or of given sizes."""
    if bits is None or hashes is None:
        # Sizes depend only on the number of keys, which many sets share.
        numbers, which = _distinct(keys)
        if kind == "ribbon":
            return _ribbons(numbers, fpr).take(which)
        return _blooms(_BLOOM[kind], numbers, fpr).take(which)
    sizes, probes = _counts("bits", bits), _counts("hashes", hashes)
    if not len(sizes) == len(probes) == len(keys):
        raise ValueError(
            f"bits, hashes and keys must have the same length, not {len(sizes)}, {len(probes)} and "
            f"{len(keys)}"
        )
    wrong = np.flatnonzero((keys > 0) & ((probes < 1) | (sizes < probes)))
    if len(wrong):
        i = wrong[0]
        raise ValueError(f"hashes[{i}] must be from 1 to bits[{i}], {sizes[i]}, not {probes[i]}")
    return _BLOOM[kind](sizes * (keys > 0), probes, keys)


def _ribbons(keys: Ints, fpr: float) -> Ribbon:
    slots, codes = ribbon.column_slots(keys)
    columns = np.full(len(keys), max(1, math.ceil(-math.log2(fpr))), np.int64)
    return _precompute(Ribbon(slots, columns, np.minimum(slots, ribbon.WIDE), codes, keys))


def _blooms(kind: type[BloomCurve], keys: Ints, fpr: float) -> BloomCurve:
    bits, hashes = bloom_size(keys, fpr, kind)
    return _precompute(kind(bits * (keys > 0), hashes, keys))


def _precompute(curve: AnyCurve) -> AnyCurve:
    """Fill the caches of a curve, so that `take` copies them."""
    curve.worth(0.0, np.zeros(len(curve.bits)))
    return curve


def _distinct(numbers: Ints) -> tuple[Ints, npt.NDArray[np.intp]]:
    """Return the distinct numbers, and the index of each number among them."""
    if not len(numbers) or int(numbers.max()) > 4 * len(numbers):
        return np.unique(numbers, return_inverse=True)
    occurs = np.zeros(int(numbers.max()) + 1, np.bool_)
    occurs[numbers] = True
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[numbers]


def bloom_size(
    keys: Ints, fpr: float, kind: Callable[[Ints, Ints, Ints], Curve] = Segmented
) -> tuple[Ints, Ints]:
    """Size Bloom filters by the textbook: n·log2(1/ε)/ln 2 bits and log2(1/ε) probes, rounded.

    Filters of few keys, which would miss the rate by more than 5 %, get more bits: the segments of
    one key have two bits each, so that they are as selective as a hash.

    >>> bloom_size(np.array([1, 2, 1000]), 1e-4)
    (array([   28,    46, 19171]), array([14, 14, 13]))
    """
    bits = np.ceil(keys * (-math.log(fpr) / math.log(2) ** 2)).astype(np.int64)
    hashes = np.round(bits / np.maximum(keys, 1) * math.log(2)).astype(np.int64)
    hashes = np.clip(hashes, 1, np.clip(bits, 1, 64))
    low = np.flatnonzero(keys)
    while len(low := low[kind(bits[low], hashes[low], keys[low]).rate(bits[low]) > 1.05 * fpr]):
        bits[low] += np.maximum(bits[low] // 100, 1)
    return bits, hashes


def _counts(name: str, values: npt.ArrayLike) -> Ints:
    try:
        given = np.asarray(values)
    except ValueError as error:  # nested lists of different lengths
        raise ValueError(f"{name} must be a one-dimensional array of ints: {error}") from None
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(
            f"{name} must be a one-dimensional array of ints, "
            f"not {given.dtype} of shape {given.shape}"
        )
    if given.size and (int(given.min()) < 0 or int(given.max()) > 2**48):
        wrong = given[(given < 0) | (given > 2**48)]
        raise ValueError(f"{name} must be from 0 to 2**48, not {wrong[0]}")
    return given.astype(np.int64)


def utilities(utility: npt.ArrayLike | None, length: int, what: str = "filter") -> Floats:
    """Return utilities as an array: one finite, non-negative number per filter (default: 1)."""
    if utility is None:
        return np.ones(length)
    try:
        weights = np.array(utility, np.float64)  # a copy, which the caller cannot change
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"utility must be numbers, not {shown(utility)} ({error})") from None
    if weights.shape != (length,):
        raise ValueError(
            f"utility must have one number per {what}, {length}, not shape {weights.shape}"
        )
    wrong = weights[~(np.isfinite(weights) & (weights >= 0))]
    if wrong.size:
        raise ValueError(f"utility must be finite and not negative, not {wrong[0]}")
    return weights
