"""The file of runs: a container with a directory, and with the hashes and filter of each run.

The directory is JSON: ``runs`` (name, utility, number of keys, and whether there is a filter),
``budget``, ``fpr`` and ``seed``. The frames follow in the order of the runs. Hashes, 16 bytes per
key, are read only to build a filter.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, NamedTuple

from tamis._checks import MAX_BYTES, MAX_KEYS
from tamis._files import open_regular
from tamis._frames import CONTAINED, JSON, Frame, FrameWriter, write_all
from tamis._types import FilePath
from tamis.collection.run_filters import OpenFile, Run, StoredFrame
from tamis.errors import CapacityError, FormatError
from tamis.filters import from_bytes
from tamis.filters.stacked import Stacked

KIND = "runs"

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
            if has_filter:
                filter = _read_filter(_stored(frame, number + 1, opened), run, key)
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


def _read_filter(stored: StoredFrame, run: Run, key: bytes | None) -> Stacked:
    filter: Any = from_bytes(stored.read(), key=key)
    if not isinstance(filter, Stacked) or len(filter) != run.keys:
        raise FormatError(f"the filter of run {run.name!r} does not match its entry")
    return filter


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError("a number is out of range")
