"""``tamis inspect``: what a saved file contains."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

import tamis
from tamis._format import format_rate, format_size
from tamis.cli._content import IndexContent, open_content
from tamis.cli._options import FILE, as_json, example, secret
from tamis.cli._output import facts, say, show_json, table

_WIDTH = 40
"""Width of the chart of layers, in characters."""


@click.command("inspect", epilog=example("tamis inspect blocked.tamis"))
@click.argument("file", type=FILE)
@secret
@as_json
def command(file: str, secret: bytes | None, as_json: bool) -> None:
    """Describe FILE: kind, number of keys, size, expected false-positive rates, and layers.

    FILE is a saved filter, static function, classifier, collection, text index, skipping index or
    snapshot of a guard. All checksums are verified.
    """
    content = open_content(file, secret)
    found, parts = _facts(content), _parts(content)
    if as_json:
        show_json({"file": file} | found | {"parts": parts})
        return
    say(
        facts(
            {"file": file} | {name.replace("_", " "): _format(name, found[name]) for name in found}
        )
    )
    if parts:
        say("\n" + _bars(parts))


def _facts(content: Any) -> dict[str, Any]:
    """Return the properties that this kind of content has."""
    found: dict[str, Any] = {"kind": type(content).__name__}
    if isinstance(content, IndexContent):
        manifest, content = content
        found = {
            "kind": "SkippingIndex",
            "files": len(manifest.files),
            "row_groups": len(manifest.rows),
            "columns": ", ".join(manifest.columns),
        }
    if hasattr(content, "counts"):
        items = "documents" if found["kind"] == "SearchIndex" else "filters"
        found |= {items: len(content), "keys": int(content.counts.sum())}
    else:
        found |= {"keys": len(content), "capacity": content.capacity}
    found["bits"] = content.size_in_bits
    for name in ("bits_per_key", "expected_fpr", "fpr_bound", "known_fpr", "psi"):
        if hasattr(content, name):
            found[name] = getattr(content, name)
    able = ("inserts", "deletes", "merges")
    found["can"] = [name[:-1] for name in able if getattr(content, name, False)]
    if hasattr(content, "seed"):
        found["hash"] = "secret key" if content.seed is None else f"seed {content.seed}"
    for name in ("layout", "hashes", "fingerprint_bits", "remainder_bits", "columns", "arity"):
        if isinstance(value := getattr(content, name, None), int | float | str):
            found.setdefault(name, value)
    return found


def _parts(content: Any) -> list[dict[str, Any]]:
    """Return the layers of a stack, or the kinds of filters of a collection."""
    if isinstance(content, tamis.Stacked):
        return [
            {"part": f"{layer.kind} of {layer.stores}"}
            | {name: getattr(layer, name) for name in ("kind", "stores", "items", "bits", "rate")}
            for layer in content.layers
        ]
    if isinstance(content, IndexContent):
        content = content.filters
    if hasattr(content, "kinds"):
        kinds = np.array(content.kinds)
        return [
            {
                "part": f"{kind} filters",
                "items": int(np.count_nonzero(kinds == kind)),
                "bits": int(content.kept[kinds == kind].sum()),
                "rate": float(np.mean(content.fprs[kinds == kind])),
            }
            for kind in np.unique(kinds).tolist()
        ]
    return []


def _format(name: str, value: Any) -> str:
    if name == "bits":
        return f"{value:,} ({format_size(value)})"
    if name.endswith("fpr") or name == "fpr_bound":
        return format_rate(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(value) or "only query"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _bars(parts: list[dict[str, Any]]) -> str:
    """Draw a bar for each part, in proportion to its size."""
    total = max(sum(part["bits"] for part in parts), 1)
    rows = [
        [
            part["part"],
            "█" * max(1, round(_WIDTH * part["bits"] / total)),
            f"{part['items']:,}",
            f"{part['bits']:,}",
            format_rate(part["rate"]) if part.get("kind") != "function" else "exact",
        ]
        for part in parts
    ]
    return table(["part", "share of the bits", "items", "bits", "rate"], rows, left=2)
