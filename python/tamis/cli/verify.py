"""``tamis verify``: a filter's bytes, keys and rate."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

import tamis
from tamis._columns import as_list, take
from tamis.cli._input import Source
from tamis.cli._options import FILE, as_json, example, reading, secret
from tamis.cli._output import facts, say, share, show_json
from tamis.planning.rates import interval

_STRANGERS = 1_000_000
"""Random keys that the rate is measured with."""


@click.command(
    "verify",
    epilog=example("tamis verify users.tamis --keys users.csv --column email"),
)
@click.argument("filter", type=FILE)
@click.option("--keys", type=FILE, help='A file of keys that must all be there, or "-".')
@reading
@click.option("--absent", type=FILE, help="A file of keys that are absent, to measure the rate.")
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
    """Check the checksums of FILTER, that it denies none of --keys, and its rate.

    The rate is measured on a million random keys, or on those of --absent, each counted as often as
    it comes. The exit code is 1 if a key is denied, or if the rate on random keys is above what
    chance allows; a damaged file is refused with 2.
    """
    f = tamis.load(filter, key=secret)
    result: dict[str, Any] = {"file": filter, "kind": type(f).__name__, "checksums": True}
    if keys is not None:
        result |= _denied(f, Source(keys, column, format, integers))
    if hasattr(f, "expected_fpr"):
        strangers = Source(absent, None, "auto", integers, usual=column) if absent else None
        result |= _rate(f, strangers)
    good = not result.get("denied") and result.get("rate_as_expected", True)
    if as_json:
        show_json(result | {"good": good})
    else:
        say(facts(_written(result)))
        say("good" if good else "NOT GOOD")
    return 0 if good else 1


def _denied(f: Any, source: Source) -> dict[str, Any]:
    """Ask for every key."""
    asked = denied = 0
    first: list[Any] = []
    for batch in source.read_keys():
        missing = np.flatnonzero(~f.contains(batch))
        asked, denied = asked + len(batch), denied + len(missing)
        first += as_list(take(batch, missing[: 5 - len(first)]))
    return {"keys": asked, "denied": denied, "first_denied": first}


def _rate(f: Any, absent: Source | None) -> dict[str, Any]:
    if absent is None:
        strangers = np.random.default_rng().integers(0, 2**64, _STRANGERS, dtype=np.uint64)
        accepted, asked = int(np.count_nonzero(f.contains(strangers))), _STRANGERS
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


def _written(result: dict[str, Any]) -> dict[str, str]:
    lines = {result["file"]: result["kind"], "checksums": "right"}
    if "keys" in result:
        lines["keys"] = f"{result['keys']:,} asked for, {result['denied']:,} denied"
        if result["denied"]:
            lines["denied"] = ", ".join(map(repr, result["first_denied"]))
    if "measured_fpr" in result:
        lines["rate"] = (
            f"{share(result['measured_fpr'])} measured on {result['measured_on']}, "
            f"{share(result['expected_fpr'])} expected"
        )
    return lines
