"""``tamis advise``: which filter, how large, and what it saves."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import click

import tamis
from tamis._columns import join
from tamis.advice.situation import NEEDS
from tamis.cli._input import Source, split_log
from tamis.cli._options import (
    FILTER_OUTPUT,
    OUTPUT,
    Command,
    as_json,
    example,
    key_input,
    log_source,
    query_costs,
    query_log,
    read_workload,
    zipf_shape,
)
from tamis.cli._output import print_stderr, say
from tamis.cli.plan import read_zipf


@click.command(
    "advise",
    cls=Command,
    epilog=example(
        "tamis advise users.csv -c email --queries log.csv -o users.tamis",
        "tamis advise paths.txt --queries access.log --log-format combined",
        "tamis advise 1000000 --fpr 0.001 --need delete",
    ),
)
@click.argument("keys")
@key_input
@query_log
@query_costs
@zipf_shape
@click.option("--bits-per-key", type=float, help="Memory budget in bits per key (default: 10).")
@click.option("--budget", help="Total memory budget, such as 64MB, instead of --bits-per-key.")
@click.option("--fpr", type=float, help="Find the smallest filters with this false-positive rate.")
@click.option("--miss-cost", default="1ms", help="Cost of a wasted read.")
@click.option("--denial-cost", help="Cost of rejecting a key that is in the set.")
@click.option("--check-cost", help="Time of a lookup in a standard Bloom filter on this machine.")
@click.option("--present", type=float, help="Fraction of queries for keys that are in the set.")
@click.option(
    "--expected-queries",
    type=float,
    help="Number of queries for absent keys to plan for.",
)
@click.option(
    "--turnover",
    type=float,
    help="Fraction of the keys replaced during these queries, before a rebuild.",
)
@click.option(
    "--need",
    "needs",
    type=click.Choice(NEEDS),
    multiple=True,
    metavar="NEED",
    help=f"What the filter must support or may use: {', '.join(NEEDS)}; repeatable.",
)
@click.option(
    "--measure",
    is_flag=True,
    help="Learn from the first half of the log and measure every choice on the second.",
)
@click.option("--explain", is_flag=True, help="Show how the numbers are derived.")
@click.option("--report", type=OUTPUT, help="Write an HTML report with charts.")
@click.option("-o", "--output", type=FILTER_OUTPUT, help="Build the first choice and save it.")
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
    measure: bool,
    explain: bool,
    report: str | None,
    output: str | None,
    as_json: bool,
    **situation: Any,
) -> None:
    """Rank all filters for KEYS by the cost of a query, or by size with --fpr.

    KEYS is a file of keys, "-", or the number of keys. The workload is a query log (--queries) or
    a distribution (--zipf). -o builds the filter that ranks first.
    """
    if queries and zipf:
        raise click.UsageError("pass at most one of --queries and --zipf")
    workload = None if zipf is None else read_zipf(zipf)
    known: Any
    if keys.isdecimal():
        if output is not None:
            raise click.UsageError(f"-o requires KEYS to be a file of keys, not {keys}")
        known, source = int(keys), Source("-", columns, format, integers)
    else:
        source = Source(keys, columns, format, integers)
        known = join(list(source.read_keys()))
    if measure and (queries is None or isinstance(known, int)):
        raise click.UsageError("--measure requires KEYS to be a file, and --queries")
    if measure and cost_column:
        raise click.UsageError("pass at most one of --measure and --cost-column")
    sample = later = None
    if queries is not None:
        log = log_source(source, queries, queries_columns, regex, log_format)
        if measure:
            sample, later = split_log(log, known)
            workload = tamis.Workload.from_queries(sample, keys=known)
        else:
            given = None if isinstance(known, int) else known
            workload = read_workload(log, given, cost_column)
    advice = tamis.advise(known, workload, log=sample, **situation)
    if later is not None:
        advice = advice.measure(known, later)
    if as_json:
        say(advice.to_json())
    else:
        shown = _with_options(advice)
        text = shown.explain() if explain else str(shown)
        say(_first_in_bold(text, advice.best.name) if advice.choices else text)
    if report is not None:
        advice.report(report)
    if output is not None:
        f = advice.best.build(known)
        f.save(output)
        print_stderr(f"{output}: {f!r}")


_TYPED = {
    "Pass a workload, such as Workload.from_queries(log, keys=keys),": "Pass --queries",
    "Pass log=, the queries in order, or run measure(keys, queries) on later ones.":
        "Pass --measure to run the second half of the log.",
    "Pass log=, the records in order.": "Use tamis.advise(log=...) in Python, with the records.",
    "pass negatives= to build a stack": "pass a query log (--queries) to build a stack",
    ", or a workload that was counted with keys=": ", or a log (--queries) and the keys",
    "needs={'classifier'}, the keys, and a workload with values":
        "--need classifier, the keys, and a query log",
}  # fmt: skip
"""Python arguments in the hints of an advice, and the options that replace them."""


def _with_options(advice: tamis.Advice) -> tamis.Advice:
    """Return the advice with hints that name the options of the command."""
    return replace(
        advice,
        ruled_out=tuple(replace(each, reason=_typed(each.reason)) for each in advice.ruled_out),
        unknowns=tuple(map(_typed, advice.unknowns)),
    )


def _typed(text: str) -> str:
    """Replace the arguments of `tamis.advise` in a text by the options of the command.

    >>> _typed("no store reports its false positives (needs: 'store'). Pass present=.")
    'no store reports its false positives (--need store). Pass --present.'
    """
    for python, typed in _TYPED.items():
        text = text.replace(python, typed)
    text = re.sub(r"needs: '([a-z]+)'", r"--need \1", text)
    text = re.sub(r"needs: ('[a-z ]+')", r"--need \1", text)
    return re.sub(
        r"\b(present|expected_queries|turnover)=", lambda m: "--" + m[1].replace("_", "-"), text
    )


def _first_in_bold(text: str, name: str) -> str:
    """Mark the first row of the table, which starts with this name."""
    return re.sub(rf"^{re.escape(name)} .*$", lambda m: click.style(m[0], bold=True), text,
                  count=1, flags=re.MULTILINE)  # fmt: skip
