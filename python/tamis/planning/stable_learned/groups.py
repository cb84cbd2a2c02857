"""Stable learned filters: one stable filter per group of scores, planned together.

A classifier assigns each key to one of g groups by its score. Absent keys fall into group j with
probability p_j, members with q_j. The filter of the group has the rate α_j, and rejects a key with
probability FN_j δ insertions later, q_j·δ of which were into the group. The problem is to find
rates, counters and bits with

    minimal Σ q_j·FN_j    subject to    Σ p_j·α_j ≤ ε  and  Σ bits_j ≤ B.

`search` finds them; `scores` also finds the groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from tamis._checks import MAX_KEYS, check_int, check_rate, one_of, shown
from tamis.planning import stable, windowed
from tamis.planning.stable import StableSize
from tamis.planning.stable_learned.group_search import optimal

Method = Literal["optimal", "paper"]
Floats = npt.NDArray[np.float64]


class Group(NamedTuple):
    """A group of scores: its fractions, its filter or answer, and the predicted rates."""

    nonmembers: float
    """p_j: the fraction of absent keys."""
    members: float
    """q_j: the fraction of members."""
    size: StableSize | None
    """The filter; None if the group is accepted or rejected as a whole."""
    answer: bool
    """Whether the group is accepted, if it has no filter."""
    rate: float
    """α_j."""
    fnr: float
    """FN_j, at the presumed gap."""

    @property
    def bits(self) -> int:
        """The bits of the counters."""
        return self.size.bits if self.size else 0


@dataclass(frozen=True)
class StablePlan:
    """The stable filters of groups, and the predicted rates."""

    groups: tuple[Group, ...]
    bits: int
    fpr: float
    gap: int
    method: str
    advice: tuple[str, ...]
    """Whether a stable, a windowed or a one-sided filter would be better, and why."""
    borders: tuple[float, ...] = ()
    """The scores between the groups, if they were planned."""

    @cached_property
    def expected_fpr(self) -> float:
        """Σ p_j·α_j, in the long run."""
        return float(sum(group.nonmembers * group.rate for group in self.groups))

    @cached_property
    def expected_fnr(self) -> float:
        """Σ q_j·FN_j at the presumed gap."""
        return float(sum(group.members * group.fnr for group in self.groups))

    def fnr_at(self, gap: float) -> float:
        """Predict the fraction of members rejected at another gap."""
        return fnr_at(self.groups, gap)

    def fpr_after(self, insertions: float) -> float:
        """Predict the rate after some insertions into empty filters."""
        rate = 0.0
        for group in self.groups:
            own = insertions * group.members
            now = stable.rate_after(group.size, own) if group.size else float(group.answer)
            rate += group.nonmembers * now
        return rate

    def __str__(self) -> str:
        head = (
            f"{self.method}: {len(self.groups)} groups in {self.bits:,} bits, "
            f"rate {self.expected_fpr:.4g}, rejected at gap {self.gap:,}: {self.expected_fnr:.4g}"
        )
        lines = [head, "group  absent  members     bits  cells  Max  K   P    rate  reject"]
        for j, group in enumerate(self.groups, start=1):
            size = group.size
            columns = (
                f"{size.bits:8,} {size.cells:6,} {size.max_value:4} {size.hashes:2} "
                f"{size.decrements:3}"
                if size
                else f"       0  {'accepts' if group.answer else 'rejects'} all        "
            )
            lines.append(
                f"{j:5} {group.nonmembers:7.3f} {group.members:8.3f} {columns} "
                f"{group.rate:7.4f} {group.fnr:7.3f}"
            )
        return "\n".join([*lines, *self.advice])


def plan_stable(
    p_j: Any,
    q_j: Any,
    *,
    bits: int,
    fpr: float,
    gap: int,
    method: Method = "optimal",
    members: int | None = None,
    model_bits: int = 0,
) -> StablePlan:
    """Plan the stable filters of groups with fractions p_j of absent keys and q_j of members.

    ``bits`` is the total size of the counters, ``fpr`` the rate over all groups, ``gap`` the number
    of insertions after which members are queried. ``method="paper"`` follows section 4 of Liu et
    al. 2020, with the correct P (see `paper_sizes`); ``"optimal"`` minimizes the expected
    false-negative rate. With the total number of ``members``, the advice also considers filters of
    all of them; ``model_bits`` is the size of the classifier.

    >>> p, q = [0.485, 0.390, 0.125], [0.090, 0.347, 0.563]
    >>> plan = plan_stable(p, q, bits=2**16, fpr=0.01, gap=2000)
    >>> plan.expected_fnr < 0.39, plan.expected_fpr <= 0.01
    (True, True)
    >>> round(plan_stable(p, q, bits=2**16, fpr=0.01, gap=2000, method="paper").expected_fnr, 2)
    0.91
    """
    p, q = _checked("p_j", p_j), _checked("q_j", q_j)
    if len(p) != len(q):
        raise ValueError(f"p_j and q_j must have the same length, not {len(p)} and {len(q)}")
    empty = np.flatnonzero((p == 0) & (q == 0))
    if empty.size:
        raise ValueError(
            f"group {empty[0]} has no samples (p_j and q_j are 0); join it with another group"
        )
    fpr = check_rate("fpr", fpr)
    bits, gap = check_int("bits", bits, 2**50, 1), check_int("gap", gap, 2**48)
    members = None if members is None else check_int("members", members, MAX_KEYS)
    model_bits = check_int("model_bits", model_bits, 2**50)
    one_of("method", method, get_args(Method))
    if method == "paper":
        filters: Sequence[StableSize | bool] = paper_sizes(p, q, bits=bits, fpr=fpr, gap=gap)
    else:
        filters = optimal(p, q, bits, fpr, gap)
    return plan_of(
        groups_of(p, q, filters, gap),
        bits=bits,
        fpr=fpr,
        gap=gap,
        method=method,
        members=members,
        model_bits=model_bits,
    )


def plan_of(
    groups: tuple[Group, ...],
    *,
    bits: int,
    fpr: float,
    gap: int,
    method: str,
    members: int | None = None,
    model_bits: int = 0,
    borders: tuple[float, ...] = (),
) -> StablePlan:
    """Return the plan of these groups, with advice on other filters of the same bits."""
    fnr = float(sum(group.members * group.fnr for group in groups))
    advice = advised(bits + model_bits, fpr, gap, fnr, members)
    return StablePlan(groups, bits, fpr, gap, method, advice, borders)


def groups_of(
    p: Any, q: Any, filters: Sequence[StableSize | bool], gap: float
) -> tuple[Group, ...]:
    """Return groups with these filters (or answers), and their predictions at this gap."""
    found = []
    for a, b, f in zip(p, q, filters, strict=True):
        size, answer = (None, f) if isinstance(f, bool) else (f, True)
        rate = stable.limit_rate(size) if size else float(answer)
        found.append(
            Group(float(a), float(b), size, answer, rate, _false_negatives(size, answer, b * gap))
        )
    return tuple(found)


def fnr_at(groups: Sequence[Group], gap: float) -> float:
    """Return Σ q_j·FN_j at a gap; each group gets its part of the insertions (Eq. 16)."""
    return float(
        sum(g.members * _false_negatives(g.size, g.answer, g.members * gap) for g in groups)
    )


def group_shares(scores: Any, boundaries: Any) -> npt.NDArray[np.float64]:
    """Return the fraction of scores in each group (τ_{j−1}, τ_j] (Eq. 9, 17).

    >>> group_shares([0.1, 0.2, 0.5, 0.9], [0.2, 0.5])
    array([0.5 , 0.25, 0.25])
    """
    groups = np.searchsorted(np.asarray(boundaries, dtype=float), np.asarray(scores), side="left")
    return np.bincount(groups, minlength=len(boundaries) + 1) / max(len(groups), 1)


def expected_rate(p: Any, rates: Any) -> float:
    """Return Σ p_j·α_j (Eq. 10), the rate over all groups.

    >>> round(expected_rate([0.5, 0.5], [0.01, 0.03]), 3)
    0.02
    """
    return float(np.dot(p, rates))


def rate_bound(rates: Any) -> float:
    """Return the mean of α_j, a bound of `expected_rate` if p falls and α rises (Eq. 11, 12).

    >>> rate_bound([0.25, 0.75])
    0.5
    """
    return float(np.mean(rates))


def slowest(q: Any, sizes: list[StableSize]) -> float:
    """Return the exponent C of the convergence exp(−C·n): min_j q_j·K_j/m_j (Eq. 13, theorem 2).

    The paper has it the wrong way round: a group with more cells converges later, not earlier.

    >>> slowest([0.5, 0.5], [StableSize(1000, 1, 5, 9), StableSize(2000, 1, 5, 9)])
    0.00125
    """
    return float(
        min(share * size.hashes / size.cells for share, size in zip(q, sizes, strict=True))
    )


def floats(name: str, values: Any, what: str) -> Floats:
    """Return an argument as an array of numbers; ``what`` names them in the error."""
    try:
        return np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a list of {what}, not {shown(values)}") from None


def _checked(name: str, shares: Any) -> Floats:
    array = floats(name, shares, "fractions")
    if array.ndim != 1 or not 1 <= array.size <= 64:
        raise ValueError(f"{name} must have from 1 to 64 fractions, not shape {array.shape}")
    if not (array >= 0).all() or abs(array.sum() - 1) > 0.01:
        raise ValueError(
            f"{name} must be fractions of at least 0 that add up to 1, not {array.tolist()}"
        )
    return np.asarray(array / array.sum())


def _false_negatives(size: StableSize | None, answer: bool, gap: float) -> float:
    if size is None:
        return float(not answer)
    return stable.false_negatives(size, gap)


# Section 4 of the paper.


def paper_rates(p: Any, fpr: float) -> Floats:
    """Return α_j in inverse proportion to p_j (Eq. 18). Σ α_j is ε, rather than Σ p_j·α_j.

    >>> paper_rates([0.485, 0.390, 0.125], 0.01).round(4)
    array([0.0016, 0.002 , 0.0063])
    """
    inverse = 1 / np.asarray(p, dtype=float)
    return np.asarray(inverse * fpr / inverse.sum())


def paper_cells(q: Any, bits: int, chosen: Sequence[tuple[int, int]]) -> list[int]:
    """Return m_j in proportion to K_j/q_j, for (K_j, Max_j) (Eq. 20): fewer members, more cells.

    Example 4 has 11,764 counters in the first group, from fractions before rounding.

    >>> paper_cells([0.090, 0.347, 0.563], 16_384, [(6, 1), (6, 1), (5, 1)])
    [11765, 3051, 1567]
    """
    weights = [k / share for (k, _), share in zip(chosen, q, strict=True)]
    each = [stable.counter_bits(max_value) for _, max_value in chosen]
    total = sum(w * b for w, b in zip(weights, each, strict=True))
    return [int(w * bits / total) for w in weights]


def paper_sizes(
    p: Any, q: Any, *, bits: int, fpr: float, gap: int, max_values: Sequence[int] = (1, 3, 7)
) -> list[StableSize]:
    """Return the filters of section 4: rates by Eq. 18, K and Max by enumeration, m_j by Eq. 20.

    P follows from Eq. 6, rounded up, since Eq. 19 lacks a factor. K and Max are chosen for a filter
    of all bits and the full gap. (Example 4 uses only Max = 1, and reads K = 6, 6, 5 off its
    Figure 7: these have the lowest P by Eq. 19 as printed, but reject more keys.)

    >>> for size in paper_sizes([0.485, 0.390, 0.125], [0.090, 0.347, 0.563],
    ...                         bits=16_384, fpr=0.01, gap=100, max_values=[1]):
    ...     print(size)
    StableSize(cells=11878, max_value=1, hashes=4, decrements=16)
    StableSize(cells=3080, max_value=1, hashes=4, decrements=15)
    StableSize(cells=1424, max_value=1, hashes=3, decrements=14)
    """
    p, q = np.maximum(p, 1e-9), np.maximum(q, 1e-9)
    found = _paper_choice(p, q, bits, fpr, gap, max_values)
    small = next((j for j, size in enumerate(found) if _too_small(size)), None)
    if small is None:
        return found
    enough = bits
    while any(map(_too_small, _paper_choice(p, q, enough, fpr, gap, max_values))):
        enough = 2 * enough if enough else 64
    raise ValueError(
        f"bits must be at least about {enough}, not {bits}, or use fewer groups: by the paper's "
        f"rule, group {small} gets {found[small].cells} counters, and each insertion decrements "
        f"{found[small].decrements}"
    )


def _too_small(size: StableSize) -> bool:
    return size.cells < 2 * size.decrements


def _paper_choice(
    p: Any, q: Any, bits: int, fpr: float, gap: int, max_values: Sequence[int]
) -> list[StableSize]:
    rates = paper_rates(p, fpr)
    chosen = []
    for rate in rates:
        sizes = [
            StableSize(
                bits // stable.counter_bits(max_value),
                max_value,
                k,
                stable.rounded_decrements(k, max_value, rate),
            )
            for max_value in max_values
            for k in range(1, 11)
        ]
        best = min(sizes, key=lambda size: stable.false_negatives(size, gap))
        chosen.append((best.hashes, best.max_value))
    cells = paper_cells(q, bits, chosen)
    return [
        StableSize(m, max_value, k, stable.rounded_decrements(k, max_value, rate))
        for m, (k, max_value), rate in zip(cells, chosen, rates, strict=True)
    ]


# Alternatives.


def advised(bits: int, fpr: float, gap: int, fnr: float, members: int | None) -> tuple[str, ...]:
    """Compare with other filters of the same bits (Fig. 12 and Eq. 4)."""
    advice = []
    window = windowed.size(gap, bits_per_key=min(bits / max(gap, 1), 4096))
    if window.bits <= bits and (rate := window.rate()) <= fpr:
        advice.append(
            f"Windowed: if no gap exceeds {gap:,}, it is better: it rejects no key, in the same "
            f"bits, at a rate of {rate:.2g}."
        )
    try:
        plain = stable.false_negatives(stable.size(bits, fpr, gap), gap)
    except ValueError:
        plain = 1.0
    if plain <= fnr:
        advice.append(
            f"StableBloom: without a classifier, it rejects {plain:.3g} of the members instead of "
            f"{fnr:.3g}, in the same bits."
        )
    if members is not None and 0.6185 ** (bits / max(members, 1)) <= fpr:
        advice.append(
            f"One-sided: all {members:,} members fit into a Bloom filter of these bits at this "
            "rate, which rejects none; with a good classifier, LearnedBloom is even smaller."
        )
    return tuple(advice)


def learned_wins(
    trusted: float,
    escaping: float,
    *,
    members: int,
    bits: int,
    model_bits: int,
    base: float = 0.6185,
) -> bool:
    """Return whether a learned filter has a lower rate than a plain one of the same size (Eq. 4).

    ``trusted`` is F_p, the fraction of absent keys that the classifier accepts, ``escaping`` F_n,
    the fraction of members that it rejects; ``bits`` is the size of the backup filter.

    >>> learned_wins(0.001, 0.3, members=10**6, bits=4 * 10**6, model_bits=10**5)
    True
    >>> learned_wins(0.05, 0.3, members=10**6, bits=10**7, model_bits=10**5)
    False
    """
    each = bits / members
    learned = trusted + (1 - trusted) * base ** (each / escaping)
    return bool(learned < base ** (model_bits / members + each))
