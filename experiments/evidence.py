"""What an experiment is: one figure or table of a paper, measured again, and its verdict.

A module in ``experiments/<paper>/`` declares its experiments with `experiment`; the runner,
``python -m experiments``, finds them, runs those that are due, and writes the report.

    @experiment("stacked/table2", title="Rates and sizes of stacks", data=("trace_orm_busy",))
    def table2(quick: bool) -> Evidence:
        ...
        return Evidence(rows, [Verdict(...)], draw)

An experiment is seeded: two runs on one machine write the same rows, but for times. ``quick`` asks
for the same picture from less data, in seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

PAPERS = {
    "stacked": "Deeds, Hentschel, Idreos: Stacked Filters (2021), and its earlier version",
    "collections": "Mersy, Wang, Sintos, Krishnan: Collections of Bloom Filters (2024)",
    "streams": "Liu, Zheng, Shen, Chen: Stable Learned Bloom Filters (2020)",
    "adaptive": "Lee, McCauley, Singh, Stein: Telescoping Filter (2021)",
    "arena": "Sabale, Gatterbauer, Pandey: How to Train Your Filter (2026)",
}
"""By folder: the paper that is checked there."""


@dataclass(frozen=True)
class Verdict:
    """What a paper claims, and what was found; all are sentences or numbers with their units."""

    claim: str
    """The claim, in a sentence, with its number."""
    theirs: str
    """The number in the paper."""
    ours: str
    """The number found here for the paper's method."""
    best: str
    """The number found here for the best method of tamis."""
    verdict: Literal["agrees", "differs", "goes further"]
    reason: str
    """Why, in a sentence; also which data stand in for the paper's, and why they are comparable."""


@dataclass(frozen=True)
class Evidence:
    """The result of an experiment."""

    rows: Sequence[dict[str, Any]]
    """What was measured: the rows of the CSV file, with the same keys each."""
    verdicts: Sequence[Verdict]
    draw: Callable[[Any], None] | None = None
    """Draws the rows into a matplotlib figure, in the axes of the paper; tables have no picture."""


@dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper, and the function that measures it again."""

    name: str
    title: str
    run: Callable[[bool], Evidence] = field(repr=False)
    data: tuple[str, ...] = ()
    """The data sets that it needs (see ``data.py``); without them, it is left out."""
    module: str = ""
    """Where it is declared: it runs again if this module changed, or one that it imports."""


EXPERIMENTS: dict[str, Experiment] = {}
"""All declared experiments, by name, in the order of the report."""


def experiment(
    name: str, *, title: str, data: tuple[str, ...] = ()
) -> Callable[[Callable[[bool], Evidence]], Callable[[bool], Evidence]]:
    """Declare an experiment: ``name`` is ``"<paper>/<item>"``, such as ``"stacked/figure2a"``."""

    def declare(run: Callable[[bool], Evidence]) -> Callable[[bool], Evidence]:
        if name in EXPERIMENTS:
            raise ValueError(f"two experiments are named {name!r}")
        module = sys._getframe(1).f_globals["__name__"]  # of a partial function, too
        EXPERIMENTS[name] = Experiment(name, title, run, data, module)
        return run

    return declare
