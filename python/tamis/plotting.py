"""Plots: `tamis.compare`, the ``plot()`` methods, and figures as SVG.

Plots need matplotlib: ``pip install tamis[plot]``. This module is imported only to plot.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tamis._checks import shown
from tamis._format import format_duration, format_rate

if TYPE_CHECKING:
    from tamis.advice.situation import Choice
    from tamis.collection.description import Description
    from tamis.guard.statistics import Window
    from tamis.planning.plan import Plan
    from tamis.workload import Workload

COLOURS = {
    "plain": "#7f7f7f",
    "stacked": "#1f77b4",
    "exact": "#17a2b8",
    "adaptive": "#d9480f",
    "learned": "#7b3fa0",
    "stream": "#2b8a3e",
    "collection": "#b8860b",
}
"""The colour of each family, readable on light and dark backgrounds."""


_LINE = 0.062
"""The height of a line of text, relative to the axes."""


_WINDOWS = 60
"""The number of steps in a plot of the rate over time."""


class Sized(Protocol):
    """A filter, a plan, or a choice of an advice: any object with a size and a rate."""

    @property
    def bits_per_key(self) -> float:
        """Memory per key in bits."""
        ...

    @property
    def expected_fpr(self) -> float:
        """Expected false-positive rate."""
        ...


def compare(filters: Iterable[Sized] | Mapping[str, Sized], *, ax: Any = None) -> Any:
    """Plot the false-positive rate of filters against their size, with the Pareto front.

    ``filters`` are filters, plans or choices of an advice, as a list or by name. Measured rates are
    drawn as dots, with the predicted rate as a ring. Returns the axes.

    >>> import tamis
    >>> built = [tamis.Bloom.build(range(1000), bits_per_key=b) for b in (6, 8, 10)]
    >>> compare(built).get_xlabel()
    'bits per key'
    """
    named = _named(filters)
    if not named:
        raise ValueError("filters must not be empty")
    ax = axes(ax)
    points = [(_bits(each), _rate(each)) for _, each in named]
    front = pareto(points)
    if len(front) > 1:
        ax.plot(*zip(*front, strict=True), color="#999999", linewidth=1, zorder=1)
    for (_, each), (bits, rate) in zip(named, points, strict=True):
        colour = COLOURS.get(getattr(each, "family", ""), "#1f77b4")
        if _measured(each):
            ax.plot([bits], [each.expected_fpr], "o", color=colour, fillstyle="none", zorder=2)
        ax.plot([bits], [rate], "o", color=colour, zorder=3)
    if (lowest := min((rate for _, rate in points if rate > 0), default=0.0)) > 0:
        ax.set_yscale("log", nonpositive="mask")
    ax.set_xlabel("bits per key")
    measured = any(_measured(each) for _, each in named)
    ax.set_ylabel("false-positive rate" + (", measured (rings: predicted)" if measured else ""))
    ax.margins(x=0.08, y=0.1)
    ax.grid(True, which="major", alpha=0.25)
    _label(ax, [name for name, _ in named], [(bits, max(rate, lowest)) for bits, rate in points])
    return ax


def axes(ax: Any = None) -> Any:
    """Return the axes to draw on: these, or new ones.

    Where matplotlib is missing, ImportError names the extra to install.
    """
    if ax is not None:
        if not hasattr(ax, "plot"):
            raise TypeError(f"ax must be axes of matplotlib, or None, not {shown(ax)}")
        return ax
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError("a plot needs matplotlib: pip install tamis[plot]") from None
    return pyplot.subplots()[1]


def draw_workload(workload: Workload, ax: Any = None) -> Any:
    """Plot the frequency of each absent key by rank, on logarithmic scales; return the axes."""
    ax = axes(ax)
    ranks = np.unique(np.geomspace(1, max(len(workload), 1), 500).astype(np.int64))
    frequencies = workload.curve.psi(ranks) - workload.curve.psi(ranks - 1)
    ax.loglog(ranks, frequencies)
    for share in (0.25, 0.5, 0.75, 0.9):
        if (rank := workload.quantiles([share])[0]) is not None and rank > 0:
            ax.axvline(rank, color="#999999", linewidth=0.8, linestyle=":")
            ax.annotate(
                format_rate(share),
                (rank, 1),
                xycoords=("data", "axes fraction"),
                xytext=(3, -3),
                textcoords="offset points",
                va="top",
                fontsize=8,
            )
    ax.set_xlabel("rank of the absent key (dotted: cumulative fraction of the queries)")
    ax.set_ylabel("fraction of the queries for absent keys")
    ax.set_title(
        f"{len(workload):,} known negatives, {format_rate(workload.unseen)} of the queries unseen"
    )
    return ax


def draw_plan(plan: Plan, ax: Any = None) -> Any:
    """Plot the rate of a plan by ψ, the fraction of queries for stored negatives."""
    ax = axes(ax)
    ax.plot([0, 1], [plan.rate_at(0), plan.rate_at(1)])
    ax.plot([plan.psi], [plan.expected_fpr], "o", label=f"planned: {plan.expected_fpr:.3g}")
    ax.plot([0], [plan.fpr_bound], "s", label=f"under any workload: {plan.fpr_bound:.3g}")
    ax.set_xlabel("fraction of the queries for absent keys that are for stored negatives (ψ)")
    ax.set_ylabel("false-positive rate")
    ax.set_ylim(bottom=0)
    ax.set_title(f"{plan.describe()}, {plan.bits_per_key:.2f} bits per key")
    ax.grid(True, alpha=0.25)
    ax.legend(frameon=False)
    return ax


def draw_history(windows: list[Window], expected: float, ax: Any = None) -> Any:
    """Plot the rate of each window of queries, and the mean so far; return the axes."""
    ax = axes(ax)
    windows = _joined(windows)
    ends = [each.queries for each in windows]
    ax.step(
        ends,
        [each.false_positives / each.negatives for each in windows],
        where="pre",
        color=COLOURS["adaptive"],
        linewidth=1,
        label="per window",
    )
    wrong = np.cumsum([each.false_positives for each in windows])
    queried = np.cumsum([each.negatives for each in windows])
    ax.plot(ends, wrong / np.maximum(queried, 1), color=COLOURS["stacked"], label="mean so far")
    ax.axhline(expected, color="#999999", linestyle="--", linewidth=1, label="expected")
    ax.set_xlabel("queries")
    ax.set_ylabel("false positives per query for an absent key")
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_formatter(_thousands)
    ax.grid(True, alpha=0.25)
    ax.legend(frameon=False)
    return ax


def _joined(windows: list[Window]) -> list[Window]:
    """Join neighbouring windows until there are few enough to plot."""
    width = -(-len(windows) // _WINDOWS)
    parts = [windows[start : start + width] for start in range(0, len(windows), max(width, 1))]
    return [
        part[-1]._replace(
            negatives=sum(each.negatives for each in part),
            false_positives=sum(each.false_positives for each in part),
        )
        for part in parts
    ]


def draw_costs(choices: Sequence[Choice], ax: Any = None) -> Any:
    """Plot the cost of a query with each choice, best first; return the axes."""
    ax = axes(ax)
    rows = list(range(len(choices)))
    measured = any(each.measured_cost is not None for each in choices)
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
    ax.xaxis.set_major_formatter(lambda value, _: format_duration(value))
    ax.set_xlabel("cost of a query" + (", measured (rings: predicted)" if measured else ""))
    ax.grid(True, axis="x", which="major", alpha=0.25)
    if len(seen) > 1:
        ax.legend(frameon=False, loc="best")
    return ax


def draw_collection(collection: Description, ax: Any = None) -> Any:
    """Draw the bits per key of each filter, in the file and in memory, by utility."""
    from tamis.collection.prefixes import rate_curve

    ax = axes(figure_axes(6.4, 4.8) if ax is None else ax)
    prefixes = collection._memory.prefixes  # another thread may replace them
    counts, utility = np.maximum(prefixes.filters.sizes().counts, 1), prefixes.utility
    full = rate_curve(prefixes.filters.sizes()).bits
    ax.scatter(utility, full / counts, s=4, color="#999999", label="in the file")
    ax.scatter(utility, prefixes.kept / counts, s=6, label="in memory")
    scale = "log" if len(utility) and utility.min() > 0 else "symlog"
    ax.set(xlabel="utility: how often a set is queried", ylabel="bits per key", xscale=scale)
    ax.set_title(f"{len(collection):,} filters, {collection.size_in_bytes:,} bytes in memory")
    ax.grid(True, alpha=0.25)
    ax.legend(frameon=False)
    return ax


def _thousands(value: float, _: object) -> str:
    return f"{value:,.0f}"


def pareto(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the Pareto front: the points that no other point beats in size and rate, by size.

    >>> pareto([(8, 0.02), (9, 0.03), (10, 0.01), (8, 0.05)])
    [(8, 0.02), (10, 0.01)]
    """
    front: list[tuple[float, float]] = []
    for bits, rate in sorted(points):
        if not front or rate < front[-1][1]:
            front.append((bits, rate))
    return front


def figure_axes(width: float, height: float) -> Any:
    """Return the axes of a new figure, in inches, that pyplot does not show."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("a plot needs matplotlib: pip install tamis[plot]") from None
    return Figure(figsize=(width, height)).subplots()


def svg(ax: Any) -> str:
    """Return the figure of these axes as SVG to embed in an HTML page.

    Text stays text, in the font of the page; black becomes the text colour of the page and the
    background is transparent, so that the figure fits light and dark pages. It shrinks with the
    page, and does not grow beyond its own width.
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
    drawn = re.sub(r'(<svg[^>]*?) width="([^"]*)"', r'\1 style="max-width: \2"', drawn, count=1)
    drawn = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", drawn, count=1)
    drawn = re.sub(r"font: [^;\"]*?([0-9.]+px)[^;\"]*", r"font-size: \1", drawn)
    drawn = drawn.replace("#000000", "currentColor")
    # A path without a colour, such as a tick of the axes, would be black.
    return drawn.replace("<svg ", '<svg fill="currentColor" role="img" ', 1)


def _named(filters: Iterable[Sized] | Mapping[str, Sized]) -> list[tuple[str, Sized]]:
    if isinstance(filters, Mapping):
        for name, each in filters.items():
            _check_sized(f"filters[{name!r}]", each)
        return list(filters.items())
    if not isinstance(filters, Iterable):
        raise TypeError(
            "filters must be a list or a mapping of filters, plans or choices of an advice, "
            f"not {filters!r} ({type(filters).__name__})"
        )
    given: list[Any] = list(filters)
    for index, each in enumerate(given):
        _check_sized(f"filters[{index}]", each)
    return [(getattr(each, "name", None) or type(each).__name__, each) for each in given]


def _check_sized(name: str, each: Any) -> None:
    if not (hasattr(each, "bits_per_key") and hasattr(each, "expected_fpr")):
        kind = type(each).__name__
        raise TypeError(f"{name} must be a filter, a plan or a choice of an advice, not {kind}")


def _measured(each: Any) -> bool:
    return getattr(each, "measured_fpr", None) is not None


def _bits(each: Any) -> float:
    measured = getattr(each, "measured_bits", None)
    return float(each.bits_per_key if measured is None else measured / max(each.keys, 1))


def _rate(each: Any) -> float:
    measured = getattr(each, "measured_fpr", None)
    return float(each.expected_fpr if measured is None else measured)


def _label(ax: Any, names: list[str], points: list[tuple[float, float]]) -> None:
    """Write the names in a column next to the axes, each with a line to its point."""
    places = ax.transAxes.inverted().transform(ax.transData.transform(points))[:, 1]
    order = sorted(range(len(names)), key=lambda i: (places[i], points[i][0]))
    heights = spread_apart([min(max(float(places[i]), 0.0), 1.0) for i in order], _LINE)
    for i, height in zip(order, heights, strict=True):
        ax.annotate(
            names[i],
            points[i],
            xytext=(1.04, height),
            textcoords="axes fraction",
            va="center",
            fontsize=9,
            arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.6, "shrinkB": 3,
                        "relpos": (0, 0.5)},
        )  # fmt: skip


def spread_apart(places: list[float], gap: float) -> list[float]:
    """Move sorted places as little as possible so that they are at least ``gap`` apart, from 0 up.

    >>> [round(each, 2) for each in spread_apart([0.5, 0.5, 0.9], 0.1)]
    [0.45, 0.55, 0.9]
    """
    # Places that touch move as one block, centred on the mean of their original places.
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
