"""The log lines of a guard: under its name, and at most one of a kind every ten seconds."""

from __future__ import annotations

import logging
import threading
from typing import Any

from tamis._clock import now

_logger = logging.getLogger("tamis.guard")

_SECONDS = 10.0
"""Between two lines of one kind."""


class Log:
    """Writes lines to the logger ``tamis.guard``.

    Lines of one kind have the same format. Lines that come too soon are left out and counted; the
    next line of their kind ends with the count.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._kinds: dict[str, tuple[float, int]] = {}
        """When a line of a kind may be written again, and how many were left out."""

    def info(self, message: str, *arguments: Any) -> None:
        """Log a routine event."""
        self._write(logging.INFO, message, arguments)

    def warning(self, message: str, *arguments: Any) -> None:
        """Log a condition that may need attention."""
        self._write(logging.WARNING, message, arguments)

    def error(self, message: str, *arguments: Any, exc_info: bool = False) -> None:
        """Log a failure, with the traceback if ``exc_info`` is set."""
        self._write(logging.ERROR, message, arguments, exc_info)

    def _write(
        self, level: int, message: str, arguments: tuple[Any, ...], exc_info: bool = False
    ) -> None:
        if not _logger.isEnabledFor(level):
            return
        at = now()
        with self._lock:
            after, left_out = self._kinds.get(message, (at, 0))
            if at < after:
                self._kinds[message] = after, left_out + 1
                return
            self._kinds[message] = at + _SECONDS, 0
        more = f" ({left_out} such lines were left out before)" if left_out else ""
        text = f"%s: {message}{more}"
        _logger.log(level, text, self._name, *arguments, exc_info=exc_info, stacklevel=3)
