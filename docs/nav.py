"""A hook of MkDocs: the pages and names of the kinds of filters, in the order of their table."""

from pathlib import Path
from typing import Any

from tamis import filters
from tamis.planning.kinds import KINDS


def on_config(config: Any) -> None:
    """Fill the section Filters with each kind's page that the navigation does not list yet."""
    listed = str(config.nav)
    pages = [f"{name}.md" for name in KINDS if Path(config.docs_dir, f"{name}.md").exists()]
    section = next(entry for entry in config.nav if "Filters" in entry)
    section["Filters"] = [page for page in pages if f"'{page}'" not in listed]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the names of the filter classes, and links to them, in the reference."""
    names = [kind.filter for kind in KINDS.values() if kind.filter in filters.__all__]
    names.insert(0, "Filter")
    links = ", ".join(f"[`{name}`][tamis.filters.{name}]" for name in names)
    return markdown.replace("{filter_links}", links).replace("{filters}", ", ".join(names))
