"""Filters for streams without end: a window that is remembered whole, or cells that fade."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tamis.planning import stable, windowed
from tamis.planning.advice.situation import Choice, Found, RuledOut, Situation

_RATES = np.geomspace(1e-4, 0.9, 40)
"""Rates that a stable filter is tried at; the best trades wrong drops for keys forgotten."""


def streams(situation: Situation) -> Iterator[Found]:
    """A windowed filter of the last keys, and the stable filter that suits the costs best."""
    names = ("Windowed", "StableBloom")
    if "stream" not in situation.needs:
        why = (
            "it is for streams without end (needs: 'stream'); a set of known size is served better"
        )
    elif "delete" in situation.needs:
        why = "it cannot delete"
    elif "adversary" in situation.needs and "store" in situation.needs:
        why = "it does not learn from its mistakes"
    else:
        yield _windowed(situation)
        if "false negatives allowed" in situation.needs:
            yield _stable(situation)
        else:
            yield RuledOut("StableBloom", "it forgets keys (needs: 'false negatives allowed')")
        return
    yield from (RuledOut(name, why) for name in names)


def _windowed(situation: Situation) -> Found:
    try:
        size = windowed.size(situation.keys, bits_per_key=situation.bits_per_key)
    except ValueError as error:
        return RuledOut("Windowed", str(error))
    rate = windowed.rate(size)
    return Choice(
        "Windowed",
        "stream",
        "Windowed",
        {"window": situation.keys, "bits_per_key": situation.bits_per_key},
        expected_fpr=rate,
        fpr_bound=rate,
        bits=size.bits,
        keys=situation.keys,
        absent_time=situation.check("windowed", present=False),
        present_time=situation.check("windowed", present=True),
        reason=f"Denies none of the last {situation.keys:,} keys.",
    )


def _stable(situation: Situation) -> Found:
    best: Choice | None = None
    for rate in _RATES.tolist():
        try:
            size = stable.size(situation.budget, rate, situation.keys)
        except ValueError:
            continue
        lost = stable.false_negatives(size, situation.keys)
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
            absent_time=situation.check("stable", present=False),
            present_time=situation.check("stable", present=True),
            reason=(
                f"Its rate stays, whatever comes; {lost:.0%} of the keys are forgotten after "
                f"{situation.keys:,} others."
            ),
        )
        if best is None or situation.cost(found) < situation.cost(best):
            best = found
    return best or RuledOut("StableBloom", f"{situation.budget} bits are too few for any rate")
