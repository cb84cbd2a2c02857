"""`tamis.Collection`: many filters, one budget of memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, cast, overload

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._files import save_whole
from tamis._types import FilePath, Key, Keys
from tamis.errors import FormatError
from tamis.pictures import figure_axes
from tamis.planning import ribbon
from tamis.planning.collection import allocation as planning
from tamis.planning.collection.curves import Floats, Ints, Mixed, Ribbon, Segmented, Truncated

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Sets: TypeAlias = Mapping[str, Keys] | Iterable[tuple[str, Keys | _native.Full]]
"""Sets by name, all at once or one after the other; or their full filters, see `full_filter`."""

Utility: TypeAlias = Mapping[str, float] | npt.ArrayLike | Literal["accesses"]
"""How often each filter is asked: by name, in the order of the filters, or as recorded."""

UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
"""What a budget may be given in: powers of ten."""

HALF_LIFE = 100_000
"""Accesses after which an earlier one counts half."""

UNSEEN = 0.01
"""The share of all accesses that is spread evenly, so that what was not asked yet has some bits."""

_WEIGHTS = 16  # bytes of a filter's utility and accesses
_PART = 32  # bytes behind the prefixes of a part, and of its last byte
_NATIVE = ("empty", *planning.KINDS)


class Collection:
    """Filters of many sets, cut to what one budget of memory allows and how often each is asked.

    The full filters are in a file; of each, a prefix is in memory, which is a filter itself. The
    prefixes are as long as `tamis.plan_collection` says, and change with `allocate` without a look
    at the keys. `candidates` names the sets that may hold a key, the most asked first.

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
        """Build the full filters of sets by name, and keep what the budget allows.

        ``sets`` may be an iterator: one set at a time is in memory. ``budget`` is in bytes, or as
        "64MB" (10⁶ bytes), and counts everything that is kept per filter; without one, all bits
        are. ``fpr`` is the rate of the full filters. They go to ``path``, or to a temporary file.
        With ``hybrid``, a filter that says maybe is asked again with the rest of it, from the file.
        ``parts`` sets that follow each other belong together (the columns of one table, say): a
        question is for one part, and set i is of part i modulo ``parts``.

        >>> sets = ((f"day {i}", range(1000 * i, 1000 * i + 1000)) for i in range(30))
        >>> c = Collection.build(sets, budget="20kB", utility=np.arange(30))
        >>> c.candidates(29_500, limit=1), c.size_in_bytes <= 20_000
        (['day 29'], True)
        """
        folder = None if path is None else Path(os.path.realpath(os.fsdecode(path))).parent
        filters = spilled(folder, lambda spill: _native.Filters(spill, seed, key))
        collection = cls(filters, np.zeros(0), hybrid=hybrid, parts=_parts(parts))
        collection._add(sets, kind, fpr, key)
        if path is not None:
            collection._utility = collection._weights(utility)
            collection.save(path)
            collection._filters, _ = opened(path, key)
        collection.allocate(budget=budget, utility=utility)
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
        """Open a file that `build` or `save` wrote, and read what the budget allows of each filter.

        What is read is checked, piece by piece; `FormatError` if it is damaged. With ``salvage``,
        filters whose bits are damaged say maybe to all instead, and are listed in ``damaged``.
        Without ``utility`` filters have that of the file. A collection that is followed by other
        bytes has a ``length``. Without ``allocate`` no bit is kept until `allocate` is called.
        """
        filters, saved = opened(path, key, length=length)
        collection = cls(filters, saved, hybrid=hybrid, parts=_parts(parts), salvage=salvage)
        if not allocate:
            collection._keep(np.zeros(len(saved), np.int64))
            return collection
        try:
            collection.allocate(budget=budget, utility=utility)
        except FormatError as error:
            raise FormatError(f"{os.fsdecode(path)}: {error}") from None
        return collection

    def save(self, path: FilePath) -> None:
        """Write all full filters and their utilities to a file: whole, or not at all."""
        save_whole(path, self.write)

    def write(self, descriptor: int) -> None:
        """Write what `save` does to a file that is open, for who has more to put into it."""
        self._filters.write(descriptor, self._utility)

    def candidates(self, key: Key, limit: int | None = None, *, part: int = 0) -> list[str]:
        """Name the sets that may hold the key, the most asked first; at most ``limit`` of them."""
        ids = self._residents[part].candidates(key, at_most("limit", limit), self.hybrid)
        return [self._filters.name(id) for id in ids.tolist()]

    def candidates_many(
        self, keys: Keys, limit: int | None = None, *, part: int = 0
    ) -> tuple[Ints, npt.NDArray[np.uint32]]:
        """Ask many keys: the i-th may be in the sets ``names[ids[offsets[i]:offsets[i + 1]]]``."""
        return self._residents[part].candidates_many(keys, at_most("limit", limit), self.hybrid)

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
        """Add a set and allocate anew; `save` writes it to a file. See `extend` for many."""
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
        """Add sets and allocate anew; ``utility`` is one number for each, 1 without it.

        A collection with a secret key takes it here too, to hash the keys of the new sets. Without
        ``allocate`` no bit of the new sets is kept: they say maybe until `allocate` is called.
        """
        before = len(self)
        self._add(sets, kind, fpr, key)
        if not allocate:
            self._keep(np.concatenate([self._kept, np.zeros(len(self) - before, np.int64)]))
        elif utility is not None:
            added = np.asarray(utility, np.float64)
            if added.shape != (len(self) - before,):
                raise ValueError(f"utility is of shape {added.shape}; one number per set is wanted")
            weights = np.concatenate([self._utility[:before], added])
            self.allocate(budget=self._budget, utility=weights, method=self._method)
        else:
            self.allocate(budget=self._budget, method=self._method)

    def drop(self, sets: str | Iterable[str] | npt.NDArray[np.integer[Any]]) -> None:
        """Remove sets, by name or number; the rest moves up and keeps its bits until `allocate`."""
        ids = self._ids([sets] if isinstance(sets, str) else sets, "sets")
        self._filters = self._filters.without(ids)
        self._utility = np.delete(self._utility, ids)
        self._accesses = np.delete(self._accesses, ids)
        self._keep(np.delete(self._kept, ids))

    def allocate(
        self,
        *,
        budget: int | str | None = None,
        utility: Utility | None = None,
        method: planning.Method = "optimal",
    ) -> None:
        """Keep other prefixes: for another budget (None: all bits), with other utilities.

        Nothing but the file is read, and nothing in it changes. ``utility="accesses"`` takes what
        `record` has counted. ``method`` names a baseline, see `tamis.plan_collection`.

        >>> c = Collection.build({"a": range(9000), "b": range(9000, 18_000)})
        >>> full = c.expected_fpr
        >>> c.allocate(budget="15kB", utility={"a": 1, "b": 99})
        >>> bool(full < 1e-4 < c.expected_fpr < 0.01), bool(c.kept[1] > c.kept[0])
        (True, True)
        """
        weights = self._utility if utility is None else self._weights(utility)
        size = None if budget is None else parse_budget(budget)
        curve = self._curve()
        if size is None:
            kept = curve.bits
        else:
            least = self._overhead
            if size < least:
                raise ValueError(
                    f"budget is {size} bytes; names and sizes of {len(self)} filters take {least}"
                )
            kept = planning.allocate(method, curve, weights, 8 * (size - least))
        self._utility, self._budget, self._method = weights, size, method
        self._keep(kept)

    def record(
        self, visited: Iterable[str] | npt.NDArray[np.integer[Any]], weight: float = 1.0
    ) -> None:
        """Count accesses of sets, by name or number; older ones count less, see ``half_life``.

        >>> c = Collection.build({"a": [1], "b": [2]})
        >>> c.record(c.candidates(1)); c.record([1, 1])
        >>> c.accesses.round(3).tolist()
        [1.0, 2.0]
        """
        ids = self._ids(visited, "visited")
        self._accesses *= 0.5 ** (len(ids) / self.half_life)
        np.add.at(self._accesses, ids, weight)

    @property
    def accesses(self) -> Floats:
        """Accesses recorded per filter, older ones counting less."""
        return self._accesses.copy()

    @property
    def names(self) -> Names:
        """The names by number; an array of numbers gives an array of names."""
        return Names(self._filters)

    @property
    def utility(self) -> Floats:
        """How often each filter is asked, relative to the others."""
        return self._utility.copy()

    @property
    def budget(self) -> int | None:
        """The budget in bytes, None where there is none."""
        return self._budget

    @property
    def least_budget(self) -> int:
        """The smallest budget in bytes: what names and sizes take without a bit of the filters."""
        return self._overhead

    @property
    def kept(self) -> Ints:
        """How many bits of each filter are in memory."""
        return self._kept.copy()

    @property
    def damaged(self) -> Ints:
        """The numbers of the filters that say maybe to all because their bits are damaged."""
        return self._damaged.copy()

    @property
    def full(self) -> Ints:
        """How many bits each full filter has."""
        return self._curve().bits

    @property
    def counts(self) -> Ints:
        """How many keys each set has."""
        return self._filters.tables()[6]

    @property
    def kinds(self) -> list[str]:
        """The kind of each filter; empty for a set without keys."""
        return [_NATIVE[kind] for kind in self._filters.tables()[0].tolist()]

    @property
    def fprs(self) -> Floats:
        """The rate that each filter is expected to have with the bits that are kept."""
        return self._curve().rate(self._kept)

    @property
    def expected_fpr(self) -> float:
        """The expected rate, weighted by utility.

        In hybrid mode, the share of questions of absent keys that read from the file.
        """
        total = float(self._utility.sum())
        return float(self._utility @ self.fprs) / total if total > 0 else 0.0

    @property
    def size_in_bytes(self) -> int:
        """What is in memory: the prefixes, and all that is kept per filter, names included."""
        return self._overhead + (self.size_in_bits + 7) // 8

    @property
    def size_in_bits(self) -> int:
        """The bits of the prefixes alone."""
        return sum(each.bits for each in self._residents)

    @property
    def tail_reads(self) -> int:
        """How often the rest of a filter was read, in hybrid mode, since the last allocation."""
        return sum(each.tail_reads for each in self._residents)

    @property
    def seed(self) -> int | None:
        """The seed of the hash, or None where a secret key took its place."""
        return self._filters.seed

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot bits kept per key against utility; needs ``pip install tamis[plot]``."""
        ax = figure_axes(6.4, 4.8) if ax is None else ax
        counts = np.maximum(self.counts, 1)
        ax.scatter(self._utility, self.full / counts, s=4, color="#999999", label="in the file")
        ax.scatter(self._utility, self._kept / counts, s=6, label="in memory")
        scale = "log" if len(self) and self._utility.min() > 0 else "symlog"
        ax.set(xlabel="utility: how often a set is asked", ylabel="bits per key", xscale=scale)
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
        return self._filters.size_in_bytes() + _WEIGHTS * len(self) + _PART * (self._parts - 1)

    def _id(self, name: str) -> int:
        id = self._filters.find(name)
        if id is None:
            raise KeyError(name)
        return id

    def _ids(self, sets: Iterable[str] | npt.NDArray[np.integer[Any]], argument: str) -> list[int]:
        ids = [self._id(each) if isinstance(each, str) else int(each) for each in sets]
        if ids and not 0 <= min(ids) <= max(ids) < len(self):
            raise ValueError(f"{argument} has numbers outside 0 to {len(self) - 1}")
        return ids

    def _add(self, sets: Sets, kind: str, fpr: float, key: bytes | None) -> None:
        if kind not in ("auto", *planning.KINDS):
            raise ValueError(f"kind is {kind!r}; auto, {', '.join(planning.KINDS)} are possible")
        known = set(self.names)
        seed = self.seed or 0
        pairs = sets.items() if isinstance(sets, Mapping) else sets
        for name, keys in cast("Iterable[tuple[str, Keys | _native.Full]]", pairs):
            if not isinstance(name, str):
                kind_of = type(name).__name__
                raise TypeError(f"name is {name!r} (of type {kind_of}); a str is wanted")
            if name in known:
                raise ValueError(f"name is {name!r}; the collection has a set of that name")
            known.add(name)
            if not isinstance(keys, _native.Full):
                keys = full_filter(_native.Distinct(keys, seed, key), kind, fpr)
            self._filters.add(name, keys)
        grown = len(self._filters) - len(self._utility)
        self._utility = np.concatenate([self._utility, np.ones(grown)])
        self._accesses = np.concatenate([self._accesses, np.zeros(grown)])

    def _weights(self, utility: Utility | None) -> Floats:
        if isinstance(utility, str):
            if utility != "accesses":
                raise ValueError(f"utility is {utility!r}; numbers, or 'accesses', are wanted")
            counted = self.accesses
            even = UNSEEN * max(float(counted.sum()), 1.0) / max(len(counted), 1)
            return counted + even
        return weights(utility, self.names, self._utility)

    def _curve(self) -> Mixed:
        """How the rate of each filter falls with the bits that are kept."""
        kinds, hashes, bits, codes, slots, widths, counts = self._filters.tables()
        probes = hashes.astype(np.int64)
        which = np.maximum(kinds, 1) - 1
        return Mixed.of(
            which.astype(np.uint8),
            [
                Segmented(bits, probes, counts),
                Ribbon(slots, probes, widths, codes, counts),
                Truncated(bits, probes, counts),
            ],
        )

    def _keep(self, kept: Ints) -> None:
        order = np.argsort(-self._utility, kind="stable").astype(np.uint32)
        kept, self._damaged = kept.copy(), np.zeros(0, np.int64)
        try:
            self._residents = self._resident(order, kept)
        except FormatError:
            if not self._salvage:
                raise
            self._damaged = np.sort(self._unreadable(order, kept))
            kept[self._damaged] = 0
            self._residents = self._resident(order, kept)
        self._kept = kept

    def _resident(self, order: npt.NDArray[np.uint32], kept: Ints) -> list[_native.Resident]:
        parts = (order[order % self._parts == part] for part in range(self._parts))
        return [self._filters.resident(own, kept[own].astype(np.uint64)) for own in parts]

    def _unreadable(self, order: npt.NDArray[np.uint32], kept: Ints) -> Ints:
        """Find the filters whose kept bits are damaged, by halving."""
        try:
            self._filters.resident(order, kept[order].astype(np.uint64))
        except FormatError:
            if len(order) == 1:
                return order.astype(np.int64)
            halves = np.array_split(order, 2)
            return np.concatenate([self._unreadable(half, kept) for half in halves])
        return np.zeros(0, np.int64)


class Names(Sequence[str]):
    """The names of a collection's sets, by number or by an array of numbers."""

    def __init__(self, filters: _native.Filters) -> None:
        self._filters = filters

    def __len__(self) -> int:
        return len(self._filters)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice | npt.ArrayLike) -> Any: ...
    def __getitem__(self, index: Any) -> Any:
        """Return a name, or an array of names."""
        ids = np.arange(len(self))[index]
        if np.ndim(ids) == 0:
            return self._filters.name(int(ids))
        names = np.empty(len(ids), object)
        names[:] = [self._filters.name(id) for id in ids.tolist()]
        return names

    def __iter__(self) -> Iterator[str]:
        return (self._filters.name(id) for id in range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self):,} names>"


def parse_budget(budget: int | str) -> int:
    """Read a budget: bytes, or a number with its unit, in powers of ten.

    >>> parse_budget("64MB"), parse_budget(1000)
    (64000000, 1000)
    """
    wrong = f"budget is {budget!r}; bytes, or a number with one of {', '.join(UNITS)} are wanted"
    if isinstance(budget, str):
        text = budget.strip()
        for unit in sorted(UNITS, key=len, reverse=True):
            if text.endswith(unit):
                try:
                    size = float(text[: -len(unit)]) * UNITS[unit]
                except ValueError:
                    break
                if 0 <= size < 2**60:
                    return int(size)
                break
        raise ValueError(wrong)
    if isinstance(budget, bool) or not isinstance(budget, int | np.integer):
        raise TypeError(wrong)
    if budget < 0:
        raise ValueError(wrong)
    return int(budget)


def at_most(name: str, limit: int | None) -> int:
    """Read how many are wanted: a number from 0 on, or None for all."""
    if limit is None:
        return 2**62
    if limit < 0:
        raise ValueError(f"{name} is {limit}; a number from 0 on, or None, is wanted")
    return limit


def weights(
    utility: Mapping[str, float] | npt.ArrayLike | None, names: Names, otherwise: Floats
) -> Floats:
    """Read utilities, by name or in the order of the names; without any, take the others."""
    if utility is None:
        return otherwise
    if isinstance(utility, Mapping):
        missing = next((name for name in names if name not in utility), None)
        if missing is not None:
            raise ValueError(f"utility has no number for {missing!r}")
        utility = [utility[name] for name in names]
    return planning.utilities(utility, len(names))


def full_filter(distinct: _native.Distinct, kind: str, fpr: float) -> _native.Full:
    """Build the full filter of a set, for a collection that is built on several threads."""
    return _native.Full(_size(len(distinct), kind, fpr), distinct)


def _parts(parts: int) -> int:
    if not isinstance(parts, int | np.integer) or parts < 1:
        raise ValueError(f"parts is {parts!r}; a number from 1 on is wanted")
    return int(parts)


def _size(keys: int, kind: str, fpr: float) -> tuple[str, int, int, Sequence[int]]:
    """Size the full filter of a set: kind, hashes or columns, bits of Bloom, levels of ribbon."""
    if keys == 0:
        return "empty", 0, 0, ()
    counts = np.array([keys], np.int64)
    size = ribbon.size(keys, fpr=fpr)
    bits, hashes = (int(each[0]) for each in planning.bloom_size(counts, fpr))
    bits = max(bits, hashes)
    if kind == "auto":
        kind = "ribbon" if size.bits <= bits else "segmented"
    if kind == "ribbon":
        return kind, size.columns, 0, size.levels
    return kind, hashes, bits, ()


def spilled(folder: Path | None, make: Any) -> Any:
    """Make what keeps a temporary file, which is gone when it and this process let go of it."""
    with tempfile.TemporaryFile(prefix=".tamis-", dir=folder) as file:
        return make(file.fileno())


def opened(
    path: FilePath, key: bytes | None, *, texts: bool = False, length: int | None = None
) -> tuple[_native.Filters, Floats]:
    """Open the file of a collection, or of a text index: its full filters and utilities."""
    name = os.fsdecode(path)
    try:
        found = spilled(None, lambda spill: _native.Filters.open(name, spill, key, texts, length))
    except FormatError as error:
        raise FormatError(f"{name}: {error}") from None
    return cast("tuple[_native.Filters, Floats]", found)
