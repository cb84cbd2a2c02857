"""Advice as text: a table, and the derivation of its numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tamis._format import format_duration, format_rate
from tamis.advice.situation import line
from tamis.advice.theory import figure_12, theorem_3
from tamis.advice.turnover import kept
from tamis.planning import bloom

if TYPE_CHECKING:
    from tamis.advice.advise import Advice

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
    """Yield the lines of the table, followed by what was ruled out and what is unknown."""
    yield from _wrapped(head(advice))
    yield ""
    yield from _aligned(cells(advice))
    if advice.choices:
        yield ""
        yield from _wrapped(f"{advice.best.name}: {advice.best.reason}")
    yield from _listed("Ruled out:", (f"{each.name}: {each.reason}" for each in advice.ruled_out))
    yield from _listed("Unknown:", advice.unjudged)


def _rate(value: float | None) -> str:
    return "–" if value is None else format_rate(value)


def _wrapped(text: str, indent: str = "") -> list[str]:
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
            yield from _wrapped(f"- {each}", "  ")


def explained(advice: Advice, *, brief: bool = False) -> Iterable[str]:
    """Yield the lines of the table, unless ``brief``, and of the derivation of its numbers."""
    s = advice.situation
    if not brief:
        yield from table(advice)
        yield ""
    yield "Suitable kinds (Liu et al. 2020, figure 12):"
    yield from figure_12(s)
    w = s.workload
    if w is not None and len(w) and s.bits_per_key > 0 and "stream" not in s.needs:
        size = bloom.size(s.keys, layout="standard", **s.sizing)
        rate = size.rate(s.keys)
        if rate < 0.5:
            yield ""
            yield from _wrapped(
                f"When a stack of Bloom layers is smaller than one Bloom filter at its rate of "
                f"{format_rate(rate)} (Deeds et al. 2021, theorem 3 and figure 2c):"
            )
            yield from theorem_3(s, rate)
    if "store" in s.needs:
        yield ""
        yield from _wrapped(
            f"Of {s.queries:,.0f} queries for absent keys, {s.distinct:,.0f} are expected to be "
            f"for distinct keys: c = {s.distinct / max(s.keys, 1):.3g} per stored key. An adaptive "
            "filter has e^(c·rate) − 1 false positives per stored key in total (Lee et al. 2021)."
        )
    if s.turnover and w is not None:
        yield ""
        yield from _wrapped(
            f"While {s.turnover:.3g} of the keys are replaced, a stack recognizes "
            f"{format_rate(kept(s.turnover, s.present))} of the queries for known negatives on "
            "average: its layers do not know the negatives that new keys collide with, nor the "
            "keys that have left. An adaptive filter forgets what it fixed for them."
        )
    yield ""
    yield "Cost of a query (present × time + absent × (time + rate × wasted read)):"
    for each in advice.choices:
        yield from _wrapped(f"  {each.name}: {line(each, s)}", "    ")
    for each in advice.choices:
        if each.plan is not None and each is advice.choices[0]:
            yield ""
            yield str(each.plan)
