"""`tamis.collection.Runs`: the filters of an LSM-tree's runs, for one budget and one workload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._checks import check_int, check_iterable, check_workload, parse_budget, shown
from tamis._files import open_regular, save_atomically
from tamis._types import FilePath, Key, Keys
from tamis.collection.allocation_inputs import Utility, as_weights
from tamis.collection.run_filters import (
    Run,
    RunsContent,
    check_content,
    hash_runs,
    plan_filters,
    read_runs,
    write_runs,
)
from tamis.collection.storage import path_in_errors, read_limit, unknown_name
from tamis.filters.stacked import Stacked
from tamis.planning.collection.allocation import utilities, weighted_rate
from tamis.planning.collection.curves import Floats, Ints

if TYPE_CHECKING:
    from tamis.workload import Workload

NamedKeys: TypeAlias = Mapping[str, Keys] | Iterable[tuple[str, Keys]]
"""Keys by name, as a mapping or pairs."""


class Runs:
    """The filters of sorted runs (of an LSM-tree), for one budget and one workload.

    Each run has its own exact `Stacked` filter, which rejects the absent keys that the workload
    lists. The budget is divided so that the expected number of wasted reads per lookup is lowest: a
    smaller run gets more bits per key. `append` and `drop` plan again. `candidates` returns the
    runs that may contain a key, the newest first. See `Collection.build` with ``kind="stacked"``.

    >>> import tamis
    >>> asked = tamis.Workload.from_queries(np.arange(-5000, 0).repeat(3))
    >>> runs = {"old": range(100_000), "new": range(99_000, 101_000)}
    >>> c = tamis.Collection.build(runs, budget="100kB", workload=asked, kind="stacked")
    >>> c.candidates(99_500), c.candidates(5), c.candidates(-7)
    (['new', 'old'], ['old'], [])
    >>> bits = c.kept / c.counts
    >>> bool(bits[1] > bits[0] + 5), c.size_in_bytes <= 100_000
    (True, True)

    References: Deeds, Hentschel, Idreos 2020, 6.2; Dayan, Athanassoulis, Idreos 2017.
    """

    def __init__(
        self, content: RunsContent, *, workload: Workload | None = None, key: bytes | None = None
    ) -> None:
        self._content, self._key = content, key
        self.workload = workload
        """What is known about lookups of absent keys; the next plan uses it."""
        self._built_for: Workload | None = None

    @classmethod
    def build(
        cls,
        runs: NamedKeys,
        *,
        budget: int | str | None = None,
        workload: Workload | None = None,
        utility: Utility | None = None,
        fpr: float = 1e-4,
        path: FilePath | None = None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Build the filters of named runs, the oldest first.

        ``budget`` is in bytes, or as "64MB", for all memory; without one, each filter has the rate
        ``fpr`` under the workload. Without a workload no absent key is known, and the filters are
        ribbons. ``utility`` is how often, or at what cost, each run is read (default: equal).
        """
        size = None if budget is None else parse_budget(budget)
        built = cls(
            RunsContent((), size, float(fpr), None if key else seed), workload=workload, key=key
        )
        built._plan(_weighted(built._hashed(runs), utility), workload, size)
        if path is not None:
            built.save(path)
        return built

    @classmethod
    def open(
        cls,
        path: FilePath,
        *,
        budget: int | str | None = None,
        workload: Workload | None = None,
        key: bytes | None = None,
    ) -> Self:
        """Open a file that `save` wrote; damage raises `FormatError`.

        The filters of the file are used, unless another ``budget`` is given. A workload is not in
        the file: pass one for the next plan.
        """
        check_workload(workload)
        size = None if budget is None else parse_budget(budget)
        with open_regular(path) as file, path_in_errors(path):
            content = read_runs(file, key)
        opened = cls(content, workload=workload, key=key)
        if size is not None and size != content.budget:
            opened.allocate(budget=size)
        return opened

    def save(self, path: FilePath) -> None:
        """Write the filters and the hashes of all keys to a file, atomically."""
        save_atomically(path, self.write)

    def write(self, descriptor: int) -> None:
        """Write the content of `save` to an open file, at its position."""
        descriptor = check_int("descriptor", descriptor, 2**31 - 1)
        write_runs(descriptor, self._content)

    def check(self) -> None:
        """Read the hashes of all keys; raise `FormatError` if counts or filters contradict them."""
        check_content(self._content, self._key)

    def candidates(self, key: Key, limit: int | None = None) -> list[str]:
        """Return up to ``limit`` runs that may contain the key, the newest first."""
        count, found = read_limit("limit", limit), list[str]()
        for run in reversed(self._runs):
            if len(found) >= count:
                break
            if run.keys and (run.filter is None or key in run.filter):
                found.append(run.name)
        return found

    def candidates_many(
        self, keys: Keys, limit: int | None = None
    ) -> tuple[Ints, npt.NDArray[np.uint32]]:
        """Look up many keys: key i may be in the runs ``names[ids[offsets[i]:offsets[i + 1]]]``."""
        runs, count = self._runs[::-1], read_limit("limit", limit)
        accepted = np.zeros((len(_native.hash_keys(keys)), len(runs)), np.bool_)
        for place, run in enumerate(runs):
            if run.keys:
                accepted[:, place] = True if run.filter is None else run.filter.contains(keys)
        if count < len(runs):
            accepted &= np.cumsum(accepted, axis=1) <= count
        offsets = np.concatenate([[0], np.cumsum(accepted.sum(axis=1))]).astype(np.int64)
        places = np.nonzero(accepted)[1]
        return offsets, (len(runs) - 1 - places).astype(np.uint32)

    def append(
        self,
        name: str,
        keys: Keys,
        *,
        utility: float = 1.0,
        replaces: str | Iterable[str] = (),
        workload: Workload | None = None,
    ) -> None:
        """Add the newest run and plan again.

        With ``replaces``, the run is a compaction of these runs: it takes the place of the newest,
        and they are dropped. ``workload`` replaces the current one.

        >>> c = Runs.build({"a": range(100), "b": range(50, 150), "c": range(10)}, budget="4kB")
        >>> c.append("ab", range(150), replaces=["a", "b"])
        >>> list(c.names), c.candidates(5)
        (['ab', 'c'], ['c', 'ab'])
        """
        gone = self._ids([replaces] if isinstance(replaces, str) else replaces)
        rest = self._without(gone)
        place = max(gone) + 1 - len(gone) if gone else len(rest)
        rest[place:place] = _weighted(self._hashed([(name, keys)], rest), [utility])
        self._plan(rest, workload or self.workload, self.budget)

    def extend(
        self, runs: NamedKeys, *, utility: npt.ArrayLike | None = None, allocate: bool = True
    ) -> None:
        """Add runs, the oldest of them first, and plan again.

        With ``allocate=False`` the new runs are candidates of every key until the next plan.
        """
        all_runs = [*self._runs, *_weighted(self._hashed(runs, self._runs), utility)]
        if allocate:
            self._plan(all_runs, self.workload, self.budget)
        else:
            self._content = self._content._replace(runs=tuple(all_runs))

    def drop(self, runs: str | Iterable[str] | npt.NDArray[np.integer[Any]]) -> None:
        """Remove runs by name or number, and plan again: the others share their memory."""
        rest = self._without(self._ids([runs] if isinstance(runs, str) else runs))
        self._plan(rest, self.workload, self.budget)

    def allocate(
        self,
        *,
        budget: int | str | None = None,
        utility: Utility | None = None,
        workload: Workload | None = None,
    ) -> None:
        """Plan for another budget (None: the rate of `build`), other utilities or workload."""
        size = None if budget is None else parse_budget(budget)
        self._plan(_weighted(self._runs, utility), workload or self.workload, size)

    @property
    def names(self) -> npt.NDArray[np.object_]:
        """The names of the runs, the oldest first."""
        names = np.empty(len(self._runs), object)
        names[:] = [run.name for run in self._runs]
        return names

    @property
    def filters(self) -> list[Stacked | None]:
        """The filter of each run; None if it has none, and is a candidate of every key."""
        return [run.filter for run in self._runs]

    @property
    def kinds(self) -> list[str]:
        """The kind of each filter: "stacked", or "empty" for a run without keys."""
        return ["stacked" if run.keys else "empty" for run in self._runs]

    @property
    def utility(self) -> Floats:
        """How often, or at what cost, each run is read, relative to the others."""
        return np.array([run.utility for run in self._runs], np.float64)

    @property
    def counts(self) -> Ints:
        """Keys in each run."""
        return np.array([run.keys for run in self._runs], np.int64)

    @property
    def kept(self) -> Ints:
        """Bits of each filter."""
        return np.array([run.bits for run in self._runs], np.int64)

    @property
    def fprs(self) -> Floats:
        """Expected false-positive rate of each filter, under the workload."""
        return np.array([run.rate for run in self._runs], np.float64)

    @property
    def expected_fpr(self) -> float:
        """Expected false-positive rate, weighted by utility."""
        return weighted_rate(self.utility, self.fprs)

    @property
    def expected_reads(self) -> float:
        """Expected number of wasted reads per lookup of an absent key."""
        return float(self.fprs.sum())

    @property
    def budget(self) -> int | None:
        """The memory budget in bytes, or None."""
        return self._content.budget

    @property
    def min_budget(self) -> int:
        """The smallest possible budget in bytes: names and places without any filter."""
        return sum(run.overhead for run in self._runs)

    @property
    def size_in_bits(self) -> int:
        """Bits of the filters alone."""
        return int(self.kept.sum())

    @property
    def size_in_bytes(self) -> int:
        """Memory of the filters, names and places."""
        return self.min_budget + (self.size_in_bits + 7) // 8

    @property
    def seed(self) -> int | None:
        """The seed of the hash, or None if a secret key is used."""
        return self._content.seed

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return (
            f"<tamis.collection.Runs: {len(self):,} runs of {int(self.counts.sum()):,} keys, "
            f"{self.size_in_bytes:,} bytes in memory, {self.expected_reads:.3g} wasted reads "
            "per lookup of an absent key>"
        )

    def _ids(self, runs: Iterable[str] | npt.NDArray[np.integer[Any]]) -> set[int]:
        places = {run.name: id for id, run in enumerate(self._runs)}
        check_iterable("runs", runs, "a list of names or numbers")
        try:
            ids = {places[run] if isinstance(run, str) else int(run) for run in runs}
        except KeyError as error:
            raise unknown_name(error.args[0], list(places), "runs") from None
        except (TypeError, ValueError):
            raise TypeError(f"runs must be a list of names or numbers, not {shown(runs)}") from None
        if ids and not 0 <= min(ids) <= max(ids) < len(self):
            raise ValueError(f"runs must have numbers from 0 to {len(self) - 1}")
        return ids

    def _without(self, gone: set[int]) -> list[Run]:
        return [run for id, run in enumerate(self._runs) if id not in gone]

    @property
    def _runs(self) -> tuple[Run, ...]:
        return self._content.runs

    def _hashed(self, runs: NamedKeys, besides: Iterable[Run] = ()) -> list[Run]:
        return hash_runs(runs, (run.name for run in besides), self._content.seed or 0, self._key)

    def _plan(self, runs: list[Run], workload: Workload | None, budget: int | None) -> None:
        """Build the filters of these runs, and replace everything at once."""
        check_workload(workload)
        if workload is None and any(run.filter and len(run.filter.layers) > 1 for run in runs):
            raise ValueError(
                "workload must be a tamis.Workload, because the filters were built for one: pass "
                "workload= to open or allocate, or set c.workload"
            )
        planned = plan_filters(
            runs, workload, budget, self._content.fpr, self._key,
            same_workload=workload is self._built_for,
        )  # fmt: skip
        self._content = self._content._replace(runs=planned, budget=budget)
        self.workload = self._built_for = workload


def _weighted(runs: Iterable[Run], utility: Utility | None) -> list[Run]:
    """Return runs with other utilities: by name, or in their order."""
    runs = list(runs)
    if utility is None:
        return runs
    if isinstance(utility, Mapping):
        missing = next((run.name for run in runs if run.name not in utility), None)
        if missing is not None:
            raise ValueError(f"utility must have a number for every name; {missing!r} is missing")
        utility = [utility[run.name] for run in runs]
    weights = as_weights(utilities(utility, len(runs))).tolist()
    return [replace(run, utility=weight) for run, weight in zip(runs, weights, strict=True)]
