"""`tamis.stores.Hashes`: a table of hashes in memory, without keys and values."""

from __future__ import annotations

from tamis import _native


class Hashes(_native.Hashes):
    """A table of hashes that serves an adaptive filter as its remote, without a store.

    It must hash as the filter does, with the same ``seed`` or ``key``. It is thread-safe. Threads
    that change the filter at the same time must add a key to this table first and to the filter
    second, as a hash that the filter has and the table does not could lose its slot; and remove it
    in the same order.

    >>> stored = Hashes(["ada", "grace"], seed=7)
    >>> stored.add("alan"); stored.remove("ada")
    >>> len(stored), stored.run(0, 2**64 - 1).shape
    (2, (2, 2))
    """

    __slots__ = ()
