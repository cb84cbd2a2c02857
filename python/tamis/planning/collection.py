"""Many filters under one budget: how many bits of each to keep in memory.

Minimize Σ uᵢ·εᵢ(mᵢ) with Σ mᵢ ≤ B over whole bits, where uᵢ is how often filter i is asked and εᵢ
how its rate falls with the bits kept of it (`tamis.planning.curves`). The curves are convex, so
the optimum gives every filter the bits whose gain in weighted rate is above one price; a search for
that price is all there is to solve. Mersy, Wang, Sintos, Krishnan 2024 pose the problem and solve a
relaxation with a conic solver; that relaxation and their baselines are here to compare with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tamis.planning import ribbon
from tamis.planning.curves import Curve, Exponential, Floats, Ints, Ribbon, Segmented, Truncated

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

LEVELS = 7
"""Sizes that a filter can have in the elastic baseline, none and all included."""

_WIDE = 256


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
    if (bits is None) != (hashes is None) or (bits is not None and kind in ("auto", "ribbon")):
        raise ValueError("bits and hashes go together, with kind segmented or truncated")
    names: tuple[Kind, ...] = KINDS[:2] if kind == "auto" else (kind,)
    curves = [full(counts, name, fpr, bits, hashes) for name in names]
    which = np.zeros(len(counts), np.uint8)
    if kind == "auto":
        which = _best_kinds(curves, weights, budget, target)
    else:
        which[:] = KINDS.index(kind)
        curves = [curves[0]] * len(KINDS)
    mixed = Mixed.of(which, curves)
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
    rates = curve.rate(kept)
    total, bits = float(utility.sum()), int(kept.sum())
    weighted = float(utility @ rates) / total if total > 0 else 0.0
    return Allocation(
        kept, rates, kinds, utility, bits if budget is None else budget, bits, weighted
    )


def full(
    keys: Ints,
    kind: Kind,
    fpr: float = 1e-4,
    bits: npt.ArrayLike | None = None,
    hashes: npt.ArrayLike | None = None,
) -> Curve:
    """The full filters of a kind that reach a rate, as a curve of what may be kept of them."""
    if not (isinstance(fpr, float | int) and 2.0**-32 <= fpr < 1):
        raise ValueError(f"fpr is {fpr!r}; a rate from 2**-32 to below 1 is wanted")
    if kind == "ribbon":
        slots, codes = ribbon_slots(keys)
        columns = np.full(len(keys), max(1, math.ceil(-math.log2(fpr))), np.int64)
        return Ribbon(slots, columns, np.minimum(slots, _WIDE), codes, keys)
    if bits is None or hashes is None:
        sizes, probes = bloom_size(keys, fpr)
    else:
        sizes, probes = _counts("bits", bits), _counts("hashes", hashes)
        if not len(sizes) == len(probes) == len(keys):
            raise ValueError("bits, hashes and keys differ in length")
        if ((keys > 0) & ((probes < 1) | (sizes < probes))).any():
            raise ValueError("hashes: each filter has from 1 to as many as it has bits")
    sizes = np.where(keys > 0, sizes, 0)
    return (Segmented if kind == "segmented" else Truncated)(sizes, probes, keys)


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
    levels = [ribbon.levels(size) for size in sizes.tolist()]
    codes[large] = np.array([ribbon_codes(each) for each in levels], np.int64)[which]
    columns = [
        ribbon.most_bits(size, ribbon.Size(2, each)) - ribbon.most_bits(size, ribbon.Size(1, each))
        for size, each in zip(sizes.tolist(), levels, strict=True)
    ]
    slots[large] = np.array(columns, np.int64)[which]
    return np.where(keys > 0, slots, 0), codes


def ribbon_codes(levels: tuple[int, ...]) -> int:
    """Bits before the columns: per level whole words of codes, all together whole cache lines."""
    words = sum(math.ceil(math.ceil((slots - 64) / ribbon.BUCKET) / 32) for slots in levels)
    return 512 * math.ceil(words / 8)


@dataclass(frozen=True)
class Mixed:
    """Filters of several kinds, each on the curve of its own."""

    parts: tuple[tuple[npt.NDArray[np.intp], Curve], ...]
    length: int

    @classmethod
    def of(cls, which: npt.NDArray[np.uint8], curves: list[Curve]) -> Mixed:
        """Take filter i from ``curves[which[i]]``."""
        chosen = ((np.flatnonzero(which == i), curve) for i, curve in enumerate(curves))
        parts = tuple((own, curve.take(own)) for own, curve in chosen if len(own))
        return cls(parts, len(which))

    def _ints(self, answer: Callable[[npt.NDArray[np.intp], Curve], Ints]) -> Ints:
        out = np.zeros(self.length, np.int64)
        for own, curve in self.parts:
            out[own] = answer(own, curve)
        return out

    @property
    def bits(self) -> Ints:
        """The bits of each full filter."""
        return self._ints(lambda _, curve: curve.bits)

    def take(self, which: npt.NDArray[np.intp]) -> Mixed:
        """Select some of the filters."""
        place = np.full(self.length, -1, np.intp)
        place[which] = np.arange(len(which))
        parts = []
        for own, curve in self.parts:
            chosen = np.flatnonzero(place[own] >= 0)
            if len(chosen):
                parts.append((place[own[chosen]], curve.take(chosen)))
        return Mixed(tuple(parts), len(which))

    def rate(self, kept: Ints) -> Floats:
        """Predict the rate of each filter cut to its first bits."""
        out = np.zeros(self.length)
        for own, curve in self.parts:
            out[own] = curve.rate(kept[own])
        return out

    def worth(self, log_price: float, log_utility: Floats) -> Ints:
        """Tell how many bits of each are worth this price."""
        return self._ints(lambda own, curve: curve.worth(log_price, log_utility[own]))


def optimal(curve: Curve, utility: Floats, budget: int) -> Ints:
    """Find the whole bits to keep of each filter with the least weighted rate in the budget.

    Exact where single bits count (Bloom filters). Columns of ribbons are taken whole by gain per
    bit, then those that still fit; what is left over goes where a part of a column helps.
    """
    few, many = _bracket(curve, utility, lambda _, kept, __: float(kept.sum()), budget)
    kept = few.copy()
    _fill(curve, utility, kept, many, budget)
    ribbons = [(own, part) for own, part in _parts(curve) if isinstance(part, Ribbon)]
    if not ribbons:
        return kept
    for own, part in ribbons:
        left = budget - int(kept.sum())
        kept[own] = _more_columns(part, utility[own], kept[own], left)
    divisible = np.ones(len(kept), np.bool_)
    for own, _ in ribbons:
        divisible[own] = False
    loose = np.flatnonzero(divisible)
    left = budget - int(kept.sum())
    if len(loose) and left > 0:
        kept[loose] = optimal(curve.take(loose), utility[loose], left + int(kept[loose].sum()))
    return kept


def least(curve: Curve, utility: Floats, target: float) -> Ints:
    """Find the least bits whose weighted rate is at most the target; all if none reach it."""
    most = target * float(utility.sum())
    if float(utility @ curve.rate(curve.bits)) > most:
        return curve.bits

    def spared(part: Curve, kept: Ints, weights: Floats) -> float:
        return float(weights.sum() - weights @ part.rate(kept))

    few, many = _bracket(curve, utility, spared, float(utility.sum()) - most)
    # Filters between the two gain alike per bit: as many of them as are needed.
    gain = utility * (curve.rate(few) - curve.rate(many))
    needed = float(utility @ curve.rate(few)) - most
    order = np.flatnonzero(many > few)
    order = order[np.argsort(-gain[order], kind="stable")]
    count = int(np.searchsorted(np.cumsum(gain[order]), needed)) + 1 if needed > 0 else 0
    kept = few.copy()
    kept[order[:count]] = many[order[:count]]
    return kept


Measure: TypeAlias = Callable[[Curve, Ints, Floats], float]
"""What rises as the price falls, summed over filters: from curve, bits kept and utilities."""

_SAMPLE = 1 << 15
"""Filters that tell the price to a few percent, before all are asked for the rest of it."""

_SLACK = 0.01
"""How far from the price of the sample that of all is looked for first."""


def _bracket(curve: Curve, utility: Floats, measure: Measure, most: float) -> tuple[Ints, Ints]:
    """Bits at the lowest price at which the measure is at most ``most``, and just below that price.

    The two differ only in filters whose next bits gain alike.
    """
    asked = np.flatnonzero(utility > 0)
    few, many = np.zeros(len(utility), np.int64), np.zeros(len(utility), np.int64)
    if not len(asked):
        return few, many
    part = curve if len(asked) == len(utility) else curve.take(asked)
    weights = utility[asked]
    few[asked], many[asked], _ = _search(part, weights, measure, most)
    return few, many


def _search(
    curve: Curve, utility: Floats, measure: Measure, most: float, guess: float | None = None
) -> tuple[Ints, Ints, float]:
    """Search for the price between two that enclose it, and tell it too.

    Between them the measure is interpolated, a little inwards of both so that either may move, and
    halved where that gains little. Filters that keep as many bits at both ends are settled and not
    asked again.
    """
    logs = np.log(utility)
    # No bit gains more than its utility; a gain below e⁻⁷⁰⁰ of it is none.
    highest, lowest = float(logs.max()) + 1, float(logs.min()) - 700
    if len(logs) > 2 * _SAMPLE:
        which = np.random.default_rng(0).choice(len(logs), _SAMPLE, replace=False)
        share = most * _SAMPLE / len(logs)
        guess = _search(curve.take(which), utility[which], measure, share)[2]
    low, high, step = lowest, highest, _SLACK
    if guess is not None:
        low, high = max(lowest, guess - step), min(highest, guess + step)
    while True:
        many = curve.worth(low, logs)
        above = measure(curve, many, utility)
        if above > most or low <= lowest:
            break
        low, high, step = max(lowest, low - 4 * step), low, 4 * step
    if above <= most:
        return many, many.copy(), low
    step = _SLACK
    while True:
        few = curve.worth(high, logs)
        below = measure(curve, few, utility)
        if below <= most or high >= highest:
            break
        low, high, many, above, step = high, min(highest, high + 4 * step), few, below, 4 * step
    open_ = np.flatnonzero(few < many)
    part, logs, weights = curve.take(open_), logs[open_], utility[open_]
    settled = below - measure(part, few[open_], weights)
    halve = False
    while len(open_):
        share = (above - most) / (above - below) if above > below else 0.5
        middle = low + (high - low) * (0.5 if halve else min(max(share, 0.02), 0.98))
        if not low < middle < high:
            break
        width = high - low
        found = part.worth(middle, logs)
        value = settled + measure(part, found, weights)
        if value <= most:
            high, few[open_], below = middle, found, value
        else:
            low, many[open_], above = middle, found, value
        halve = not halve and high - low > width / 2
        still = np.flatnonzero(few[open_] < many[open_])
        if len(still) < 0.7 * len(open_):
            open_, part, logs, weights = open_[still], part.take(still), logs[still], weights[still]
            settled = below - measure(part, few[open_], weights)
    return few, many, high


def _fill(curve: Curve, utility: Floats, kept: Ints, many: Ints, budget: int) -> None:
    """Hand out what is left among filters whose next bits gain alike, the most asked first."""
    order = np.flatnonzero(many > kept)
    order = order[np.argsort(-utility[order], kind="stable")]
    room = np.zeros(len(kept), np.bool_)
    for own, part in _parts(curve):
        room[own] = isinstance(part, Ribbon)
    left = budget - int(kept.sum())
    wanted = (many - kept)[order]
    ends = np.cumsum(wanted)
    given = np.clip(left - (ends - wanted), 0, wanted)
    # A column is taken whole or left to `_more_columns`.
    given[(given < wanted) & room[order]] = 0
    kept[order] += given


def _parts(curve: Curve) -> tuple[tuple[npt.NDArray[np.intp], Curve], ...]:
    if isinstance(curve, Mixed):
        return curve.parts
    return ((np.arange(len(curve.bits)), curve),)


def _more_columns(curve: Ribbon, utility: Floats, kept: Ints, left: int) -> Ints:
    """Add columns that fit into what is left, the best first; then the best part of one."""
    kept = kept.copy()
    while True:
        length = np.where(kept == 0, curve.codes, 0) + curve.slots
        gain = utility * (curve.rate(kept) - curve.rate(np.minimum(kept + length, curve.bits)))
        fits = np.flatnonzero((kept < curve.bits) & (length <= left) & (gain > 0))
        if not len(fits):
            break
        fits = fits[np.argsort(-gain[fits] / length[fits], kind="stable")]
        taken = fits[: max(1, int(np.searchsorted(np.cumsum(length[fits]), left, side="right")))]
        kept[taken] += length[taken]
        left -= int(length[taken].sum())
    if left > 0 and len(kept):
        partial = np.minimum(kept + left, curve.bits)
        gain = utility * (curve.rate(kept) - curve.rate(partial))
        best = int(np.argmax(gain))
        if gain[best] > 0:
            kept[best] = partial[best]
    return kept


def _best_kinds(
    curves: list[Curve], utility: Floats, budget: int | None, target: float | None
) -> npt.NDArray[np.uint8]:
    """Choose for each filter the kind with the least rate and price of bits, under one price.

    The price is that of the kind which is best if all are of it: between kinds it hardly differs.
    """
    asked = np.flatnonzero(utility > 0)
    which = np.zeros(len(utility), np.uint8)
    if not len(asked):
        return which
    costs = []
    sample = asked
    if len(asked) > 2 * _SAMPLE:
        sample = np.random.default_rng(0).choice(asked, _SAMPLE, replace=False)
    weights = utility[sample]
    if budget is not None:
        budget = budget * len(sample) // len(asked)
    for curve in (curve.take(sample) for curve in curves):
        if budget is not None:
            kept, _, price = _search(curve, weights, lambda _, kept, __: float(kept.sum()), budget)
            costs.append((float(weights @ curve.rate(kept)), price))
        else:
            kept = least(curve, weights, target or 1.0)
            spent = float(kept.sum())
            costs.append((spent, math.log(float(weights.sum()) / max(spent, 1.0))))
    price = min(costs)[1]
    weights = utility[asked]
    logs = np.log(weights)
    each = []
    for curve in (curve.take(asked) for curve in curves):
        kept = curve.worth(price, logs)
        each.append(weights * curve.rate(kept) + math.exp(price) * kept)
    which[asked] = np.argmin(each, axis=0)
    return which


def _relaxation(mixed: Mixed, utility: Floats, budget: int) -> Ints:
    """Minimize Jensen's lower bound w^(k·m'/m) (Eq. 4), rounded down as the paper does."""
    part = _bloom(mixed, "relaxation")
    zeros = np.exp(part.hashes * part.keys * np.log1p(-1 / np.maximum(part.bits, 2)))
    decay = -np.log1p(-zeros) * part.hashes / np.maximum(part.bits, 1)
    return optimal(Exponential(part.bits, decay), utility, budget)


def _further(mixed: Mixed, utility: Floats, budget: int) -> Ints:
    """Minimize 0.618^(m'/n): the relaxation for filters with the best number of probes."""
    part = _bloom(mixed, "further relaxation")
    decay = math.log(2) ** 2 / np.maximum(part.keys, 1)
    return optimal(Exponential(part.bits, decay), utility, budget)


def _bloom(mixed: Mixed, method: str) -> Truncated | Segmented:
    if len(mixed.parts) == 1 and isinstance(mixed.parts[0][1], Truncated | Segmented):
        return mixed.parts[0][1]
    raise ValueError(f"method is {method!r}; it is for kind truncated or segmented")


def _untruncated(mixed: Mixed, utility: Floats, budget: int) -> Ints:
    """Keep everything, whatever the budget."""
    return mixed.bits


def _proportional(mixed: Mixed, utility: Floats, budget: int) -> Ints:
    """Cut every filter to the same share."""
    bits = mixed.bits
    total = int(bits.sum())
    if total <= budget:
        return bits
    cut: Ints = np.floor(bits * (budget / total)).astype(np.int64)
    return cut


def _top_utility(mixed: Mixed, utility: Floats, budget: int) -> Ints:
    """Keep whole filters, the most asked first, until the next does not fit."""
    return _whole_filters(mixed.bits, np.argsort(-utility, kind="stable"), budget, part=False)


def _greedy(mixed: Mixed, utility: Floats, budget: int) -> Ints:
    """Keep filters by utility per key: the paper's linear relaxation."""
    full = mixed.bits
    order = np.argsort(-utility / np.maximum(full, 1), kind="stable")
    return _whole_filters(full, order, budget, part=True)


def _whole_filters(bits: Ints, order: npt.NDArray[np.intp], budget: int, *, part: bool) -> Ints:
    kept = np.zeros(len(bits), np.int64)
    ends = np.cumsum(bits[order])
    count = int(np.searchsorted(ends, budget, side="right"))
    kept[order[:count]] = bits[order[:count]]
    if part and count < len(order):
        kept[order[count]] = budget - (int(ends[count - 1]) if count else 0)
    return kept


def _elastic(mixed: Mixed, utility: Floats, budget: int) -> Ints:
    """Fill caches of equal size with filters of 6/6, 5/6, … of their bits, the most asked first."""
    bits = mixed.bits
    total, units = int(bits.sum()), LEVELS - 1
    kept = np.zeros(len(bits), np.int64)
    if total <= budget:
        return bits
    caches = max(1, math.ceil((1 - budget / total) * units))
    order = np.argsort(-utility, kind="stable")
    for level in range(units, units - caches, -1):
        size = bits[order] * level // units
        count = int(np.searchsorted(np.cumsum(size), budget // caches, side="right"))
        kept[order[:count]] = size[:count]
        order = order[count:]
    return kept


_METHODS: dict[Method, Callable[[Mixed, Floats, int], Ints]] = {
    "optimal": optimal,
    "relaxation": _relaxation,
    "further relaxation": _further,
    "untruncated": _untruncated,
    "proportional": _proportional,
    "top utility": _top_utility,
    "elastic": _elastic,
    "greedy": _greedy,
}


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
