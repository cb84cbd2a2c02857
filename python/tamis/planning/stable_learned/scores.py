"""Groups of a stable learned filter from scores: how many, and the borders between them.

Half of the non-members' scores choose borders, the other half estimates the shares p_j: the best of
many borders look better on the scores they were chosen by than they are. Few scores estimate shares
only roughly, so filters are planned for shares that exceed the true ones in 19 of 20 cases.
"""

from __future__ import annotations

import operator
from contextlib import suppress
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from scipy import special

from tamis._checks import check_int, check_rate, one_of
from tamis.planning import stable
from tamis.planning.learned_bloom import Floats32, between
from tamis.planning.stable_learned.group_search import optimal
from tamis.planning.stable_learned.groups import (
    Method,
    StablePlan,
    floats,
    fnr_at,
    group_shares,
    groups_of,
    paper_sizes,
    plan_of,
)

Floats = npt.NDArray[np.float64]

_BINS = 64
_USUAL_GROUPS = 4
"""Maximum number of groups to try, unless more are requested: each further one saves less."""

_MAX_GROUPS = 6
"""Maximum number of groups at all: further ones save nothing that held-out scores confirm."""

_CONFIDENCE = 0.95


def plan_scores(
    member_scores: Any,
    nonmember_scores: Any,
    *,
    bits: int,
    fpr: float,
    gap: int,
    groups: int | None = None,
    method: Method = "optimal",
    model_bits: int = 0,
) -> StablePlan:
    """Plan groups from held-out scores: their number, the borders between them, their filters.

    By the paper, borders divide 0 to 1 evenly, into as many groups as keep p_j falling and q_j
    rising (`monotone`). The optimal method cuts where members and other keys differ most, as
    partitioned learned filters do, and takes the number of groups, up to ``groups``, with the
    fewest rejected members. With ``groups=1``, every score above a threshold is accepted: 1/2 by
    the paper, otherwise the best one. ``model_bits`` is the size of the classifier, for the advice.

    The rate is at most ``fpr`` with a margin for the number of scores; ``expected_fpr`` is the
    estimate without the margin.

    >>> rng = np.random.default_rng(1)
    >>> members, others = rng.beta(4, 2, 5000), rng.beta(2, 4, 5000)
    >>> plan = plan_scores(members, others, bits=2**15, fpr=0.01, gap=1000, groups=2)
    >>> plan.expected_fpr <= 0.01, len(plan.borders) == len(plan.groups) - 1
    (True, True)
    """
    members, others = (
        _sample("member_scores", member_scores),
        _sample("nonmember_scores", nonmember_scores),
    )
    one_of("method", method, get_args(Method))
    fpr = check_rate("fpr", fpr)
    if groups is not None:
        groups = check_int("groups", groups, 64, minimum=1)
    bits, gap = check_int("bits", bits, 2**50, 1), check_int("gap", gap, 2**48)
    model_bits = check_int("model_bits", model_bits, 2**50)
    search = _Planner(members, others, bits, fpr, gap, model_bits)
    if method == "paper":
        return search.paper(groups or monotone(members, others), single=groups == 1)
    return search.best(_USUAL_GROUPS if groups is None else groups)


class _Planner:
    """Plans for one sample of scores."""

    def __init__(
        self, members: Floats, others: Floats, bits: int, fpr: float, gap: int, model_bits: int
    ) -> None:
        self.members, self.others = members, others
        self.values = np.unique(np.concatenate([members, others]).astype(np.float32))
        self.last = len(self.values) - 1
        half = len(others) > 1
        # Borders are chosen by one half, and rates estimated from the other.
        self.tuning, self.held_out = (others[::2], others[1::2]) if half else (others, others)
        self.bits, self.fpr, self.gap, self.model_bits = bits, fpr, gap, model_bits

    def best(self, groups: int) -> StablePlan:
        """Return the plan with the fewest rejected members, of up to this many groups."""
        found: list[StablePlan] = []
        failed: ValueError | None = None
        try:
            found.append(self.single())
        except ValueError as error:  # no threshold leaves enough bits for a filter
            failed = error
        fewest = np.inf
        for count in range(2, min(groups, _MAX_GROUPS) + 1):
            try:
                plan = self.optimal(_cuts(self.members, self.tuning, count))
            except ValueError as error:
                failed = error
                continue
            found.append(plan)
            if plan.expected_fnr > 0.995 * fewest:
                break
            fewest = min(fewest, plan.expected_fnr)
        if not found:
            assert failed is not None
            raise failed
        # If hardly any member is rejected, choose the lowest rate.
        return min(found, key=lambda plan: (round(plan.expected_fnr, 4), plan.expected_fpr))

    def optimal(self, borders: Floats) -> StablePlan:
        """Return the plan with the best filters between these borders."""
        cuts = self._between(borders)
        p, q = _smooth(self.held_out, cuts), _smooth(self.members, cuts)
        filters = optimal(_high(self.held_out, cuts, q / p), q, self.bits, self.fpr, self.gap)
        return self._plan(p, q, filters, "optimal", cuts)

    def single(self) -> StablePlan:
        """The best threshold of one stable filter below it and "accept" above (s-SLBF, Eq. 7)."""
        top = np.sort(self.tuning)[::-1]
        candidates = np.unique(np.concatenate([top[: int(self.fpr * len(top)) + 1], [1.0]]))
        some = np.linspace(0, len(candidates) - 1, min(len(candidates), 24)).astype(int)
        found = []
        for border in candidates[some]:
            borders = self._between(np.array([border]))
            p, q = _smooth(self.held_out, borders), _smooth(self.members, borders)
            high = _high(self.held_out, borders, np.arange(2.0))
            if border >= 1:  # no score is above it
                p = q = high = np.array([1.0, 0.0])
            if high[1] >= self.fpr:
                continue
            filter_fpr = (self.fpr - high[1]) / high[0]
            with suppress(ValueError):
                size = stable.size(self.bits, filter_fpr, max(1, round(q[0] * self.gap)))
                fnr = fnr_at(groups_of(p, q, [size, True], self.gap), self.gap)
                found.append((fnr, p, q, size, borders))
        if not found:
            raise ValueError(
                f"no threshold meets fpr={self.fpr} with bits={self.bits}; pass more bits, a "
                "higher fpr or more nonmember_scores"
            )
        _, p, q, size, borders = min(found, key=operator.itemgetter(0))
        return self._plan(p, q, [size, True], "single", borders)

    def paper(self, groups: int, *, single: bool) -> StablePlan:
        """Even borders and the filters of section 4; a single filter is below the threshold 1/2."""
        even = np.array([0.5]) if single else np.arange(1, groups) / groups
        borders = np.asarray(even, dtype=np.float32)
        p, q = _smooth(self.others, borders), _smooth(self.members, borders)
        given: dict[str, Any] = {"bits": self.bits, "gap": self.gap}
        if not single:
            return self._plan(p, q, paper_sizes(p, q, fpr=self.fpr, **given), "paper", borders)
        filter_fpr = (self.fpr - p[1]) / p[0]
        if filter_fpr <= 0:
            raise ValueError(
                f"fpr is {self.fpr}, but {p[1]:.3g} of nonmember_scores are above 0.5, where "
                "method='paper' trusts the model: use method='optimal' or more groups"
            )
        [size] = paper_sizes([1.0], [1.0], fpr=filter_fpr, **given)
        return self._plan(p, q, [size, True], "paper", borders)

    def _between(self, borders: Floats) -> Floats32:
        """Move borders from scores to between them; every score keeps its group."""
        below = np.asarray(borders, dtype=np.float32)
        above = self.values[np.minimum(np.searchsorted(self.values, below, "right"), self.last)]
        middle = between(below, above)
        return np.where((middle < above) & (below < above), middle, below)

    def _plan(self, p: Floats, q: Floats, filters: Any, method: str, borders: Any) -> StablePlan:
        return plan_of(
            groups_of(p, q, filters, self.gap),
            bits=self.bits,
            fpr=self.fpr,
            gap=self.gap,
            method=method,
            model_bits=self.model_bits,
            borders=tuple(float(border) for border in borders),
        )


def _sample(name: str, scores: Any) -> Floats:
    array = floats(name, scores, "scores")
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be a list of scores, not an array of shape {array.shape}")
    if not ((array >= 0) & (array <= 1)).all():
        at = int(np.flatnonzero(~((array >= 0) & (array <= 1)))[0])
        raise ValueError(f"{name}[{at}] must be a score from 0 to 1, not {array[at]}")
    # Filters compare scores and borders in single precision; shares must be counted the same way.
    return array.astype(np.float32).astype(np.float64)


def monotone(member_scores: Any, nonmember_scores: Any, max_groups: int = 10) -> int:
    """Find how many even groups keep p_j falling and q_j rising (section 5.3).

    >>> monotone([0.1, 0.6, 0.9, 0.95, 0.99], [0.01, 0.1, 0.2, 0.3, 0.8])
    2
    """
    best = 1
    for count in range(2, max_groups + 1):
        borders = np.arange(1, count) / count
        p, q = group_shares(nonmember_scores, borders), group_shares(member_scores, borders)
        if (np.diff(p) > 0).any() or (np.diff(q) < 0).any():
            break
        best = count
    return best


def _smooth(scores: Floats, borders: Any) -> Floats:
    """Return fractions with half a sample added to each group, since few samples prove little."""
    counts = group_shares(scores, borders) * len(scores) + 0.5
    return np.asarray(counts / counts.sum())


def _high(scores: Floats, borders: Any, order: Floats) -> Floats:
    """Shares that are too high for the groups of the highest rates, with `_CONFIDENCE`.

    Rates rise with ``order``. The share of all groups from one on has an exact bound (Clopper and
    Pearson 1934); where all of these hold, the rate by the differences between them is a bound of
    the rate, whatever the rates are.
    """
    rising = np.argsort(order, kind="stable")
    counts = np.round(group_shares(scores, borders) * len(scores))[rising]
    above = np.cumsum(counts[::-1])[::-1]
    tails = special.betaincinv(above + 1, np.maximum(len(scores) - above, 0.5), _CONFIDENCE)
    tails[0] = 1.0
    high = np.empty(len(counts))
    high[rising] = -np.diff(np.append(tails, 0.0))
    return high


def _cuts(members: Floats, others: Floats, groups: int) -> Floats:
    """Return the borders that maximize Σ q_j·log(q_j/p_j), by dynamic programming."""
    both = np.concatenate([members, others])
    fine = np.unique(np.quantile(both, np.linspace(0, 1, _BINS + 1)[1:-1]).astype(np.float32))
    p = np.concatenate([[0], np.cumsum(_smooth(others, fine))])
    q = np.concatenate([[0], np.cumsum(_smooth(members, fine))])
    bins = len(fine) + 1
    groups = min(groups, bins)
    with np.errstate(divide="ignore", invalid="ignore"):
        dq, dp = q[None, :] - q[:, None], p[None, :] - p[:, None]
        gain = np.where(dq > 0, dq * np.log(dq / dp), -np.inf)  # of bins from row to before column
    best, origin = gain[0], []
    for _ in range(groups - 1):
        total = best[:, None] + gain
        origin.append(total.argmax(axis=0))
        best = total.max(axis=0)
    cuts, at = [], bins
    for back in reversed(origin):
        at = int(back[at])
        cuts.append(at)
    inner = [cut for cut in reversed(cuts) if 0 < cut < bins]
    return np.asarray(fine[[cut - 1 for cut in inner]], dtype=float)
