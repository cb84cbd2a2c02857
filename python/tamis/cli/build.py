"""``tamis build``: a filter from a file of keys."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import tamis
from tamis._columns import join
from tamis._format import format_rate, format_size
from tamis.cli._input import Source
from tamis.cli._options import (
    FILE,
    FILTER_OUTPUT,
    Command,
    as_json,
    example,
    key_input,
    log_source,
    query_costs,
    query_log,
    read_workload,
    secret,
    sizing,
)
from tamis.cli._output import say, show_json
from tamis.filters import CLASSES
from tamis.filters.sharded import SHARD_KEYS
from tamis.planning.kinds import KINDS, SMALLEST

_MAX_PLAN = 1 << 20
"""Maximum length of a plan in characters, far more than a plan needs."""

_STACKED = tamis.Stacked._kind

BUILDABLE: dict[str, Any] = {
    name: CLASSES[name]
    for name, kind in sorted(KINDS.items())
    if kind.sizes is not None or kind.name == _STACKED
}
"""The kinds that can be built from keys and a rate, or from keys and a log."""


@click.command(
    "build",
    cls=Command,
    epilog=example(
        "tamis build users.csv --column email --fpr 0.001 -o users.tamis",
        "tamis build blocked.gz --queries log.txt --bits-per-key 8 -o blocked.tamis",
    ),
)
@click.argument("keys", type=FILE)
@click.option("-o", "--output", type=FILTER_OUTPUT, required=True, help="Output file.")
@key_input
@sizing
@click.option(
    "--kind",
    type=click.Choice(list(BUILDABLE)),
    metavar="KIND",
    help=f"{', '.join(BUILDABLE)} (default: {_STACKED} with --queries or --plan, otherwise "
    f"{SMALLEST.name}).",
)
@click.option(
    "--capacity",
    type=int,
    help="Capacity in keys; filters of equal capacity can be merged.",
)
@query_log
@query_costs
@click.option("--plan", "plan_file", type=FILE, help="Plan saved by `tamis plan -o`.")
@click.option("--seed", type=int, help="Seed of the hash.")
@secret
@as_json
def command(
    keys: str,
    output: str,
    columns: tuple[str, ...],
    format: Any,
    integers: bool,
    fpr: float | None,
    bits_per_key: float | None,
    kind: str | None,
    capacity: int | None,
    queries: str | None,
    queries_columns: tuple[str, ...],
    cost_column: str | None,
    regex: str | None,
    log_format: Any,
    plan_file: str | None,
    seed: int | None,
    secret: bytes | None,
    as_json: bool,
) -> None:
    """Build a filter from KEYS, a file or "-", with a false-positive rate or a memory budget.

    With a query log (--queries), the filter has the fewest false positives on such queries; keys
    and distinct queries are held in memory. Without one, KEYS can be of any length: above two
    million keys, the filter is built in shards, using a temporary folder. --capacity builds a
    filter that supports insertions and can be merged with others of the same capacity.
    """
    source = Source(keys, columns, format, integers)
    hashing: dict[str, Any] = {"key": secret} | ({} if seed is None else {"seed": seed})
    rate: dict[str, Any] = {"fpr": fpr, "bits_per_key": bits_per_key}
    if plan_file is not None:
        if kind not in (None, _STACKED) or fpr or bits_per_key:
            raise click.UsageError("--plan cannot be combined with --kind, --fpr or --bits-per-key")
        rate = {"plan": _read_plan(plan_file)}
    kind = kind or (_STACKED if queries or plan_file else SMALLEST.name)
    if kind == _STACKED:
        log = None
        if queries is not None:
            log = log_source(source, queries, queries_columns, regex, log_format)
        f = _stacked(source, log, cost_column, capacity, rate, hashing)
    elif queries:
        raise click.UsageError(f"--queries requires --kind {_STACKED}, not {kind}")
    elif capacity is not None:
        f = _filled(BUILDABLE[kind], source, capacity, rate | hashing)
    else:
        f = _static(BUILDABLE[kind], source.read_keys(), rate | hashing)
    f.save(output)
    if as_json:
        show_json(summary(f, output))
    else:
        say(f"{output}: {f!r}")
        say(f"{format_size(f.size_in_bits)}, {f.bits_per_key:.2f} bits per key, "
            f"expected false-positive rate {format_rate(f.expected_fpr)}")  # fmt: skip


def summary(f: Any, path: str) -> dict[str, Any]:
    """Return the properties that all filters have."""
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
    """Build at once, or in shards if there are many keys."""
    first: list[Any] = []
    for batch in batches:
        first.append(batch)
        if sum(map(len, first)) > SHARD_KEYS:
            every = itertools.chain(first, batches)
            return tamis.Sharded.from_batches(every, filter=cls, **arguments)
    return cls.build(join(first), **arguments)


def _filled(cls: Any, source: Source, capacity: int, arguments: dict[str, Any]) -> Any:
    """Build an empty filter and insert the keys."""
    if not cls.inserts:
        takes = " or ".join(name for name, each in BUILDABLE.items() if each.inserts is True)
        kind = cls.__name__.lower()
        raise click.UsageError(f"--capacity requires --kind {takes}, not {kind}")
    f = cls(capacity, **arguments)
    for batch in source.read_keys():
        f.update(batch)
    return f


def _stacked(
    source: Source,
    log: Source | None,
    cost_column: str | None,
    capacity: int | None,
    rate: dict[str, Any],
    hashing: dict[str, Any],
) -> Any:
    keys = join(list(source.read_keys()))
    workload = None if log is None else read_workload(log, keys, cost_column)
    arguments = hashing | {"capacity": capacity}
    if (plan := rate.get("plan")) is None:
        return tamis.Stacked.build(keys, workload, **rate, **arguments)
    negatives = None if workload is None else workload.head(plan.negatives)
    return tamis.Stacked.from_plan(plan, keys, negatives=negatives, **arguments)


def _read_plan(path: str) -> tamis.Plan:
    """Read a plan from a file of limited length."""
    with Path(path).open() as file:
        text = file.read(_MAX_PLAN + 1)
    try:
        if len(text) > _MAX_PLAN:
            raise ValueError(f"a plan has at most {_MAX_PLAN} characters")
        return tamis.Plan.from_json(text)
    except ValueError as error:
        raise ValueError(f"--plan {path}: {error}") from None
