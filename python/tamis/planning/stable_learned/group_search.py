"""The search for the best stable filters of groups, within a budget of bits and a rate.

With bits_j = u_j·q_j·δ, the false negatives of a group depend only on u_j and on K, Max and P of
its filter, so one table of (u; K, Max, P) is enough for all groups. `optimal` starts with the plain
stable filter, which is a plan with equal groups, and trades bits and rate between pairs of groups,
over all filters of both, as long as that helps.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from tamis.planning import stable
from tamis.planning.stable import StableSize

Floats = npt.NDArray[np.float64]

# The grid of the table, in bits per member relative to the budget, and the values of P.
_SPREAD = np.geomspace(1 / 64, 64, 121)
_DECREMENTS = np.unique(np.geomspace(1, 1000, 220).astype(np.int64))
_ROUNDS = 8
# How much less a filter must reject than filters of lower rates to be kept in the table.
_GAIN = 0.0005
_SPLITS = np.linspace(0.04, 0.96, 24)


class _Table(NamedTuple):
    """Filters by rising rate, and the fraction rejected with u bits per member (``denied``)."""

    max_value: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.int64]
    decrements: npt.NDArray[np.int64]
    counter_bits: npt.NDArray[np.int64]
    rate: Floats
    logs: Floats
    denied: Floats

    def at(self, u: float | Floats) -> Floats:
        """Return the fraction that each filter rejects with u bits per member, by interpolation."""
        place = np.interp(np.log(u), self.logs, np.arange(len(self.logs)))[..., None]
        low = np.minimum(place[..., 0].astype(int), len(self.logs) - 2)
        high = place - low[..., None]
        return np.asarray((1 - high) * self.denied[low] + high * self.denied[low + 1])


def _table(bits: int, fpr: float, gap: int) -> _Table:
    hashes_tried = range(1, stable.MAX_HASHES + 1)
    rows = np.array(list(itertools.product(stable.MAX_VALUES, hashes_tried, _DECREMENTS)))
    max_value, hashes, decrements = rows.T
    zeros = (decrements / (decrements + hashes)) ** max_value
    rate = (1 - zeros) ** hashes
    # Rates below a hundredth of the requested rate are of no use to any group.
    useful = (rate > fpr / 100) & (rate < 0.99)
    max_value, hashes, decrements, zeros, rate = (
        column[useful] for column in (max_value, hashes, decrements, zeros, rate)
    )
    counter_bits = np.array([stable.counter_bits(int(value)) for value in range(8)])[max_value]
    u = bits / max(gap, 1) * _SPREAD
    events = (decrements + hashes) * counter_bits / u[:, None]
    cell = zeros * special.gammainc(max_value, events)
    denied = -np.expm1(hashes * np.log1p(-cell))
    fronts = [_front(rate, denied[at]) for at in range(0, len(u), 6)]
    kept = np.unique(np.concatenate(fronts))
    kept = kept[np.argsort(rate[kept], kind="stable")]
    columns = (max_value[kept], hashes[kept], decrements[kept], counter_bits[kept], rate[kept])
    return _Table(*columns, np.log(u), denied[:, kept])


def _front(x: Floats, y: Floats) -> npt.NDArray[np.int64]:
    """Return the Pareto front, without points that gain almost nothing."""
    order = np.lexsort((y, x))
    steps = np.floor(y[order] / _GAIN)
    lowest = np.minimum.accumulate(steps)
    return np.asarray(order[np.concatenate([[True], steps[1:] < lowest[:-1]])])


_ACCEPT_ALL, _REJECT_ALL = -1, -2


def optimal(p: Floats, q: Floats, bits: int, fpr: float, gap: int) -> list[StableSize | bool]:
    """Find the filter (or answer) of each group that rejects the fewest members in total.

    >>> sizes = optimal(np.array([0.7, 0.3]), np.array([0.3, 0.7]), 2**14, 0.01, 500)
    >>> sum(size.bits for size in sizes if not isinstance(size, bool)) <= 2**14
    True
    """
    table = _table(bits, fpr, gap)
    allowed = fpr
    for _ in range(8):
        rows, shares = _improved(p, q, bits, allowed, gap, table)
        found = [_filter(table, row, share * bits) for row, share in zip(rows, shares, strict=True)]
        rates = [float(f) if isinstance(f, bool) else stable.limit_rate(f) for f in found]
        total = float(np.dot(p, rates))
        if total <= fpr:
            return found
        allowed *= min(0.999, fpr / total)  # the table neglects 1/m
    raise ValueError(f"bits must be more than {bits}: no plan meets fpr={fpr}")


def _filter(table: _Table, row: int, bits: float) -> StableSize | bool:
    if row < 0:
        return row == _ACCEPT_ALL
    cells = int(bits / table.counter_bits[row])
    return StableSize(
        cells, int(table.max_value[row]), int(table.hashes[row]), int(table.decrements[row])
    )


def _improved(
    p: Floats, q: Floats, bits: int, fpr: float, gap: int, table: _Table
) -> tuple[list[int], Floats]:
    """Return rows of the table and fractions of the bits, improved pair by pair.

    The search starts with the plain filter, and with variants without the groups that have the
    fewest members per absent key: rejecting these may be best, which no trade of two groups finds.
    """
    search = _Search(p, q, bits, fpr, gap, table)
    worst_first = np.argsort(q / np.maximum(p, 1e-12), kind="stable")
    found = []
    for dropped in range(min(len(p), 3)):
        kept = np.ones(len(p), dtype=bool)
        kept[worst_first[:dropped]] = False
        if not dropped or q[kept].sum() > 0:
            found.append(search.descend(*search.start(kept)))
    return min(found, key=lambda state: search.denied(*state))


class _Search:
    """The trade of bits and rate between groups."""

    def __init__(
        self, p: Floats, q: Floats, bits: int, fpr: float, gap: int, table: _Table
    ) -> None:
        self.p, self.q, self.bits, self.fpr, self.gap = p, q, bits, fpr, max(gap, 1)
        self.table = table
        self.min_bits = stable.MIN_CELLS * (table.decrements + table.hashes) * table.counter_bits

    def start(self, kept: npt.NDArray[np.bool_]) -> tuple[list[int], Floats]:
        """Return the plain stable filter: one row for the groups kept, bits by their members."""
        kept = kept & (self.q > 0)
        message = ""
        while True:
            shares = np.where(kept, self.q, 0) / self.q[kept].sum()
            smallest, allowed = shares[kept].min(), self.fpr / max(self.p[kept].sum(), 1e-12)
            fits = (self.table.rate <= allowed) & (self.min_bits <= smallest * self.bits)
            if fits.any():
                break
            fewest = self.min_bits[self.table.rate <= allowed].min(initial=2**50)
            message = message or (
                f"bits must be at least {math.ceil(fewest / smallest)} for {kept.sum()} groups, "
                f"the smallest with {smallest:.3g} of the members, at fpr={self.fpr:.3g}, not "
                f"{self.bits}; or use fewer groups"
            )
            if kept.sum() == 1:
                raise ValueError(message)
            # A group with too few members for its own filter is rejected at first.
            kept = kept & (self.q > self.q[kept].min())
            if not kept.any():
                raise ValueError(message)
        u = self.bits / (self.gap * self.q[kept].sum())
        row = int(np.where(fits, self.table.at(u), np.inf).argmin())
        return [row if keep else _REJECT_ALL for keep in kept], shares

    def descend(self, rows: list[int], shares: Floats) -> tuple[list[int], Floats]:
        """Trade between all pairs until there is no improvement."""
        best = self.denied(rows, shares)
        for _ in range(_ROUNDS):
            for i, j in itertools.combinations(range(len(rows)), 2):
                self.trade(rows, shares, i, j)
            now = self.denied(rows, shares)
            if now > best - 1e-5:
                break
            best = now
        return rows, shares

    def outcome(self, group: int, row: int, share: float) -> tuple[float, float]:
        """Return the rate and the rejected members of a group with this row."""
        if row < 0:
            return (self.p[group], 0.0) if row == _ACCEPT_ALL else (0.0, self.q[group])
        bits = share * self.bits
        if self.min_bits[row] > bits:
            return 0.0, np.inf
        denied = self.table.at(bits / (self.q[group] * self.gap))[row]
        return float(self.p[group] * self.table.rate[row]), float(self.q[group] * denied)

    def denied(self, rows: list[int], shares: Floats) -> float:
        return sum(self.outcome(j, row, shares[j])[1] for j, row in enumerate(rows))

    def trade(self, rows: list[int], shares: Floats, i: int, j: int) -> None:
        """Give groups i and j the best filters within the bits and the rate of both."""
        if self.q[i] == 0 or self.q[j] == 0:
            return
        others = sum(
            self.outcome(k, rows[k], shares[k])[0] for k in range(len(rows)) if k not in (i, j)
        )
        rate_left = self.fpr - others + 1e-15
        both = shares[i] + shares[j]
        best = (
            self.outcome(i, rows[i], shares[i])[1] + self.outcome(j, rows[j], shares[j])[1] - 1e-9
        )
        own = shares[i] / both if both else 0.5
        near = np.clip(own + np.array([-0.01, -0.003, -0.001, 0, 0.001, 0.003, 0.01]), 0, 1)
        splits = np.unique(np.concatenate([[0.0, 1.0], _SPLITS, near]))
        denied, filters_i, filters_j = self._pairs(
            i, j, both * splits, both * (1 - splits), rate_left
        )
        at = int(denied.argmin())
        if denied[at] < best:
            rows[i], rows[j] = int(filters_i[at]), int(filters_j[at])
            shares[i], shares[j] = both * splits[at], both * (1 - splits[at])

    def _pairs(
        self, i: int, j: int, shares_i: Floats, shares_j: Floats, rate_left: float
    ) -> tuple[Floats, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the members that two groups reject with their best filters, and these filters.

        There is one result per split. For each filter of i, the best of j is the one that rejects
        the fewest within the rate that is left: a running minimum over rising rates.
        """
        rate_i, denied_i = self._options(i, shares_i)
        rate_j, denied_j = self._options(j, shares_j)
        so_far = np.minimum.accumulate(denied_j, axis=1)
        left = np.searchsorted(rate_j, rate_left - rate_i, side="right") - 1
        total = denied_i + np.where(left >= 0, so_far[:, left], self.q[j])
        total[:, rate_i > rate_left] = np.inf
        best_i = total.argmin(axis=1)
        splits = np.arange(len(total))
        alone = (left[best_i] < 0) | ~np.isfinite(so_far[splits, left[best_i]])
        denied = np.where(alone, denied_i[splits, best_i] + self.q[j], total[splits, best_i])
        allowed = np.arange(len(rate_j)) <= left[best_i][:, None]
        best_j = np.where(allowed, denied_j, np.inf).argmin(axis=1)
        last = len(self.table.rate)
        filters_j = np.where(alone, _REJECT_ALL, np.where(best_j == last, _ACCEPT_ALL, best_j))
        return denied, np.where(best_i == last, _ACCEPT_ALL, best_i), filters_j

    def _options(self, group: int, shares: Floats) -> tuple[Floats, Floats]:
        """Return the rising rates of a group and its rejected members by split.

        The last entry accepts all keys.
        """
        p, q, bits = self.p[group], self.q[group], shares[:, None] * self.bits
        denied = q * self.table.at(np.maximum(bits[:, 0] / (q * self.gap), 1e-300))
        denied = np.where(self.min_bits <= bits, denied, np.inf)
        accepts_all = np.zeros((len(shares), 1))
        return np.append(p * self.table.rate, p), np.concatenate([denied, accepts_all], axis=1)
