"""`tamis.Collection`: the filters of many sets under one memory budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._checks import check_int, check_number, check_parts
from tamis._objects import storage_of
from tamis._ranges import CACHE, ObjectFile
from tamis._types import FilePath, Key, Keys
from tamis.collection import build, storage
from tamis.collection.allocation_inputs import (
    HALF_LIFE,
    Accesses,
    AllocationInputs,
    Present,
    Utility,
    as_weights,
)
from tamis.collection.description import Description
from tamis.collection.memory import Memory
from tamis.collection.origin import Origin, reduce_collection
from tamis.collection.prefix_allocation import Budgets, read_budget
from tamis.collection.runs import NamedKeys, Runs
from tamis.collection.storage import Sets
from tamis.planning.collection import allocation as planning
from tamis.planning.collection.curves import Floats, Ints

if TYPE_CHECKING:
    from tamis.workload import Workload


Kind: TypeAlias = planning.PrefixKind | Literal["auto", "sliced"]
"""The kind of the filters: one that can be cut, bit-sliced filters, or the best for the budget."""


class Collection(Description):
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
        memory: Memory,
        *,
        hybrid: bool,
        origin: Origin | None = None,
        chosen: str | None = None,
    ) -> None:
        self._memory, self._origin = memory, origin
        self.chosen = chosen
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
        filters. ``fpr`` is the false-positive rate of the full filters. They are saved to ``path``:
        a file, a URL such as "s3://bucket/key", opened with ``storage_options``, or a path in a
        ``filesystem`` of fsspec or pyarrow (default: a temporary file). ``parts`` consecutive sets
        belong together, such as the columns of a row group: set i is in part i modulo ``parts``,
        and a query searches one part.

        ``kind="auto"`` chooses ribbons or bit-sliced filters (kind "sliced") by their rates within
        the budget and the time of a lookup. ``miss_cost`` is the cost of a false positive, in
        seconds or as "1ms". `chosen` says why.

        In ``hybrid`` mode (default: with a local ``path``), if a prefix returns maybe, the rest of
        the filter is checked in the file. A prefix returns maybe for every key of its set, so the
        allocation also depends on ``present``, the share of present keys among the queries of each
        set, and minimizes reads.

        ``kind="stacked"`` is for few large sets that get the same queries, such as the runs of an
        LSM-tree, and returns `Runs`; ``workload`` has the known absent keys.

        >>> sets = ((f"day {i}", range(1000 * i, 1000 * i + 1000)) for i in range(30))
        >>> c = Collection.build(sets, budget="20kB", utility=np.arange(30))
        >>> c.candidates(29_500, limit=1), c.size_in_bytes <= 20_000
        (['day 29'], True)
        """
        filesystem = storage_of(filesystem, storage_options)
        if kind == "stacked":
            return build.build_runs(
                sets, budget=budget, workload=workload, utility=utility, fpr=fpr, path=path,
                filesystem=filesystem, hybrid=hybrid, parts=parts, present=present, seed=seed,
                key=key,
            )  # fmt: skip
        if workload is not None:
            raise ValueError(f"workload needs kind 'stacked', not {kind!r}")
        hybrid = storage.is_local(path, filesystem) if hybrid is None else hybrid
        memory, chosen = build.build_memory(
            sets, utility, present, budget=budget, kind=kind, fpr=fpr, path=path,
            filesystem=filesystem, hybrid=hybrid, miss_cost=miss_cost, parts=parts, seed=seed,
            key=key,
        )  # fmt: skip
        origin = Origin.of(path, memory.filters, memory.inputs.weights, filesystem=filesystem)
        return cls(memory, hybrid=hybrid, origin=origin, chosen=chosen)

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
        """Merge collections of different sets, for example built by several processes.

        The full filters are copied, and sets are sorted by name, so that the result does not depend
        on how they were divided. Names must differ, and seeds or secret keys agree; ``key`` is the
        secret key. Utilities are kept. See `build` for the other arguments.

        >>> parts = [Collection.build({name: [name]}) for name in "ba"]
        >>> Collection.merge(*parts).candidates("a")
        ['a']
        """
        filesystem = storage_of(filesystem, storage_options)
        check_parts(parts, Collection, "a collection")
        memory = build.merge_memory(parts, budget=budget, path=path, filesystem=filesystem, key=key)
        hybrid = storage.is_local(path, filesystem) if hybrid is None else hybrid
        origin = Origin.of(path, memory.filters, memory.inputs.weights, filesystem=filesystem)
        return cls(memory, hybrid=hybrid, origin=origin)

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

        Everything that is read is checked; damage raises `FormatError`. With ``salvage``, damaged
        filters return maybe for every key instead, and are listed in `damaged`. A file of kind
        "stacked" opens as `Runs`, with this ``workload``.

        ``utility`` defaults to the utilities in the file. ``hybrid`` and ``present`` are as in
        `build`; hybrid mode is the default for a file on this machine, except with ``salvage``.
        ``offset`` and ``length`` say where the collection is in a file with other content. With
        ``allocate=False`` no bits are loaded: all filters return maybe until `allocate` is called.

        ``path`` may be a URL, opened with ``storage_options``, or a path in a ``filesystem`` of
        fsspec or pyarrow. Only the parts of an object that are needed are read; ``cache`` limits
        how many of its bytes are cached on disk.
        """
        filesystem = storage_of(filesystem, storage_options)
        local = storage.is_local(path, filesystem)
        if local and not offset:
            runs: Any = build.open_runs(
                path, budget=budget, utility=utility, workload=workload, key=key
            )
            if runs is not None:
                return runs  # type: ignore[no-any-return]
        if workload is not None:
            raise ValueError("workload must only be given for a file of kind 'stacked'")
        hybrid = local and not salvage if hybrid is None else hybrid
        memory, origin = build.open_memory(
            path, utility, present, budget=budget, hybrid=hybrid, parts=parts, salvage=salvage,
            allocate=allocate, offset=offset, length=length, filesystem=filesystem, cache=cache,
            key=key,
        )  # fmt: skip
        return cls(memory, hybrid=hybrid, origin=origin)

    @classmethod
    def unloaded(
        cls, filters: _native.Filters, utility: Floats, *, hybrid: bool, parts: int
    ) -> Self:
        """Return a collection of full filters without any bits in memory."""
        inputs = AllocationInputs(as_weights(utility), Accesses(), parts=parts)
        return cls(Memory.empty(filters, inputs), hybrid=hybrid)

    def save(
        self,
        path: FilePath,
        *,
        filesystem: Any = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Write the full filters and their utilities to a file or object, atomically."""
        filesystem = storage_of(filesystem, storage_options)
        filters, weights = self._memory.filters, self._memory.inputs.weights
        storage.save_filters(path, filters, weights, filesystem)
        self._origin = Origin.of(path, filters, weights, filesystem=filesystem)

    def write(self, descriptor: int) -> None:
        """Write the content of `save` to an open file, at its position."""
        descriptor = check_int("descriptor", descriptor, 2**31 - 1)
        memory = self._memory
        memory.filters.write(descriptor, memory.inputs.utility)

    def candidates(self, key: Key, limit: int | None = None, *, part: int = 0) -> list[str]:
        """Return up to ``limit`` sets that may contain the key, the most queried first."""
        memory, count = self._memory, storage.read_limit("limit", limit)
        part = check_int("part", part, memory.inputs.parts - 1)
        ids = memory.prefixes.candidates(key, count, self.hybrid, part)
        return [memory.filters.name(id) for id in ids.tolist()]

    def candidates_many(
        self, keys: Keys, limit: int | None = None, *, part: int = 0
    ) -> tuple[Ints, npt.NDArray[np.uint32]]:
        """Look up many keys: key i may be in the sets ``names[ids[offsets[i]:offsets[i + 1]]]``."""
        memory, count = self._memory, storage.read_limit("limit", limit)
        part = check_int("part", part, memory.inputs.parts - 1)
        return memory.prefixes.candidates_many(keys, count, self.hybrid, part)

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
        memory = self._memory
        # A copy: a failure must leave this collection as it was.
        filters = memory.filters.without([])
        if kind == "auto" and memory.prefixes.sliced:
            kind = "sliced"
        storage.add_sets(filters, sets, kind, fpr, key)
        self._memory = memory.extended(
            filters, utility, hybrid=self.hybrid, allocate=allocate, key=key
        )

    def drop(self, sets: str | Iterable[str] | npt.NDArray[np.integer[Any]]) -> None:
        """Remove sets by name or number. The others are renumbered and keep their prefixes."""
        ids = self.names.ids([sets] if isinstance(sets, str) else sets, "sets")
        self._memory = self._memory.without(ids, hybrid=self.hybrid)

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
        memory = self._memory
        size = read_budget(budget, memory.inputs.parts)
        inputs = memory.inputs.read(utility, present, self.names, hybrid=self.hybrid)
        self._memory = memory.allocated(inputs, size, method)

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
        weight = check_number("weight", weight, "a number of at least 0", minimum=0)
        ids = self.names.ids(visited, "visited")
        with_key = None if found is None else self.names.ids(found, "found")
        if with_key and (stray := set(with_key).difference(ids)):
            raise ValueError(f"found must be among visited; {self.names[min(stray)]!r} is not")
        accesses = self._memory.inputs.accesses
        accesses.record(ids, weight, self.half_life, len(self), with_key)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_collection(self)

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        vars(twin).update(vars(self))
        inputs = self._memory.inputs
        inputs = inputs._replace(accesses=copy(inputs.accesses))
        twin._memory = self._memory._replace(inputs=inputs)
        return twin
