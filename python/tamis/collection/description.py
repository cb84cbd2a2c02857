"""The description of a collection: sizes, rates, and its text and HTML forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tamis._format import facts_html, format_rate, format_size
from tamis.collection.memory import Memory
from tamis.collection.prefixes import rate_curve
from tamis.collection.storage import Names
from tamis.planning.collection.allocation import PREFIX_KINDS
from tamis.planning.collection.curves import Floats, Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_KINDS = ("empty", *PREFIX_KINDS)  # by their numbers in a file


class Description:
    """The read-only properties of a collection."""

    _memory: Memory
    hybrid: bool

    @property
    def names(self) -> Names:
        """The names of the sets; indexing by an array of numbers returns an array of names."""
        return Names(self._memory.filters)

    @property
    def counts(self) -> Ints:
        """Keys in each set."""
        return self._memory.filters.sizes().counts

    @property
    def kinds(self) -> list[str]:
        """The kind of each filter; "empty" for a set without keys."""
        names = ("empty", "sliced") if self._memory.prefixes.sliced else _KINDS
        return [names[kind] for kind in self._memory.filters.sizes().kinds.tolist()]

    @property
    def seed(self) -> int | None:
        """The seed of the hash, or None if a secret key is used."""
        return self._memory.filters.seed

    @property
    def utility(self) -> Floats:
        """How often each set is queried, relative to the others."""
        return self._memory.inputs.utility

    @property
    def present(self) -> Floats | None:
        """The share of present keys among the queries of each set, if prefixes were planned by it.

        It is not saved.
        """
        return self._memory.inputs.shares

    @property
    def accesses(self) -> Floats:
        """Accesses recorded per set, decayed."""
        return self._memory.inputs.accesses.array(len(self))

    @property
    def full(self) -> Ints:
        """Bits of each full filter."""
        return rate_curve(self._memory.filters.sizes()).bits

    @property
    def kept(self) -> Ints:
        """Bits of each filter in memory."""
        return self._memory.prefixes.kept

    @property
    def damaged(self) -> Ints:
        """Numbers of the damaged filters, which return maybe for every key."""
        return self._memory.prefixes.damaged.copy()

    @property
    def fprs(self) -> Floats:
        """Expected false-positive rate of each prefix in memory."""
        return self._memory.rates

    @property
    def expected_fpr(self) -> float:
        """Expected false-positive rate, weighted by utility.

        In hybrid mode, the fraction of lookups of absent keys that read from the file.
        """
        return self._memory.expected_fpr

    @property
    def expected_reads(self) -> float:
        """Expected fraction of queries that read from the file, in hybrid mode, by utility.

        A query for a key of the set reads unless the full filter is in memory; `present` is the
        share of these queries.
        """
        return self._memory.expected_reads if self.hybrid else 0.0

    @property
    def tail_reads(self) -> int:
        """Reads of the rest of a filter, in hybrid mode, since the last allocation."""
        return sum(each.tail_reads for each in self._memory.prefixes.loaded)

    @property
    def budget(self) -> int | None:
        """The memory budget in bytes, of all parts, or None."""
        budget = self._memory.allocation.budget
        return sum(budget) if isinstance(budget, tuple) else budget

    @property
    def min_budget(self) -> int:
        """The smallest possible budget in bytes: sizes and weights without any bits of filters."""
        return self._memory.overhead

    @property
    def size_in_bytes(self) -> int:
        """Memory of the prefixes, sizes and weights."""
        memory = self._memory
        return memory.overhead + (memory.prefixes.bits + 7) // 8

    @property
    def size_in_bits(self) -> int:
        """Bits of the prefixes alone."""
        return self._memory.prefixes.bits

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot bits per key against utility; needs ``pip install tamis[plot]``."""
        from tamis.plotting import draw_collection

        drawn: Axes = draw_collection(self, ax)
        return drawn

    def __len__(self) -> int:
        return len(self._memory.filters)

    def __repr__(self) -> str:
        return (
            f"<tamis.Collection: {len(self):,} filters of {int(self.counts.sum()):,} keys, "
            f"{self.size_in_bytes:,} bytes in memory, "
            f"{self.min_budget / max(len(self), 1):.1f} per filter for overhead>"
        )

    def _repr_html_(self) -> str:
        facts = {
            "filters": f"{len(self):,}",
            "keys": f"{int(self.counts.sum()):,}",
            "in memory": format_size(8 * self.size_in_bytes),
            "expected false-positive rate": format_rate(self.expected_fpr),
        }
        return facts_html("tamis.Collection", facts)
