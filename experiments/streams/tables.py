"""The tasks, their classifiers, and the parameters: Tables 2 to 4."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from experiments.evidence import Evidence, Verdict, experiment
from experiments.streams.overall import STANDS
from experiments.streams.parameters import METHODS
from experiments.streams.settings import (
    COUNTS,
    DATA,
    GAP,
    PAPER_AUC,
    PAPER_MODEL,
    RATE,
    RATES,
    SEED,
    SIZES,
    TASKS,
    area,
    how,
    planned,
    rows,
    split,
    task,
)

from experiments import data
from tamis.learned import train


@experiment("streams/table2", title="The data sets", data=(*DATA, "amazon_access_test"))
def table2(quick: bool) -> Evidence:
    """Count the rows of each task, here and in the paper."""
    paper = {"Amazon": (91_690, 86_382, 5308), "Attack": (2_278_689, 923_216, 1_355_473)}
    found = []
    for name in ("Amazon", "Attack"):
        members, others = rows(name)
        found.append(counted(name, paper[name], len(members), len(others)))
    own = task("Higgs")
    tenth = len(own.held), len(own.aside)
    found.append(
        counted(
            "Higgs",
            (11_000_000, 5_829_597, 5_170_403),
            len(own.stream) + tenth[0],
            len(own.absent) + tenth[1],
        )
    )
    amazon = found[0]
    both = amazon["rows"] + data.table("amazon_access_test").num_rows
    scaled = both * amazon["absent"] / amazon["rows"]
    return Evidence(
        found,
        [
            Verdict(
                "Amazon has 91,690 rows, 86,382 of them positive and 5,308 negative",
                "5,308 negatives",
                f"{amazon['absent']:,} negatives of {amazon['rows']:,} rows",
                f"{both:,} rows of both files at the same share would have {scaled:,.1f} negatives",
                "differs",
                "Only the training file has labels; the paper's numbers are those of both files "
                "together, with exactly the training file's share of negatives, though the "
                "test file, as it is here, has no labels.",
            ),
            Verdict(
                "Attack has 2,278,689 rows, Higgs 11,000,000",
                "2,278,689; 11,000,000",
                f"{found[1]['rows']:,} (KDD 99, de-duplicated); {found[2]['rows']:,} scores drawn",
                "–",
                "differs",
                f"Neither can be had here. {STANDS}: the filters see only identifiers and "
                "scores, so AUC, balance and the length of the stream make them comparable.",
            ),
        ],
    )


def counted(name: str, paper: tuple[int, int, int], members: int, absent: int) -> dict[str, Any]:
    return {
        "task": name,
        "rows in the paper": paper[0],
        "members in the paper": paper[1],
        "absent in the paper": paper[2],
        "rows": members + absent,
        "members": members,
        "absent": absent,
    }


@experiment("streams/table3", title="The classifiers", data=DATA)
def table3(quick: bool) -> Evidence:
    """Train boosted trees of both libraries on a fifth of each task, and score the rest."""
    paper = {"Amazon": (0.27, 9e6), "Attack": (3.49, 11e6)}
    found = []
    settings = (
        ("Amazon", "Amazon", 1),
        ("Amazon, trained on 80 %", "Amazon", 4),
        ("Attack", "Attack", 1),
        ("Attack, all features", "Attack", 1),
    )
    for title, name, fifths in settings:
        members, others = rows(name, every=title.endswith("features"))
        rng = np.random.default_rng(SEED)
        trained, members = split(members, fifths * len(members) // 5, rng)
        strangers, others = split(others, fifths * len(others) // 5, rng)
        for library in ("lightgbm", "catboost"):
            try:
                begin = time.process_time()
                model = train(
                    trained, strangers, library=library, **how(name, members.column_names)
                )
            except ImportError:
                continue
            seconds = time.process_time() - begin
            begin = time.process_time()
            inside = model.scores(members)
            speed = len(members) / (time.process_time() - begin)
            found.append(
                {
                    "task": title,
                    "library": library,
                    "training s": round(seconds, 2),
                    "training s in the paper": paper[name][0],
                    "AUC": round(area(inside, model.scores(others)), 4),
                    "AUC in the paper": PAPER_AUC[name],
                    "scores per second": round(speed),
                    "scores per second in the paper": paper[name][1],
                    "Kbit": model.size_in_bits // 1000,
                    "Kbit in the paper": PAPER_MODEL[name] // 1000,
                }
            )

    def told(name: str, column: str) -> str:
        return " and ".join(f"{r[column]:g}" for r in found if r["task"] == name)

    fastest = max(r["scores per second"] for r in found)
    return Evidence(
        found,
        [
            Verdict(
                "A classifier of 173 Kbit has an AUC of 0.87 on Amazon",
                "0.87, 173 Kbit",
                f"{told('Amazon', 'AUC')}, {told('Amazon', 'Kbit')} Kbit",
                f"{told('Amazon, trained on 80 %', 'AUC')} if trained on four fifths",
                "differs",
                "Trained on a fifth of the labelled file, as the paper says, and scored on rows "
                "that it has not seen; the paper's row numbers are 2.8 times those of the "
                "labelled file (Table 2).",
            ),
            Verdict(
                "Boosted trees reach an AUC of 0.91 on Attack",
                "0.91, 328 Kbit",
                f"{told('Attack', 'AUC')}, {told('Attack', 'Kbit')} Kbit (two features)",
                f"{told('Attack, all features', 'AUC')} (all 41 features)",
                "agrees",
                "KDD 99 is far easier than Kitsune's capture; with the duration and the bytes "
                "received alone it is about as hard, and these are used as the stand-in.",
            ),
            Verdict(
                "Boosted trees score about ten million keys per second",
                "9 to 11 million",
                f"{min(r['scores per second'] for r in found) / 1e6:.1f} million and more",
                f"{fastest / 1e6:.1f} million",
                "agrees" if fastest > 5e6 else "differs",
                "One thread on a shared machine, tables converted from Arrow included.",
            ),
        ],
    )


@experiment("streams/table4", title="The parameters, and which of them can be planned", data=DATA)
def table4(quick: bool) -> Evidence:
    """Plan every combination of rate, groups and bits of Table 4 by both rules."""
    found = []
    for name in TASKS:
        sizes = SIZES[name]
        for bits in sizes[:2] if quick else sizes:
            for groups in COUNTS[::2] if quick else COUNTS:
                for rate in (RATE,) if quick else RATES:
                    plans = {
                        label: planned(name, bits, groups, method, rate, GAP)
                        for label, method in METHODS.items()
                        # Planning for every rate takes seconds a plan; the paper's rule is quick.
                        if label == "paper" or rate == RATE
                    }
                    each: dict[str, Any] = {
                        "task": name,
                        "bits": bits,
                        "groups": groups,
                        "rate": rate,
                    }
                    for label in METHODS:
                        plan = plans.get(label)
                        each[f"FPR, {label}"] = "" if plan is None else plan.expected_fpr
                        each[f"FNR, {label}"] = "" if plan is None else plan.expected_fnr
                    found.append(each)
    default = [r for r in found if r["rate"] == RATE]
    possible = sum(1 for r in found if r["FNR, paper"] != "")
    ours = sum(1 for r in default if r["FNR, ours"] != "")
    worse = [r for r in default if r["FNR, paper"] != "" and r["FNR, ours"] != ""]
    fewer = sum(1 for r in worse if r["FNR, ours"] <= r["FNR, paper"] + 1e-6)
    share = np.mean([r["FPR, paper"] / r["rate"] for r in found if r["FNR, paper"] != ""])
    return Evidence(
        found,
        [
            Verdict(
                "ε from 0.5 to 20 %, g from 2 to 10, B from 2¹⁴ to 2²⁸ set up a filter (section 4)",
                "all",
                f"{possible} of {len(found)} combinations have a plan",
                f"{ours} of {len(default)} at the default rate; fewer or as few denied in "
                f"{fewer} of {len(worse)}",
                "differs",
                "By Eq. 20 the group with the most members gets the fewest counters, often "
                "fewer than an insertion decrements; where there is a plan, Eq. 18 uses "
                f"{share:.0%} of the rate allowed on average.",
            )
        ],
    )
