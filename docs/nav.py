"""A hook of MkDocs: the pages of the kinds of filters, in the order of the table of kinds."""

from pathlib import Path
from typing import Any

from tamis.planning.kinds import KINDS


def on_config(config: Any) -> None:
    """Fill the section Filters with each kind's page that the navigation does not list yet."""
    listed = str(config.nav)
    pages = [f"{name}.md" for name in KINDS if Path(config.docs_dir, f"{name}.md").exists()]
    section = next(entry for entry in config.nav if "Filters" in entry)
    section["Filters"] = [page for page in pages if f"'{page}'" not in listed]
