"""One run of an LSM-tree: its keys as hashes in a file, its filter in memory; and the file of many.

    magic       8 bytes
    frames      of each run, its `tamis.Stacked` if it has one, and the hashes of its keys
    directory   JSON: names, utilities, places of the frames; budget, rate and seed
    tail        16 bytes of digest and 8 of length of the directory; the magic again

The hashes, 16 bytes per key, are read only to build a filter.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from tamis import _native
from tamis._checks import MAX_BITS_PER_KEY, MAX_BYTES, MAX_KEYS
from tamis._types import Keys
from tamis.collection.storage import filter_bits
from tamis.errors import FormatError
from tamis.filters import from_bytes
from tamis.filters.stacked import Stacked
from tamis.planning.collection.runs import split_runs
from tamis.planning.kinds import KINDS, fingerprint_layer
from tamis.planning.stacked.frequencies import Zipf

if TYPE_CHECKING:
    from tamis.workload import Workload

MAGIC = b"\x89tamisrn"
_VERSION = 1
_DIGEST = 16
_TAIL = _DIGEST + 8 + len(MAGIC)
_RUN = 256
"""Bytes of a run in memory besides its filter and its name, at most."""

_READ = 1 << 30
"""Bytes that are read by one call."""

_SAME = 0.01
"""Share of its bits by which a filter may differ from a new plan without being built again."""

_NOTHING = Zipf(1.0, 1, 0)


class Content:
    """The content of a file, which stays open as long as a run refers to it."""

    def __init__(self, file: BinaryIO) -> None:
        self.descriptor = os.dup(file.fileno())

    def __del__(self) -> None:
        os.close(self.descriptor)


class Frame(NamedTuple):
    """Bytes in a file."""

    content: Content
    offset: int
    length: int

    def read(self) -> bytes:
        """Return the bytes; damage is found by whoever parses them."""
        content = bytearray()
        while len(content) < self.length:  # one call reads at most 2 GiB
            rest, place = self.length - len(content), self.offset + len(content)
            some = os.pread(self.content.descriptor, min(rest, _READ), place)
            if not some:
                break
            content += some
        return bytes(content)


@dataclass(frozen=True)
class Run:
    """A run: the hashes of its keys in a file, and its filter; without one it is always read."""

    name: str
    utility: float
    keys: int
    hashes: Frame
    filter: Stacked | None = None

    @property
    def bits(self) -> int:
        """Bits of the filter."""
        return 0 if self.filter is None else self.filter.size_in_bits

    @property
    def overhead(self) -> int:
        """Bytes in memory besides the bits of the filter."""
        return _RUN + len(self.name.encode())

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
        content = Content(file)
        for name, keys in runs.items() if isinstance(runs, Mapping) else runs:
            if not isinstance(name, str):
                raise TypeError(f"name must be a str, not {name!r} of type {type(name).__name__}")
            if name in names:
                raise ValueError(f"name must be new, but there is already a run named {name!r}")
            names.add(name)
            (part,) = _native.split(keys, 1, seed=seed, key=key)
            distinct = len(_native.Shard([part], key).keys)
            found.append(Run(name, 1.0, distinct, Frame(content, file.tell(), len(part))))
            file.write(part)
    return found


def plan_filters(
    runs: list[Run],
    workload: Workload | None,
    budget: int | None,
    fpr: float,
    key: bytes | None,
    *,
    same: bool = False,
) -> tuple[Run, ...]:
    """Return the runs with filters within a budget in bytes, or of a rate if that is None.

    With ``same``, the filters were built for this workload: those whose share of the budget hardly
    changes are kept.
    """
    if budget is None:
        return tuple(
            run if same and run.filter else _with_filter(run, workload, key, fpr=fpr)
            for run in runs
        )
    bits = filter_bits(budget, sum(run.overhead for run in runs), f"{len(runs)} runs")
    shares = split_runs(
        np.array([run.keys for run in runs], np.int64),
        np.array([run.utility for run in runs], np.float64),
        _NOTHING if workload is None else workload.cost_curve,
        bits,
    ).tolist()
    planned, build = list(runs), sorted(range(len(runs)), key=shares.__getitem__)
    if same:
        changed = [i for i in build if abs(runs[i].bits - shares[i]) > _SAME * shares[i]]
        wanted = sum(shares[i] if i in changed else runs[i].bits for i in build)
        if wanted <= bits + (_SAME * shares[changed[-1]] if changed else 0):
            build = changed
    left = bits - sum(run.bits for i, run in enumerate(runs) if i not in build)
    for i in build:
        # The largest is the last, and takes what the others leave.
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
    """Build the filter of a run, of a rate or of this many bits; none if these are too few."""
    goal: dict[str, float | None] = {"fpr": fpr}
    if bits is not None:
        least = fingerprint_layer("ribbon", run.keys, KINDS["ribbon"].coarsest).bits
        if not run.keys or bits < least:
            return replace(run, filter=None)
        goal = {"bits_per_key": min(bits / run.keys, MAX_BITS_PER_KEY)}
    keys = _native.Shard([run.hashes.read()], key).keys
    kernel = Stacked._plan_kernel(keys, workload=workload, layer="ribbon", last="exact", **goal)
    # The filter of very few keys may be larger.
    fits = bits is None or kernel.size_in_bits <= bits
    return replace(run, filter=Stacked._of(kernel) if fits else None)


class Opened(NamedTuple):
    """The content of a file of runs."""

    runs: tuple[Run, ...]
    budget: int | None
    fpr: float
    seed: int | None


def write_runs(descriptor: int, content: Opened) -> None:
    """Write a file of runs."""
    with open(descriptor, "wb", closefd=False) as file:
        place, rows = file.write(MAGIC), []
        for run in content.runs:
            frames = [run.hashes.read(), b"" if run.filter is None else run.filter.to_bytes()]
            rows.append([run.name, run.utility, run.keys, place, *map(len, frames)])
            place += sum(map(file.write, frames))
        directory = json.dumps(
            [_VERSION, rows, content.budget, content.fpr, content.seed], separators=(",", ":")
        ).encode()
        length = len(directory).to_bytes(8, "little")
        file.write(directory + _digest(directory) + length + MAGIC)


def is_runs(file: BinaryIO) -> bool:
    """Whether a file is one of runs."""
    return os.pread(file.fileno(), len(MAGIC), 0) == MAGIC


def read_runs(file: BinaryIO, key: bytes | None) -> Opened:
    """Read what `write_runs` wrote; `FormatError` if it is anything else."""
    descriptor, size = file.fileno(), os.fstat(file.fileno()).st_size
    end = size - _TAIL
    tail = os.pread(descriptor, _TAIL, max(end, 0))
    start = end - int.from_bytes(tail[_DIGEST:-8], "little")
    if not (is_runs(file) and tail[-8:] == MAGIC and len(MAGIC) <= start <= end):
        raise FormatError("not a file of runs, or damaged")
    directory = os.pread(descriptor, end - start, start)
    if _digest(directory) != tail[:_DIGEST]:
        raise FormatError("the directory of the runs is damaged")
    try:
        version, rows, budget, fpr, seed = json.loads(directory)
        if version != _VERSION:
            raise FormatError(f"version {version!r} is not supported")
        runs, place, content = [], len(MAGIC), Content(file)
        for name, utility, keys, offset, hashes, stack in rows:
            _require(all(type(each) is int for each in (keys, offset, hashes, stack)))
            _require(offset == place and isinstance(utility, int | float))
            _require(math.isfinite(utility) and name.encode() is not None)
            _require(utility >= 0 and 0 <= keys <= MAX_KEYS and hashes > 0 <= stack)
            place += hashes + stack
            _require(place <= start)
            runs.append(_opened(Frame(content, offset, hashes), name, utility, keys, stack, key))
        _require(place == start and len({run.name for run in runs}) == len(runs))
        _require(budget is None or (type(budget) is int and 0 <= budget < MAX_BYTES))
        _require(isinstance(fpr, float) and 0 < fpr < 1)
        _require(seed is None or (type(seed) is int and 0 <= seed < 2**64))
    except FormatError:
        raise
    except (AttributeError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise FormatError(f"the directory of the runs is not valid: {error}") from None
    return Opened(tuple(runs), budget, fpr, seed)


def _opened(
    hashes: Frame, name: str, utility: float, keys: int, length: int, key: bytes | None
) -> Run:
    run = Run(name, float(utility), keys, hashes)
    if not length:
        return run
    filter = from_bytes(
        Frame(hashes.content, hashes.offset + hashes.length, length).read(), key=key
    )
    if not isinstance(filter, Stacked) or len(filter) != keys:
        raise FormatError(f"the filter of run {name!r} does not match its entry")
    return replace(run, filter=filter)


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError("a number is out of range")


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST).digest()
