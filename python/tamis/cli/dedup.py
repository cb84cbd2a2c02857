"""``tamis dedup``: the records of a stream that were not seen before."""

from __future__ import annotations

import itertools
from typing import Any

import click

import tamis
from tamis.cli._input import Source
from tamis.cli._options import FILE, as_json, example, reading
from tamis.cli._output import Writer, note, share, show_json


@click.command(
    "dedup",
    epilog=example(
        "tail -f events.log | tamis dedup --window 1000000 > once.log",
        "tamis dedup clicks.csv -c id --gap 100000 --bits 8000000 -o once.csv",
    ),
)
@click.argument("input", type=FILE, default="-")
@reading
@click.option("--window", type=int, help="Drop what came among the last so many records.")
@click.option("--seconds", type=float, help="The window in time; --window then says how many come.")
@click.option("--at", help="The column with the time of a record in seconds, for --seconds.")
@click.option("--gap", type=int, help="Without a window: after how many records duplicates come.")
@click.option("--bits", type=int, help="The memory, with --gap.")
@click.option("--fpr", type=float, default=0.001, help="The share of new records that may be lost.")
@click.option("-o", "--output", type=FILE, help="Write there instead of standard output.")
@as_json
def command(
    input: str,
    column: str | None,
    format: Any,
    integers: bool,
    at: str | None,
    output: str | None,
    as_json: bool,
    **size: Any,
) -> None:
    """Write the records of INPUT that were not seen before, in fixed memory.

    --window misses no duplicate within it; --gap and --bits remember as far back as the bits allow.
    What was dropped, and what is expected to have been missed, is told on standard error.
    """
    if as_json and output is None:
        raise click.UsageError("--json prints to standard output; give -o for the records")
    source = Source(input, column, format, integers, prints=output is None)
    batches = source.batches()
    first = next(batches)
    key = (int if integers else None) if isinstance(first, list) else source.key_column
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
        note(
            f"tamis: {s.dropped:,} of {s.records:,} records dropped; expected: "
            f"{share(s.expected_missed)} of the duplicates missed, "
            f"{share(s.expected_false_drops)} of the new records lost"
        )


def _times(first: Any, at: str | None) -> Any:
    """Return how to read the times of a batch like the first."""
    if at is None:
        return None
    if isinstance(first, list) or at not in first.schema.names:
        raise ValueError(f"--at is {at!r}; the input has no such column")
    return lambda batch: batch.column(at).cast("float64").to_numpy(zero_copy_only=False)
