"""The thread in which a store waits for the signals of its server."""

from __future__ import annotations

import threading
from collections.abc import Callable


def start_watching(name: str, listen: Callable[[threading.Event], None]) -> Callable[[], None]:
    """Run ``listen`` in a thread until its event is set; return the function that sets it."""
    ended = threading.Event()
    thread = threading.Thread(target=listen, args=(ended,), name=name, daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        if thread is not threading.current_thread():
            thread.join()

    return end
