"""Fair comparisons: fresh keys, rounds in which contenders take turns, ratios within a round.

The speed of the machine drifts (other processes, clock rates), so times from different moments
are never compared. In every round each contender is timed once; ratios are between two times of
the same round, and the result is the median over the rounds.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

try:
    import pyarrow as pa
except ImportError:
    pa = None
try:
    import polars as pl
except ImportError:
    pl = None


class Integers:
    """Random 62-bit integers: too large for the interpreter's cache of small ones."""

    kind = "integers"

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values

    @classmethod
    def pair(cls, count: int, seed: int) -> tuple[Integers, Integers]:
        """Return random present and absent keys; two are equal with probability 4e-5 at 10⁷."""
        values = np.random.default_rng(seed).integers(0, 1 << 62, 2 * count)
        return cls(values[:count]), cls(values[count:])

    def __len__(self) -> int:
        return len(self.values)

    def head(self, count: int) -> Integers:
        return Integers(self.values[:count])

    @functools.cached_property
    def columns(self) -> dict[str, Any]:
        """The inputs that can be reused, because reading them has no side effects."""
        forms: dict[str, Any] = {"NumPy": self.values}
        if pa is not None:
            forms["Arrow"] = pa.array(self.values)
        if pl is not None:
            forms["polars"] = pl.Series(self.values)
        return forms

    def fresh(self) -> list[int]:
        """Return a list of new objects."""
        return self.values.tolist()


class Strings:
    """Random strings of 20 hexadecimal digits, stored in one string."""

    kind = "strings"
    width = 20

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def pair(cls, count: int, seed: int) -> tuple[Strings, Strings]:
        """Return random present and absent keys; of 80 bits each, so that none are equal."""
        text = np.random.default_rng(seed).bytes(cls.width * count).hex()
        half = len(text) // 2
        return cls(text[:half]), cls(text[half:])

    def __len__(self) -> int:
        return len(self.text) // self.width

    def head(self, count: int) -> Strings:
        return Strings(self.text[: count * self.width])

    @functools.cached_property
    def columns(self) -> dict[str, Any]:
        """The inputs that can be reused, because reading them has no side effects."""
        data = self.text.encode()
        raw = np.frombuffer(data, f"S{self.width}")
        forms: dict[str, Any] = {"NumPy S20": raw, "NumPy U20": raw.astype(f"U{self.width}")}
        if pa is not None:
            offsets = np.arange(0, len(data) + 1, self.width, dtype=np.int32)
            buffers = [pa.py_buffer(offsets), pa.py_buffer(data)]
            forms["Arrow"] = pa.StringArray.from_buffers(len(self), *buffers)
            forms["Arrow view"] = forms["Arrow"].cast(pa.string_view())
            if pl is not None:
                forms["polars"] = pl.from_arrow(forms["Arrow"])
        return forms

    def fresh(self) -> list[str]:
        """Return a list of objects whose hash the interpreter has not cached."""
        text, width = self.text, self.width
        return [text[at : at + width] for at in range(0, len(text), width)]


Keys = Integers | Strings


BUDGET = 8.0
"""Total seconds of a task, so that the slowest packages do not dominate a run."""


@dataclass(frozen=True)
class Task:
    """One thing to time: `run` on the result of `prepare`, which is not timed."""

    name: str
    prepare: Callable[[], Any]
    run: Callable[[Any], Any]


Times = dict[str, list[float]]
"""Nanoseconds per key of each contender, one entry per round."""


def take_turns(tasks: Sequence[Task], rounds: int, last: dict[str, Any] | None = None) -> Times:
    """Time every task once per round; each round starts with another one.

    A task that has run for ``BUDGET`` seconds in all sits out the rounds that are left.
    What `run` returns is kept in ``last`` or dropped, both after the clock has stopped.
    """
    times: Times = {task.name: [] for task in tasks}
    spent = dict.fromkeys(times, 0.0)
    for number in range(rounds):
        start = number % max(len(tasks), 1)
        for task in [*tasks[start:], *tasks[:start]]:
            if spent[task.name] > BUDGET:
                continue
            keys = task.prepare()
            begin = time.perf_counter()
            result = task.run(keys)
            seconds = time.perf_counter() - begin
            spent[task.name] += seconds
            times[task.name].append(seconds / len(keys) * 1e9)
            if last is not None:
                last[task.name] = result
            del result, keys
    return times


@dataclass(frozen=True)
class Ratio:
    """How many times longer a peer took: the median over rounds, the minimum and the maximum."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, peer: Iterable[float], ours: Iterable[float]) -> Ratio:
        ratios = [a / b for a, b in zip(peer, ours, strict=False)]
        return cls(statistics.median(ratios), min(ratios), max(ratios))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: set[int]) -> None:
    """Print aligned columns: right-aligned, except those in `left`."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = [
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip(), flush=True)
