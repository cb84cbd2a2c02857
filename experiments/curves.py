"""Pictures of rows: curves by name, in the colours of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

PALETTE = (
    "#d9480f",
    "#1f77b4",
    "#2b8a3e",
    "#7b3fa0",
    "#b8860b",
    "#17a2b8",
    "#7f7f7f",
    "#c2255c",
    "#495057",
)
MARKERS = "os^Dv<>Px"


def curves(
    axes: Any,
    rows: Iterable[Mapping[str, Any]],
    *,
    x: str,
    y: str,
    by: str,
    title: str = "",
    labels: tuple[str, str] = ("", ""),
    logx: int = 0,
    logy: bool = False,
    legend: bool = True,
    order: Iterable[str] | None = None,
) -> None:
    """Draw y against x, one curve for each value of ``by``; rows without a number are left out.

    A curve has the same colour in every panel if ``order`` names all curves. ``logx`` is the base
    of a logarithmic axis.
    """
    found: dict[Any, list[tuple[float, float]]] = {}
    for row in rows:
        if row[y] not in ("", None) and row[x] not in ("", None):
            found.setdefault(row[by], []).append((float(row[x]), float(row[y])))
    names = list(order) if order is not None else list(found)
    for i, name in enumerate(names):
        if name not in found:
            continue
        points = sorted(found[name])
        axes.plot(
            *zip(*points, strict=True),
            label=str(name),
            color=PALETTE[i % len(PALETTE)],
            marker=MARKERS[i % len(MARKERS)],
            markersize=4,
            linewidth=1.4,
        )
    if logx:
        axes.set_xscale("log", base=logx)
    if logy:
        axes.set_yscale("log")
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(labels[0], fontsize=8)
    axes.set_ylabel(labels[1], fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    if legend:
        axes.legend(fontsize=6.5)


def panels(
    count: int, draw: Callable[[int, Any], None], *, columns: int = 3, share: bool = True
) -> Callable[[Any], None]:
    """Return a function that draws panels beside each other, with one legend below them all."""

    def draw_all(figure: Any) -> None:
        rows = -(-count // columns)
        wide = min(count, columns)
        figure.set_size_inches(3.1 * wide + (0.6 if wide < 3 else 0), 2.7 * rows + 0.6)
        grid = figure.subplots(rows, wide, squeeze=False).ravel()
        named: dict[str, Any] = {}
        for i, axes in enumerate(grid):
            if i >= count:
                axes.set_axis_off()
                continue
            draw(i, axes)
            if share:
                for line, name in zip(*axes.get_legend_handles_labels(), strict=True):
                    named.setdefault(name, line)
                if axes.get_legend():
                    axes.get_legend().remove()
        if share and named:
            figure.legend(
                named.values(),
                named,
                loc="outside lower center",
                ncols=min(len(named), 4 if wide > 1 else 3),
                fontsize=7,
            )

    return draw_all
