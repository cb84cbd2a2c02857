"""One run of an LSM-tree: its filter in memory, and the hashes of its keys in a file of runs."""

from __future__ import annotations

import math
import os
import struct
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import numpy as np

from tamis import _native
from tamis._checks import MAX_BITS_PER_KEY, MAX_BYTES, MAX_KEYS
from tamis._files import open_regular
from tamis._frames import CONTAINED, JSON, Frame, FrameWriter, copy_range, read_at, write_all
from tamis._types import FilePath, Keys
from tamis.collection.storage import filter_bits
from tamis.errors import CapacityError, FormatError
from tamis.filters import from_bytes
from tamis.filters.stacked import Stacked
from tamis.planning.collection.run_budgets import split_runs
from tamis.planning.kinds import SMALLEST, LayerKind, fingerprint_layer
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
        needed = sum(shares[i] if i in changed else runs[i].bits for i in build)
        if needed <= bits + (_TOLERANCE * shares[changed[-1]] if changed else 0):
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
        smallest = fingerprint_layer(SMALLEST.name, run.keys, SMALLEST.coarsest).bits
        if not run.keys or bits < smallest:
            return replace(run, filter=None)
        goal = {"bits_per_key": min(bits / run.keys, MAX_BITS_PER_KEY)}
    keys = _native.Shard([run.hashes.read()], key).keys
    layer = cast(LayerKind, SMALLEST.name)
    kernel = Stacked._plan_kernel(keys, workload=workload, layer=layer, last="exact", **goal)
    # The filter of very few keys may be larger.
    fits = bits is None or kernel.size_in_bits <= bits
    return replace(run, filter=Stacked._of(kernel) if fits else None)


KIND = "runs"

_PART = 64
"""The kind of the frame of hashes that `tamis.split` returns."""

_HEADER = struct.Struct("<10xHHHQQ")
"""The start of a frame: kind, hash, sections, seed and number of keys (docs/format.md)."""

MAX_RUNS = (2**16 - 2) // 2
"""Runs in a file: its header counts sections in 16 bits, and each run has up to two."""


class RunsContent(NamedTuple):
    """The content of a file of runs."""

    runs: tuple[Run, ...]
    budget: int | None
    fpr: float
    seed: int | None


def write_runs(descriptor: int, content: RunsContent) -> None:
    """Write a file of runs."""
    if len(content.runs) > MAX_RUNS:
        raise CapacityError(
            f"a file holds at most {MAX_RUNS:,} runs, not {len(content.runs):,}: merge some of "
            "them with append(name, keys, replaces=[...]), or save several collections"
        )
    filters = sum(run.filter is not None for run in content.runs)
    container = FrameWriter(descriptor, KIND, 1 + len(content.runs) + filters)
    entries = [[run.name, run.utility, run.keys, run.filter is not None] for run in content.runs]
    container.json(
        {
            "runs": entries,
            "budget": content.budget,
            "fpr": content.fpr,
            "seed": content.seed,
        }
    )
    for run in content.runs:
        container.frame(run.hashes.copy_to)
        if run.filter is not None:
            frame = run.filter.to_bytes()
            container.frame(partial(write_all, content=frame))
    container.close()


def has_runs(path: FilePath) -> bool:
    """Whether a file is a file of runs; False for a damaged file, which no reader accepts."""
    with open_regular(path) as file, suppress(FormatError):
        return Frame.of_file(file).kind == KIND
    return False


def read_runs(file: BinaryIO, key: bytes | None) -> RunsContent:
    """Read the output of `write_runs`; other content raises `FormatError`."""
    frame = Frame.of_file(file)
    frame.expect(KIND, [JSON] + [CONTAINED] * (len(frame.sections) - 1))
    try:
        directory = frame.json(0)
        budget, fpr, seed = (directory[name] for name in ("budget", "fpr", "seed"))
        _require(budget is None or (type(budget) is int and 0 <= budget < MAX_BYTES))
        _require(isinstance(fpr, float) and 0 < fpr < 1)
        _require(seed is None or (type(seed) is int and 0 <= seed < 2**64))
        runs, number, opened = [], 1, OpenFile(file)
        for name, utility, keys, has_filter in directory["runs"]:
            _require(isinstance(name, str) and name.encode() is not None)
            _require(type(keys) is int and 0 <= keys <= MAX_KEYS and type(has_filter) is bool)
            _require(isinstance(utility, int | float) and utility >= 0 and math.isfinite(utility))
            run = Run(name, float(utility), keys, _stored(frame, number, opened))
            _check_header(run, seed)
            if has_filter:
                filter = _read_filter(_stored(frame, number + 1, opened), run, seed, key)
                run = replace(run, filter=filter)
            number += 1 + has_filter
            runs.append(run)
        _require(number == len(frame.sections) and len({run.name for run in runs}) == len(runs))
    except FormatError:
        raise
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise FormatError(f"the directory of the runs is not valid: {error}") from None
    return RunsContent(tuple(runs), budget, fpr, seed)


def _stored(frame: Frame, number: int, file: OpenFile) -> StoredFrame:
    """Return a section by reference; its content is not read."""
    section = frame.contained(number)
    return StoredFrame(file, section.offset, section.length)


def _check_header(run: Run, seed: int | None) -> None:
    """Compare the entry of a run with the header of its hashes, which are not read."""
    head = read_at(run.hashes.file.descriptor, run.hashes.offset, _HEADER.size)
    kind, hash, _, tag, count = _HEADER.unpack(head)
    same_hash = hash == 2 if seed is None else (hash, tag) == (1, seed)
    # Repeated keys are counted in the header, and not in the entry.
    if kind != _PART or not same_hash or not min(count, 1) <= run.keys <= count:
        raise FormatError(f"the hashes of run {run.name!r} do not match its entry")


def check_content(content: RunsContent, key: bytes | None) -> None:
    """Read all hashes; raise `FormatError` if they do not match the entries and the filters."""
    for run in content.runs:
        shard = _native.Shard([run.hashes.read()], key)
        if (shard.index, shard.shards, len(shard.keys)) != (0, 1, run.keys):
            raise FormatError(f"the hashes of run {run.name!r} do not match its entry")
        if run.filter is not None:
            accepted = shard.keys.accepted_by(run.filter._handle, 0)
            if len(accepted) != run.keys:
                raise FormatError(f"the filter of run {run.name!r} rejects keys of the run")


def _read_filter(stored: StoredFrame, run: Run, seed: int | None, key: bytes | None) -> Stacked:
    filter: Any = from_bytes(stored.read(), key=key)
    if not isinstance(filter, Stacked) or len(filter) != run.keys or filter.seed != seed:
        raise FormatError(f"the filter of run {run.name!r} does not match its entry")
    return filter


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError("a number is out of range")
