"""``tamis dedup``: the records of a stream that were not seen before."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import click
import numpy as np

import tamis
from tamis._columns import pyarrow
from tamis._format import format_rate
from tamis.cli._input import Source, is_filled
from tamis.cli._options import FILE, RECORDS_OUTPUT, Command, as_json, example, key_input, log_lines
from tamis.cli._output import print_stderr, show_json, write_records
from tamis.cli._readers import CsvBatch, column_names


@click.command(
    "dedup",
    cls=Command,
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
@click.option("-o", "--output", type=RECORDS_OUTPUT, help="Output file (default: standard output).")
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
        if regex or log_format or integers or source.is_json:
            key = lambda line: source.key_column([line])[0]  # noqa: E731
    keyed = _Keyed(source, itertools.chain([first], batches))
    records = keyed.split() if source.may_lack_keys else keyed.batches
    kept = tamis.dedup(records, key=key, at=_times(first, at), **size)
    write_records(output, keyed.merge(kept), is_json=lambda: source.is_json)
    source.report_null(keyed.nulls, kept.stats.records + keyed.nulls, "are kept")
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


class _Keyed:
    """Batches, of which the records without a key go past the filter, in their place."""

    def __init__(self, source: Source, batches: Iterator[Any]) -> None:
        self._source, self.batches, self.nulls = source, batches, 0
        self._passing: list[Any] = []

    def split(self) -> Iterator[Any]:
        """Yield runs of records that have keys; the others wait in ``_passing``."""
        for batch in self.batches:
            filled = is_filled(self._source.key_column(batch))
            starts = np.flatnonzero(np.diff(filled, prepend=~filled[:1]))
            for start, end in zip(starts, [*starts[1:], len(filled)], strict=True):
                part = batch[start:end]
                if filled[start]:
                    yield part
                else:
                    self.nulls += len(part)
                    self._passing.append(part)

    def merge(self, kept: Iterable[Any]) -> Iterator[Any]:
        """Yield the records that were kept, and before them the ones that wait."""
        for batch in kept:
            yield from self._passed()
            yield batch
        yield from self._passed()

    def _passed(self) -> list[Any]:
        passing, self._passing = self._passing, []
        return passing


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
