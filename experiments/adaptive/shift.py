"""An adaptive stack under a changing workload: Figure 6 of Deeds, Hentschel, Idreos 2021.

    .venv/bin/python experiments/adaptive/shift.py [--quick] [--bits 10] [--plot shift.png]

Zipf's law with exponent 1; in the second half of the queries the ranks are reversed. 10^6 keys and
10^8 negatives, of which the more frequent half gives the shape, 10 bits per key and 10^7 queries
per phase, as in the paper; ``--quick`` uses a hundredth of each. Cost is counted in wasted reads:
nearly all of the time in the paper is that of its SSD.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import tamis
from tamis.stores import Hashes

SEED = 1
BATCH = 1000
WINDOWS = 20
"""Per phase."""


def run(f, remote, queries):
    """Query in batches, adapting after each; return false positives and state of each batch."""
    wrong, states = np.zeros(len(queries) // BATCH, int), []
    for i in range(len(wrong)):
        part = queries[i * BATCH : (i + 1) * BATCH]
        accepted = part[f.contains(part)]
        wrong[i] = len(accepted)
        if isinstance(f, tamis.AdaptiveStacked):
            f.adapt_many(accepted, remote)
            states.append((f.rebuilds, len(f.layers)))
    return wrong, states


def filters(keys, universe, lifetime, bits):
    """Yield the filters by name; the static stack knows the frequent keys of the first phase."""
    shape = tamis.Workload.zipf(1.0, universe, universe // 2)
    common = {"bits_per_key": bits, "seed": SEED}
    yield "Bloom", tamis.Bloom.build(keys, layout="standard", **common)
    for layer in ("bloom", "quotient"):
        yield (
            f"adaptive, {layer}, lifetime",
            tamis.AdaptiveStacked.build(
                keys, shape, sizing="lifetime", lifetime=lifetime, layer=layer, **common
            ),
        )
    yield (
        "adaptive, quotient, eventual",
        tamis.AdaptiveStacked.build(keys, shape, layer="quotient", **common),
    )
    plan = tamis.plan(
        len(keys), shape, bits_per_key=bits, layer="bloom", last="alternating", updates=True
    )
    known = tamis.traces.ranked(range(plan.negatives), seed=SEED)
    yield "stacked, Bloom, of phase 1", plan.build(keys, negatives=known, seed=SEED)


def phases(f, wrong, states, per_phase):
    """Print when layers were added and dropped, with the rate in between."""
    since = 0
    for i, state in enumerate(states[1:], 1):
        if state != states[i - 1] or i == len(states) - 1:
            rebuilds, layers = states[i - 1]
            rate = wrong[since:i].mean() / BATCH
            print(
                f"    {since * BATCH:>11,} to {i * BATCH:>11,}: {layers} layers, "
                f"rate {rate:.5f}{'' if rebuilds == 0 else f' (rebuilt {rebuilds})'}"
            )
            since = i
    print(f"    expected now {f.expected_fpr:.5f}; planned mean {f.plan.mean_fpr:.5f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--bits", type=float, default=10.0)
    parser.add_argument("--plot", help="file for a plot of the rates over time")
    arguments = parser.parse_args()
    scale = 100 if arguments.quick else 1
    n, universe, per_phase = 10**6 // scale, 10**8 // scale, 10**7 // scale
    keys = tamis.traces.ranked(range(universe, universe + n), seed=SEED)
    queries = tamis.traces.phase_shift(2 * per_phase, universe=universe, seed=SEED)
    remote = Hashes(keys, seed=SEED)
    print(f"{n:,} keys, {universe:,} negatives, {per_phase:,} queries per phase\n")
    print(f"{'':30}{'bits/key':>9}{'phase 1':>10}{'last 5 %':>10}{'phase 2':>10}{'last 5 %':>10}")
    bloom, curves = None, {}
    for name, f in filters(keys, universe, per_phase, arguments.bits):
        start = time.perf_counter()
        wrong, states = run(f, remote, queries)
        seconds = time.perf_counter() - start
        assert f.contains(keys).all()
        rates = []
        for phase in np.split(wrong, 2):
            rates += [phase.mean() / BATCH, phase[-len(phase) // WINDOWS :].mean() / BATCH]
        total = wrong.sum()
        bloom = total if bloom is None else bloom
        cells = "".join(f"{rate:10.5f}" for rate in rates)
        print(
            f"{name:30}{f.bits_per_key:9.2f}{cells}   {bloom / total:.2f} times fewer wasted reads "
            f"than Bloom; {1e9 * seconds / len(queries):.0f} ns per query",
            flush=True,
        )
        if states:
            phases(f, wrong, states, per_phase)
        curves[name] = wrong.reshape(2 * WINDOWS, -1).mean(axis=1) / BATCH
    if arguments.plot:
        plot(curves, per_phase, arguments.plot)


def plot(curves, per_phase, path):
    """Plot the rates over time."""
    from matplotlib import pyplot

    ax = pyplot.subplots()[1]
    for name, rates in curves.items():
        ax.plot(np.arange(1, len(rates) + 1) * per_phase / WINDOWS, rates, label=name)
    ax.axvline(per_phase, linestyle=":", color="grey")
    ax.set(xlabel="queries", ylabel="false-positive rate", yscale="log")
    ax.legend()
    ax.figure.savefig(path)


if __name__ == "__main__":
    main()
