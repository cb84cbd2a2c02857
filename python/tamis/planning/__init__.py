"""Sizes and predicted rates: pure functions of numbers, one module per structure.

Nothing here imports compiled code of tamis, and no kernel chooses its own size: what is decided
here is what `tamis.filters` asks the kernels for.
"""

import importlib
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    """Import a module when it is first used, as in ``tamis.planning.bloom.size``."""
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
