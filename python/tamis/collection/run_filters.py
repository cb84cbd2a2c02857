"""One run of an LSM-tree: the hashes of its keys in a file, its filter in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from tamis import _native
from tamis._checks import MAX_BITS_PER_KEY
from tamis._frames import copy_range, read_at
from tamis._types import Keys
from tamis.collection.storage import filter_bits
from tamis.filters.stacked import Stacked
from tamis.planning.collection.run_budgets import split_runs
from tamis.planning.kinds import KINDS, fingerprint_layer
from tamis.planning.stacked.frequencies import Zipf

if TYPE_CHECKING:
    from tamis.workload import Workload

_RUN_BYTES = 256
"""Bytes of a run in memory besides its filter and its name, at most."""

_TOLERANCE = 0.01
"""Share of its bits by which a filter may differ from a new plan without being rebuilt."""

_NO_KNOWN_KEYS = Zipf(1.0, 1, 0)


class OpenFile:
    """A file that stays open as long as a run refers to it."""

    def __init__(self, file: BinaryIO) -> None:
        self.descriptor = os.dup(file.fileno())

    def __del__(self) -> None:
        os.close(self.descriptor)


class StoredFrame(NamedTuple):
    """A frame in a file: hashes that `tamis.split` wrote, or a filter."""

    file: OpenFile
    offset: int
    length: int

    def read(self) -> bytes:
        """Return the bytes; damage is found when they are parsed."""
        return read_at(self.file.descriptor, self.offset, self.length)

    def copy_to(self, descriptor: int) -> None:
        """Append the bytes to an open file."""
        copy_range(self.file.descriptor, self.offset, self.length, descriptor)


@dataclass(frozen=True)
class Run:
    """A run: the hashes of its keys in a file, and its filter; without one it is always read."""

    name: str
    utility: float
    keys: int
    hashes: StoredFrame
    filter: Stacked | None = None

    @property
    def bits(self) -> int:
        """Bits of the filter."""
        return 0 if self.filter is None else self.filter.size_in_bits

    @property
    def overhead(self) -> int:
        """Bytes in memory besides the bits of the filter."""
        return _RUN_BYTES + len(self.name.encode())

    @property
    def rate(self) -> float:
        """Expected false-positive rate."""
        if not self.keys:
            return 0.0
        return 1.0 if self.filter is None else self.filter.expected_fpr


def hash_runs(
    runs: Mapping[str, Keys] | Iterable[tuple[str, Any]],
    taken: Iterable[str],
    seed: int,
    key: bytes | None,
) -> list[Run]:
    """Write the hashes of named runs to a temporary file, one run after the other."""
    names, found = set(taken), list[Run]()
    with tempfile.TemporaryFile(prefix=".tamis-") as file:
        stored = OpenFile(file)
        for name, keys in runs.items() if isinstance(runs, Mapping) else runs:
            if not isinstance(name, str):
                raise TypeError(f"name must be a str, not {name!r} of type {type(name).__name__}")
            if name in names:
                raise ValueError(f"name must be new, but there is already a run named {name!r}")
            names.add(name)
            (part,) = _native.split(keys, 1, seed=seed, key=key)
            distinct = len(_native.Shard([part], key).keys)
            found.append(Run(name, 1.0, distinct, StoredFrame(stored, file.tell(), len(part))))
            file.write(part)
    return found


def plan_filters(
    runs: list[Run],
    workload: Workload | None,
    budget: int | None,
    fpr: float,
    key: bytes | None,
    *,
    same_workload: bool = False,
) -> tuple[Run, ...]:
    """Return the runs with filters within a budget in bytes, or with this rate if that is None.

    With ``same_workload``, the filters were built for this workload, and a filter is kept if its
    share of the budget hardly changes.
    """
    if budget is None:
        return tuple(
            run if same_workload and run.filter else _with_filter(run, workload, key, fpr=fpr)
            for run in runs
        )
    bits = filter_bits(budget, sum(run.overhead for run in runs), f"{len(runs)} runs")
    shares = split_runs(
        np.array([run.keys for run in runs], np.int64),
        np.array([run.utility for run in runs], np.float64),
        _NO_KNOWN_KEYS if workload is None else workload.cost_curve,
        bits,
    ).tolist()
    planned, build = list(runs), sorted(range(len(runs)), key=shares.__getitem__)
    if same_workload:
        changed = [i for i in build if abs(runs[i].bits - shares[i]) > _TOLERANCE * shares[i]]
        wanted = sum(shares[i] if i in changed else runs[i].bits for i in build)
        if wanted <= bits + (_TOLERANCE * shares[changed[-1]] if changed else 0):
            build = changed
    left = bits - sum(run.bits for i, run in enumerate(runs) if i not in build)
    for i in build:
        # The last one is the largest, and takes all bits that are left.
        share = left if i == build[-1] else min(shares[i], left)
        planned[i] = _with_filter(runs[i], workload, key, bits=share)
        left -= planned[i].bits
    return tuple(planned)


def _with_filter(
    run: Run,
    workload: Workload | None,
    key: bytes | None,
    *,
    fpr: float | None = None,
    bits: int | None = None,
) -> Run:
    """Build the filter of a run, for a rate or within this many bits; none if they are too few."""
    goal: dict[str, float | None] = {"fpr": fpr}
    if bits is not None:
        smallest = fingerprint_layer("ribbon", run.keys, KINDS["ribbon"].coarsest).bits
        if not run.keys or bits < smallest:
            return replace(run, filter=None)
        goal = {"bits_per_key": min(bits / run.keys, MAX_BITS_PER_KEY)}
    keys = _native.Shard([run.hashes.read()], key).keys
    kernel = Stacked._plan_kernel(keys, workload=workload, layer="ribbon", last="exact", **goal)
    # The filter of very few keys may be larger.
    fits = bits is None or kernel.size_in_bits <= bits
    return replace(run, filter=Stacked._of(kernel) if fits else None)
