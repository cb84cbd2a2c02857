"""The contract: what every filter has, whatever its structure."""

from __future__ import annotations

import secrets
from typing import Any, ClassVar, Self

from tamis import _native
from tamis._saved import Saved
from tamis.errors import IncompatibleError
from tamis.planning.kinds import KINDS


class Contract(_native.Filter, Saved):
    """What every filter has beside the native methods.

    The attributes say what a filter can do: take keys in after it was built (``inserts``),
    give them back (``deletes``), be merged with another (``merges``), refuse keys that it has no
    room for instead of erring more (``bounded``), and whether it never denies a key that is there
    (``one_sided``).
    """

    __slots__ = ()

    # Of a stack these depend on its layers, so they are asked of an instance.
    inserts: bool = False
    deletes: bool = False
    bounded: bool = False
    merges: ClassVar[bool] = False
    one_sided: ClassVar[bool] = True

    def __or__(self, other: Any) -> Self:
        """Merge; `IncompatibleError` where the two filters cannot be."""
        if isinstance(other, Contract):
            one, two = type(self).__name__, type(other).__name__
            raise IncompatibleError(f"a {one} and a {two} filter do not merge")
        return NotImplemented

    @classmethod
    def _plan_kernel(cls, distinct: _native.Distinct, **arguments: Any) -> _native.Handle:
        """Choose a size for distinct keys, with the arguments of `build`, and build the kernel."""
        sizes = KINDS[cls._kind].sizes
        assert sizes is not None  # other kinds have a way of their own
        return cls._build_kernel(sizes.size(len(distinct), **arguments), distinct)

    @classmethod
    def _build_kernel(
        cls, size: Any, distinct: _native.Distinct, capacity: int = 0
    ) -> _native.Handle:
        """Build the kernel of this size, with room for more keys where the kind takes them."""
        raise NotImplementedError


def random_seed(seed: int | None, key: bytes | None) -> int:
    """Return the seed of a filter that faces strangers: random unless it, or a key, is given."""
    if seed is not None:
        return seed
    return 0 if key is not None else secrets.randbits(64)
