"""``tamis search``: search documents by their words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import tamis
from tamis._columns import as_list
from tamis._format import format_size
from tamis.cli._input import Source
from tamis.cli._options import FILE, INDEX_OUTPUT, Command, as_json, example
from tamis.cli._output import say, show_json
from tamis.cli._readers import column_names


@click.group(
    "search",
    no_args_is_help=False,
    epilog=example(
        "tamis search build papers.parquet --name id --text abstract -o papers.tamis",
        "tamis search query papers.tamis adaptive filter",
    ),
)
def command() -> None:
    """Find documents that contain all words of a query, with a few bits per word in memory."""


@command.command(
    "build",
    cls=Command,
    short_help="Index documents.",
    epilog=example("tamis search build notes/*.txt --stop-words english -o notes.tamis"),
)
@click.argument("documents", nargs=-1, type=FILE, required=True)
@click.option("-o", "--output", type=INDEX_OUTPUT, required=True, help="Index file to write.")
@click.option("--name", help="Column with the names of the documents, in a table.")
@click.option("--text", help="Column with the texts, in a table.")
@click.option("--utility", help="Column with the utility of each document, in a table.")
@click.option("--stop-words", type=FILE, help='"english", or a file of words to ignore.')
@click.option("--budget", help="Memory budget, such as 64MB (default: everything in memory).")
@click.option(
    "--fpr", type=float, default=1e-4, help="False-positive rate of a full signature, per word."
)
@click.option(
    "--no-texts", is_flag=True, help="Do not store the texts: results cannot be verified."
)
@as_json
def build(
    documents: tuple[str, ...],
    output: str,
    name: str | None,
    text: str | None,
    utility: str | None,
    stop_words: str | None,
    budget: str | None,
    fpr: float,
    no_texts: bool,
    as_json: bool,
) -> None:
    """Index DOCUMENTS: text files, one document each, or tables with one document per row."""
    weights: list[float] = []
    index = tamis.text.SearchIndex.build(
        _documents(documents, name, text, utility, weights),
        budget=None,
        fpr=fpr,
        stop_words=_stop_words(stop_words),
        keep_texts=not no_texts,
        path=output,
    )
    if weights or budget is not None:
        index.allocate(budget=budget, utility=weights or None)
        index.save(output)
    if as_json:
        show_json({"file": output, "documents": len(index), "bytes": index.size_in_bytes})
    else:
        say(f"{output}: {len(index):,} documents, {format_size(8 * index.size_in_bytes)} in memory")


@command.command(
    "query",
    cls=Command,
    short_help="Print the documents that match.",
    epilog=example("tamis search query notes.tamis fine sieve -k 3"),
)
@click.argument("index", type=FILE)
@click.argument("words", nargs=-1, required=True)
@click.option("-k", type=click.IntRange(1), default=10, help="Maximum number of documents.")
@click.option(
    "--unverified", is_flag=True, help="Do not check the texts: faster, with some false positives."
)
@click.option("--budget", help="Memory budget, such as 64MB (default: everything in memory).")
@as_json
def query(
    index: str,
    words: tuple[str, ...],
    k: int,
    unverified: bool,
    budget: str | None,
    as_json: bool,
) -> int:
    """Print the documents of INDEX that contain all WORDS, the most useful first.

    The exit code is 1 if there are none.
    """
    opened = tamis.text.SearchIndex.open(index, budget=budget)
    found = opened.search(" ".join(words), k, verify=False if unverified else None)
    if as_json:
        show_json({"documents": found})
    elif found:
        say("\n".join(found))
    return 0 if found else 1


def _documents(
    paths: tuple[str, ...],
    name: str | None,
    text: str | None,
    utility: str | None,
    weights: list[float],
) -> Iterator[tuple[str, str]]:
    """Yield names and texts; append the utilities in tables to ``weights``."""
    for path in paths:
        source = Source(path)
        for number, batch in enumerate(source.batches()):
            if isinstance(batch, list):
                if name or text or utility:
                    raise ValueError(
                        f"{path} is plain text: --name, --text and --utility need a table"
                    )
                if not number:
                    yield path, Path(path).read_text(encoding="utf-8")
                continue
            if name is None or text is None:
                raise ValueError(
                    f"{path} is a table: --name and --text must name two of its columns "
                    f"{', '.join(column_names(batch))}"
                )
            columns = [
                Source(path, (each,)).columns_of(column_names(batch))[0] for each in (name, text)
            ]
            if utility is not None:
                (found,) = Source(path, (utility,)).columns_of(column_names(batch))
                column = batch.column(found)
                weights += map(float, as_list(column))
            names, texts = (as_list(batch.column(each)) for each in columns)
            yield from zip(map(str, names), (each or "" for each in texts), strict=True)


def _stop_words(given: str | None) -> Any:
    if given is None:
        return ()
    return tamis.text.ENGLISH if given == "english" else Path(given).read_text().split()
