"""`tamis.Collection`: the filters of many sets under one memory budget."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._types import FilePath, Key, Keys
from tamis.collection import storage
from tamis.collection.growth import Growth, change_prefixes, load_all, may_grow, plan_growth
from tamis.collection.prefixes import (
    Prefixes,
    load_prefixes,
    rate_curve,
    sliced_curve,
    sliced_overhead,
)
from tamis.collection.storage import Names, Sets
from tamis.collection.utility import (
    HALF_LIFE,
    Accesses,
    Utility,
    as_weights,
    extend_utility,
    read_utility,
    with_unseen,
)
from tamis.errors import FormatError
from tamis.pictures import figure_axes
from tamis.planning.arguments import MOST_BYTES, check_number, parse_budget, whole
from tamis.planning.collection import allocation as planning
from tamis.planning.collection.curves import Floats, Ints, Weights
from tamis.planning.collection.prices import optimal_price
from tamis.planning.collection.sliced import plan_segments

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class _Plan(NamedTuple):
    """The bits of each filter to load, and what they were planned for."""

    kept: Ints | None = None
    budget: int | None = None
    method: planning.Method = "optimal"
    price: float | None = None
    """The logarithm of the price of a bit, where the next plan starts."""
    grown: int = 0
    """Sets added since all prefixes were planned."""


Kind: TypeAlias = planning.Kind | Literal["auto", "sliced"]
"""The kind of the filters: one that can be cut, the best of them, or filters by rows."""

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
        utility: Weights,
        *,
        hybrid: bool,
        parts: int = 1,
        salvage: bool = False,
    ) -> None:
        self._filters = filters
        self._parts, self._salvage = parts, salvage
        self._utility = utility
        self._accesses = Accesses()
        self._planned = _Plan()
        self.hybrid = hybrid
        self.half_life = HALF_LIFE

    @classmethod
    def build(
        cls,
        sets: Sets,
        *,
        budget: int | str | None = None,
        utility: Utility | None = None,
        kind: Kind = "auto",
        fpr: float = 1e-4,
        path: FilePath | None = None,
        hybrid: bool = False,
        parts: int = 1,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Build the full filters of named sets and load prefixes that fit the budget.

        ``sets`` maps names to keys; an iterator is consumed one set at a time. ``budget`` is in
        bytes, or as "64MB" (10⁶ bytes), and counts prefixes, sizes and weights; None loads the full
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
        ones = np.ones(len(filters), np.float32)
        collection = cls(filters, ones, hybrid=hybrid, parts=_check_parts(parts))
        # Check everything before a file is written.
        weights = collection._read_utility(utility)
        size = None if budget is None else parse_budget(budget)
        plan = collection._plan(filters, weights, size, sealed=True)
        filters = storage.seal_filters(path, filters, weights, key)
        collection._replace(collection._load(filters, weights, plan), weights, plan)
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
        length = None if length is None else whole("length", length, MOST_BYTES)
        filters, saved = storage.open_filters(path, key, length=length)
        weights, parts = as_weights(saved), _check_parts(parts)
        collection = cls(filters, weights, hybrid=hybrid, parts=parts, salvage=salvage)
        plan = _Plan(np.zeros(len(saved), np.int64))
        with storage.path_in_errors(path):
            if allocate:
                weights = collection._read_utility(utility)
                size = None if budget is None else parse_budget(budget)
                plan = collection._plan(filters, weights, size)
            collection._replace(collection._load(filters, weights, plan), weights, plan)
        return collection

    def save(self, path: FilePath) -> None:
        """Write the full filters and their utilities to a file, atomically."""
        prefixes = self._prefixes
        storage.save_filters(path, prefixes.filters, prefixes.utility)

    def write(self, descriptor: int) -> None:
        """Write the same as `save` to an open file, which may get more content after it."""
        prefixes = self._prefixes
        prefixes.filters.write(descriptor, prefixes.utility.astype(np.float64))

    def candidates(self, key: Key, limit: int | None = None, *, part: int = 0) -> list[str]:
        """Return up to ``limit`` sets that may contain the key, the most queried first."""
        prefixes = self._prefixes
        ids = prefixes.residents[self._check_part(part)].candidates(
            key, storage.read_limit("limit", limit), self.hybrid
        )
        return [prefixes.filters.name(id) for id in ids.tolist()]

    def candidates_many(
        self, keys: Keys, limit: int | None = None, *, part: int = 0
    ) -> tuple[Ints, npt.NDArray[np.uint32]]:
        """Look up many keys: key i may be in the sets ``names[ids[offsets[i]:offsets[i + 1]]]``."""
        return self._prefixes.residents[self._check_part(part)].candidates_many(
            keys, storage.read_limit("limit", limit), self.hybrid
        )

    def append(
        self,
        name: str,
        keys: Keys,
        *,
        utility: float = 1.0,
        kind: Kind = "auto",
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
        kind: Kind = "auto",
        fpr: float = 1e-4,
        key: bytes | None = None,
        allocate: bool = True,
    ) -> None:
        """Add sets and reallocate.

        ``utility`` is one number per new set (default: 1). A collection with a secret key needs
        ``key`` to hash the new keys. With ``allocate=False`` the new sets return maybe until
        `allocate` is called.
        """
        # A copy: a failure must leave this collection as it was.
        filters = self._filters.without([])
        if kind == "auto" and self._sliced:
            kind = "sliced"
        storage.add_sets(filters, sets, kind, fpr, key)
        added = len(filters) - len(self)
        weights = extend_utility(self._utility, utility, added, "set")
        accesses = self._accesses.extend(added, len(self))
        plan, prefixes = self._grow(filters, weights, allocate=allocate)
        self._replace(prefixes, weights, plan, accesses)

    def drop(self, sets: str | Iterable[str] | npt.NDArray[np.integer[Any]]) -> None:
        """Remove sets by name or number. The others are renumbered and keep their prefixes."""
        ids = self._ids([sets] if isinstance(sets, str) else sets, "sets")
        kept = np.delete(self._prefixes.kept, ids)
        plan = self._planned._replace(kept=kept)
        weights, accesses = np.delete(self._utility, ids), self._accesses.without(ids)
        before = np.delete(np.arange(len(self), dtype=np.uint32), ids)
        filters = self._filters.without(ids)
        prefixes = self._load(filters, weights, plan, self._prefixes, before)
        self._replace(prefixes, weights, plan, accesses)

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
        plan = self._plan(self._filters, weights, size, method)
        prefixes = self._load(self._filters, weights, plan, self._prefixes)
        self._replace(prefixes, weights, plan, self._accesses)

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
        weight = check_number("weight", weight, "a number from 0 on", least=0)
        ids = self._ids(visited, "visited")
        self._accesses.record(ids, weight, self.half_life, len(self))

    @property
    def accesses(self) -> Floats:
        """Accesses recorded per set, decayed."""
        return self._accesses.array(len(self))

    @property
    def names(self) -> Names:
        """The names of the sets; indexing by an array of numbers returns an array of names."""
        return Names(self._filters)

    @property
    def utility(self) -> Floats:
        """How often each set is queried, relative to the others."""
        return self._utility.astype(np.float64)

    @property
    def budget(self) -> int | None:
        """The memory budget in bytes, or None."""
        return self._planned.budget

    @property
    def least_budget(self) -> int:
        """The smallest possible budget in bytes: sizes and weights without any bits of filters."""
        return self._overhead

    @property
    def kept(self) -> Ints:
        """Bits of each filter in memory."""
        return self._prefixes.kept

    @property
    def damaged(self) -> Ints:
        """Numbers of the damaged filters, which return maybe for every key."""
        return self._prefixes.damaged.copy()

    @property
    def full(self) -> Ints:
        """Bits of each full filter."""
        return rate_curve(self._filters.sizes()).bits

    @property
    def counts(self) -> Ints:
        """Keys in each set."""
        return self._filters.sizes().counts

    @property
    def kinds(self) -> list[str]:
        """The kind of each filter; "empty" for a set without keys."""
        names = ("empty", "sliced") if self._sliced else _KINDS
        return [names[kind] for kind in self._filters.sizes().kinds.tolist()]

    @property
    def fprs(self) -> Floats:
        """Expected false-positive rate of each prefix in memory."""
        return _rates(self._prefixes)

    @property
    def expected_fpr(self) -> float:
        """Expected false-positive rate, weighted by utility.

        In hybrid mode, the fraction of lookups of absent keys that read from the file.
        """
        prefixes = self._prefixes
        return planning.weighted_rate(prefixes.utility.astype(np.float64), _rates(prefixes))

    @property
    def size_in_bytes(self) -> int:
        """Memory of the prefixes, sizes and weights."""
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
        prefixes = self._prefixes
        counts = np.maximum(prefixes.filters.sizes().counts, 1)
        full = rate_curve(prefixes.filters.sizes()).bits
        ax.scatter(prefixes.utility, full / counts, s=4, color="#999999", label="in the file")
        ax.scatter(prefixes.utility, prefixes.kept / counts, s=6, label="in memory")
        scale = "log" if len(prefixes.utility) and prefixes.utility.min() > 0 else "symlog"
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
            f"{self.size_in_bytes:,} bytes in memory, "
            f"{self._overhead / max(len(self), 1):.1f} per filter beside its bits>"
        )

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        vars(twin).update(vars(self))
        twin._accesses = copy(self._accesses)
        return twin

    @property
    def _sliced(self) -> bool:
        return isinstance(self._prefixes.residents[0], _native.Sliced)

    @property
    def _overhead(self) -> int:
        prefixes = self._prefixes
        memory = sum(each.overhead for each in prefixes.residents)
        return memory + self._own_bytes(prefixes.filters, sealed=False)

    def _own_bytes(self, filters: _native.Filters, *, sealed: bool) -> int:
        """Memory of the directory, utilities and accesses."""
        weights = np.dtype(np.float32).itemsize * len(filters)
        return filters.size_in_bytes(sealed=sealed) + weights + self._accesses.size_in_bytes

    def _ids(self, sets: Iterable[str] | npt.NDArray[np.integer[Any]], argument: str) -> list[int]:
        names = self.names
        ids = [names.find(each) if isinstance(each, str) else int(each) for each in sets]
        if ids and not 0 <= min(ids) <= max(ids) < len(self):
            raise ValueError(f"{argument} must have numbers from 0 to {len(self) - 1}")
        return ids

    def _check_part(self, part: int) -> int:
        return whole("part", part, self._parts - 1)

    def _read_utility(self, utility: Utility | None) -> Weights:
        if isinstance(utility, str):
            if utility != "accesses":
                raise ValueError(f"utility must be numbers or 'accesses', not {utility!r}")
            accesses = self.accesses
            return as_weights(with_unseen(accesses, max(float(accesses.sum()), 1.0)))
        return read_utility(utility, self.names, self._utility)

    def _plan(
        self,
        filters: _native.Filters,
        weights: Weights,
        budget: int | None,
        method: planning.Method = "optimal",
        *,
        sealed: bool = False,
    ) -> _Plan:
        """Return how many bits of each filter to load."""
        own = self._own_bytes(filters, sealed=sealed)
        rows = sliced_curve(filters) if self._parts == 1 and not self._salvage else None
        if rows is not None:
            if method != "optimal":
                raise ValueError(f"method must be 'optimal' for sliced filters, not {method!r}")
            bits = None
            if budget is not None:
                overhead = sliced_overhead(rows) + own
                bits = storage.filter_bits(budget, overhead, f"{len(filters)} filters")
            segments = plan_segments(rows, weights.astype(np.float64), bits)
            return _Plan(segments * (rows.bits // np.maximum(rows.hashes, 1)), budget, method)
        sizes = filters.sizes(self._parts)
        curve = rate_curve(sizes)
        if budget is None:
            return _Plan(curve.bits, None, method)
        overhead = sizes.overhead + own
        bits = storage.filter_bits(budget, overhead, f"{len(filters)} filters")
        utility = weights.astype(np.float64)
        if method != "optimal":
            return _Plan(planning.allocate(method, curve, utility, bits), budget, method)
        kept, price = optimal_price(curve, utility, bits)
        return _Plan(kept, budget, method, price)

    def _grow(
        self, filters: _native.Filters, weights: Weights, *, allocate: bool
    ) -> tuple[_Plan, Prefixes]:
        """Plan and load the prefixes of sets that were added, and change those of others."""
        before, planned, growth = len(self), self._planned, None
        added = len(filters) - before
        if self._sliced:
            if not allocate:
                kept = np.concatenate([self._prefixes.kept, np.zeros(added, np.int64)])
                return planned, self._load(filters, weights, planned._replace(kept=kept))
        elif not allocate:
            growth = Growth(np.arange(before, len(filters)), np.zeros(added, np.int64))
        elif planned.budget is None:
            growth = load_all(filters, before)
        elif planned.method == "optimal" and may_grow(before, added, planned.grown):
            new = filters.sizes(self._parts, before).overhead
            own = self._own_bytes(filters, sealed=False)
            overhead = sum(each.overhead for each in self._prefixes.residents) + new + own
            if overhead <= planned.budget:
                bits = 8 * (planned.budget - overhead)
                growth = plan_growth(filters, weights, self._prefixes.kept, bits, planned.price)
        if growth is not None:
            price = planned.price if growth.price is None else growth.price
            plan = planned._replace(price=price, grown=planned.grown + added)
            try:
                return plan, change_prefixes(filters, self._prefixes, growth, weights)
            except FormatError:
                if not self._salvage:
                    raise
        plan = self._plan(filters, weights, planned.budget, planned.method)
        return plan, self._load(filters, weights, plan, self._prefixes)

    def _load(
        self,
        filters: _native.Filters,
        weights: Weights,
        plan: _Plan,
        loaded: Prefixes | None = None,
        before: npt.NDArray[np.uint32] | None = None,
    ) -> Prefixes:
        assert plan.kept is not None
        parts, salvage = self._parts, self._salvage
        return load_prefixes(
            filters, plan.kept, weights, parts=parts, salvage=salvage, loaded=loaded, before=before
        )

    def _replace(
        self, prefixes: Prefixes, weights: Weights, plan: _Plan, accesses: Accesses | None = None
    ) -> None:
        """Replace everything; nothing here can fail."""
        counts = Accesses() if accesses is None else accesses
        planned = plan._replace(kept=None)  # the prefixes know
        self._prefixes, self._filters = prefixes, prefixes.filters
        self._utility, self._accesses, self._planned = weights, counts, planned


def _rates(prefixes: Prefixes) -> Floats:
    return rate_curve(prefixes.filters.sizes()).rate(prefixes.kept)


def _check_parts(parts: int) -> int:
    return whole("parts", parts, MOST_PARTS, least=1)
