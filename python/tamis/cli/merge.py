"""``tamis merge``: filters of equal shape, as one."""

from __future__ import annotations

import operator
from functools import reduce

import click

import tamis
from tamis.cli._options import FILE, as_json, example, secret
from tamis.cli._output import say, show_json
from tamis.cli.build import summary


@click.command("merge", epilog=example("tamis merge monday.tamis tuesday.tamis -o week.tamis"))
@click.argument("filters", nargs=-1, type=FILE, required=True)
@click.option("-o", "--output", type=FILE, required=True, help="The file to write.")
@secret
@as_json
def command(filters: tuple[str, ...], output: str, secret: bytes | None, as_json: bool) -> None:
    """Merge FILTERS: what any of them holds, the result holds.

    Bloom filters merge that were made with the same --capacity, rate and seed; quotient filters
    that were made with the same seed.
    """
    if len(filters) < 2:
        raise click.UsageError("one filter given; at least two are wanted")
    merged = reduce(operator.or_, (tamis.load(path, key=secret) for path in filters))
    merged.save(output)
    if as_json:
        show_json(summary(merged, output))
    else:
        say(f"{output}: {merged!r}")
