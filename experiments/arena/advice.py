"""Does `tamis.advise` pick the winner from the first quarter of the queries alone?

In each cell (data set, workload, size) the advice gets the keys and the first quarter of the
queries; a store reports false positives, and a model may be used. What it puts first is built and
measured on the later queries, as all families are, and costs are compared: the modelled time of a
query plus the measured rate times 1 ms. AdaptiveCuckoo is not among the rivals: its hashes are in
memory, so that it exceeds the budgets. Rates below one error in a thousand queries depend on the
luck of a few keys, so the first choice and rivals of a similar cost are built with more seeds; a
choice counts as good unless its cost is above the limit by more than two standard errors.

The advice was changed after looking at the cells of `TUNED` only; the others are held out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
from experiments.arena import adversary, bouts, changing, grounds, workloads
from experiments.arena.families import REMOTE, Built, Family, own
from experiments.arena.grounds import Ground, Stream
from experiments.evidence import EXPERIMENTS, Evidence, Verdict, experiment
from experiments.results import BUILD, fingerprint, load

import tamis
from tamis.advice.learned import learned
from tamis.advice.situation import Choice
from tamis.planning.kinds import KINDS
from tamis.stores import Hashes

Rows = Sequence[dict[str, Any]]

WITHIN = 1.10
TUNED = ("blocklist", "cache", "kdd")
"""Data sets whose cells the advice was changed after: see the page of the arena in the docs."""

SEEDS = {True: 8, False: 6}
CHANGING_SEEDS = 4
NEAR = 2.0
"""Rivals within this factor of the least cost are measured again, with more seeds."""

BUDGETS = {True: (6, 10), False: (6, 8, 10, 12, 14)}

USUAL = frozenset({"store", "classifier"})
ATTACKED = frozenset({"store", "adversary"})
CHANGING = frozenset({"store"})
REPLAYED = 0.1
TURNOVER = changing.CHANGED * (changing.PARTS - 1)


def advise(
    stream: Stream, budget: float, needs: frozenset[str], turnover: float | None = None
) -> tamis.Advice:
    """Ask for advice, with what is known after the first quarter."""
    ground = stream.ground
    keys, features, nonmembers = trained_on(stream)
    table = "classifier" in needs
    return tamis.advise(
        keys,
        stream.history,
        bits_per_key=budget,
        miss_cost=bouts.MISS,
        expected_queries=len(stream.absent),
        turnover=turnover,
        needs=needs,
        log=ground.take(stream.seen),
        features=features if table else None,
        nonmembers=nonmembers if table else None,
    )


def trained_on(stream: Stream) -> tuple[Any, Any, Any]:
    """Return the keys, and of a table also their rows and those of the absent keys seen so far."""
    ground = stream.ground
    if ground.features is None:
        return ground.keys, None, None
    absent = np.unique(stream.seen[stream.seen >= ground.members])
    return ground.keys, ground.read(np.arange(ground.members)), ground.read(absent)


def picked(choice: Any) -> Family:
    """Return a choice of the advice as a family of the arena."""
    kind = next(each for each in KINDS.values() if each.filter == choice.filter)
    option = next((each for each in kind.options if each.name == choice.name), None)
    if choice.family == "learned":
        option = KINDS["ribbon"].options[0]

    def build(ground: Ground, stream: Stream, budget: float, seed: int) -> Built:
        f = choice.build(ground.keys, seed=seed)
        if kind.adapts:
            stack = f.plan.stack if choice.filter == "AdaptiveStacked" else None
            hashes = Hashes(ground.keys, seed=seed)
            bits = REMOTE * ground.members
            return own(f, ground, remote=hashes, remote_bits=bits, plan=stack)
        if choice.family == "learned" and ground.features is not None:
            return Built(
                f,
                lambda places: f.contains(ground.take(places), features=ground.read(places)),
                lambda: f.size_in_bits,
            )
        return own(f, ground, plan=choice.plan)

    return Family(
        choice.name,
        choice.family,
        build,
        option,
        # A model was trained on frequent absent keys, so its rate is that of these very queries.
        planned=choice.plan is not None or kind.adapts or choice.family == "learned",
        adapts=kind.adapts,
        dynamic=True,
    )


def rows_of(name: str, quick: bool, measured: Callable[[bool], Rows]) -> Rows:
    """Return the rows of an experiment: of a finished run with the same code and data, if any."""
    each = EXPERIMENTS[name]
    found = load(each, quick, BUILD)
    if found is None or found.fingerprint != fingerprint(each):
        return measured(quick)
    return [{column: _value(text) for column, text in row.items()} for row in found.rows]


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(text)
    except ValueError:
        return text


def rivals(rows: Any, name: str, budget: float) -> dict[str, float]:
    """Return the cost of each family of a workload, in one cell."""
    return {
        row["family"]: row["cost_ns"]
        for row in rows
        if (row["data"], row["budget"]) == (name, budget)
        and row["group"] != "outside"
        and row["family"] != "AdaptiveCuckoo"
    }


class Cost(NamedTuple):
    """Nanoseconds of a query, and the standard error."""

    mean: float
    error: float = 0.0


def settled(
    family: Callable[[int], Family], stream: Stream, budget: float, quick: bool
) -> tuple[Cost, int]:
    """Return the cost with several seeds, and the largest size in bits."""
    costs, bits = [], 0
    for seed in range(1, 1 + SEEDS[quick]):
        each = family(seed)
        if bout := bouts.trial(each, stream, budget, seed, quick):
            costs.append(bouts.cost(each, stream, [bout]))
            bits = max(bits, bout.bits)
    error = float(np.std(costs, ddof=1) / np.sqrt(len(costs)))
    return Cost(float(np.mean(costs)), error), bits


def advised(advice: tamis.Advice, stream: Stream, seed: int) -> Family:
    """Return the first choice; each seed draws other rows of the first quarter for a model."""
    choice = advice.best
    if choice.family == "learned" and seed > 1:
        again = learned(advice.situation, *trained_on(stream), seed=seed)
        choice = again if isinstance(again, Choice) else choice
    return picked(choice)


def static_cells(workload: str, rows: Rows, name: str, quick: bool) -> Any:
    """Yield the cells of a workload with fixed members: costs of the rivals, and of the pick."""
    families = {family.name: family for family in bouts.contenders()}
    stream = grounds.stream(name, workload, quick)
    for budget in BUDGETS[quick]:
        found = advise(stream, budget, USUAL)
        cost, bits = settled(partial(advised, found, stream), stream, budget, quick)
        others = {each: Cost(ns) for each, ns in rivals(rows, name, budget).items()}
        least = min(cost.mean, *(each.mean for each in others.values()))
        for each in [each for each in others if others[each].mean < NEAR * least]:
            same = families[each]
            others[each] = settled(lambda _, f=same: f, stream, budget, quick)[0]
        yield workload, stream, budget, found.best, cost, others, bits


def attacked_cells(workload: str, rows: Rows, name: str, quick: bool) -> Any:
    """Yield the cell with an adversary. Only filters that adapt compete.

    A filter without errors so far has nothing to replay, but that is luck, not a guarantee.
    """
    stream, budget = grounds.stream(name, "uniform", quick), adversary.BUDGET
    choice = advise(stream, budget, ATTACKED).best
    family = picked(choice)
    rate, built = adversary.attacked(family, stream, REPLAYED)
    cost = Cost(1e9 * bouts.seconds(family, stream, built.plan, rate))
    rates = {row["family"]: row["rate"] for row in rows if row["replayed"] == REPLAYED}
    others = {}
    for each in bouts.contenders():
        if each.name in rates and each.adapts and each.name != "AdaptiveCuckoo":
            found = each.build(stream.ground, stream, budget, adversary.SEED)
            ns = 1e9 * bouts.seconds(each, stream, found.plan, rates[each.name])
            others[each.name] = Cost(ns)
    yield workload, stream, budget, choice, cost, others, built.bits()


def changing_cells(workload: str, rows: Rows, name: str, quick: bool) -> Any:
    """Yield the cell with changing members, of filters updated in place that fit to the end."""
    stream, budget = grounds.stream(name, "zipf10", quick), changing.BUDGET
    choice = advise(stream, budget, CHANGING, TURNOVER).best
    cost, bits = survived(picked(choice), stream, quick)
    rates = changing.overall(rows, name)
    ended = {row["family"]: row["bits_per_key"] for row in rows}
    competing = [
        each
        for each in changing.contenders()
        if each.dynamic and ended.get(each.name, 99) <= budget and each.name != "AdaptiveCuckoo"
    ]
    others = {}
    for each in competing:
        built = each.build(stream.ground, stream, budget, changing.SEED)
        others[each.name] = Cost(1e9 * bouts.seconds(each, stream, built.plan, rates[each.name]))
    least = min(cost.mean, *(each.mean for each in others.values()))
    for each in competing:
        if others[each.name].mean < NEAR * least:
            others[each.name] = survived(each, stream, quick)[0]
    yield workload, stream, budget, choice, cost, others, bits


def survived(family: Family, stream: Stream, quick: bool) -> tuple[Cost, int]:
    """Return the cost while members change with several seeds, and the largest size in bits."""
    ground, costs, bits = stream.ground, [], 0
    built = family.build(ground, stream, changing.BUDGET, changing.SEED)
    for seed in range(1, 1 + CHANGING_SEEDS):
        rows = changing.lived(family, stream, changing.phases(ground.name, quick), seed)
        rate = changing.overall(rows, ground.name)[family.name]
        costs.append(1e9 * bouts.seconds(family, stream, built.plan, rate))
        bits = max(bits, round(rows[-1]["bits_per_key"] * ground.members))
    return Cost(float(np.mean(costs)), float(np.std(costs, ddof=1) / np.sqrt(len(costs)))), bits


def judged(cells: Any, workload: str, rows: Rows, name: str, quick: bool) -> Rows:
    """Return the rows of a data set under a workload: the first choice, and the best as measured.

    ``cells`` is one of the functions above.
    """
    found = []
    for _, stream, budget, choice, cost, others, bits in cells(workload, rows, name, quick):
        best = min(others, key=lambda name: others[name].mean)
        least = min(cost, others[best])
        ratio = cost.mean / least.mean
        noise = math.hypot(cost.error, WITHIN * least.error)
        found.append(
            {
                "data": name,
                "workload": workload,
                "budget": budget,
                "tuned": name in TUNED,
                "advised": choice.name,
                "bits_per_key": round(bits / stream.ground.members, 3),
                "predicted_ns": round(choice.cost * 1e9, 1),
                "cost_ns": round(cost.mean, 1),
                "error_ns": round(cost.error, 1),
                "best": best if others[best] < cost else choice.name,
                "best_ns": round(least.mean, 1),
                "best_error_ns": round(least.error, 1),
                "ratio": round(ratio, 3),
                "within": ratio <= WITHIN,
                "good": cost.mean - WITHIN * least.mean <= 2 * noise,
            }
        )
    return found


@experiment("arena/advice", title="Does the advice pick the winner?", data=grounds.DATA)
def advice(quick: bool) -> Evidence:
    """Compare the cost of the first choice with the best as measured, in each cell."""
    measured = {
        each: (static_cells, rows_of(f"arena/{each}", quick, partial(workloads.measured, each)))
        for each in grounds.WORKLOADS
    }
    attacked = rows_of("arena/adversarial", quick, adversary.measured)
    measured["adversarial"] = (attacked_cells, attacked)
    changed = rows_of("arena/dynamic", quick, changing.measured)
    measured["dynamic"] = (changing_cells, changed)
    # Costs are modelled from rates, so that two processes do not disturb each other.
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        parts = [
            pool.submit(
                judged, cells, each, [row for row in rows if row["data"] == name], name, quick
            )
            for each, (cells, rows) in measured.items()
            for name in dict.fromkeys(row["data"] for row in rows)
        ]
        rows = [row for part in parts for row in part.result()]
    return Evidence(rows, [verdict(rows)], partial(draw, rows=rows))


def verdict(rows: list[dict[str, Any]]) -> Verdict:
    tuned, held = (
        [row["good"] for row in rows if row["tuned"] == which] for which in (True, False)
    )
    good, strict = sum(tuned) + sum(held), sum(row["within"] for row in rows)
    worst = max(rows, key=lambda row: (not row["good"], row["ratio"]))
    return Verdict(
        "The advice picks the best filter, or one within 10 % of its cost, in every cell.",
        "every cell (a target of ours)",
        f"{good} of {len(rows)} cells ({strict} without allowing for chance): "
        f"{sum(tuned)} of {len(tuned)} tuned on "
        f"({', '.join(TUNED)}), {sum(held)} of {len(held)} held out",
        f"at worst {worst['ratio']:.2f}× the best cost ({worst['data']}, {worst['workload']}, "
        f"{worst['budget']} bits: {worst['advised']} instead of {worst['best']})",
        "agrees" if good == len(rows) else "differs",
        "From the first quarter of the queries alone. Rates are measured, times of queries are "
        "modelled, and a wasted read costs 1 ms.",
    )


def draw(figure: Any, rows: list[dict[str, Any]]) -> None:
    """Draw the ratio to the best cost, a column of points per workload."""
    figure.set_size_inches(9, 4.6)
    ax = figure.subplots()
    names = list(dict.fromkeys(row["workload"] for row in rows))
    sets = list(dict.fromkeys(row["data"] for row in rows))
    for number, data in enumerate(sets):
        here = [row for row in rows if row["data"] == data]
        held = data not in TUNED
        ax.scatter(
            [names.index(row["workload"]) + 0.13 * (number - 2) for row in here],
            [row["ratio"] for row in here],
            s=34,
            facecolors=f"C{number}" if held else "none",
            edgecolors=f"C{number}",
            label=f"{data}{'' if held else ' (tuned on)'}",
            zorder=3,
        )
    ax.axhline(WITHIN, color="#d1495b", linestyle="--", linewidth=1)
    ax.text(len(names) - 0.5, WITHIN, " 10 %", color="#d1495b", va="center", fontsize=9)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_minor_formatter(lambda value, _: f"{value:.3g}")
    ax.set_xticks(range(len(names)), [name.replace("_", " ") for name in names])
    ax.set_ylabel("cost of the first choice / best cost measured")
    ax.grid(axis="y", alpha=0.25)
    ax.legend(frameon=False, fontsize=9, loc="upper left")
