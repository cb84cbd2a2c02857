"""An advice as a page: its table, pictures, reasons and derivation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tamis.advice.text import cells, explained, head
from tamis.pictures import compare, draw_costs, figure_axes
from tamis.report import Report

if TYPE_CHECKING:
    from tamis.advice.advise import Advice


def page(advice: Advice) -> Report:
    """Make the page of an advice."""
    report = Report(f"Which filter: {advice.best.name}")
    report.text(head(advice) + ".").text(advice.best.reason)
    columns, *rows = cells(advice)
    report.table(columns, rows, first=True)
    report.heading("What a question costs")
    report.picture(
        draw_costs(advice.choices, figure_axes(7, 1 + 0.32 * len(advice.choices))),
        "The filter's time and its wasted reads, on average over all questions.",
    )
    report.heading("Rate and size")
    report.picture(
        compare(advice.choices, ax=figure_axes(6, 4.2)),
        "Below and to the left is better; the line joins those that nothing beats in both.",
    )
    _known(report, advice)
    if advice.ruled_out:
        report.heading("Ruled out")
        report.bullets(f"{each.name}: {each.reason}" for each in advice.ruled_out)
    if advice.unjudged:
        report.heading("Not judged")
        report.bullets(advice.unjudged)
    report.heading("How the numbers come about")
    return report.lines("\n".join(explained(advice, brief=True)))


def _known(report: Report, advice: Advice) -> None:
    """What is known of the questions, and how the stack relies on it."""
    w = advice.situation.workload
    if w is None or not len(w):
        return
    report.heading("The questions")
    report.picture(
        w.plot(figure_axes(7, 4)), "How often each absent key is asked for, by its rank."
    )
    plan: Any = advice.best.plan
    if plan is not None:
        report.picture(
            plan.plot(figure_axes(7, 4)),
            "What becomes of the rate when other keys are asked for than were known.",
        )
