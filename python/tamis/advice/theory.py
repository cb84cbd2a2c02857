"""Rules of the papers: which kinds suit a situation, and whether stacking pays off.

References: Liu, Zheng, Shen, Chen 2020, figure 12; Deeds, Hentschel, Idreos 2021, section 7.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tamis.advice.situation import Situation
from tamis.planning.stacked.metrics import most_negatives, space_saving

KINDS = ("Bloom", "learned", "stable", "stable learned")

SUITS = {
    "a static set": ("best", "applicable", "applicable", "applicable"),
    "a classifier": ("applicable", "best", "applicable", "best"),
    "no key rejected": ("best", "best", "no", "no"),
    "an endless stream": ("no", "no", "best", "best"),
}
"""Figure 12: how well each of `KINDS` suits each aspect. The text of the paper that we have uses
the same sign for best and applicable; the appendix distinguishes them."""

RATIOS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""|N_f|/|P|: frequent negatives stored per key."""


def aspects(situation: Situation) -> dict[str, bool]:
    """Return which of the four aspects of figure 12 hold."""
    needs = situation.needs
    return {
        "a static set": not needs & {"insert", "delete", "stream"},
        "a classifier": "classifier" in needs,
        "no key rejected": "false negatives allowed" not in needs,
        "an endless stream": "stream" in needs,
    }


def figure_12(situation: Situation) -> Iterator[str]:
    """Yield the lines of figure 12 for the aspects that hold."""
    yield f"  {'':<18}" + "".join(f"{kind:>15}" for kind in KINDS)
    for name, holds in aspects(situation).items():
        if holds:
            yield f"  {name:<18}" + "".join(f"{each:>15}" for each in SUITS[name])


def theorem_3(situation: Situation, rate: float) -> Iterator[str]:
    """Yield for which |N_f| theorem 3 guarantees a smaller stack, and how much it saves.

    ``rate`` is that of a plain Bloom filter within the budget, and of the stack.
    """
    w = situation.workload
    assert w is not None
    yield f"  {'|N_f|/|P|':>10} {'psi':>8} {'at most':>10} {'pays':>6} {'bits/key saved':>15}"
    for ratio in RATIOS:
        stored = round(ratio * situation.keys)
        if not 0 < stored <= len(w):
            continue
        psi = w.psi(stored)
        most = most_negatives(rate, psi)
        saved = space_saving(rate, psi, ratio, lambda each: -np.log2(each) / math.log(2))
        pays = "yes" if ratio <= most else "no"
        yield f"  {ratio:>10g} {psi:>8.3f} {max(most, 0):>10.3g} {pays:>6} {saved:>15.2f}"
