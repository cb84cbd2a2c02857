"""`tamis.Ribbon`: the smallest filter."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

from tamis import _native
from tamis._types import Keys
from tamis.filters.contract import Contract
from tamis.planning import ribbon as planning

Layout = Literal["interleaved", "columns"]


class Ribbon(Contract):
    """A ribbon filter: static, and the smallest, at 1.01 bits per key and halved rate.

    ``layout="interleaved"`` keeps what one question needs together and is the fastest;
    ``"columns"`` can be cut to fewer columns, each of which halves the rate, see `truncate`.

    >>> f = Ribbon.build(["ada", "grace"], fpr=0.001)
    >>> f.contains(["ada", "alan", "grace"])
    array([ True, False,  True])
    >>> round(Ribbon.build(range(100_000), fpr=2**-8).bits_per_key, 1)
    8.0

    References: Dillinger, Walzer 2021; Dillinger, Hübschle-Schneider, Sanders, Walzer 2022.
    """

    @classmethod
    def build(
        cls,
        keys: Keys,
        *,
        fpr: float | None = None,
        bits_per_key: float | None = None,
        layout: Layout = "interleaved",
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self:
        """Build the filter of these keys, sized for the distinct ones among them.

        >>> len(Ribbon.build([1, 2, 2, 3], bits_per_key=10))
        3
        """
        distinct = _native.Distinct(keys, seed, key)
        return cls._of(cls._built(distinct, layout=layout, fpr=fpr, bits_per_key=bits_per_key))

    @classmethod
    def _built(
        cls, distinct: _native.Distinct, *, layout: Layout = "interleaved", **rate: Any
    ) -> _native.Kernel:
        columns, levels = planning.size(len(distinct), **rate)
        budget = rate.get("bits_per_key")
        while True:
            kernel = _native.ribbon_build(layout, columns, levels, distinct)
            # Once in some thousands of small sets, chance makes it larger than planned.
            if budget is None or cls._of(kernel).bits_per_key <= budget or columns == 1:
                return kernel
            columns -= 1

    @property
    def layout(self) -> Layout:
        """How the columns lie to each other."""
        return _native.ribbon_shape(self._kernel)[0]

    @property
    def columns(self) -> float:
        """How many columns are kept, with the part of one that was cut."""
        _, built, slots, kept = _native.ribbon_shape(self._kernel)
        return kept / slots if slots else float(built)

    def truncate(self, columns: float) -> Self:
        """Return this filter by columns cut to its first ones: smaller, and errs more.

        A fraction keeps so much of the next column, which serves the keys that lie within.

        >>> f = Ribbon.build(range(10_000), fpr=2**-12, layout="columns")
        >>> f.truncate(4).expected_fpr, 2**-5 < f.truncate(4.5).expected_fpr < 2**-4
        (0.0625, True)
        """
        layout, _, slots, kept = _native.ribbon_shape(self._kernel)
        if layout != "columns":
            raise ValueError(f"layout is {layout!r}; only a ribbon by columns can be truncated")
        if not 0 <= columns <= self.columns:
            raise ValueError(f"columns is {columns}; the filter has {self.columns:g} to keep from")
        # A product of floats could miss by one where `columns` is what `self.columns` said.
        bits = kept if columns == self.columns else math.floor(columns * slots)
        return self._of(_native.ribbon_truncated(self._kernel, bits))

    def _told(self) -> str:
        return f"{self.layout}, {self.columns:.4g} columns"
