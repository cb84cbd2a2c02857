"""One bout of the arena: a family on a ground, under a workload, at a size; and its row of results.

The rate is a count: false positives among the queries for absent keys, in the last three quarters
of all queries. A filter that does not adapt answers a row the same way each time, so each distinct
row is asked once and counted as often as it was queried.

``expected`` is the same over all ways to scatter the ranks over the rows. For a filter that ignores
the workload that is its rate over distinct rows: which of them are frequent is chance, and under a
skewed workload a few of them decide the count. For other filters it is the count.

An adaptive filter gets these queries in order, and each of its false positives is reported to it.
Queries are asked in batches; within a batch, a key that was reported is asked again before it is
counted again. So only what a fix changes for *other* keys takes effect at the end of the batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, TypeVar

import numpy as np
from experiments.arena import families, grounds, models
from experiments.arena.families import BLOOM, FAMILIES, Built, Family, TooSmall
from experiments.arena.grounds import Ground, Stream

import tamis
from tamis.advice.learned import SCORE_PER_BYTE, SCORE_PER_COLUMN
from tamis.advice.situation import Situation
from tamis.advice.stacked import stack_times

Found = TypeVar("Found")

BUDGETS = {True: (6, 10, 14), False: (6, 8, 10, 12, 14)}
TRIALS = {True: 1, False: 3}
"""Seeds, as in the protocol; a skewed workload depends on the luck of a few keys."""

MISS = 1e-3
"""Seconds of a wasted read."""

BATCH = 1024
TIMED = 20_000
LOOPED = 2_000
"""Queries that are timed; fewer in packages that are asked in a Python loop."""


@dataclass(frozen=True)
class Bout:
    """The results of one filter."""

    rate: float
    expected: float
    bits: int
    remote_bits: int
    build_ns: float
    query_ns: float
    adapt_ns: float = math.nan
    reports: int = 0
    plan: Any = None


def cpu(run: Callable[[], Any]) -> tuple[Any, int]:
    start = time.process_time_ns()
    found = run()
    return found, time.process_time_ns() - start


def timed(family: Family, built: Built, ground: Ground) -> float:
    """Return CPU nanoseconds per query, of which half are for members: the least of three runs."""
    count = LOOPED if family.group == "outside" else TIMED
    places = ground.rng("timed").integers(0, len(ground), count)
    if family.group != "outside" and ground.features is None:
        rows = ground.take(places)  # only the filter is timed
        return min(cpu(lambda: built.filter.contains(rows))[1] for _ in range(3)) / count
    return min(cpu(lambda: built.ask(places))[1] for _ in range(3)) / count


# ---- filters that do not adapt -----------------------------------------------------------------


@cache
def fixed(family: Family, name: str, budget: float, seed: int, quick: bool) -> tuple[Any, Bout]:
    """Build a filter that needs no plan; return its answers for the absent rows, and its times."""
    return answered(family, grounds.stream(name, "uniform", quick), budget, seed)


def answered(family: Family, stream: Stream, budget: float, seed: int) -> tuple[Any, Bout]:
    ground = stream.ground
    trains = family.group == "learned" and not family.planned
    if trains:
        models.trained(ground, 0.3, seed=seed)  # its time is added below, once
    built, spent = cpu(lambda: family.build(ground, stream, budget, seed))
    spent += models.trained(ground, 0.3, seed=seed).nanoseconds if trains else 0
    assert built.ask(np.arange(ground.members)).all()
    answers = np.packbits(built.ask(ground.others))
    query = timed(family, built, ground)
    return answers, Bout(math.nan, math.nan, built.bits(), 0, spent, query, plan=built.plan)


def static(family: Family, stream: Stream, budget: float, seed: int, quick: bool) -> Bout:
    ground = stream.ground
    if family.planned:
        answers, bout = answered(family, stream, budget, seed)
    else:
        answers, bout = fixed(family, ground.name, budget, seed, quick)
    wrong = np.unpackbits(answers, count=len(ground.others)).astype(bool)
    counts = stream.counts
    if family.group == "learned" and not family.planned and stream.workload == "one_pass":
        # Nothing is asked twice, so a row that a model was trained with is not asked.
        new = ~np.isin(ground.others, models.trained(ground, 0.3, seed=seed).known)
        wrong, counts = wrong[new], counts[new]
    rate = float(counts[wrong].sum() / max(counts.sum(), 1))
    return replace(bout, rate=rate, expected=rate if family.planned else float(wrong.mean()))


# ---- filters that adapt ------------------------------------------------------------------------


@dataclass
class Life:
    """An adaptive filter under queries for absent keys: its errors, and what fixing them took."""

    built: Built
    ground: Ground
    wrong: int = 0
    reports: int = 0
    nanoseconds: int = 0

    def report(self, places: np.ndarray) -> None:
        rows = self.ground.take(places)
        start = time.process_time_ns()
        self.built.filter.adapt_many(rows, self.built.remote)
        self.nanoseconds += time.process_time_ns() - start
        self.reports += len(places)

    def live(self, places: np.ndarray) -> np.ndarray:
        """Ask these absent rows in order, and report; return those that were accepted."""
        accepted = []
        for start in range(0, len(places), BATCH):
            part = places[start : start + BATCH]
            left = part[self.built.ask(part)]
            while len(left):
                _, first = np.unique(left, return_index=True)
                self.report(left[first])
                accepted.append(left[first])
                again = np.ones(len(left), bool)
                again[first] = False
                left = left[again]
                left = left[self.built.ask(left)] if len(left) else left
        found = np.concatenate(accepted) if accepted else places[:0]
        self.wrong += len(found)
        return found


def within(
    run: Callable[[], tuple[Built, Found]], family: Family, stream: Stream, budget: float
) -> tuple[Built, Found]:
    """Build a filter and use it; again with shorter remainders while it ends above the budget.

    Selectors can grow beyond the prediction, and shorter remainders leave them more room.
    """
    name = (family.name, budget)
    stream.known.pop(name, None)
    built, found = run()
    while family.resizes and built.bits() > budget * stream.ground.members:
        if built.filter.remainder_bits == 1:
            raise TooSmall("its selectors do not fit")
        stream.known[name] = built.filter.remainder_bits - 1
        built, found = run()
    return built, found


def adaptive(family: Family, stream: Stream, budget: float, seed: int) -> Bout:
    """Run a filter through the queries; its size at the end is within the budget."""
    ground = stream.ground

    def run() -> tuple[Built, tuple[Life, int]]:
        built, spent = cpu(lambda: family.build(ground, stream, budget, seed))
        life = Life(built, ground)
        life.live(stream.absent)
        return built, (life, spent)

    built, (life, spent) = within(run, family, stream, budget)
    assert built.ask(np.arange(ground.members)).all()
    rate = life.wrong / max(len(stream.absent), 1)
    return Bout(
        rate,
        rate,
        built.bits(),
        built.remote_bits,
        spent,
        timed(family, built, ground),
        life.nanoseconds / life.reports if life.reports else math.nan,
        life.reports,
        built.plan,
    )


# ---- tables ------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def contenders() -> tuple[Family, ...]:
    return (*FAMILIES, *families.installed())


def trial(family: Family, stream: Stream, budget: float, seed: int, quick: bool) -> Bout | None:
    """Return the results of a family, or None if it has no filter of this size."""
    try:
        if family.adapts:
            return adaptive(family, stream, budget, seed)
        return static(family, stream, budget, seed, quick)
    except (TooSmall, tamis.BuildError):
        return None


def one_error(family: Family, stream: Stream, seeds: int) -> float:
    """Return the lowest expected rate above 0 that can be seen."""
    asked = stream.counts.sum() if family.planned else len(stream.ground.others)
    return 1 / (seeds * max(int(asked), 1))


def cost(family: Family, stream: Stream, bouts: list[Bout]) -> float:
    """Return nanoseconds per query as the advice counts them, with the rate that was measured.

    The times are those of the table of tamis, so that they are the same in each run.
    """
    return seconds(family, stream, bouts[0].plan, np.mean([each.expected for each in bouts])) * 1e9


def seconds(family: Family, stream: Stream, plan: Any, rate: float) -> float:
    ground = stream.ground
    present = float(np.mean(stream.later < ground.members))
    facts = Situation(ground.members, 0, None, frozenset(), present, 0, MISS, MISS)
    if plan is not None:
        absent, there = stack_times(facts, plan)
    else:
        assert family.option is not None
        absent, there = (facts.check(family.option, present=each) for each in (False, True))
    if family.group == "learned":
        few = ground.read(ground.others[:1000])
        scoring = (
            SCORE_PER_COLUMN * few.num_columns
            if ground.features is not None
            else (SCORE_PER_BYTE * float(np.mean([len(str(each)) for each in few])))
        )
        absent, there = absent + scoring, there + scoring
    return present * there + (1 - present) * (absent + rate * facts.miss_cost)


def row(family: Family, stream: Stream, budget: float, bouts: list[Bout]) -> dict[str, Any]:
    """Return the mean of several seeds; the size is the largest."""
    n = stream.ground.members
    rates = np.array([each.rate for each in bouts])
    first = bouts[0]
    return {
        "data": stream.ground.name,
        "budget": budget,
        "family": family.name,
        "group": family.group,
        "bits_per_key": round(max(each.bits for each in bouts) / n, 3),
        "remote_bits_per_key": round(first.remote_bits / n, 1),
        "rate": float(f"{rates.mean():.4g}"),
        "expected": float(f"{np.mean([each.expected for each in bouts]):.4g}"),
        "one_error": float(f"{one_error(family, stream, len(bouts)):.2g}"),
        "error": float(f"{rates.std(ddof=1) / math.sqrt(len(rates)):.2g}")
        if len(rates) > 1
        else "",
        "cost_ns": round(cost(family, stream, bouts), 1) if family.group != "outside" else "",
        "queries": int(stream.counts.sum()),
        "build_ns_per_key": round(min(each.build_ns for each in bouts) / n, 1),
        "query_ns": round(min(each.query_ns for each in bouts), 1),
        "adapt_ns": "" if math.isnan(first.adapt_ns) else round(first.adapt_ns),
        "reports": round(np.mean([each.reports for each in bouts])),
    }


def table(
    workload: str, quick: bool, names: Iterable[str] = grounds.MAKERS
) -> list[dict[str, Any]]:
    """Return the rows of a workload: every ground, size and family."""
    rows = []
    for name in names:
        stream = grounds.stream(name, workload, quick)
        for budget in BUDGETS[quick]:
            part = []
            for family in contenders():
                bouts = [
                    bout
                    for seed in range(1, 1 + trials(family, workload, quick))
                    if (bout := trial(family, stream, budget, seed, quick))
                ]
                if bouts:
                    part.append(row(family, stream, budget, bouts))
            rows += ranked(part)
    return rows


def trials(family: Family, workload: str, quick: bool) -> int:
    """Seeds matter where a few keys make up most queries; other packages have no seeds."""
    skewed = workload.startswith("zipf") or workload == "recorded"
    return TRIALS[quick] if skewed and family.group != "outside" else 1


def ranked(part: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add how the rows of a cell compare with a Bloom filter, and which has the least rate."""
    # The lowest rate above 0 that a cell can show is that of one error.
    bloom = next(each for each in part if each["family"] == BLOOM)
    least = min(each["expected"] for each in part)
    for each in part:
        each["times_bloom_query"] = round(each["query_ns"] / bloom["query_ns"], 2)
        rate = each["expected"] or each["one_error"]
        each["lower_than_bloom"] = float(f"{bloom['expected'] / rate:.3g}")
        each["winner"] = each["expected"] == least
    return part
