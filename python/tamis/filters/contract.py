"""`tamis.Filter`: the base class of all filters."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tamis import _native, filters
from tamis._saved import Saved
from tamis.errors import IncompatibleError
from tamis.planning.kinds import KINDS

_ABILITIES = {
    "add": ("inserts", "keys cannot be added to"),
    "update": ("inserts", "keys cannot be added to"),
    "remove": ("deletes", "keys cannot be removed from"),
    "remove_many": ("deletes", "keys cannot be removed from"),
    "adapt": ("adapts", "false positives cannot be reported to"),
    "adapt_many": ("adapts", "false positives cannot be reported to"),
}
"""Methods that some kinds lack: the ability that they need, and the reason in the error."""


class Filter(_native.Filter, Saved):
    """The base class of all filters, for annotations and ``isinstance``.

    The attributes describe what a filter supports: adding keys after the build (``inserts``),
    removing keys (``deletes``), learning from false positives (``adapts``), merging (``merges``). A
    ``bounded`` filter refuses keys beyond its capacity; others accept them at a higher
    false-positive rate. A ``one_sided`` filter never rejects a key that was added.
    """

    __slots__ = ()

    # Read from the table of kinds. For a stack, the first three depend on its layers, so they are
    # properties of an instance.
    inserts: bool = False
    deletes: bool = False
    bounded: bool = False
    adapts: ClassVar[bool] = False
    merges: ClassVar[bool] = False
    one_sided: ClassVar[bool] = True
    _seed_is_random: bool = False
    """Whether the filter was created, empty, with a seed that its caller did not choose."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Give a class the abilities of its kind, except the ones that it defines."""
        super().__init_subclass__(**arguments)
        if "_kind" not in cls.__dict__:
            return
        kind = KINDS[cls._kind]
        cls.merges, cls.adapts, cls.one_sided = kind.merges, kind.adapts, not kind.forgets
        for ability in ("inserts", "deletes", "bounded"):
            if isinstance(getattr(cls, ability), bool):  # not a property, as of a stack
                setattr(cls, ability, getattr(kind, ability))

    if not TYPE_CHECKING:  # else a type checker would accept any name

        def __getattr__(self, name: str) -> Any:
            """Say which filters have a method that this kind lacks."""
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _ABILITIES:
                ability, what = _ABILITIES[name]
                able = (kind for kind in KINDS.values() if kind.sizes and getattr(kind, ability))
                names = ", ".join(kind.filter for kind in able)
                text += f": {what} a {type(self).__name__} filter; use one of {names}"
                text += ", or build the filter again" if ability == "inserts" else ""
            raise AttributeError(text, name=name, obj=self)

    def __or__(self, other: Any) -> Self:
        """Merge two filters; raise `IncompatibleError` if they cannot be merged."""
        if not isinstance(other, Filter):
            return NotImplemented
        name, others = type(self).__name__, type(other).__name__
        if self.merges:
            raise IncompatibleError(
                f"a {name} filter can be merged only with a {name} filter, not a {others} filter"
            )
        names = ", ".join(kind.filter for kind in KINDS.values() if kind.merges)
        raise IncompatibleError(f"{name} filters cannot be merged; these can: {names}")

    @classmethod
    def from_hashes(cls, *parts: bytes, key: bytes | None = None, **arguments: Any) -> Any:
        """Build a filter from hashes of keys, made elsewhere by `tamis.split`.

        Other arguments are passed to `build`. Parts of the only shard give a filter of this class.
        Parts of one shard of several give a `Sharded` filter that has only this shard, for
        `Sharded.join`; it accepts every key of the other shards.

        >>> import tamis
        >>> parts = [tamis.split(keys, 1)[0] for keys in (["ada", "grace"], ["edsger"])]
        >>> "ada" in tamis.Ribbon.from_hashes(*parts, fpr=0.01)
        True
        """
        if not cls._takes_hashes():
            names = ", ".join(
                each.__name__
                for each in filters.CLASSES.values()
                if issubclass(each, Filter) and each._takes_hashes()
            )
            raise TypeError(
                f"{cls.__name__} filters cannot be built from hashes; these can: {names}"
            )
        shard = _native.Shard(parts, key)
        kernel = cls._shard_kernel(shard, **arguments)
        if shard.shards == 1:
            return cls._of(kernel)
        return filters.Sharded._of(filters.Sharded._join([(shard.index, kernel)], shard.shards))

    @classmethod
    def _takes_hashes(cls) -> bool:
        """Return whether `from_hashes` can build this class: it needs only hashes and a size."""
        return KINDS[cls._kind].sizes is not None

    @classmethod
    def _shard_kernel(cls, shard: _native.Shard, **arguments: Any) -> _native.Handle:
        """Build the kernel of one shard from the arguments of `build`."""
        return cls._plan_kernel(shard.keys, **arguments)

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
        handle: _native.Handle = native._build(size, distinct, capacity)
        return handle


def random_seed(seed: int | None, key: bytes | None) -> int:
    """Return the seed of an adaptive filter: random, unless a seed or a secret key is given."""
    if seed is not None:
        return seed
    return 0 if key is not None else secrets.randbits(64)
