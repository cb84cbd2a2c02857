"""tamis: workload-aware membership filters.

>>> import tamis
>>> f = tamis.Bloom(capacity=1_000_000, fpr=0.01)
>>> f.add("ada")
>>> "ada" in f, "alan" in f
(True, False)
"""

import importlib as _importlib
import warnings as _warnings
from typing import TYPE_CHECKING
from typing import Any as _Any

from tamis._native import DEBUG_BUILD as _DEBUG_BUILD
from tamis._native import __version__ as __version__
from tamis._native import hash_keys as hash_keys

if TYPE_CHECKING:
    from tamis import metrics as metrics
    from tamis import parquet as parquet
    from tamis import report as report
    from tamis import spark as spark
    from tamis import stores as stores
    from tamis import text as text
    from tamis import traces as traces
    from tamis._versions import show_versions as show_versions
    from tamis.advice.advice import Advice as Advice
    from tamis.advice.advise import advise as advise
    from tamis.collection import Collection as Collection
    from tamis.deduplication import dedup as dedup
    from tamis.errors import BuildError as BuildError
    from tamis.errors import CapacityError as CapacityError
    from tamis.errors import CapacityWarning as CapacityWarning
    from tamis.errors import FormatError as FormatError
    from tamis.errors import IncompatibleError as IncompatibleError
    from tamis.errors import KeyKindWarning as KeyKindWarning
    from tamis.errors import LeaseError as LeaseError
    from tamis.errors import StoreError as StoreError
    from tamis.errors import TamisError as TamisError
    from tamis.filters import *  # noqa: F403  as `__getattr__` does
    from tamis.guard import AsyncGuard as AsyncGuard
    from tamis.guard import Guard as Guard
    from tamis.planning.collection.allocation import plan_collection as plan_collection
    from tamis.planning.plan import Layer as Layer
    from tamis.planning.plan import Plan as Plan
    from tamis.planning.planner import plan as plan
    from tamis.planning.stable_learned.groups import plan_stable as plan_stable
    from tamis.plotting import compare as compare
    from tamis.workload import Workload as Workload

# Names are imported when they are first used: `import tamis` loads the native module and NumPy
# alone; SciPy, for example, is loaded only when it is needed.
_MODULES = {
    "Advice": "tamis.advice",
    "AsyncGuard": "tamis.guard",
    "BuildError": "tamis.errors",
    "CapacityError": "tamis.errors",
    "CapacityWarning": "tamis.errors",
    "KeyKindWarning": "tamis.errors",
    "Collection": "tamis.collection",
    "FormatError": "tamis.errors",
    "Guard": "tamis.guard",
    "IncompatibleError": "tamis.errors",
    "Layer": "tamis.planning.plan",
    "LeaseError": "tamis.errors",
    "Plan": "tamis.planning.plan",
    "StoreError": "tamis.errors",
    "TamisError": "tamis.errors",
    "Workload": "tamis.workload",
    "advise": "tamis.advice",
    "compare": "tamis.plotting",
    "dedup": "tamis.deduplication",
    "plan": "tamis.planning.planner",
    "plan_collection": "tamis.planning.collection.allocation",
    "plan_stable": "tamis.planning.stable_learned.groups",
    "show_versions": "tamis._versions",
}
"""The module of each public name, except the names of `tamis.filters.__all__`."""

_SUBMODULES = (
    "advice",
    "collection",
    "errors",
    "filters",
    "guard",
    "learned",
    "metrics",
    "parquet",
    "plotting",
    "planning",
    "report",
    "spark",
    "stores",
    "testing",
    "text",
    "traces",
    "workload",
)

if not TYPE_CHECKING:  # else a type checker would accept any name

    def __getattr__(name: str) -> _Any:
        if name in _SUBMODULES:
            return _importlib.import_module(f"tamis.{name}")
        if name in _MODULES:
            module = _importlib.import_module(_MODULES[name])
        elif name.startswith("_") and name != "__all__":  # Python looks for some, such as __path__
            raise AttributeError(f"module 'tamis' has no attribute {name!r}")
        else:
            module = _importlib.import_module("tamis.filters")
            if name == "__all__":
                own = ("__version__", "hash_keys", "stores", "traces")
                return sorted((*own, *_MODULES, *module.__all__))
            if name not in module.__all__:
                raise AttributeError(f"module 'tamis' has no attribute {name!r}")
        value = globals()[name] = getattr(module, name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__"), *_SUBMODULES})


if _DEBUG_BUILD:
    _warnings.warn(
        "tamis was built without optimizations and is slow; build it with `make`",
        RuntimeWarning,
        stacklevel=2,
    )
