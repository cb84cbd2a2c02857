"""Saved workloads: a Parquet file of values with their counts and costs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import numpy as np

from tamis._checks import MALFORMED, check_path, check_share
from tamis._columns import pyarrow
from tamis._files import open_regular, save_atomically
from tamis.errors import FormatError
from tamis.planning.stacked.frequencies import Steps, Zipf
from tamis.workload.counts import check_weights
from tamis.workload.unseen import Method

if TYPE_CHECKING:
    from tamis._types import FilePath
    from tamis.workload.workload import Workload

_W = TypeVar("_W", bound="Workload")


def save(workload: Workload, path: FilePath) -> None:
    """Write a workload to a Parquet file, atomically."""
    parquet = _parquet()
    columns: dict[str, Any] = {}
    if workload.values is not None:
        columns["value"] = workload.values
    if workload.counts is not None:
        columns["count"] = np.ascontiguousarray(workload.counts)
    if workload.costs is not None:
        columns["cost"] = np.ascontiguousarray(workload.costs)
    metadata: dict[str, Any] = {
        "unseen": workload.unseen,
        "removed": workload.removed,
        "present": workload.present,
        "error": workload.error,
        "unseen_method": workload.unseen_method,
        "discount": workload.discount,
    }
    if isinstance(workload.curve, Zipf):
        curve = workload.curve
        metadata["zipf"] = [curve.exponent, curve.universe, curve.size]
    arrow = pyarrow("a Parquet file")
    table = arrow.table(columns).replace_schema_metadata({"tamis": json.dumps(metadata)})

    def write(descriptor: int) -> None:
        with open(descriptor, "wb", closefd=False) as file:
            parquet.write_table(table, file)

    save_atomically(path, write)


def load(cls: type[_W], path: FilePath) -> _W:
    """Read a workload that `save` wrote; `FormatError` for any other file, or a damaged one."""
    parquet = _parquet()
    where = check_path(path)
    try:
        with open_regular(path) as file:
            table = parquet.ParquetFile(file).read()
        metadata = json.loads((table.schema.metadata or {})[b"tamis"])
        if "zipf" in metadata:
            return cls.zipf(*metadata["zipf"])
        return cls(**_checked(table, metadata))
    except (*MALFORMED, OSError) as error:
        # pyarrow raises a plain OSError without an errno for a damaged file.
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno):
            raise
        raise FormatError(f"{where} is not a saved workload ({error})") from None


def _checked(table: Any, metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the workload; raise an error if they contradict each other."""
    arguments = {name: metadata[name] for name in ("removed", "present", "error")}
    for name, value in arguments.items():
        check_weights(name, [value])
    method = arguments["unseen_method"] = metadata["unseen_method"]
    if method not in get_args(Method):
        raise ValueError(f"unseen_method is {method!r}")
    discount = arguments["discount"] = check_share("discount", metadata["discount"])
    counts = arguments["counts"] = check_weights("count", table["count"].to_numpy())
    costs = table["cost"].to_numpy() if "cost" in table.column_names else None
    total_costs = counts if costs is None else counts * check_weights("cost", costs)
    # A total cost is a count times a mean cost, so it may be off by a rounding error.
    if (total_costs[1:] > total_costs[:-1] * (1 + 1e-9)).any():
        raise ValueError("counts, or counts times costs, are not in descending order")
    if len(counts) and counts.min() < discount:
        raise ValueError(f"discount is {discount}, larger than a count")
    arguments["costs"] = costs
    arguments["values"] = table["value"] if "value" in table.column_names else None
    total = 1 - check_share("unseen", metadata["unseen"])
    arguments["curve"] = Steps.of(counts - discount, total=total)
    return arguments


def _parquet() -> Any:
    pyarrow("a Parquet file")
    from pyarrow import parquet

    return parquet
