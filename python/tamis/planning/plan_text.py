"""Plans as text and as HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tamis._format import facts_html, format_rate, table_html

if TYPE_CHECKING:
    from tamis.planning.plan import Plan


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
