"""Figures 4 to 10 of the earlier version of the paper (Deeds, Hentschel, Idreos 2020).

β = |P|/(|P| + |N_k|) is the share of the keys among keys and known negatives; ψ the share of the
queries that are for known negatives. Known negatives are equally frequent.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from experiments.evidence import Evidence, Verdict, experiment
from experiments.stacked.setting import (
    COLOURS,
    FIRST_NEGATIVE,
    METHODS,
    show,
    times,
    uniform,
    unseen,
)
from scipy.optimize import brentq

import tamis
from tamis.planning.bloom import bits_per_item
from tamis.planning.stacked import predictions

KEYS = {True: 20_000, False: 200_000}
"""Keys of the stacks that are built, in a quick run and otherwise."""
LAYERS = {1: "tab:blue", 3: "tab:green", 5: "tab:orange", 7: "tab:red"}
"""The numbers of layers, and their colours."""
PLANNED = 10_000
"""Keys of the plans of the maps; bits per key hardly depend on their number."""


def solution_space(bits: float, quick: bool) -> list[dict[str, Any]]:
    """Plan Bloom stacks, and exact stacks, for all shares; compare each with its plain filter."""
    shares = np.linspace(0.1, 0.9, 5 if quick else 9).round(2)
    plain = {
        kind: tamis.plan(PLANNED, bits_per_key=bits, layer=kind).expected_fpr
        for kind in ("bloom", "ribbon")
    }
    rows = []
    for beta, psi in itertools.product(map(float, shares), map(float, shares)):
        asked = uniform(round(PLANNED * (1 - beta) / beta), psi)
        stacked, best = (
            tamis.plan(PLANNED, asked, bits_per_key=bits, **METHODS[method])
            for method in ("stacked Bloom, varied", "best plan")
        )
        rows.append(
            {
                "bits_per_key": bits,
                "beta": beta,
                "psi": psi,
                "stacked_bloom": stacked.expected_fpr,
                "against_bloom": stacked.expected_fpr / plain["bloom"],
                "best_plan": best.expected_fpr,
                "best_against_bloom": best.expected_fpr / plain["bloom"],
                "best_against_ribbon": best.expected_fpr / plain["ribbon"],
            }
        )
    return rows


def map_of(rows: list[dict[str, Any]]) -> Callable[[Any], None]:
    """Return what draws which filter is better, by β and ψ."""

    def draw(figure: Any) -> None:
        figure.set_size_inches(9, 4)
        axes = figure.subplots(1, 2, sharey=True)
        betas, psis = (sorted({row[name] for row in rows}) for name in ("beta", "psi"))
        for panel, column, title in (
            (axes[0], "against_bloom", "Bloom stack / Bloom"),
            (axes[1], "best_against_ribbon", "best plan / plain ribbon"),
        ):
            grid = np.array([row[column] for row in rows]).reshape(len(betas), len(psis))
            image = panel.pcolormesh(psis, betas, np.log10(grid), cmap="RdBu_r", vmin=-1, vmax=1)
            for row in rows if len(betas) < 6 else rows[::2]:
                panel.text(
                    row["psi"],
                    row["beta"],
                    f"{row[column]:.2g}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if row[column] < 0.25 else "black",
                )
            panel.set(xlabel="ψ, queries for known negatives", title=title)
        axes[0].set_ylabel("β, keys among keys and known negatives")
        bar = figure.colorbar(image, ax=axes, label="ratio of rates")
        bar.set_ticks([-1, 0, 1], labels=["0.1: stack better", "1", "10: plain better"])

    return draw


def better(bits: float, quick: bool) -> Evidence:
    """Return the map of one size and its verdict."""
    rows = solution_space(bits, quick)
    half = next(row for row in rows if row["beta"] == row["psi"] == 0.5)
    won = np.mean([row["against_bloom"] < 0.999 for row in rows])
    best = np.mean([row["best_against_ribbon"] < 0.999 for row in rows])
    return Evidence(
        rows,
        [
            Verdict(
                f"At {bits:g} bits per key, a stack always wins if as many known negatives as keys "
                "have half of the "
                "queries (β = ψ = 0.5).",
                "always",
                f"{half['against_bloom']:.2f} of Bloom's rate; wins {won:.0%} of the map",
                f"{half['best_against_ribbon']:.2f} of a ribbon's, "
                f"{show(half['best_against_bloom'])} of Bloom's; "
                f"wins {best:.0%}",
                "goes further" if half["against_bloom"] < 1 else "differs",
                "Both are predictions of plans in whole bits; where a stack does not pay, the plan "
                "is a plain filter.",
            )
        ],
        map_of(rows),
    )


@experiment("stacked/early_figure4", title="Earlier version, Figure 4: 6 bits per key")
def early_figure4(quick: bool) -> Evidence:
    """Map the solutions at 6 bits per key."""
    return better(6, quick)


@experiment("stacked/early_figure5", title="Earlier version, Figure 5: 9 bits per key")
def early_figure5(quick: bool) -> Evidence:
    """Map the solutions at 9 bits per key."""
    return better(9, quick)


@experiment("stacked/early_figure6", title="Earlier version, Figure 6: 12 bits per key")
def early_figure6(quick: bool) -> Evidence:
    """Map the solutions at 12 bits per key."""
    return better(12, quick)


def equal_layers(bits: float, layers: int, ratio: float, psi: float) -> list[float]:
    """Return the rates of Bloom layers that fit; all bits in the first layer if that is better."""
    ideal = math.exp(-bits * math.log(2) ** 2)  # with a fraction of a hash function
    one = float(brentq(lambda rate: float(bits_per_item(np.asarray(rate))) - bits, ideal / 2, 0.9))
    rates = np.geomspace(one, 0.5, 400)
    sizes = bits_per_item(rates) * predictions.equal_size(rates, layers, ratio)
    if layers > 1 and (sizes <= bits).any():
        low = int(np.argmax(sizes <= bits))
        rate = rates[low]
        if low:

            def excess(each: float) -> float:
                size = bits_per_item(np.asarray(each)) * predictions.equal_size(each, layers, ratio)
                return float(size - bits)

            rate = brentq(excess, rates[low - 1], rates[low])
        if predictions.equal_rate(rate, layers, psi) < one:
            return [float(rate)] * layers
    return [one]


class Layers:
    """Algorithms 1 and 2 of the paper in a few lines, to count what they look up."""

    def __init__(self, keys: Any, known: Any, rates: list[float]) -> None:
        """Build layers of these rates, of keys and known negatives in turn."""
        self.layers: list[tamis.Bloom] = []
        for i, rate in enumerate(rates):
            stored, other = (keys, known) if i % 2 == 0 else (known, keys)
            layer = tamis.Bloom.build(stored, fpr=rate, layout="standard", seed=i)
            self.layers.append(layer)
            other = other[layer.contains(other)]
            keys, known = (keys, other) if i % 2 == 0 else (other, known)

    def ask(self, queries: Any) -> tuple[float, float]:
        """Return the share of queries that are accepted, and the mean number of lookups."""
        lookups, accepted, left = 0, 0, queries
        for i, layer in enumerate(self.layers):
            lookups += len(left)
            passed = layer.contains(left)
            accepted += 0 if i % 2 == 0 else int(np.count_nonzero(~passed))
            left = left[passed]
        return (accepted + len(left)) / len(queries), lookups / len(queries)


@functools.cache
def by_size(beta: float, psi: float, quick: bool) -> list[dict[str, Any]]:
    """Build stacks of 1 to 7 layers by size; measure their rates and count their lookups."""
    n = KEYS[quick]
    ratio = (1 - beta) / beta
    keys, known = np.arange(n), FIRST_NEGATIVE + np.arange(round(n * ratio))
    strangers = unseen(10 * n)
    rows = []
    for bits, count in itertools.product(map(float, range(4, 17, 4 if quick else 1)), (1, 3, 5, 7)):
        rates = equal_layers(bits, count, ratio, psi)
        stack = Layers(keys, known, rates)
        of_known, of_others = stack.ask(known), stack.ask(strangers)
        answered, of_keys = stack.ask(keys)
        assert answered == 1
        predicted = predictions.checks(rates)
        made = tamis.plan(n, uniform(len(known), psi), bits_per_key=bits)
        rows.append(
            {
                "bits_per_key": bits,
                "layers": count,
                "layers_used": len(rates),
                "predicted": predictions.expected_rate(rates, psi),
                "measured": psi * of_known[0] + (1 - psi) * of_others[0],
                "key_lookups": of_keys,
                "key_lookups_predicted": predicted.keys,
                "negative_lookups": psi * of_known[1] + (1 - psi) * of_others[1],
                "negative_lookups_predicted": psi * predicted.frequent
                + (1 - psi) * predicted.infrequent,
                "best_plan": made.expected_fpr,
                "best_key_lookups": made.checks.keys,
                "best_negative_lookups": made.expected_checks,
            }
        )
    return rows


def diverging(psi: float, quick: bool) -> Evidence:
    """Return rates by size at β = 0.1."""
    rows = by_size(0.1, psi, quick)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for count, colour in LAYERS.items():
            part = [row for row in rows if row["layers"] == count]
            name = "standard" if count == 1 else f"{count} layers"
            axes.plot(
                [row["bits_per_key"] for row in part],
                [row["measured"] for row in part],
                color=colour,
                marker=".",
                label=name,
                linewidth=8 / (count + 1),
            )
        axes.plot(
            [row["bits_per_key"] for row in part],
            [row["best_plan"] for row in part],
            color=COLOURS["best plan"],
            linestyle="--",
            label="best plan (predicted)",
        )
        axes.set(
            xlabel="bits per key",
            ylabel="false-positive rate",
            yscale="log",
            title=f"β = 0.1, ψ = {psi:g}",
        )
        axes.legend(fontsize=8)

    def at(bits: float, layers: int, column: str = "measured") -> float:
        return next(r[column] for r in rows if r["bits_per_key"] == bits and r["layers"] == layers)

    gain = [at(bits, 1) / at(bits, 7) for bits in (4.0, 8.0, 16.0)]
    best = [at(bits, 1) / at(bits, 7, "best_plan") for bits in (4.0, 8.0, 16.0)]
    return Evidence(
        rows,
        [
            Verdict(
                f"The rates of stacked and standard filters diverge with size; ψ = {psi:g} limits "
                "by how much.",
                "curves, no number",
                " / ".join(times(each) for each in gain) + " at 4 / 8 / 16 bits",
                " / ".join(times(each) for each in best),
                "goes further" if gain[0] < gain[-1] else "differs",
                f"Built and measured for {KEYS[quick]:,} keys and nine known negatives each: with "
                "few bits they all go to "
                f"the first layer, and the gain tends to 1/(1 − ψ) = {1 / (1 - psi):.0f}; that of "
                "the best plan is mostly "
                "its ribbon layer's.",
            )
        ],
        draw,
    )


@experiment("stacked/early_figure7", title="Earlier version, Figure 7: β = 0.1, ψ = 0.5")
def early_figure7(quick: bool) -> Evidence:
    """Half of the queries are for known negatives."""
    return diverging(0.5, quick)


@experiment("stacked/early_figure8", title="Earlier version, Figure 8: β = 0.1, ψ = 0.9")
def early_figure8(quick: bool) -> Evidence:
    """Most queries are for known negatives."""
    return diverging(0.9, quick)


def lookups(layers: int, quick: bool) -> Evidence:
    """Return the lookups of a stack by size, at β = 0.5 and ψ = 0.9."""
    rows = [row for row in by_size(0.5, 0.9, quick) if row["layers"] == layers]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        x = [row["bits_per_key"] for row in rows]
        for column, colour, label in (
            ("key_lookups", "tab:blue", "a key"),
            ("negative_lookups", "tab:orange", "a negative"),
        ):
            axes.plot(
                x,
                [row[column] for row in rows],
                color=colour,
                marker="o",
                label=f"{label}, counted",
            )
            axes.plot(
                x,
                [row[f"{column}_predicted"] for row in rows],
                color=colour,
                linestyle=":",
                label=f"{label}, predicted",
            )
            axes.plot(
                x,
                [row[f"best_{column}"] for row in rows],
                color=colour,
                linestyle="--",
                alpha=0.5,
                label=f"{label}, best plan",
            )
        axes.axhline(1, color="grey", linewidth=0.8, label="standard filter")
        axes.set(
            xlabel="bits per key",
            ylabel="lookups of layers per query",
            title=f"{layers} layers, β = 0.5, ψ = 0.9",
        )
        axes.legend(fontsize=8)

    last = rows[-1]
    return Evidence(
        rows,
        [
            Verdict(
                f"With {layers} layers and more bits, a negative needs one lookup, and a key two.",
                "1 and 2",
                f"{last['negative_lookups']:.3f} and {last['key_lookups']:.3f} at 16 bits",
                f"{last['best_negative_lookups']:.3f} and {last['best_key_lookups']:.3f}",
                "agrees"
                if last["negative_lookups"] < 1.05 and abs(last["key_lookups"] - 2) < 0.05
                else "differs",
                f"Lookups of layers counted on {KEYS[quick]:,} keys by a direct version of the "
                "paper's algorithms, as predicted.",
            )
        ],
        draw,
    )


@experiment("stacked/early_figure9", title="Earlier version, Figure 9: lookups of 5 layers")
def early_figure9(quick: bool) -> Evidence:
    """Count the lookups of five layers."""
    return lookups(5, quick)


@experiment("stacked/early_figure10", title="Earlier version, Figure 10: lookups of 3 layers")
def early_figure10(quick: bool) -> Evidence:
    """Count the lookups of three layers."""
    return lookups(3, quick)
