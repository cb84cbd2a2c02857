"""Ten workloads for the advice, fixed before it was tuned; all of them on real data.

Each is a set of keys, a sample of the questions that the advice may see, and the later questions
that its plans are measured on. What is modelled is said: the rest is as it was recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

sys.path.insert(0, str(Path(__file__).parents[1]))
import data

SEED = 8


@dataclass
class Case:
    """One workload: what is asked of the advice, and of the filters."""

    name: str
    keys: Any
    sample: Any
    asked: Any
    bits_per_key: float
    miss_cost: str
    needs: frozenset[str] = frozenset()
    wishes: dict[str, Any] = field(default_factory=dict)


def cases(quick: bool = False) -> Iterator[Case]:
    """Make them one after the other."""
    for make in WORKLOADS:
        yield make(quick, np.random.default_rng(SEED))


def halves(stream: np.ndarray, share: float, rng: np.random.Generator):
    """Keys: a random share of the objects. Sample and questions: the first and second half."""
    names = np.unique(stream)
    keys = rng.choice(names, int(share * len(names)), replace=False)
    return keys, *np.split(stream, [len(stream) // 2])


def domains(rng: np.random.Generator) -> np.ndarray:
    """Absent domains: Alexa's in the order of their ranks, then Tranco's in random order."""
    import tamis

    ranked = data.table("domains_alexa100k", ["domain"]).column(0).to_pylist()
    rest = sorted(set(data.table("domains_tranco1m", ["domain"]).column(0).to_pylist()))
    rest = rng.permutation(np.array(sorted(set(rest) - set(ranked)), dtype=object))
    found = np.concatenate([np.array(ranked, dtype=object), rest])
    stored = tamis.hash_keys(blocklist())[:, 0]
    return found[~np.isin(tamis.hash_keys(found.tolist())[:, 0], stored)]


def blocklist() -> Any:
    return data.table("blocklist_maltrail", ["indicator"]).column(0)


def blocklist_skewed(quick, rng):
    """A blocklist asked for popular domains. Frequencies are modelled: 1/rank."""
    absent, count = domains(rng), 200_000 if quick else 2_000_000
    shares = 1 / np.arange(1, len(absent) + 1)
    shares /= shares.sum()
    sample, asked = (absent[rng.choice(len(absent), count, p=shares)].tolist() for _ in range(2))
    return Case("blocklist, skewed", blocklist(), sample, asked, 8, "1ms")


def blocklist_plain(quick, rng):
    """The same blocklist asked for each domain once: only how domains look can be learnt."""
    absent = rng.permutation(domains(rng))
    sample, asked = np.array_split(absent[: 100_000 if quick else None], 2)
    return Case("blocklist, no repeats", blocklist(), sample.tolist(), asked.tolist(), 10, "1ms")


def twitter_static(quick, rng):
    """Half of a cache's objects, which stay; the later requests are those of another time."""
    stream = data.table("trace_twitter52", ["key"]).column(0).to_numpy()
    keys, sample, asked = halves(stream[: 200_000 if quick else None], 0.5, rng)
    return Case("twitter, static", keys, sample, asked, 8, "1ms")


def twitter_store(quick, rng):
    """The same in front of a store that changes and tells of mistakes."""
    case = twitter_static(quick, rng)
    case.name, case.bits_per_key = "twitter, changing store", 12
    case.needs = frozenset({"store", "insert", "delete"})
    return case


def orm_inserts(quick, rng):
    """A third of the objects of an ORM; more will come."""
    stream = data.table("trace_orm_busy", ["key"]).column(0).to_numpy()
    stream = stream[: 200_000 if quick else 2_000_000]
    keys, sample, asked = halves(stream, 1 / 3, rng)
    return Case("orm, inserts", keys, sample, asked, 10, "100us", frozenset({"insert"}))


def orm_present(quick, rng):
    """Nine tenths of the objects are there, and reads are cheap: the filter's time counts."""
    stream = data.table("trace_orm_busy", ["key"]).column(0).to_numpy()
    stream = stream[-200_000 if quick else -2_000_000 :]
    keys, sample, asked = halves(stream, 0.9, rng)
    return Case("orm, mostly present", keys, sample, asked, 10, "10us")


def web_adversary(quick, rng):
    """Pages of a site behind a store, and someone who repeats whatever was a false positive."""
    stream = data.table("trace_web12", ["key"]).column(0).to_numpy()
    keys, sample, asked = halves(stream, 0.5, rng)
    needs = frozenset({"store", "adversary"})
    return Case("web, adversary", keys, sample, asked, 12, "1ms", needs)


def phishing(quick, rng):
    """Phishing addresses asked for honest ones, each once: a classifier may read them."""
    urls = data.table("urls_ebbu2017")
    keys = set(urls["url"].filter(urls["phishing"]).to_pylist())
    honest = np.array(sorted(set(urls["url"].to_pylist()) - keys), dtype=object)
    honest = rng.permutation(honest)
    sample, asked = np.array_split(honest, 2)
    needs = frozenset({"classifier"})
    return Case(
        "phishing, classifier", sorted(keys), sample.tolist(), asked.tolist(), 10, "1ms", needs
    )


def flights(quick, rng):
    """Which days did an aircraft fly? One filter per day; recent days are asked for more."""
    table = data.table("flights", ["month", "day", "tailnum"]).to_pandas().dropna()
    days = {
        f"{m:02}-{d:02}": list(set(t)) for (m, d), t in table.groupby(["month", "day"])["tailnum"]
    }
    if quick:
        days = dict(list(days.items())[:60])
    utility = 0.99 ** np.arange(len(days))[::-1]
    tails = sorted(set(table["tailnum"]))
    sample, asked = np.array_split(rng.permutation(tails), 2)
    wishes = {"utility": utility}
    return Case(
        "flights, one filter a day", days, sample.tolist(), asked.tolist(), 8, "10ms", wishes=wishes
    )


def connections_stream(quick, rng):
    """Was this connection seen among the last 20,000? A stream; some may be forgotten."""
    table = data.table("kdd99_10pct").drop(["label"])
    text = [pc.cast(table[name], pa.large_string()) for name in table.column_names]
    rows = pc.binary_join_element_wise(*text, pa.scalar("|", pa.large_string()))
    rows = rows.to_numpy()
    rows = rows[: 60_000 if quick else 200_000]
    sample, asked = np.array_split(rows, 2)
    needs = frozenset({"stream", "false negatives allowed"})
    return Case("connections, stream", 20_000, sample.tolist(), asked.tolist(), 12, "1ms", needs)


WORKLOADS: list[Callable[..., Case]] = [
    blocklist_skewed,
    blocklist_plain,
    twitter_static,
    twitter_store,
    orm_inserts,
    orm_present,
    web_adversary,
    phishing,
    flights,
    connections_stream,
]
