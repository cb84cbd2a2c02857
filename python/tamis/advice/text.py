"""Advice as text: a table, the filters that were ruled out, and missing facts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tamis._format import format_duration, format_rate

if TYPE_CHECKING:
    from tamis.advice.advice import Advice

WIDTH = 80
"""Columns of a line of text."""


def head(advice: Advice) -> str:
    """Return the inputs in a sentence."""
    s = advice.situation
    if s.fpr is None:
        target = f"{s.bits_per_key:.3g} bits per key"
    else:
        target = f"false-positive rate at most {format_rate(s.fpr)}"
    replaced = f", {s.turnover:.3g} of the keys replaced" if s.turnover else ""
    return (
        f"{s.keys:,} keys{replaced}, {target}, {format_rate(s.present)} of the queries for keys in "
        f"the set, {format_duration(s.miss_cost)} per wasted read"
    )


def cells(advice: Advice) -> list[list[str]]:
    """Return the table: a header row, and one row per choice."""
    measured = any(each.measured_cost is not None for each in advice.choices)
    forget = any(each.expected_fnr for each in advice.choices)
    heads = ["filter", "bits/key", "rate", "bound", "denied", "cost"]
    heads += ["measured", "denied", "cost"] if measured else []
    rows = [heads]
    for each in advice.choices:
        row = [each.name, f"{each.bits_per_key:.2f}", format_rate(each.expected_fpr)]
        row += [format_rate(each.fpr_bound), format_rate(each.expected_fnr)]
        row += [format_duration(each.cost)]
        if measured:
            error = "" if each.measured_error is None else f" ± {format_rate(each.measured_error)}"
            cost = "–" if each.measured_cost is None else format_duration(each.measured_cost)
            row += [_rate(each.measured_fpr) + error, _rate(each.measured_fnr), cost]
        rows.append(row)
    shown = [i for i, name in enumerate(heads) if forget or name != "denied"]
    return [[row[i] for i in shown] for row in rows]


def table(advice: Advice) -> Iterable[str]:
    """Yield the lines of the table, followed by the filters ruled out and the missing facts."""
    yield from wrap(head(advice))
    yield ""
    yield from _aligned(cells(advice))
    if advice.choices:
        yield ""
        yield from wrap(f"{advice.best.name}: {advice.best.reason}")
    yield from _listed("Ruled out:", (f"{each.name}: {each.reason}" for each in advice.ruled_out))
    yield from _listed("Unknown:", advice.unknowns)


def _rate(value: float | None) -> str:
    return "–" if value is None else format_rate(value)


def wrap(text: str, indent: str = "") -> list[str]:
    """Break a paragraph into lines of at most `WIDTH` characters."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False)


def _aligned(rows: list[list[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        line = [first.ljust(widths[0])]
        line += [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        yield "  ".join(line).rstrip()


def _listed(head: str, lines: Iterable[str]) -> Iterable[str]:
    lines = list(lines)
    if lines:
        yield ""
        yield head
        for each in lines:
            yield from wrap(f"- {each}", "  ")
