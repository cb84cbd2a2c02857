"""`tamis.report`: tables and plots as one self-contained HTML page.

The page is a single file with inline SVG and styles; it loads nothing. It follows the light or dark
mode of the reader and is readable on a phone.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from tamis._files import save_atomically

if TYPE_CHECKING:
    from tamis._types import FilePath

_STYLE = """
:root { color-scheme: light dark; --ground: #fcfcfb; --text: #1c1c1a; --soft: #6b6b66;
  --line: #d9d9d4; --mark: #0b6bcb; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #16171a; --text: #e8e8e4; --soft: #a0a09a; --line: #3a3b40; --mark: #6ab0ff; } }
body { background: var(--ground); color: var(--text); margin: 0 auto; max-width: 54rem;
  padding: 1.5rem 1rem 4rem; font: 1rem/1.55 system-ui, sans-serif; }
body.wide { max-width: 78rem; } body.wide > p, body.wide > ul { max-width: 54rem; }
body.wide > figure { max-width: 44rem; }
body.wide > table:not(.prose) { display: block; overflow-x: auto; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
h3 { font-size: 1rem; margin-top: 2rem; } a { color: var(--mark); }
nav ul { columns: 20rem; column-gap: 2.5rem; padding-left: 1.2rem; } nav li { break-inside: avoid; }
p.note { color: var(--soft); } figure { margin: 1.2rem 0; }
figure svg { width: 100%; height: auto; display: block; font-family: system-ui, sans-serif; }
figure img { max-width: 100%; height: auto; display: block; background: #ffffff; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .4rem; }
table { border-collapse: collapse; font-size: .92rem; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; }
table.prose th, table.prose td { text-align: left; vertical-align: top; white-space: normal; }
table.prose td:first-child { white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } tr.first td { font-weight: 600; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: min(.82rem, 1.9vw);
  line-height: 1.4; padding: .8rem; border: 1px solid var(--line); border-radius: .4rem; }
@media (max-width: 44rem) {
  figure { overflow-x: auto; } figure svg { min-width: 30rem; }
  pre { padding: .8rem 0; border-width: 1px 0; border-radius: 0; }
  tr.head { display: none; } table, tbody { display: block; }
  tr { display: grid; grid-template-columns: auto auto; padding: .4rem 0;
    border-bottom: 1px solid var(--line); }
  td { border: 0; padding: .1rem 0; white-space: normal; }
  table.prose td:not(:first-child) { display: block; }
  td:first-child { grid-column: 1 / -1; font-weight: 600; }
  td:not(:first-child) { display: flex; justify-content: space-between; grid-column: 1 / -1; }
  td:not(:first-child)::before { content: attr(data-name); color: var(--soft); font-weight: 400;
    padding-right: 1rem; } }
"""


class Report:
    """An HTML page, built part by part; `save` writes it.

    >>> page = Report("Filters").text("Two of them.")
    >>> page = page.table(["filter", "bits"], [["Bloom", "10.00"], ["Ribbon", "9.04"]])
    >>> '<td data-name="bits">9.04</td>' in str(page)
    True
    """

    def __init__(self, title: str, *, wide: bool = False) -> None:
        """Create a page without parts; a ``wide`` page suits tables of sentences."""
        self.title = title
        self._wide = wide
        self._parts: list[str] = []

    def heading(self, text: str, *, level: int = 2, anchor: str = "") -> Self:
        """Start a section, or with ``level=3`` a subsection; links lead to its ``anchor``."""
        name = f' id="{html.escape(anchor)}"' if anchor else ""
        return self._add(f"<h{level}{name}>{html.escape(text)}</h{level}>")

    def contents(self, entries: Iterable[tuple[str, str]]) -> Self:
        """Add a list of links: the text and the anchor of each heading."""
        items = "".join(
            f'<li><a href="#{html.escape(anchor)}">{html.escape(text)}</a></li>'
            for text, anchor in entries
        )
        return self._add(f"<nav><ul>{items}</ul></nav>")

    def text(self, text: str, *, note: bool = False) -> Self:
        """Add a paragraph; a ``note`` is set in a softer colour."""
        return self._add(f"<p{' class=note' if note else ''}>{html.escape(text)}</p>")

    def bullets(self, lines: Iterable[str]) -> Self:
        """Add a bullet list."""
        items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
        return self._add(f"<ul>{items}</ul>") if items else self

    def table(
        self,
        head: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        first: bool = False,
        prose: bool = False,
        anchors: Iterable[str] = (),
    ) -> Self:
        """Add a table; ``first`` highlights its first row.

        The cells of a table of ``prose`` are sentences rather than numbers. ``anchors`` has the
        anchor of a heading for each row, whose first cell links there. On a phone, each row becomes
        a block of names and values, so that nothing is cut off.
        """
        cells = "".join(f"<th>{html.escape(each)}</th>" for each in head)
        lines = [f"<tr class=head>{cells}</tr>"]
        names = [html.escape(each) for each in head]
        links = list(anchors)
        for index, row in enumerate(rows):
            texts = [html.escape(str(each)) for each in row]
            if links:
                texts[0] = f'<a href="#{html.escape(links[index])}">{texts[0]}</a>'
            cells = "".join(
                f'<td data-name="{name}">{each}</td>'
                for name, each in zip(names, texts, strict=True)
            )
            lines.append(f"<tr{' class=first' if first and not index else ''}>{cells}</tr>")
        return self._add(f"<table{' class=prose' if prose else ''}>{''.join(lines)}</table>")

    def figure(self, ax: Any, caption: str = "") -> Self:
        """Add the figure of matplotlib axes, as SVG."""
        from tamis.plotting import svg

        return self._add_figure(svg(ax), caption)

    def image(self, content: bytes | str, caption: str = "") -> Self:
        """Add an image: the bytes of a PNG file, or the text of an SVG drawing."""
        if isinstance(content, bytes):
            data = base64.b64encode(content).decode()
            content = f'<img alt="{html.escape(caption)}" src="data:image/png;base64,{data}">'
        return self._add_figure(content, caption)

    def lines(self, text: str) -> Self:
        """Add preformatted text."""
        return self._add(f"<pre>{html.escape(text)}</pre>")

    def save(self, path: FilePath) -> None:
        """Write the page, atomically."""
        page = str(self).encode()

        def write(descriptor: int) -> None:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(page)

        save_atomically(path, write)

    def __str__(self) -> str:
        title = html.escape(self.title)
        return (
            "<!doctype html>\n<html lang=en><head><meta charset=utf-8>\n"
            '<meta name=viewport content="width=device-width, initial-scale=1">\n'
            f"<title>{title}</title>\n<style>{_STYLE}</style></head>\n"
            f"<body{' class=wide' if self._wide else ''}><h1>{title}</h1>\n"
            + "\n".join(self._parts)
            + "\n</body></html>\n"
        )

    def _add_figure(self, content: str, caption: str) -> Self:
        figcaption = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
        return self._add(f"<figure>{content}{figcaption}</figure>")

    def _add(self, part: str) -> Self:
        self._parts.append(part)
        return self
