"""All filters on all tasks: Figures 3 and 8."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from experiments.curves import curves, panels
from experiments.evidence import Evidence, Verdict, experiment
from experiments.streams.settings import (
    DATA,
    FILTERS,
    GAP,
    GROUPS,
    PAPER_MODEL,
    RATE,
    SEED,
    SIZES,
    TASKS,
    by_rule,
    grouped,
    made,
    measured,
    plain,
    scored,
    task,
)

import tamis
from tamis.planning import stable

STANDS = (
    "Amazon is the paper's own data; KDD 99 with two features (AUC 0.93) stands in for Attack, and "
    "drawn scores with the paper's AUC of 0.82 and numbers for Higgs"
)


@experiment("streams/figure3", title="The rate over insertions, and the storage for a rate")
def figure3(quick: bool) -> Evidence:
    """Left: the rate of each filter in equal bits; right: the bits of each for a rate of 0.05."""
    own = task("Higgs").few(True)
    bits, count = 2**18, len(own.stream) // 2
    moments = np.unique(np.geomspace(1000, count, 8).astype(int)).tolist()
    absent = own.absent[: 20_000 if quick else 200_000]
    others = np.arange(10**9, 10**9 + len(absent))
    rows: list[dict[str, Any]] = []
    # The first filters know how many keys will come at best, and not in a stream: ten gaps here.
    first = type(own)(own.name, own.stream[: 10 * GAP], absent, own.held, own.aside, 0)
    for name in FILTERS:
        ask = made(name, first, bits)
        if ask is None or name == "LBF":
            continue
        done = 0
        for moment in moments:
            keys = np.arange(done, moment)
            ask(keys, own.stream[keys], insert=True)
            done = moment
            rows.append(row(name, moment, float(ask(others, absent).mean()), ""))
    trusted = np.quantile(own.aside, 1 - RATE / 2)
    escaping = own.stream <= trusted
    hashes = max(1, round(bits / (10 * GAP * escaping.mean()) * math.log(2)))
    for moment in moments:
        inserted = int(escaping[:moment].sum())
        full = (1 - math.exp(-hashes * inserted / bits)) ** hashes
        rows.append(row("LBF", moment, RATE / 2 + (1 - RATE / 2) * full, ""))
    rows.sort(key=lambda each: FILTERS.index(each["filter"]))
    needed = storage(own, count)
    rows += [row(name, "", "", size) for name, size in needed.items()]
    last = {r["filter"]: r["fpr"] for r in rows if r["insertions"] == moments[-1]}

    def draw(figure: Any) -> None:
        figure.set_size_inches(8.2, 3.6)
        left, right = figure.subplots(1, 2)
        curves(
            left,
            [r for r in rows if r["fpr"] != ""],
            x="insertions",
            y="fpr",
            by="filter",
            labels=("insertions", f"FPR, {bits:,} bits each"),
            logx=10,
        )
        right.barh(list(needed), [size / 8192 for size in needed.values()], color="#1f77b4")
        right.invert_yaxis()
        right.set_xscale("log")
        right.set_xlabel(f"KiB for a rate of {RATE} after {count:,} insertions", fontsize=8)
        right.tick_params(labelsize=7)

    return Evidence(
        rows,
        [
            Verdict(
                "In equal storage, the rates of BF and LBF grow with insertions, those of "
                "stable filters do not",
                "a sketch",
                f"BF {last['BF']:.2f}, LBF {last['LBF']:.2f}, SBF {last['SBF']:.3f}, "
                f"g-SLBF {last['g-SLBF, paper']:.3f}",
                f"g-SLBF {last['g-SLBF, ours']:.3f}, Windowed {last['Windowed']:.5f}",
                "agrees" if last["BF"] > 0.5 > RATE * 1.1 > last["SBF"] else "differs",
                f"Measured on the scores that stand in for Higgs, {count:,} insertions in "
                f"{bits:,} bits; BF and LBF are sized for the first 20,000.",
            ),
            Verdict(
                "For the same rate, SLBF needs less storage than BF, LBF and SBF",
                "a sketch",
                f"SBF {needed['SBF, 1 % denied']:,} bits, g-SLBF by the paper's rule "
                f"{needed['g-SLBF, paper, 1 % denied']:,}",
                f"g-SLBF {needed['g-SLBF, ours, 1 % denied']:,} bits; a window "
                f"{needed['Windowed, none denied']:,}, none denied",
                "agrees"
                if needed["g-SLBF, paper, 1 % denied"] < needed["SBF, 1 % denied"]
                else "differs",
                "At equal false negatives (1 % at a gap of 2,000), models not counted, the "
                "paper's rule needs more counters than a plain stable filter; the optimal plan "
                "needs fewer.",
            ),
        ],
        draw,
    )


def row(name: str, insertions: Any, fpr: Any, bits: Any) -> dict[str, Any]:
    return {"filter": name, "insertions": insertions, "fpr": fpr, "bits for the rate": bits}


def storage(own: Any, count: int) -> dict[str, int]:
    """Return the bits of each filter for the default rate; stable ones deny 1 % at the gap."""
    escaping = float((own.stream <= np.quantile(own.aside, 1 - RATE / 2)).mean())
    found = {
        "BF": round(count * math.log2(1 / RATE) / math.log(2)),
        "LBF": round(count * escaping * math.log2(2 / RATE) / math.log(2)),
        "SBF, 1 % denied": stable.size_for(0.01, RATE, GAP).bits,
    }
    for name, method in (("paper", "paper"), ("ours", "optimal")):
        low, high = 2**10, 2**24
        while high - low > high // 16:
            middle = (low + high) // 2
            how: dict[str, Any] = {"bits": middle, "fpr": RATE, "gap": GAP, "groups": 4}
            try:
                plan = tamis.StableLearned.plan(own.held, own.aside, method=method, **how)
                enough = plan.expected_fnr <= 0.01
            except ValueError:
                enough = False
            low, high = (low, middle) if enough else (middle, high)
        found[f"g-SLBF, {name}, 1 % denied"] = high
    found["Windowed, none denied"] = tamis.Windowed(GAP, fpr=RATE).size_in_bits
    return found


def alike(fpr: float, fnr: float) -> int:
    """Return the bits of a stable Bloom filter with these rates, of at least 1e-4 and 1e-3."""
    return stable.size_for(min(max(fnr, 1e-3), 0.99), min(max(fpr, 1e-4), 0.5), GAP).bits


@cache
def overall(quick: bool) -> list[dict[str, Any]]:
    """Measure every filter of every task, by bits."""
    rows = []
    for name in TASKS:
        own = task(name).few(quick)
        for bits in SIZES[name][:3:2] if quick else SIZES[name]:
            for kind in FILTERS:
                ask = made(kind, own, bits)
                fpr, fnr = ("", "") if ask is None else measured(ask, own.stream, own.absent)
                rows.append(
                    {
                        "task": name,
                        "bits": bits,
                        "filter": kind,
                        "fpr": fpr,
                        "fnr": fnr,
                        "bits with model": bits + own.model_bits * ("LBF" in kind),
                        "bits of an SBF as good": alike(fpr, fnr)
                        if ask is not None and "SLBF" in kind
                        else "",
                    }
                )
    return rows


@experiment("streams/figure8", title="FPR and FNR of all filters by bits", data=DATA)
def figure8(quick: bool) -> Evidence:
    """Compare Bloom (with the best k), learned, stable, windowed and stable learned filters."""
    rows = overall(quick)
    stables = ("SBF", "s-SLBF", "g-SLBF, paper", "g-SLBF, ours")
    bounded = {
        f: max(r["fpr"] for r in rows if r["filter"] == f and r["fpr"] != "") for f in stables
    }
    small = [r for r in rows if r["bits"] == SIZES[r["task"]][0] and r["fpr"] != ""]

    def of(name: str, kind: str, column: str, bits: int | None = None) -> float:
        return next(
            (
                float(r[column])
                for r in rows
                if (r["task"], r["filter"]) == (name, kind)
                and r["bits"] == (bits or SIZES[name][0])
                and r[column] != ""
            ),
            math.nan,
        )

    def draw(i: int, axes: Any) -> None:
        name, what = TASKS[i % 3], ("fpr", "fnr")[i // 3]
        curves(
            axes,
            [{**r, what: max(r[what], 1e-5)} for r in rows if r["task"] == name and r[what] != ""],
            x="bits",
            y=what,
            by="filter",
            title=name,
            labels=("bits", f"{what.upper()}, 0 drawn at 10⁻⁵"),
            logx=2,
            logy=True,
            order=FILTERS,
        )

    wins = {
        kind: sum(
            1
            for r in rows
            if r["filter"] == kind
            and r["fpr"] != ""
            and all(
                r["fpr"] <= other["fpr"]
                for other in rows
                if (other["task"], other["bits"]) == (r["task"], r["bits"]) and other["fpr"] != ""
            )
        )
        for kind in FILTERS
    }
    cells = len({(r["task"], r["bits"]) for r in rows})
    denials = ", ".join(
        f"{name} {of(name, 'SBF', 'fnr'):.2f} / {of(name, 'g-SLBF, paper', 'fnr'):.2f}"
        for name in TASKS
    )
    best_denials = ", ".join(f"{name} {of(name, 'g-SLBF, ours', 'fnr'):.2f}" for name in TASKS)
    # One hash is the best number for so few bits per key.
    lengths = (69_106, 738_573, 4_663_677)
    predicted = [
        f"{name} {1 - math.exp(-count / SIZES[name][0]):.3f}"
        for name, count in zip(TASKS, lengths, strict=True)
    ]

    def told(kind: str) -> str:
        return ", ".join(f"{r['task']} {r['fpr']:.2f}" for r in small if r["filter"] == kind)

    return Evidence(
        rows,
        [
            Verdict(
                "With few bits, the rates of BF and LBF are near 100 %",
                "near 100 %",
                "BF " + told("BF") + "; LBF " + told("LBF"),
                f"BF with the best k for the paper's numbers of keys: {', '.join(predicted)}",
                "differs",
                "BF agrees at the paper's lengths, and less so in streams of 24,699 and 46,204 "
                "keys; LBF with the best threshold trusts its classifier when bits are few. "
                f"{STANDS}.",
            ),
            Verdict(
                "The rates of SBF, s-SLBF and g-SLBF are within 5 %",
                "≤ 5 %",
                ", ".join(f"{f} {rate:.1%}" for f, rate in bounded.items() if f != "g-SLBF, ours"),
                f"g-SLBF, ours {bounded['g-SLBF, ours']:.1%}",
                "agrees" if max(bounded.values()) < 0.07 else "differs",
                "Plans come from rows that are not measured; Amazon has 807 absent keys to "
                "query and as many to plan with, so that a rate of 5 % is known to about 0.8 % "
                "there.",
            ),
            Verdict(
                "g-SLBF has the lowest rate in every cell",
                "all",
                f"{wins['g-SLBF, paper']} of {cells} cells",
                f"Windowed: {wins['Windowed']} of {cells}, without false negatives",
                "agrees" if wins["g-SLBF, paper"] == cells else "differs",
                "The rule of section 4 leaves most of the allowed rate unused and so is often "
                "low, at the price of members denied; a window of 2,000 keys is lower where its "
                "bits suffice.",
            ),
            Verdict(
                "False negatives of SBF and g-SLBF are similar",
                "similar",
                f"SBF / g-SLBF with the fewest bits: {denials}",
                f"{best_denials} (g-SLBF, ours); 0 (Windowed)",
                "differs",
                "Eq. 20 gives the most counters to the group with the fewest members, so nearly "
                "all members of Amazon and Attack are denied by it; it has no plan of six "
                "groups there, and fewer were used.",
            ),
            headline(quick),
        ],
        panels(6, draw),
    )


def headline(quick: bool) -> Verdict:
    """Compare the bits of a stable Bloom filter at equal FPR, and at equal FPR and FNR."""
    own = task("Attack").few(quick)

    def share(f: Any, bits: int) -> tuple[float, float, float, int]:
        """Return FPR, FNR, the bits over those of an SBF as good in both, and the bits."""
        fpr, fnr = measured(scored(f), own.stream, own.absent)
        whole = bits + own.model_bits
        return fpr, fnr, whole / alike(fpr, fnr), whole

    fpr, fnr, over, whole = share(by_rule(own, 2**18), 2**18)
    best = min(
        (share(grouped(own, bits, GROUPS, "optimal"), bits) for bits in SIZES["Attack"][:3]),
        key=lambda found: found[2],
    )
    larger = None
    for power in range(10, 29):
        f = tamis.StableBloom(GAP, fpr=RATE, bits=2**power, seed=SEED)
        if measured(plain(f), own.stream, own.absent)[0] <= fpr:
            larger = 2**power
            break
    equal = "more than 2²⁸ bits" if larger is None else f"{whole / larger:.1%} of {larger:,} bits"
    printed = (2**18 + PAPER_MODEL["Attack"]) / 2**24
    return Verdict(
        "On Attack, g-SLBF takes 2.6 % of the bits of an SBF with the same rate",
        f"2.6 %; {printed:.1%} with the model of Attack, not of Amazon",
        f"{equal} at equal rate ({fpr:.4f}); {over:.0%} at equal rate and denials ({fnr:.2f})",
        f"{best[2]:.0%} of an SBF as good in both ({best[3]:,} bits with the model, FPR "
        f"{best[0]:.3f}, FNR {best[1]:.4f})",
        "differs",
        "At equal rate alone the comparison says little: an SBF planned for 5 % has a lower "
        "rate only while it is not yet full, and g-SLBF buys its low rate with denied members.",
    )
