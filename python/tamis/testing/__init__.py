"""The contracts of filters and stores, for classes of your own.

`check_filter` holds a filter class to what every filter of tamis promises, and `check_store` a
store to what a guard relies on. The tests of tamis run the same checks.
"""

import warnings
from typing import Any

from tamis.testing import filters, saved, updates
from tamis.testing.filters import FilterCase, within_noise

__all__ = ["FILTER_CHECKS", "FilterCase", "check_filter", "within_noise"]

FILTER_CHECKS = (*filters.CHECKS, *saved.CHECKS, *updates.CHECKS)
"""Every check of a filter: a function of a `FilterCase` that raises `AssertionError`."""


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
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # an unexpected warning fails the check
                check(case)
        except BaseException as error:
            error.add_note(f"{case} failed the check {check.__name__}: {check.__doc__}")
            raise
