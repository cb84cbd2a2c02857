"""Drift of a stable learned filter: whether insertions and queries are as they were planned.

Insertions are members, so their shares of the groups compare with q_j. Queries are for members and
for absent keys in an unknown ratio, and p_j is for absent keys alone. The answers tell them apart:
of Q_j queries in a group with a filter, which accepts absent keys at the rate α_j and members with
1 − FN_j, a_j were accepted, so that about

    t_j = (a_j − α_j·Q_j) / (1 − FN_j − α_j)

were for members. A group without a filter gives one answer to all keys, so its members are
estimated from the members of the other groups and the planned q_j. The rest of the queries,
Q_j − t_j, were for absent keys, and Σ α_j·(Q_j − t_j) / Σ (Q_j − t_j) is their rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tamis.planning.stable_learned.groups import Group

ALARM = 0.1
"""How far members may be from the plan, in total variation, before `Drift.alarm`."""

RATE_ALARM = 1.5
"""The largest ratio of observed to planned rate before `Drift.alarm`."""

_SIGMAS = 5
_CHANCE = 3
_TELLING = 0.1
"""Minimum difference between the rates at which a group accepts members and absent keys, for its
answers to distinguish them."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Drift:
    """Where the scores of insertions and queries fell, compared with the plan."""

    planned: tuple[float, ...]
    """q_j: the shares of members that were planned for."""
    observed: tuple[float, ...]
    """The shares of insertions since the filter was made or its model swapped."""
    insertions: int
    distance: float
    """Half the sum of the differences (total variation)."""
    planned_absent: tuple[float, ...]
    """p_j: the shares of absent keys that were planned for."""
    observed_absent: tuple[float, ...]
    """The estimated shares of queries for absent keys; as planned while there are none."""
    queries: int
    """Queries since the filter was made or opened, or its model swapped; not saved."""
    planned_fpr: float
    """Σ p_j·α_j."""
    expected_fpr: float
    """The rate that the queries for absent keys meet, by their estimated shares."""
    alarm: bool
    """Whether insertions are farther than `ALARM` from the plan, or queries meet more than
    `RATE_ALARM` times the planned rate, and by more than chance makes of so few."""


def compare(
    groups: Sequence[Group],
    *,
    inserted: Sequence[int],
    queried: Sequence[int],
    accepted: Sequence[int],
) -> Drift:
    """Compare counts by group with the plan.

    >>> from tamis.planning.stable import StableSize
    >>> filtered = Group(0.9, 0.5, StableSize(2**16, 1, 3, 11), True, 0.01, 0.1)
    >>> trusted = Group(0.1, 0.5, None, True, 1.0, 0.0)
    >>> counts = {"inserted": [500, 500], "queried": [5000, 5000], "accepted": [50, 5000]}
    >>> drift = compare([filtered, trusted], **counts)
    >>> drift.distance, round(drift.planned_fpr, 3), round(drift.expected_fpr, 3), drift.alarm
    (0.0, 0.109, 0.505, True)
    """
    p, q = (np.array([getattr(g, name) for g in groups]) for name in ("nonmembers", "members"))
    rates = np.array([group.rate for group in groups])
    insertions, queries = sum(inserted), sum(queried)
    observed = np.array(inserted) / max(insertions, 1)
    distance = float(abs(observed - q).sum() / 2) if insertions else 0.0
    # The expected distance of a sample of the plan itself, and five times its spread.
    chance = 0.4 * float(np.sqrt(q * (1 - q)).sum()) / max(insertions, 1) ** 0.5
    moved = distance > max(ALARM, chance + 2.5 / max(insertions, 1) ** 0.5)
    counts = np.array(queried, dtype=float), np.array(accepted, dtype=float)
    absent = _absent(groups, *counts, margin=0.0)
    shares = absent / absent.sum() if absent.sum() else p
    planned = float(p @ rates)
    # Small deviations of the members from the plan are no reason for an alarm.
    surely = _absent(groups, *counts, margin=ALARM)
    known = surely.sum()
    noise = _SIGMAS * float(np.sqrt((rates**2) @ counts[0])) / max(known, 1.0)
    rate = float(surely @ rates) / max(known, 1.0)
    return Drift(
        tuple(q.tolist()),
        tuple(observed.tolist()),
        insertions,
        distance,
        tuple(p.tolist()),
        tuple(shares.tolist()),
        queries,
        planned,
        float(shares @ rates),
        bool(moved or rate - noise > RATE_ALARM * planned),
    )


def _absent(groups: Sequence[Group], queried: Floats, accepted: Floats, margin: float) -> Floats:
    """Estimate the queries for absent keys in each group.

    ``margin`` is added to the share of members that is expected where the answers tell nothing.
    """
    q = np.array([group.members for group in groups])
    rates, denied = (np.array([getattr(g, name) for g in groups]) for name in ("rate", "fnr"))
    apart = 1 - denied - rates
    telling = np.array([group.size is not None for group in groups]) & (apart > _TELLING)
    # Only the excess over chance: a few more false positives would imply many members elsewhere.
    expected = rates * queried + _CHANCE * np.sqrt(rates * queried)
    members = np.where(telling, (accepted - expected) / np.where(telling, apart, 1.0), 0.0)
    members = np.clip(members, 0.0, queried)
    total = members.sum() / max(float(q[telling].sum()), 1e-12)
    members = np.where(telling, members, np.minimum((q + margin) * total, queried))
    return np.asarray(queried - members)
