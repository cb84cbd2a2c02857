"""``tamis plan``: the best filter for a workload, before it is built."""

from __future__ import annotations

from typing import Any, get_args

import click

import tamis
from tamis._columns import join
from tamis._files import save_atomically
from tamis._frames import write_all
from tamis.cli._input import Source
from tamis.cli._options import (
    OUTPUT,
    Command,
    as_json,
    example,
    key_input,
    log_source,
    query_costs,
    query_log,
    read_workload,
    sizing,
    zipf_shape,
)
from tamis.cli._output import print_stderr, say
from tamis.planning.kinds import LayerKind
from tamis.planning.planner import Last


@click.command(
    "plan",
    cls=Command,
    epilog=example(
        "tamis plan 1000000 --zipf 1.0,100000000,50000000 --bits-per-key 10",
        "tamis plan blocked.txt --queries log.txt --fpr 0.0001 -o blocked.plan",
    ),
)
@click.argument("keys")
@key_input
@sizing
@query_log
@query_costs
@zipf_shape
@click.option(
    "--layer", type=click.Choice(get_args(LayerKind)), default="auto", help="Kind of the layers."
)
@click.option(
    "--last", type=click.Choice(get_args(Last)), default="auto", help="Kind of the last layer."
)
@click.option("--updates", is_flag=True, help="Use only layers that support insertions.")
@click.option("--max-fpr-bound", type=float, help="Maximum false-positive rate under any workload.")
@click.option("--max-checks", type=float, help="Maximum number of layers a query meets on average.")
@click.option("-o", "--output", type=OUTPUT, help="Save the plan, for `tamis build --plan`.")
@as_json
def command(
    keys: str,
    columns: tuple[str, ...],
    format: Any,
    integers: bool,
    queries: str | None,
    queries_columns: tuple[str, ...],
    cost_column: str | None,
    regex: str | None,
    log_format: Any,
    zipf: str | None,
    output: str | None,
    as_json: bool,
    **constraints: Any,
) -> None:
    """Find the filter with the lowest false-positive rate for a budget, or the smallest for a rate.

    KEYS is a file of keys, "-", or the number of keys. The workload is a query log (--queries) or
    a distribution (--zipf). Without a workload, the best plain filter is found.
    """
    if queries and zipf:
        raise click.UsageError("pass at most one of --queries and --zipf")
    source = Source(keys, columns, format, integers)
    log = None
    if queries is not None:
        log = log_source(source, queries, queries_columns, regex, log_format)
    count, workload = _count_and_workload(source, log, cost_column)
    if zipf is not None:
        workload = read_zipf(zipf)
    plan = tamis.plan(count, workload, **constraints)
    if output is not None:
        text = plan.to_json().encode()
        save_atomically(output, lambda descriptor: write_all(descriptor, text))
        print_stderr(f"plan written to {output}")
    say(plan.to_json() if as_json else str(plan))


def _count_and_workload(
    source: Source, log: Source | None, cost_column: str | None
) -> tuple[int, tamis.Workload | None]:
    """Return the number of distinct keys, and the workload of the log."""
    keys, count = None, 0
    if source.path.isdecimal():
        count = int(source.path)
    else:
        keys = join(list(source.read_keys()))
        count = len(tamis.Bloom.build(keys, bits_per_key=1))
    if log is None:
        return count, None
    return count, read_workload(log, keys, cost_column)


def read_zipf(text: str) -> tamis.Workload:
    """Parse EXPONENT,UNIVERSE[,SAMPLE]."""
    exponent, *counts = text.split(",")
    try:
        if len(counts) in (1, 2):
            return tamis.Workload.zipf(float(exponent), *(int(count) for count in counts))
    except ValueError as error:
        raise click.UsageError(f"--zipf is {text!r}: {error}") from None
    raise click.UsageError(f"--zipf must be EXPONENT,UNIVERSE[,SAMPLE], not {text!r}")
