"""The scores, and the parameters of g-SLBF: Figures 9 to 11."""

from __future__ import annotations

from typing import Any

import numpy as np
from experiments.curves import curves, panels
from experiments.evidence import Evidence, Verdict, experiment
from experiments.streams.overall import STANDS
from experiments.streams.settings import (
    COUNTS,
    DATA,
    GAP,
    GROUPS,
    RATE,
    RATES,
    SIZES,
    TASKS,
    grouped,
    measured,
    planned,
    scored,
    task,
)

from tamis.planning.stable_learned.scores import monotone

METHODS = {"paper": "paper", "ours": "optimal"}


@experiment("streams/figure9", title="FNR of g-SLBF by rate, groups and bits", data=DATA)
def figure9(quick: bool) -> Evidence:
    """Vary one parameter at a time, by the paper's rule and by the optimal plan."""
    found = []
    for name in TASKS:
        own = task(name).few(True)
        middle = SIZES[name][1]
        cells = [("rate", middle, GROUPS, rate) for rate in (RATES[1::2] if quick else RATES)]
        sizes = SIZES[name][: 1 if quick else 3]
        cells += [("groups", b, g, RATE) for b in sizes for g in (COUNTS[::2] if quick else COUNTS)]
        for part, bits, groups, rate in cells:
            for label, method in METHODS.items():
                f = grouped(own, bits, groups, method, rate)
                fnr = "" if f is None else measured(scored(f), own.stream, own.absent[:1])[1]
                found.append(
                    {
                        "part": part,
                        "task": name,
                        "bits": bits,
                        "groups": groups,
                        "rate": rate,
                        "plan": label,
                        "fnr": fnr,
                        "predicted": ""
                        if f is None
                        else planned(name, bits, groups, method, rate, GAP).expected_fnr,
                    }
                )

    def falls(label: str) -> list[bool]:
        answers = []
        for name in TASKS:
            own = [
                r["fnr"]
                for r in found
                if (r["part"], r["task"], r["plan"]) == ("rate", name, label) and r["fnr"] != ""
            ]
            if len(own) > 1:
                answers.append(own[0] >= own[-1] - 0.01)
        return answers

    def by_groups(name: str, label: str, bits: int) -> str:
        own = [
            r
            for r in found
            if (r["part"], r["task"], r["plan"], r["bits"]) == ("groups", name, label, bits)
        ]
        return ", ".join("none" if r["fnr"] == "" else f"{r['fnr']:.3f}" for r in own)

    missing = sum(1 for r in found if r["plan"] == "paper" and r["fnr"] == "")
    each = sum(1 for r in found if r["plan"] == "paper")
    bits = SIZES["Higgs"][0]
    curve = by_groups("Higgs", "paper", bits)

    def draw(i: int, axes: Any) -> None:
        if i == 0:
            own = [{**r, "name": f"{r['task']}, {r['plan']}"} for r in found if r["part"] == "rate"]
            title, x = "FNR by rate (a)", "rate"
        else:
            name = TASKS[i - 1]
            title, x = f"{name}: FNR by groups", "groups"
            own = [
                {**r, "name": f"{r['plan']}, 2^{r['bits'].bit_length() - 1}"}
                for r in found
                if r["part"] == "groups" and r["task"] == name
            ]
        curves(axes, own, x=x, y="fnr", by="name", title=title, labels=(x, "FNR"))

    return Evidence(
        found,
        [
            Verdict(
                "A higher allowed rate means fewer false negatives (a)",
                "inverse",
                f"falls in {sum(falls('paper'))} of {len(falls('paper'))} tasks with a plan",
                f"falls in {sum(falls('ours'))} of {len(falls('ours'))} tasks",
                "agrees" if all(falls("paper") + falls("ours")) else "differs",
                f"{missing} of {each} cells have no plan by the paper's rule, since Eq. 20 "
                "leaves a group fewer counters than an insertion decrements.",
            ),
            Verdict(
                "With fixed bits, false negatives against the number of groups have the shape "
                "of a V",
                "V-shaped",
                f"Higgs, {bits:,} bits, by groups: {curve}",
                f"{by_groups('Higgs', 'ours', bits)}",
                "differs",
                "By the paper's rule they rise from two groups on, since every group costs "
                "counters by Eq. 20; the optimal plan joins groups that do not help, so more "
                f"never hurt. {STANDS}.",
            ),
        ],
        panels(4, draw, columns=2, share=False),
    )


@experiment("streams/figure10", title="Histograms of the scores", data=DATA)
def figure10(quick: bool) -> Evidence:
    """Check the paper's assumption: p_j falls and q_j rises with the scores."""
    found, groups = [], {}
    for name in TASKS:
        own = task(name)
        edges = np.linspace(0, 1, 21)
        for label, scores in (("members", own.stream), ("absent", own.absent)):
            shares = np.histogram(scores, edges)[0] / len(scores)
            found += [
                {"task": name, "keys": label, "score": float(low), "share": float(share)}
                for low, share in zip(edges, shares, strict=False)
            ]
        groups[name] = monotone(own.stream, own.absent)

    def draw(i: int, axes: Any) -> None:
        for label, colour in (("members", "#1f77b4"), ("absent", "#d9480f")):
            own = [r for r in found if r["task"] == TASKS[i] and r["keys"] == label]
            axes.bar(
                [r["score"] for r in own],
                [r["share"] for r in own],
                0.05,
                align="edge",
                alpha=0.55,
                color=colour,
                label=label,
            )
        axes.set_title(TASKS[i], fontsize=9)
        axes.set_xlabel("score", fontsize=8)
        axes.set_ylabel("share", fontsize=8)
        axes.tick_params(labelsize=7)

    return Evidence(
        found,
        [
            Verdict(
                "For well trained classifiers, p_j falls and q_j rises (Assumption 2, six groups)",
                "g = 6 for all tasks",
                ", ".join(f"{name} up to {count} groups" for name, count in groups.items()),
                "not needed: borders are cut where members and absent keys differ most",
                "agrees" if min(groups.values()) >= GROUPS else "differs",
                "Even borders split the scores of Amazon and Attack, which crowd near 0 and 1, "
                f"so that the assumption holds for few groups only. {STANDS}.",
            )
        ],
        panels(3, draw),
    )


@experiment("streams/figure11", title="Stability of g-SLBF on Amazon", data=DATA)
def figure11(quick: bool) -> Evidence:
    """Ask all absent keys after every 4,000 insertions; six groups, rate 0.1."""
    own, rate = task("Amazon"), 0.1
    moments = [0, *range(4000, len(own.stream), 4000)]
    others = np.arange(10**9, 10**9 + len(own.absent))
    found: list[dict[str, Any]] = []
    limits: dict[str, list[float]] = {"paper": [], "ours": []}
    for power in (10, 14, 18) if quick else (10, 12, 14, 16, 18, 24):
        for label, method in METHODS.items():
            counts = range(GROUPS, 1, -1) if label == "paper" else [GROUPS]
            plans = (grouped(own, 2**power, g, method, rate) for g in counts)
            f = next((f for f in plans if f is not None), None)
            if f is None:
                continue
            limits[label].append(f.stable_fpr)
            ask, done = scored(f), 0
            for moment in moments:
                keys = np.arange(done, moment)
                ask(keys, own.stream[keys], insert=True)
                done = moment
                found.append(
                    {
                        "bits": 2**power,
                        "plan": label,
                        "groups": len(f.groups),
                        "insertions": moment,
                        "fpr": float(ask(others, own.absent).mean()),
                        "limit": f.stable_fpr,
                    }
                )
    last = {
        label: [r["fpr"] for r in found if r["plan"] == label and r["insertions"] == moments[-1]]
        for label in METHODS
    }

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        shown = [{**r, "name": f"{r['plan']}, 2^{r['bits'].bit_length() - 1} bits"} for r in found]
        curves(axes, shown, x="insertions", y="fpr", by="name", labels=("insertions", "FPR"))
        axes.axhline(rate, color="#7f7f7f", linewidth=0.8, linestyle="--")

    told = ", ".join(f"{value:.3f}" for value in last["paper"]) or "no plan"
    return Evidence(
        found,
        [
            Verdict(
                "The rate of g-SLBF with g = 6 and ε = 10 % grows and approaches 0.1 (Amazon)",
                "0.1",
                f"{told} after {moments[-1]:,} insertions, by bits",
                ", ".join(f"{value:.3f}" for value in last["ours"]),
                "differs",
                "It is stable, but by Eq. 18 its limit is g·ε/Σ(1/p_l), at most ε/g = 0.017 for "
                "six groups: a rate of 0.1 cannot come from the printed rule; the optimal plan "
                "uses the rate allowed. Six groups have counters only in 2²⁴ bits; with fewer "
                "bits, fewer groups were used.",
            ),
        ],
        draw,
    )
