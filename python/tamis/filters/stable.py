"""`tamis.StableBloom`: a stream in fixed memory, at a rate that stays."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any, Literal, Self, SupportsIndex, cast, get_args

from tamis import _native
from tamis._types import Keys
from tamis.errors import IncompatibleError
from tamis.filters.contract import Contract
from tamis.planning import stable as planning
from tamis.planning.arguments import MOST_KEYS, check_rate_or_budget, one_of, whole

Decrement = Literal["adjacent", "independent"]


class StableBloom(_native.StableBloom, Contract):
    """A stable Bloom filter: an endless stream in fixed memory, at a rate that stays.

    Each insertion lowers some counters at random, so old keys fade: the filter **may deny a key**
    that came long ago, and for ever keeps its rate for keys that never came. ``gap`` is after how
    many insertions a key typically comes again; `expected_fnr` says how many are denied then.
    Where a largest gap is known, `tamis.Windowed` denies none of the keys within it.

    >>> f = StableBloom(gap=2000, fpr=0.01, bits=2**16)
    >>> f.seen("ada"), f.seen("ada")
    (False, True)
    >>> f.seen_many(["grace", "ada", "grace"])
    array([False,  True,  True])
    >>> round(f.expected_fnr(2000), 2), round(f.stable_fpr, 3)
    (0.62, 0.01)

    References: Deng, Rafiei 2006.
    """

    inserts = True
    one_sided = False
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
        """Make an empty filter: the best of these ``bits``, or the smallest with at most ``fnr``.

        ``decrement`` chooses the counters that an insertion lowers: a row of them from one random
        start, as the original does, or each by itself, which is slower.
        """
        gap = whole("gap", gap, MOST_KEYS)
        size = _size(gap, fpr, bits, fnr)
        return cls._sized(size, decrement=decrement, gap=gap, seed=seed, key=key)

    @classmethod
    def _sized(
        cls, size: planning.Size, *, decrement: Decrement, gap: int, seed: int, key: bytes | None
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
        """Make a filter and insert these keys in their order; ``gap`` is their number if not given.

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
    def size(self) -> planning.Size:
        """Its counters (m), what they are set to (Max), counters per key (K) and lowered (P)."""
        return planning.Size(self._cells, self._most, self._hashes, self._decrements)

    @property
    def decrement(self) -> Decrement:
        """Which counters an insertion lowers."""
        return "independent" if self._independent else "adjacent"

    @property
    def bits_per_key(self) -> float:
        """The memory per key of the gap that it was made for."""
        return self.size_in_bits / max(self.capacity, 1)

    @property
    def stable_fpr(self) -> float:
        """The rate that `expected_fpr` comes to and stays at, whatever the stream."""
        return planning.limit_rate(self.size)

    def expected_fnr(self, gap: float) -> float:
        """Predict the share of keys that are denied so many insertions after they came."""
        return planning.false_negatives(self.size, gap)

    def __or__(self, other: Any) -> Self:
        """Refuse: what faded in one is not known to the other."""
        if isinstance(other, Contract):
            raise IncompatibleError(
                f"a StableBloom and a {type(other).__name__} filter do not merge: counters tell "
                "how long ago a key came in one stream, and two streams have no common order"
            )
        return NotImplemented

    def _describe(self) -> str:
        size = self.size
        return (
            f"{size.hashes} hashes, counters to {size.most}, {size.decrements} "
            f"{self.decrement} lowered"
        )


def _size(gap: int, fpr: float, bits: SupportsIndex | None, fnr: float | None) -> planning.Size:
    check_rate_or_budget(fpr, None)
    if (bits is None) == (fnr is None):
        raise ValueError("pass exactly one of bits or fnr")
    if bits is not None:
        return planning.size(whole("bits", bits, 2**50), fpr, gap)
    assert fnr is not None
    if not 0 < fnr < 1:
        raise ValueError(f"fnr must be between 0 and 1, such as 0.1, not {fnr}")
    return planning.size_for(float(fnr), float(fpr), gap)
