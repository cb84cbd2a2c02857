"""The filters of Lee, McCauley, Singh and Stein 2021 at 11 bits per slot, and how they are queried.

8-bit remainders and a load of 0.95, as in the paper. ``"block"`` selectors are the paper's 56-bit
codes; ``"growing"`` ones are those of tamis, which take more memory as the filter adapts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tamis
from tamis.stores import Hashes

SEED = 1
OURS = "Telescoping, growing"
QUOTIENTS = {
    "TAF": (tamis.Telescoping, "block"),
    "exAF": (tamis.Extending, "block"),
    OURS: (tamis.Telescoping, "growing"),
}
CUCKOOS: dict[str, dict[str, Any]] = {
    "ACF1": {"kind": "cyclic", "selector_bits": 1},
    "ACF2": {"kind": "cyclic", "selector_bits": 2},
    "ACF3": {"kind": "cyclic", "selector_bits": 3},
    "Swapping ACF": {"kind": "swapping"},
    "Cuckooing ACF": {"kind": "cuckooing"},
}
"""11 bits per slot, fingerprints and selectors together."""

NAMES = (*QUOTIENTS, *CUCKOOS)


class Filter:
    """A filter with its keys, filled to 95 % of its slots, that adapts to its false positives."""

    def __init__(self, name: str, keys: np.ndarray, seed: int = SEED) -> None:
        self.name, self.keys, self.remote = name, keys, None
        self.filter: Any
        if name in CUCKOOS:
            self.filter = tamis.AdaptiveCuckoo.build(
                keys, bits_per_key=11.8, seed=seed, **CUCKOOS[name]
            )
            assert self.filter._size.slot_bits == 11
        else:
            cls, selectors = QUOTIENTS[name]
            self.filter = cls.build(keys, fpr=2**-8, selectors=selectors, seed=seed)
            self.remote = Hashes(keys, seed=seed)

    def query(self, absent: np.ndarray) -> np.ndarray:
        """Query absent keys, then adapt; return which were false positives."""
        wrong = self.filter.contains(absent)
        if wrong.any():
            self.filter.adapt_many(absent[wrong], self.remote)
        return wrong

    def replay(self, absent: np.ndarray, batch: int = 1024) -> int:
        """Query absent keys as if one by one, adapting after each error; count the errors."""
        wrong = 0
        for start in range(0, len(absent), batch):
            left = absent[start : start + batch]
            while len(left):
                accepted = left[self.filter.contains(left)]
                if not len(accepted):
                    break
                # A key that occurs again in the batch is queried again after it has been fixed.
                first = np.unique(accepted, return_index=True)[1]
                wrong += len(first)
                self.filter.adapt_many(accepted[first], self.remote)
                left = np.delete(accepted, first)
        assert self.filter.contains(self.keys).all(), f"{self.name} rejects a key"
        return wrong


def rates(
    queries: np.ndarray, distinct: int, ratios: Sequence[float], seeds: int
) -> list[dict[str, Any]]:
    """Replay absent keys to each filter with one key per ``ratio`` distinct queries: A/S.

    The rate is the mean over this many seeds of the filter, the spread its standard error.
    """
    rows = []
    for ratio in ratios:
        keys = tamis.traces.ranked(range(2**40, 2**40 + round(distinct / ratio)), seed=SEED)
        for name in NAMES:
            errors, bits = [], 0.0
            for seed in range(SEED, SEED + seeds):
                each = Filter(name, keys, seed)
                errors.append(each.replay(queries) / len(queries))
                bits = each.filter.bits_per_key
            rows.append(
                {
                    "A/S": ratio,
                    "filter": name,
                    "rate": float(np.mean(errors)),
                    "spread": float(np.std(errors) / max(seeds - 1, 1) ** 0.5),
                    "bits_per_key": round(bits, 3),
                    "keys": len(keys),
                    "queries": len(queries),
                    "distinct": distinct,
                }
            )
    return rows


def at(rows: Sequence[Mapping[str, Any]], ratio: float) -> dict[str, float]:
    """Return the rates at a ratio of queries to keys, by filter."""
    return {row["filter"]: row["rate"] for row in rows if row["A/S"] == ratio}


def percent(rate: float) -> str:
    """Return a rate as text.

    >>> percent(0.000384)
    '0.0384 %'
    """
    return f"{100 * rate:.3g} %"
