"""Times of records, in any of the usual types, as seconds since 1970-01-01 UTC."""

from __future__ import annotations

import datetime
import numbers
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from tamis._checks import shown
from tamis._columns import column

_ACCEPTED = "expected seconds as numbers, timestamps, dates or durations"

_SECOND = np.timedelta64(1, "s")


def seconds(times: Any, name: str = "at") -> npt.NDArray[np.float64]:
    """Return times as seconds; ``name`` is what errors call them.

    Numbers and durations are seconds. Timestamps and dates of any unit and time zone are seconds
    since 1970-01-01 UTC; those without a time zone are in UTC. One time gives an array without
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
