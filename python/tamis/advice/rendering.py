"""Advice as text or as a page: a table of the choices, and how its numbers are derived.

The derivation applies two rules of the papers: which kinds suit a situation (Liu, Zheng, Shen, Chen
2020, figure 12), and when a stack pays off (Deeds, Hentschel, Idreos 2021, theorem 3).
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tamis._format import format_duration, format_rate
from tamis.advice.situation import Situation, cost_sum
from tamis.advice.turnover import recognized_share
from tamis.planning import bloom
from tamis.planning.stacked.predictions import max_negatives, space_saving

if TYPE_CHECKING:
    from tamis.advice.advice import Advice
    from tamis.report import Report


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


KINDS = ("Bloom", "learned", "stable", "stable learned")

SUITS = {
    "a static set": ("best", "applicable", "applicable", "applicable"),
    "a classifier": ("applicable", "best", "applicable", "best"),
    "no key rejected": ("best", "best", "no", "no"),
    "an endless stream": ("no", "no", "best", "best"),
}
"""Figure 12: how well each of `KINDS` suits each aspect. In the available text of the paper, the
figure has one sign for best and applicable; the appendix distinguishes them."""

RATIOS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""|N_f|/|P|: frequent negatives stored per key."""


def explain(advice: Advice, *, with_table: bool = True) -> Iterator[str]:
    """Yield the lines of the table, if wanted, and of the derivation of its numbers."""
    s = advice.situation
    if with_table:
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
            yield from wrap(
                f"When a stack of Bloom layers is smaller than one Bloom filter at its rate of "
                f"{format_rate(rate)} (Deeds et al. 2021, theorem 3 and figure 2c):"
            )
            yield from theorem_3(s, rate)
    if "store" in s.needs:
        yield ""
        yield from wrap(
            f"Of {s.queries:,.0f} queries for absent keys, {s.distinct:,.0f} are expected to be "
            f"for distinct keys: c = {s.distinct / max(s.keys, 1):.3g} per stored key. An adaptive "
            "filter has e^(c·rate) − 1 false positives per stored key in total (Lee et al. 2021)."
        )
    if s.turnover and w is not None:
        recognized = format_rate(recognized_share(s.turnover, s.present))
        yield ""
        yield from wrap(
            f"While {s.turnover:.3g} of the keys are replaced, a stack recognizes "
            f"{recognized} of the queries for known negatives on "
            "average: its layers do not store the negatives that new keys collide with, nor the "
            "keys that have left. An adaptive filter loses its corrections for keys that have left."
        )
    yield ""
    yield "Cost of a query (present × time + absent × (time + rate × wasted read)):"
    for each in advice.choices:
        yield from wrap(f"  {each.name}: {cost_sum(each, s)}", "    ")
    for each in advice.choices:
        if each.plan is not None and each is advice.choices[0]:
            yield ""
            yield str(each.plan)


def aspects(situation: Situation) -> dict[str, bool]:
    """Return which of the four aspects of figure 12 hold."""
    needs = situation.needs
    return {
        "a static set": not needs & {"insert", "delete", "stream"},
        "a classifier": "classifier" in needs,
        "no key rejected": "false negatives allowed" not in needs,
        "an endless stream": "stream" in needs,
    }


def figure_12(situation: Situation) -> Iterator[str]:
    """Yield the lines of figure 12 for the aspects that hold."""
    yield f"  {'':<18}" + "".join(f"{kind:>15}" for kind in KINDS)
    for name, holds in aspects(situation).items():
        if holds:
            yield f"  {name:<18}" + "".join(f"{each:>15}" for each in SUITS[name])


def theorem_3(situation: Situation, rate: float) -> Iterator[str]:
    """Yield for which |N_f| theorem 3 guarantees a smaller stack, and how much it saves.

    ``rate`` is the false-positive rate of a plain Bloom filter within the budget; the stack has
    the same rate.
    """
    w = situation.workload
    assert w is not None
    yield f"  {'|N_f|/|P|':>10} {'psi':>8} {'at most':>10} {'pays':>6} {'bits/key saved':>15}"
    for ratio in RATIOS:
        stored = round(ratio * situation.keys)
        if not 0 < stored <= len(w):
            continue
        psi = w.psi(stored)
        limit = max_negatives(rate, psi)
        saved = space_saving(rate, psi, ratio, lambda each: -np.log2(each) / math.log(2))
        pays = "yes" if ratio <= limit else "no"
        yield f"  {ratio:>10g} {psi:>8.3f} {max(limit, 0):>10.3g} {pays:>6} {saved:>15.2f}"


def page(advice: Advice) -> Report:
    """Create the HTML report of an advice: table, charts, reasons and derivation."""
    from tamis.report import Report

    report = Report(f"Which filter: {advice.best.name}")
    report.text(head(advice) + ".").text(advice.best.reason)
    columns, *rows = cells(advice)
    report.table(columns, rows, first=True)
    try:
        _charts(report, advice)
    except ImportError as error:
        report.text(f"Without charts: {error}", note=True)
    if advice.ruled_out:
        report.heading("Ruled out")
        report.bullets(f"{each.name}: {each.reason}" for each in advice.ruled_out)
    if advice.unknowns:
        report.heading("Unknown")
        report.bullets(advice.unknowns)
    report.heading("How the numbers are derived")
    return report.lines("\n".join(explain(advice, with_table=False)))


def _charts(report: Report, advice: Advice) -> None:
    """Plot costs, rates and sizes, and the workload."""
    from tamis.plotting import compare, draw_costs, figure_axes

    costs = draw_costs(advice.choices, figure_axes(7, 1 + 0.32 * len(advice.choices)))
    report.heading("Cost of a query")
    report.figure(costs, "The time of the filter plus its wasted reads, averaged over all queries.")
    report.heading("False-positive rate and size")
    report.figure(
        compare(advice.choices, ax=figure_axes(6, 4.2)),
        "Lower left is better; the line is the Pareto front.",
    )
    w = advice.situation.workload
    if w is None or not len(w):
        return
    report.heading("The queries")
    report.figure(w.plot(figure_axes(7, 4)), "How often each absent key is queried, by rank.")
    plan: Any = advice.best.plan
    if plan is not None:
        report.figure(
            plan.plot(figure_axes(7, 4)),
            "The false-positive rate, by the fraction of queries for known keys.",
        )
