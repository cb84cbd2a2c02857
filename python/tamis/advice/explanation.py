"""How the numbers of an advice are derived, with the rules of the papers.

The rules: which kinds suit a situation (figure 12), and when a stack pays off (theorem 3).

References: Liu, Zheng, Shen, Chen 2020, figure 12; Deeds, Hentschel, Idreos 2021, section 7.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tamis._format import format_rate
from tamis.advice.situation import Situation, cost_sum
from tamis.advice.text import table, wrap
from tamis.advice.turnover import recognized_share
from tamis.planning import bloom
from tamis.planning.stacked.metrics import most_negatives, space_saving

if TYPE_CHECKING:
    from tamis.advice.advice import Advice

KINDS = ("Bloom", "learned", "stable", "stable learned")

SUITS = {
    "a static set": ("best", "applicable", "applicable", "applicable"),
    "a classifier": ("applicable", "best", "applicable", "best"),
    "no key rejected": ("best", "best", "no", "no"),
    "an endless stream": ("no", "no", "best", "best"),
}
"""Figure 12: how well each of `KINDS` suits each aspect. In the available text of the paper, the
figure has one sign for best and applicable; the appendix distinguishes them."""

RATIOS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""|N_f|/|P|: frequent negatives stored per key."""


def explain(advice: Advice, *, with_table: bool = True) -> Iterator[str]:
    """Yield the lines of the table, if wanted, and of the derivation of its numbers."""
    s = advice.situation
    if with_table:
        yield from table(advice)
        yield ""
    yield "Suitable kinds (Liu et al. 2020, figure 12):"
    yield from figure_12(s)
    w = s.workload
    if w is not None and len(w) and s.bits_per_key > 0 and "stream" not in s.needs:
        size = bloom.size(s.keys, layout="standard", **s.sizing)
        rate = size.rate(s.keys)
        if rate < 0.5:
            yield ""
            yield from wrap(
                f"When a stack of Bloom layers is smaller than one Bloom filter at its rate of "
                f"{format_rate(rate)} (Deeds et al. 2021, theorem 3 and figure 2c):"
            )
            yield from theorem_3(s, rate)
    if "store" in s.needs:
        yield ""
        yield from wrap(
            f"Of {s.queries:,.0f} queries for absent keys, {s.distinct:,.0f} are expected to be "
            f"for distinct keys: c = {s.distinct / max(s.keys, 1):.3g} per stored key. An adaptive "
            "filter has e^(c·rate) − 1 false positives per stored key in total (Lee et al. 2021)."
        )
    if s.turnover and w is not None:
        recognized = format_rate(recognized_share(s.turnover, s.present))
        yield ""
        yield from wrap(
            f"While {s.turnover:.3g} of the keys are replaced, a stack recognizes "
            f"{recognized} of the queries for known negatives on "
            "average: its layers do not store the negatives that new keys collide with, nor the "
            "keys that have left. An adaptive filter loses its corrections for keys that have left."
        )
    yield ""
    yield "Cost of a query (present × time + absent × (time + rate × wasted read)):"
    for each in advice.choices:
        yield from wrap(f"  {each.name}: {cost_sum(each, s)}", "    ")
    for each in advice.choices:
        if each.plan is not None and each is advice.choices[0]:
            yield ""
            yield str(each.plan)


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

    ``rate`` is the false-positive rate of a plain Bloom filter within the budget; the stack has
    the same rate.
    """
    w = situation.workload
    assert w is not None
    yield f"  {'|N_f|/|P|':>10} {'psi':>8} {'at most':>10} {'pays':>6} {'bits/key saved':>15}"
    for ratio in RATIOS:
        stored = round(ratio * situation.keys)
        if not 0 < stored <= len(w):
            continue
        psi = w.psi(stored)
        limit = most_negatives(rate, psi)
        saved = space_saving(rate, psi, ratio, lambda each: -np.log2(each) / math.log(2))
        pays = "yes" if ratio <= limit else "no"
        yield f"  {ratio:>10g} {psi:>8.3f} {max(limit, 0):>10.3g} {pays:>6} {saved:>15.2f}"
