"""Sizes and predicted rates: pure functions of numbers, one module per structure.

Of compiled code, only `tamis.planning.kinds` uses the table of kinds. No kernel chooses its own
size: `tamis.filters` builds kernels of the sizes chosen here.
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
