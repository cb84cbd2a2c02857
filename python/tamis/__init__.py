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
from tamis._native import __version__, hash_keys

if TYPE_CHECKING:
    from tamis import metrics as metrics
    from tamis import parquet as parquet
    from tamis import report as report
    from tamis import spark as spark
    from tamis import stores, traces
    from tamis import text as text
    from tamis._versions import show_versions
    from tamis.advice.advise import Advice, advise
    from tamis.collection import Collection
    from tamis.deduplication import dedup
    from tamis.errors import (
        BuildError,
        CapacityError,
        CapacityWarning,
        FormatError,
        IncompatibleError,
        LeaseError,
        StoreError,
        TamisError,
    )
    from tamis.filters import (
        AdaptiveCuckoo,
        AdaptiveStacked,
        Bloom,
        Cuckoo,
        Extending,
        Filter,
        Fuse,
        LearnedBloom,
        Quotient,
        Ribbon,
        Sharded,
        StableBloom,
        StableLearned,
        Stacked,
        StaticFunction,
        Telescoping,
        Windowed,
        from_bytes,
        load,
        split,
    )
    from tamis.guard import AsyncGuard, Guard
    from tamis.planning.collection.allocation import plan_collection
    from tamis.planning.plan import Layer, Plan
    from tamis.planning.planner import plan
    from tamis.planning.stable_learned.groups import plan_stable
    from tamis.plotting import compare
    from tamis.workload import Workload

__all__ = [
    "AdaptiveCuckoo",
    "AdaptiveStacked",
    "Advice",
    "AsyncGuard",
    "Bloom",
    "BuildError",
    "CapacityError",
    "CapacityWarning",
    "Collection",
    "Cuckoo",
    "Extending",
    "Filter",
    "FormatError",
    "Fuse",
    "Guard",
    "IncompatibleError",
    "Layer",
    "LearnedBloom",
    "LeaseError",
    "Plan",
    "Quotient",
    "Ribbon",
    "Sharded",
    "StableBloom",
    "StableLearned",
    "Stacked",
    "StaticFunction",
    "StoreError",
    "TamisError",
    "Telescoping",
    "Windowed",
    "Workload",
    "__version__",
    "advise",
    "compare",
    "dedup",
    "from_bytes",
    "hash_keys",
    "load",
    "plan",
    "plan_collection",
    "plan_stable",
    "show_versions",
    "split",
    "stores",
    "traces",
]

# Names are imported when they are first used: `import tamis` loads the native module alone, and
# SciPy, for one, is loaded only by those who need it.
_MODULES = {
    "Advice": "tamis.advice",
    "AsyncGuard": "tamis.guard",
    "BuildError": "tamis.errors",
    "CapacityError": "tamis.errors",
    "CapacityWarning": "tamis.errors",
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
"""The modules of public names; those of `tamis.filters` are all that are not here."""

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
        if name not in __all__:
            raise AttributeError(f"module 'tamis' has no attribute {name!r}")
        module = _importlib.import_module(_MODULES.get(name, "tamis.filters"))
        value = globals()[name] = getattr(module, name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})


if _DEBUG_BUILD:
    _warnings.warn(
        "tamis was built without optimizations and is slow; build it with `make`",
        RuntimeWarning,
        stacklevel=2,
    )
