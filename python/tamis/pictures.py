"""`tamis.compare`, and what all pictures share: axes, colours, and figures as SVG.

Pictures need matplotlib: ``pip install tamis[plot]``.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tamis.planning.costs import told as duration_told

if TYPE_CHECKING:
    from tamis.advice.situation import Choice
    from tamis.guard.statistics import Window
    from tamis.planning.plan import Plan

COLOURS = {
    "plain": "#7f7f7f",
    "stacked": "#1f77b4",
    "exact": "#17a2b8",
    "adaptive": "#d9480f",
    "learned": "#7b3fa0",
    "stream": "#2b8a3e",
    "collection": "#b8860b",
}
"""One for each family, readable on light and on dark ground."""


_LINE = 0.062
"""The height of a line of text, as a share of the axes'."""


_STRETCHES = 60
"""Steps of a rate over time."""


class Sized(Protocol):
    """A filter, a plan, or a choice of an advice: anything with a size and a rate."""

    @property
    def bits_per_key(self) -> float:
        """The memory per key."""
        ...

    @property
    def expected_fpr(self) -> float:
        """The rate."""
        ...


def compare(filters: Iterable[Sized] | Mapping[str, Sized], *, ax: Any = None) -> Any:
    """Draw the rate of filters against their size, and the front that nothing beats in both.

    ``filters`` are filters, plans or choices of an advice, by name or as they are. Rates that were
    measured are drawn filled, with the prediction as a ring. Returns the axes.

    >>> import tamis
    >>> built = [tamis.Bloom.build(range(1000), bits_per_key=b) for b in (6, 8, 10)]
    >>> compare(built).get_xlabel()
    'bits per key'
    """
    named = _named(filters)
    if not named:
        raise ValueError("filters is empty; at least one is wanted")
    ax = axes() if ax is None else ax
    points = [(_bits(each), _rate(each)) for _, each in named]
    front = pareto(points)
    if len(front) > 1:
        ax.plot(*zip(*front, strict=True), color="#999999", linewidth=1, zorder=1)
    for (_, each), (bits, rate) in zip(named, points, strict=True):
        colour = COLOURS.get(getattr(each, "family", ""), "#1f77b4")
        if _measured(each):
            ax.plot([bits], [each.expected_fpr], "o", color=colour, fillstyle="none", zorder=2)
        ax.plot([bits], [rate], "o", color=colour, zorder=3)
    if (least := min((rate for _, rate in points if rate > 0), default=0.0)) > 0:
        ax.set_yscale("log", nonpositive="mask")
    ax.set_xlabel("bits per key")
    measured = any(_measured(each) for _, each in named)
    ax.set_ylabel("false-positive rate" + (", measured (rings: predicted)" if measured else ""))
    ax.margins(x=0.08, y=0.1)
    ax.grid(True, which="major", alpha=0.25)
    _label(ax, [name for name, _ in named], [(bits, max(rate, least)) for bits, rate in points])
    return ax


def axes() -> Any:
    """Return new axes to draw on, or say which extra provides them."""
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError("a plot needs matplotlib: pip install tamis[plot]") from None
    return pyplot.subplots()[1]


def draw_plan(plan: Plan, ax: Any = None) -> Any:
    """Draw the rate of a plan by the share ψ of queries for stored negatives; return the axes."""
    ax = axes() if ax is None else ax
    ax.plot([0, 1], [plan.rate_at(0), plan.rate_at(1)])
    ax.plot([plan.psi], [plan.expected_fpr], "o", label=f"planned: {plan.expected_fpr:.3g}")
    ax.plot([0], [plan.fpr_bound], "s", label=f"under any workload: {plan.fpr_bound:.3g}")
    ax.set_xlabel("share of the queries for absent keys that ask for stored ones (ψ)")
    ax.set_ylabel("false-positive rate")
    ax.set_ylim(bottom=0)
    ax.set_title(f"{plan.describe()}, {plan.bits_per_key:.2f} bits per key")
    ax.grid(True, alpha=0.25)
    ax.legend(frameon=False)
    return ax


def drawn_history(stretches: list[Window], expected: float, ax: Any = None) -> Any:
    """Draw the rate of each stretch of questions, and their mean so far; return the axes."""
    ax = axes() if ax is None else ax
    stretches = _joined(stretches)
    ends = [each.queries for each in stretches]
    ax.step(
        ends,
        [each.false_positives / each.negatives for each in stretches],
        where="pre",
        color=COLOURS["adaptive"],
        linewidth=1,
        label="in each stretch",
    )
    wrong = np.cumsum([each.false_positives for each in stretches])
    asked = np.cumsum([each.negatives for each in stretches])
    ax.plot(ends, wrong / np.maximum(asked, 1), color=COLOURS["stacked"], label="mean so far")
    ax.axhline(
        expected, color="#999999", linestyle="--", linewidth=1, label="expected by the filter"
    )
    ax.set_xlabel("questions")
    ax.set_ylabel("false positives per question for an absent key")
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_formatter(_thousands)
    ax.grid(True, alpha=0.25)
    ax.legend(frameon=False)
    return ax


def _joined(stretches: list[Window]) -> list[Window]:
    """Join neighbours until there are few enough for each to be seen."""
    width = -(-len(stretches) // _STRETCHES)
    parts = [stretches[start : start + width] for start in range(0, len(stretches), max(width, 1))]
    return [
        part[-1]._replace(
            negatives=sum(each.negatives for each in part),
            false_positives=sum(each.false_positives for each in part),
        )
        for part in parts
    ]


def drawn_costs(choices: Sequence[Choice], ax: Any = None) -> Any:
    """Draw what a question costs with each choice, the best at the top; return the axes."""
    ax = axes() if ax is None else ax
    rows = list(range(len(choices)))
    told = any(each.measured_cost is not None for each in choices)
    seen: dict[str, str] = {}
    for row, each in zip(rows, choices, strict=True):
        colour = COLOURS[each.family]
        label = None if each.family in seen else each.family
        seen[each.family] = colour
        if each.measured_cost is None:
            ax.plot([each.cost], [row], "o", color=colour, label=label)
            continue
        ax.plot([each.cost, each.measured_cost], [row, row], color=colour, linewidth=1)
        ax.plot([each.cost], [row], "o", color=colour, fillstyle="none")
        ax.plot([each.measured_cost], [row], "o", color=colour, label=label)
    ax.set_yticks(rows, [each.name for each in choices])
    ax.invert_yaxis()
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(lambda value, _: duration_told(value))
    ax.set_xlabel("cost of a question" + (", measured (rings: predicted)" if told else ""))
    ax.grid(True, axis="x", which="major", alpha=0.25)
    if len(seen) > 1:
        ax.legend(frameon=False, loc="best")
    return ax


def _thousands(value: float, _: object) -> str:
    return f"{value:,.0f}"


def pareto(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other beats in size and in rate, by size.

    >>> pareto([(8, 0.02), (9, 0.03), (10, 0.01), (8, 0.05)])
    [(8, 0.02), (10, 0.01)]
    """
    front: list[tuple[float, float]] = []
    for bits, rate in sorted(points):
        if not front or rate < front[-1][1]:
            front.append((bits, rate))
    return front


def figure_axes(width: float, height: float) -> Any:
    """Return the axes of a new figure of so many inches, apart from those that are on show."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a picture needs matplotlib: pip install tamis[plot]") from None
    return Figure(figsize=(width, height)).subplots()


def svg(ax: Any) -> str:
    """Return the figure of these axes as SVG text that goes into an HTML page.

    Its text stays text, in the page's font; black becomes the page's colour of text, and the
    ground is left open, so that one picture serves light and dark pages.
    """
    figure = ax.get_figure()
    figure.patch.set_alpha(0)
    for each in figure.axes:
        each.patch.set_alpha(0)
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tamis"}):
        figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    drawn = text.getvalue()
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    drawn = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", drawn, count=1)
    drawn = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", drawn, count=1)
    drawn = re.sub(r"font: [^;\"]*?([0-9.]+px)[^;\"]*", r"font-size: \1", drawn)
    drawn = drawn.replace("#000000", "currentColor")
    # A path without a colour of its own is black, such as the marks of the axes.
    return drawn.replace("<svg ", '<svg fill="currentColor" role="img" ', 1)


def _named(filters: Iterable[Sized] | Mapping[str, Sized]) -> list[tuple[str, Sized]]:
    if isinstance(filters, Mapping):
        return list(filters.items())
    listed: list[Any] = list(filters)
    for index, each in enumerate(listed):
        if not (hasattr(each, "bits_per_key") and hasattr(each, "expected_fpr")):
            kind = type(each).__name__
            raise TypeError(
                f"filters[{index}] is of type {kind}; filters, plans or choices of an advice are "
                "wanted"
            )
    return [(getattr(each, "name", None) or type(each).__name__, each) for each in listed]


def _measured(each: Any) -> bool:
    return getattr(each, "measured_fpr", None) is not None


def _bits(each: Any) -> float:
    measured = getattr(each, "measured_bits", None)
    return float(each.bits_per_key if measured is None else measured / max(each.keys, 1))


def _rate(each: Any) -> float:
    measured = getattr(each, "measured_fpr", None)
    return float(each.expected_fpr if measured is None else measured)


def _label(ax: Any, names: list[str], points: list[tuple[float, float]]) -> None:
    """Write names in a column beside the axes, with a line from each to its point."""
    places = ax.transAxes.inverted().transform(ax.transData.transform(points))[:, 1]
    order = sorted(range(len(names)), key=lambda i: (places[i], points[i][0]))
    heights = apart([min(max(float(places[i]), 0.0), 1.0) for i in order], _LINE)
    for i, height in zip(order, heights, strict=True):
        ax.annotate(
            names[i],
            points[i],
            xytext=(1.04, height),
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.6, "shrinkB": 3},
        )


def apart(places: list[float], gap: float) -> list[float]:
    """Move places that rise as little as it takes for a gap between any two, from 0 up.

    >>> [round(each, 2) for each in apart([0.5, 0.5, 0.9], 0.1)]
    [0.45, 0.55, 0.9]
    """
    # Places that touch move as one block, which is centred on where its members want to be.
    blocks: list[tuple[float, int]] = []
    for i, place in enumerate(places):
        total, count = place - i * gap, 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / count:
            before = blocks.pop()
            total, count = total + before[0], count + before[1]
        blocks.append((total, count))
    starts = [total / count for total, count in blocks for _ in range(count)]
    low = max(0.0, -min(starts, default=0.0))
    return [start + low + i * gap for i, start in enumerate(starts)]
