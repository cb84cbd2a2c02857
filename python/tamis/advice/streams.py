"""Advice on filters for endless streams: windowed filters, and stable ones that fade."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tamis._format import format_rate
from tamis.advice.situation import (
    Choice,
    Found,
    Gaps,
    RuledOut,
    Situation,
    groups,
)
from tamis.planning import stable, windowed
from tamis.planning.kinds import KINDS

if TYPE_CHECKING:
    from tamis.workload import Workload

_RATES = np.geomspace(1e-4, 0.9, 40)
"""Rates to try for a stable filter: a higher rate means that fewer keys are forgotten."""


_FORGETS = "it forgets keys (needs: 'false negatives allowed')"


def streams(situation: Situation) -> Iterator[Found]:
    """Yield a windowed filter, and the stable filter with the lowest cost."""
    if "stream" not in situation.needs:
        why = "it is for endless streams (needs: 'stream'); other filters are better for a set"
    elif "delete" in situation.needs:
        why = "keys cannot be removed"
    elif "adversary" in situation.needs and "store" in situation.needs:
        why = "it does not adapt to false positives"
    else:
        why = ""
    for name, predict in _PREDICTIONS.items():
        yield RuledOut(KINDS[name].filter, why) if why else predict(situation)
    for kind in KINDS.values():
        if kind.forgets and kind.name not in _PREDICTIONS:
            yield RuledOut(kind.filter, why or "the keys that it forgets are not predicted")


def drawn_gaps(workload: Workload | None, max_gap: int) -> Gaps:
    """Predict gaps up to ``max_gap``, assuming that records are independent of each other.

    A value of frequency f is repeated within g records with probability 1 − (1 − f)^g. Without a
    workload, every gap is ``max_gap``. If records come in bursts, use a log: `logged_gaps`.

    >>> import tamis
    >>> found = drawn_gaps(tamis.Workload.from_counts(["a", "b"], [1, 1]), 100)
    >>> round(found.within(100), 6), round(found.within(1), 2)
    (1.0, 0.5)
    """
    if workload is None or not len(workload):
        return Gaps(np.array([float(max_gap)]), np.array([1.0]))
    counts, mass = groups(workload)
    edges = np.unique(np.geomspace(1, max(max_gap, 1), 64).astype(np.int64))
    with np.errstate(divide="ignore"):
        stays = np.log1p(-np.clip(mass / counts, 0.0, 1.0))
    within = np.array([mass @ -np.expm1(edge * stays) for edge in edges])
    return Gaps(edges.astype(float), np.diff(within, prepend=0.0))


def logged_gaps(hashes: npt.NDArray[np.uint64], max_gap: int) -> Gaps:
    """Count the gaps up to ``max_gap`` in a log, given as the hashes of its records in order.

    >>> logged_gaps(np.array([7, 7, 9, 7], dtype=np.uint64), 100).within(1)
    0.25
    """
    found = since_last(hashes)
    edges = np.unique(np.geomspace(1, max(max_gap, 1), 256).astype(np.int64))
    within = np.searchsorted(np.sort(found[found > 0]), edges, side="right") / max(len(found), 1)
    return Gaps(edges.astype(float), np.diff(within, prepend=0.0))


def since_last(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return how many records ago each value occurred last, or −1 if it is new.

    >>> since_last(np.array([7, 9, 7, 7], dtype=np.uint64)).tolist()
    [-1, -1, 2, 1]
    """
    order = np.argsort(hashes, kind="stable")
    ranked = hashes[order]
    gaps = np.full(len(hashes), -1, dtype=np.int64)
    again = np.flatnonzero(ranked[1:] == ranked[:-1]) + 1
    gaps[order[again]] = order[again] - order[again - 1]
    return gaps


def _windowed(situation: Situation) -> Found:
    try:
        size = windowed.size(situation.keys, **situation.sizing)
    except ValueError as error:
        return RuledOut("Windowed", str(error))
    # A value repeated within a generation sets bits that are already set.
    fresh = _gaps(situation).distinct(size.generation) / size.generation
    rate = size._replace(generation=max(1, round(fresh * size.generation))).rate()
    return Choice(
        "Windowed",
        "stream",
        "Windowed",
        {"window": situation.keys, **situation.sizing},
        expected_fpr=rate,
        fpr_bound=size.rate(),
        bits=size.bits,
        keys=situation.keys,
        absent_time=situation.check(KINDS["windowed"].options[0], present=False),
        present_time=situation.check(KINDS["windowed"].options[0], present=True),
        reason=f"Rejects none of the last {situation.keys:,} keys.",
    )


def _stable(situation: Situation) -> Found:
    if "false negatives allowed" not in situation.needs:
        return RuledOut("StableBloom", _FORGETS)
    if situation.fpr is not None:
        return RuledOut(
            "StableBloom", "its size depends on how many keys it may forget, not on its rate"
        )
    best: Choice | None = None
    gaps = _gaps(situation)
    for rate in _RATES.tolist():
        try:
            size = stable.size(situation.budget, rate, situation.keys)
        except ValueError:
            continue
        lost = sum(
            share * stable.false_negatives(size, gap)
            for gap, share in zip(gaps.records, gaps.shares, strict=True)
        ) / max(gaps.within(situation.keys), 1e-12)
        found = Choice(
            "StableBloom",
            "stream",
            "StableBloom",
            {"gap": situation.keys, "fpr": rate, "bits": situation.budget},
            expected_fpr=stable.limit_rate(size),
            fpr_bound=stable.limit_rate(size),
            expected_fnr=lost,
            bits=size.bits,
            keys=situation.keys,
            absent_time=situation.check(KINDS["stable"].options[0], present=False),
            present_time=situation.check(KINDS["stable"].options[0], present=True),
            reason=(
                f"Its rate is bounded for any stream; {format_rate(lost)} of the keys repeated "
                f"within {situation.keys:,} records are forgotten before that."
            ),
        )
        if best is None or situation.cost(found) < situation.cost(best):
            best = found
    return best or RuledOut("StableBloom", f"{situation.budget} bits are too few for any rate")


def _stable_learned(situation: Situation) -> Found:
    if "false negatives allowed" not in situation.needs:
        why = _FORGETS
    elif "classifier" not in situation.needs:
        why = "no classifier may be used (needs: 'classifier')"
    else:
        why = (
            "a classifier cannot distinguish new from repeated records; if it can separate members "
            "from other keys, use StableLearned.plan with its scores"
        )
    return RuledOut("StableLearned", why)


_PREDICTIONS: dict[str, Callable[[Situation], Found]] = {
    "windowed": _windowed,
    "stable": _stable,
    "stable_learned": _stable_learned,
}
"""The prediction for each kind that forgets."""


def _gaps(situation: Situation) -> Gaps:
    assert situation.gaps is not None
    return situation.gaps
