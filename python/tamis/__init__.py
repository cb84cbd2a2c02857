"""tamis: workload-aware membership filters.

>>> import tamis
>>> f = tamis.Bloom(capacity=1_000_000, fpr=0.01)
>>> f.add("ada")
>>> "ada" in f, "alan" in f
(True, False)
"""

import importlib as _importlib
import warnings as _warnings
from types import ModuleType as _ModuleType

from tamis import filters as _filters
from tamis import stores, traces
from tamis._native import DEBUG_BUILD as _DEBUG_BUILD
from tamis._native import __version__, hash_keys
from tamis.advice import Advice, advise
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
from tamis.filters import *  # noqa: F403
from tamis.guard import Guard
from tamis.pictures import compare
from tamis.planning.collection.allocation import plan_collection
from tamis.planning.plan import Layer, Plan
from tamis.planning.planner import plan
from tamis.planning.stable.groups import plan_stable
from tamis.workload import Workload

__all__ = [
    "Advice",
    "BuildError",
    "CapacityError",
    "CapacityWarning",
    "Collection",
    "FormatError",
    "Guard",
    "IncompatibleError",
    "Layer",
    "LeaseError",
    "Plan",
    "StoreError",
    "TamisError",
    "Workload",
    "__version__",
    "advise",
    "compare",
    "dedup",
    "hash_keys",
    "plan",
    "plan_collection",
    "plan_stable",
    "stores",
    "traces",
]
__all__ += _filters.__all__
__all__.sort()

_INTEGRATIONS = ("parquet", "report", "text")
"""Modules that are imported on first use, to keep ``import tamis`` fast."""


def __getattr__(name: str) -> _ModuleType:
    if name in _INTEGRATIONS:
        return _importlib.import_module(f"tamis.{name}")
    raise AttributeError(f"module 'tamis' has no attribute {name!r}")


if _DEBUG_BUILD:
    _warnings.warn(
        "tamis was built without optimizations and is slow; build it with `make`",
        RuntimeWarning,
        stacklevel=2,
    )
