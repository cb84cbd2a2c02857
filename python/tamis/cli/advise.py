"""``tamis advise``: which filter, how big, and what it will gain."""

from __future__ import annotations

from typing import Any

import click

import tamis
from tamis._columns import join
from tamis.advice.situation import NEEDS
from tamis.cli._input import Source, halves
from tamis.cli._options import FILE, as_json, asked, example, log, reading
from tamis.cli._output import note, say
from tamis.cli.plan import shape


@click.command(
    "advise",
    epilog=example(
        "tamis advise users.csv -c email --queries log.csv --bits-per-key 10 -o users.tamis",
        "tamis advise 1000000 --zipf 1.0,100000000,50000000 --budget 2MB --need delete",
    ),
)
@click.argument("keys")
@reading
@asked
@click.option("--zipf", help="Instead of a log: EXPONENT,UNIVERSE[,SAMPLE] of Zipf's law.")
@click.option("--bits-per-key", type=float, help="The memory for each key; 10 unless given.")
@click.option("--budget", help="Or the memory for all, such as 64MB.")
@click.option("--miss-cost", default="1ms", help="What a read in vain costs.")
@click.option("--denial-cost", help="What it costs to deny a key that is there.")
@click.option("--check-cost", help="What a check of a standard Bloom filter takes here.")
@click.option("--present", type=float, help="The share of questions for keys that are there.")
@click.option("--questions", type=float, help="How many questions for absent keys will come.")
@click.option("--need", "needs", type=click.Choice(NEEDS), multiple=True, help="What it must do.")
@click.option(
    "--measure",
    is_flag=True,
    help="Learn from the first half of the log, and measure all choices on the second.",
)
@click.option("--explain", is_flag=True, help="Derive the numbers.")
@click.option("--report", type=FILE, help="Write all of it as an HTML page with pictures.")
@click.option("-o", "--output", type=FILE, help="Build the first choice and save it there.")
@as_json
def command(
    keys: str,
    column: str | None,
    format: Any,
    integers: bool,
    queries: str | None,
    queries_column: str | None,
    zipf: str | None,
    measure: bool,
    explain: bool,
    report: str | None,
    output: str | None,
    as_json: bool,
    **situation: Any,
) -> None:
    """Rank all filters for KEYS, a file or how many there will be, by the cost of a question.

    What is asked is known from a log (--queries) or as a shape (--zipf). With -o the filter that
    comes first is built.
    """
    if queries and zipf:
        raise click.UsageError("--queries and --zipf given; one of both is wanted")
    workload = None if zipf is None else shape(zipf)
    known: Any
    if keys.isdecimal():
        if output is not None:
            raise click.UsageError(f"KEYS is {keys}; a file of keys is wanted to build of (-o)")
        known, source = int(keys), Source("-", column, format, integers)
    else:
        source = Source(keys, column, format, integers)
        known = join(list(source.read_keys()))
    if measure and (queries is None or isinstance(known, int)):
        raise click.UsageError("--measure wants a file of keys, and a log (--queries)")
    sample = later = None
    if queries is not None:
        asked = log(source, queries, queries_column)
        if measure:
            sample, later = halves(asked)
            workload = tamis.Workload.from_queries(sample, keys=known)
        else:
            there = None if isinstance(known, int) else known
            workload = tamis.Workload.from_batches(asked.read_keys(), keys=there)
    advice = tamis.advise(known, workload, log=sample, **situation)
    if later is not None:
        advice = advice.measure(known, later)
    if as_json:
        say(advice.to_json())
    else:
        say(advice.explain() if explain else str(advice))
    if report is not None:
        advice.report(report)
    if output is not None:
        f = advice.best.build(known)
        f.save(output)
        note(f"{output}: {f!r}")
