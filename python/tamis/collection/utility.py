"""How often each set is queried: given, in a file, or counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tamis.collection.storage import Names
from tamis.planning.collection.allocation import utilities
from tamis.planning.collection.curves import Floats

Utility: TypeAlias = Mapping[str, float] | npt.ArrayLike | Literal["accesses"]
"""How often each set is queried: by name, in the order of the sets, or as recorded."""

HALF_LIFE = 100_000
"""Accesses after which an earlier access counts half."""

UNSEEN = 0.01
"""Share of all accesses that is spread evenly, so that sets without accesses get some bits."""


def read_utility(
    utility: Mapping[str, float] | npt.ArrayLike | None, names: Names, default: Floats
) -> Floats:
    """Return utilities, given by name or in the order of the names, as an array."""
    if utility is None:
        return default
    if isinstance(utility, Mapping):
        missing = next((name for name in names if name not in utility), None)
        if missing is not None:
            raise ValueError(f"utility must have a number for every name; {missing!r} is missing")
        utility = [utility[name] for name in names]
    return utilities(utility, len(names))


def extend_utility(utility: Floats, added: npt.ArrayLike | None, count: int, what: str) -> Floats:
    """Append the utilities of ``count`` new sets (default: 1)."""
    numbers = np.ones(count) if added is None else np.asarray(added, np.float64)
    if numbers.shape != (count,):
        raise ValueError(
            f"utility must have one number per {what}, {count}, not shape {numbers.shape}"
        )
    return utilities(np.concatenate([utility, numbers]), len(utility) + count)


def count_accesses(
    accesses: Floats, ids: Sequence[int], weight: float, half_life: float = HALF_LIFE
) -> Floats:
    """Return the counts with accesses added, after decaying the earlier ones."""
    counts: Floats = accesses * 0.5 ** (len(ids) / half_life)
    np.add.at(counts, ids, weight)
    return counts


def with_unseen(accesses: Floats, total: float) -> Floats:
    """Add the share `UNSEEN` of the total, spread evenly."""
    return accesses + UNSEEN * total / max(len(accesses), 1)
