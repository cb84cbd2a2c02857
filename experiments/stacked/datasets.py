"""The four workloads of Figure 3: keys, and negatives in the order of their frequency.

Half of the negatives, the more frequent, are known, as in the paper.

* URLs: maltrail's indicators are the keys, the domains of the Alexa and Tranco lists the negatives.
  The domains are real; their frequencies are modelled as 1/rank, over the Alexa ranks followed by
  the Tranco domains in random order (that list has no ranks).
* Firehose: its two streams, as `tamis.traces` makes them; a tenth of the keys is suspicious.
* Synthetic: random integers, by Zipf's law with exponent 0.75.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from experiments.stacked.setting import BATCH, FIRST_NEGATIVE, negatives, setting, workload

import tamis
from experiments import data

SUSPICIOUS = 10
"""The number of keys of a Firehose stream per suspicious one."""
HEAD = 10_000
"""Ranks of synthetic negatives that are drawn with their own frequency."""
STREAM = {True: 500_000, False: 5_000_000}
"""Datums of the active-set stream, in a quick run and otherwise."""


@dataclass(frozen=True)
class Dataset:
    """Keys, and negatives with the share of the queries that each gets, most frequent first."""

    keys: Any
    negatives: Any
    shares: np.ndarray[Any, Any]

    @property
    def known(self) -> int:
        """How many of the negatives are known."""
        return len(self.shares) // 2

    @functools.cached_property
    def workload(self) -> tamis.Workload:
        """The shape of the queries for the known negatives."""
        known = self.shares[: self.known]
        return tamis.Workload.from_shape(known, unseen=1 - float(known.sum()))

    def stored(self, count: int) -> Any:
        """Return the most frequent negatives."""
        return self.negatives[:count]

    def draw(self, count: int, seed: int, known: bool = False) -> Any:
        """Draw queries for negatives, or only for known ones."""
        shares = self.shares[: self.known] if known else self.shares
        places = np.random.default_rng(seed).choice(len(shares), count, p=shares / shares.sum())
        return taken(self.negatives, places)

    def rate(self, f: Any, stored: int) -> float:
        """Return the rate over all negatives by frequency, of a filter that stores some of them.

        Hashes treat all alike that are not stored: so their mean, times their share, has a smaller
        error than the sum of the shares, in which one frequent negative decides. It is the sum for
        the stored, of which a stack may have left out the least frequent, and for a classifier.
        """
        accepted = f.contains(self.negatives)
        if isinstance(f, tamis.LearnedBloom):
            return float(self.shares[accepted].sum())
        known, others = self.shares[:stored], accepted[stored:]
        return float(known[accepted[:stored]].sum() + (1 - known.sum()) * others.mean())


class Synthetic(Dataset):
    """The same for as many negatives as do not fit in memory: ranks by Zipf's law.

    Keys and negatives are scattered over all integers, so that a classifier has nothing to learn.
    """

    def __init__(self, quick: bool, exponent: float = 0.75) -> None:
        """Make a setting; frequencies are computed when they are needed."""
        self._where, self._exponent = setting(quick), exponent
        super().__init__(tamis.traces.ranked(range(self._where.keys)), None, np.empty(0))

    @property
    def known(self) -> int:
        """How many of the negatives are known."""
        return self._where.universe // 2

    @functools.cached_property
    def workload(self) -> tamis.Workload:
        """The shape of the queries for the known negatives."""
        return workload(self._exponent, self._where.universe)

    def stored(self, count: int) -> Iterator[Any]:
        """Return the most frequent negatives, in batches."""
        return map(tamis.traces.ranked, negatives(count))

    def draw(self, count: int, seed: int, known: bool = False) -> Any:
        """Draw queries for negatives, or only for known ones."""
        rng, last = np.random.default_rng(seed), self.known if known else self._where.universe
        head, power = HEAD, 1 - self._exponent
        weights = np.arange(1, head + 1.0) ** -self._exponent
        tail = (last**power - head**power) / power
        ranks = rng.choice(head, count, p=weights / weights.sum()) + 1
        # Beyond the head, where neighbours are equally frequent, ranks come from the density.
        far = rng.random(count) < tail / (tail + weights.sum())
        spread = head**power + rng.random(count) * (last**power - head**power)
        ranks[far] = np.minimum(spread[far] ** (1 / power), last).astype(int)
        return tamis.traces.ranked(FIRST_NEGATIVE + ranks)

    def rate(self, f: Any, stored: int) -> float:
        """Return the rate, from samples of the stored negatives and of the others."""
        if isinstance(f, tamis.LearnedBloom):
            return float(f.contains(self.draw(500_000, 5)).mean())
        rng, last = np.random.default_rng(8), self._where.universe
        known = rng.integers(1, stored + 1, BATCH if stored else 0)
        others = rng.integers(stored + 1, last + 1, 2 * BATCH)
        accepted, passed = (
            f.contains(tamis.traces.ranked(FIRST_NEGATIVE + each)) for each in (known, others)
        )
        weights, psi = known.astype(float) ** -self._exponent, self.workload.psi(stored)
        of_known = float(weights[accepted].sum() / weights.sum()) if stored else 0.0
        return psi * of_known + (1 - psi) * float(passed.mean())


def taken(values: Any, places: np.ndarray[Any, Any]) -> Any:
    """Return the values at these places."""
    return values.take(pa.array(places)) if isinstance(values, pa.Array) else values[places]


def urls(quick: bool) -> Dataset:
    """Return a blocklist against popular domains; every eighth of both in a quick run."""
    step = 8 if quick else 1
    keys = _column("blocklist_maltrail", "indicator").unique()
    ranked, others = _column("domains_alexa100k", "domain"), _column("domains_tranco1m", "domain")
    others = others.take(pa.array(np.argsort(tamis.hash_keys(others, seed=1)[:, 0])))
    domains = pa.concat_arrays([ranked, others]).unique()
    listed = np.isin(tamis.hash_keys(domains)[:, 0], tamis.hash_keys(keys)[:, 0])
    domains = domains.filter(pa.array(~listed))
    domains = domains.take(pa.array(np.arange(0, len(domains), step)))
    shares = 1 / np.arange(1, len(domains) + 1)
    return Dataset(
        keys.take(pa.array(np.arange(0, len(keys), step))), domains, shares / shares.sum()
    )


def _column(name: str, column: str) -> pa.Array:
    return data.table(name, [column]).column(0).combine_chunks()


def power_law(quick: bool) -> Dataset:
    """Return Firehose's power law: 100,000 keys, whose first fraction x gets √x of the queries."""
    universe = 100_000
    edges = np.sqrt(np.arange(universe + 1) / universe)
    return _labelled(tamis.traces.ranked(range(universe)), np.diff(edges))


def active_set(quick: bool) -> Dataset:
    """Return Firehose's active set, by the counts of its keys over the whole stream."""
    values, counts = np.unique(_stream(quick), return_counts=True)
    return _labelled(values, counts / counts.sum())


def active_set_later(quick: bool) -> tuple[Dataset, Any]:
    """Return the first half of the active-set stream, and the queries of the second."""
    first, second = np.array_split(_stream(quick), 2)
    values, counts = np.unique(first, return_counts=True)
    return _labelled(values, counts / counts.sum()), second[~_suspicious(second)]


def _stream(quick: bool) -> Any:
    active = 131_072 // (10 if quick else 1)
    return tamis.traces.active_set(STREAM[quick], active=active, seed=3)


def _suspicious(values: Any) -> Any:
    """Label keys by their hash, so that nothing else about them tells."""
    return tamis.hash_keys(values, seed=99)[:, 0] % np.uint64(SUSPICIOUS) == 0


def _labelled(values: Any, shares: Any) -> Dataset:
    suspicious = _suspicious(values)
    asked = shares[~suspicious]
    order = np.argsort(-asked, kind="stable")
    return Dataset(values[suspicious], values[~suspicious][order], asked[order] / asked.sum())
