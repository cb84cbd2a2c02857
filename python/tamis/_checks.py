"""Checks of arguments."""

import math
import operator
import os
import re
import warnings
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np

from tamis.errors import KeyKindWarning

MAX_BITS_PER_KEY = 4096
"""The largest budget accepted: far more than any filter can use."""


MALFORMED = (
    KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""Errors of reading a text that is not JSON, or has another structure than the one written."""


def check_number(
    name: str,
    value: object,
    what: str = "a number",
    *,
    above: float = -math.inf,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    below: float = math.inf,
) -> float:
    """Return an argument as a float; ``what`` names the accepted numbers, all of them finite.

    Fractions and NumPy numbers are accepted; bools and decimals are not.

    >>> check_number("lease", float("nan"), "a number of seconds above 0", above=0)
    Traceback (most recent call last):
    ...
    ValueError: lease must be a number of seconds above 0, not nan
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {what}, not {shown(value)} ({type(value).__name__})")
    try:
        found = float(value)
    except OverflowError:  # of an int
        found = math.inf
    if not (math.isfinite(found) and above < found < below and minimum <= found <= maximum):
        raise ValueError(f"{name} must be {what}, not {shown(value)}")
    return found


def shown(value: object) -> str:
    """Write a value in a message: in a few words, if it is long."""
    try:
        text = str(value) if isinstance(value, Real) else repr(value)
    except ValueError:  # of an int of over 4300 digits
        text = ""
    return text if 0 < len(text) <= 60 else f"a long value of type {type(value).__name__}"


def rate_or_budget(
    fpr: float | None, bits_per_key: float | None
) -> tuple[float | None, float | None]:
    """Return a rate between 0 and 1, or a positive budget; exactly one must be given."""
    if (fpr is None) == (bits_per_key is None):
        raise ValueError("pass exactly one of fpr or bits_per_key")
    if fpr is not None:
        return check_rate("fpr", fpr), None
    return None, check_bits_per_key(bits_per_key)


def check_bits_per_key(value: object) -> float:
    """Return a positive budget."""
    what = f"a number above 0 and at most {MAX_BITS_PER_KEY}"
    return check_number("bits_per_key", value, what, above=0, maximum=MAX_BITS_PER_KEY)


def check_rate(name: str, value: object) -> float:
    """Return a rate between 0 and 1, both excluded."""
    return check_number(name, value, "a number between 0 and 1, such as 0.01", above=0, below=1)


def check_share(name: str, value: object) -> float:
    """Return a share from 0 to 1."""
    return check_number(name, value, "a number from 0 to 1", minimum=0, maximum=1)


def check_workload(workload: object, name: str = "workload", *, optional: bool = True) -> None:
    """Raise TypeError if an argument is not a `tamis.Workload`, but a list of queries, say."""
    if not (optional and workload is None) and not hasattr(workload, "curve"):
        raise TypeError(
            f"{name} must be a tamis.Workload, such as Workload.from_queries(log, keys=keys), "
            f"not {type(workload).__name__}"
        )


def check_int(name: str, value: object, maximum: int, minimum: int = 0) -> int:
    """Return an argument as an int in a range; NumPy integers are accepted, bools are not."""
    try:
        found = operator.index(None if isinstance(value, bool) else value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{name} must be an int, not {shown(value)} ({type(value).__name__})"
        ) from None
    if not minimum <= found <= maximum:
        few = 0 <= maximum - minimum < 3
        accepted = _listed(range(minimum, maximum + 1)) if few else f"from {minimum} to {maximum}"
        raise ValueError(f"{name} must be {accepted}, not {shown(found)}")
    return found


def thread_count(threads: int | None) -> int:
    """Return how many threads to start: as many as given, or one per core for None or 0."""
    return check_int("threads", 0 if threads is None else threads, 4096) or os.cpu_count() or 1


MAX_SECONDS = 10**6
"""The longest time-out, lease or staleness: eleven days, which every system call can wait."""

MAX_KEYS = 2**48 - 1
"""The largest capacity of a filter."""


def check_path(path: object, name: str = "path", what: str = "file") -> str:
    """Return the path of a file, or a folder, as a str.

    >>> check_path(None)
    Traceback (most recent call last):
    ...
    TypeError: path must be the path of a file, not None
    """
    if not isinstance(path, str | bytes | os.PathLike):
        raise TypeError(f"{name} must be the path of a {what}, not {shown(path)}")
    return os.fsdecode(path)


def check_iterable(name: str, value: object, what: str) -> None:
    """Refuse a value that is not iterable; ``what`` names the accepted values."""
    if not isinstance(value, Iterable):
        raise TypeError(f"{name} must be {what}, not {shown(value)}")


def one_of(name: str, value: object, choices: Iterable[object]) -> None:
    """Check that a value is one of the choices.

    >>> one_of("layout", "bloked", ["blocked", "standard"])
    Traceback (most recent call last):
    ...
    ValueError: layout must be 'blocked' or 'standard', not 'bloked'
    """
    accepted = list(choices)
    # By type first: arrays and some decimals cannot be compared.
    if not any(isinstance(value, type(each)) and value == each for each in accepted):
        raise ValueError(f"{name} must be {_listed(accepted)}, not {shown(value)}")


def check_parts(parts: Iterable[object], kind: type, what: str) -> None:
    """Check the parts to merge; passing one list of parts is a common mistake.

    >>> check_parts([[1, 2]], int, "a number")
    Traceback (most recent call last):
    ...
    TypeError: parts[0] must be a number, not of type list; call merge(*parts)
    """
    for i, part in enumerate(parts):
        if not isinstance(part, kind):
            given = type(part).__name__
            raise TypeError(f"parts[{i}] must be {what}, not of type {given}; call merge(*parts)")


def _listed(choices: Iterable[object]) -> str:
    *others, last = map(repr, choices)
    return f"{', '.join(others)} or {last}" if others else last


UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
"""Units of a memory budget, in bytes."""


MAX_BYTES = 2**60
"""The first memory budget that is not accepted: more than any machine has."""


def parse_budget(budget: int | str, name: str = "budget") -> int:
    """Read a memory budget: bytes, or a number with a unit in powers of ten.

    >>> parse_budget("64MB"), parse_budget(1000), parse_budget("1000")
    (64000000, 1000, 1000)
    """
    what = f"bytes or a size such as '64MB' ({', '.join(UNITS)})"
    wrong = f"{name} must be {what}, not {shown(budget)}"
    if isinstance(budget, str):
        text = budget.strip()
        text += "B" * text.isdecimal()
        for unit in sorted(UNITS, key=len, reverse=True):
            if text.endswith(unit):
                try:
                    size = float(text[: -len(unit)]) * UNITS[unit]
                except ValueError:
                    break
                if 0 <= size < MAX_BYTES:
                    return int(size)
                break
        raise ValueError(wrong)
    if isinstance(budget, bool) or not isinstance(budget, Integral):
        raise TypeError(wrong)
    if not 0 <= budget < MAX_BYTES:
        raise ValueError(wrong)
    return int(budget)


DURATION_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
"""Units of a duration, in seconds."""


def parse_duration(name: str, value: float | str) -> float:
    """Read a duration: seconds, or a number with its unit.

    >>> parse_duration("miss_cost", "1ms"), parse_duration("miss_cost", 0.5)
    (0.001, 0.5)
    """
    what = f"seconds, or a number with a unit ({', '.join(DURATION_UNITS)}) such as '1ms'"
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9.eE+-]+)\s*(ns|us|µs|ms|s)\s*", value)
        try:
            seconds = float(match[1]) * DURATION_UNITS[match[2]] if match else math.nan
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{name} must be {what}, not {value!r}")
        return seconds
    return check_number(name, value, what, minimum=0)


_KINDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("text", (str,)),
    ("numbers", (int, np.integer)),
)
"""Keys that are never equal to keys of the other kind. Bytes may be the plain form of any key."""


def warn_if_kinds_differ(keys: Any, others: Any, what: str, stacklevel: int = 3) -> None:
    """Warn if the first key can never equal the first of the others; no iterator is read."""
    kinds = _first_kind(keys), _first_kind(others)
    if None not in kinds and kinds[0] != kinds[1]:
        warnings.warn(
            f"the keys are {kinds[0]} and the {what} are {kinds[1]}, which are never equal; "
            "convert one of them",
            KeyKindWarning,
            stacklevel=stacklevel,
        )


def _first_kind(keys: Any) -> str | None:
    """Return the kind of the first key of a list, array or column; None if unknown."""
    if not hasattr(keys, "__len__") or hasattr(keys, "columns") or not len(keys):
        return None
    first: Any = next(iter(keys), None)
    if hasattr(first, "as_py"):
        first = first.as_py()
    return next((name for name, types in _KINDS if isinstance(first, types)), None)
