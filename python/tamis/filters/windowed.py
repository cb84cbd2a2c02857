"""`tamis.Windowed`: the last keys of a stream, none of them denied."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any, Self, SupportsIndex, cast

from tamis import _native
from tamis._types import Keys
from tamis.errors import IncompatibleError
from tamis.filters.contract import Contract
from tamis.planning import windowed as planning
from tamis.planning.arguments import MOST_KEYS, whole


class Windowed(_native.Windowed, Contract):
    """An age-partitioned Bloom filter: the last keys of a stream in fixed memory, none denied.

    None of the last ``window`` insertions is denied; older keys are forgotten a slice at a time.
    With ``seconds``, none of the keys of the last so many seconds is denied, and ``window`` is how
    many are expected in that time: should more come, the rate rises (`expected_fpr`), and nothing
    is forgotten early. Times are ``at=`` in seconds or as timestamps, those of `time.time` if not
    given.

    >>> f = Windowed(1000, fpr=0.01)
    >>> f.seen("ada"), f.seen("ada")
    (False, True)
    >>> f.update(range(999)); "ada" in f
    True
    >>> f.update(range(999, 3000)); "ada" in f
    False
    >>> f = Windowed(1000, seconds=60, fpr=0.01)
    >>> f.seen("ada", at=0), f.seen("ada", at=59), f.seen("ada", at=200)
    (False, True, False)

    References: Shtul, Baquero, Almeida 2020.
    """

    inserts = True
    one_sided = False
    _kind = "windowed"

    def __new__(
        cls,
        window: SupportsIndex,
        *,
        seconds: float | None = None,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Make an empty filter of a window, at a rate or within a budget."""
        window = whole("window", window, MOST_KEYS, least=1)
        size = planning.size(window, fpr=fpr, bits_per_key=bits_per_key)
        if seconds is not None and not 0 < seconds < float("inf"):
            raise ValueError(f"seconds must be a positive number, not {seconds}")
        step = 0.0 if seconds is None else seconds / size.ages
        return cls._of(cls._empty(size, step, window, seed, key))

    @classmethod
    def build(
        cls,
        keys: Keys,
        *,
        window: SupportsIndex | None = None,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Make a filter and insert these keys in their order, for as many if not told otherwise.

        >>> bool(Windowed.build(range(1000), fpr=0.01).contains(range(1000)).all())
        True
        """
        if window is None:
            keys = keys if isinstance(keys, Sized) else list(cast(Iterable[Any], keys))
            window = max(len(keys), 1)
        made = cls(window, fpr=fpr, bits_per_key=bits_per_key, seed=seed, key=key)
        made.update(keys)
        return made

    @property
    def size(self) -> planning.Size:
        """Slices per key (k), generations remembered (l), bits of a slice, keys of a generation."""
        return planning.Size(self._hashes, self._ages, self._slice_bits, self._generation)

    @property
    def seconds(self) -> float | None:
        """How long a key is remembered at least, where that is counted in seconds."""
        return self._step * self._ages if self._step else None

    @property
    def bits_per_key(self) -> float:
        """The memory per key of the window."""
        return self.size_in_bits / max(self.capacity, 1)

    @property
    def highest_fpr(self) -> float:
        """The rate that `expected_fpr` comes to just before a slice is dropped, and no higher."""
        return self.size.rate()

    def __or__(self, other: Any) -> Self:
        """Refuse: two streams have no common order."""
        if isinstance(other, Contract):
            raise IncompatibleError(
                f"a Windowed and a {type(other).__name__} filter do not merge: slices are ages in "
                "one stream, and two streams have no common order"
            )
        return NotImplemented

    def _describe(self) -> str:
        size = self.size
        window = "" if self.seconds is None else f"{self.seconds:g} seconds, "
        return f"{window}{size.hashes} of {size.hashes + size.ages} slices per key"
