"""`tamis.Collection`: the filters of many sets under one memory budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._checks import (
    MAX_BYTES,
    check_int,
    check_number,
    check_parts,
    parse_budget,
)
from tamis._format import facts_html, format_rate, format_size
from tamis._objects import is_object, storage_of
from tamis._ranges import CACHE, ObjectFile
from tamis._types import FilePath, Key, Keys
from tamis.collection import storage
from tamis.collection.kind_choice import choose_for
from tamis.collection.merge import merge_filters
from tamis.collection.origin import Origin, reduce_collection
from tamis.collection.prefix_allocation import (
    Allocation,
    Budgets,
    grow_prefixes,
    plan_prefixes,
    read_budget,
)
from tamis.collection.prefixes import AllocationInputs, Prefixes, load_prefixes, rate_curve
from tamis.collection.runs import NamedKeys, Runs
from tamis.collection.runs_file import has_runs
from tamis.collection.storage import BudgetError, Names, Sets
from tamis.collection.utility import (
    HALF_LIFE,
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
from tamis.planning.collection import allocation as planning
from tamis.planning.collection.curves import Floats, Ints, Weights
from tamis.planning.collection.reads import Reads
from tamis.planning.collection.row_costs import TAIL_READ
from tamis.planning.costs import duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tamis.workload import Workload


Kind: TypeAlias = planning.Kind | Literal["auto", "sliced"]
"""The kind of the filters: one that can be cut, the best of them, or filters by rows."""

_KINDS = ("empty", *planning.KINDS)  # by their numbers in a file

MAX_PARTS = 2**16
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
        self._present: Weights | None = None
        self._accesses = Accesses()
        self._allocation = Allocation()
        self._origin: Origin | None = None
        self.chosen: str | None = None
        """Which kind `build` chose for a budget, and why; None if a kind was given."""
        self.hybrid = hybrid
        self.half_life = HALF_LIFE

    @overload
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
        filesystem: Any = None,
        storage_options: Mapping[str, str] | None = None,
        hybrid: bool | None = None,
        present: Present | None = None,
        miss_cost: float | str = "1ms",
        parts: int = 1,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self: ...

    @overload
    @classmethod
    def build(
        cls,
        sets: NamedKeys,
        *,
        kind: Literal["stacked"],
        workload: Workload | None = None,
        budget: int | str | None = None,
        utility: Utility | None = None,
        fpr: float = 1e-4,
        path: FilePath | None = None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Runs: ...

    @classmethod
    def build(
        cls,
        sets: Any,
        *,
        budget: int | str | None = None,
        utility: Utility | None = None,
        kind: Kind | Literal["stacked"] = "auto",
        workload: Workload | None = None,
        fpr: float = 1e-4,
        path: FilePath | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, str] | None = None,
        hybrid: bool | None = None,
        present: Present | None = None,
        miss_cost: float | str = "1ms",
        parts: int = 1,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self | Runs:
        """Build the full filters of named sets and load prefixes that fit the budget.

        ``sets`` maps names to keys; an iterator is consumed one set at a time. ``budget`` is in
        bytes, or as "64MB" (10⁶ bytes), and counts prefixes, sizes and weights; None loads the full
        filters. ``fpr`` is the false-positive rate of the full filters, which are saved to
        ``path``, which may be a URL such as "s3://bucket/key", opened with ``storage_options``, or
        a path in a ``filesystem`` of fsspec or pyarrow; without a path, to a temporary file.
        ``parts`` consecutive sets belong together, such as the columns of a row group: set i is in
        part i modulo ``parts``, and a query searches one part.

        ``kind="auto"`` chooses between ribbons and filters by rows (kind "sliced") by the rate that
        each has within the budget and the time of a lookup; ``miss_cost`` is the cost of a false
        positive, in seconds or as "1ms", and `chosen` says why.

        In ``hybrid`` mode (default: with a local ``path``), if a prefix returns maybe, the rest of
        the filter is checked in the file. Prefixes return maybe for every key of their set, so
        ``present``, the share of present keys among the queries of each set, changes which filters
        should be whole in memory: reads are minimized.

        ``kind="stacked"`` is for few large sets that are all asked for the same keys, such as the
        runs of an LSM-tree, and returns `Runs`; ``workload`` says which absent keys those are.

        >>> sets = ((f"day {i}", range(1000 * i, 1000 * i + 1000)) for i in range(30))
        >>> c = Collection.build(sets, budget="20kB", utility=np.arange(30))
        >>> c.candidates(29_500, limit=1), c.size_in_bytes <= 20_000
        (['day 29'], True)
        """
        filesystem = storage_of(filesystem, storage_options)
        if kind == "stacked":
            if hybrid or parts != 1 or present is not None:
                raise ValueError("hybrid, present and parts must not be given with kind 'stacked'")
            if is_object(path, filesystem):
                raise ValueError(f"path must be a local file with kind 'stacked', not {path!r}")
            return Runs.build(
                sets, budget=budget, workload=workload, utility=utility, fpr=fpr, path=path,
                seed=seed, key=key,
            )  # fmt: skip
        if workload is not None:
            raise ValueError(f"workload needs kind 'stacked', not {kind!r}")
        filters, chosen = storage.create_filters(path, seed, key, filesystem=filesystem), None
        hybrid = storage.is_local(path, filesystem) if hybrid is None else hybrid
        cost = duration("miss_cost", miss_cost)
        size = None if budget is None else parse_budget(budget)
        if kind == "auto" and size is not None and _check_parts(parts) == 1:
            cost = TAIL_READ if hybrid else cost
            sets, chosen = choose_for(sets, utility, size, fpr, cost, seed, key)
            kind = "sliced" if chosen.kind == "sliced" else "auto"
        storage.add_sets(filters, sets, kind, fpr, key)
        ones = np.ones(len(filters), np.float32)
        collection = cls(filters, ones, hybrid=hybrid, parts=_check_parts(parts))
        collection.chosen = None if chosen is None else chosen.reason
        inputs = collection._inputs(utility, present, sealed=True)
        collection._seal(inputs, size, path, key, filesystem)
        return collection

    @classmethod
    def merge(
        cls,
        *parts: Collection,
        budget: int | str | None = None,
        path: FilePath | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, str] | None = None,
        hybrid: bool | None = None,
        key: bytes | None = None,
    ) -> Self:
        """Merge collections of different sets, such as those built by several processes.

        The full filters are copied; sets come in the order of their names, so that the result has
        the same bytes however they were divided. Names must differ, and seeds or secret keys agree;
        ``key`` is the secret key. The parts keep their utilities. See `build` for the others.

        >>> parts = [Collection.build({name: [name]}) for name in "ba"]
        >>> Collection.merge(*parts).candidates("a")
        ['a']
        """
        filesystem = storage_of(filesystem, storage_options)
        check_parts(parts, Collection, "a collection")
        filters, weights = merge_filters(parts, path, key, filesystem)
        hybrid = storage.is_local(path, filesystem) if hybrid is None else hybrid
        collection = cls(filters, weights, hybrid=hybrid, parts=parts[0]._parts)
        inputs = collection._inputs(None, None, sealed=True)
        size = None if budget is None else parse_budget(budget)
        collection._seal(inputs, size, path, key, filesystem)
        return collection

    @classmethod
    def open(
        cls,
        path: FilePath | ObjectFile,
        *,
        budget: int | str | None = None,
        utility: Utility | None = None,
        hybrid: bool | None = None,
        present: Present | None = None,
        parts: int = 1,
        salvage: bool = False,
        offset: int = 0,
        length: int | None = None,
        allocate: bool = True,
        workload: Workload | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, str] | None = None,
        cache: int | str = CACHE,
        key: bytes | None = None,
    ) -> Self:
        """Open a file written by `build` or `save` and load prefixes that fit the budget.

        Everything that is read is checked; damage raises `FormatError`. A file of kind "stacked"
        opens as `Runs`, with this ``workload``.

        With ``salvage``, damaged filters return maybe for every key instead, and are listed in
        `damaged`. ``utility`` defaults to the utilities in the file. ``hybrid`` and ``present`` are
        as in `build`; hybrid mode is the default for a file on this machine, except with
        ``salvage``. ``offset`` and ``length`` say where the collection is in a file with other
        content. With ``allocate=False`` no bits are loaded: all filters return maybe until
        `allocate` is called.

        ``path`` may be a URL, opened with ``storage_options``, or a path in a ``filesystem`` of
        fsspec or pyarrow. Of an object, only the parts that are needed are read; ``cache`` limits
        the bytes of it that are cached on disk.
        """
        filesystem = storage_of(filesystem, storage_options)
        local = storage.is_local(path, filesystem)
        if local and not isinstance(path, ObjectFile) and not offset and has_runs(path):
            runs: Any = Runs.open(path, budget=budget, workload=workload, key=key)
            if utility is not None:
                runs.allocate(budget=runs.budget, utility=utility)
            return runs  # type: ignore[no-any-return]
        if workload is not None:
            raise ValueError("workload must not be given for a file of other kinds than 'stacked'")
        offset = check_int("offset", offset, MAX_BYTES)
        length = None if length is None else check_int("length", length, MAX_BYTES)
        filters, saved = storage.open_filters(
            path,
            key,
            offset=offset,
            length=length,
            filesystem=filesystem,
            cache=parse_budget(cache, "cache"),
        )
        weights, parts = as_weights(saved), _check_parts(parts)
        hybrid = local and not salvage if hybrid is None else hybrid
        collection = cls(filters, weights, hybrid=hybrid, parts=parts, salvage=salvage)
        size = None if budget is None else parse_budget(budget)
        with storage.path_in_errors(path):
            inputs = collection._inputs(utility if allocate else None, present)
            plan = Allocation(np.zeros(len(saved), np.int64))
            if allocate:
                plan = plan_prefixes(filters, inputs, size)
            collection._replace(load_prefixes(filters, inputs, plan.bits_to_load), inputs, plan)
        collection._origin = Origin.of(
            path,
            filters,
            weights,
            filesystem=filesystem,
            cache=cache,
            offset=offset,
            length=length,
        )
        return collection

    @classmethod
    def unloaded(
        cls, filters: _native.Filters, utility: Floats, *, hybrid: bool, parts: int
    ) -> Self:
        """Return a collection of full filters without any bits in memory."""
        collection = cls(filters, as_weights(utility), hybrid=hybrid, parts=parts)
        inputs, plan = collection._inputs(None, None), Allocation(np.zeros(len(filters), np.int64))
        collection._replace(load_prefixes(filters, inputs, plan.bits_to_load), inputs, plan)
        return collection

    def save(
        self,
        path: FilePath,
        *,
        filesystem: Any = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Write the full filters and their utilities to a file or object, atomically."""
        filesystem = storage_of(filesystem, storage_options)
        prefixes = self._prefixes
        storage.save_filters(path, prefixes.filters, prefixes.utility, filesystem)
        self._origin = Origin.of(path, prefixes.filters, prefixes.utility, filesystem=filesystem)

    def write(self, descriptor: int) -> None:
        """Write the same as `save` to an open file, which may get more content after it."""
        descriptor = check_int("descriptor", descriptor, 2**31 - 1)
        prefixes = self._prefixes
        prefixes.filters.write(descriptor, prefixes.utility.astype(np.float64))

    def candidates(self, key: Key, limit: int | None = None, *, part: int = 0) -> list[str]:
        """Return up to ``limit`` sets that may contain the key, the most queried first."""
        prefixes = self._prefixes
        most = storage.read_limit("limit", limit)
        ids = prefixes.candidates(key, most, self.hybrid, self._check_part(part))
        return [prefixes.filters.name(id) for id in ids.tolist()]

    def candidates_many(
        self, keys: Keys, limit: int | None = None, *, part: int = 0
    ) -> tuple[Ints, npt.NDArray[np.uint32]]:
        """Look up many keys: key i may be in the sets ``names[ids[offsets[i]:offsets[i + 1]]]``."""
        most = storage.read_limit("limit", limit)
        return self._prefixes.candidates_many(keys, most, self.hybrid, self._check_part(part))

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
        if kind == "auto" and self._prefixes.sliced:
            kind = "sliced"
        storage.add_sets(filters, sets, kind, fpr, key)
        added = len(filters) - len(self)
        weights = extend_utility(self._utility, utility, added, "set")
        present, accesses = extend_present(self._present, added), self._accesses.extend(added)

        def grow(filters: _native.Filters) -> None:
            inputs = self._own_inputs(filters, weights, present, accesses)
            plan, prefixes = grow_prefixes(
                filters, inputs, self._allocation, self._prefixes, allocate=allocate
            )
            self._replace(prefixes, inputs, plan, accesses)

        try:
            grow(filters)
        except BudgetError:
            if filters.size_in_bytes() <= filters.size_in_bytes(sealed=True):
                raise
            # The directory of new sets is in memory only until they are written to a file.
            grow(storage.seal_filters(None, filters, weights, key))

    def drop(self, sets: str | Iterable[str] | npt.NDArray[np.integer[Any]]) -> None:
        """Remove sets by name or number. The others are renumbered and keep their prefixes."""
        ids = self.names.ids([sets] if isinstance(sets, str) else sets, "sets")
        plan = self._allocation._replace(kept=np.delete(self._prefixes.kept, ids))
        present = None if self._present is None else np.delete(self._present, ids)
        filters, accesses = self._filters.without(ids), self._accesses.without(ids)
        inputs = self._own_inputs(filters, np.delete(self._utility, ids), present, accesses)
        before = np.delete(np.arange(len(self), dtype=np.uint32), ids)
        prefixes = load_prefixes(filters, inputs, plan.bits_to_load, self._prefixes, before)
        self._replace(prefixes, inputs, plan, accesses)

    def allocate(
        self,
        *,
        budget: Budgets | None = None,
        utility: Utility | None = None,
        present: Present | None = None,
        method: planning.Method = "optimal",
    ) -> None:
        """Load prefixes for another budget (None: the full filters) or other utilities.

        With parts, ``budget`` may be a list of one budget per part.

        Reads only the file, and does not change it. ``utility="accesses"`` uses the accesses that
        `record` counted; in hybrid mode, also the share of them that found the key, if that was
        recorded. ``present`` is as in `build`, or "accesses". ``method`` may name a baseline, see
        `tamis.plan_collection`.

        >>> c = Collection.build({"a": range(9000), "b": range(9000, 18_000)})
        >>> full = c.expected_fpr
        >>> c.allocate(budget="15kB", utility={"a": 1, "b": 99})
        >>> bool(full < 1e-4 < c.expected_fpr < 0.01), bool(c.kept[1] > c.kept[0])
        (True, True)
        """
        size = read_budget(budget, self._parts)
        inputs = self._inputs(utility, present)
        plan = plan_prefixes(self._filters, inputs, size, method)
        prefixes = load_prefixes(self._filters, inputs, plan.bits_to_load, self._prefixes)
        self._replace(prefixes, inputs, plan, self._accesses)

    def record(
        self,
        visited: Iterable[str] | npt.NDArray[np.integer[Any]],
        weight: float = 1.0,
        *,
        found: Iterable[str] | npt.NDArray[np.integer[Any]] | None = None,
    ) -> None:
        """Count accesses of sets, given by name or number.

        ``found`` lists the ones that contained the key. Earlier accesses decay: after
        ``half_life`` more accesses they count half.

        >>> c = Collection.build({"a": [1], "b": [2]})
        >>> c.record(c.candidates(1)); c.record([1, 1])
        >>> c.accesses.round(3).tolist()
        [1.0, 2.0]
        """
        weight = check_number("weight", weight, "a number from 0 on", least=0)
        ids = self.names.ids(visited, "visited")
        with_key = None if found is None else self.names.ids(found, "found")
        if with_key and (stray := set(with_key).difference(ids)):
            raise ValueError(f"found must be among visited; {self.names[min(stray)]!r} is not")
        self._accesses.record(ids, weight, self.half_life, len(self), with_key)

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
    def present(self) -> Floats | None:
        """The share of present keys among the queries of each set, if prefixes were planned by it.

        It is not saved.
        """
        return None if self._present is None else self._present.astype(np.float64)

    @property
    def budget(self) -> int | None:
        """The memory budget in bytes, of all parts, or None."""
        budget = self._allocation.budget
        return sum(budget) if isinstance(budget, tuple) else budget

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
        names = ("empty", "sliced") if self._prefixes.sliced else _KINDS
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
    def expected_reads(self) -> float:
        """Expected fraction of queries that read from the file, in hybrid mode, by utility.

        A query for a key of the set reads unless the whole filter is in memory; `present` is the
        share of these queries.
        """
        if not self.hybrid:
            return 0.0
        present = np.zeros(len(self)) if self._present is None else self._present
        curve = Reads(rate_curve(self._filters.sizes()), np.asarray(present, np.float64))
        return planning.weighted_rate(self.utility, curve.rate(self._prefixes.kept))

    @property
    def size_in_bytes(self) -> int:
        """Memory of the prefixes, sizes and weights."""
        return self._overhead + (self.size_in_bits + 7) // 8

    @property
    def size_in_bits(self) -> int:
        """Bits of the prefixes alone."""
        return self._prefixes.bits

    @property
    def tail_reads(self) -> int:
        """Reads of the rest of a filter, in hybrid mode, since the last allocation."""
        return sum(each.tail_reads for each in self._prefixes.loaded)

    @property
    def seed(self) -> int | None:
        """The seed of the hash, or None if a secret key is used."""
        return self._filters.seed

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot bits per key against utility; needs ``pip install tamis[plot]``."""
        from tamis.plotting import draw_collection

        drawn: Axes = draw_collection(self, ax)
        return drawn

    def __len__(self) -> int:
        return len(self._filters)

    def __repr__(self) -> str:
        return (
            f"<tamis.Collection: {len(self):,} filters of {int(self.counts.sum()):,} keys, "
            f"{self.size_in_bytes:,} bytes in memory, "
            f"{self._overhead / max(len(self), 1):.1f} per filter for overhead>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_collection(self)

    def _repr_html_(self) -> str:
        facts = {
            "filters": f"{len(self):,}",
            "keys": f"{int(self.counts.sum()):,}",
            "in memory": format_size(8 * self.size_in_bytes),
            "expected false-positive rate": format_rate(self.expected_fpr),
        }
        return facts_html("tamis.Collection", facts)

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        vars(twin).update(vars(self))
        twin._accesses = copy(self._accesses)
        return twin

    @property
    def _overhead(self) -> int:
        prefixes = self._prefixes
        return prefixes.overhead + _own_bytes(prefixes.filters, self._present, self._accesses)

    def _check_part(self, part: int) -> int:
        return check_int("part", part, self._parts - 1)

    def _inputs(
        self, utility: Utility | None, present: Present | None, *, sealed: bool = False
    ) -> AllocationInputs:
        """Return the inputs of an allocation for these utilities and shares; None is as before."""
        if present is not None and not self.hybrid:
            raise ValueError("present must only be given in hybrid mode; pass hybrid=True")
        shares = read_present(present, self.names, self._accesses)
        if shares is None and isinstance(utility, str):
            shares = self._accesses.present()
        shares = self._present if shares is None else shares
        if isinstance(utility, str):
            if utility != "accesses":
                raise ValueError(f"utility must be numbers or 'accesses', not {utility!r}")
            accesses = self.accesses
            weights = as_weights(with_unseen(accesses, max(float(accesses.sum()), 1.0)))
        else:
            weights = read_utility(utility, self.names, self._utility)
        return self._own_inputs(self._filters, weights, shares, self._accesses, sealed=sealed)

    def _own_inputs(
        self,
        filters: _native.Filters,
        weights: Weights,
        present: Weights | None,
        accesses: Accesses,
        *,
        sealed: bool = False,
    ) -> AllocationInputs:
        own = _own_bytes(filters, present, accesses, sealed=sealed)
        return AllocationInputs(
            weights, present if self.hybrid else None, own, self._parts, self._salvage
        )

    def _seal(
        self,
        inputs: AllocationInputs,
        budget: int | None,
        path: FilePath | None,
        key: bytes | None,
        filesystem: Any,
    ) -> None:
        """Write new filters to a file and load prefixes from it; a bad budget writes nothing."""
        plan = plan_prefixes(self._filters, inputs, budget)
        filters = storage.seal_filters(path, self._filters, inputs.weights, key, filesystem)
        self._replace(load_prefixes(filters, inputs, plan.bits_to_load), inputs, plan)
        self._origin = Origin.of(path, filters, inputs.weights, filesystem=filesystem)

    def _replace(
        self,
        prefixes: Prefixes,
        inputs: AllocationInputs,
        plan: Allocation,
        accesses: Accesses | None = None,
    ) -> None:
        """Replace everything; nothing here can fail."""
        counts = Accesses() if accesses is None else accesses
        allocation = plan._replace(kept=None)  # the prefixes have it
        self._prefixes, self._filters = prefixes, prefixes.filters
        self._utility, self._present = inputs.weights, inputs.present
        self._accesses, self._allocation = counts, allocation


def _rates(prefixes: Prefixes) -> Floats:
    return rate_curve(prefixes.filters.sizes()).rate(prefixes.kept)


def _check_parts(parts: int) -> int:
    return check_int("parts", parts, MAX_PARTS, least=1)


def _own_bytes(
    filters: _native.Filters, present: Weights | None, accesses: Accesses, *, sealed: bool = False
) -> int:
    """Memory of the directory, utilities, shares of present keys, and accesses."""
    arrays = 4 * len(filters) * (1 if present is None else 2)
    return filters.size_in_bytes(sealed=sealed) + arrays + accesses.size_in_bytes
