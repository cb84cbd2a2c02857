"""What the figures of the stacked-filter papers share: their setting, methods, measurements, looks.

The setting is that of Deeds, Hentschel and Idreos 2021: 10⁶ keys, 10⁸ negatives whose frequency
falls with their rank, of which the more frequent half is known. A quick run has a tenth of both.
Results are kept within a process, so that figures can share them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import tamis

BATCH = 1 << 22
BITS = 10.0
FIRST_NEGATIVE = 1 << 40
FIRST_UNSEEN = 1 << 50

METHODS: dict[str, dict[str, Any]] = {
    "stacked Bloom": {"layer": "bloom", "last": "alternating", "rates": "equal"},
    "stacked Bloom, varied": {"layer": "bloom", "last": "alternating"},
    "stacked cuckoo": {"layer": "cuckoo", "last": "alternating"},
    "stacked quotient": {"layer": "quotient", "last": "alternating"},
    "stacked ribbon": {"layer": "ribbon", "last": "alternating"},
    "best plan": {},
}
"""By name: the options for `tamis.plan`. "stacked Bloom" is the paper's method; the best plan is a
ribbon layer with a fraction of a column, and an exact one."""

PLAIN = {"Bloom": "bloom", "cuckoo": "cuckoo", "quotient": "quotient", "ribbon": "ribbon"}

COLOURS = {
    "Bloom": "tab:blue",
    "cuckoo": "tab:olive",
    "quotient": "tab:cyan",
    "ribbon": "tab:purple",
    "stacked Bloom": "tab:orange",
    "stacked Bloom, varied": "tab:brown",
    "stacked cuckoo": "tab:olive",
    "stacked quotient": "tab:cyan",
    "stacked ribbon": "tab:pink",
    "learned": "tab:green",
    "sandwiched": "tab:red",
    "best plan": "black",
}
MARKERS = dict(zip(COLOURS, "oDsPv^xDPX*.", strict=True))


class Setting(NamedTuple):
    """How many keys and negatives there are."""

    keys: int
    universe: int


class Rate(NamedTuple):
    """A rate measured over all negatives by frequency, and its standard deviation."""

    mean: float
    sigma: float


REFERENCE = Setting(10**6, 10**8)


def setting(quick: bool) -> Setting:
    """Return the setting of the paper, or a tenth of it."""
    return Setting(10**5, 10**7) if quick else REFERENCE


@functools.cache
def workload(exponent: float, universe: int) -> tamis.Workload:
    """Return the workload by Zipf's law whose more frequent half is known."""
    return tamis.Workload.zipf(exponent, universe, universe // 2)


@functools.cache
def uniform(negatives: int, psi: float) -> tamis.Workload:
    """Return a workload in which so many equally frequent negatives are ψ of the queries."""
    return tamis.Workload.from_shape(np.ones(negatives), unseen=1 - psi)


@functools.cache
def plan(
    method: str, exponent: float, bits: float = BITS, where: Setting = REFERENCE
) -> tamis.Plan:
    """Plan a stack, or a plain filter, for the setting."""
    if method in PLAIN:
        return tamis.plan(where.keys, bits_per_key=bits, layer=PLAIN[method])
    asked = workload(exponent, where.universe)
    return tamis.plan(where.keys, asked, bits_per_key=bits, **METHODS[method])


@functools.cache
def built(
    method: str, exponent: float, bits: float = BITS, where: Setting = REFERENCE
) -> tamis.Stacked:
    """Build the planned filter; it has every key and its bits."""
    made = plan(method, exponent, bits, where)
    f = made.build(np.arange(where.keys), negatives=negatives(made.negatives))
    assert f.contains(np.arange(where.keys)).all()
    assert f.bits_per_key <= bits
    return f


@functools.cache
def measured(method: str, exponent: float, bits: float = BITS, where: Setting = REFERENCE) -> Rate:
    """Build a filter, and measure its rate over all negatives."""
    f = built(method, exponent, bits, where)
    return rate_over_all(f, plan(method, exponent, bits, where).negatives, where, exponent)


def rate_over_all(f: Any, stored: int, where: Setting, exponent: float) -> Rate:
    """Measure a stack's rate over all negatives by frequency.

    A filter errs per key, so the variance of the sum is Σ f²·p·(1 − p).
    """
    mass = wrong = variance = 0.0
    known, unknown = f.known_fpr, f.fpr_bound
    for batch in ranks(where.universe):
        weights = batch.astype(float) ** -exponent
        mass += weights.sum()
        wrong += weights[f.contains(FIRST_NEGATIVE + batch)].sum()
        p = np.where(batch <= stored, known, unknown)
        variance += (weights**2 * p * (1 - p)).sum()
    return Rate(float(wrong / mass), float(variance**0.5 / mass))


def ranks(count: int) -> Iterator[np.ndarray[Any, Any]]:
    """Return the ranks from 1, in batches."""
    for start in range(1, count + 1, BATCH):
        yield np.arange(start, min(start + BATCH, count + 1))


def negatives(count: int) -> Iterator[np.ndarray[Any, Any]]:
    """Return the most frequent negatives, in batches."""
    return (FIRST_NEGATIVE + batch for batch in ranks(count))


def unseen(count: int) -> np.ndarray[Any, Any]:
    """Return absent keys that no stack has seen."""
    return np.random.default_rng(1).integers(FIRST_UNSEEN, 2**62, count)


def cpu_seconds(work: Callable[[], Any], rounds: int = 3) -> float:
    """Return the shortest processor time of a few rounds."""
    took = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        took.append(time.process_time() - start)
    return min(took)


def show(value: float) -> str:
    """Write a number with three digits."""
    return f"{value:.3g}"


def times(ratio: float) -> str:
    """Write a factor."""
    return f"{ratio:.1f}×" if ratio < 10 else f"{ratio:.0f}×"


def look(method: str) -> dict[str, Any]:
    """Return the colour and marker of a method, the same in all pictures."""
    return {"color": COLOURS[method], "marker": MARKERS[method], "markersize": 4, "label": method}


def legend_below(figure: Any, axes: Any, columns: int = 4) -> None:
    """Put one legend for all axes below them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8)
