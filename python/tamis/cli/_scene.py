"""The demo's scene: a blocklist, and a log of visits that is skewed as logs are. Seeded.

Hosts are made of two words, an ending and mostly a beginning, chosen by the bits of a scattered
rank (`tamis.traces`). Visits follow Zipf's law over a million hosts that are not blocked; some
go to blocked ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tamis import traces

Hosts = npt.NDArray[np.bytes_]

_HOSTS = 1_000_000
_PRESENT = 0.02
"""The share of visits to blocked hosts."""

_BLOCKED_FROM = 10**8
"""Ranks from here on are blocked: no visit by Zipf's law reaches them."""

_SYLLABLES = [
    start + end
    for start in ("b", "ch", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "st", "t", "v", "z")
    for end in ("a", "e", "i", "o")
]


def _choice(*options: str) -> Hosts:
    return np.array(options, dtype="S")


_WORDS = _choice(*(one + two for one in _SYLLABLES[::4] for two in _SYLLABLES))
_ENDINGS = _choice(".com", ".net", ".org", ".io", ".info", ".shop", ".news", ".xyz")
_USUAL = _choice("", "", "", "", "www.", "www.", "m.", "api.")
_BLOCKED = _choice("ads.", "track.", "click.", "pixel.", "stats.", "login-", "secure-", "win-")


class Scene(NamedTuple):
    """What is blocked, what was asked for, and what will be."""

    keys: Any
    sample: Any
    questions: Any


def scene(keys: int, questions: int, seed: int) -> Scene:
    """Make a blocklist of about so many hosts, a log to learn from, and one to replay.

    >>> blocked, before, after = scene(100, 1000, seed=0)
    >>> len(before), len(after), 0 < int(np.isin(after, blocked).sum()) < 60
    (1000, 1000, True)
    """
    ranks = range(_BLOCKED_FROM, _BLOCKED_FROM + keys)
    blocked = np.unique(_hosts(traces.ranked(ranks, seed=seed), _BLOCKED))
    visits = _hosts(traces.zipf(2 * questions, universe=_HOSTS, seed=seed), _USUAL)
    random = np.random.default_rng(seed)
    there = np.flatnonzero(random.random(len(visits)) < _PRESENT)
    visits = visits.astype(max(visits.dtype, blocked.dtype))
    visits[there] = random.choice(blocked, len(there))
    return Scene(blocked, visits[:questions], visits[questions:])


def _hosts(ranked: npt.NDArray[np.uint64], beginnings: Hosts) -> Hosts:
    """Make a host of the bits of each scattered rank; few share one."""
    host = np.char.add(_drawn(_WORDS, ranked, 0), _drawn(_WORDS, ranked, 16))
    host = np.char.add(host, _drawn(_ENDINGS, ranked, 32))
    return np.char.add(_drawn(beginnings, ranked, 40), host)


def _drawn(options: Hosts, ranked: npt.NDArray[np.uint64], shift: int) -> Hosts:
    bits = (ranked >> np.uint64(shift)).astype(np.uint16)
    return options[bits % len(options)]
