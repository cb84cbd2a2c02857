"""The format of rates, sizes and durations in every table and message.

`facts_html` and `table_html` are what a notebook shows of a filter, a plan or an advice.
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence


def format_rate(rate: float) -> str:
    """Write a rate or a fraction: as a percentage unless it is tiny.

    >>> format_rate(0.0123), format_rate(0.00002), format_rate(1.2e-7), format_rate(0)
    ('1.23 %', '0.002 %', '1.2e-07', '0 %')
    """
    if 0 < rate < 1e-6:
        return f"{rate:.2g}"
    return f"{float(f'{100 * rate:.3g}'):.12g} %"


def format_size(bits: float) -> str:
    """Write a number of bits as bytes, in powers of ten.

    >>> format_size(8 * 1_500_000), format_size(800)
    ('1.50 MB', '100 bytes')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bits / 8 >= scale:
            return f"{bits / 8 / scale:.2f} {unit}"
    return f"{math.ceil(bits / 8)} bytes"


def format_duration(seconds: float) -> str:
    """Write a duration with three digits and a suitable unit.

    >>> format_duration(0.001), format_duration(2.5e-8), format_duration(0), format_duration(1234)
    ('1 ms', '25 ns', '0 ns', '1,234 s')
    """
    if seconds >= 999.5:
        return f"{seconds:,.0f} s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


# On each cell, because notebooks align cells by rules of their own.
_LEFT = 'style="text-align: left"'
_RIGHT = 'style="text-align: right; white-space: nowrap"'


def facts_html(title: str, facts: Mapping[str, str]) -> str:
    """Write names and values as a table of two columns, in the colours of the page.

    >>> facts_html("Bloom", {"keys": "3"}).count("<tr>")
    1
    """
    rows = (
        f"<tr><th {_LEFT}>{html.escape(name)}</th><td {_LEFT}>{html.escape(value)}</td></tr>"
        for name, value in facts.items()
    )
    return f"<table><caption {_LEFT}>{html.escape(title)}</caption>{''.join(rows)}</table>"


def table_html(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write rows under a header as a table, in the colours of the page: a name, then numbers."""

    def line(tag: str, cells: Sequence[str]) -> str:
        written = (
            f"<{tag} {_RIGHT if i else _LEFT}>{html.escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )
        return f"<tr>{''.join(written)}</tr>"

    caption = f"<caption {_LEFT}>{html.escape(title)}</caption>"
    return f"<table>{caption}{line('th', head)}{''.join(line('td', row) for row in rows)}</table>"
