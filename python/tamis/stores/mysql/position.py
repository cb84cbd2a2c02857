"""Positions in a journal whose rows do not become visible in the order of their numbers.

A transaction takes the numbers of its rows when it writes them, and they become visible when it
commits. So a follower has seen every number up to its highest one, except *gaps*: numbers of
transactions that are still open or were rolled back. It remembers them, and reads them again in
each change check. The *floor* of the journal is a number up to which no gap can be filled any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_GAPS = 10_000
"""Gaps, ranges of numbers, that a position may have. A guard that would need more rebuilds."""


class Position(NamedTuple):
    """The rows that a follower has seen: all up to ``top`` except the gaps."""

    top: int
    schema: str
    """A digest of the table, the triggers and the server's run, on which the numbers depend."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Ranges of numbers, both ends included, in order."""

    def __str__(self) -> str:
        gaps = ",".join(f"{lo}-{hi}" for lo, hi in self.gaps)
        return f"{self.top}.{self.schema}.{gaps}"

    @classmethod
    def parse(cls, text: str) -> Position | None:
        """Return the position that a string names, or `None` if it is not of this kind of store.

        >>> str(Position.parse("9.ab.2-2,5-7"))
        '9.ab.2-2,5-7'
        """
        try:
            top, schema, gaps = text.split(".")
            ranges = [gap.split("-") for gap in gaps.split(",") if gap]
            return cls(int(top), schema, tuple((int(lo), int(hi)) for lo, hi in ranges))
        except ValueError:
            return None

    @property
    def first(self) -> int:
        """The lowest number that the follower has not seen."""
        return self.gaps[0][0] if self.gaps else self.top + 1

    def condition(self, column: str) -> str:
        """Return the condition that a number has not been seen.

        >>> Position(9, "ab", ((2, 2), (5, 7))).condition("id")
        'id > 9 OR id BETWEEN 2 AND 2 OR id BETWEEN 5 AND 7'
        """
        gaps = (f" OR {column} BETWEEN {lo} AND {hi}" for lo, hi in self.gaps)
        return f"{column} > {self.top}{''.join(gaps)}"

    def after(self, seen: Sequence[int], floor: int) -> Position:
        """Return the position after rows with these numbers, in order, that had not been seen.

        Gaps up to the floor are dropped, unless they are to be seen after these rows.

        >>> str(Position(9, "ab", ((2, 2), (5, 7))).after([6, 11, 14], floor=4))
        '14.ab.5-5,7-7,10-10,12-13'
        """
        top = max(self.top, seen[-1]) if seen else self.top
        ranges = [*self.gaps, *([(self.top + 1, top)] if top > self.top else [])]
        return self._replace(top=top, gaps=tuple(_without(ranges, seen, floor)))

    def lacks(self, numbers: Sequence[int]) -> list[bool]:
        """Return for each number, in order, whether it has not been seen."""
        missing, gaps = [], iter([*self.gaps, (self.top + 1, float("inf"))])
        lo, hi = next(gaps)
        for number in numbers:
            while number > hi:
                lo, hi = next(gaps)
            missing.append(number >= lo)
        return missing


def _without(
    ranges: Iterable[tuple[int, int]], seen: Sequence[int], floor: int
) -> Iterable[tuple[int, int]]:
    """Return the ranges without the numbers seen and the numbers up to the floor."""
    numbers = iter(seen)
    number = next(numbers, None)
    for lo, hi in ranges:
        lo = max(lo, floor + 1)
        while number is not None and number <= hi:
            if lo < number:
                yield lo, number - 1
            lo = max(lo, number + 1)
            number = next(numbers, None)
        if lo <= hi:
            yield lo, hi
