"""``tamis query``: look up keys in a filter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import numpy as np
import numpy.typing as npt

import tamis
from tamis._columns import drop_null, keep
from tamis.cli._csv import CsvBatch, column_names
from tamis.cli._input import Source
from tamis.cli._options import FILE, OUTPUT, as_json, example, key_input, log_lines, secret
from tamis.cli._output import Writer, say, show_json

_ANSWERS = np.array(["no", "maybe"])


@click.command(
    "query",
    epilog=example(
        "tamis query blocked.tamis example.org example.com",
        "tamis query blocked.tamis --from visits.csv -c host --only maybe -o hits.csv",
        "zcat log.gz | tamis query blocked.tamis --from - --count",
    ),
)
@click.argument("filter", type=FILE)
@click.argument("keys", nargs=-1)
@click.option("--from", "input", type=FILE, help='Read keys from a file, or "-".')
@key_input
@log_lines
@click.option(
    "--only", type=click.Choice(["maybe", "no"]), help="Print only records with this answer."
)
@click.option("--count", is_flag=True, help="Print only the number of each answer.")
@click.option("--answer-column", default="tamis", help="Name of the column added to a table.")
@click.option(
    "-o",
    "--output",
    type=OUTPUT,
    help="Output file; .csv, .tsv, .parquet and .arrow set the format of tables.",
)
@secret
@as_json
def command(
    filter: str,
    keys: tuple[str, ...],
    input: str | None,
    columns: tuple[str, ...],
    format: Any,
    integers: bool,
    regex: str | None,
    log_format: Any,
    only: str | None,
    count: bool,
    answer_column: str,
    output: str | None,
    secret: bytes | None,
    as_json: bool,
) -> int:
    """Look up KEYS, or the keys of a file, in FILTER.

    "no" is always right; "maybe" is wrong at the filter's false-positive rate. Lines of text are
    printed with the answer after a tab, tables with an added column; with --only, records are
    printed unchanged. The exit code is 0 if any answer is "maybe", otherwise 1.
    """
    if bool(keys) == (input is not None):
        raise click.UsageError("pass either KEYS or --from")
    f = tamis.load(filter, mmap=True, key=secret)
    prints = output is None and not count and not as_json
    source = Source(input or "the arguments", columns, format, integers, prints=prints,
                    regex=regex, log_format=log_format, is_log=True)  # fmt: skip
    batches: Iterator[Any] = source.batches() if input else iter([[k.encode() for k in keys]])
    queries = maybe = 0
    with Writer(output) as writer:
        for batch in batches:
            answers = _answers(f, source.key_column(batch))
            queries, maybe = queries + len(answers), maybe + int(np.count_nonzero(answers))
            if not count and not as_json:
                writer.write(_annotate(batch, answers, only, answer_column))
            elif as_json and keys and not count:
                for key, answer in zip(keys, answers.tolist(), strict=True):
                    show_json({"key": key, "answer": "maybe" if answer else "no"})
    if count or (as_json and input):
        totals = {"queries": queries, "maybe": maybe, "no": queries - maybe}
        if as_json:
            show_json(totals)
        else:
            say("\n".join(f"{number:>12,} {name}" for name, number in totals.items()))
    return 0 if maybe else 1


def _answers(f: Any, column: Any) -> npt.NDArray[np.bool_]:
    """Look up a column of keys; the answer for a null is no."""
    if not getattr(column, "null_count", 0):
        return np.asarray(f.contains(column))
    answers = np.asarray(column.is_valid())
    answers[answers] = f.contains(drop_null(column))
    return answers


def _annotate(batch: Any, answers: npt.NDArray[np.bool_], only: str | None, name: str) -> Any:
    """Return all records with their answers, or only the records with one answer."""
    words = _ANSWERS[answers.astype(np.intp)]
    if isinstance(batch, list):
        if only is None:
            return list(map(b"\t".join, zip(batch, words.astype("S").tolist(), strict=True)))
        wanted = np.flatnonzero(answers == (only == "maybe"))
        return np.array(batch, dtype=object)[wanted].tolist()
    if only is None:
        if name in column_names(batch):
            raise ValueError(f"--answer-column is {name!r}, but the table already has that column")
        if isinstance(batch, CsvBatch):
            return batch.append_column(name, words)
        import pyarrow as pa

        return batch.append_column(name, pa.array(words))
    if isinstance(batch, CsvBatch):
        return batch[answers == (only == "maybe")]
    return keep(batch, answers == (only == "maybe"))
