"""Plans as text, as HTML and as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields

from tamis._checks import MALFORMED, MAX_BITS_PER_KEY, MAX_KEYS, check_int, one_of
from tamis._format import facts_html, format_rate, table_html
from tamis.planning.kinds import FUNCTION, KINDS, LAYERS
from tamis.planning.plan import Layer, Plan
from tamis.planning.stacked.predictions import Checks


def plan_text(plan: Plan) -> str:
    """Return a plan as text: its predictions, and a table of its layers."""
    lines = [
        f"{plan.describe()} for {plan.n_keys:,} keys",
        f"  predicted rate {format_rate(plan.expected_fpr)}, at most "
        f"{format_rate(plan.fpr_bound)} under any workload",
        f"  {plan.bits_per_key:.3f} bits per key, {plan.expected_checks:.3f} checks per query",
    ]
    if plan.negatives:
        lines.append(
            f"  {plan.negatives:,} frequent negatives stored: {format_rate(plan.psi)} of the "
            f"queries, at a rate of {format_rate(plan.frequent_fpr)}"
        )
    if plan.expected_cost is not None:
        lines.append(f"  expected cost {plan.expected_cost:.3g} per query for an absent key")
    if plan.n_keys and 0 < plan.fpr_bound < 1:
        above = plan.bits_per_key / plan.lower_bound - 1
        lines.append(
            f"  {format_rate(above)} above the {plan.lower_bound:.3f} bits per key that any "
            "filter with these rates needs"
        )
    lines += ["", "  layer  kind      stores          items         bits  bits/item       rate"]
    for number, layer in enumerate(plan.layers, 1):
        each = layer.bits / layer.items if layer.items else 0.0
        rate = "exact" if layer.exact else format_rate(layer.rate)
        lines.append(
            f"  {number:>5}  {layer.kind:<9} {layer.stores:<9} {layer.items:>11,} "
            f"{layer.bits:>12,} {each:>10.2f} {rate:>10}"
        )
    return "\n".join(lines)


def plan_html(plan: Plan) -> str:
    """Return a plan as HTML, for notebooks."""
    facts = {
        "keys": f"{plan.n_keys:,}",
        "size": f"{plan.bits_per_key:.2f} bits per key",
        "predicted rate": format_rate(plan.expected_fpr),
        "bound under any workload": format_rate(plan.fpr_bound),
        "frequent negatives stored": f"{plan.negatives:,}",
    }
    rows = [
        [layer.kind, layer.stores, f"{layer.items:,}", f"{layer.bits:,}",
         "exact" if layer.exact else format_rate(layer.rate)]
        for layer in plan.layers
    ]  # fmt: skip
    layers = table_html("layers", ["kind", "stores", "items", "bits", "rate"], rows)
    return facts_html(f"tamis.Plan: {plan.describe().lower()}", facts) + layers


_MAX_LAYERS = 64
_ONE = 1 + 1e-9  # the largest fraction, allowing for rounding


def write_plan(plan: Plan) -> str:
    """Return a plan as JSON text, without its workload."""
    plain = {f.name: getattr(plan, f.name) for f in fields(plan) if f.name != "workload"}
    if plan.expected_cost is None:
        del plain["expected_cost"]
    plain["layers"] = [asdict(layer) for layer in plan.layers]
    plain["checks"] = plan.checks._asdict()
    return json.dumps(plain)


def read_plan(text: str) -> Plan:
    """Read the output of `write_plan`; raise `ValueError` for anything else."""
    try:
        plain = json.loads(text)
        layers = tuple(Layer(**layer) for layer in plain.pop("layers"))
        checks = Checks(**plain.pop("checks"))
        plan = Plan(**plain, layers=layers, checks=checks)
        _check(plan)
    except MALFORMED as error:
        raise ValueError(f"text is not a plan ({error}); pass the output of to_json") from None
    return plan


def _check(plan: Plan) -> None:
    """Raise ValueError or TypeError if a field is out of its range."""
    if plan.workload is not None:
        raise ValueError("workload must not be in the text of a plan")
    if not 1 <= len(plan.layers) <= _MAX_LAYERS:
        raise ValueError(f"layers must be 1 to {_MAX_LAYERS}, not {len(plan.layers)}")
    check_int("n_keys", plan.n_keys, MAX_KEYS)
    check_int("negatives", plan.negatives, MAX_KEYS)
    one_of("last", plan.last, ("alternating", "exact"))
    _finite("psi", plan.psi, _ONE)
    for name in ("expected_fpr", "fpr_bound", "bits_per_key", "expected_checks"):
        _finite(name, getattr(plan, name))
    for name, value in plan.checks._asdict().items():
        _finite(f"checks.{name}", value)
    if plan.budget is not None:
        _finite("budget", plan.budget, MAX_BITS_PER_KEY)
    if plan.expected_cost is not None:
        _finite("expected_cost", plan.expected_cost)
    for index, layer in enumerate(plan.layers):
        _check_layer(layer, last=index > 0 and index == len(plan.layers) - 1)


def _check_layer(layer: Layer, last: bool) -> None:
    names = [kind.name for kind in (*LAYERS, FUNCTION)[: len(LAYERS) + last]]
    one_of("kind", layer.kind, names)
    one_of("stores", layer.stores, ("keys", "negatives", "both"))
    _finite("rate", layer.rate, _ONE)
    check_int("items", layer.items, MAX_KEYS)
    check_int("bits", layer.bits, 2**60)
    kind = KINDS[layer.kind]
    one_of("layout", layer.layout, [None, *(o.arguments.get("layout") for o in kind.options)])
    if kind.fractional:
        _finite("fingerprint", layer.fingerprint, kind.lengths[-1])  # type: ignore[index]
        if layer.fingerprint < kind.coarsest:  # type: ignore[operator]
            raise ValueError(
                f"fingerprint must be at least {kind.coarsest}, not {layer.fingerprint}"
            )
    elif kind.lengths is not None:
        check_int("fingerprint", layer.fingerprint, kind.lengths[-1], kind.lengths[0])
    elif layer.fingerprint is not None:
        check_int("fingerprint", layer.fingerprint, 64)


def _finite(name: str, value: object, maximum: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not (math.isfinite(value) and 0 <= value <= maximum):
        raise ValueError(f"{name} must be finite, and from 0 to {maximum:g}, not {value}")
