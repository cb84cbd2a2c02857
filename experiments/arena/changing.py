"""The members change: after every tenth of the queries, a fifth of them is replaced.

Those that leave become absent keys, and absent rows take their place. Filters that take insertions
and deletions are updated in place; all others are built again with the new members, and the time
of that is counted. A stack keeps its plan, and a learned filter its model: both come from before
the first change. Zipf's law with exponent 1, so that there is something to plan for.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
from experiments.arena import bouts, families, grounds, models, plots
from experiments.arena.bouts import Life, cpu
from experiments.arena.families import BLOOM, Built, Family, TooSmall
from experiments.arena.grounds import Ground, Stream
from experiments.evidence import Evidence, Verdict, experiment

import tamis

BUDGET = 8
"""What a quotient filter with the 5-bit remainders of the protocol fits into, and its selectors."""

PARTS = 10
CHANGED = 0.2
SEED = 1

IN_PLACE = Family(
    "AdaptiveStacked",
    "adaptive",
    partial(families.adaptive_stacked, layer="quotient"),
    planned=True,
    adapts=True,
    dynamic=True,
)
"""With layers that take deletions."""

QUOTIENTS = Family(
    "Stacked, quotient layers",
    "stacked",
    partial(families.stacked, layer="quotient", last="alternating"),
    planned=True,
    dynamic=True,
)
"""A stack that takes insertions and deletions; it is built again when a layer is full."""


def contenders() -> list[Family]:
    """Return all families, but only the best form of learned filters: all of them are rebuilt."""
    found = [
        IN_PLACE if each.name == IN_PLACE.name else each
        for each in bouts.contenders()
        if each.group != "learned" or each.name.endswith("partitioned")
    ]
    return [*found, QUOTIENTS]


@cache
def phases(name: str, quick: bool) -> list[np.ndarray]:
    """Return the row numbers of the members in each part."""
    ground = grounds.ground(name, quick)
    rng, found = ground.rng("changes"), [np.arange(ground.members)]
    for _ in range(PARTS - 1):
        inside = np.zeros(len(ground), bool)
        inside[found[-1]] = True
        count = min(round(CHANGED * ground.members), len(ground) - ground.members)
        leave = rng.choice(found[-1], count, replace=False)
        join = rng.choice(np.flatnonzero(~inside), count, replace=False)
        inside[leave], inside[join] = False, True
        found.append(np.flatnonzero(inside))
    return found


def rebuilt(family: Family, stream: Stream, members: np.ndarray, seed: int) -> Built:
    """Build a filter of other members, with the plan or the model of the first."""
    ground = stream.ground
    others = np.setdiff1d(np.arange(len(ground)), members)
    order = np.concatenate([members, others])
    now = Ground(
        ground.name,
        ground.take(order),
        len(members),
        None if ground.features is None else ground.features.take(pa.array(order)),
    )
    if family.group == "learned":
        before = models.trained(ground, 0.3)
        held = before.known[2 * len(before.known) // 3 :][: models.MOST]
        held = ground.read(held[~np.isin(held, members)])
        training = models.Training(before.models, held, before.known, 0)
        form = family.name.removeprefix("Learned, ")
        built = families.learned_with(training, now, BUDGET, seed, form)
    else:
        same = Stream(now, stream.workload, stream.asked, stream.known)
        built = family.build(now, same, BUDGET, seed)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    ask = built.ask
    return replace(built, ask=lambda places: ask(place[places]))


def update(built: Built, ground: Ground, before: np.ndarray, after: np.ndarray) -> None:
    """Remove and insert keys in place, in the order that loses no key."""
    leave, join = (
        ground.take(places) for places in (np.setdiff1d(before, after), np.setdiff1d(after, before))
    )
    f, remote = built.filter, built.remote
    if remote is None:
        f.remove_many(leave)
        f.update(join)
        return
    if isinstance(remote, tamis.stores.Hashes):
        for each in leave:
            remote.remove(each.as_py() if isinstance(each, pa.Scalar) else each)
    f.remove_many(leave, remote)
    f.update(join, remote)
    if isinstance(remote, tamis.stores.Hashes):
        for each in join:
            remote.add(each.as_py() if isinstance(each, pa.Scalar) else each)


def updated(
    family: Family, built: Built, stream: Stream, before: np.ndarray, after: np.ndarray, seed: int
) -> Built:
    """Update a filter in place; build it again if a layer of it is full."""
    try:
        update(built, stream.ground, before, after)
    except tamis.CapacityError:
        return rebuilt(family, stream, after, seed)
    return built


def lived(
    family: Family, stream: Stream, members: list[np.ndarray], seed: int = SEED
) -> list[dict[str, Any]]:
    """Return a row per part of the queries."""
    return bouts.within(lambda: life(family, stream, members, seed), family, stream, BUDGET)[1]


def life(
    family: Family, stream: Stream, members: list[np.ndarray], seed: int
) -> tuple[Built, list[dict[str, Any]]]:
    """Return the filter after all changes, and a row per part of the queries."""
    ground, rows, spent, changes = stream.ground, [], 0, 0
    built = family.build(ground, stream, BUDGET, seed)
    adapting = Life(built, ground)
    for part, (queries, now) in enumerate(
        zip(np.array_split(stream.later, PARTS), members, strict=True)
    ):
        if part:
            before = members[part - 1]
            if family.dynamic:
                built, time = cpu(partial(updated, family, built, stream, before, now, seed))
            else:
                built, time = cpu(partial(rebuilt, family, stream, now, seed))
            spent += time
            changes += len(np.setdiff1d(now, before))
        absent = queries[~np.isin(queries, now)]
        if family.adapts:
            adapting.built = built
            wrong = len(adapting.live(absent))
        else:
            wrong = int(np.count_nonzero(built.ask(absent)))
        assert built.ask(now).all()
        rows.append(
            {
                "data": ground.name,
                "family": family.name,
                "group": family.group,
                "budget": BUDGET,
                "part": (part + 1) / PARTS,
                "rate": float(f"{wrong / max(len(absent), 1):.4g}"),
                "wrong": wrong,
                "queries": len(absent),
                "bits_per_key": round(built.bits() / len(now), 3),
                "in_place": family.dynamic,
                "update_ns_per_key": round(spent / changes) if changes else "",
            }
        )
    return built, rows


@cache
def measured(quick: bool) -> tuple[dict[str, Any], ...]:
    rows: list[dict[str, Any]] = []
    for name in grounds.MAKERS:
        stream = grounds.stream(name, "zipf10", quick)
        for family in contenders():
            try:
                rows += lived(family, stream, phases(name, quick))
            except (TooSmall, tamis.BuildError):
                continue
    return tuple(rows)


def overall(rows: Any, name: str) -> dict[str, float]:
    """Return the rate over all parts, by family."""
    wrong: dict[str, float] = {}
    asked: dict[str, float] = {}
    for row in rows:
        if row["data"] == name:
            wrong[row["family"]] = wrong.get(row["family"], 0) + row["wrong"]
            asked[row["family"]] = asked.get(row["family"], 0) + row["queries"]
    return {family: wrong[family] / asked[family] for family in wrong}


@experiment("arena/dynamic", title="A fifth of the members changes, nine times", data=grounds.DATA)
def dynamic(quick: bool) -> Evidence:
    """Rates over time while members change."""
    rows = measured(quick)
    groups = {row["family"]: row["group"] for row in rows}
    in_place = {row["family"] for row in rows if row["in_place"]}
    winners, stacks, models_, best = [], [], [], []
    for name in grounds.MAKERS:
        rates = overall(rows, name)
        winner = min(rates, key=lambda family: rates[family])
        place = min(in_place & set(rates), key=lambda family: rates[family])
        winners.append(
            f"{name}: {winner} ({rates[winner]:.2g}), in place {place} ({rates[place]:.2g})"
        )
        best.append(rates[BLOOM] / rates[place])
        for group, found in (("stacked", stacks), ("learned", models_)):
            least = [rate for family, rate in rates.items() if groups[family] == group]
            if least:
                found.append(rates[BLOOM] / min(least))
    verdict = Verdict(
        "Members change in the protocol; its claims have no number for what that does.",
        "–",
        f"learned filters, their model kept: {min(models_):.2g} to {max(models_):.2g}× lower than "
        f"Bloom's, all rebuilt; in place, the best: {min(best):.2g} to {max(best):.2g}×",
        f"stacks, rebuilt from the first plan: {min(stacks):.2g} to {max(stacks):.2g}× lower",
        "goes further",
        f"{'; '.join(winners)}. A model trained on the first members does not know the later ones; "
        "a stack keeps what it knows of absent keys. Filters that take updates need no rebuild.",
    )
    draw = partial(
        plots.draw,
        rows=rows,
        x="part",
        y="rate",
        label=f"share of the queries so far, {BUDGET} bits per key",
        percent=True,
        strong=("Telescoping", "Stacked, exact", "Learned, partitioned", "Ribbon", "Quotient",
                QUOTIENTS.name),
    )  # fmt: skip
    return Evidence(rows, [verdict], draw)
