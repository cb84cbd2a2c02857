"""``tamis dedup``: the records of a stream that were not seen before."""

from __future__ import annotations

import itertools
from typing import Any

import click
import numpy as np

import tamis
from tamis._columns import pyarrow
from tamis._format import format_rate
from tamis.cli._csv import CsvBatch, column_names
from tamis.cli._input import Source
from tamis.cli._options import FILE, OUTPUT, as_json, example, key_input, log_lines
from tamis.cli._output import Writer, print_stderr, show_json


@click.command(
    "dedup",
    epilog=example(
        "tail -f events.log | tamis dedup --window 1000000 > once.log",
        "tamis dedup clicks.csv -c id --gap 100000 --bits 8000000 -o once.csv",
    ),
)
@click.argument("input", type=FILE, default="-")
@key_input
@log_lines
@click.option("--window", type=int, help="Drop duplicates among the last N records.")
@click.option(
    "--seconds",
    type=float,
    help="Drop duplicates of the last N seconds; --window is then the expected number of records.",
)
@click.option(
    "--at",
    help="Column with the time of each record, for --seconds: timestamps, or numbers of seconds.",
)
@click.option("--gap", type=int, help="Typical distance of duplicates in records, with --bits.")
@click.option("--bits", type=int, help="Memory in bits, with --gap.")
@click.option(
    "--fpr", type=float, default=0.001, help="Fraction of new records that may be dropped."
)
@click.option("-o", "--output", type=OUTPUT, help="Output file (default: standard output).")
@as_json
def command(
    input: str,
    columns: tuple[str, ...],
    format: Any,
    integers: bool,
    regex: str | None,
    log_format: Any,
    at: str | None,
    output: str | None,
    as_json: bool,
    **size: Any,
) -> None:
    """Write the records of INPUT that were not seen before, in fixed memory.

    --window drops every duplicate within the window. --gap and --bits remember as far back as the
    memory allows. The number of dropped records and the expected errors are printed to standard
    error.
    """
    if as_json and output is None:
        raise click.UsageError("--json prints to standard output; write the records with -o")
    if (size["window"] is None) == (size["gap"] is None):
        raise click.UsageError("pass exactly one of --window and --gap")
    if size["gap"] is not None and size["bits"] is None:
        raise click.UsageError("--gap requires --bits")
    source = Source(input, columns, format, integers, prints=output is None,
                    regex=regex, log_format=log_format)  # fmt: skip
    batches = source.batches()
    first = next(batches)
    key: Any = source.key_column
    if isinstance(first, list):
        key = None
        if regex or log_format or integers:
            key = lambda line: source.key_column([line])[0]  # noqa: E731
    records = itertools.chain([first], batches)
    kept = tamis.dedup(records, key=key, at=_times(first, at), **size)
    with Writer(output) as writer:
        for batch in kept:
            writer.write(batch)
    s = kept.stats
    if as_json:
        facts = s._asdict()
        facts["gaps"] = {str(gap): count for gap, count in s.gaps.items()}
        show_json(facts)
    else:
        outside = f"; about {s.outside_window:,.0f} duplicates are outside the window"
        print_stderr(
            f"tamis: dropped {s.dropped:,} of {s.records:,} records; expected errors: "
            f"{format_rate(s.expected_missed)} of duplicates kept, "
            f"{format_rate(s.expected_false_drops)} of new records dropped"
            f"{outside if s.outside_window else ''}"
        )


def _times(first: Any, at: str | None) -> Any:
    """Return the column of times, or if it is text, a function that parses it."""
    if at is None:
        return None
    if isinstance(first, list) or at not in column_names(first):
        raise ValueError(f"--at is {at!r}, but the input has no such column")
    if isinstance(first, CsvBatch):
        return lambda batch: _parse_text(batch.column(at), at)
    text = str(first.schema.field(at).type) == "string"
    return (lambda batch: _parse(batch.column(at), at)) if text else at


def _parse_text(column: list[str], name: str) -> Any:
    """Parse text like `_parse`, without pyarrow."""
    for kind in (float, "datetime64[us]"):
        try:
            return np.array(column, dtype=kind)
        except ValueError as error:
            problem = error
    raise ValueError(
        f"--at is the column {name!r}, which has neither seconds nor timestamps: {problem}"
    )


def _parse(column: Any, name: str) -> Any:
    """Parse the text of a CSV file as numbers of seconds or as ISO 8601 timestamps."""
    arrow = pyarrow("a table")
    for kind in (arrow.float64(), arrow.timestamp("us"), arrow.timestamp("us", tz="UTC")):
        try:
            return column.cast(kind)
        except arrow.ArrowInvalid as error:
            problem = error
    raise ValueError(
        f"--at is the column {name!r}, which has neither seconds nor timestamps: {problem}"
    )
