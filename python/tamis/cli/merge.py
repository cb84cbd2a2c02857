"""``tamis merge``: several filters as one."""

from __future__ import annotations

import operator
from functools import reduce

import click

import tamis
from tamis.cli._options import FILE, MERGED_OUTPUT, Command, as_json, example, secret
from tamis.cli._output import say, show_json
from tamis.cli.build import summary


@click.command(
    "merge", cls=Command, epilog=example("tamis merge monday.tamis tuesday.tamis -o week.tamis")
)
@click.argument("filters", nargs=-1, type=FILE, required=True)
@click.option("-o", "--output", type=MERGED_OUTPUT, required=True, help="Output file.")
@secret
@as_json
def command(filters: tuple[str, ...], output: str, secret: bytes | None, as_json: bool) -> None:
    """Merge FILTERS into one that holds the keys of all of them.

    Bloom filters can be merged if they have the same capacity, false-positive rate and seed;
    quotient filters if they have the same seed.
    """
    if len(filters) < 2:
        raise click.UsageError("FILTERS must be at least two files, not one")
    merged = reduce(operator.or_, (tamis.load(path, key=secret) for path in filters))
    merged.save(output)
    if as_json:
        show_json(summary(merged, output))
    else:
        say(f"{output}: {merged!r}")
