"""The contract: what every filter has, whatever its kind."""

from __future__ import annotations

import secrets
from typing import Any, ClassVar, Self

from tamis import _native, filters
from tamis._saved import Saved
from tamis.errors import IncompatibleError
from tamis.planning.kinds import KINDS


class Contract(_native.Filter, Saved):
    """What every filter has in addition to the native methods.

    The attributes describe what a filter supports: adding keys after the build (``inserts``),
    removing keys (``deletes``), merging (``merges``). A ``bounded`` filter refuses keys beyond its
    capacity; others accept them at a higher false-positive rate. A ``one_sided`` filter never
    rejects a key that was added.
    """

    __slots__ = ()

    # For a stack these depend on its layers, so they are properties of an instance.
    inserts: bool = False
    deletes: bool = False
    bounded: bool = False
    merges: ClassVar[bool] = False
    one_sided: ClassVar[bool] = True
    _seed_is_random: bool = False
    """Whether the filter was created, empty, with a seed that its caller did not choose."""

    def __or__(self, other: Any) -> Self:
        """Merge two filters; raise `IncompatibleError` if they cannot be merged."""
        if not isinstance(other, Contract):
            return NotImplemented
        name, others = type(self).__name__, type(other).__name__
        if self.merges:
            raise IncompatibleError(
                f"a {name} filter can be merged only with a {name} filter, not a {others} filter"
            )
        mergeable = (cls for cls in filters.CLASSES.values() if getattr(cls, "merges", False))
        names = ", ".join(cls.__name__ for cls in mergeable)
        raise IncompatibleError(f"{name} filters cannot be merged; these can: {names}")

    @classmethod
    def _plan_kernel(cls, distinct: _native.Distinct, **arguments: Any) -> _native.Handle:
        """Choose a size for these keys from the arguments of `build`, and build the kernel."""
        sizes = KINDS[cls._kind].sizes
        assert sizes is not None  # other kinds override this method
        return cls._build_kernel(sizes.size(len(distinct), **arguments), distinct)

    @classmethod
    def _build_kernel(
        cls, size: Any, distinct: _native.Distinct, capacity: int = 0
    ) -> _native.Handle:
        """Build a kernel of this size, for ``capacity`` keys where the kind supports insertions."""
        native: Any = cls
        handle: _native.Handle = native._build(size, distinct)
        return handle


def random_seed(seed: int | None, key: bytes | None) -> int:
    """Return the seed of an adaptive filter: random, unless a seed or a secret key is given."""
    if seed is not None:
        return seed
    return 0 if key is not None else secrets.randbits(64)
