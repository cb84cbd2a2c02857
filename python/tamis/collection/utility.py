"""How often each set is queried: given, in a file, or counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tamis.collection.storage import Names
from tamis.planning.collection.allocation import utilities
from tamis.planning.collection.curves import Floats, Weights

Utility: TypeAlias = Mapping[str, float] | npt.ArrayLike | Literal["accesses"]
"""How often each set is queried: by name, in the order of the sets, or as recorded."""

HALF_LIFE = 100_000
"""Accesses after which an earlier access counts half."""

_MOST_UNIT = 2.0**40
"""The unit at which counts are divided by it, far below what 32 bits hold."""

UNSEEN = 0.01
"""Share of all accesses that is spread evenly, so that sets without accesses get some bits."""


def read_utility(
    utility: Mapping[str, float] | npt.ArrayLike | None, names: Names, default: Weights
) -> Weights:
    """Return utilities, given by name or in the order of the names, as an array."""
    if utility is None:
        return default
    if isinstance(utility, Mapping):
        missing = next((name for name in names if name not in utility), None)
        if missing is not None:
            raise ValueError(f"utility must have a number for every name; {missing!r} is missing")
        utility = [utility[name] for name in names]
    return as_weights(utilities(utility, len(names)))


def as_weights(utility: Floats) -> Weights:
    """Round utilities to 32 bits; those that are too small or too large for that are clipped."""
    limits = np.finfo(np.float32)
    clipped = np.clip(utility, np.where(utility > 0, limits.tiny, 0), limits.max)
    return clipped.astype(np.float32)


def extend_utility(utility: Weights, added: npt.ArrayLike | None, count: int, what: str) -> Weights:
    """Append the utilities of ``count`` new sets (default: 1)."""
    return np.concatenate([utility, as_weights(utilities(added, count, what))])


class Accesses:
    """How often each set was accessed, where earlier accesses decay.

    Instead of all counts decaying, the unit that new accesses are counted in grows.
    """

    def __init__(self, counts: Weights | None = None, unit: float = 1.0) -> None:
        self._counts, self._unit = counts, unit

    def __copy__(self) -> Accesses:
        return Accesses(None if self._counts is None else self._counts.copy(), self._unit)

    def array(self, length: int) -> Floats:
        """Return the counts of so many sets."""
        counts = np.zeros(length)
        if self._counts is not None:
            counts[: len(self._counts)] = self._counts
        return counts / self._unit

    def record(self, ids: Sequence[int], weight: float, half_life: float, length: int) -> None:
        """Count accesses, after decaying the earlier ones."""
        counts, unit = self._counts, self._unit
        grown = 0.5 ** (-len(ids) / half_life) if len(ids) < 30 * half_life else np.inf
        if counts is None or len(counts) != length or unit * grown > _MOST_UNIT:
            counts, unit = (self.array(length) / grown).astype(np.float32), 1.0
        else:
            unit *= grown
        times = np.full(len(ids), weight * unit, np.float32)
        np.add.at(counts, ids, times)
        self._counts, self._unit = counts, unit

    def extend(self, added: int, length: int) -> Accesses:
        """Return the counts with sets added that were not accessed."""
        if self._counts is None:
            return self
        counts = np.zeros(length + added, np.float32)
        counts[: len(self._counts)] = self._counts
        return Accesses(counts, self._unit)

    def without(self, ids: Sequence[int]) -> Accesses:
        """Return the counts of the other sets."""
        if self._counts is None:
            return self
        return Accesses(np.delete(self._counts, ids), self._unit)

    @property
    def size_in_bytes(self) -> int:
        """Memory of the counts: none before the first access."""
        return 0 if self._counts is None else self._counts.nbytes


def with_unseen(accesses: Floats, total: float) -> Floats:
    """Add the share `UNSEEN` of the total, spread evenly."""
    return accesses + UNSEEN * total / max(len(accesses), 1)
