"""`tamis.dedup`: the records of a stream that were not seen before, in fixed memory."""

from __future__ import annotations

import itertools
import logging
import operator
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._columns import keep
from tamis._compressed import DAMAGED, MAX_LINE, decompress
from tamis._times import AGREEING, StreamClock
from tamis._times import seconds as read_seconds
from tamis._types import FilePath
from tamis.filters.stable import StableBloom
from tamis.filters.windowed import Windowed

_logger = logging.getLogger("tamis.dedup")

Filter = Windowed | StableBloom
Select = str | Callable[[Any], Any] | None
KeySelect = Select | int | Sequence[str | int]
"""How to get the key of a record; several columns make a tuple."""

_SAMPLED_KEYS = 4096
"""Keys that are tracked exactly to measure gaps: a few hundred kilobytes."""

_TRACKED_AT_ONCE = 4096
"""Single records that are collected before they are sampled: hashing them together is cheaper."""

_GAPS = np.unique(np.geomspace(1, 2**40, 401).astype(np.int64))
"""The bucket limits of the histogram of gaps: ten per doubling."""

_BLOCK = 1 << 20
"""Bytes of a compressed file read at a time."""

_SEED = 0x6465647570
"""The sample is chosen by a different hash than the filter's: "dedup" in ASCII."""


class DedupStats(NamedTuple):
    """Counts of a de-duplication, and its expected and measured errors."""

    records: int
    dropped: int
    expected_missed: float
    """The expected fraction of duplicates that are kept, for the gaps that were measured; those
    outside the requested window do not count."""
    expected_false_drops: float
    """The expected fraction of new records that are dropped: the filter's false-positive rate."""
    measured_missed: float
    """The fraction of duplicates kept in the sample of keys tracked exactly; NaN if none came."""
    measured_false_drops: float
    """The fraction of new records dropped, in that sample."""
    gaps: dict[int, float]
    """Estimated number of duplicates by gap: upper limit in records (or seconds) to count."""
    outside_window: float
    """Estimated number of duplicates farther apart than the requested window."""
    early: int
    """Records with a time of more than a window ahead of the stream's clock."""
    late: int
    """Records with a time of more than a window behind it."""


class _Gaps:
    """The gaps of a sample of keys, in fixed memory.

    A key is tracked if its hash is below a limit. When there are too many, the limit is halved and
    half of the keys are dropped. Each key is weighted by the inverse of its sampling probability
    (Horvitz, Thompson).
    """

    def __init__(self, window: float) -> None:
        self.window = window
        self.last: dict[int, float] = {}
        self.limit = 2**64
        self.duplicates = np.zeros(len(_GAPS) + 1)
        self.missed = self.outside = self.new = self.false = 0.0

    def track(self, hashes: npt.NDArray[np.uint64], seen: Any, when: Any) -> None:
        last = np.uint64(min(self.limit, 2**64 - 1))
        for i in np.flatnonzero(hashes <= last).tolist():
            key, now = int(hashes[i]), float(when[i])
            if key >= self.limit:  # the limit was halved within this batch
                continue
            weight = 2**64 / self.limit
            before = self.last.get(key)
            if before is None:
                self.new += weight
                self.false += weight * bool(seen[i])
            else:
                gap = max(now - before, 0)
                self.duplicates[np.searchsorted(_GAPS, gap)] += weight
                if gap > self.window:
                    self.outside += weight
                else:
                    self.missed += weight * (not seen[i])
            self.last[key] = now
            if len(self.last) > _SAMPLED_KEYS:
                self.limit //= 2
                self.last = {key: at for key, at in self.last.items() if key < self.limit}


class Dedup:
    """An iterator over the records that were not seen before; `stats` has counts and errors.

    A record is marked as seen when it is handed out, and none is read ahead. So after any number
    of records, `filter` can be saved, and continues with the record at index ``stats.records``.
    """

    def __init__(self, records: Any, filter: Filter, key: KeySelect, at: Select) -> None:
        self.filter = filter
        self._key, self._at = key, at
        self._records = self._dropped = 0
        self._timed = isinstance(filter, Windowed) and filter.seconds is not None
        self._gaps = _Gaps(_window(filter))
        self._clock = StreamClock(_window(filter))
        self._warned = False
        self._untracked: list[Any] = []
        self._answers: list[bool] = []
        self._times: list[float] = []
        self._kept = self._stream(records)

    def __iter__(self) -> Iterator[Any]:
        return self._kept

    def __next__(self) -> Any:
        return next(self._kept)

    @property
    def stats(self) -> DedupStats:
        """The counts so far, and the expected and measured errors."""
        self._track()
        gaps = self._gaps
        used = np.flatnonzero(gaps.duplicates)
        upper = np.append(_GAPS, 2 * _GAPS[-1])
        middle = (upper + np.append(0, upper[:-1] + 1)) / 2
        inside = gaps.duplicates.sum() - gaps.outside
        missed = 0.0  # a windowed filter misses nothing within its window
        if isinstance(self.filter, StableBloom):
            fnr = self.filter.expected_fnr
            missed = sum(gaps.duplicates[i] * fnr(float(middle[i])) for i in used)
        return DedupStats(
            self._records,
            self._dropped,
            float(missed / inside) if inside else 0.0,
            self.filter.expected_fpr,
            float(gaps.missed / inside) if inside else float("nan"),
            float(gaps.false / gaps.new) if gaps.new else float("nan"),
            {int(upper[i]): float(gaps.duplicates[i]) for i in used},
            float(gaps.outside),
            self._clock.early,
            self._clock.late,
        )

    def _stream(self, records: Any) -> Iterator[Any]:
        several = _iterate(records)
        for batch in several:
            if not _is_batch(batch):
                yield from self._one_by_one(itertools.chain([batch], several))
                return
            kept = _drop_seen(batch, self._seen(batch))
            if len(kept):
                yield kept

    def _one_by_one(self, records: Iterable[Any]) -> Iterator[Any]:
        key, at = _getter(self._key), _getter(self._at)
        clock = self.filter if isinstance(self.filter, Windowed) and self._timed else None
        for record in records:
            identity = record if key is None else key(record)
            if clock is None:
                seen = self.filter.seen(identity)
            else:
                when = time.time() if at is None else self._seconds(at(record))
                filter_time = self._clock.filter_time(when)
                if filter_time is None:
                    seen = bool(self._seen_at([identity], np.array([when], dtype=float))[0])
                else:
                    seen = clock.seen(identity, at=filter_time)
                self._times.append(when)
            self._records += 1
            self._dropped += seen
            self._untracked.append(identity)
            self._answers.append(seen)
            if len(self._answers) == _TRACKED_AT_ONCE:
                self._track()
            if not seen:
                yield record

    def _seconds(self, value: Any) -> float:
        if type(value) is float or type(value) is int:
            return value
        return float(read_seconds(value, _name(self._at)))

    def _seen(self, batch: Any) -> npt.NDArray[np.bool_]:
        keys = _select(batch, self._key)
        if type(batch).__module__.startswith("pyarrow"):
            # Columns that pyarrow cannot filter raise here, before any record is marked as seen.
            keep(batch.slice(0, 0), np.zeros(0, np.bool_))
        if self._timed:
            if self._at is None:
                times = np.full(len(batch), time.time())
            else:
                times = read_seconds(_select(batch, self._at), _name(self._at))
            seen = self._seen_at(keys, times)
        else:
            times = np.arange(self._records, self._records + len(batch), dtype=float)
            seen = self.filter.seen_many(keys)
        self._gaps.track(_native.hash_keys(keys, seed=_SEED)[:, 0], seen, times)
        self._records += len(seen)
        self._dropped += int(seen.sum())
        return seen

    def _seen_at(self, keys: Any, times: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Return for each key whether it was seen, and insert it; wrong times move no clock."""
        windowed = self.filter
        assert isinstance(windowed, Windowed)
        seen = self._clock.seen(
            times,
            lambda: _native.hash_keys(keys, seed=_SEED)[:, 0],
            lambda at: windowed.seen_many(keys, at=at),
        )
        if self._clock.early and not self._warned:
            self._warned = True
            _logger.warning(
                "a record has a time of more than the window ahead of the stream (%s seconds); "
                "such times move the window only if %d records in a row have them",
                f"{times.max():.17g}",
                AGREEING,
            )
        return seen

    def _track(self) -> None:
        """Sample the gaps of the single records that came since this was last called."""
        if not self._untracked:
            return
        when = self._times or range(self._records - len(self._answers), self._records)
        self._gaps.track(_hashes(self._untracked), self._answers, when)
        self._untracked, self._answers, self._times = [], [], []


def dedup(
    records: Any,
    *,
    window: int | None = None,
    seconds: float | None = None,
    gap: int | None = None,
    bits: int | None = None,
    fpr: float = 0.001,
    filter: Filter | None = None,
    key: KeySelect = None,
    at: Select = None,
) -> Dedup:
    """Iterate over the records of a stream that were not seen before, in fixed memory.

    ``records`` is an iterable of records or of batches (lists, NumPy arrays, Arrow record batches
    and tables, data frames), one data frame, Arrow table or stream, or the path of a text file,
    which may be compressed (gzip, bzip2, xz, Zstandard), whose lines (bytes, without line ends) are
    the records.
    The output has the same type as the input.

    A record, or a batch, is marked as seen when it is handed out, and none is read ahead: at any
    point the filter can be saved, and continues with the record at index ``stats.records``.

    - ``window``: drop every duplicate among the last ``window`` records (`tamis.Windowed`). With
      ``seconds``, drop every duplicate of the last ``seconds`` seconds; ``window`` is then the
      expected number of records in that time, and ``at`` the time of a record (a column or a
      function): seconds, or a timestamp of any unit, in UTC if it has no time zone. A time of more
      than ``seconds`` ahead of all before it moves the window only once 16 records in a row have
      such times; until then these records are compared with each other.
    - ``gap`` and ``bits``: drop duplicates however old, as far back as ``bits`` bits of memory
      allow (`tamis.StableBloom`); ``gap`` is the typical distance of duplicates in records.
    - ``filter``: an existing `Windowed` or `StableBloom` filter to continue with.
    - ``key``: what identifies a record: a column, by name or position, a list of columns, whose
      values are then a tuple, or a function (default: the record itself).
    - ``fpr``: the fraction of new records that may be dropped.

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
    elif not isinstance(filter, Filter):
        raise TypeError(f"filter must be a Windowed or StableBloom filter, not {filter!r}")
    if not (at is None or isinstance(at, str) or callable(at)):
        raise TypeError(f"at must be the name of a column or a function, not {at!r}")
    key = _check_key(key)
    if at is not None and not (isinstance(filter, Windowed) and filter.seconds is not None):
        raise ValueError("at requires seconds, or a filter with a window of seconds")
    return Dedup(records, filter, key, at)


def _check_key(key: KeySelect) -> KeySelect:
    """Return the key; a list of one column is that column."""
    if key is None or isinstance(key, str) or callable(key) or _is_position(key):
        return key
    if not isinstance(key, list | tuple) or not key:
        raise TypeError(f"key must be a column, a list of columns or a function, not {key!r}")
    for column in key:
        if not (isinstance(column, str) or _is_position(column)):
            raise TypeError(f"key must contain names or positions of columns, not {column!r}")
    return list(key) if len(key) > 1 else key[0]


def _is_position(column: Any) -> bool:
    return isinstance(column, int) and not isinstance(column, bool)


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


def _window(filter: Filter) -> float:
    """Return the records, or seconds, within which every duplicate is dropped."""
    if isinstance(filter, StableBloom):
        return float("inf")
    return filter.capacity if filter.seconds is None else filter.seconds


def _iterate(records: Any) -> Iterator[Any]:
    """Return an iterator over records, or over batches of them."""
    if isinstance(records, (str, bytes, os.PathLike)):
        return _lines(records)
    if type(records).__module__.startswith(("pandas", "polars")) and hasattr(records, "filter"):
        return iter([records])  # through Arrow, columns of objects would lose nanoseconds
    if hasattr(records, "__arrow_c_stream__"):
        import pyarrow as pa

        records = pa.RecordBatchReader.from_stream(records)
    if not isinstance(records, Iterable):
        raise TypeError(
            "records must be an iterable of records or batches, an Arrow table or stream, or the "
            f"path of a text file, not {type(records).__name__}"
        )
    return iter(records)


def _is_batch(item: Any) -> bool:
    arrow = hasattr(item, "__arrow_c_stream__") or hasattr(item, "__arrow_c_array__")
    return arrow or isinstance(item, list) or (isinstance(item, np.ndarray) and item.ndim > 0)


def _lines(path: FilePath) -> Iterator[bytes]:
    name = os.fsdecode(path)
    with Path(name).open("rb") as file:
        try:
            stream = decompress(file, _BLOCK)
            while line := stream.readline(MAX_LINE + 1):
                if len(line) > MAX_LINE:
                    limit = f"{MAX_LINE >> 20} MiB"
                    raise ValueError(f"{name} is not text: it has a line longer than {limit}")
                yield line.rstrip(b"\r\n")
        except DAMAGED as error:
            raise ValueError(f"{name} is damaged or truncated: {error}") from None


def _name(at: Select) -> str:
    return f"column {at!r}" if isinstance(at, str) else "at"


def _getter(select: KeySelect) -> Callable[[Any], Any] | None:
    """Return the function that reads the key, or the time, of a record; None for the record."""
    if select is None or callable(select):
        return select
    return operator.itemgetter(*(select if isinstance(select, list) else [select]))


def _select(batch: Any, select: KeySelect) -> Any:
    """Return the keys, or the times, of a batch."""
    if select is None:
        return batch
    if callable(select) or isinstance(batch, list):
        get = _getter(select)
        assert get is not None
        return list(map(get, batch)) if isinstance(batch, list) else get(batch)
    if isinstance(select, list):
        names = [_column_name(batch, column) for column in select]
        if isinstance(batch, np.ndarray):  # with fields
            return list(zip(*(batch[name] for name in names), strict=True))
        return batch[names] if type(batch).__module__.startswith("pandas") else batch.select(names)
    return batch[_column_name(batch, select)]


def _column_name(batch: Any, column: Any) -> Any:
    """Return the name of a column that may be given by its position."""
    if isinstance(column, str):
        return column
    if isinstance(batch, np.ndarray):
        names: Any = batch.dtype.names or ()
    else:
        arrow = type(batch).__module__.startswith("pyarrow")
        names = batch.schema.names if arrow else batch.columns
    if not 0 <= column < len(names):
        raise ValueError(f"key has position {column}, but the records have {len(names)} columns")
    return names[column]


def _hashes(keys: list[Any]) -> npt.NDArray[np.uint64]:
    """Hash keys that came one by one: a column may not mix integers and text, a stream may."""
    try:
        return _native.hash_keys(keys, seed=_SEED)[:, 0]
    except TypeError:
        several = [_native.hash_keys([key], seed=_SEED) for key in keys]
        return np.concatenate(several)[:, 0]


def _drop_seen(batch: Any, seen: npt.NDArray[np.bool_]) -> Any:
    """Return the records of a batch that were not seen before."""
    if isinstance(batch, list):
        return list(itertools.compress(batch, ~seen))
    if isinstance(batch, np.ndarray):
        return batch[~seen]
    if type(batch).__module__.startswith("pyarrow"):
        return keep(batch, ~seen)
    return batch.filter(~seen) if type(batch).__module__.startswith("polars") else batch[~seen]
