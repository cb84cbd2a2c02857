"""Builds, merges and opens the content of collections, and of runs for kind "stacked"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tamis import _native
from tamis._checks import MAX_BYTES, check_int, parse_budget
from tamis._objects import is_object
from tamis._ranges import ObjectFile
from tamis._types import FilePath
from tamis.collection import storage
from tamis.collection.allocation_inputs import AllocationInputs
from tamis.collection.kind_choice import choose_for
from tamis.collection.memory import Memory
from tamis.collection.merge import merge_filters
from tamis.collection.origin import Origin
from tamis.collection.prefix_allocation import plan_prefixes
from tamis.collection.runs import NamedKeys, Runs
from tamis.collection.runs_file import has_runs
from tamis.collection.storage import Names, Sets
from tamis.collection.utility import Accesses, Present, Utility, as_weights
from tamis.planning.collection.kind_costs import TAIL_READ
from tamis.planning.costs import duration

if TYPE_CHECKING:
    from tamis.collection.collection import Collection
    from tamis.workload import Workload

MAX_PARTS = 2**16
"""Parts of a collection, which take memory also without sets."""


def build_memory(
    sets: Sets,
    utility: Utility | None,
    present: Present | None,
    *,
    budget: int | str | None,
    kind: str,
    fpr: float,
    path: FilePath | None,
    filesystem: Any,
    hybrid: bool,
    miss_cost: float | str,
    parts: int,
    seed: int,
    key: bytes | None,
) -> tuple[Memory, str | None]:
    """Build the full filters, and load prefixes; also return why a kind was chosen, if it was."""
    filters = storage.create_filters(path, seed, key, filesystem=filesystem)
    cost = duration("miss_cost", miss_cost)
    size = None if budget is None else parse_budget(budget)
    parts, reason = _check_parts(parts), None
    if kind == "auto" and size is not None and parts == 1:
        cost = TAIL_READ if hybrid else cost
        sets, choice = choose_for(sets, utility, size, fpr, cost, seed, key)
        kind, reason = choice
    storage.add_sets(filters, sets, kind, fpr, key)
    ones = np.ones(len(filters), np.float32)
    inputs = AllocationInputs(ones, Accesses(), parts=parts, unsaved=True)
    inputs = inputs.read(utility, present, Names(filters), hybrid=hybrid)
    return _save_and_load(filters, inputs, size, path, key, filesystem), reason


def merge_memory(
    collections: Sequence[Collection],
    *,
    budget: int | str | None,
    path: FilePath | None,
    filesystem: Any,
    key: bytes | None,
) -> Memory:
    """Copy the full filters of collections to one file, and load prefixes."""
    filters, inputs = merge_filters(collections, path, key, filesystem)
    size = None if budget is None else parse_budget(budget)
    return _save_and_load(filters, inputs, size, path, key, filesystem)


def _save_and_load(
    filters: _native.Filters,
    inputs: AllocationInputs,
    budget: int | None,
    path: FilePath | None,
    key: bytes | None,
    filesystem: Any,
) -> Memory:
    """Write new filters to a file and load prefixes from it; a bad budget writes nothing."""
    plan = plan_prefixes(filters, inputs, budget)
    filters = storage.save_and_reopen(path, filters, inputs.weights, key, filesystem)
    return Memory.load(filters, inputs, plan)


def open_memory(
    path: FilePath | ObjectFile,
    utility: Utility | None,
    present: Present | None,
    *,
    budget: int | str | None,
    hybrid: bool,
    parts: int,
    salvage: bool,
    allocate: bool,
    offset: int,
    length: int | None,
    filesystem: Any,
    cache: int | str,
    key: bytes | None,
) -> tuple[Memory, Origin | None]:
    """Open the full filters in a file, and load prefixes; also return where they are."""
    filters, utilities = storage.open_filters(
        path,
        key,
        offset=check_int("offset", offset, MAX_BYTES),
        length=None if length is None else check_int("length", length, MAX_BYTES),
        filesystem=filesystem,
        cache=parse_budget(cache, "cache"),
    )
    saved = AllocationInputs(
        as_weights(utilities), Accesses(), parts=_check_parts(parts), salvage=salvage
    )
    origin = Origin.of(
        path, filters, saved.weights, filesystem=filesystem, cache=cache, offset=offset,
        length=length,
    )  # fmt: skip
    size = None if budget is None else parse_budget(budget)
    with storage.path_in_errors(path):
        if not allocate:
            inputs = saved.read(None, present, Names(filters), hybrid=hybrid)
            return Memory.empty(filters, inputs), origin
        inputs = saved.read(utility, present, Names(filters), hybrid=hybrid)
        return Memory.load(filters, inputs, plan_prefixes(filters, inputs, size)), origin


def build_runs(
    runs: NamedKeys,
    *,
    path: FilePath | None,
    filesystem: Any,
    hybrid: bool | None,
    parts: int,
    present: Present | None,
    **options: Any,
) -> Runs:
    """Build the filters of runs; raise if an argument only applies to other kinds."""
    if hybrid or parts != 1 or present is not None:
        raise ValueError("hybrid, present and parts must not be given with kind 'stacked'")
    if is_object(path, filesystem):
        raise ValueError(f"path must be a local file with kind 'stacked', not {path!r}")
    return Runs.build(runs, path=path, **options)


def open_runs(
    path: FilePath | ObjectFile,
    *,
    budget: int | str | None,
    utility: Utility | None,
    workload: Workload | None,
    key: bytes | None,
) -> Runs | None:
    """Open a local file of runs; None if it has something else."""
    if isinstance(path, ObjectFile) or not has_runs(path):
        return None
    runs = Runs.open(path, budget=budget, workload=workload, key=key)
    if utility is not None:
        runs.allocate(budget=runs.budget, utility=utility)
    return runs


def _check_parts(parts: int) -> int:
    return check_int("parts", parts, MAX_PARTS, least=1)
