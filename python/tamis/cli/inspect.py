"""``tamis inspect``: the content of a saved file; `verify` opens files with the same function."""

from __future__ import annotations

from typing import Any, NamedTuple

import click
import numpy as np

import tamis
from tamis import _native
from tamis._files import open_regular
from tamis._format import format_rate, format_size
from tamis._frames import Frame
from tamis.cli._options import FILE, Command, as_json, example, secret
from tamis.cli._output import facts, say, show_json, table
from tamis.planning.kinds import FUNCTION

_WIDTH = 40
"""Width of the chart of layers, in characters."""


@click.command("inspect", cls=Command, epilog=example("tamis inspect blocked.tamis"))
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
            format_rate(part["rate"]) if part.get("kind") != FUNCTION.name else "exact",
        ]
        for part in parts
    ]
    return table(["part", "share of the bits", "items", "bits", "rate"], rows, left=2)


class IndexContent(NamedTuple):
    """The file of a skipping index: its manifest and its filters."""

    manifest: Any
    filters: tamis.Collection


def open_content(path: str, key: bytes | None) -> Any:
    """Check every checksum of a file and return its content.

    The content is a filter (of a file or a guard's snapshot), static function, classifier,
    `Collection`, `Runs`, `SearchIndex` or `IndexContent`. A damaged file raises `FormatError`.
    """
    kind = _kind(path)
    if kind in _OPEN:
        try:
            _native.check_file(path)
        except tamis.FormatError as error:
            raise tamis.FormatError(f"{path}: {error}") from None
        return _OPEN[kind](path, key)
    return tamis.load(path, mmap=True, key=key)


def _kind(path: str) -> str | None:
    """Return the kind of a file, or None if it is not a file of tamis."""
    try:
        with open_regular(path) as file:
            return Frame.of_file(file).kind
    except tamis.FormatError:
        return None


def _open_collection(path: str, key: bytes | None) -> Any:
    return tamis.Collection.open(path, key=key)


def _open_runs(path: str, key: bytes | None) -> Any:
    runs: Any = tamis.Collection.open(path, key=key)
    try:
        runs.check()
    except tamis.FormatError as error:
        raise tamis.FormatError(f"{path}: {error}") from None
    return runs


def _open_text(path: str, key: bytes | None) -> Any:
    from tamis.text import SearchIndex

    try:
        return SearchIndex.open(path, key=key)
    except ValueError as error:
        if isinstance(error, tamis.FormatError):
            raise
        return SearchIndex.open(path, key=key, tokenizer=str.split)  # the content is not searched


def _open_index(path: str, key: bytes | None) -> IndexContent:
    from tamis.parquet.manifest import check_sources, read

    opened = read(path)
    if opened.manifest is None or opened.frame is None or not opened.intact:
        raise tamis.FormatError(f"{path}: the manifest of the index is damaged")
    check_sources(path, opened)
    place, manifest = opened.frame, opened.manifest
    parts = len(manifest.columns)
    filters = tamis.Collection.open(path, offset=place.offset, length=place.length, parts=parts)
    expected = parts * len(manifest.rows)
    if len(filters) != expected:
        raise tamis.FormatError(
            f"{path}: the index has {len(filters):,} filters, but its manifest has {expected:,}"
        )
    if filters.seed != opened.sources["options"]["seed"]:
        raise tamis.FormatError(f"{path}: the filters of the index have another seed")
    return IndexContent(manifest, filters)


def _open_snapshot(path: str, key: bytes | None) -> Any:
    from tamis.guard import snapshot

    return snapshot.load(path, key)[0]


_OPEN = {
    "collection": _open_collection,
    "runs": _open_runs,
    "text": _open_text,
    "skipping": _open_index,
    "snapshot": _open_snapshot,
}
"""How to open kinds that `tamis.load` does not open."""
