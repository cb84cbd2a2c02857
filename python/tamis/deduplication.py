"""`tamis.dedup`: the records of a stream that were not seen before, in fixed memory."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._types import FilePath
from tamis.filters.stable import StableBloom
from tamis.filters.windowed import Windowed

Filter = Windowed | StableBloom

_SAMPLED_KEYS = 4096
"""Keys that are tracked exactly to measure gaps: a few hundred kilobytes."""

_GAPS = np.unique(np.geomspace(1, 2**40, 401).astype(np.int64))
"""The bucket limits of the histogram of gaps: ten per doubling."""

_SEED = 0x6465647570
"""The sample is chosen by a different hash than the filter's: "dedup" in ASCII."""


class DedupStats(NamedTuple):
    """Counts of a de-duplication, and its expected and measured errors."""

    records: int
    dropped: int
    expected_missed: float
    """The expected fraction of duplicates that are kept, for the gaps that were measured."""
    expected_false_drops: float
    """The expected fraction of new records that are dropped: the filter's false-positive rate."""
    measured_missed: float
    """The fraction of duplicates kept in the sample of keys tracked exactly; NaN if none came."""
    measured_false_drops: float
    """The fraction of new records dropped, in that sample."""
    gaps: dict[int, float]
    """Estimated number of duplicates by gap: upper limit in records (or seconds) to count."""


class _Gaps:
    """The gaps of a sample of keys, in fixed memory.

    A key is tracked if its hash is below a limit. When there are too many, the limit is halved and
    half of the keys are dropped. Each key is weighted by the inverse of its sampling probability
    (Horvitz, Thompson).
    """

    def __init__(self) -> None:
        self.last: dict[int, float] = {}
        self.limit = 2**64
        self.duplicates = np.zeros(len(_GAPS) + 1)
        self.missed = self.new = self.false = 0.0

    def track(self, hashes: npt.NDArray[np.uint64], seen: npt.NDArray[np.bool_], when: Any) -> None:
        most = np.uint64(min(self.limit, 2**64 - 1))
        for i in np.flatnonzero(hashes <= most).tolist():
            key, now = int(hashes[i]), float(when[i])
            if key >= self.limit:  # the limit was halved within this batch
                continue
            weight = 2**64 / self.limit
            before = self.last.get(key)
            if before is None:
                self.new += weight
                self.false += weight * bool(seen[i])
            else:
                self.duplicates[np.searchsorted(_GAPS, max(now - before, 0))] += weight
                self.missed += weight * (not seen[i])
            self.last[key] = now
            if len(self.last) > _SAMPLED_KEYS:
                self.limit //= 2
                self.last = {key: at for key, at in self.last.items() if key < self.limit}


class Dedup:
    """An iterator over the records that were not seen before; `stats` has counts and errors."""

    def __init__(
        self,
        records: Any,
        filter: Filter,
        key: str | Callable[[Any], Any] | None,
        at: str | Callable[[Any], Any] | None,
        batch: int,
    ) -> None:
        self.filter = filter
        self._key, self._at = key, at
        self._records = self._dropped = 0
        self._gaps = _Gaps()
        self._kept = self._stream(records, batch)

    def __iter__(self) -> Iterator[Any]:
        return self._kept

    def __next__(self) -> Any:
        return next(self._kept)

    @property
    def stats(self) -> DedupStats:
        """The counts so far, and the expected and measured errors."""
        gaps, duplicates = self._gaps, self._gaps.duplicates.sum()
        used = np.flatnonzero(gaps.duplicates)
        upper = np.append(_GAPS, 2 * _GAPS[-1])
        middle = (upper + np.append(0, upper[:-1] + 1)) / 2
        missed = sum(gaps.duplicates[i] * self._missed(float(middle[i])) for i in used)
        return DedupStats(
            self._records,
            self._dropped,
            float(missed / duplicates) if duplicates else 0.0,
            self.filter.expected_fpr,
            float(gaps.missed / duplicates) if duplicates else float("nan"),
            float(gaps.false / gaps.new) if gaps.new else float("nan"),
            {int(upper[i]): float(gaps.duplicates[i]) for i in used},
        )

    def _missed(self, gap: float) -> float:
        """Return the probability that a duplicate at this distance is kept."""
        if isinstance(self.filter, StableBloom):
            return self.filter.expected_fnr(gap)
        window = self.filter.capacity if self.filter.seconds is None else self.filter.seconds
        return 0.0 if gap <= window else 1 - self.filter.expected_fpr

    def _stream(self, records: Any, size: int) -> Iterator[Any]:
        for batch, single in _batches(records, size):
            kept = _drop_seen(batch, self._seen(batch, single))
            if single:
                yield from kept
            elif len(kept):
                yield kept

    def _seen(self, batch: Any, single: bool) -> npt.NDArray[np.bool_]:
        keys, times = _select(batch, self._key, single), None
        if isinstance(self.filter, Windowed):
            if self._at is not None:
                times = np.asarray(_select(batch, self._at, single), dtype=float)
            seen = self.filter.seen_many(keys, at=times)
        else:
            seen = self.filter.seen_many(keys)
        hashes = _native.hash_keys(keys, seed=_SEED)[:, 0]
        position = np.arange(self._records, self._records + len(seen))
        self._gaps.track(hashes, seen, position if times is None else times)
        self._records += len(seen)
        self._dropped += int(seen.sum())
        return seen


def dedup(
    records: Any,
    *,
    window: int | None = None,
    seconds: float | None = None,
    gap: int | None = None,
    bits: int | None = None,
    fpr: float = 0.001,
    filter: Filter | None = None,
    key: str | Callable[[Any], Any] | None = None,
    at: str | Callable[[Any], Any] | None = None,
    batch: int = 4096,
) -> Dedup:
    """Iterate over the records of a stream that were not seen before, in fixed memory.

    ``records`` is an iterable of records or of batches (lists, NumPy arrays, Arrow record batches
    and tables, data frames), one Arrow table or stream, or the path of a text file, whose
    lines (bytes, without line ends) are the records. The output has the same type as the input.

    - ``window``: drop every duplicate among the last ``window`` records (`tamis.Windowed`). With
      ``seconds``, drop every duplicate of the last ``seconds`` seconds; ``window`` is then the
      expected number of records in that time, and ``at`` the time of a record: a column or a
      function.
    - ``gap`` and ``bits``: drop duplicates however old, as far back as ``bits`` bits of memory
      allow (`tamis.StableBloom`); ``gap`` is the typical distance of duplicates in records.
    - ``filter``: an existing `Windowed` or `StableBloom` filter to continue with.
    - ``key``: what identifies a record: a column or a function (default: the record itself).
    - ``fpr``: the fraction of new records that may be dropped.
    - ``batch``: how many single records are processed at a time.

    >>> list(dedup(["a", "b", "a", "c", "b"], window=1000))
    ['a', 'b', 'c']
    >>> kept = dedup([np.array([1, 2, 1]), np.array([2, 3])], window=1000)
    >>> list(kept), kept.stats.dropped
    ([array([1, 2]), array([3])], 2)
    """
    if filter is None:
        filter = _filter(window, seconds, gap, bits, fpr)
    elif any(argument is not None for argument in (window, seconds, gap, bits)):
        raise ValueError("filter cannot be combined with window, seconds, gap or bits")
    if at is not None and not (isinstance(filter, Windowed) and filter.seconds is not None):
        raise ValueError("at requires seconds, or a filter with a window of seconds")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, not {batch}")
    return Dedup(records, filter, key, at, batch)


def _filter(
    window: int | None, seconds: float | None, gap: int | None, bits: int | None, fpr: float
) -> Filter:
    if (window is None) == (gap is None):
        raise ValueError("pass exactly one of window or gap")
    if window is not None:
        return Windowed(window, seconds=seconds, fpr=fpr)
    if bits is None:
        raise ValueError("gap requires bits")
    if seconds is not None:
        raise ValueError("seconds requires window, not gap")
    assert gap is not None
    return StableBloom(gap, fpr=fpr, bits=bits)


def _batches(records: Any, size: int) -> Iterator[tuple[Any, bool]]:
    """Yield batches of records, and whether the records came one by one."""
    if isinstance(records, (str, bytes, os.PathLike)):
        yield from ((lines, True) for lines in _lines(records, size))
        return
    if hasattr(records, "__arrow_c_stream__"):
        import pyarrow as pa

        records = pa.RecordBatchReader.from_stream(records)
    several = iter(records)
    for first in several:
        arrow = hasattr(first, "__arrow_c_stream__") or hasattr(first, "__arrow_c_array__")
        if not arrow and not isinstance(first, (list, np.ndarray)):
            every = itertools.chain([first], several)
            yield from ((part, True) for part in _chunks(every, size))
            return
        yield first, False


def _lines(path: FilePath, size: int) -> Iterator[list[bytes]]:
    with Path(os.fsdecode(path)).open("rb") as file:
        for lines in _chunks(file, size):
            yield [line.rstrip(b"\r\n") for line in lines]


def _chunks(records: Iterable[Any], size: int) -> Iterator[list[Any]]:
    several = iter(records)
    while part := list(itertools.islice(several, size)):
        yield part


def _select(batch: Any, what: str | Callable[[Any], Any] | None, single: bool) -> Any:
    """Return the keys, or the times, of a batch."""
    if what is None:
        return batch
    if callable(what):
        return (
            [what(record) for record in batch] if single or isinstance(batch, list) else what(batch)
        )
    return [record[what] for record in batch] if isinstance(batch, list) else batch[what]


def _drop_seen(batch: Any, seen: npt.NDArray[np.bool_]) -> Any:
    """Return the records of a batch that were not seen before."""
    if isinstance(batch, list):
        return list(itertools.compress(batch, ~seen))
    if isinstance(batch, np.ndarray):
        return batch[~seen]
    if type(batch).__module__.startswith("pyarrow"):
        import pyarrow as pa

        return batch.filter(pa.array(~seen))
    return batch.filter(~seen) if type(batch).__module__.startswith("polars") else batch[~seen]
