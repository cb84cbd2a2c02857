"""`tamis.StableBloom`: an endless stream in fixed memory, with a bounded rate."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any, Literal, Self, SupportsIndex, cast, get_args

from tamis import _native
from tamis._checks import MAX_KEYS, check_int, check_number, check_rate, one_of
from tamis._types import Keys
from tamis.errors import IncompatibleError
from tamis.filters.contract import Filter
from tamis.planning import stable as planning

Decrement = Literal["adjacent", "independent"]


class StableBloom(_native.StableBloom, Filter):
    """A stable Bloom filter: an endless stream in fixed memory, with a bounded rate.

    Each insertion decrements some counters at random, so old keys fade: the filter **may reject a
    key** that was added long ago, but its false-positive rate stays at its limit. ``gap`` is the
    typical number of insertions before a key is repeated; `expected_fnr` is the fraction of keys
    rejected then. If the largest gap is known, `tamis.Windowed` rejects no key within it.

    >>> f = StableBloom(gap=2000, fpr=0.01, bits=2**16)
    >>> f.seen("ada"), f.seen("ada")
    (False, True)
    >>> f.seen_many(["grace", "ada", "grace"])
    array([False,  True,  True])
    >>> round(f.expected_fnr(2000), 2), round(f.stable_fpr, 3)
    (0.62, 0.01)

    References: Deng, Rafiei 2006.
    """

    _kind = "stable"

    def __new__(
        cls,
        gap: SupportsIndex,
        *,
        fpr: float,
        bits: SupportsIndex | None = None,
        fnr: float | None = None,
        decrement: Decrement = "adjacent",
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Create an empty filter: the best with these ``bits``, or the smallest for this ``fnr``.

        ``decrement`` is how the counters to decrement are chosen: adjacent ones from one random
        start, as in the paper, or each independently, which is slower.
        """
        gap = check_int("gap", gap, MAX_KEYS)
        size = _size(gap, fpr, bits, fnr)
        return cls._sized(size, decrement=decrement, gap=gap, seed=seed, key=key)

    @classmethod
    def _sized(
        cls,
        size: planning.StableSize,
        *,
        decrement: Decrement,
        gap: int,
        seed: int,
        key: bytes | None,
    ) -> Self:
        one_of("decrement", decrement, get_args(Decrement))
        return cls._of(cls._empty(size, decrement == "independent", gap, seed, key))

    @classmethod
    def build(
        cls,
        keys: Keys,
        *,
        fpr: float,
        gap: SupportsIndex | None = None,
        bits: SupportsIndex | None = None,
        fnr: float | None = None,
        decrement: Decrement = "adjacent",
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Create a filter and insert these keys in order; ``gap`` is by default their number.

        >>> f = StableBloom.build(range(1000), fpr=0.01, fnr=0.05)
        >>> len(f), bool(f.contains(range(1000)).mean() > 0.9)
        (1000, True)
        """
        if gap is None:
            keys = keys if isinstance(keys, Sized) else list(cast(Iterable[Any], keys))
            gap = len(keys)
        made = cls(gap, fpr=fpr, bits=bits, fnr=fnr, decrement=decrement, seed=seed, key=key)
        made.update(keys)
        return made

    @property
    def size(self) -> planning.StableSize:
        """The number of counters (m), their maximum (Max), counters per key (K), decrements (P)."""
        return planning.StableSize(self._cells, self._max, self._hashes, self._decrements)

    @property
    def decrement(self) -> Decrement:
        """How the counters to decrement are chosen."""
        return "independent" if self._independent else "adjacent"

    @property
    def bits_per_key(self) -> float:
        """Bits per key of the gap that it was created for."""
        return self.size_in_bits / max(self.capacity, 1)

    @property
    def stable_fpr(self) -> float:
        """The limit of `expected_fpr`, for any stream."""
        return planning.limit_rate(self.size)

    def expected_fnr(self, gap: float) -> float:
        """Predict the fraction of keys rejected ``gap`` insertions after they were added."""
        gap = check_number("gap", gap, "a number of insertions of at least 0", minimum=0)
        return planning.false_negatives(self.size, gap)

    def __or__(self, other: Any) -> Self:
        """Raise `IncompatibleError`: two streams have no common order."""
        if isinstance(other, Filter):
            raise IncompatibleError(
                "StableBloom filters cannot be merged: a counter depends on how long ago a key was "
                "added to one stream, and two streams have no common order"
            )
        return NotImplemented

    def _describe(self) -> str:
        size = self.size
        return (
            f"{size.hashes} hashes, counters to {size.max_value}, {size.decrements} "
            f"{self.decrement} lowered"
        )


def _size(
    gap: int, fpr: float, bits: SupportsIndex | None, fnr: float | None
) -> planning.StableSize:
    fpr = check_rate("fpr", fpr)
    if (bits is None) == (fnr is None):
        raise ValueError("pass exactly one of bits or fnr")
    if bits is not None:
        return planning.size(check_int("bits", bits, 2**50), fpr, gap)
    return planning.size_for(check_rate("fnr", fnr), fpr, gap)
