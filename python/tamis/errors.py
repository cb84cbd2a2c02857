"""The errors and warnings of tamis.

Each error also derives from the built-in exception that fits, so that code that does not know tamis
can catch it. An unsupported key raises ``TypeError`` or ``OverflowError``, a bad argument
``ValueError``, and the removal of a key that is certainly absent ``KeyError``.
"""

__all__ = [
    "BuildError",
    "CapacityError",
    "CapacityWarning",
    "FormatError",
    "IncompatibleError",
    "KeyKindWarning",
    "LeaseError",
    "StoreError",
    "TamisError",
]


class TamisError(Exception):
    """Base class of all errors of tamis."""


class FormatError(TamisError, ValueError):
    """The bytes are not a filter, or are damaged."""


class IncompatibleError(TamisError, ValueError):
    """Two filters cannot be merged, or a secret key does not belong to a file."""


class CapacityError(TamisError, ValueError):
    """The filter is full; it is unchanged."""


class BuildError(TamisError, ValueError):
    """A filter could not be built from these keys."""


class LeaseError(TamisError, RuntimeError):
    """A guard cannot write without the store's lease; nothing was written."""


class StoreError(TamisError, ConnectionError):
    """A store is unreachable or took too long.

    After a failed write it is unknown whether the write took place.
    """


class KeyKindWarning(UserWarning):
    """Keys and queries are of different kinds, such as integers and text, so none can match."""


class CapacityWarning(UserWarning):
    """A filter holds more keys than its capacity; issued once per filter."""
