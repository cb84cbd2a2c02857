"""The common ground of the arena: five real sets, and the queries that are asked about them.

A ground has rows, the members first; queries are row numbers in order, members included, as in the
published protocol. What is real and what is modelled:

- blocklist: domains of a blocklist against popular domains (a sample of both).
- urls: phishing URLs against honest ones.
- kdd: attacks against normal connections, distinct rows; a classifier reads their 41 columns.
- cache, orm: a random half of the objects of a cache and of an ORM are members. Only these have
  recorded queries; all other frequencies are modelled.

The first quarter of the queries is history: plans and advice may use it. Then every filter is
built, and its rate is measured on the other three quarters.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import tamis
from experiments import data

SEED = 21
DATA = (
    "blocklist_maltrail",
    "domains_alexa100k",
    "domains_tranco1m",
    "urls_ebbu2017",
    "kdd99_10pct",
    "trace_twitter52",
    "trace_orm_busy",
)
QUERIES = {True: 100_000, False: 1_000_000}
"""By mode, quick or not. The protocol has ten million; a one-pass workload has one per row."""

MAX_MEMBERS = {True: 10_000, False: 200_000}
MAX_OTHERS = {True: 15_000, False: 300_000}


@dataclass(frozen=True, eq=False)
class Ground:
    """Rows, of which the first ``members`` are in the set."""

    name: str
    rows: Any
    members: int
    features: Any = None
    """What a classifier reads, one row each; by default, the rows themselves."""
    recorded: Any = None
    """Queries as recorded, as row numbers in order."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def keys(self) -> Any:
        return self.rows[: self.members]

    @property
    def others(self) -> np.ndarray:
        """The row numbers of the absent keys."""
        return np.arange(self.members, len(self))

    def take(self, places: np.ndarray) -> Any:
        return (
            self.rows.take(pa.array(places))
            if isinstance(self.rows, pa.Array)
            else self.rows[places]
        )

    def read(self, places: np.ndarray) -> Any:
        """What a classifier reads of these rows."""
        return self.take(places) if self.features is None else self.features.take(pa.array(places))

    def rng(self, *purpose: Any) -> np.random.Generator:
        return np.random.default_rng([SEED, zlib.crc32(repr((self.name, *purpose)).encode())])

    @cached_property
    def numbers(self) -> list[int]:
        """The rows as integers, for packages whose hash of a text is random by process."""
        return (tamis.hash_keys(self.rows)[:, 0] >> np.uint64(4)).tolist()


def split(name: str, members: Any, others: Any, quick: bool, features: Any = None) -> Ground:
    """Return a ground of a sample of distinct members and others."""
    rng = np.random.default_rng([SEED, zlib.crc32(name.encode())])
    chosen = [
        np.sort(rng.permutation(len(rows))[: most[quick]])
        for rows, most in ((members, MAX_MEMBERS), (others, MAX_OTHERS))
    ]
    rows = pa.concat_arrays(
        [
            rows.take(pa.array(places))
            for rows, places in zip((members, others), chosen, strict=True)
        ]
    )
    if features is not None:
        features = pa.concat_tables(
            [each.take(pa.array(places)) for each, places in zip(features, chosen, strict=True)]
        ).combine_chunks()
    return Ground(name, rows, len(chosen[0]), features)


def texts(table: pa.Table, column: str) -> pa.Array:
    return pc.cast(table[column].combine_chunks(), pa.large_string())


def blocklist(quick: bool) -> Ground:
    members = pc.unique(texts(data.table("blocklist_maltrail"), "indicator"))
    popular = [texts(data.table(f"domains_{each}"), "domain") for each in ("alexa100k", "tranco1m")]
    others = pc.unique(pa.concat_arrays(popular))
    others = others.filter(pc.invert(pc.is_in(others, members)))
    return split("blocklist", members, others, quick)


def urls(quick: bool) -> Ground:
    table = data.table("urls_ebbu2017")
    text, phishing = texts(table, "url"), table["phishing"].combine_chunks()
    members = pc.unique(text.filter(phishing))
    others = pc.unique(text.filter(pc.invert(phishing)))
    return split("urls", members, others.filter(pc.invert(pc.is_in(others, members))), quick)


def kdd(quick: bool) -> Ground:
    table = data.distinct(data.table("kdd99_10pct")).combine_chunks()
    columns = table.drop(["label"])
    parts = [pc.cast(columns[name], pa.large_string()) for name in columns.column_names]
    text = pc.binary_join_element_wise(*parts, pa.scalar("|", pa.large_string()))
    text = text.combine_chunks() if isinstance(text, pa.ChunkedArray) else text
    attack = pc.not_equal(table["label"], "normal.").combine_chunks()
    known = text.filter(attack)
    # A few rows are labelled both ways or as two attacks: they are members, once.
    names, first = np.unique(known.to_numpy(zero_copy_only=False), return_index=True)
    members = np.flatnonzero(attack.to_numpy(zero_copy_only=False))[np.sort(first)]
    others = np.flatnonzero(
        pc.invert(pc.is_in(text, pa.array(names, pa.large_string()))).to_numpy(zero_copy_only=False)
    )
    both = [pa.array(each) for each in (members, others)]
    rows = [text.take(each) for each in both]
    return split("kdd", *rows, quick, [columns.take(each) for each in both])


def trace(name: str, file: str, quick: bool) -> Ground:
    asked = data.table(file, ["key"]).column(0).to_numpy()[: QUERIES[quick]]
    objects, places = np.unique(asked, return_inverse=True)
    order = np.random.default_rng([SEED, zlib.crc32(name.encode())]).permutation(len(objects))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return Ground(name, objects[order], len(order) // 2, recorded=place[places])


MAKERS: dict[str, Callable[[bool], Ground]] = {
    "blocklist": blocklist,
    "urls": urls,
    "kdd": kdd,
    "cache": lambda quick: trace("cache", "trace_twitter52", quick),
    "orm": lambda quick: trace("orm", "trace_orm_busy", quick),
}


@cache
def ground(name: str, quick: bool) -> Ground:
    return MAKERS[name](quick)


@dataclass(frozen=True, eq=False)
class Stream:
    """Queries in order: what a plan sees of them, and what is measured."""

    ground: Ground
    workload: str
    asked: np.ndarray
    known: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def quarter(self) -> int:
        return len(self.asked) // 4

    @property
    def seen(self) -> np.ndarray:
        return self.asked[: self.quarter]

    @property
    def later(self) -> np.ndarray:
        return self.asked[self.quarter :]

    @cached_property
    def counts(self) -> np.ndarray:
        """How often each absent row is asked for later."""
        return np.bincount(self.later, minlength=len(self.ground))[self.ground.members :]

    @cached_property
    def absent(self) -> np.ndarray:
        """The later queries for absent keys, in order."""
        return self.later[self.later >= self.ground.members]

    @cached_property
    def distinct(self) -> int:
        """The number of distinct absent keys among them."""
        return len(np.unique(self.absent))

    @cached_property
    def history(self) -> tamis.Workload:
        """The workload as the first quarter of the queries shows it."""
        return tamis.Workload.from_queries(self.ground.take(self.seen), keys=self.ground.keys)


WORKLOADS = ("one_pass", "uniform", "zipf10", "zipf15", "recorded")


@lru_cache(maxsize=2)
def stream(name: str, workload: str, quick: bool) -> Stream:
    """Return the queries of a workload; ranks of Zipf's law are scattered over the rows."""
    on = ground(name, quick)
    rng, count = on.rng(workload), QUERIES[quick]
    if workload == "one_pass":
        asked = rng.permutation(len(on))
    elif workload == "uniform":
        asked = rng.integers(0, len(on), count)
    elif workload == "recorded":
        asked = on.recorded
    else:
        exponent = int(workload.removeprefix("zipf")) / 10
        shares = np.cumsum(np.arange(1, len(on) + 1.0) ** -exponent)
        ranks = np.searchsorted(shares, rng.random(count) * shares[-1])
        asked = rng.permutation(len(on))[ranks]
    return Stream(on, workload, asked)
