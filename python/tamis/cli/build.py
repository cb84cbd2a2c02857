"""``tamis build``: a filter of the keys of a file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import tamis
from tamis._columns import join
from tamis.cli._input import Source
from tamis.cli._options import FILE, as_json, asked, example, log, reading, secret, sizing
from tamis.cli._output import say, share, show_json, size
from tamis.filters import CLASSES
from tamis.filters.sharded import SHARD_KEYS
from tamis.planning.kinds import KINDS

BUILDABLE: dict[str, Any] = {
    name: CLASSES[name]
    for name, kind in sorted(KINDS.items())
    if kind.sizes is not None or name == "stacked"
}
"""What can be built from keys and a rate, or from keys and a log."""


@click.command(
    "build",
    epilog=example(
        "tamis build users.csv --column email --fpr 0.001 -o users.tamis",
        "tamis build blocked.txt.gz --queries log.txt --bits-per-key 8 -o blocked.tamis",
    ),
)
@click.argument("keys", type=FILE)
@click.option("-o", "--output", type=FILE, required=True, help="The file to write.")
@reading
@sizing
@click.option(
    "--kind",
    type=click.Choice(list(BUILDABLE)),
    help="The filter: stacked with a log or a plan, else ribbon, the smallest.",
)
@click.option(
    "--capacity", type=int, help="Make room for so many keys; filters of equal room merge."
)
@asked
@click.option("--plan", "plan_file", type=FILE, help="A plan that `tamis plan -o` wrote.")
@click.option("--seed", type=int, help="Of the hash.")
@secret
@as_json
def command(
    keys: str,
    output: str,
    column: str | None,
    format: Any,
    integers: bool,
    fpr: float | None,
    bits_per_key: float | None,
    kind: str | None,
    capacity: int | None,
    queries: str | None,
    queries_column: str | None,
    plan_file: str | None,
    seed: int | None,
    secret: bytes | None,
    as_json: bool,
) -> None:
    """Build a filter of KEYS, a file or "-", at a rate or within a budget.

    With a log of the questions (--queries) it is the filter that errs least on those, and keys and
    distinct questions are held in memory. Otherwise KEYS may be of any length: above two million
    keys the filter is built in shards, from a temporary folder. --capacity makes a filter that
    takes insertions, has room for more keys and merges with others of the same capacity.
    """
    source = Source(keys, column, format, integers)
    hashing: dict[str, Any] = {"key": secret} | ({} if seed is None else {"seed": seed})
    rate: dict[str, Any] = {"fpr": fpr, "bits_per_key": bits_per_key}
    if plan_file is not None:
        if kind not in (None, "stacked") or fpr or bits_per_key:
            raise click.UsageError("--plan has the kind and the size; give it alone")
        rate = {"plan": tamis.Plan.from_json(Path(plan_file).read_text())}
    kind = kind or ("stacked" if queries or plan_file else "ribbon")
    if kind == "stacked":
        f = _stacked(source, queries, queries_column, capacity, rate, hashing)
    elif queries:
        raise click.UsageError(f"--kind {kind} has no use for --queries; stacked has")
    elif capacity is not None:
        f = _filled(BUILDABLE[kind], source, capacity, rate | hashing)
    else:
        f = _static(BUILDABLE[kind], source.read_keys(), rate | hashing)
    f.save(output)
    if as_json:
        show_json(summary(f, output))
    else:
        say(f"{output}: {f!r}")
        say(f"{size(f.size_in_bits)}, {f.bits_per_key:.2f} bits per key, "
            f"expected rate {share(f.expected_fpr)}")  # fmt: skip


def summary(f: Any, path: str) -> dict[str, Any]:
    """Tell of a filter what all filters have."""
    return {
        "file": path,
        "kind": type(f).__name__,
        "keys": len(f),
        "bits": f.size_in_bits,
        "bits_per_key": f.bits_per_key,
        "expected_fpr": f.expected_fpr,
        "fpr_bound": f.fpr_bound,
    }


def _static(cls: Any, batches: Iterator[Any], arguments: dict[str, Any]) -> Any:
    """Build at once, or in shards if the keys are many."""
    first: list[Any] = []
    for batch in batches:
        first.append(batch)
        if sum(map(len, first)) > SHARD_KEYS:
            every = itertools.chain(first, batches)
            return tamis.Sharded.from_batches(every, filter=cls, **arguments)
    return cls.build(join(first), **arguments)


def _filled(cls: Any, source: Source, capacity: int, arguments: dict[str, Any]) -> Any:
    """Make an empty filter and insert."""
    if not cls.inserts:
        takes = ", ".join(name for name, each in BUILDABLE.items() if each.inserts is True)
        raise click.UsageError(f"--kind {cls.__name__.lower()} takes no insertions; {takes} do")
    f = cls(capacity, **arguments)
    for batch in source.read_keys():
        f.update(batch)
    return f


def _stacked(
    source: Source,
    queries: str | None,
    queries_column: str | None,
    capacity: int | None,
    rate: dict[str, Any],
    hashing: dict[str, Any],
) -> Any:
    keys = join(list(source.read_keys()))
    workload = None
    if queries is not None:
        asked = log(source, queries, queries_column)
        workload = tamis.Workload.from_batches(asked.read_keys(), keys=keys)
    arguments = hashing | {"capacity": capacity}
    if (plan := rate.get("plan")) is None:
        return tamis.Stacked.build(keys, workload, **rate, **arguments)
    negatives = None if workload is None else workload.head(plan.negatives)
    return tamis.Stacked.from_plan(plan, keys, negatives=negatives, **arguments)
