"""`tamis.plan`: the best stack for a workload and a budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, SupportsIndex, TypedDict, get_args

from tamis._checks import (
    MAX_BITS_PER_KEY,
    MAX_KEYS,
    check_int,
    check_number,
    check_workload,
    one_of,
    rate_or_budget,
    shown,
)
from tamis.planning.kinds import KINDS, LAYERS, LayerKind, fingerprint_layer
from tamis.planning.plan import Plan
from tamis.planning.stacked import (
    any_rate,
    exact,
    fractional_lengths,
    integer_lengths,
    predictions,
)
from tamis.planning.stacked.frequencies import Frequencies, Zipf
from tamis.planning.stacked.goal import FLOOR, Goal, Stack
from tamis.planning.stacked.predictions import Checks
from tamis.planning.stacked.realize import realize
from tamis.planning.stacked.sweep import Search, better, sweep

if TYPE_CHECKING:
    from tamis.workload import Workload

Last = Literal["auto", "alternating", "exact"]
Rates = Literal["varied", "equal"]

_NO_NEGATIVES = Zipf(1.0, 1, 0)

_MARGINS = (1.0, 0.999, 0.99, 0.9)
"""Constraints are tightened by these factors in turn until a plan in whole bits meets them. Each
factor is needed by some set of 15 to 200 keys; a factor of a half helped none."""


class PlanOptions(TypedDict, total=False):
    """The arguments of `plan` that do not depend on the keys, for functions that pass them on."""

    layer: LayerKind
    last: Last
    rates: Rates
    max_fpr_bound: float | None
    max_checks: float | None
    updates: bool
    penalties: Sequence[float] | None
    miss_cost: float | None
    check_cost: float | None


def plan(
    n_keys: SupportsIndex,
    workload: Workload | None = None,
    *,
    bits_per_key: float | None = None,
    fpr: float | None = None,
    layer: LayerKind = "auto",
    last: Last = "auto",
    rates: Rates = "varied",
    max_fpr_bound: float | None = None,
    max_checks: float | None = None,
    updates: bool = False,
    penalties: Sequence[float] | None = None,
    miss_cost: float | None = None,
    check_cost: float | None = None,
) -> Plan:
    """Find the filter with the lowest rate within a budget, or the smallest one for a rate.

    ``layer`` is the kind of the layers, and ``last`` how the stack ends (default: the best).
    ``updates`` selects kinds that support insertion. ``rates="equal"`` gives all layers of a Bloom
    stack the same rate, which is faster to plan. ``max_fpr_bound`` limits the rate under any
    workload, ``max_checks`` the mean number of layers that a query passes. With ``penalties`` (per
    layer that a key, a stored negative and another negative pass), or with the cost of a false
    positive (``miss_cost``) and of a query of a Bloom layer (``check_cost``), the cost of a query
    is minimized within the budget. If the values of the workload have costs, the expected cost of
    false positives takes the place of the rate: a query counts in proportion to its cost, also for
    ``fpr``.

    >>> import tamis
    >>> workload = tamis.Workload.zipf(exponent=1.0, universe=10**8, sample=5 * 10**7)
    >>> p = plan(1_000_000, workload, fpr=0.001)
    >>> p.expected_fpr <= 0.001, round(p.bits_per_key, 1), len(p.layers), p.last
    (True, 7.0, 2, 'exact')
    """
    keys = check_int("n_keys", n_keys, MAX_KEYS)
    check_workload(workload)
    goal = _goal(
        keys, workload, bits_per_key, fpr, max_fpr_bound, max_checks, penalties, miss_cost,
        check_cost,
    )  # fmt: skip
    kinds = _kinds(layer, last, rates, updates)
    # If the workload has costs, ψ is a fraction of the cost from here on, and so are rates.
    curve = workload.cost_curve if workload is not None and keys else _NO_NEGATIVES
    allowance = integer_lengths.Allowance()
    for margin in _MARGINS:
        tightened = _tightened(goal, margin)
        found = _candidates(tightened, curve, kinds, last, rates, updates, allowance)
        if not found:
            break
        # Whole bits and items matter in small layers, but searches over rates ignore them. So every
        # stack found is turned into a plan before one is chosen.
        plans = [realize(each, goal) for each in found]
        if kept := [each for each in plans if _meets(each, goal)]:
            return _with_workload(min(kept, key=lambda each: _rank(each, goal)), goal, workload)
    raise ValueError(_impossible(goal, curve, kinds, last, updates))


def _with_workload(plan: Plan, goal: Goal, workload: Workload | None) -> Plan:
    """Return the plan with its workload; if that has costs, with the rate of queries, too."""
    if workload is None or workload.costs is None:
        return replace(plan, workload=workload)
    psi = workload.psi(plan.negatives)
    return replace(
        plan,
        workload=workload,
        psi=psi,
        expected_fpr=plan.rate_at(min(psi, 1.0)),
        expected_checks=goal.mean_checks(psi, plan.checks),
        expected_cost=plan.expected_fpr * workload.mean_cost,
    )


def _candidates(
    goal: Goal,
    curve: Frequencies,
    kinds: list[str],
    last: Last,
    rates: Rates,
    updates: bool,
    allowance: integer_lengths.Allowance,
) -> list[Stack]:
    """Find candidate stacks, one of which is the best when sizes are whole numbers.

    Layers of fingerprints have whole sizes from the start, so only the best stack of them is
    returned.
    """
    best: Stack | None = None
    of_rates: list[Stack] = []
    for kind in kinds:
        one, searches = single_layer(kind, goal), _searches(kind, last, updates, allowance)
        if KINDS[kind].continuous:
            stacks = [sweep(search, goal, curve, tolerance) for search, tolerance in searches]
            of_rates += [stack for stack in (one, *stacks) if stack]
            continue
        if KINDS[kind].fractional:
            # Stacks of whole lengths are compared first; fractions are added to the result.
            start = integer_lengths.search_for(kind)(goal, 0, 0.0, math.inf)
            stacks = [sweep(search, goal, curve, limit, start) for search, limit in searches]
            improved = [fractional_lengths.improve(stack, goal, curve) for stack in stacks if stack]
            for stack in (one, *improved):
                best = better(best, stack, goal)
            continue
        best = better(best, one, goal)
        for search, tolerance in searches:
            best = sweep(search, goal, curve, tolerance, best)
    found = [best, *of_rates] if best else of_rates
    alternating = [stack for stack in of_rates if len(stack.rates) > 1]
    if rates == "varied" and alternating:
        best = min(found, key=goal.score)
        found = found + [
            any_rate.vary_rates(stack, goal, curve)
            for stack in alternating
            if best in alternating or any_rate.worthwhile(stack.kind, goal, curve, best)
        ]
    return found


def _tightened(goal: Goal, margin: float) -> Goal:
    """Leave slack for whole bits and items, which matter in small layers."""
    return replace(
        goal,
        max_fpr_bound=goal.max_fpr_bound * margin,
        max_checks=1 + (goal.max_checks - 1) * margin,
    )


def _meets(plan: Plan, goal: Goal) -> bool:
    """Return whether a plan in whole bits meets every constraint."""
    return bool(goal.allowed(plan.expected_fpr, plan.fpr_bound, plan.psi, plan.checks, plan.bits))


def _rank(plan: Plan, goal: Goal) -> tuple[float, float, int]:
    """Return the sort key of a plan: the objective, then the bound, then the bits."""
    cost = goal.cost(plan.expected_fpr, plan.psi, plan.checks, plan.layers[0].kind)
    return float(goal.objective(plan.bits, cost)), plan.fpr_bound, plan.bits


def single_layer(kind: str, goal: Goal) -> Stack | None:
    """Find the best filter of one layer, or None if none meets the constraints."""
    if KINDS[kind].fractional:
        return _single_fractional_layer(kind, goal)
    if not KINDS[kind].continuous:
        return integer_lengths.search_for(kind)(goal, 0, 0.0, math.inf)
    bits = goal.budget
    if goal.minimizes_bits:
        rate = min(goal.fpr, goal.max_fpr_bound)
        bits = goal.keys * KINDS[kind].bits_per_item(rate)
    else:
        rate = max(KINDS[kind].rate_of_bits(bits / max(goal.keys, 1)), FLOOR)
    checks = predictions.checks([rate])
    if not goal.allowed(rate, rate, 0.0, checks, bits):
        return None
    cost = goal.cost(rate, 0.0, checks, kind)
    return Stack(kind, 0, 0.0, (rate,), (), False, bits, cost)


def _single_fractional_layer(kind: str, goal: Goal) -> Stack | None:
    request = {"bits_per_key": goal.budget / max(goal.keys, 1)}
    if goal.minimizes_bits:
        request = {"fpr": min(goal.fpr, goal.max_fpr_bound)}
    try:
        size = KINDS[kind].layer_size(goal.keys, **request)
    except ValueError:
        return None
    rate, length = size.rate(goal.keys), size.length
    checks = predictions.checks([rate])
    if not goal.allowed(rate, rate, 0.0, checks, size.bits):
        return None
    cost = goal.cost(rate, 0.0, checks, kind)
    return Stack(kind, 0, 0.0, (rate,), (length,), False, size.bits, cost)


def _searches(
    kind: str, last: Last, updates: bool, allowance: integer_lengths.Allowance
) -> Iterator[tuple[Search, float]]:
    """Yield the searches for a number of negatives, each with the tolerance of its sweep."""
    if last != "exact":
        if KINDS[kind].continuous:
            yield any_rate.search_equal(kind), 2e-3
        else:
            yield integer_lengths.search_for(kind, allowance), 1e-2
    if last != "alternating" and not updates:
        yield exact.search_for(kind), 1e-3


def _kinds(layer: LayerKind, last: Last, rates: Rates, updates: bool) -> list[str]:
    """Return the kinds of layers to try."""
    one_of("layer", layer, get_args(LayerKind))
    one_of("last", last, get_args(Last))
    one_of("rates", rates, get_args(Rates))
    # The kind that is best most often comes first: the others are then abandoned sooner.
    possible = [kind.name for kind in reversed(LAYERS) if kind.inserts or not updates]
    if updates and last == "exact":
        raise ValueError("last must not be 'exact' with updates=True: an exact layer is static")
    if layer == "auto":
        return possible
    if layer not in possible:
        one_of("layer, with updates=True,", layer, reversed(possible))
    return [layer]


def _goal(
    keys: int,
    workload: Workload | None,
    bits_per_key: float | None,
    fpr: float | None,
    max_fpr_bound: float | None,
    max_checks: float | None,
    penalties: Sequence[float] | None,
    miss_cost: float | None,
    check_cost: float | None,
) -> Goal:
    fpr, bits_per_key = rate_or_budget(fpr, bits_per_key)
    if fpr is not None and fpr < FLOOR:
        raise ValueError(f"fpr must be at least {_rounded_up(FLOOR):.2g} for a stack, not {fpr}")
    for name, value in (
        ("max_fpr_bound", max_fpr_bound),
        ("max_checks", max_checks),
        ("miss_cost", miss_cost),
        ("check_cost", check_cost),
    ):
        if value is not None:
            check_number(name, value, "a positive number", above=0)
    if max_checks is not None and max_checks < 1:
        raise ValueError(f"max_checks must be at least 1, the first layer, not {max_checks}")
    costs = miss_cost is not None or check_cost is not None
    if costs and (miss_cost is None or check_cost is None):
        raise ValueError("pass both of miss_cost and check_cost, or neither")
    if penalties is not None:
        what = "three numbers of at least 0"
        if not isinstance(penalties, Iterable):
            raise TypeError(f"penalties must be {what}, not {shown(penalties)}")
        if len(list(penalties)) != 3:
            raise ValueError(f"penalties must be {what}, not {shown(penalties)}")
        penalties = [check_number("penalties", each, what, minimum=0) for each in penalties]
    if fpr is not None and (costs or penalties is not None):
        raise ValueError(
            "pass bits_per_key with costs or penalties, not fpr: cost is minimized within a budget"
        )
    return Goal(
        keys,
        budget=math.inf if bits_per_key is None else math.floor(bits_per_key * max(keys, 1)),
        fpr=1.0 if fpr is None else fpr,
        max_fpr_bound=1.0 if max_fpr_bound is None else float(max_fpr_bound),
        max_checks=math.inf if max_checks is None else float(max_checks),
        present=0.0 if workload is None else workload.present,
        penalties=Checks(*(penalties or (0.0, 0.0, 0.0))),
        miss_cost=1.0 if miss_cost is None else float(miss_cost),
        check_cost=0.0 if check_cost is None else float(check_cost),
    )


def _impossible(goal: Goal, curve: Frequencies, kinds: list[str], last: Last, updates: bool) -> str:
    """Name the first constraint without which there is a plan, and describe that plan."""

    def best(goal: Goal) -> Plan | None:
        found = _candidates(goal, curve, kinds, last, "equal", updates, integer_lengths.Allowance())
        kept = [plan for stack in found if _meets(plan := realize(stack, goal), goal)]
        return min(kept, key=lambda plan: _rank(plan, goal), default=None)

    for name, relaxed in (
        ("max_checks", replace(goal, max_checks=math.inf)),
        ("max_fpr_bound", replace(goal, max_fpr_bound=1.0)),
        ("max_checks and max_fpr_bound", replace(goal, max_checks=math.inf, max_fpr_bound=1.0)),
    ):
        if found := best(relaxed):
            return (
                f"no filter meets all constraints; without {name} there is one of "
                f"{found.bits_per_key:.2f} bits per key with a bound of {found.fpr_bound:.3g} "
                f"and {found.expected_checks:.3f} checks"
            )
    layers = f"{' or '.join(kinds)} layers" if len(kinds) < len(LAYERS) else "a stack"
    if goal.minimizes_bits:
        unlimited = Goal(goal.keys, budget=MAX_BITS_PER_KEY * max(goal.keys, 1))
        lowest = best(unlimited)
        assert lowest is not None
        return (
            f"fpr must be at least {_rounded_up(lowest.expected_fpr):.2g} for {layers} and this "
            f"workload, not {goal.fpr}"
        )
    needed = min(_min_bits(kind, goal.keys) for kind in kinds) / max(goal.keys, 1)
    given = goal.budget / max(goal.keys, 1)
    return (
        f"bits_per_key must be at least {math.ceil(100 * needed) / 100:.2f} for {layers}, "
        f"not {given:g}"
    )


def _rounded_up(rate: float) -> float:
    """Round a rate up to two digits."""
    unit = 10.0 ** (math.floor(math.log10(rate)) - 1) if rate else 1.0
    return math.ceil(rate / unit) * unit


def _min_bits(kind: str, keys: int) -> float:
    """Return the bits of the coarsest layer."""
    if KINDS[kind].continuous:
        return 1.0
    return fingerprint_layer(kind, keys, KINDS[kind].coarsest).bits
