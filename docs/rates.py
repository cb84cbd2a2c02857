"""A hook of MkDocs: each filter's page plots its rate by its size, with Bloom and the lower bound.

    python docs/rates.py FOLDER

writes the pictures as SVG files. Every point is a prediction, for a size that the kind has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import tamis
from tamis.planning import learned_bloom, ribbon, stable, windowed
from tamis.planning.adaptive_stacked import PlanRequest, plan_adaptive
from tamis.planning.kinds import KINDS

KEYS = 1_000_000
BITS = np.arange(4.0, 24.5, 0.5).tolist()
RATES = np.geomspace(0.1, 1e-4, 16).tolist()
GROUPS = ([0.485, 0.390, 0.125], [0.090, 0.347, 0.563])
"""Fractions of absent keys and of members in three groups of scores."""

Points = list[tuple[float, float]]
"""Bits per key, and a rate."""

MUTED, STRONG = "#98a2ae", ("#d9480f", "#1f77b4", "#2b8a3e")


def points(size: Callable[[float], tuple[float, float]], at: Iterable[float]) -> Points:
    """Return the points that exist; several budgets may have the same filter."""
    found = {}
    for each in at:
        try:
            bits, rate = size(each)
        except ValueError:  # too few bits for this kind
            continue
        if 0 < rate < 1:
            found[round(bits, 3)] = rate
    return sorted(found.items())


def plain(kind: str) -> dict[str, Points]:
    """Return a line for each option of a kind that is built from keys and a size."""
    row = KINDS[kind]
    lines = {}
    for option in row.options:

        def size(bits: float, arguments: dict[str, Any] = option.arguments) -> tuple[float, float]:
            assert row.sizes is not None
            found = row.sizes.size(KEYS, bits_per_key=bits, **arguments)
            return found.bits / KEYS, found.rate(KEYS)

        line = points(size, BITS)
        if not any(_agree(line, other) for other in lines.values()):  # NOTES say which coincide
            lines[option.name] = line
    return lines


def _agree(line: Points, other: Points) -> bool:
    """Tell whether two lines are one to the eye."""
    return len(line) == len(other) and np.allclose(line, other, rtol=0.02)


def stacked() -> dict[str, Points]:
    """Return the rate of a stack under a skewed workload."""
    workload = tamis.Workload.zipf(1.0, universe=10**6, sample=5 * 10**5)

    def size(bits: float) -> tuple[float, float]:
        plan = tamis.plan(KEYS, workload, bits_per_key=bits, rates="equal", layer="ribbon")
        return plan.bits_per_key, plan.expected_fpr

    return {"Stacked": points(size, BITS[::4])}


def adaptive_stacked() -> dict[str, Points]:
    """Return the mean rate of an adaptive stack over its lifetime."""
    workload = tamis.Workload.zipf(1.0, universe=10**6)

    def size(bits: float) -> tuple[float, float]:
        request = PlanRequest(10**5, "lifetime", 10**6, bits_per_key=bits)
        plan = plan_adaptive(request, workload)
        return plan.stack.bits_per_key, plan.mean_fpr

    return {"AdaptiveStacked, 10⁶ queries": points(size, BITS[::4])}


def window() -> dict[str, Points]:
    """Return the rate of a windowed filter."""

    def size(bits: float) -> tuple[float, float]:
        found = windowed.size(KEYS, bits_per_key=bits)
        return found.bits / KEYS, found.rate()

    return {"Windowed": points(size, range(4, 41))}


def fading() -> dict[str, Points]:
    """Return the rate of stable filters that forget a given fraction."""

    def forgetting(fnr: float) -> Points:
        return points(lambda rate: (stable.size_for(fnr, rate, 1000).bits / 1000, rate), RATES)

    return {f"{100 * fnr:.0f} % forgotten": forgetting(fnr) for fnr in (0.9, 0.5, 0.1)}


def fading_learned() -> dict[str, Points]:
    """Return the fraction that stable filters forget, with and without a classifier."""
    gap, rate = 2000, 0.01

    def learned_size(bits: float) -> tuple[float, float]:
        plan = tamis.plan_stable(*GROUPS, bits=round(bits * gap), fpr=rate, gap=gap)
        return bits, plan.expected_fnr

    def plain_size(bits: float) -> tuple[float, float]:
        return bits, stable.false_negatives(stable.size(round(bits * gap), rate, gap), gap)

    at = range(4, 101, 8)
    return {"StableLearned": points(learned_size, at), "StableBloom": points(plain_size, at)}


def classified() -> dict[str, Points]:
    """Return the rate of a learned filter, for scores drawn from two distributions."""
    rng = np.random.default_rng(0)
    members, others = (rng.beta(*shape, 5000).astype(np.float32) for shape in ((3, 1.5), (1.5, 3)))
    parts = learned_bloom.segments(members, others)
    halving = ribbon.size(KEYS, fpr=2**-8).bits / (8 * KEYS)

    def size(rate: float) -> tuple[float, float]:
        plan = learned_bloom.plan(parts, fpr=rate, mixed=True)
        return halving * plan.filter_bits / len(members), plan.expected_fpr

    return {"LearnedBloom, without its model": points(size, RATES)}


SPECIAL: dict[str, Callable[[], dict[str, Points]]] = {
    "adaptive_stacked": adaptive_stacked,
    "learned": classified,
    "sharded": lambda: {"Sharded ribbon": plain("ribbon")["Ribbon"]},
    "stable": fading,
    "stable_learned": fading_learned,
    "stacked": stacked,
    "windowed": window,
}
"""The kinds that are not built from keys and a size alone."""

SPANS = {"learned": (0, 20), "stable": (0, 170), "stable_learned": (0, 100), "windowed": (4, 40)}
"""Bits per key that a picture shows, where filters are larger than others."""

PAGES = [kind.name for kind in KINDS.values() if kind.sizes is not None or kind.name in SPECIAL]

NOTES = {
    "adaptive_stacked": "The mean rate over a million queries that follow Zipf's law, for 100,000 "
    "keys.",
    "bloom": "The segmented layout is as large as the standard one.",
    "learned": "For a classifier whose scores of members and non-members are Beta(3, 1.5) and "
    "Beta(1.5, 3).",
    "ribbon": "Both layouts are equally large.",
    "stable": "Bits per record of the gap, after which the given fraction is forgotten.",
    "stable_learned": "The fraction of members rejected at a gap of 2,000 records, at a "
    "false-positive rate of 1 %, by bits per record of the gap; three groups of scores.",
    "stacked": "For queries that follow Zipf's law over a million absent keys, half of them known: "
    "a filter that knows its queries can be below the bound for unknown ones.",
    "telescoping": "The rate of a first query; a false positive is not repeated. Extending filters "
    "are equally large.",
    "adaptive_cuckoo": "The rate of a first query; a false positive is not repeated.",
    "windowed": "Bits per key of the window.",
}


def draw(name: str) -> Any:
    """Draw the rate of a kind by its size; return the axes."""
    from tamis.plotting import figure_axes

    ax = figure_axes(5.2, 3.4)
    lines = SPECIAL[name]() if name in SPECIAL else plain(name)
    colours = dict(zip(lines, STRONG, strict=False))
    if name != "stable_learned":
        lines = {"Bloom": plain("bloom")["Bloom"]} | lines
    for label, line in lines.items():
        strong = label in colours
        ax.plot(*zip(*line, strict=True), "o-" if strong else "-", label=label, markersize=3,
                color=colours.get(label, MUTED), linewidth=2.2 if strong else 1.5,
                zorder=3 if strong else 2)  # fmt: skip
    if name != "stable_learned":
        bound = [2**-bits for bits in BITS]
        ax.plot(
            BITS, bound, ":", color="#000000", linewidth=1.2, zorder=4, label="bound: log₂ 1/rate"
        )
        ax.set_ylim(2e-5, 0.3)
    ax.set_yscale("log")
    ax.set_xlim(*SPANS.get(name, (4, 20)))
    ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")
    ax.set_xlabel("bits per key")
    ax.set_ylabel("rejected members" if name == "stable_learned" else "false-positive rate")
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    # Rates fall from the upper left, so that the names fit into the other corner, on a phone too.
    ax.legend(loc="upper right", frameon=False, fontsize=9, labelcolor="linecolor")
    return ax


def caption(name: str) -> str:
    """Say what the picture shows."""
    if name == "stable_learned":
        return NOTES[name]
    text = f"Predicted false-positive rate of {KEYS:,} keys by size; Bloom is the standard layout. "
    return text + NOTES.get(name, "")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the picture after the first example of a filter's page."""
    name = page.file.src_uri.removesuffix(".md")
    if name not in PAGES:
        return markdown
    from tamis.plotting import svg

    figure = (
        f'<figure class="plot">{svg(draw(name))}<figcaption>{caption(name)}</figcaption></figure>'
    )
    figure = figure.replace("\n", " ")  # a blank line would end the HTML
    start, middle, rest = markdown.partition("\n**When**")
    if not middle:
        start, middle, rest = markdown.partition("\n## ")
    return f"{start}\n{figure}\n{middle}{rest}"


if __name__ == "__main__":
    from tamis.plotting import svg

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for kind in PAGES:
        (folder / f"{kind}.svg").write_text(svg(draw(kind)))
