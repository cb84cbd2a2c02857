"""The stacked plan of the published scripts: a distribution from an integer division.

The scripts divide the count of each known negative by the total number of queries, in integers.
Every count is below the total, so every quotient is 0. To an optimizer, negatives that are never
queried are not worth a layer. We do not run their program here: the check runs our planner on both
distributions, and measures what it returns.
"""

from __future__ import annotations

import numpy as np
from experiments.arena import grounds
from experiments.evidence import Evidence, Verdict, experiment

import tamis

BUDGET = 10
SEED = 1


@experiment(
    "arena/published_stack",
    title="A stack planned from an integer division",
    data=grounds.DATA,
)
def published_stack(quick: bool) -> Evidence:
    """Plan Bloom layers from counts divided in integers and in doubles, and measure both."""
    rows = []
    for name in grounds.MAKERS:
        stream = grounds.stream(name, "zipf15", quick)
        ground, seen = stream.ground, stream.history
        counts = np.asarray(seen.counts, np.int64)
        for division, shares in (
            ("integers", counts // counts.sum()),
            ("doubles", counts / counts.sum()),
        ):
            # Of the queries, a stored negative stands for its share; the rest is for other keys.
            known = float(shares.sum()) * (1 - seen.unseen)
            workload = tamis.Workload.from_counts(seen.values, counts, unseen=1 - known)
            plan = tamis.plan(
                ground.members, workload, bits_per_key=BUDGET, layer="bloom", last="alternating"
            )
            wrong = plan.build(ground.keys, seed=SEED).contains(ground.take(ground.others))
            rows.append(
                {
                    "data": name,
                    "division": division,
                    "sum_of_shares": float(f"{shares.sum():.4g}"),
                    "layers": len(plan.layers),
                    "bits_per_key": round(plan.bits_per_key, 3),
                    "predicted": float(f"{plan.expected_fpr:.4g}"),
                    "rate": float(f"{stream.counts[wrong].sum() / stream.counts.sum():.4g}"),
                    "rate_of_rows": float(f"{wrong.mean():.4g}"),
                }
            )
    integers, doubles = (
        [row for row in rows if row["division"] == name] for name in ("integers", "doubles")
    )
    gain = [a["predicted"] / b["predicted"] for a, b in zip(integers, doubles, strict=True)]
    one = {row["layers"] for row in integers} == {1}
    many = sorted(row["layers"] for row in doubles)
    verdict = Verdict(
        "The stacked filter of the comparison has layers for the negatives of the first quarter.",
        "stacked",
        f"shares in integers sum to {max(row['sum_of_shares'] for row in integers):g}: "
        f"{'one layer' if one else 'several layers'} on every set",
        f"shares in doubles: {many[0]} to {many[-1]} layers, predicted rates "
        f"{min(gain):.0f} to {max(gain):.0f}× lower (Zipf 1.5, {BUDGET} bits per key)",
        "differs",
        "As we read the published scripts, they divide each count by the total in integers, which "
        "gives 0; any planner then sees no frequent negatives, and its best stack is a plain Bloom "
        "filter. If so, the published figures of the stacked filter are those of one layer. The "
        "slip is easily made and repaired, and says nothing about that paper's other filters.",
    )
    return Evidence(rows, [verdict])
