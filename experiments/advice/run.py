"""The first choice of an advice against all choices measured, on ten real workloads.

    .venv/bin/python experiments/advice/run.py [--quick] [--full] [NAME ...]

The advice gets a sample of the queries; every choice is then built and measured on later queries by
the cost of a query: the time of the filter plus its wasted reads. Target: on nine of the ten
workloads, the first choice is the best as measured, or within 10 % of it.
"""

import argparse
import time
from dataclasses import replace

import workloads

import tamis
from tamis.planning.formats import format_duration

WITHIN = 1.10
TARGET = 9
SEEDS = 3


def advise(case: workloads.Case, needs: frozenset[str]) -> tamis.Advice:
    keys = case.keys if not isinstance(case.keys, int) else None
    workload = None
    if not isinstance(case.keys, dict):
        workload = tamis.Workload.from_queries(case.sample, keys=keys)
    return tamis.advise(
        case.keys,
        workload,
        bits_per_key=case.bits_per_key,
        miss_cost=case.miss_cost,
        needs=needs,
        log=case.sample,
        **case.wishes,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only workloads with one of these in their name")
    parser.add_argument("--quick", action="store_true", help="use only a part of each workload")
    parser.add_argument(
        "--full", action="store_true", help="print each advice and what it measured"
    )
    options = parser.parse_args()
    rows, good = [], 0
    for case in workloads.cases(options.quick):
        if options.names and not any(name in case.name for name in options.names):
            continue
        start = time.perf_counter()
        advice = advise(case, case.needs)
        seconds = time.perf_counter() - start
        if "adversary" in case.needs:  # also measure what was ruled out for it
            others = advise(case, case.needs - {"adversary"}).choices
            own = {each.name for each in advice.choices}
            others = tuple(each for each in others if each.name not in own)
            advice = replace(advice, choices=advice.choices + others)
        before = case.sample if "stream" in case.needs else case.keys
        advice = advice.measure(before, case.asked, seeds=SEEDS)
        best = min(advice.choices, key=lambda each: each.measured_cost)
        first = advice.best
        ratio = first.measured_cost / best.measured_cost
        good += ratio <= WITHIN
        rows.append(
            f"{case.name:<26} {first.name:<26} {format_duration(first.cost):>9} "
            f"{format_duration(first.measured_cost):>9}  "
            f"{best.name:<26} {format_duration(best.measured_cost):>9} "
            f"{ratio:>6.2f} {len(advice.choices):>4} {seconds:>6.1f} s"
        )
        if options.full:
            print(f"\n{case.name}\n{advice}\n", flush=True)
        else:
            print(rows[-1], flush=True)
    print(
        f"\n{'workload':<26} {'advised first':<26} {'predicted':>9} {'measured':>9}  "
        f"{'measured best':<26} {'measured':>9} {'ratio':>6} {'of':>4} {'advice':>8}"
    )
    print("\n".join(rows))
    verdict = "met" if good >= min(TARGET, len(rows)) else "MISSED"
    print(
        f"\n{good} of {len(rows)} within {WITHIN - 1:.0%} of the best; "
        f"target: {TARGET} of 10 ({verdict})"
    )


if __name__ == "__main__":
    main()
