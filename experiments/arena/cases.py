"""Ten workloads on real data, fixed before the advice was tuned.

Each is a set of keys, a sample of queries for the advice, and later queries to measure on. Whatever
is modelled is marked so; everything else is as recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import tamis
from experiments import data

SEED = 8
DATA = (
    "blocklist_maltrail",
    "domains_alexa100k",
    "domains_tranco1m",
    "trace_twitter52",
    "trace_orm_busy",
    "trace_web12",
    "urls_ebbu2017",
    "flights",
    "kdd99_10pct",
)


@dataclass
class Case:
    """One workload: the arguments of the advice, and the queries to measure on."""

    name: str
    keys: Any
    sample: Any
    asked: Any
    bits_per_key: float
    miss_cost: str
    needs: frozenset[str] = frozenset()
    options: dict[str, Any] = field(default_factory=dict)


def cases(quick: bool = False) -> Iterator[Case]:
    """Yield the workloads."""
    for make in WORKLOADS:
        yield make(quick, np.random.default_rng(SEED))


def halves(stream: np.ndarray, share: float, rng: np.random.Generator):
    """Return keys (a random fraction of the objects), and the two halves of the requests."""
    names = np.unique(stream)
    keys = rng.choice(names, int(share * len(names)), replace=False)
    return keys, *np.split(stream, [len(stream) // 2])


def domains(rng: np.random.Generator) -> np.ndarray:
    """Return absent domains: Alexa's by rank, then Tranco's in random order."""
    ranked = data.table("domains_alexa100k", ["domain"]).column(0).to_pylist()
    rest = sorted(set(data.table("domains_tranco1m", ["domain"]).column(0).to_pylist()))
    rest = rng.permutation(np.array(sorted(set(rest) - set(ranked)), dtype=object))
    found = np.concatenate([np.array(ranked, dtype=object), rest])
    stored = tamis.hash_keys(blocklist())[:, 0]
    return found[~np.isin(tamis.hash_keys(found.tolist())[:, 0], stored)]


def blocklist() -> Any:
    return data.table("blocklist_maltrail", ["indicator"]).column(0)


def blocklist_skewed(quick, rng):
    """A blocklist queried for popular domains. Frequencies are modelled: 1/rank."""
    absent, count = domains(rng), 200_000 if quick else 2_000_000
    shares = 1 / np.arange(1, len(absent) + 1)
    shares /= shares.sum()
    sample, asked = (absent[rng.choice(len(absent), count, p=shares)].tolist() for _ in range(2))
    return Case("blocklist, skewed", blocklist(), sample, asked, 8, "1ms")


def blocklist_plain(quick, rng):
    """The same blocklist, each domain queried once: only what domains look like can be learned."""
    absent = rng.permutation(domains(rng))
    sample, asked = np.array_split(absent[: 100_000 if quick else None], 2)
    return Case("blocklist, no repeats", blocklist(), sample.tolist(), asked.tolist(), 10, "1ms")


def twitter_static(quick, rng):
    """Half of the objects of a cache, static; later requests differ from earlier ones."""
    stream = data.table("trace_twitter52", ["key"]).column(0).to_numpy()
    keys, sample, asked = halves(stream[: 200_000 if quick else None], 0.5, rng)
    return Case("twitter, static", keys, sample, asked, 8, "1ms")


def twitter_store(quick, rng):
    """The same in front of a changing store, which reports false positives."""
    case = twitter_static(quick, rng)
    case.name, case.bits_per_key = "twitter, changing store", 12
    case.needs = frozenset({"store", "insert", "delete"})
    return case


def orm_inserts(quick, rng):
    """A third of the objects of an ORM, with insertions."""
    stream = data.table("trace_orm_busy", ["key"]).column(0).to_numpy()
    stream = stream[: 200_000 if quick else 2_000_000]
    keys, sample, asked = halves(stream, 1 / 3, rng)
    return Case("orm, inserts", keys, sample, asked, 10, "100us", frozenset({"insert"}))


def orm_present(quick, rng):
    """Nine tenths of the objects are present and reads are cheap: the filter's time matters."""
    stream = data.table("trace_orm_busy", ["key"]).column(0).to_numpy()
    stream = stream[-200_000 if quick else -2_000_000 :]
    keys, sample, asked = halves(stream, 0.9, rng)
    return Case("orm, mostly present", keys, sample, asked, 10, "10us")


def web_adversary(quick, rng):
    """Pages of a web site in a store, and an adversary who repeats false positives."""
    stream = data.table("trace_web12", ["key"]).column(0).to_numpy()
    keys, sample, asked = halves(stream, 0.5, rng)
    needs = frozenset({"store", "adversary"})
    return Case("web, adversary", keys, sample, asked, 12, "1ms", needs)


def phishing(quick, rng):
    """Phishing URLs queried for benign ones, each once; a classifier may be used."""
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
    """On which days did an aircraft fly? One filter per day; recent days have more queries."""
    table = data.table("flights", ["month", "day", "tailnum"]).to_pandas().dropna()
    days = {
        f"{m:02}-{d:02}": list(set(t)) for (m, d), t in table.groupby(["month", "day"])["tailnum"]
    }
    if quick:
        days = dict(list(days.items())[:60])
    utility = 0.99 ** np.arange(len(days))[::-1]
    tails = sorted(set(table["tailnum"]))
    sample, asked = np.array_split(rng.permutation(tails), 2)
    options = {"utility": utility}
    return Case(
        "flights, one filter a day",
        days,
        sample.tolist(),
        asked.tolist(),
        8,
        "10ms",
        options=options,
    )


def connections_stream(quick, rng):
    """Was this connection among the last 20,000? A stream; false negatives are allowed."""
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
