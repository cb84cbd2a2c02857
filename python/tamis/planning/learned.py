"""Learned Bloom filters: where to cut the scores, and how far to halve the rate in each region.

Score regions have shares G_i of the members and H_i of the non-members. A filter of rate f_i in
region i costs G_i·log2(1/f_i) bits per key, times what the filter's kind needs per halving; an
upper bound on Σ H_i·f_i is wanted. Without rounding the optimum is f_i = F·G_i/H_i, scaled to meet
the bound and cut at 1 (Vaidya et al. 2021, section 3); which regions that suits best is found by a
dynamic programme over segments that maximizes Σ G_i·log2(G_i/H_i), one table for every place where
the last region, of rate 1, may begin (Sato and Matsui 2023). Filters halve their rates in whole
steps, so the rates themselves are then found step by step: one more where it spares most per bit.
"""

import heapq
import math
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Form = Literal["simple", "sandwiched", "partitioned"]

FORMS = ("simple", "sandwiched", "partitioned")

SEGMENTS = 400
"""Into how many parts the scores are cut before parts are joined to regions; twice as many hardly
change the size."""

MOST_HALVINGS = 32.0

_LOWER = 0.75 ** np.arange(10)
"""Fractions of the rate that thresholds are sought for."""

_Floats = npt.NDArray[np.float64]


class Plan(NamedTuple):
    """Borders between the regions, and by region the halvings of its rate (0: all pass).

    ``front`` are the halvings of a filter before the regions; ``shares`` the non-members' of each
    region. Regions without members have no filter, and nothing passes them.
    """

    borders: tuple[float, ...]
    halvings: tuple[float, ...]
    members: tuple[int, ...]
    shares: tuple[float, ...]
    front: float

    @property
    def expected_fpr(self) -> float:
        """The rate if every filter has just its halvings."""
        inside = sum(
            share * 2.0**-halvings
            for share, halvings, members in zip(
                self.shares, self.halvings, self.members, strict=True
            )
            if members
        )
        return float(2.0**-self.front * inside)

    @property
    def filter_bits(self) -> float:
        """Keys times halvings, all together: bits, for a filter that needs one per halving."""
        inside = sum(n * c for n, c in zip(self.members, self.halvings, strict=True))
        return inside + self.front * sum(self.members)


class Segments(NamedTuple):
    """Scores in parts: by part its lower end, its members, and its share of the non-members.

    ``held`` counts other non-members, which the cuts were not chosen by: the best of many cuts
    look better on those they were chosen by than they are.
    """

    starts: _Floats
    members: _Floats
    shares: _Floats
    held: _Floats | None = None

    def joined(self, cuts: list[int]) -> tuple[_Floats, _Floats]:
        """Return the members of each region, and its share of the non-members.

        One non-member more per region: where none was seen, there may still be some.
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
    """Cut the scores at quantiles of both; every other non-member is held back.

    One more of them is spread over all parts, so that a part where none was seen is not taken to
    have none.

    >>> found = segments(np.float32([0.5, 0.9, 0.9]), np.float32([0.1, 0.5]), 3)
    >>> found.members.tolist(), round(float(found.shares.sum()), 9)
    ([0.0, 0.0, 1.0, 2.0], 1.0)
    """
    samples = [scores for scores in (member_scores, nonmember_scores) if len(scores)]
    if not len(nonmember_scores):
        raise ValueError("nonmembers is empty; some that the model was not trained on are wanted")
    places = np.linspace(0, 1, max(2, count // 2 + 1))
    cuts = [np.quantile(scores, places, method="nearest") for scores in samples]
    starts = np.unique(np.concatenate([[np.float32(0)], *cuts]))
    edges = np.append(starts, np.inf)
    members = np.histogram(member_scores, edges)[0].astype(np.float64)
    others = np.histogram(nonmember_scores[::2], edges)[0] + 1 / len(starts)
    held = np.histogram(nonmember_scores[1::2], edges)[0].astype(np.float64)
    return Segments(starts.astype(np.float64), members, others / others.sum(), held)


def plan(
    parts: Segments,
    *,
    form: Form = "partitioned",
    regions: int = 6,
    fpr: float | None = None,
    bits: float | None = None,
    step: float = 1.0,
) -> Plan:
    """Find the least bits with at most this rate, or the least rate within these bits.

    ``bits`` are for the filters alone, in keys times halvings (`Plan.filter_bits`); ``step`` is the
    part of a halving that a kind of filter can be built to.

    >>> parts = Segments(np.array([0, 0.5]), np.array([100.0, 900.0]), np.array([0.99, 0.01]))
    >>> plan(parts, fpr=0.02, form="simple").halvings
    (7.0, 0.0)
    >>> plan(parts, fpr=0.02).filter_bits
    700.0
    """
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; {', '.join(FORMS)} are possible")
    if (fpr is None) == (bits is None):
        raise ValueError("exactly one of fpr and bits is wanted")
    if not parts.members.sum():
        return _joined(parts, [], np.zeros(1), 0.0)
    if form != "partitioned":
        cuts = _simple_cuts(parts, fpr, bits, step)
        simple = _best(parts, [[], *([cut] for cut in cuts)], fpr, bits, step, last_open=True)
        if form == "simple":
            return simple
        found = [_sandwich(parts, cut, fpr, bits, step) for cut in _sandwich_cuts(parts, fpr)]
        return min([simple, *found], key=lambda plan: _worth(plan, fpr))
    before = _tables(parts, regions)
    target = fpr if fpr is not None else _rate_for(parts, before, bits or 0.0)
    return _best(parts, _cuts(parts, before, target), fpr, bits, step, last_open=False)


def _worth(plan: Plan, fpr: float | None) -> tuple[float, float]:
    """Order plans: by bits if the rate is given, else by rate."""
    if fpr is None:
        return plan.expected_fpr, plan.filter_bits
    return plan.filter_bits, plan.expected_fpr


def _joined(parts: Segments, cuts: list[int], halvings: _Floats, front: float) -> Plan:
    members, shares = parts.joined(cuts)
    return Plan(
        tuple(parts.starts[cuts].tolist()),
        tuple(halvings.tolist()),
        tuple(int(n) for n in members),
        tuple(shares.tolist()),
        front,
    )


def _best(
    parts: Segments,
    choices: list[list[int]],
    fpr: float | None,
    bits: float | None,
    step: float,
    last_open: bool,
) -> Plan:
    """Return the best plan among cuts; ``last_open``: the last region has no filter."""
    found = []
    for cuts in choices:
        members, shares = parts.joined(cuts)
        open_ = 1 if last_open and cuts else 0
        halvings = halved(members, shares, fpr=fpr, bits=bits, step=step, open_regions=open_)
        if halvings is not None:
            found.append(_joined(parts, cuts, halvings, 0.0))
    if not found:
        raise ValueError(
            f"fpr is {fpr}; {MOST_HALVINGS:g} halvings of each filter's rate do not reach it"
        )
    return min(found, key=lambda plan: _worth(plan, fpr))


def halved(
    members: _Floats,
    shares: _Floats,
    *,
    fpr: float | None = None,
    bits: float | None = None,
    step: float = 1.0,
    open_regions: int = 0,
) -> _Floats | None:
    """Find the halvings of each region's rate, or None where no number of them reaches the rate.

    Each step is taken where it spares most per bit; the gains of a region fall, so that this is
    the optimum but for the last steps, of which those not needed are taken back.

    >>> halved(np.array([100.0, 100.0]), np.array([0.9, 0.1]), fpr=0.05)
    array([6., 2.])
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
            continue
        gain = shares[i] * 2.0 ** -halvings[i] * fraction
        rate, spent, halvings[i] = rate - gain, spent + cost, halvings[i] + step
        if halvings[i] + step <= MOST_HALVINGS:
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
    return halvings


def _simple_cuts(parts: Segments, fpr: float | None, bits: float | None, step: float) -> list[int]:
    """Find the thresholds that may be best, by the non-members that are not held back.

    At the best of them nearly all of the rate may pass above it, and by the others more than that
    passes as often as not: so those of which less passes are found too.
    """
    below = np.cumsum(parts.members)[:-1]
    above = 1 - np.cumsum(parts.shares)[:-1]
    if not len(below):
        return []
    with np.errstate(divide="ignore", invalid="ignore"):
        if fpr is None:
            assert bits is not None
            spent = np.floor(np.where(below > 0, bits / below, np.inf) / step) * step
            behind = 2.0 ** -np.minimum(spent, MOST_HALVINGS)
            passed = np.where(below > 0, (1 - above) * behind, 0.0)
            return sorted({int((above / lower + passed).argmin()) + 1 for lower in _LOWER})
        found = []
        for wanted in fpr * _LOWER:
            halvings = np.log2((1 - above) / (wanted - above))
            needed = below * np.ceil(np.maximum(halvings, 0) / step) * step
            cost = np.where((above < wanted) & (halvings <= MOST_HALVINGS), needed, np.inf)
            cost = np.where((above <= wanted) & (below == 0), 0.0, cost)
            if np.isfinite(cost).any():
                found.append(int(cost.argmin()) + 1)
    return sorted(set(found))


def _sandwich_cuts(parts: Segments, fpr: float | None) -> list[int]:
    """Find the few thresholds at which a sandwich may be best (Mitzenmacher 2018, section 4).

    With F_p the share of non-members above, and F_n that of members below, the filter behind has
    the rate F_n·F_p/((1 − F_p)(1 − F_n)) whatever the size, and the one in front the rest.
    """
    total = parts.members.sum()
    below = np.cumsum(parts.members)[:-1] / total
    above = 1 - np.cumsum(parts.shares)[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        behind = np.clip(below * above / ((1 - above) * (1 - below)), 2.0**-MOST_HALVINGS, 1)
        passed = above + (1 - above) * behind
        if fpr is not None:
            cost = np.maximum(np.log2(passed / fpr), 0) - below * np.log2(behind)
        else:
            cost = below * -np.log2(behind) + np.log2(passed)
    cost = np.where(np.isfinite(cost), cost, np.inf)
    return [int(cut) + 1 for cut in np.argsort(cost, kind="stable")[:6]]


def _sandwich(
    parts: Segments, cut: int, fpr: float | None, bits: float | None, step: float
) -> Plan:
    """Try every number of halvings in front."""
    members, shares = parts.joined([cut])
    total, found = members.sum(), []
    for front in np.arange(0, MOST_HALVINGS + step, step):
        left = None if bits is None else bits - front * total
        if left is not None and left < 0:
            break
        wanted = None if fpr is None else min(fpr * 2.0**front, 1.0)
        halvings = halved(members, shares, fpr=wanted, bits=left, step=step, open_regions=1)
        if halvings is not None:
            found.append(_joined(parts, [cut], halvings, float(front)))
    if not found:
        return Plan((), (math.inf,), (1,), (1.0,), math.inf)
    return min(found, key=lambda plan: _worth(plan, fpr))


def _tables(parts: Segments, regions: int) -> npt.NDArray[np.intp]:
    """Find for each number of regions and each end the cut before the last of them."""
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
    """Return the best cuts for each place where the last region may begin, the best few of them."""
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
    """Bits per key of each row of cuts at the unrounded optimum, cut at a rate of 1."""
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
    """Find the rate whose unrounded optimum takes so many bits."""
    total = parts.members.sum()
    low, high = -MOST_HALVINGS, 0.0
    for _ in range(12):
        middle = (low + high) / 2
        cuts = _cuts(parts, before, 2.0**middle)
        costs = [
            float(_bits(parts, np.array([cut], dtype=np.intp), 2.0**middle)[0]) for cut in cuts
        ]
        low, high = (low, middle) if min(costs) * total <= bits else (middle, high)
    return float(2.0**high)
