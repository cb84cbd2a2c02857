"""`tamis.Windowed`: the last keys of a stream, none of them rejected."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any, Self, SupportsIndex, cast

from tamis import _native
from tamis._checks import MAX_KEYS, check_int, check_number
from tamis._types import Keys
from tamis.errors import IncompatibleError
from tamis.filters.contract import Filter
from tamis.planning import windowed as planning


class Windowed(_native.Windowed, Filter):
    """An age-partitioned Bloom filter: the last keys of a stream, in fixed memory.

    None of the last ``window`` insertions is rejected; older keys are forgotten a slice at a time.
    With ``seconds``, no key of the last ``seconds`` seconds is rejected, and ``window`` is their
    expected number: if there are more, the rate rises (`expected_fpr`), but no key is forgotten
    early. ``at=`` is the time of an insertion in seconds, or a timestamp
    (default: `time.time`).

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
        """Create an empty filter for a window, from a rate or a budget."""
        window = check_int("window", window, MAX_KEYS, minimum=1)
        size = planning.size(window, fpr=fpr, bits_per_key=bits_per_key)
        step = 0.0
        if seconds is not None:
            shortest = planning.MIN_STEP * size.ages
            what = f"a number of seconds from {shortest:g} to {planning.MAX_SECONDS:g}"
            step = check_number(
                "seconds", seconds, what, minimum=shortest, maximum=planning.MAX_SECONDS
            )
            step /= size.ages
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
        """Create a filter and insert these keys in order; ``window`` is by default their number.

        >>> bool(Windowed.build(range(1000), fpr=0.01).contains(range(1000)).all())
        True
        """
        if window is None:
            if not isinstance(keys, Sized | Iterable):
                _native.hash_keys(keys)  # raises the error that `update` would raise
            keys = keys if isinstance(keys, Sized) else list(cast(Iterable[Any], keys))
            window = max(len(keys), 1)
        made = cls(window, fpr=fpr, bits_per_key=bits_per_key, seed=seed, key=key)
        made.update(keys)
        return made

    @property
    def size(self) -> planning.WindowedSize:
        """Slices per key (k), generations remembered (l), bits per slice, keys per generation."""
        return planning.WindowedSize(self._hashes, self._ages, self._slice_bits, self._generation)

    @property
    def seconds(self) -> float | None:
        """How long a key is remembered at least, in seconds; None for a window of keys."""
        return self._step * self._ages if self._step else None

    @property
    def bits_per_key(self) -> float:
        """Bits per key of the window."""
        return self.size_in_bits / max(self.capacity, 1)

    @property
    def highest_fpr(self) -> float:
        """The highest value of `expected_fpr`, just before a slice is dropped."""
        return self.size.rate()

    def __or__(self, other: Any) -> Self:
        """Raise `IncompatibleError`: two streams have no common order."""
        if isinstance(other, Filter):
            raise IncompatibleError(
                "Windowed filters cannot be merged: a slice holds the keys of one age in one "
                "stream, and two streams have no common order"
            )
        return NotImplemented

    def _describe(self) -> str:
        size = self.size
        window = "" if self.seconds is None else f"{self.seconds:g} seconds, "
        return f"{window}{size.hashes} of {size.hashes + size.ages} slices per key"
