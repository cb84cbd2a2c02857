"""Measuring advice: build each choice, run the queries on it, and time them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis._columns import column, take
from tamis.advice.situation import Choice, Situation
from tamis.advice.streams import since_last
from tamis.stores import Hashes

ROUNDS = 40
TIMED = 2000
"""Queries timed per round: few enough that a round is rarely interrupted."""

_BATCH = 256
"""Queries between two adaptations: few, so that a query is rarely repeated among them."""

_SUBROUNDS, _ROUNDS = 10, 50
"""An adversary repeats a false positive ten times per round, for up to fifty rounds, until it is
rejected (Lee, McCauley, Singh, Stein 2021, section 6)."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Sample:
    """Keys and queries, and which of the queries are for keys."""

    keys: Any
    queries: Any
    present: Mask

    @classmethod
    def of(cls, keys: Any, queries: Any) -> Sample:
        """Find the queries for keys, by hash."""
        keys, queries = column(keys), column(queries)
        return cls(keys, queries, np.isin(_hashes(queries), _hashes(keys)))

    @property
    def share(self) -> float:
        """The fraction of queries that are for keys."""
        return float(self.present.mean()) if len(self.present) else 0.0


def measured(
    situation: Situation, choices: tuple[Choice, ...], keys: Any, queries: Any, seeds: int
) -> Iterator[Choice]:
    """Yield each choice with its measurements on the sample, averaged over seeds."""
    trial: Callable[[Choice, int], Trial]
    if isinstance(keys, Mapping):
        holding = _holding(keys, column(queries))

        def trial(choice: Choice, seed: int) -> Trial:
            return _measure_sets(choice, seed, keys, column(queries), holding)

        share = 0.0
    elif "stream" in situation.needs:
        before = [] if isinstance(keys, int | np.integer) else column(keys)
        records = column(queries)
        gaps = since_last(np.concatenate([_hashes(before), _hashes(records)]))[len(before) :]

        def trial(choice: Choice, seed: int) -> Trial:
            return _measure_stream(choice, seed, before, records, gaps, situation.keys)

        share = float(np.mean((gaps > 0) & (gaps <= situation.keys)))
    else:
        sample = Sample.of(keys, queries)
        adversary = "adversary" in situation.needs

        def trial(choice: Choice, seed: int) -> Trial:
            return _measure_set(choice, seed, sample, adversary)

        share = sample.share
    trials = [[trial(each, seed) for seed in range(seeds)] for each in choices]
    if isinstance(keys, Mapping) or "stream" in situation.needs:
        times = [(min(t.time for t in each),) * 2 for each in trials]
    else:
        times = _timed([each[0].filter for each in trials], sample)
    for each, some, (absent, present) in zip(choices, trials, times, strict=True):
        yield _with_measurements(situation, each, some, share, absent, present)


def _with_measurements(
    situation: Situation,
    choice: Choice,
    trials: list[Trial],
    share: float,
    absent: float,
    present: float,
) -> Choice:
    rates = np.array([each.rate for each in trials])
    wrong, lost = float(rates.mean()), float(np.mean([each.lost for each in trials]))
    spent = share * present + (1 - share) * absent
    wasted = share * lost * situation.denial_cost + (1 - share) * wrong * situation.miss_cost
    error = float(rates.std(ddof=1) / math.sqrt(len(rates))) if len(rates) > 1 else None
    return replace(
        choice,
        measured_fpr=wrong,
        measured_error=error,
        measured_fnr=lost,
        measured_bits=max(each.bits for each in trials),
        measured_time=spent,
        measured_cost=spent + wasted,
    )


class Trial(NamedTuple):
    """Results of one filter: rate, fraction of keys rejected, size, seconds per query."""

    filter: Any
    rate: float
    lost: float
    bits: int
    time: float = math.nan


def _measure_set(choice: Choice, seed: int, sample: Sample, adversary: bool) -> Trial:
    f = choice.build(sample.keys, seed=seed)
    rate = _rate(f, sample, adversary)
    return Trial(f, rate, 0.0, f.size_in_bits)


def _rate(f: Any, sample: Sample, adversary: bool) -> float:
    """Return the false-positive rate on the queries for absent keys."""
    absent = take(sample.queries, np.flatnonzero(~sample.present))
    count = len(absent)
    if not count:
        return 0.0
    if not hasattr(f, "adapt_many"):
        accepted = np.flatnonzero(f.contains(absent))
        attacked = (
            adversary * len(np.unique(_hashes(take(absent, accepted)))) * _SUBROUNDS * _ROUNDS
        )
        return (len(accepted) + attacked) / (count + attacked)
    remote = Hashes(sample.keys, seed=f.seed)
    false_positives = attacked = 0
    for start in range(0, count, _BATCH):
        part = absent[start : start + _BATCH]
        accepted = take(part, np.flatnonzero(f.contains(part)))
        false_positives += len(accepted)
        rounds = _ROUNDS if adversary else 0
        while len(accepted):
            f.adapt_many(accepted, remote)
            if not rounds:
                break
            rounds -= 1
            attacked += _SUBROUNDS * len(accepted)
            accepted = take(accepted, np.flatnonzero(f.contains(accepted)))
            false_positives += len(accepted)
    return false_positives / (count + attacked)


def _timed(filters: list[Any], sample: Sample) -> list[tuple[float, float]]:
    """Return seconds per query for absent and present keys: the best of alternating rounds."""
    places = [np.flatnonzero(which) for which in (~sample.present, sample.present)]
    best = np.tile([np.inf if len(which) else 0.0 for which in places], (len(filters), 1))
    for round_ in range(ROUNDS):
        for place, which in enumerate(places):
            if not len(which):
                continue
            start = round_ * TIMED % len(which)
            queries = take(sample.queries, which[start : start + TIMED])
            for row, f in enumerate(filters):
                begin = time.perf_counter()
                f.contains(queries)
                spent = (time.perf_counter() - begin) / len(queries)
                best[row, place] = min(best[row, place], spent)
    return [(float(absent), float(present)) for absent, present in best]


def _measure_stream(
    choice: Choice,
    seed: int,
    before: Any,
    queries: Any,
    gaps: npt.NDArray[np.int64],
    window: int,
) -> Trial:
    """Run a stream through the filter; each record is inserted after it is looked up."""
    f = choice.build(before, seed=seed)
    start = time.perf_counter()
    seen = f.seen_many(queries)
    spent = (time.perf_counter() - start) / max(len(gaps), 1)
    new, due = gaps < 0, (gaps > 0) & (gaps <= window)
    wrong = float(seen[new].mean()) if new.any() else 0.0
    lost = float((~seen[due]).mean()) if due.any() else 0.0
    return Trial(f, wrong, lost, f.size_in_bits, spent)


def _holding(sets: Mapping[str, Any], queries: Any) -> npt.NDArray[np.int64]:
    """Return for each set how many of the queries are for one of its keys."""
    queried = _hashes(queries)
    return np.array([np.count_nonzero(np.isin(queried, _hashes(keys))) for keys in sets.values()])


def _measure_sets(
    choice: Choice,
    seed: int,
    sets: Mapping[str, Any],
    queries: Any,
    holding: npt.NDArray[np.int64],
) -> Trial:
    """Look up the candidates of each key; sets are weighted by utility, as in the plan."""
    f = choice.build(sets, seed=seed)
    start = time.perf_counter()
    _, ids = f.candidates_many(queries)
    spent = (time.perf_counter() - start) / max(len(queries) * len(sets), 1)
    wrong = np.bincount(ids, minlength=len(sets)) - holding
    weights = f.utility / f.utility.sum()
    rate = float(weights @ (wrong / np.maximum(len(queries) - holding, 1)))
    return Trial(f, rate, 0.0, 8 * f.size_in_bytes, spent)


def _hashes(keys: Any) -> npt.NDArray[np.uint64]:
    hashes: npt.NDArray[np.uint64] = _native.hash_keys(keys)[:, 0]
    return hashes
