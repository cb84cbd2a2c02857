"""Generated data of the demo: a blocklist of hosts, and a skewed log of visits. Seeded.

A host name consists of two words, a top-level domain and usually a prefix, chosen by the bits of a
scattered rank (`tamis.traces`). Visits follow Zipf's law over a million hosts that are not blocked;
a few go to blocked hosts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tamis import traces

Hosts = npt.NDArray[np.bytes_]

_HOSTS = 1_000_000
_PRESENT = 0.02
"""The fraction of visits to blocked hosts."""

_BLOCKED_FROM = 10**8
"""Ranks from here on are blocked; the Zipf-distributed visits have lower ranks."""

_SYLLABLES = [
    start + end
    for start in ("b", "ch", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "st", "t", "v", "z")
    for end in ("a", "e", "i", "o")
]


def _choice(*options: str) -> Hosts:
    return np.array(options, dtype="S")


_WORDS = _choice(*(one + two for one in _SYLLABLES[::4] for two in _SYLLABLES))
_DOMAINS = _choice(".com", ".net", ".org", ".io", ".info", ".shop", ".news", ".xyz")
_PREFIXES = _choice("", "", "", "", "www.", "www.", "m.", "api.")
_BLOCKED_PREFIXES = _choice(
    "ads.", "track.", "click.", "pixel.", "stats.", "login-", "secure-", "win-"
)


class DemoData(NamedTuple):
    """The blocked hosts, the queries to learn from, and the queries to replay."""

    keys: Any
    sample: Any
    queries: Any


def generate_data(keys: int, queries: int, seed: int) -> DemoData:
    """Generate a blocklist of about ``keys`` hosts, a log to learn from, and one to replay.

    >>> blocked, before, after = generate_data(100, 1000, seed=0)
    >>> len(before), len(after), 0 < int(np.isin(after, blocked).sum()) < 60
    (1000, 1000, True)
    """
    ranks = range(_BLOCKED_FROM, _BLOCKED_FROM + keys)
    blocked = np.unique(_hosts(traces.ranked(ranks, seed=seed), _BLOCKED_PREFIXES))
    visits = _hosts(traces.zipf(2 * queries, universe=_HOSTS, seed=seed), _PREFIXES)
    random = np.random.default_rng(seed)
    present = np.flatnonzero(random.random(len(visits)) < _PRESENT)
    visits = visits.astype(max(visits.dtype, blocked.dtype))
    visits[present] = random.choice(blocked, len(present))
    return DemoData(blocked, visits[:queries], visits[queries:])


def _hosts(ranked: npt.NDArray[np.uint64], prefixes: Hosts) -> Hosts:
    """Return the host name of each scattered rank; few ranks share one."""
    host = np.char.add(_pick(_WORDS, ranked, 0), _pick(_WORDS, ranked, 16))
    host = np.char.add(host, _pick(_DOMAINS, ranked, 32))
    return np.char.add(_pick(prefixes, ranked, 40), host)


def _pick(options: Hosts, ranked: npt.NDArray[np.uint64], shift: int) -> Hosts:
    bits = (ranked >> np.uint64(shift)).astype(np.uint16)
    return options[bits % len(options)]
