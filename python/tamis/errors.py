"""What tamis raises and warns with.

Each error is also the built-in exception that fits, so that code which knows nothing of tamis
still catches it. A key that is no key is a plain ``TypeError`` or ``OverflowError``, a wrong
argument a ``ValueError``, a key that cannot be removed because it is surely absent a ``KeyError``.
"""

__all__ = [
    "BuildError",
    "CapacityError",
    "CapacityWarning",
    "FormatError",
    "IncompatibleError",
    "LeaseError",
    "TamisError",
]


class TamisError(Exception):
    """The base of all errors of tamis."""


class FormatError(TamisError, ValueError):
    """Bytes that are not a filter, or a damaged one."""


class IncompatibleError(TamisError, ValueError):
    """Two filters that cannot be merged, or a key that does not belong to a file."""


class CapacityError(TamisError, ValueError):
    """No room for another key; what the filter holds is as it was."""


class BuildError(TamisError, ValueError):
    """A structure that could not be built from these keys."""


class LeaseError(TamisError, RuntimeError):
    """A write to a store whose lease another guard holds; nothing was written."""


class CapacityWarning(UserWarning):
    """A filter that holds more keys than it was made for; said once per filter."""
