"""Pictures of the arena: one panel per data set, winners in strong colours, the others in grey."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.arena.families import BLOOM

Row = dict[str, Any]

COLOURS = {
    BLOOM: "#222222",
    "Stacked, exact": "#d1495b",
    "Stacked, alternating": "#f0883e",
    "Stacked, Bloom layers": "#b5838d",
    "Telescoping": "#00798c",
    "Extending": "#5fb0b7",
    "AdaptiveCuckoo": "#2f4b7c",
    "AdaptiveStacked": "#3d8b37",
    "Learned, partitioned": "#6a4c93",
    "Learned, sandwiched": "#b07cc6",
    "Learned, simple": "#e7a6d8",
    "Ribbon": "#1f78b4",
    "Quotient": "#8c510a",
    "Stacked, quotient layers": "#c97b4a",
}
"""A family has the same colour in all pictures."""

MOST = 7
"""Families in strong colours."""
TITLES = {
    "blocklist": "blocklist / popular domains",
    "urls": "phishing / honest URLs",
    "kdd": "attacks / normal connections",
    "cache": "cache, half of its objects",
    "orm": "ORM, half of its objects",
}
GREYS = {"outside": ("#c9a27e", ":"), "plain": ("#bbbbbb", "-")}


def draw(
    figure: Any,
    rows: Sequence[Row],
    *,
    x: str,
    y: str,
    label: str,
    percent: bool = False,
    strong: Sequence[str] = (),
) -> None:
    """Draw ``y`` against ``x``, a line per family and a panel per data set.

    A rate of 0 is drawn on the floor: below it, no error was seen in that many queries.
    """
    names = list(dict.fromkeys(row["data"] for row in rows))
    chosen = {*(strong or winners(rows, y)), BLOOM}
    colours = {name: colour for name, colour in COLOURS.items() if name in chosen}
    lines = len(names) // 3 + 1  # the last panel is the legend
    figure.set_size_inches(10.5, 3.1 * lines)
    panels = figure.subplots(lines, 3, sharex=True, sharey=True).flat
    positive = [row[y] for row in rows if row[y]]
    floor = min(positive, default=1e-6) / 3
    for panel, name in zip(panels, names, strict=False):
        here = [row for row in rows if row["data"] == name]
        for family in dict.fromkeys(row["family"] for row in here):
            line = sorted((row[x], row[y] or floor) for row in here if row["family"] == family)
            group = next(row["group"] for row in here if row["family"] == family)
            grey, dashes = GREYS.get(group, GREYS["plain"])
            is_strong = family in colours
            panel.plot(
                *zip(*line, strict=True),
                color=colours.get(family, grey),
                linestyle="--" if family == BLOOM else "-" if is_strong else dashes,
                linewidth=2 if is_strong else 0.9,
                marker="o" if is_strong else None,
                markersize=4,
                zorder=3 if is_strong else 1,
            )
        panel.set_title(TITLES[name], fontsize=10)
        panel.set_yscale("log")
        panel.grid(alpha=0.25, linewidth=0.5)
        panel.axhline(floor, color="#999999", linewidth=0.6, linestyle=(0, (1, 3)))
        if percent:
            panel.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    figure.supxlabel(label, fontsize=10)
    figure.supylabel("false-positive rate among absent keys", fontsize=10)
    key(figure, len(names), colours, {row["family"] for row in rows}, rows)


def key(figure: Any, used: int, colours: dict[str, str], shown: set[str], rows: Any) -> None:
    """Put the legend into the panels that are left."""
    from matplotlib.lines import Line2D

    entries = [
        Line2D([], [], color=colour, linewidth=2, marker="o", markersize=4, label=name,
               linestyle="--" if name == BLOOM else "-")
        for name, colour in colours.items()
        if name in shown
    ]  # fmt: skip
    groups = {row["group"] for row in rows if row["family"] not in colours}
    for group, text in (("plain", "other families of tamis"), ("outside", "other packages")):
        if group in groups or (group == "plain" and groups - {"outside"}):
            colour, dashes = GREYS[group]
            entries.append(
                Line2D([], [], color=colour, linewidth=0.9, linestyle=dashes, label=text)
            )
    if any(not row.get("expected", row.get("rate", 1)) for row in rows):
        entries.append(
            Line2D(
                [], [], color="#999999", linewidth=0.6, linestyle=(0, (1, 3)), label="no error seen"
            )
        )
    for panel in figure.axes[used:]:
        panel.axis("off")
    for above in figure.axes[max(used - 3, 0) : used]:
        above.xaxis.set_tick_params(labelbottom=True)
    figure.axes[-1].legend(handles=entries, loc="center", frameon=False, fontsize=9)


def winners(rows: Sequence[Row], y: str) -> list[str]:
    """Return the families with the lowest rate in some cell, those with the most cells first."""
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        cells.setdefault(
            (row["data"], row.get("budget"), row.get("replayed"), row.get("part")), []
        ).append(row)
    counts: dict[str, int] = {}
    for part in cells.values():
        least = min(row[y] for row in part)
        for row in part:
            if row[y] == least:
                counts[row["family"]] = counts.get(row["family"], 0) + 1
    return sorted(counts, key=lambda name: -counts[name])[:MOST]
