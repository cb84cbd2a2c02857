"""`tamis.Collection`: the filters of many sets under one memory budget."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._types import FilePath, Key, Keys
from tamis.collection import storage
from tamis.collection.prefixes import load_prefixes, rate_curve
from tamis.collection.storage import Names, Sets
from tamis.collection.utility import (
    HALF_LIFE,
    Utility,
    count_accesses,
    extend_utility,
    read_utility,
    with_unseen,
)
from tamis.pictures import figure_axes
from tamis.planning.arguments import parse_budget, whole
from tamis.planning.collection import allocation as planning
from tamis.planning.collection.curves import Floats, Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WEIGHTS = 16  # bytes of the utility and accesses of a set
_PART = 32  # bytes of padding and rounding per part
_KINDS = ("empty", *planning.KINDS)  # by their numbers in a file

MOST_PARTS = 2**16
"""Parts of a collection, which take memory also without sets."""


class Collection:
    """The filters of many sets (row groups, partitions) under one memory budget.

    The full filters are in a file. A prefix of each is in memory, and is a filter itself. Sets that
    are queried often get longer prefixes: `tamis.plan_collection` minimizes the false-positive rate
    weighted by utility. `allocate` changes the prefixes without the keys. `candidates` returns the
    sets that may contain a key, the most queried first.

    >>> c = Collection.build({"a": range(1000), "b": range(500, 3000)}, budget="4kB")
    >>> c.candidates(7), c.candidates(700)
    (['a'], ['a', 'b'])
    >>> offsets, ids = c.candidates_many([7, 700, -1])
    >>> offsets.tolist(), c.names[ids].tolist()
    ([0, 1, 3, 3], ['a', 'a', 'b'])

    References: Mersy, Wang, Sintos, Krishnan 2024.
    """

    def __init__(
        self,
        filters: _native.Filters,
        utility: Floats,
        *,
        hybrid: bool,
        parts: int = 1,
        salvage: bool = False,
    ) -> None:
        self._filters = filters
        self._parts, self._salvage = parts, salvage
        self._utility = utility
        self._accesses = np.zeros(len(utility))
        self._budget: int | None = None
        self._method: planning.Method = "optimal"
        self.hybrid = hybrid
        self.half_life = HALF_LIFE

    @classmethod
    def build(
        cls,
        sets: Sets,
        *,
        budget: int | str | None = None,
        utility: Utility | None = None,
        kind: planning.Kind | Literal["auto"] = "auto",
        fpr: float = 1e-4,
        path: FilePath | None = None,
        hybrid: bool = False,
        parts: int = 1,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Build the full filters of named sets and load prefixes that fit the budget.

        ``sets`` maps names to keys; an iterator is consumed one set at a time. ``budget`` is in
        bytes, or as "64MB" (10⁶ bytes), and counts prefixes, names and sizes; None loads the full
        filters. ``fpr`` is the false-positive rate of the full filters, which are saved to
        ``path``, or to a temporary file. With ``hybrid``, if a prefix returns maybe, the rest of
        the filter is checked in the file. ``parts`` consecutive sets belong together, such as the
        columns of a row group: set i is in part i modulo ``parts``, and a query searches one part.

        >>> sets = ((f"day {i}", range(1000 * i, 1000 * i + 1000)) for i in range(30))
        >>> c = Collection.build(sets, budget="20kB", utility=np.arange(30))
        >>> c.candidates(29_500, limit=1), c.size_in_bytes <= 20_000
        (['day 29'], True)
        """
        filters = storage.create_filters(path, seed, key)
        storage.add_sets(filters, sets, kind, fpr, key)
        ones = np.ones(len(filters))
        collection = cls(filters, ones, hybrid=hybrid, parts=whole("parts", parts, MOST_PARTS, 1))
        # Check everything before a file is written.
        weights = collection._read_utility(utility)
        size = None if budget is None else parse_budget(budget)
        kept = collection._plan(filters, weights, size, "optimal")
        if path is not None:
            storage.save_filters(path, filters, weights)
            filters, _ = storage.open_filters(path, key)
        collection._replace(filters, weights, kept, budget=size)
        return collection

    @classmethod
    def open(
        cls,
        path: FilePath,
        *,
        budget: int | str | None = None,
        utility: Utility | None = None,
        hybrid: bool = False,
        parts: int = 1,
        salvage: bool = False,
        length: int | None = None,
        allocate: bool = True,
        key: bytes | None = None,
    ) -> Self:
        """Open a file written by `build` or `save` and load prefixes that fit the budget.

        Everything that is read is checked; damage raises `FormatError`.

        With ``salvage``, damaged filters return maybe for every key instead, and are listed in
        `damaged`. ``utility`` defaults to the utilities in the file. ``length`` is the length of
        the collection in bytes, if the file has other content after it. With ``allocate=False`` no
        bits are loaded: all filters return maybe until `allocate` is called.
        """
        filters, saved = storage.open_filters(path, key, length=length)
        collection = cls(
            filters,
            saved,
            hybrid=hybrid,
            parts=whole("parts", parts, MOST_PARTS, 1),
            salvage=salvage,
        )
        if not allocate:
            collection._replace(filters, saved, np.zeros(len(saved), np.int64))
            return collection
        with storage.path_in_errors(path):
            collection.allocate(budget=budget, utility=utility)
        return collection

    def save(self, path: FilePath) -> None:
        """Write the full filters and their utilities to a file, atomically."""
        storage.save_filters(path, self._filters, self._utility)

    def write(self, descriptor: int) -> None:
        """Write the same as `save` to an open file, which may get more content after it."""
        self._filters.write(descriptor, self._utility)

    def candidates(self, key: Key, limit: int | None = None, *, part: int = 0) -> list[str]:
        """Return up to ``limit`` sets that may contain the key, the most queried first."""
        prefixes = self._prefixes
        ids = prefixes.residents[part].candidates(
            key, storage.read_limit("limit", limit), self.hybrid
        )
        return [prefixes.filters.name(id) for id in ids.tolist()]

    def candidates_many(
        self, keys: Keys, limit: int | None = None, *, part: int = 0
    ) -> tuple[Ints, npt.NDArray[np.uint32]]:
        """Look up many keys: key i may be in the sets ``names[ids[offsets[i]:offsets[i + 1]]]``."""
        return self._prefixes.residents[part].candidates_many(
            keys, storage.read_limit("limit", limit), self.hybrid
        )

    def append(
        self,
        name: str,
        keys: Keys,
        *,
        utility: float = 1.0,
        kind: planning.Kind | Literal["auto"] = "auto",
        fpr: float = 1e-4,
        key: bytes | None = None,
    ) -> None:
        """Add a set and reallocate; `save` writes it to a file. See `extend` for many sets."""
        self.extend([(name, keys)], utility=[utility], kind=kind, fpr=fpr, key=key)

    def extend(
        self,
        sets: Sets,
        *,
        utility: npt.ArrayLike | None = None,
        kind: planning.Kind | Literal["auto"] = "auto",
        fpr: float = 1e-4,
        key: bytes | None = None,
        allocate: bool = True,
    ) -> None:
        """Add sets and reallocate.

        ``utility`` is one number per new set (default: 1). A collection with a secret key needs
        ``key`` to hash the new keys. With ``allocate=False`` the new sets return maybe until
        `allocate` is called.
        """
        filters = self._filters.without(
            []
        )  # a copy: a failure must leave this collection as it was
        storage.add_sets(filters, sets, kind, fpr, key)
        added = len(filters) - len(self)
        weights = extend_utility(self._utility, utility, added, "set")
        if allocate:
            kept = self._plan(filters, weights, self._budget, self._method)
        else:
            kept = np.concatenate([self._prefixes.kept, np.zeros(added, np.int64)])
        accesses = np.concatenate([self._accesses, np.zeros(added)])
        self._replace(filters, weights, kept, accesses, self._budget, self._method)

    def drop(self, sets: str | Iterable[str] | npt.NDArray[np.integer[Any]]) -> None:
        """Remove sets by name or number. The others are renumbered and keep their prefixes."""
        ids = self._ids([sets] if isinstance(sets, str) else sets, "sets")
        self._replace(
            self._filters.without(ids),
            np.delete(self._utility, ids),
            np.delete(self._prefixes.kept, ids),
            np.delete(self._accesses, ids),
            self._budget,
            self._method,
        )

    def allocate(
        self,
        *,
        budget: int | str | None = None,
        utility: Utility | None = None,
        method: planning.Method = "optimal",
    ) -> None:
        """Load prefixes for another budget (None: the full filters) or other utilities.

        Reads only the file, and does not change it. ``utility="accesses"`` uses the accesses that
        `record` counted. ``method`` may name a baseline, see `tamis.plan_collection`.

        >>> c = Collection.build({"a": range(9000), "b": range(9000, 18_000)})
        >>> full = c.expected_fpr
        >>> c.allocate(budget="15kB", utility={"a": 1, "b": 99})
        >>> bool(full < 1e-4 < c.expected_fpr < 0.01), bool(c.kept[1] > c.kept[0])
        (True, True)
        """
        weights = self._read_utility(utility)
        size = None if budget is None else parse_budget(budget)
        kept = self._plan(self._filters, weights, size, method)
        self._replace(self._filters, weights, kept, self._accesses, size, method)

    def record(
        self, visited: Iterable[str] | npt.NDArray[np.integer[Any]], weight: float = 1.0
    ) -> None:
        """Count accesses of sets, given by name or number.

        Earlier accesses decay: after ``half_life`` more accesses they count half.

        >>> c = Collection.build({"a": [1], "b": [2]})
        >>> c.record(c.candidates(1)); c.record([1, 1])
        >>> c.accesses.round(3).tolist()
        [1.0, 2.0]
        """
        if not 0 <= weight < np.inf:
            raise ValueError(f"weight must be a finite number from 0 on, not {weight}")
        ids = self._ids(visited, "visited")
        self._accesses = count_accesses(self._accesses, ids, weight, self.half_life)

    @property
    def accesses(self) -> Floats:
        """Accesses recorded per set, decayed."""
        return self._accesses.copy()

    @property
    def names(self) -> Names:
        """The names of the sets; indexing by an array of numbers returns an array of names."""
        return Names(self._filters)

    @property
    def utility(self) -> Floats:
        """How often each set is queried, relative to the others."""
        return self._utility.copy()

    @property
    def budget(self) -> int | None:
        """The memory budget in bytes, or None."""
        return self._budget

    @property
    def least_budget(self) -> int:
        """The smallest possible budget in bytes: names and sizes without any bits of filters."""
        return self._overhead

    @property
    def kept(self) -> Ints:
        """Bits of each filter in memory."""
        return self._prefixes.kept.copy()

    @property
    def damaged(self) -> Ints:
        """Numbers of the damaged filters, which return maybe for every key."""
        return self._prefixes.damaged.copy()

    @property
    def full(self) -> Ints:
        """Bits of each full filter."""
        return rate_curve(self._filters).bits

    @property
    def counts(self) -> Ints:
        """Keys in each set."""
        return self._filters.sizes().counts

    @property
    def kinds(self) -> list[str]:
        """The kind of each filter; "empty" for a set without keys."""
        return [_KINDS[kind] for kind in self._filters.sizes().kinds.tolist()]

    @property
    def fprs(self) -> Floats:
        """Expected false-positive rate of each prefix in memory."""
        return rate_curve(self._filters).rate(self._prefixes.kept)

    @property
    def expected_fpr(self) -> float:
        """Expected false-positive rate, weighted by utility.

        In hybrid mode, the fraction of lookups of absent keys that read from the file.
        """
        return planning.weighted_rate(self._utility, self.fprs)

    @property
    def size_in_bytes(self) -> int:
        """Memory of the prefixes, names and sizes."""
        return self._overhead + (self.size_in_bits + 7) // 8

    @property
    def size_in_bits(self) -> int:
        """Bits of the prefixes alone."""
        return sum(each.bits for each in self._prefixes.residents)

    @property
    def tail_reads(self) -> int:
        """Reads of the rest of a filter, in hybrid mode, since the last allocation."""
        return sum(each.tail_reads for each in self._prefixes.residents)

    @property
    def seed(self) -> int | None:
        """The seed of the hash, or None if a secret key is used."""
        return self._filters.seed

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot bits per key against utility; needs ``pip install tamis[plot]``."""
        ax = figure_axes(6.4, 4.8) if ax is None else ax
        counts = np.maximum(self.counts, 1)
        ax.scatter(self._utility, self.full / counts, s=4, color="#999999", label="in the file")
        ax.scatter(self._utility, self._prefixes.kept / counts, s=6, label="in memory")
        scale = "log" if len(self) and self._utility.min() > 0 else "symlog"
        ax.set(xlabel="utility: how often a set is queried", ylabel="bits per key", xscale=scale)
        ax.set_title(f"{len(self):,} filters, {self.size_in_bytes:,} bytes in memory")
        ax.grid(True, alpha=0.25)
        ax.legend(frameon=False)
        return ax

    def __len__(self) -> int:
        return len(self._filters)

    def __repr__(self) -> str:
        return (
            f"<tamis.Collection: {len(self):,} filters of {int(self.counts.sum()):,} keys, "
            f"{self.size_in_bytes:,} bytes in memory>"
        )

    @property
    def _overhead(self) -> int:
        return self._overhead_of(self._filters)

    def _overhead_of(self, filters: _native.Filters) -> int:
        return filters.size_in_bytes() + _WEIGHTS * len(filters) + _PART * (self._parts - 1)

    def _ids(self, sets: Iterable[str] | npt.NDArray[np.integer[Any]], argument: str) -> list[int]:
        names = self.names
        ids = [names.find(each) if isinstance(each, str) else int(each) for each in sets]
        if ids and not 0 <= min(ids) <= max(ids) < len(self):
            raise ValueError(f"{argument} must have numbers from 0 to {len(self) - 1}")
        return ids

    def _read_utility(self, utility: Utility | None) -> Floats:
        if isinstance(utility, str):
            if utility != "accesses":
                raise ValueError(f"utility must be numbers or 'accesses', not {utility!r}")
            return with_unseen(self._accesses, max(float(self._accesses.sum()), 1.0))
        return read_utility(utility, self.names, self._utility)

    def _plan(
        self, filters: _native.Filters, weights: Floats, budget: int | None, method: planning.Method
    ) -> Ints:
        """Return how many bits of each filter to load."""
        curve = rate_curve(filters)
        if budget is None:
            return curve.bits
        bits = storage.filter_bits(budget, self._overhead_of(filters), f"{len(filters)} filters")
        return planning.allocate(method, curve, weights, bits)

    def _replace(
        self,
        filters: _native.Filters,
        weights: Floats,
        kept: Ints,
        accesses: Floats | None = None,
        budget: int | None = None,
        method: planning.Method = "optimal",
    ) -> None:
        """Load prefixes of these filters, then replace everything, or nothing if that fails."""
        prefixes = load_prefixes(filters, kept, weights, parts=self._parts, salvage=self._salvage)
        counts = np.zeros(len(weights)) if accesses is None else accesses
        self._prefixes, self._filters = prefixes, filters
        self._utility, self._accesses = weights, counts
        self._budget, self._method = budget, method
