"""``tamis verify``: check a filter's bytes, keys and false-positive rate."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

import tamis
from tamis._columns import as_list, take
from tamis.cli._input import Source
from tamis.cli._options import FILE, as_json, example, key_input, secret
from tamis.cli._output import facts, say, share, show_json
from tamis.planning.rates import interval

_RANDOM_KEYS = 1_000_000
"""Random keys to measure the false-positive rate with."""


@click.command(
    "verify",
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
    column: str | None,
    format: Any,
    integers: bool,
    absent: str | None,
    secret: bytes | None,
    as_json: bool,
) -> int:
    """Check that FILTER is undamaged, holds all of --keys, and has the expected rate.

    The false-positive rate is measured on a million random keys, or on those of --absent, each
    counted as often as it occurs. The exit code is 1 if a key is missing or if the rate on random
    keys is significantly too high, and 2 if the file is damaged.
    """
    f = tamis.load(filter, key=secret)
    result: dict[str, Any] = {"file": filter, "kind": type(f).__name__, "checksums": True}
    if keys is not None:
        result |= _denied(f, Source(keys, column, format, integers))
    if hasattr(f, "expected_fpr"):
        source = Source(absent, default_column=column, integers=integers) if absent else None
        result |= _rate(f, source)
    good = not result.get("denied") and result.get("rate_as_expected", True)
    if as_json:
        show_json(result | {"good": good})
    else:
        say(facts(_lines(result)))
        say("passed" if good else "FAILED")
    return 0 if good else 1


def _denied(f: Any, source: Source) -> dict[str, Any]:
    """Look up every key."""
    asked = denied = 0
    first: list[Any] = []
    for batch in source.read_keys():
        missing = np.flatnonzero(~f.contains(batch))
        asked, denied = asked + len(batch), denied + len(missing)
        first += as_list(take(batch, missing[: 5 - len(first)]))
    return {"keys": asked, "denied": denied, "first_denied": first}


def _rate(f: Any, absent: Source | None) -> dict[str, Any]:
    if absent is None:
        keys = np.random.default_rng().integers(0, 2**64, _RANDOM_KEYS, dtype=np.uint64)
        accepted, asked = int(np.count_nonzero(f.contains(keys))), _RANDOM_KEYS
        low, _ = interval(accepted, asked, float(accepted))
        expected = f.fpr_bound
        return {
            "measured_on": f"{asked:,} random keys",
            "measured_fpr": accepted / asked,
            "expected_fpr": expected,
            "rate_as_expected": bool(low <= expected),
        }
    accepted = asked = 0
    for batch in absent.read_keys():
        accepted, asked = accepted + int(np.count_nonzero(f.contains(batch))), asked + len(batch)
    return {
        "measured_on": f"{asked:,} keys of {absent.name}",
        "measured_fpr": accepted / asked,
        "expected_fpr": f.expected_fpr,
    }


def _lines(result: dict[str, Any]) -> dict[str, str]:
    lines = {result["file"]: result["kind"], "checksums": "valid"}
    if "keys" in result:
        lines["keys"] = f"{result['keys']:,} checked, {result['denied']:,} missing"
        if result["denied"]:
            lines["missing"] = ", ".join(map(repr, result["first_denied"]))
    if "measured_fpr" in result:
        lines["rate"] = (
            f"{share(result['measured_fpr'])} measured on {result['measured_on']}, "
            f"{share(result['expected_fpr'])} expected"
        )
    return lines
