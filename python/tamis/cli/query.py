"""``tamis query``: the answers of a filter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import numpy as np
import numpy.typing as npt

import tamis
from tamis.cli._input import Source
from tamis.cli._options import FILE, as_json, example, reading, secret
from tamis.cli._output import Writer, say, show_json

_ANSWERS = np.array(["no", "maybe"])


@click.command(
    "query",
    epilog=example(
        "tamis query blocked.tamis example.org example.com",
        "tamis query blocked.tamis --from visits.csv -c host --only maybe -o suspects.csv",
        "zcat log.gz | tamis query blocked.tamis --from - --count",
    ),
)
@click.argument("filter", type=FILE)
@click.argument("keys", nargs=-1)
@click.option("--from", "input", type=FILE, help='Ask for the keys of a file, or of "-".')
@reading
@click.option(
    "--only", type=click.Choice(["maybe", "no"]), help="Print only the records of this answer."
)
@click.option("--count", is_flag=True, help="Print only how many there are of each answer.")
@click.option("--name", default="tamis", help="The column that is added to a table.")
@click.option(
    "-o", "--output", type=FILE, help="Write there: .csv, .tsv, .parquet, .arrow, or text."
)
@secret
@as_json
def command(
    filter: str,
    keys: tuple[str, ...],
    input: str | None,
    column: str | None,
    format: Any,
    integers: bool,
    only: str | None,
    count: bool,
    name: str,
    output: str | None,
    secret: bytes | None,
    as_json: bool,
) -> int:
    """Ask FILTER for KEYS, or for those of a file: "no" is certain, "maybe" almost.

    Text comes back as lines with the answer after a tab, a table with a column of answers more;
    with --only, records come back as they are. The exit code is 0 if any answer is "maybe", else 1.
    """
    if bool(keys) == (input is not None):
        raise click.UsageError("give keys, or --from a file; one of both is wanted")
    f = tamis.load(filter, mmap=True, key=secret)
    prints = output is None and not count and not as_json
    source = Source(input or "the arguments", column, format, integers, prints=prints)
    batches: Iterator[Any] = source.batches() if input else iter([[k.encode() for k in keys]])
    asked = maybe = 0
    with Writer(output) as writer:
        for batch in batches:
            answers = _answers(f, source.key_column(batch))
            asked, maybe = asked + len(answers), maybe + int(np.count_nonzero(answers))
            if not count and not as_json:
                writer.write(_marked(batch, answers, only, name))
            elif as_json and keys and not count:
                for key, answer in zip(keys, answers.tolist(), strict=True):
                    show_json({"key": key, "answer": "maybe" if answer else "no"})
    if count or (as_json and input):
        totals = {"asked": asked, "maybe": maybe, "no": asked - maybe}
        if as_json:
            show_json(totals)
        else:
            say("\n".join(f"{number:>12,} {what}" for what, number in totals.items()))
    return 0 if maybe else 1


def _answers(f: Any, column: Any) -> npt.NDArray[np.bool_]:
    """Ask for a column; a null is no key, so it is in no set."""
    if not getattr(column, "null_count", 0):
        return np.asarray(f.contains(column))
    answers = np.asarray(column.is_valid())
    answers[answers] = f.contains(column.drop_null())
    return answers


def _marked(batch: Any, answers: npt.NDArray[np.bool_], only: str | None, name: str) -> Any:
    """Return the records of one answer, or all with their answer."""
    words = _ANSWERS[answers.astype(np.intp)]
    if isinstance(batch, list):
        if only is None:
            return list(map(b"\t".join, zip(batch, words.astype("S").tolist(), strict=True)))
        wanted = np.flatnonzero(answers == (only == "maybe"))
        return np.array(batch, dtype=object)[wanted].tolist()
    import pyarrow as pa

    if only is None:
        if name in batch.schema.names:
            raise ValueError(f"--name is {name!r}, which the table has already; name another")
        return batch.append_column(name, pa.array(words))
    return batch.filter(pa.array(answers == (only == "maybe")))
