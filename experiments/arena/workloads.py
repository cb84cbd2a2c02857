"""Rates by size, a table and a picture per workload: one-pass, uniform, Zipf's law, recorded."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from experiments.arena import bouts, grounds, plots
from experiments.arena.families import BLOOM
from experiments.evidence import Evidence, Verdict, experiment

Row = dict[str, Any]
ORDER = 300
"""Half-way from 100 to 1000 on a logarithmic scale: what passes for "up to 10³"."""

TRACES = ("cache", "orm")
MODELLED = (
    "Our five sets stand in for the paper's four, and a million queries (quick: 100,000) for ten "
    "million."
)


@cache
def measured(workload: str, quick: bool) -> tuple[Row, ...]:
    """The rows of a workload, measured once per process."""
    names = TRACES if workload == "recorded" else tuple(grounds.MAKERS)
    return tuple(bouts.table(workload, quick, names))


def evidence(workload: str, quick: bool, verdicts: list[Verdict]) -> Evidence:
    rows = measured(workload, quick)
    draw = partial(
        plots.draw, rows=rows, x="budget", y="expected", label="bits per key, everything counted"
    )
    return Evidence(rows, verdicts, draw)


def lower(rows: tuple[Row, ...], families: Any) -> tuple[float, float, str]:
    """Return how much lower than Bloom's the rate of the best of these families is.

    The least and the most over data sets, each at its best size, and the data set of the most. No
    error counts as one.
    """
    best: dict[str, float] = {}
    for bloom in (row for row in rows if row["family"] == BLOOM):
        for row in rows:
            if (row["data"], row["budget"]) == (bloom["data"], bloom["budget"]) and families(row):
                best[row["data"]] = max(best.get(row["data"], 0), row["lower_than_bloom"])
    most = max(best, key=lambda name: best[name])
    return min(best.values()), best[most], most


def group(name: str) -> Any:
    return lambda row: row["group"] == name


def named(name: str) -> Any:
    return lambda row: row["family"] == name


def tamis_best(row: Row) -> bool:
    return row["group"] != "outside"


def times(value: float) -> str:
    return f"{value:.0f}×" if value >= 10 else f"{value:.1f}×"


def spread(found: tuple[float, float, str]) -> str:
    return f"{times(found[0])} to {times(found[1])} lower ({found[2]})"


def most_wins(rows: tuple[Row, ...]) -> str:
    wins: dict[str, int] = {}
    cells = len({(row["data"], row["budget"]) for row in rows})
    for row in rows:
        if row["winner"]:
            wins[row["family"]] = wins.get(row["family"], 0) + 1
    ordered = sorted(wins, key=lambda name: -wins[name])
    return ", ".join(f"{name} {wins[name]}" for name in ordered) + f" of {cells} cells"


@experiment("arena/one_pass", title="Each row is queried once", data=grounds.DATA)
def one_pass(quick: bool) -> Evidence:
    """No query is repeated, so only what rows look like can be learned."""
    rows = measured("one_pass", quick)
    found, best = lower(rows, group("learned")), lower(rows, tamis_best)
    stack = lower(rows, named("Stacked, Bloom layers"))
    return evidence(
        "one_pass",
        quick,
        [
            Verdict(
                "Learned filters have up to 10² lower rates, but it varies by data set.",
                "up to 100× lower",
                spread(found),
                spread(best),
                "agrees" if found[1] >= ORDER / 10 and found[1] > 5 * found[0] else "differs",
                "A model helps where members look unlike other rows (connections, URLs), and costs "
                f"bits where they do not (objects of a trace). Wins: {most_wins(rows)}. {MODELLED}",
            ),
            Verdict(
                "A stack gains nothing where no query is repeated.",
                "–",
                spread(stack),
                spread(lower(rows, named("Ribbon"))),
                "agrees" if stack[1] < 1.5 else "differs",
                "The first quarter shows that nothing is repeated (unseen is 1), and the planner "
                "returns one layer: the best plain filter is as good as a stack of its kind.",
            ),
        ],
    )


@experiment("arena/uniform", title="Rows are queried uniformly", data=grounds.DATA)
def uniform(quick: bool) -> Evidence:
    """Every row is queried about equally often."""
    rows = measured("uniform", quick)
    found, best = lower(rows, group("learned")), lower(rows, tamis_best)
    learned = [row["times_bloom_query"] for row in rows if row["group"] == "learned"]
    return evidence(
        "uniform",
        quick,
        [
            Verdict(
                "Learned filters have up to 10² lower rates, but it varies by data set.",
                "up to 100× lower",
                spread(found),
                spread(best),
                "goes further" if best[1] > max(100, found[1]) else "agrees",
                f"As in one pass. Wins: {most_wins(rows)}. {MODELLED}",
            ),
            Verdict(
                "A query of a learned filter is up to 10⁴ times slower.",
                "10⁴×",
                f"{times(min(learned))} to {times(max(learned))} a Bloom filter's",
                f"{times(min(learned))}",
                "goes further" if max(learned) < 1000 else "agrees",
                "The model is a table of weights that native code adds up in batches. CPU time of "
                "one run on this machine.",
            ),
        ],
    )


def skewed(workload: str, quick: bool, claim: str, theirs: str, enough: float | None) -> Evidence:
    rows = measured(workload, quick)
    found, best = lower(rows, named("Stacked, Bloom layers")), lower(rows, group("stacked"))
    further, agreed = (1.5 * found[1], 1) if enough is None else (2 * enough, ORDER * enough / 1000)
    verdict = "goes further" if best[1] > further else "agrees" if best[1] > agreed else "differs"
    return evidence(
        workload,
        quick,
        [
            Verdict(
                claim,
                theirs,
                f"{spread(found)}, layers of Bloom filters",
                f"{spread(best)}, the best stack",
                verdict,
                f"The ratio is limited by the keys that the first quarter does not show. Adaptive "
                f"filters: {spread(lower(rows, group('adaptive')))}. "
                f"Wins: {most_wins(rows)}. {MODELLED}",
            )
        ],
    )


@experiment("arena/zipf15", title="Zipf's law, exponent 1.5", data=grounds.DATA)
def zipf15(quick: bool) -> Evidence:
    """A few rows make up most queries."""
    claim = "Stacked filters have up to 10³ lower rates on skewed queries (Zipf 1.5)."
    return skewed("zipf15", quick, claim, "up to 1000× lower", 1000)


@experiment("arena/zipf10", title="Zipf's law, exponent 1.0", data=grounds.DATA)
def zipf10(quick: bool) -> Evidence:
    """Half-way between uniform and dominated by a few rows."""
    claim = "Stacked filters have lower rates on skewed queries; how much at Zipf 1.0 is not said."
    return skewed("zipf10", quick, claim, "–", None)


@experiment(
    "arena/recorded", title="Requests as recorded, of a cache and an ORM", data=grounds.DATA[-2:]
)
def recorded(quick: bool) -> Evidence:
    """The only queries of the arena that nobody modelled: later ones differ from earlier ones."""
    claim = (
        "Stacked filters have lower rates on skewed queries; no recorded queries are in the paper."
    )
    return skewed("recorded", quick, claim, "–", None)
