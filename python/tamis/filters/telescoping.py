"""`tamis.Telescoping` and `tamis.Extending`: quotient filters that fix false positives."""

from __future__ import annotations

from typing import ClassVar, Literal, Self, SupportsIndex

from tamis import _native
from tamis._checks import MAX_KEYS, check_int, one_of
from tamis._types import Keys
from tamis.filters.contract import Filter, random_seed
from tamis.planning import telescoping as planning

Selectors = Literal["growing", "block", "plain"]


class AdaptiveQuotient(_native.AdaptiveQuotient, Filter):
    """The common base of telescoping and extending filters; they differ in how elements move."""

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
        """Create an empty filter for ``capacity`` keys, with a random ``seed`` by default."""
        capacity = check_int("capacity", capacity, MAX_KEYS)
        one_of("selectors", selectors, cls._layouts)
        size = planning.size(capacity, fpr=fpr, bits_per_key=bits_per_key, selectors=selectors)
        secret = random_seed(seed, key)
        made = cls._of(cls._empty(size, cls._extending, capacity, secret, key))
        made._seed_is_random = seed is None
        return made

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
        """Build a filter of these keys, each stored once.

        >>> len(Telescoping.build([1, 2, 2, 3], fpr=0.01))
        3
        """
        distinct = _native.Distinct(keys, random_seed(seed, key), key)
        return cls._of(
            cls._plan_kernel(distinct, fpr=fpr, bits_per_key=bits_per_key, selectors=selectors)
        )

    @classmethod
    def _build_kernel(
        cls, size: planning.TelescopingSize, distinct: _native.Distinct, capacity: int = 0
    ) -> _native.Handle:
        one_of("selectors", size.selectors, cls._layouts)
        return cls._build(size, cls._extending, distinct)

    @property
    def _size(self) -> planning.TelescopingSize:
        return planning.TelescopingSize(self.selectors, self.quotients, self.remainder_bits)

    @property
    def load(self) -> float:
        """The fraction of slots in use."""
        return len(self) / self._slots

    def __or__(self, other: AdaptiveQuotient) -> Self:
        """Return a filter of the keys of both, which must have the same size and seed."""
        if type(other) is not type(self):
            return super().__or__(other)
        return self._of(self._merged(other))

    def _describe(self) -> str:
        return f"{self.remainder_bits}-bit remainders, {self.selectors} selectors"


class Telescoping(AdaptiveQuotient):
    """A telescoping filter: fixes every false positive that is reported to it.

    It is a quotient filter in which the element that caused a false positive moves on to further
    bits of its hash. `adapt` needs the stored hashes as a *remote*: the index of a store, or
    `tamis.stores.Hashes`. Insert into the filter first, then into the store; delete from the store
    first, then from the filter, with the remote. Then no stored key is ever rejected.

    ``selectors="growing"`` (default) remembers every fix, and takes more memory with each;
    ``"block"`` has 56 bits per 64 elements, and resets a block that needs more; ``"plain"`` has one
    byte per element.

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

    It has the interface of `Telescoping`. A longer fingerprint also matches fewer other keys, but
    one bit distinguishes only half of them, so the same fixes take more memory.

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
