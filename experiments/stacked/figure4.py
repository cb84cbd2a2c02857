"""Figure 4 of Deeds, Hentschel and Idreos 2021: cuckoo and quotient layers, by skew."""

from __future__ import annotations

import itertools
from typing import Any

from experiments.evidence import Evidence, Verdict, experiment
from experiments.stacked.setting import (
    BITS,
    COLOURS,
    MARKERS,
    REFERENCE,
    measured,
    plan,
    setting,
    times,
)

SKEWS = (0.5, 0.75, 1.0, 1.25)
STYLES = dict(zip(SKEWS, (":", "-.", "--", "-"), strict=True))
PANELS = {"cuckoo": "stacked cuckoo", "quotient": "stacked quotient", "ribbon": "best plan"}
"""By plain filter: its stack. The paper has the first two."""


@experiment("stacked/figure4", title="Figure 4: stacks of other filters, by size and skew")
def figure4(quick: bool) -> Evidence:
    """Plan in the paper's setting; build and measure at 10 bits per key and Zipf 1."""
    rows = []
    sizes = (6.0, 8.0, BITS, 12.0, 14.0) if quick else tuple(map(float, range(6, 15)))
    for (kind, stack), bits in itertools.product(PANELS.items(), sizes):
        for method, skew in [(kind, None), *((stack, skew) for skew in SKEWS)]:
            made = plan(method, skew or 1.0, bits)
            found = None
            if bits == BITS and skew in (0.75, 1.0):
                found = measured(method, skew, bits, setting(quick)).mean
            rows.append(
                {
                    "panel": kind,
                    "filter": method,
                    "zipf": skew,
                    "bits_per_key": bits,
                    "planned": made.expected_fpr,
                    "layers": len(made.layers),
                    "measured": found,
                }
            )

    def draw(figure: Any) -> None:
        figure.set_size_inches(10, 4)
        panels = figure.subplots(1, 3, sharey=True)
        for axes, (kind, stack) in zip(panels, PANELS.items(), strict=True):
            for skew in (None, *SKEWS):
                part = [row for row in rows if row["panel"] == kind and row["zipf"] == skew]
                axes.plot(
                    [row["bits_per_key"] for row in part],
                    [row["planned"] for row in part],
                    color="grey" if skew is None else COLOURS[stack],
                    linestyle="-" if skew is None else STYLES[skew],
                    marker=MARKERS[stack] if skew else None,
                    markersize=3,
                    label="plain" if skew is None else f"Zipf {skew:g}",
                )
            axes.set(
                xlabel="bits per key",
                yscale="log",
                title=stack if kind != "ribbon" else "best plan, and plain ribbon",
            )
            axes.legend(fontsize=7)
        panels[0].set_ylabel("false-positive rate")

    rate = {
        (row["filter"], row["zipf"]): row["planned"] for row in rows if row["bits_per_key"] == BITS
    }
    gains = {
        stack: [rate[kind, None] / rate[stack, skew] for skew in SKEWS]
        for kind, stack in PANELS.items()
    }
    rising = all(list(gain) == sorted(gain) for gain in gains.values())
    return Evidence(
        rows,
        [
            Verdict(
                f"Stacks of {kind} filters have lower rates than the plain filter, the lower the "
                "more "
                "skewed the queries are.",
                "curves, no number",
                " / ".join(times(gain) for gain in gains[PANELS[kind]])
                + " at Zipf 0.5 / 0.75 / 1 / 1.25",
                " / ".join(times(rate[kind, None] / rate["best plan", skew]) for skew in SKEWS),
                "goes further" if rising else "differs",
                "At 10 bits per key and in whole fingerprints, as planned for "
                f"{REFERENCE.keys:,} keys; the best plan is compared with the same plain filter.",
            )
            for kind in ("cuckoo", "quotient")
        ],
        draw,
    )
