"""Learned Bloom filters: the regions of scores, and the rate of the filter of each region.

Region i has the fraction G_i of the members and H_i of the non-members. A filter of rate f_i takes
G_i·log2(1/f_i) bits per key, times the bits per halving of its kind; Σ H_i·f_i is bounded.
Without rounding, the optimum is f_i = F·G_i/H_i, scaled to meet the bound and limited to 1 (Vaidya
et al. 2021, section 3). The best regions are found by dynamic programming over segments, which
maximizes Σ G_i·log2(G_i/H_i), with one table for every possible start of the last region, of rate 1
(Sato and Matsui 2023). Filters halve their rates in whole steps, so the rates themselves are found
greedily: each step is taken where it saves the most per bit. Ribbons can take a part of the last
step, which is then worth the same per bit; so at most one region has a fraction of a column.
"""

import heapq
import math
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tamis._checks import one_of
from tamis.planning.ribbon import column_rate

Form = Literal["simple", "sandwiched", "partitioned"]

FORMS = ("simple", "sandwiched", "partitioned")

SEGMENTS = 400
"""The number of segments that scores are divided into before they are joined to regions; twice as
many hardly change the size."""

MAX_HALVINGS = 32.0

_LOWER = 0.75 ** np.arange(10)
"""Fractions of the rate for which thresholds are searched."""

_Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]


class LearnedPlan(NamedTuple):
    """The borders between regions, and the halvings of the rate of each region (0: accepts all).

    ``front`` is the number of halvings of a filter in front of the regions; ``shares`` are the
    fractions of non-members in the regions. Regions without members accept nothing. A ``mixed``
    part of a halving is one for a part of the keys.
    """

    borders: tuple[float, ...]
    halvings: tuple[float, ...]
    members: tuple[int, ...]
    shares: tuple[float, ...]
    front: float
    mixed: bool = False

    def rate(self, halvings: float) -> float:
        """Return the rate of a filter with this number of halvings."""
        return column_rate(halvings) if self.mixed else 2.0**-halvings

    @property
    def expected_fpr(self) -> float:
        """The rate, if every filter has exactly the planned rate."""
        inside = sum(
            share * self.rate(halvings)
            for share, halvings, members in zip(
                self.shares, self.halvings, self.members, strict=True
            )
            if members
        )
        return self.rate(self.front) * float(inside)

    @property
    def filter_bits(self) -> float:
        """The sum of keys times halvings: bits, for a filter that needs one per halving."""
        inside = sum(n * c for n, c in zip(self.members, self.halvings, strict=True))
        return inside + self.front * sum(self.members)


class Segments(NamedTuple):
    """Segments of scores: their lower ends, members, and fractions of the non-members.

    ``held`` counts non-members that were not used to choose the cuts: the best of many cuts look
    better than they are on the data they were chosen by.
    """

    starts: _Floats
    members: _Floats
    shares: _Floats
    held: _Floats | None = None

    def joined(self, cuts: list[int]) -> tuple[_Floats, _Floats]:
        """Return the members of each region, and its fraction of the non-members.

        One non-member is added per region: a region without any in the sample may still have some.
        """
        at = [0, *cuts]
        members = np.add.reduceat(self.members, at)
        if self.held is None:
            return members, np.add.reduceat(self.shares, at)
        counts = np.add.reduceat(self.held, at) + 1
        return members, counts / counts.sum()


def segments(
    member_scores: npt.NDArray[np.float32],
    nonmember_scores: npt.NDArray[np.float32],
    count: int = SEGMENTS,
) -> Segments:
    """Divide the scores at quantiles of both samples; every other non-member is held out.

    One non-member is spread over all segments, because a segment without any in the sample may
    still have some.

    >>> found = segments(np.float32([0.5, 0.9, 0.9]), np.float32([0.1, 0.5]), 3)
    >>> found.members.tolist(), round(float(found.shares.sum()), 9)
    ([0.0, 0.0, 1.0, 2.0], 1.0)
    """
    samples = [scores for scores in (member_scores, nonmember_scores) if len(scores)]
    if not len(nonmember_scores):
        raise ValueError("nonmembers must not be empty; pass some not used for training")
    places = np.linspace(0, 1, max(2, count // 2 + 1))
    cuts = [np.quantile(scores, places, method="nearest") for scores in samples]
    at = np.unique(np.concatenate([[np.float32(0)], *cuts]))
    values = np.unique(np.concatenate([[np.float32(0)], *samples]))
    starts = between(values[np.maximum(np.searchsorted(values, at) - 1, 0)], at)
    edges = np.append(starts, np.inf)
    members = np.histogram(member_scores, edges)[0].astype(np.float64)
    others = np.histogram(nonmember_scores[::2], edges)[0] + 1 / len(starts)
    held = np.histogram(nonmember_scores[1::2], edges)[0].astype(np.float64)
    return Segments(starts.astype(np.float64), members, others / others.sum(), held)


def between(below: Floats32, above: Floats32) -> Floats32:
    """Return a border halfway from each score to the next one above; ``above`` if there is none.

    A classifier may score a row slightly differently alone than in a batch. A border on a score
    would send its key to another region; a border between scores is as far from both as can be.

    >>> between(np.float32([0.0, 0.5]), np.float32([0.25, 0.5])).tolist()
    [0.125, 0.5]
    """
    middle = ((below.astype(np.float64) + above) / 2).astype(np.float32)
    return np.where(middle > below, middle, above)


def plan(
    parts: Segments,
    *,
    form: Form = "partitioned",
    regions: int = 6,
    fpr: float | None = None,
    bits: float | None = None,
    step: float = 1.0,
    mixed: bool = False,
) -> LearnedPlan:
    """Find the fewest bits with at most this rate, or the lowest rate within these bits.

    ``bits`` are for the filters alone, in keys times halvings (`LearnedPlan.filter_bits`).
    ``step`` is the smallest step of a rate that the kind of filter supports, in halvings. If
    ``mixed``, a part of the keys can have one halving more.

    >>> parts = Segments(np.array([0, 0.5]), np.array([100.0, 900.0]), np.array([0.99, 0.01]))
    >>> plan(parts, fpr=0.02, form="simple").halvings
    (7.0, 0.0)
    >>> plan(parts, fpr=0.02).filter_bits
    700.0
    """
    one_of("form", form, FORMS)
    if (fpr is None) == (bits is None):
        raise ValueError("pass exactly one of fpr or bits")
    if not parts.members.sum():
        return _plan_for_cuts(parts, [], np.zeros(1), 0.0, mixed)
    if form != "partitioned":
        cuts = _simple_cuts(parts, fpr, bits, step)
        choices: list[list[int]] = [[], *([cut] for cut in cuts)]
        simple = _best(parts, choices, fpr, bits, step, mixed, last_open=True)
        if form == "simple":
            return simple
        at = _sandwich_cuts(parts, fpr)
        found = [_sandwich(parts, cut, fpr, bits, step, mixed) for cut in at]
        return min([simple, *found], key=lambda plan: _rank(plan, fpr))
    before = _tables(parts, regions)
    target = fpr if fpr is not None else _rate_for(parts, before, bits or 0.0)
    return _best(parts, _cuts(parts, before, target), fpr, bits, step, mixed, last_open=False)


def _rank(plan: LearnedPlan, fpr: float | None) -> tuple[float, float]:
    """Return the sort key of a plan: bits if the rate is given, otherwise the rate."""
    if fpr is None:
        return plan.expected_fpr, plan.filter_bits
    return plan.filter_bits, plan.expected_fpr


def _plan_for_cuts(
    parts: Segments, cuts: list[int], halvings: _Floats, front: float, mixed: bool
) -> LearnedPlan:
    members, shares = parts.joined(cuts)
    return LearnedPlan(
        tuple(parts.starts[cuts].tolist()),
        tuple(halvings.tolist()),
        tuple(int(n) for n in members),
        tuple(shares.tolist()),
        front,
        mixed,
    )


def _best(
    parts: Segments,
    choices: list[list[int]],
    fpr: float | None,
    bits: float | None,
    step: float,
    mixed: bool,
    last_open: bool,
) -> LearnedPlan:
    """Return the best plan among cuts; ``last_open``: the last region has no filter."""
    found = []
    for cuts in choices:
        members, shares = parts.joined(cuts)
        open_ = 1 if last_open and cuts else 0
        halvings = halved(
            members, shares, fpr=fpr, bits=bits, step=step, mixed=mixed, open_regions=open_
        )
        if halvings is not None:
            found.append(_plan_for_cuts(parts, cuts, halvings, 0.0, mixed))
    if not found:
        raise ValueError(
            f"fpr must be higher than {fpr}: no plan reaches it with filters of "
            f"2**-{MAX_HALVINGS:g}"
        )
    return min(found, key=lambda plan: _rank(plan, fpr))


def halved(
    members: _Floats,
    shares: _Floats,
    *,
    fpr: float | None = None,
    bits: float | None = None,
    step: float = 1.0,
    mixed: bool = False,
    open_regions: int = 0,
) -> _Floats | None:
    """Find the halvings of the rate of each region, or None if the rate cannot be reached.

    Each step is taken where it saves the most per bit. The savings of a region decrease, so this is
    the optimum, except for the last steps; steps that are not needed are undone. If ``mixed``, a
    part of the last step is taken, or undone.

    >>> halved(np.array([100.0, 100.0]), np.array([0.9, 0.1]), fpr=0.05)
    array([6., 2.])
    >>> halved(np.array([100.0, 100.0]), np.array([0.9, 0.1]), fpr=0.05, mixed=True)
    array([5.22222222, 2.        ])
    """
    count = len(members) - open_regions
    halvings = np.zeros(len(members))
    rate = float(shares[members > 0].sum())
    spent, fraction = 0.0, 1 - 2.0**-step
    heap = [(-shares[i] / members[i], i) for i in range(count) if members[i]]
    heapq.heapify(heap)
    while heap and (fpr is None or rate > fpr):
        _, i = heapq.heappop(heap)
        cost = members[i] * step
        if bits is not None and spent + cost > bits:
            if mixed:
                halvings[i] += (bits - spent) / members[i]
                break
            continue
        gain = shares[i] * 2.0 ** -halvings[i] * fraction
        rate, spent, halvings[i] = rate - gain, spent + cost, halvings[i] + step
        if halvings[i] + step <= MAX_HALVINGS:
            heapq.heappush(heap, (-shares[i] * 2.0 ** -halvings[i] / members[i], i))
    if fpr is None:
        return halvings
    if rate > fpr * (1 + 1e-9):
        return None
    for i in np.argsort(-members):
        while halvings[i] > 0:
            more = rate + shares[i] * 2.0 ** -halvings[i] * (2.0**step - 1)
            if more > fpr:
                break
            rate, halvings[i] = more, halvings[i] - step
    if mixed and halvings.any():
        parts = (fpr - rate) / np.where(halvings > 0, shares * 2.0**-halvings, math.inf)
        i = int((np.minimum(parts, 1) * members).argmax())
        halvings[i] -= min(max(parts[i], 0.0), 1.0)
    return halvings


def _simple_cuts(parts: Segments, fpr: float | None, bits: float | None, step: float) -> list[int]:
    """Find thresholds that may be best, by the non-members that are not held out.

    At the best threshold, the non-members above it may use up nearly all of the rate, and among the
    held-out ones the fraction above is as often higher. So thresholds for lower rates are returned,
    too.
    """
    below = np.cumsum(parts.members)[:-1]
    above = 1 - np.cumsum(parts.shares)[:-1]
    if not len(below):
        return []
    with np.errstate(divide="ignore", invalid="ignore"):
        if fpr is None:
            assert bits is not None
            spent = np.floor(np.where(below > 0, bits / below, np.inf) / step) * step
            behind = 2.0 ** -np.minimum(spent, MAX_HALVINGS)
            passed = np.where(below > 0, (1 - above) * behind, 0.0)
            return sorted({int((above / lower + passed).argmin()) + 1 for lower in _LOWER})
        found = []
        for lower in fpr * _LOWER:
            halvings = np.log2((1 - above) / (lower - above))
            needed = below * np.ceil(np.maximum(halvings, 0) / step) * step
            cost = np.where((above < lower) & (halvings <= MAX_HALVINGS), needed, np.inf)
            cost = np.where((above <= lower) & (below == 0), 0.0, cost)
            if np.isfinite(cost).any():
                found.append(int(cost.argmin()) + 1)
    return sorted(set(found))


def _sandwich_cuts(parts: Segments, fpr: float | None) -> list[int]:
    """Find the few thresholds at which a sandwich may be best (Mitzenmacher 2018, section 4).

    If F_p is the fraction of non-members above, and F_n of members below, the filter behind
    has the rate F_n·F_p/((1 − F_p)(1 − F_n)) at any size, and the one in front gets the rest.
    """
    total = parts.members.sum()
    below = np.cumsum(parts.members)[:-1] / total
    above = 1 - np.cumsum(parts.shares)[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        behind = np.clip(below * above / ((1 - above) * (1 - below)), 2.0**-MAX_HALVINGS, 1)
        passed = above + (1 - above) * behind
        if fpr is not None:
            cost = np.maximum(np.log2(passed / fpr), 0) - below * np.log2(behind)
        else:
            cost = below * -np.log2(behind) + np.log2(passed)
    cost = np.where(np.isfinite(cost), cost, np.inf)
    return [int(cut) + 1 for cut in np.argsort(cost, kind="stable")[:6]]


def _sandwich(
    parts: Segments, cut: int, fpr: float | None, bits: float | None, step: float, mixed: bool
) -> LearnedPlan:
    """Try every number of halvings in front."""
    members, shares = parts.joined([cut])
    total, found = members.sum(), []
    for front in np.arange(0, MAX_HALVINGS + step, step):
        left = None if bits is None else bits - front * total
        if left is not None and left < 0:
            break
        target = None if fpr is None else min(fpr * 2.0**front, 1.0)
        halvings = halved(
            members, shares, fpr=target, bits=left, step=step, mixed=mixed, open_regions=1
        )
        if halvings is not None:
            found.append(_plan_for_cuts(parts, [cut], halvings, float(front), mixed))
    if not found:
        return LearnedPlan((), (math.inf,), (1,), (1.0,), math.inf)
    return min(found, key=lambda plan: _rank(plan, fpr))


def _tables(parts: Segments, regions: int) -> npt.NDArray[np.intp]:
    """Find, for each number of regions and each end, the cut before the last region."""
    count = len(parts.starts)
    total = parts.members.sum()
    members = np.concatenate([[0], np.cumsum(parts.members)]) / total
    shares = np.concatenate([[0], np.cumsum(parts.shares)])
    inside = members[None, :] - members[:, None]
    others = shares[None, :] - shares[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.where(inside > 0, inside * np.log2(inside / others), 0.0)
    gain = np.where(np.tri(count + 1, dtype=bool), -np.inf, gain)
    best = np.full(count + 1, -np.inf)
    best[0] = 0.0
    before = np.zeros((regions, count + 1), dtype=np.intp)
    for region in range(regions):
        sums = best[:, None] + gain
        before[region] = sums.argmax(axis=0)
        best = sums.max(axis=0)
    return before


def _cuts(parts: Segments, before: npt.NDArray[np.intp], fpr: float) -> list[list[int]]:
    """Return the best cuts over all possible starts of the last region."""
    count = len(parts.starts)
    choices: list[list[int]] = [[]]
    for used in range(1, min(len(before), count)):
        # ``used`` regions that end at ``end``, and one more from there on.
        ends = np.arange(used, count)
        paths = [ends]
        for region in range(used - 1, 0, -1):
            paths.append(before[region][paths[-1]])
        all_cuts = np.stack(paths[::-1], axis=1)
        bits = _bits(parts, all_cuts, fpr)
        best = np.argsort(bits, kind="stable")[:4]
        choices += [np.unique(all_cuts[i]).tolist() for i in best]
    return choices


def _bits(parts: Segments, cuts: npt.NDArray[np.intp], fpr: float) -> _Floats:
    """Return the bits per key of each row of cuts at the unrounded optimum, with rates up to 1."""
    total = parts.members.sum()
    members = np.concatenate([[0], np.cumsum(parts.members)]) / total
    shares = np.concatenate([[0], np.cumsum(parts.shares)])
    rows = len(cuts)
    ends = np.hstack([np.zeros((rows, 1), int), cuts, np.full((rows, 1), len(parts.starts))])
    inside, others = np.diff(members[ends], axis=1), np.diff(shares[ends], axis=1)
    open_ = np.zeros(inside.shape, dtype=bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(inside.shape[1]):
            left = fpr - (others * open_ * (inside > 0)).sum(axis=1, keepdims=True)
            weight = (inside * ~open_).sum(axis=1, keepdims=True)
            rates = np.where(inside > 0, left / weight * inside / others, 0.0)
            wider = open_ | (rates >= 1)
            if (wider == open_).all():
                break
            open_ = wider
        cost = np.where(~open_ & (inside > 0), -inside * np.log2(rates), 0.0).sum(axis=1)
    return np.where(left[:, 0] > 0, cost, np.inf)


def _rate_for(parts: Segments, before: npt.NDArray[np.intp], bits: float) -> float:
    """Find the rate whose unrounded optimum takes these bits."""
    total = parts.members.sum()
    low, high = -MAX_HALVINGS, 0.0
    for _ in range(12):
        middle = (low + high) / 2
        cuts = _cuts(parts, before, 2.0**middle)
        costs = [
            float(_bits(parts, np.array([cut], dtype=np.intp), 2.0**middle)[0]) for cut in cuts
        ]
        low, high = (low, middle) if min(costs) * total <= bits else (middle, high)
    return float(2.0**high)
