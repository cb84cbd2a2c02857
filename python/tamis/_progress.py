"""Progress bars: on standard error of a terminal, or in the output of a notebook."""

from __future__ import annotations

import html
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_SECONDS = 0.2
"""Time between two updates of a bar in a notebook: each is a message to the browser."""


@contextmanager
def progress_bar(
    description: str, total: int | None, *, show: bool | None = None
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar and yield a function that advances it.

    By default it is shown only on a terminal or in a notebook, and disappears at the end. With
    ``show=True``, its final state is also printed elsewhere.
    """
    if show is not False and _in_notebook():
        with _notebook_bar(description, total) as advance:
            yield advance
        return
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=console.is_terminal) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.advance(task, done)


def _in_notebook() -> bool:
    """Return whether this code runs in a notebook, not in IPython on a terminal."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


@contextmanager
def _notebook_bar(description: str, total: int | None) -> Iterator[Callable[[int], None]]:
    display: Any = importlib.import_module("IPython.display")

    done, drawn = 0, time.monotonic()

    def bar() -> Any:
        value = f" value={done}" if total else ""
        return display.HTML(
            f"{html.escape(description)} <progress max={total or 1}{value}></progress> {done:,}"
            + (f" of {total:,}" if total else "")
        )

    def advance(more: int) -> None:
        nonlocal done, drawn
        done += more
        if time.monotonic() - drawn >= _SECONDS:
            handle.update(bar())
            drawn = time.monotonic()

    handle: Any = display.display(bar(), display_id=True)
    try:
        yield advance
    finally:
        handle.update(display.HTML(""))
