"""Builds, merges and opens the content of collections, and chooses the kind of their filters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from tamis import _native
from tamis._checks import MAX_BYTES, check_int, parse_budget, parse_duration
from tamis._objects import is_object
from tamis._ranges import ObjectFile
from tamis._types import FilePath
from tamis.collection import storage
from tamis.collection.allocation_inputs import (
    Accesses,
    AllocationInputs,
    Present,
    Utility,
    as_weights,
)
from tamis.collection.memory import Memory
from tamis.collection.origin import Origin
from tamis.collection.prefix_allocation import plan_prefixes
from tamis.collection.run_filters import has_runs
from tamis.collection.runs import NamedKeys, Runs
from tamis.collection.storage import Hashed, Names, Sets, pairs
from tamis.errors import IncompatibleError
from tamis.planning.collection.curves import Floats
from tamis.planning.collection.sliced import TAIL_READ, KindChoice, choose_kind

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
    cost = parse_duration("miss_cost", miss_cost)
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
    return check_int("parts", parts, MAX_PARTS, minimum=1)


def merge_filters(
    parts: Sequence[Collection], path: FilePath | None, key: bytes | None, filesystem: Any
) -> tuple[_native.Filters, AllocationInputs]:
    """Copy the full filters of collections to a temporary file, in the order of their names.

    Sets that belong together, such as the columns of a row group, stay together, in the order of
    the name of the first.
    """
    if not parts:
        raise ValueError("parts is empty: pass one or more collections to merge")
    widths = {part._memory.inputs.parts for part in parts}
    if len(widths) > 1:
        raise IncompatibleError(f"parts must be opened with the same parts=, not {sorted(widths)}")
    width = widths.pop()
    names = [name for part in parts for name in part.names]
    first = names[::width]
    order = np.array(sorted(range(len(first)), key=first.__getitem__), np.int64)
    order = (order[:, None] * width + np.arange(width)).reshape(-1)
    repeated = [name for name, after in zip(sorted(names), sorted(names)[1:]) if name == after]  # noqa: B905
    if repeated:
        raise ValueError(f"parts must have different names; {repeated[0]!r} occurs twice")
    full = [part._memory.filters for part in parts]
    filters = copy_filters(full, names, path, key, filesystem)
    filters.reorder(order.tolist())
    weights = np.concatenate([part._memory.inputs.weights for part in parts])[order]
    return filters, AllocationInputs(weights, Accesses(), parts=width, unsaved=True)


def copy_filters(
    parts: Sequence[_native.Filters],
    names: Sequence[str],
    path: FilePath | None,
    key: bytes | None,
    filesystem: Any = None,
) -> _native.Filters:
    """Copy all filters of parts, under these names."""
    seed = parts[0].seed
    if seed is None and key is None:
        raise ValueError("key must be given: the parts have a secret key")
    filters = storage.create_filters(path, seed or 0, key, filesystem=filesystem)
    start = 0
    for part in parts:
        filters.copy_from(part, range(len(part)), names[start : start + len(part)])
        start += len(part)
    return filters


MAX_KEYS = 4_000_000
"""Keys that are hashed, 16 bytes each, before a kind is chosen for sets of an iterator."""


def choose_for(
    sets: Sets,
    utility: Utility | None,
    budget: int,
    fpr: float,
    miss_cost: float,
    seed: int,
    key: bytes | None,
) -> tuple[Iterator[tuple[str, Any]], KindChoice]:
    """Choose a kind; return all sets, of which the first are hashed already.

    The kind must be known before the filters are built, so the rates are planned with an estimated
    overhead. Once they are built, `plan_prefixes` plans again with exact sizes, which takes about
    1 % of the time of the build.
    If there are more than `MAX_KEYS` keys, the first sets decide. More sets in the same budget have
    higher rates, where ribbons are better.
    """
    given = pairs(sets, "set")
    seen = list[tuple[Any, Hashed]]()
    total, complete = 0, True
    for name, keys in given:
        if not isinstance(keys, _native.Distinct | _native.Full):
            keys = _native.Distinct(keys, seed, key)
        seen.append((name, keys))
        if isinstance(keys, _native.Full):
            return chain(seen, given), KindChoice("auto", "the filters that were given")
        total += len(keys)
        if total > MAX_KEYS:
            complete = False
            break
    counts = np.array([len(keys) for _, keys in seen if isinstance(keys, _native.Distinct)])
    weights = _weights(utility, [name for name, _ in seen]) if complete else np.ones(len(seen))
    choice = choose_kind(counts.astype(np.int64), weights, budget, fpr=fpr, miss_cost=miss_cost)
    if not complete:
        first = f" (by the first {len(seen):,} sets)"
        choice = choice._replace(reason=choice.reason + first)
    return chain(seen, given), choice


def _weights(utility: Utility | None, names: list[Any]) -> Floats:
    """Return utilities, or ones if they are not valid: `build` checks them later."""
    try:
        if isinstance(utility, Mapping):
            utility = [utility[name] for name in names]
        weights = np.array(utility, np.float64)
    except (KeyError, TypeError, ValueError):
        weights = np.zeros(0)
    good = weights.shape == (len(names),) and (np.isfinite(weights) & (weights >= 0)).all()
    return weights if good else np.ones(len(names))
