"""Advice as an HTML report: table, charts, reasons and derivation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tamis.advice.explanation import explain
from tamis.advice.text import cells, head
from tamis.plotting import compare, draw_costs, figure_axes
from tamis.report import Report

if TYPE_CHECKING:
    from tamis.advice.advice import Advice


def page(advice: Advice) -> Report:
    """Create the report of an advice."""
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
    """Plot costs, rates and sizes."""
    costs = draw_costs(advice.choices, figure_axes(7, 1 + 0.32 * len(advice.choices)))
    report.heading("Cost of a query")
    report.figure(costs, "The time of the filter plus its wasted reads, averaged over all queries.")
    report.heading("False-positive rate and size")
    report.figure(
        compare(advice.choices, ax=figure_axes(6, 4.2)),
        "Lower left is better; the line is the Pareto front.",
    )
    _known(report, advice)


def _known(report: Report, advice: Advice) -> None:
    """Plot the workload, and the rate of the stack by the workload."""
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
