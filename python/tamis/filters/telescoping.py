"""`tamis.Telescoping` and `tamis.Extending`: quotient filters that learn from their mistakes."""

from __future__ import annotations

from typing import ClassVar, Literal, Self, SupportsIndex

from tamis import _native
from tamis._types import Keys
from tamis.filters.contract import Contract, random_seed
from tamis.planning import telescoping as planning
from tamis.planning.arguments import MOST_KEYS, one_of, whole

Selectors = Literal["growing", "block", "plain"]


class AdaptiveQuotient(_native.AdaptiveQuotient, Contract):
    """What telescoping and extending filters share: all but the way an element moves."""

    inserts = True
    deletes = True
    merges = True
    bounded = True
    _extending: ClassVar[bool]
    _layouts: ClassVar[tuple[str, ...]]

    def __new__(
        cls,
        capacity: SupportsIndex,
        *,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        selectors: Selectors = "growing",
        seed: int | None = None,
        key: bytes | None = None,
    ) -> Self:
        """Make an empty filter for ``capacity`` keys; ``seed`` is random unless it is given."""
        capacity = whole("capacity", capacity, MOST_KEYS)
        one_of("selectors", selectors, cls._layouts)
        size = planning.size(capacity, fpr=fpr, bits_per_key=bits_per_key, selectors=selectors)
        seed = random_seed(seed, key)
        return cls._of(cls._empty(size, cls._extending, capacity, seed, key))

    @classmethod
    def build(
        cls,
        keys: Keys,
        *,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        selectors: Selectors = "growing",
        seed: int | None = None,
        key: bytes | None = None,
    ) -> Self:
        """Build the filter of these keys, each stored once.

        >>> len(Telescoping.build([1, 2, 2, 3], fpr=0.01))
        3
        """
        distinct = _native.Distinct(keys, random_seed(seed, key), key)
        return cls._of(
            cls._plan_kernel(distinct, fpr=fpr, bits_per_key=bits_per_key, selectors=selectors)
        )

    @classmethod
    def _build_kernel(
        cls, size: planning.Size, distinct: _native.Distinct, capacity: int = 0
    ) -> _native.Handle:
        one_of("selectors", size.selectors, cls._layouts)
        return cls._build(size, cls._extending, distinct)

    @property
    def _size(self) -> planning.Size:
        return planning.Size(self.selectors, self.quotients, self.remainder_bits)

    @property
    def load(self) -> float:
        """The share of the slots that are in use."""
        return len(self) / self._slots

    def __or__(self, other: AdaptiveQuotient) -> Self:
        """Return the filter of the insertions into both; they must have one shape and seed."""
        if type(other) is not type(self):
            return super().__or__(other)
        return self._of(self._merged(other))

    def _describe(self) -> str:
        return f"{self.remainder_bits}-bit remainders, {self.selectors} selectors"


class Telescoping(AdaptiveQuotient):
    """A telescoping filter: every false positive that it is told of is fixed.

    A quotient filter in which an element that was taken for an absent key slides on to further
    bits of its hash. `adapt` needs the stored hashes, given as a *remote*: the index of a store, or
    `tamis.stores.Hashes`. Insert into the filter first and then into the store; delete in the store
    first and then here, with the remote. Then no stored key is ever denied.

    ``selectors="growing"`` (the default) remembers every fix and takes more memory as they come;
    ``"block"`` has 56 bits for each 64 elements and forgets a block that needs more; ``"plain"``
    keeps a byte for each element.

    >>> from tamis.stores import Hashes
    >>> f = Telescoping.build(range(1000), fpr=0.05, seed=1)
    >>> stored = Hashes(range(1000), seed=1)
    >>> wrong = [key for key in range(1000, 2000) if key in f]
    >>> fixed = f.adapt_many(wrong, stored)
    >>> len(wrong) > 0, fixed.all(), f.contains(wrong).any(), f.contains(range(1000)).all()
    (True, np.True_, np.False_, np.True_)

    Reference: Lee, McCauley, Singh, Stein 2021.
    """

    _kind = "telescoping"
    _extending = False
    _layouts = ("growing", "block", "plain")


class Extending(AdaptiveQuotient):
    """An extending (broom) filter: a false positive lengthens the fingerprint that caused it.

    Used as `Telescoping`. A longer fingerprint is taken for fewer other keys too, but a bit tells
    only every second key apart, so it takes more memory for the same fixes.

    >>> from tamis.stores import Hashes
    >>> f = Extending.build(range(1000), fpr=0.05, seed=1)
    >>> wrong = next(key for key in range(1000, 2000) if key in f)
    >>> f.adapt(wrong, Hashes(range(1000), seed=1)), wrong in f
    (True, False)

    References: Bender et al. 2018; Lee, McCauley, Singh, Stein 2021.
    """

    _kind = "extending"
    _extending = True
    _layouts = ("growing", "block")
