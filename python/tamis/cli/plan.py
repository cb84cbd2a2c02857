"""``tamis plan``: the best stack of layers for a workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

import tamis
from tamis._columns import join
from tamis.cli._input import Source
from tamis.cli._options import FILE, as_json, asked, example, log, reading, sizing
from tamis.cli._output import note, say
from tamis.planning.kinds import LayerKind
from tamis.planning.planner import Last


@click.command(
    "plan",
    epilog=example(
        "tamis plan --keys 1000000 --zipf 1.0,100000000,50000000 --bits-per-key 10",
        "tamis plan --keys blocked.txt --queries log.txt --fpr 0.0001 -o blocked.plan",
    ),
)
@click.option("--keys", required=True, help="A file of keys, or how many there will be.")
@reading
@sizing
@asked
@click.option("--zipf", help="Instead of a log: EXPONENT,UNIVERSE[,SAMPLE] of Zipf's law.")
@click.option(
    "--layer", type=click.Choice(get_args(LayerKind)), default="auto", help="Of the stack."
)
@click.option("--last", type=click.Choice(get_args(Last)), default="auto", help="How it ends.")
@click.option("--updates", is_flag=True, help="Only layers that take insertions.")
@click.option("--max-fpr-bound", type=float, help="The highest rate under any workload.")
@click.option("--max-checks", type=float, help="The most layers a question meets on average.")
@click.option("-o", "--output", type=FILE, help="Write the plan, for `tamis build --plan`.")
@as_json
def command(
    keys: str,
    column: str | None,
    format: Any,
    integers: bool,
    queries: str | None,
    queries_column: str | None,
    zipf: str | None,
    output: str | None,
    as_json: bool,
    **wishes: Any,
) -> None:
    """Find the filter with the lowest rate within a budget, or the smallest one with a rate.

    What is asked is known from a log (--queries) or as a shape (--zipf); without both, the best
    plain filter is found.
    """
    if queries and zipf:
        raise click.UsageError("--queries and --zipf given; one of both is wanted")
    count, workload = _known(Source(keys, column, format, integers), queries, queries_column)
    if zipf is not None:
        workload = shape(zipf)
    plan = tamis.plan(count, workload, **wishes)
    if output is not None:
        Path(output).write_text(plan.to_json())
        note(f"plan written to {output}")
    say(plan.to_json() if as_json else str(plan))


def _known(
    source: Source, queries: str | None, queries_column: str | None
) -> tuple[int, tamis.Workload | None]:
    """Tell how many keys there are, and what is asked."""
    keys, count = None, 0
    if source.path.isdecimal():
        count = int(source.path)
    else:
        keys = join(list(source.read_keys()))
        count = len(tamis.Bloom.build(keys, bits_per_key=1))
    if queries is None:
        return count, None
    asked = log(source, queries, queries_column)
    return count, tamis.Workload.from_batches(asked.read_keys(), keys=keys)


def shape(text: str) -> tamis.Workload:
    """Read a workload without values: EXPONENT,UNIVERSE[,SAMPLE]."""
    exponent, *counts = text.split(",")
    if len(counts) not in (1, 2):
        raise click.UsageError(f"--zipf is {text!r}; EXPONENT,UNIVERSE[,SAMPLE] is wanted")
    return tamis.Workload.zipf(float(exponent), *(int(count) for count in counts))
