"""`tamis.Workload`: what is known about the queries."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

import numpy as np
import numpy.typing as npt

from tamis._columns import as_list, pyarrow
from tamis._files import open_regular, save_whole
from tamis.errors import FormatError
from tamis.pictures import axes
from tamis.planning.arguments import MOST_KEYS, whole
from tamis.planning.plan import MALFORMED
from tamis.planning.stacked.frequencies import Frequencies, Steps, Zipf
from tamis.workload.counting import ValueCounts
from tamis.workload.drift import Drift, by_rank, by_value

if TYPE_CHECKING:
    from tamis._types import FilePath, Keys

ROOM = 50_000_000
"""The default number of distinct negatives that are counted exactly."""


_ROWS, _ROWS_PER_BYTE = 1 << 24, 16
"""Rows that any saved workload may have, and per byte of its file: counts alone compress well."""


class Workload:
    """Which absent keys (negatives) are queried, and how often.

    Created from a query log (`from_queries`, `from_batches`), from counts (`from_counts`), or from
    a distribution without values (`zipf`, `from_shape`). ``curve`` is ψ; ``unseen`` (ℓ) is the
    fraction of the queries for absent keys that are for values not in the workload; ``present`` is
    the fraction of all queries that are for keys in the set, and ``removed`` their number;
    ``error`` is by how much a count may be too low.

    >>> w = Workload.from_queries(["a", "b", "a", "k", "a", "b", "c"], keys=["k"])
    >>> w.head(2), w.removed, round(w.unseen, 3)
    (['a', 'b'], 1, 0.167)
    >>> round(w.psi(2), 3)
    0.694
    """

    def __init__(
        self,
        curve: Frequencies,
        *,
        values: Any = None,
        counts: npt.NDArray[Any] | None = None,
        removed: float = 0,
        present: float = 0.0,
        error: float = 0,
    ) -> None:
        self.curve = curve
        self.counts = counts
        self.removed = removed
        self.present = present
        self.error = error
        self._values = values

    @classmethod
    def from_queries(cls, queries: Keys, *, keys: Keys | None = None) -> Self:
        """Count the queries of a log; queries for ``keys`` are removed.

        The fraction ℓ of queries for unseen values is estimated by leaving one out: it is the
        fraction of queries whose value occurs only once. The values share the remaining 1 − ℓ in
        proportion to their counts (Deeds, Hentschel, Idreos 2021, 5.1).
        """
        return cls.from_batches([queries], keys=keys, room=MOST_KEYS)

    @classmethod
    def from_batches(
        cls, batches: Iterable[Keys], *, keys: Keys | None = None, room: SupportsIndex = ROOM
    ) -> Self:
        """Count the queries of a log in batches, which need not fit in memory together.

        At most about twice ``room`` distinct values are held in memory. If there are more, counts
        are too low by up to ``error``, which is at most the number of queries divided by ``room``,
        and the queries not counted are part of ``unseen``.

        >>> w = Workload.from_batches([[1, 1, 2], [1, 3, 4]], room=2)
        >>> w.head(1), w.error, round(w.unseen, 2)
        ([1], 1, 0.67)
        """
        room = whole("room", room, MOST_KEYS)
        if room == 0:
            raise ValueError(f"room must be from 1 to {MOST_KEYS}, not 0")
        counter = ValueCounts(room, keys)
        for batch in batches:
            counter.add(batch)
        counts, values = counter.ranked()
        kept = counts.sum().item() if len(counts) else 0
        lost = counter.total - kept if counter.error else np.count_nonzero(counts == 1)
        return cls._counted(counter, counts, values, lost / counter.total if counter.total else 1.0)

    @classmethod
    def from_counts(
        cls,
        values: Keys,
        counts: npt.ArrayLike,
        *,
        unseen: float = 0.0,
        keys: Keys | None = None,
    ) -> Self:
        """Create a workload from values and how often each is queried.

        ``counts`` can be any numbers in proportion to the frequencies. ``unseen`` is the fraction
        of queries for other values. The counts of equal values are added up; values with a count
        of 0 are dropped.

        >>> Workload.from_counts(["a", "b"], [1, 3], unseen=0.2).psi(1)
        0.6000000000000001
        """
        weights = _weights("counts", counts)
        unseen = _share("unseen", unseen)
        counter = ValueCounts(MOST_KEYS, keys)
        try:
            counter.add(values, weights)
        except IndexError:
            raise ValueError(_lengths(values, weights)) from None
        ranked, found = counter.ranked()
        if counter.counted != len(weights):
            raise ValueError(_lengths(values, weights))
        queried = int(np.count_nonzero(ranked))
        return cls._counted(counter, ranked[:queried], found[:queried], unseen)

    @classmethod
    def from_shape(cls, frequencies: npt.ArrayLike, *, unseen: float = 0.0) -> Self:
        """Create a workload without values from the frequency of each rank, in any order and unit.

        >>> Workload.from_shape([8, 1, 1], unseen=0.5).psi(1)
        0.4
        """
        weights = np.sort(_weights("frequencies", frequencies))[::-1]
        weights = weights[: np.count_nonzero(weights)]
        total = 1 - _share("unseen", unseen)
        return cls(Steps.of(weights, total=total), counts=weights)

    @classmethod
    def zipf(
        cls, exponent: float, universe: SupportsIndex, sample: SupportsIndex | None = None
    ) -> Self:
        """Create a Zipf workload: frequencies 1/rank^exponent, of which ``sample`` ranks are known.

        >>> w = Workload.zipf(exponent=1.0, universe=10**8, sample=5 * 10**7)
        >>> round(w.psi(1_000_000), 4), round(w.unseen, 4)
        (0.7576, 0.0365)
        """
        if isinstance(exponent, bool) or not isinstance(exponent, Real):
            raise TypeError(f"exponent must be a number, not {exponent!r}")
        if not 0 <= exponent <= 16:
            raise ValueError(f"exponent must be from 0 to 16, not {exponent}")
        universe = whole("universe", universe, MOST_KEYS)
        if universe == 0:
            raise ValueError(f"universe must be from 1 to {MOST_KEYS}, not 0")
        known = universe if sample is None else whole("sample", sample, universe)
        return cls(Zipf(float(exponent), universe, known))

    @classmethod
    def _counted(
        cls, counter: ValueCounts, counts: npt.NDArray[Any], values: Any, unseen: float
    ) -> Self:
        queries = counter.total + counter.removed
        return cls(
            Steps.of(counts, total=1 - unseen),
            values=values,
            counts=counts,
            removed=counter.removed,
            present=counter.removed / queries if queries else 0.0,
            error=counter.error,
        )

    def __len__(self) -> int:
        """Return the number of known negatives."""
        return self.curve.size

    @property
    def unseen(self) -> float:
        """The fraction of the queries for absent keys that are for unknown values (ℓ)."""
        return max(0.0, 1 - float(self.curve.psi(self.curve.size)))

    @property
    def values(self) -> Keys | None:
        """The known negatives, most frequent first; `None` for a workload without values."""
        return self._values  # type: ignore[no-any-return]

    def psi(self, n: SupportsIndex) -> float:
        """The fraction of the queries for absent keys that are for the n most frequent ones (ψ)."""
        return float(self.curve.psi(whole("n", n, MOST_KEYS)))

    def head(self, n: SupportsIndex) -> Keys:
        """Return the n most frequent negatives, in the type they were given in."""
        n = whole("n", n, MOST_KEYS)
        if self._values is None:
            raise ValueError(
                "this workload has no values; pass the negatives themselves, most frequent first"
            )
        return self._values[:n]  # type: ignore[no-any-return]

    def quantiles(self, shares: Sequence[float]) -> list[int | None]:
        """Return how many negatives get each fraction of the queries; `None` if all get less.

        >>> Workload.zipf(1.0, 10**8, 5 * 10**7).quantiles([0.5, 0.9, 0.99])
        [7493, 14960009, None]
        """
        known = 1 - self.unseen
        return [
            self.curve.rank(share) if _share("shares", share) <= known else None for share in shares
        ]

    def drift(self, other: Workload) -> Drift:
        """Compare with a later workload: how far the queries have drifted.

        Values are compared if both workloads have them, otherwise ranks.

        >>> before = Workload.from_counts(["a", "b"], [3, 1])
        >>> after = Workload.from_counts(["a", "b"], [1, 3])
        >>> d = before.drift(after)
        >>> d.total_variation, d.psi(1)
        (0.5, (0.75, 0.25))
        """
        if self._values is None or other._values is None:
            return by_rank(self.curve, other.curve)
        return by_value(self._values, self._frequencies(), other._values, other._frequencies())

    def _frequencies(self) -> npt.NDArray[np.float64]:
        assert self.counts is not None
        total = self.counts.sum()
        return self.counts * ((1 - self.unseen) / total if total else 0.0)

    def save(self, path: FilePath) -> None:
        """Write the values and their counts to a Parquet file, atomically."""
        parquet = _parquet()
        columns = {}
        if self._values is not None:
            columns["value"] = self._values
        if self.counts is not None:
            columns["count"] = np.ascontiguousarray(self.counts)
        known: dict[str, Any] = {
            "unseen": self.unseen,
            "removed": self.removed,
            "present": self.present,
            "error": self.error,
        }
        if isinstance(self.curve, Zipf):
            known["zipf"] = [self.curve.exponent, self.curve.universe, self.curve.size]
        arrow = pyarrow("a Parquet file")
        table = arrow.table(columns).replace_schema_metadata({"tamis": json.dumps(known)})

        def write(descriptor: int) -> None:
            with open(descriptor, "wb", closefd=False) as file:
                parquet.write_table(table, file)

        save_whole(path, write)

    @classmethod
    def load(cls, path: FilePath) -> Self:
        """Read a workload that `save` wrote; its values are an Arrow column.

        `FormatError` for any other file, or a damaged one.
        """
        _parquet()
        try:
            with open_regular(path) as file:
                table = _read_table(file, os.fsdecode(path))
            known = json.loads((table.schema.metadata or {})[b"tamis"])
            if "zipf" in known:
                return cls.zipf(*known["zipf"])
            counts = table["count"].to_numpy()
            rest = {name: known[name] for name in ("removed", "present", "error")}
            for name, value in rest.items():
                _weights(name, [value])
            total = 1 - _share("unseen", known["unseen"])
            _weights("count", counts)
            if (counts[1:] > counts[:-1]).any():
                raise ValueError("counts are not in descending order")
        except (*MALFORMED, OSError) as error:
            # pyarrow has a plain OSError, without a number, for a damaged file.
            if isinstance(error, OSError) and (type(error) is not OSError or error.errno):
                raise
            raise FormatError(f"{os.fsdecode(path)} is not a saved workload ({error})") from None
        values = table["value"] if "value" in table.column_names else None
        return cls(Steps.of(counts, total=total), values=values, counts=counts, **rest)

    def plot(self, ax: Any = None) -> Any:
        """Draw the frequency of each rank on logarithmic scales; return the axes."""
        ranks = np.unique(np.geomspace(1, max(len(self), 1), 500).astype(np.int64))
        frequencies = self.curve.psi(ranks) - self.curve.psi(ranks - 1)
        if ax is None:
            ax = axes()
        ax.loglog(ranks, frequencies)
        for share in (0.25, 0.5, 0.75, 0.9):
            if (rank := self.quantiles([share])[0]) is not None and rank > 0:
                ax.axvline(rank, color="#999999", linewidth=0.8, linestyle=":")
                ax.annotate(
                    f"{share:.0%}",
                    (rank, 1),
                    xycoords=("data", "axes fraction"),
                    xytext=(3, -3),
                    textcoords="offset points",
                    va="top",
                    fontsize=8,
                )
        ax.set_xlabel("rank of the absent key (dotted: cumulative fraction of the queries)")
        ax.set_ylabel("fraction of the queries for absent keys")
        ax.set_title(f"{len(self):,} known negatives, {self.unseen:.1%} of the queries unseen")
        return ax

    def __repr__(self) -> str:
        what = "values" if self._values is not None else "ranks"
        return f"<tamis.Workload: {len(self):,} {what}, unseen {self.unseen:.4g}>"

    def __str__(self) -> str:
        lines = [f"{len(self):,} known negatives; {self.unseen:.1%} of the queries are for others"]
        if self.removed:
            lines.append(
                f"{self.removed:,} queries ({self.present:.1%}) for keys in the set were removed"
            )
        if self.error:
            lines.append(f"counts are too low by up to {self.error:,}")
        shares = (0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
        for share, n in zip(shares, self.quantiles(shares), strict=True):
            if n is not None:
                lines.append(f"{share:>5.0%} of the queries are for the {n:,} most frequent")
        if self._values is not None and len(self):
            lines.append(f"most frequent: {', '.join(map(repr, as_list(self._values[:5])))}")
        return "\n".join(lines)


def _weights(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return counts as an array; raise ValueError for the first that is negative or not finite."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension, not {array.ndim}")
    if array.size and array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be numbers, not of type {array.dtype}")
    if array.dtype.kind == "u" or not array.size:
        array = array.astype(np.int64 if array.dtype.itemsize < 8 else float)
    wrong = np.flatnonzero(~((array >= 0) & np.isfinite(array)))
    if wrong.size:
        at = int(wrong[0])
        raise ValueError(f"{name}[{at}] must be finite and at least 0, not {array[at]}")
    return array


def _share(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not 0 <= value <= 1 or math.isnan(value):
        raise ValueError(f"{name} must be from 0 to 1, not {value}")
    return float(value)


def _lengths(values: Any, weights: npt.NDArray[Any]) -> str:
    given = f", not {len(values):,} and {len(weights):,}" if hasattr(values, "__len__") else ""
    return f"values and counts must have the same length{given}"


def _read_table(file: Any, path: str) -> Any:
    """Read a Parquet file whose rows are not too many for its size."""
    from pyarrow import Table

    from tamis._pages import ParquetReader

    reader = ParquetReader(file, path)
    rows = reader.footer.num_rows
    if rows > max(_ROWS, _ROWS_PER_BYTE * reader.size):
        raise ValueError(f"it claims {rows} rows in {reader.size} bytes")
    batches = list(reader.batches(1 << 16, None))
    return Table.from_batches(batches, reader.schema).replace_schema_metadata(
        reader.schema.metadata
    )


def _parquet() -> Any:
    pyarrow("a Parquet file")
    from pyarrow import parquet

    return parquet
