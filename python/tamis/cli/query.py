"""``tamis query``: look up keys in a filter."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterator
from typing import Any

import click
import numpy as np
import numpy.typing as npt

import tamis
from tamis._columns import keep
from tamis.cli._input import Source, is_filled, warn_if_integers, without_null
from tamis.cli._lines import parse_json_line
from tamis.cli._options import (
    FILE,
    RECORDS_OUTPUT,
    Command,
    as_json,
    example,
    key_input,
    log_lines,
    secret,
)
from tamis.cli._output import say, show_json, write_records
from tamis.cli._readers import CsvBatch, column_names

_ANSWERS = np.array(["no", "maybe"])


@click.command(
    "query",
    cls=Command,
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
    type=RECORDS_OUTPUT,
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
    if output is not None and (count or as_json):
        raise click.UsageError("-o writes records: do not pass --count or --json with it")
    f = tamis.load(filter, mmap=True, key=secret)
    prints = output is None and not count and not as_json
    source = Source(input or "the arguments", columns, format, integers, prints=prints,
                    regex=regex, log_format=log_format, is_log=True)  # fmt: skip
    batches: Iterator[Any] = source.batches() if input else iter([[k.encode() for k in keys]])
    totals = Counter(queries=0, maybe=0, no=0, nulls=0)

    def answered() -> Iterator[Any]:
        for batch in batches:
            column = source.key_column(batch)
            if not totals["queries"] and not source.integers:
                warn_if_integers(f, without_null(column))
            answers, nulls = _answers(f, column)
            maybe = int(np.count_nonzero(answers))
            totals.update(queries=len(answers), maybe=maybe, no=len(answers) - maybe, nulls=nulls)
            if not count and not as_json:
                yield _annotate(source, batch, answers, only, answer_column)
            elif as_json and keys and not count:
                for key, answer in zip(keys, answers.tolist(), strict=True):
                    show_json({"key": key, "answer": "maybe" if answer else "no"})

    if count or as_json:
        for _ in answered():
            pass
    else:
        write_records(output, answered(), is_json=lambda: source.is_json)
    source.report_null(totals.pop("nulls"), totals["queries"], 'are answered "no"')
    if as_json and (count or input):
        show_json(totals)
    elif count:
        say("\n".join(f"{number:>12,} {name}" for name, number in totals.items()))
    return 0 if totals["maybe"] else 1


def _answers(f: Any, column: Any) -> tuple[npt.NDArray[np.bool_], int]:
    """Look up a column of keys; return the answers, which are no for nulls, and how many are."""
    answers = is_filled(column)
    nulls = int(np.count_nonzero(~answers))
    answers[answers] = f.contains(without_null(column))
    return answers, nulls


def _annotate(
    source: Source, batch: Any, answers: npt.NDArray[np.bool_], only: str | None, name: str
) -> Any:
    """Return all records with their answers, or only the records with one answer."""
    words = _ANSWERS[answers.astype(np.intp)]
    if isinstance(batch, list):
        if only is None and source.is_json:
            records = (parse_json_line(source.name, line) for line in batch)
            return [_annotated(*each, name) for each in zip(records, words.tolist(), strict=True)]
        if only is None:
            return list(map(b"\t".join, zip(batch, words.astype("S").tolist(), strict=True)))
        chosen = np.flatnonzero(answers == (only == "maybe"))
        return np.array(batch, dtype=object)[chosen].tolist()
    if only is None:
        _refuse_taken(name, column_names(batch))
        if isinstance(batch, CsvBatch):
            return batch.append_column(name, words)
        import pyarrow as pa

        return batch.append_column(name, pa.array(words))
    if isinstance(batch, CsvBatch):
        return batch[answers == (only == "maybe")]
    return keep(batch, answers == (only == "maybe"))


def _annotated(record: dict[str, Any], answer: str, name: str) -> bytes:
    """Return a JSON object with its answer as a line."""
    _refuse_taken(name, record)
    return json.dumps({**record, name: answer}, ensure_ascii=False).encode(errors="surrogatepass")


def _refuse_taken(name: str, columns: Container[str]) -> None:
    if name in columns:
        raise ValueError(f"--answer-column is {name!r}, but the input already has that column")
