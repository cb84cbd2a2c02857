"""Choosing the groups of a stable learned filter from scores."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tamis.planning import stable
from tamis.planning.arguments import check_rate_or_budget
from tamis.planning.stable.groups import (
    Method,
    StablePlan,
    advised,
    fnr_at,
    groups_of,
    plan_stable,
)

Floats = npt.NDArray[np.float64]

_BINS = 64
_MOST_GROUPS = 4
"""The largest number of groups to try: each saves less, with fewer samples per group."""


def plan_scores(
    member_scores: Any,
    nonmember_scores: Any,
    *,
    bits: int,
    fpr: float,
    gap: int,
    groups: int | None = None,
    method: Method = "optimal",
) -> StablePlan:
    """Plan groups from held-out scores: their number, the borders between them, their filters.

    In the paper, borders divide 0 to 1 evenly, into as many groups as keep p_j falling and q_j
    rising (`monotone`). The optimal method places borders where members and other keys differ
    most, as partitioned learned filters do, and chooses the number of groups, possibly one, that
    rejects the fewest members.

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
    if groups is not None and not 1 <= groups <= 64:
        raise ValueError(f"groups must be from 1 to 64, not {groups}")
    given: dict[str, Any] = {"bits": bits, "fpr": fpr, "gap": gap}
    if groups == 1:
        return _single(members, others, **given)
    if method == "paper":
        borders = np.arange(1, g := groups or monotone(members, others)) / g
        return _with_borders(members, others, borders, method=method, **given)
    if groups is not None:
        return _with_borders(members, others, _cuts(members, others, groups), **given)
    found: list[StablePlan] = []
    for count in range(2, _MOST_GROUPS + 1):
        plan = _with_borders(members, others, _cuts(members, others, count), **given)
        if found and plan.expected_fnr > 0.995 * found[-1].expected_fnr:
            break
        found.append(plan)
    with suppress(ValueError):  # no threshold leaves room for one filter
        found.append(_single(members, others, **given))
    # If almost none are rejected, the lowest rate is best.
    return min(found, key=lambda plan: (round(plan.expected_fnr, 4), plan.expected_fpr))


def _sample(name: str, scores: Any) -> Floats:
    array = np.asarray(scores, dtype=float)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be a list of scores, not an array of shape {array.shape}")
    if not ((array >= 0) & (array <= 1)).all():
        at = int(np.flatnonzero(~((array >= 0) & (array <= 1)))[0])
        raise ValueError(f"{name}[{at}] must be a score from 0 to 1, not {array[at]}")
    return array


def monotone(member_scores: Any, nonmember_scores: Any, most: int = 10) -> int:
    """Find how many even groups keep p_j falling and q_j rising (section 5.3).

    >>> monotone([0.1, 0.6, 0.9, 0.95, 0.99], [0.01, 0.1, 0.2, 0.3, 0.8])
    2
    """
    best = 1
    for count in range(2, most + 1):
        borders = np.arange(1, count) / count
        p, q = stable.shares(nonmember_scores, borders), stable.shares(member_scores, borders)
        if (np.diff(p) > 0).any() or (np.diff(q) < 0).any():
            break
        best = count
    return best


def _smooth(scores: Floats, borders: Any) -> Floats:
    """Return fractions with half a sample added to each group, since few samples prove little."""
    counts = stable.shares(scores, borders) * len(scores) + 0.5
    return np.asarray(counts / counts.sum())


def _with_borders(members: Floats, others: Floats, borders: Floats, **given: Any) -> StablePlan:
    borders = np.asarray(borders, dtype=np.float32)
    plan = plan_stable(_smooth(others, borders), _smooth(members, borders), **given)
    return replace(plan, borders=tuple(float(border) for border in borders))


def _cuts(members: Floats, others: Floats, groups: int) -> Floats:
    """Return the borders that keep most of Σ q_j·log(q_j/p_j), by dynamic programming."""
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


def _single(members: Floats, others: Floats, *, bits: int, fpr: float, gap: int) -> StablePlan:
    """Plan one stable filter below the best threshold, accepting all above (s-SLBF, Eq. 7)."""
    check_rate_or_budget(fpr, None)
    top = others[others.argsort()][::-1]
    candidates = np.unique(np.concatenate([top[: int(fpr * len(top)) + 1], [1.0]]))
    best: tuple[float, StablePlan] | None = None
    for border in candidates[
        np.linspace(0, len(candidates) - 1, min(len(candidates), 24)).astype(int)
    ]:
        borders = np.array([border], dtype=np.float32)
        p, q = _smooth(others, borders), _smooth(members, borders)
        left = (fpr - p[1]) / p[0]
        if left <= 0:
            continue
        try:
            size = stable.size(bits, left, max(1, round(q[0] * gap)))
        except ValueError:
            continue
        groups = groups_of(p, q, [size, True], gap)
        fnr = fnr_at(groups, gap)
        if best is None or fnr < best[0]:
            advice = advised(bits, fpr, gap, fnr, None)
            found = StablePlan(groups, bits, fpr, gap, "single", advice, (float(borders[0]),))
            best = (fnr, found)
    if best is None:
        raise ValueError(
            f"no threshold leaves room for a stable filter with bits={bits} and fpr={fpr}; pass "
            "more bits, a higher fpr or more nonmember_scores"
        )
    return best[1]
