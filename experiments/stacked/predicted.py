"""What plans predict in the setting of Deeds, Hentschel and Idreos 2021, next to their figures.

    .venv/bin/python experiments/stacked/predicted.py [--quick]

Prints Table 2, Figure 2 (when stacking pays, and the bits it saves), Figure 4 (cuckoo and quotient
layers), the best plans overall, and the time of planning. No filter is built. "above" is by how
many percent a plan's bits exceed the fewest that any filter with its rates takes.
"""

import argparse
import math
import time

import numpy as np

import tamis
from tamis.planning.bloom import bits_per_item
from tamis.planning.stacked import metrics

KEYS, UNIVERSE, SAMPLE = 10**6, 10**8, 5 * 10**7


def zipf(exponent: float) -> tamis.Workload:
    return tamis.Workload.zipf(exponent, UNIVERSE, SAMPLE)


def line(name: str, plan: tamis.Plan, target: str) -> None:
    first = plan.layers[0]
    print(
        f"{name:<28} {plan.expected_fpr:<10.3g}{plan.fpr_bound:<9.3g} {plan.bits_per_key:<7.3f}"
        f"{plan.bits_per_key / plan.lower_bound - 1:<7.1%}"
        f"{len(plan.layers):>2} {first.kind:<9} {plan.negatives:>11,}  {target}"
    )


def plans() -> None:
    print(f"{KEYS:,} keys, {UNIVERSE:,} negatives, the more frequent half known, 10 bits per key")
    print(
        "plan                         rate      bound     bits   above  layers         negatives"
        "  target"
    )
    for exponent, targets in (
        (
            1.0,
            ("Table 2: 0.00172; target <= 0.00175", "lower", "Table 2: 0.00184", "", "<= 4.2e-5"),
        ),
        (0.75, ("0.0057", "lower", "", "", "<= 1.85e-4")),
    ):
        w = zipf(exponent)
        for name, wishes, target in zip(
            ("Bloom, equal", "Bloom, varied", "cuckoo", "quotient", "auto"),
            (
                {"layer": "bloom", "last": "alternating", "rates": "equal"},
                {"layer": "bloom", "last": "alternating"},
                {"layer": "cuckoo", "last": "alternating"},
                {"layer": "quotient", "last": "alternating"},
                {},
            ),
            targets,
            strict=True,
        ):
            line(f"Zipf {exponent}, {name}", tamis.plan(KEYS, w, bits_per_key=10, **wishes), target)
        line(
            f"Zipf {exponent}, exact last layer",
            tamis.plan(KEYS, w, bits_per_key=10, last="exact"),
            "",
        )


def figure_2() -> None:
    print("\nFigure 2: the largest |N_f|/|P| for which a stack surely takes fewer bits (Theorem 3)")
    shares = (0.02, 0.05, 0.1, 0.25, 0.5, 0.9)
    print("rate    " + "".join(f"psi={psi:<8}" for psi in shares))
    for rate in (0.05, 0.03, 0.01, 0.001):
        found = [metrics.most_negatives(rate, psi) for psi in shares]
        print(f"{rate:<8}" + "".join(f"{max(n, 0):<12.2f}" for n in found))
    print("\nand the bits per key that Bloom stacks of equal rates save at a rate of 0.01")
    for ratio in (0.1, 1.0, 10.0):
        saved = [metrics.space_saving(0.01, psi, ratio, bits_per_item) for psi in shares]
        print(f"|N_f|/|P| = {ratio:<5}" + "".join(f"{bits:<10.2f}" for bits in saved))


def figure_4(quick: bool) -> None:
    print("\nFigure 4: rates of plain and stacked filters at 10 bits per key, by the skew")
    kinds = ("bloom", "cuckoo", "quotient", "fuse", "ribbon")
    print("Zipf    " + "".join(f"{kind:<24}" for kind in kinds))
    rows = [("plain", None)] + [(f"{s:g}", zipf(s)) for s in (0.5, 0.75, 1.0, 1.25)]
    for name, w in rows[: 3 if quick else None]:
        cells = []
        for kind in kinds:
            plan = tamis.plan(
                KEYS, w, bits_per_key=10, layer=kind, last="alternating", rates="equal"
            )
            cells.append(f"{plan.expected_fpr:<10.3g}{len(plan.layers)} layers".ljust(24))
        print(f"{name:<8}" + "".join(cells))


def times(quick: bool) -> None:
    known = SAMPLE if not quick else 10**6
    counts = np.maximum(1, 1e9 / np.arange(1, known + 1)).astype(np.int64)
    w = tamis.Workload.from_shape(counts, unseen=0.0365)
    print(f"\nplanning, with the curve of {known:,} counts prebuilt: CPU ms, minimum of 5")
    for name, target, wishes in (
        ("Bloom, equal", 50, {"layer": "bloom", "last": "alternating", "rates": "equal"}),
        ("exact, ribbon", 50, {"layer": "ribbon", "last": "exact"}),
        ("Bloom, varied", 1000, {"layer": "bloom", "last": "alternating"}),
        ("cuckoo", 1000, {"layer": "cuckoo", "last": "alternating"}),
        ("quotient", 1000, {"layer": "quotient", "last": "alternating"}),
        ("auto", 1000, {}),
    ):
        for goal in ({"bits_per_key": 10}, {"fpr": 0.001}):
            took = math.inf
            for _ in range(5):
                start = time.process_time()
                tamis.plan(KEYS, w, **goal, **wishes)
                took = min(took, time.process_time() - start)
            description = ", ".join(f"{key}={value}" for key, value in goal.items())
            print(f"{name:<16} {description:<18} {1000 * took:8.1f}  (target: under {target})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    plans()
    figure_2()
    figure_4(quick)
    times(quick)


if __name__ == "__main__":
    main()
