"""``tamis verify``: check a filter's bytes, keys and false-positive rate."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from tamis._columns import as_list, show_key, take
from tamis._format import format_rate
from tamis.cli._input import Source, warn_if_integers
from tamis.cli._options import FILE, Command, as_json, example, key_input, secret
from tamis.cli._output import facts, say, show_json
from tamis.cli.inspect import IndexContent, open_content
from tamis.planning.rates import interval
from tamis.workload.counts import Hashes, hashes

_RANDOM_KEYS = 1_000_000
"""Random keys to measure the false-positive rate with."""


@click.command(
    "verify",
    cls=Command,
    epilog=example("tamis verify users.tamis --keys users.csv --column email"),
)
@click.argument("filter", type=FILE)
@click.option("--keys", type=FILE, help='Keys that must be in the filter: a file, or "-".')
@key_input
@click.option(
    "--absent", type=FILE, help="File of absent keys, to measure the false-positive rate."
)
@secret
@as_json
def command(
    filter: str,
    keys: str | None,
    columns: tuple[str, ...],
    format: Any,
    integers: bool,
    absent: str | None,
    secret: bytes | None,
    as_json: bool,
) -> int:
    """Check that FILTER is undamaged, holds all of --keys, and has the expected rate.

    Of a collection, an index or a classifier, only the checksums are verified.

    The false-positive rate is measured on a million random keys, or on the keys of --absent, each
    counted as often as it occurs; keys that are also among --keys are set aside. The exit code is 1
    if a key is missing or if the rate is significantly higher than the filter predicts for any
    absent keys, and 2 if the file is damaged.
    """
    f = open_content(filter, secret)
    kind = "SkippingIndex" if isinstance(f, IndexContent) else type(f).__name__
    result: dict[str, Any] = {"file": filter, "kind": kind, "checksums": True}
    can_query = hasattr(f, "contains")
    if not can_query and (keys or absent):
        raise ValueError(f"--keys and --absent need a filter; {filter} is a {kind}")
    present = np.zeros(0, np.uint64)
    if keys is not None:
        denied, present = _denied(f, Source(keys, columns, format, integers), bool(absent))
        result |= denied
    if can_query and hasattr(f, "expected_fpr"):
        source = Source(absent, default_columns=columns, integers=integers) if absent else None
        result |= _random_rate(f) if source is None else _rate(f, source, present)
    good = not result.get("denied") and result.get("rate_as_expected", True)
    if as_json:
        show_json(result | {"good": good})
    else:
        say(facts(_lines(result)))
        say(click.style("passed", fg="green") if good else click.style("FAILED", fg="red"))
    return 0 if good else 1


def _denied(f: Any, source: Source, remember: bool) -> tuple[dict[str, Any], Hashes]:
    """Look up every key; return the result and, with ``remember``, the hashes of all keys."""
    queried = denied = 0
    first: list[Any] = []
    seen: list[Hashes] = []
    for batch in source.read_keys():
        if not queried and not source.integers:
            warn_if_integers(f, batch)
        missing = np.flatnonzero(~f.contains(batch))
        queried, denied = queried + len(batch), denied + len(missing)
        first += as_list(take(batch, missing[: 5 - len(first)]))
        if remember:
            seen.append(np.unique(hashes(batch)))
    present = np.unique(np.concatenate(seen)) if seen else np.zeros(0, np.uint64)
    return {"keys": queried, "denied": denied, "first_denied": first}, present


def _random_rate(f: Any) -> dict[str, Any]:
    """Measure the rate on random keys."""
    keys = np.random.default_rng().integers(0, 2**64, _RANDOM_KEYS, dtype=np.uint64)
    accepted, queried = int(np.count_nonzero(f.contains(keys))), _RANDOM_KEYS
    low, _ = interval(accepted, queried, float(accepted))
    expected = f.fpr_bound
    return {
        "measured_on": f"{queried:,} random keys",
        "measured_fpr": accepted / queried,
        "expected_fpr": expected,
        "rate_as_expected": bool(low <= expected),
    }


def _rate(f: Any, absent: Source, present: Hashes) -> dict[str, Any]:
    """Measure the rate on the absent keys of a file, setting aside keys in ``present``."""
    queried = set_aside = 0
    wrong: list[Hashes] = []
    for batch in absent.read_keys():
        found = hashes(batch)
        keep = ~np.isin(found, present)
        queried, set_aside = queried + int(keep.sum()), set_aside + int((~keep).sum())
        wrong.append(found[keep & f.contains(batch)])
    if not queried:
        raise ValueError(f"{absent.name} has no absent keys: all {set_aside:,} are among --keys")
    # A filter errs per key, so a false positive that is queried often is wrong as often.
    _, times = np.unique(np.concatenate(wrong), return_counts=True)
    accepted = int(times.sum())
    low, _ = interval(accepted, queried, float((times.astype(float) ** 2).sum()))
    return {
        "measured_on": f"{queried:,} keys of {absent.name}",
        "set_aside": set_aside,
        "measured_fpr": accepted / queried,
        "expected_fpr": f.expected_fpr,
        "rate_as_expected": bool(low <= max(f.expected_fpr, f.fpr_bound)),
    }


def _lines(result: dict[str, Any]) -> dict[str, str]:
    lines = {result["file"]: result["kind"], "checksums": "valid"}
    if "keys" in result:
        lines["keys"] = f"{result['keys']:,} checked, {result['denied']:,} missing"
        if result["denied"]:
            lines["missing"] = ", ".join(map(show_key, result["first_denied"]))
    if "measured_fpr" in result:
        lines["rate"] = (
            f"{format_rate(result['measured_fpr'])} measured on {result['measured_on']}, "
            f"{format_rate(result['expected_fpr'])} expected"
        )
    if result.get("set_aside"):
        lines["set aside"] = f"{result['set_aside']:,} keys that are not absent"
    if not result.get("rate_as_expected", True) and "set_aside" in result:
        lines["hint"] = "are some of the absent keys in the set? --keys sets them aside"
    return lines
