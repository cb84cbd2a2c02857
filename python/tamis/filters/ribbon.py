"""`tamis.Ribbon`: the smallest filter."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

from tamis import _native
from tamis._checks import check_number
from tamis._types import Keys
from tamis.filters.contract import Filter
from tamis.planning import ribbon as planning

Layout = Literal["interleaved", "columns"]


class Ribbon(_native.Ribbon, Filter):
    """A ribbon filter: static, and the smallest filter.

    Halving the false-positive rate takes 1.01 bits per key, and any rate is possible. Keys cannot
    be added after the build.
    ``layout="interleaved"`` stores all bits of a query together, and has the fastest queries;
    ``"columns"`` can be cut to fewer columns, each of which halves the rate, see `truncate`.

    >>> f = Ribbon.build(["ada", "grace"], fpr=0.001)
    >>> f.contains(["ada", "alan", "grace"])
    array([ True, False,  True])
    >>> round(Ribbon.build(range(100_000), fpr=2**-8).bits_per_key, 1)
    8.0

    References: Dillinger, Walzer 2021; Dillinger, Hübschle-Schneider, Sanders, Walzer 2022.
    """

    _kind = "ribbon"

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
        """Build a filter of these keys, sized for the number of distinct keys.

        >>> len(Ribbon.build([1, 2, 2, 3], bits_per_key=10))
        3
        """
        distinct = _native.Distinct(keys, seed, key)
        return cls._of(
            cls._plan_kernel(distinct, layout=layout, fpr=fpr, bits_per_key=bits_per_key)
        )

    @classmethod
    def _plan_kernel(cls, distinct: _native.Distinct, **arguments: Any) -> _native.Handle:
        size: planning.RibbonSize | None = planning.size(len(distinct), **arguments)
        budget = (arguments.get("bits_per_key") or math.inf) * max(len(distinct), 1)
        while size is not None:
            kernel = cls._build_kernel(size, distinct)
            # About one small set in thousands is larger than planned, by chance.
            size = None if kernel.size_in_bits <= budget else size.coarser(len(distinct))
        return kernel

    @property
    def _size(self) -> planning.RibbonSize:
        columns = self._columns + self._share / planning.UNIT
        return planning.size(len(self), fingerprint_bits=columns, layout=self.layout)

    @property
    def columns(self) -> float:
        """The number of columns; of a part of one, only a fraction of the keys has a bit."""
        if not self._slots:
            return self._columns + self._share / planning.UNIT
        return self._kept / self._slots

    def truncate(self, columns: float) -> Self:
        """Return the first ``columns`` as a smaller filter with a higher false-positive rate.

        If ``columns`` is not a whole number, a part of the next column is kept, and checks the
        keys whose equations lie within it.

        >>> f = Ribbon.build(range(10_000), fpr=2**-12, layout="columns")
        >>> f.truncate(4).expected_fpr, 2**-5 < f.truncate(4.5).expected_fpr < 2**-4
        (0.0625, True)
        """
        if self.layout != "columns":
            raise ValueError(f"layout must be 'columns' to truncate, not {self.layout!r}")
        what = f"a number from 0 to {self.columns:g}"
        columns = check_number("columns", columns, what, minimum=0, maximum=self.columns)
        # The product of floats may be off by one if `columns` equals `self.columns`.
        bits = self._kept if columns == self.columns else math.floor(columns * self._slots)
        return self._of(self._truncated(bits))

    def _describe(self) -> str:
        return f"{self.layout}, {self.columns:.4g} columns"
