"""The inputs of an allocation: how often each set is queried, given, in a file, or counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis.collection.storage import Names
from tamis.planning.collection.allocation import utilities
from tamis.planning.collection.curves import Floats, Weights

Utility: TypeAlias = Mapping[str, float] | npt.ArrayLike | Literal["accesses"]
"""How often each set is queried: by name, in the order of the sets, or as recorded."""

Present: TypeAlias = float | Mapping[str, float] | npt.ArrayLike | Literal["accesses"]
"""The share of the queries of each set that are for present keys: one for all, or as `Utility`."""

HALF_LIFE = 100_000
"""Accesses after which an earlier access counts half."""

_MAX_UNIT = 2.0**40
"""Counts are rescaled when the unit exceeds this, long before 32-bit floats overflow."""

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
    """Round utilities to 32 bits; values that are too small or too large are clipped."""
    limits = np.finfo(np.float32)
    clipped = np.clip(utility, np.where(utility > 0, limits.tiny, 0), limits.max)
    return clipped.astype(np.float32)


def extend_utility(utility: Weights, added: npt.ArrayLike | None, count: int, what: str) -> Weights:
    """Append the utilities of ``count`` new sets (default: 1)."""
    return np.concatenate([utility, as_weights(utilities(added, count, what))])


def extend_present(present: Weights | None, count: int) -> Weights | None:
    """Append the shares of ``count`` new sets: the mean of the others."""
    if present is None:
        return None
    return np.append(present, np.full(count, present.mean() if len(present) else 0, np.float32))


class Accesses:
    """How often each set was accessed, and contained the key, where earlier accesses decay.

    Instead of all counts decaying, the unit that new accesses are counted in grows.
    """

    def __init__(
        self, counts: Weights | None = None, found: Weights | None = None, unit: float = 1.0
    ) -> None:
        self._counts, self._found, self._unit = counts, found, unit

    def __copy__(self) -> Accesses:
        return self._changed(np.copy)

    def array(self, length: int) -> Floats:
        """Return the counts of this number of sets."""
        counts = np.zeros(length)
        if self._counts is not None:
            counts[: len(self._counts)] = self._counts
        return counts / self._unit

    def present(self) -> Weights | None:
        """Return the share of accesses that found the key; None if that was not recorded.

        Sets that were not accessed have the share of all accesses.
        """
        counts, found = self._counts, self._found
        if counts is None or found is None:
            return None
        mean = float(found.sum()) / max(float(counts.sum()), 1e-30)
        share = np.where(counts > 0, found / np.maximum(counts, 1e-30), mean)
        return np.clip(share, 0, 1).astype(np.float32)

    def record(
        self,
        ids: Sequence[int],
        weight: float,
        half_life: float,
        length: int,
        found: Sequence[int] | None = None,
    ) -> None:
        """Count accesses, after decaying the earlier ones."""
        counts, share, unit = self._counts, self._found, self._unit
        grown = 0.5 ** (-len(ids) / half_life) if len(ids) < 30 * half_life else np.inf
        if counts is None or len(counts) != length or unit * grown > _MAX_UNIT:
            if share is not None:
                share = (share / unit / grown).astype(np.float32)
            counts, unit = (self.array(length) / grown).astype(np.float32), 1.0
        else:
            unit *= grown
        each = np.float32(weight * unit)
        np.add.at(counts, ids, each)
        if found is not None:
            share = np.zeros(length, np.float32) if share is None else share
            np.add.at(share, found, each)
        self._counts, self._found, self._unit = counts, share, unit

    def extend(self, added: int) -> Accesses:
        """Return the counts with sets added that were not accessed."""
        return self._changed(lambda counts: np.append(counts, np.zeros(added, np.float32)))

    def without(self, ids: Sequence[int]) -> Accesses:
        """Return the counts of the other sets."""
        return self._changed(lambda counts: np.delete(counts, ids))

    def _changed(self, change: Callable[[Weights], Weights]) -> Accesses:
        counts, found = (
            None if each is None else change(each) for each in (self._counts, self._found)
        )
        return Accesses(counts, found, self._unit)

    @property
    def size_in_bytes(self) -> int:
        """Memory of the counts: none before the first access."""
        return sum(each.nbytes for each in (self._counts, self._found) if each is not None)


def read_present(present: Present | None, names: Names, accesses: Accesses) -> Weights | None:
    """Return the share of present keys among the queries of each set, as an array."""
    if present is None:
        return None
    if isinstance(present, str):
        if present != "accesses":
            raise ValueError(f"present must be numbers or 'accesses', not {present!r}")
        found = accesses.present()
        if found is None:
            raise ValueError("present is not recorded; pass found= to record, or give numbers")
        return found
    if isinstance(present, Mapping):
        missing = next((name for name in names if name not in present), None)
        if missing is not None:
            raise ValueError(f"present must have a number for every name; {missing!r} is missing")
        present = [present[name] for name in names]
    shares = np.array(present, np.float64)
    if shares.ndim == 0:
        shares = np.full(len(names), float(shares))
    if shares.shape != (len(names),):
        raise ValueError(
            f"present must be one number, or one per set, {len(names)}, not shape {shares.shape}"
        )
    wrong = shares[~((shares >= 0) & (shares <= 1))]
    if len(wrong):
        raise ValueError(f"present must be from 0 to 1 for each set, not {wrong[0]}")
    return shares.astype(np.float32)


def with_unseen(accesses: Floats, total: float) -> Floats:
    """Add the share `UNSEEN` of the total, spread evenly."""
    return accesses + UNSEEN * total / max(len(accesses), 1)


class AllocationInputs(NamedTuple):
    """How often each set is queried, and how the filters are grouped."""

    weights: Weights
    """Utilities."""
    accesses: Accesses
    present: Weights | None = None
    """In hybrid mode, the share of present keys among the queries of each set, if it is known."""
    parts: int = 1
    salvage: bool = False
    """Whether damaged filters return maybe for every key, instead of raising an error."""
    unsaved: bool = False
    """Whether the filters are new, and loaded from a file that is written after planning."""

    @property
    def utility(self) -> Floats:
        """Utilities, for planning."""
        return self.weights.astype(np.float64)

    @property
    def shares(self) -> Floats | None:
        """Shares of present keys, for planning."""
        return None if self.present is None else self.present.astype(np.float64)

    def own_bytes(self, filters: _native.Filters) -> int:
        """Memory of the directory, utilities, shares of present keys, and accesses."""
        arrays = 4 * len(filters) * (1 if self.present is None else 2)
        return filters.size_in_bytes(saved=self.unsaved) + arrays + self.accesses.size_in_bytes

    def read(
        self, utility: Utility | None, present: Present | None, names: Names, *, hybrid: bool
    ) -> AllocationInputs:
        """Return the inputs for these utilities and shares of present keys; None keeps them."""
        if present is not None and not hybrid:
            raise ValueError("present must only be given in hybrid mode; pass hybrid=True")
        shares = read_present(present, names, self.accesses)
        if shares is None and isinstance(utility, str):
            shares = self.accesses.present()
        shares = self.present if shares is None else shares
        if isinstance(utility, str):
            if utility != "accesses":
                raise ValueError(f"utility must be numbers or 'accesses', not {utility!r}")
            counts = self.accesses.array(len(names))
            weights = as_weights(with_unseen(counts, max(float(counts.sum()), 1.0)))
        else:
            weights = read_utility(utility, names, self.weights)
        return self._replace(weights=weights, present=shares if hybrid else None)

    def extended(
        self, utility: npt.ArrayLike | None, added: int, *, hybrid: bool
    ) -> AllocationInputs:
        """Return the inputs with sets added, which have these utilities."""
        return self._replace(
            weights=extend_utility(self.weights, utility, added, "set"),
            accesses=self.accesses.extend(added),
            present=extend_present(self.present, added) if hybrid else None,
        )

    def without(self, ids: Sequence[int], *, hybrid: bool) -> AllocationInputs:
        """Return the inputs of the other sets."""
        present = self.present if hybrid else None
        return self._replace(
            weights=np.delete(self.weights, ids),
            accesses=self.accesses.without(ids),
            present=None if present is None else np.delete(present, ids),
        )
