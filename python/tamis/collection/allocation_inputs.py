"""The inputs of an allocation of memory to prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis.collection.storage import Names
from tamis.collection.utility import (
    Accesses,
    Present,
    Utility,
    as_weights,
    extend_present,
    extend_utility,
    read_present,
    read_utility,
    with_unseen,
)
from tamis.planning.collection.curves import Floats, Weights


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
