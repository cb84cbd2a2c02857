"""The contracts of filters and stores, for classes of your own.

`check_filter` holds a filter class to what every filter of tamis promises, and `check_store` a
store to what a guard relies on. The tests of tamis run the same checks.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from tamis.testing import filters, saved, stores, updates
from tamis.testing.filters import FilterCase, within_noise
from tamis.testing.stores import StoreCase

__all__ = [
    "FILTER_CHECKS",
    "STORE_CHECKS",
    "FilterCase",
    "StoreCase",
    "check_filter",
    "check_store",
    "within_noise",
]

FILTER_CHECKS = (*filters.CHECKS, *saved.CHECKS, *updates.CHECKS)
"""Every check of a filter: a function of a `FilterCase` that raises `AssertionError`."""

STORE_CHECKS = stores.CHECKS
"""Every check of a store: a function of a `StoreCase` whose store is empty."""


def check_filter(cls: Any, **arguments: Any) -> None:
    """Check a filter class, or a `FilterCase`; ``arguments`` are passed to ``build``.

    The class needs ``build(keys, fpr=...)``, ``key in f``, ``f.contains(keys)``, ``len(f)``,
    ``f.size_in_bits``, ``f.bits_per_key`` and ``f.expected_fpr``. Further checks apply where its
    filters have the attributes ``inserts``, ``deletes``, ``merges`` or ``bounded`` set to True,
    and where ``build`` takes ``seed`` or ``bits_per_key``. A failed check raises `AssertionError`
    with the name of the check in a note.

    >>> import tamis
    >>> tamis.testing.check_filter(tamis.Fuse)
    """
    case = cls if isinstance(cls, FilterCase) else FilterCase(cls, arguments)
    for check in FILTER_CHECKS:
        _run(check, case, str(case))


def check_store(open: Callable[[str], Any], *, exclusive: bool = False) -> None:
    """Check a store: ``open(name)`` opens the store of a name, a new and empty one at first.

    Opening a name again returns the same store, as another process would open it, unless
    ``exclusive`` says that only one process can. A failed check raises `AssertionError` with the
    name of the check in a note.

    >>> import tempfile, tamis
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tamis.testing.check_store(lambda name: tamis.stores.SQLite(f"{folder}/{name}"))
    """
    for check in STORE_CHECKS:
        _run(check, StoreCase(partial(open, check.__name__), exclusive), "the store")


def _run(check: Callable[[Any], None], case: Any, subject: str) -> None:
    if not __debug__:
        raise RuntimeError("the checks are assertions: run Python without -O")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an unexpected warning fails the check
            check(case)
    except BaseException as error:
        error.add_note(f"{subject} failed the check {check.__name__}: {check.__doc__}")
        raise
