"""Times of records: of any of the usual types, as seconds; and a stream's clock that they move."""

from __future__ import annotations

import datetime
import math
import numbers
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from tamis._checks import shown
from tamis._columns import column

_ACCEPTED = "expected seconds as numbers, timestamps, dates or durations"

_SECOND = np.timedelta64(1, "s")

AGREEING = 16
"""Records in a row that must be off by more than a window before they move a stream's clock."""

_MAX_EARLY_KEYS = 4096
"""Early records that are compared exactly; the oldest are forgotten first."""


def seconds(times: Any, name: str = "at") -> npt.NDArray[np.float64]:
    """Return times as seconds; ``name`` is what errors call them.

    Numbers and durations are seconds. Timestamps and dates of any unit and time zone are seconds
    since 1970-01-01 UTC; times without a time zone are in UTC. One time gives an array without
    dimensions.

    >>> seconds(np.array(["1970-01-02", "1970-01-03"], dtype="datetime64[ms]"))
    array([ 86400., 172800.])
    >>> zone = datetime.timezone(datetime.timedelta(hours=1))
    >>> float(seconds(datetime.datetime(1970, 1, 1, 2, tzinfo=zone)))
    3600.0
    >>> seconds(["noon"])
    Traceback (most recent call last):
    ...
    TypeError: at has type str: expected seconds as numbers, timestamps, dates or durations
    """
    array = _array(times)
    if array.dtype.kind == "O":
        several = [_moment(time, name) for time in array.ravel()]
        array = np.array(several, dtype=float).reshape(array.shape)
    if array.dtype.kind == "M":
        array = array - np.datetime64(0, "s")
    if array.dtype.kind == "m":
        array = array / _SECOND
    if array.dtype.kind not in "iuf":
        raise _refused(name, getattr(times, "type", array.dtype))
    found = array.astype(float)
    if np.isnan(found).any():
        where = f" at index {int(np.isnan(found).argmax())}" if found.ndim else ""
        raise ValueError(f"{name} has a null or NaN{where}: every record needs a time")
    return found


def _array(times: Any) -> npt.NDArray[Any]:
    if hasattr(times, "__arrow_c_array__") and not hasattr(times, "to_numpy"):
        times = column(times)
    if hasattr(times, "to_numpy"):
        times = _without_zone(times)
        arrow = type(times).__module__.startswith("pyarrow")
        return np.asarray(times.to_numpy(zero_copy_only=False) if arrow else times.to_numpy())
    return np.asarray(times)


def _without_zone(times: Any) -> Any:
    """Convert a pandas column with a time zone to UTC: as an array it would be of objects."""
    if getattr(getattr(times, "dtype", None), "tz", None) is None:
        return times
    return getattr(times, "dt", times).tz_convert(None)


def _moment(time: Any, name: str) -> float:
    if isinstance(time, datetime.timedelta):
        return time.total_seconds()
    if isinstance(time, np.datetime64 | np.timedelta64):
        return float(seconds(np.asarray(time), name))
    if isinstance(time, datetime.datetime):
        zone = time.tzinfo or datetime.UTC
        return time.replace(tzinfo=zone).timestamp()
    if isinstance(time, datetime.date):
        return float(seconds(np.datetime64(time), name))
    if time is None:
        return float("nan")
    if isinstance(time, numbers.Real | Decimal) and not isinstance(time, bool):
        try:
            return float(time)
        except (OverflowError, ValueError):  # of an int that is too large, a signaling NaN
            raise ValueError(f"{name} must be seconds, not {shown(time)}") from None
    raise _refused(name, type(time))


def _refused(name: str, kind: object) -> TypeError:
    if isinstance(kind, np.dtype) and kind.kind in "US":
        kind = kind.type.__base__  # str or bytes, rather than <U4
    kind = kind.__name__ if isinstance(kind, type) else kind
    return TypeError(f"{name} has type {kind}: {_ACCEPTED}")


class StreamClock:
    """The clock of a stream, which a few wrong timestamps do not move.

    The clock is the latest time so far. A time of more than a ``window`` ahead of it is *early*: it
    moves the clock only once `AGREEING` records in a row are early, and then to their median, so
    that a quiet night ends and a wrong unit does not. Until then a filter would compare an early
    record with keys of another time, so a small exact table of early keys decides instead. A time
    of more than a window behind is *late*; as many in a row set the clock back. The clock of a
    filter cannot go back: from then on it gets times with an offset.

    >>> clock = StreamClock(60)
    >>> clock.advance(np.array([1000.0, 1e12, 1001.0]))
    (array([1000., 1000., 1001.]), array([False,  True, False]))
    """

    def __init__(self, window: float) -> None:
        self.window = window
        self.early = self.late = 0
        self._now: float | None = None
        self._latest = self._offset = 0.0
        self._ahead: list[float] = []
        self._behind: list[float] = []
        self._early_keys: dict[int, float] = {}
        self._compare_until = -math.inf

    def seen(
        self,
        times: npt.NDArray[np.float64],
        hashes: Callable[[], npt.NDArray[np.uint64]],
        ask: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.bool_]],
    ) -> npt.NDArray[np.bool_]:
        """Return for each record whether it was seen, by the filter or the table of early keys."""
        at, early = self.advance(times)
        seen = ask(at)
        if early.any() or times.min(initial=math.inf) <= self._compare_until:
            self._judge(times, early, hashes(), seen)
        return seen

    def filter_time(self, time: float) -> float | None:
        """Return the time at which to ask the filter; None if `seen` must decide."""
        now = time if self._now is None else self._now
        if abs(time - now) > self.window or time <= self._compare_until:
            return None
        self._now = max(now, time)
        self._ahead, self._behind = [], []
        self._latest = max(self._latest, time + self._offset)
        return time + self._offset

    def advance(
        self, times: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Return the times at which to ask the filter, and which records are early."""
        if not len(times):
            return times, np.zeros(0, dtype=np.bool_)
        start = times[0] if self._now is None else self._now
        before = np.maximum.accumulate(np.append(start, times))
        if (np.abs(times - before[:-1]) <= self.window).all():
            self._now = float(before[-1])
            self._ahead, self._behind = [], []
            self._latest = max(self._latest, self._now + self._offset)
            return times + self._offset, np.zeros(len(times), dtype=np.bool_)
        several = [self._advance_one(time) for time in times.tolist()]
        at, early = zip(*several, strict=True)
        return np.array(at), np.array(early)

    def _advance_one(self, time: float) -> tuple[float, bool]:
        now = time if self._now is None else self._now
        early, late = time > now + self.window, time < now - self.window
        self.early += early
        self.late += late
        self._ahead = [*self._ahead, time] if early else []
        self._behind = [*self._behind, time] if late else []
        agreeing = max(self._ahead, self._behind, key=len)
        if len(agreeing) == AGREEING:
            now = sorted(agreeing)[AGREEING // 2]
            self._offset = max(0.0, self._latest - now) if early else self._latest - now
            if early:  # the filter has the first of them at an earlier time, soon forgotten
                self._compare_until = now + 2 * self.window
            self._ahead = [ahead for ahead in self._ahead if ahead > now + self.window]
            self._behind = []
        elif not early:
            now = max(now, time)
        self._now = now
        at = max(min(time, now), 0.0) + self._offset
        self._latest = max(self._latest, at)
        return at, early

    def _judge(
        self,
        times: npt.NDArray[np.float64],
        early: npt.NDArray[np.bool_],
        hashes: npt.NDArray[np.uint64],
        seen: npt.NDArray[np.bool_],
    ) -> None:
        table = self._early_keys
        known = np.fromiter(table, dtype=np.uint64, count=len(table))
        asked = np.isin(hashes, np.append(known, hashes[early]))
        for i in np.flatnonzero(asked).tolist():
            before = table.get(int(hashes[i]))
            recent = before is not None and abs(times[i] - before) <= self.window
            seen[i] = recent or (seen[i] and not early[i])
            if early[i]:
                table[int(hashes[i])] = float(times[i])
        while len(table) > _MAX_EARLY_KEYS:
            del table[next(iter(table))]
