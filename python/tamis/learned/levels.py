"""Columns of a table as levels: a number by quantiles, a category by its fraction of members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tamis import _native
from tamis.learned.flat import Category, Feature, Number

FOLDS = 5
"""In training, the level of a row's category is computed from the other folds, so that it does not
reveal the row's own label."""

WEIGHT = 10.0
"""Rows added to each category, with the overall fraction of members, so that rare categories are
near the mean."""


@dataclass(frozen=True)
class Column:
    """A feature, and the level of each training row."""

    feature: Feature
    levels: npt.NDArray[np.intp]

    def keep_levels(self, levels: npt.NDArray[np.intp]) -> Feature:
        """Return the feature with only the thresholds of these levels."""
        if isinstance(self.feature, Number):
            return Number(self.feature.name, self.feature.thresholds[levels])
        buckets = self.feature.buckets if len(levels) else np.zeros(1, dtype=np.uint8)
        found = np.searchsorted(levels, buckets).astype(np.uint8)
        return Category(self.feature.name, len(levels) + 1, found)


def read_columns(
    members: _native.Table,
    nonmembers: _native.Table,
    categorical: Sequence[str | int],
    buckets: int,
    levels: int,
    seed: int,
) -> tuple[list[Column], npt.NDArray[np.float64]]:
    """Read both tables; return their columns and the label of each row."""
    described = members.columns
    if nonmembers.columns != described:
        raise TypeError(
            "members and nonmembers must have the same columns of the same types: "
            f"members has {_describe(members)}, nonmembers has {_describe(nonmembers)}"
        )
    labels = np.repeat([1.0, 0.0], [len(members), len(nonmembers)])
    places = [_place(column, described) for column in categorical]
    fold = np.random.default_rng(seed).integers(0, FOLDS, len(labels))
    read = []
    for place, (name, text) in enumerate(described):
        code = 0 if name is None else _native.column_name(name)
        if text or place in places:
            hashes = np.concatenate([table.categories(place) for table in (members, nonmembers)])
            read.append(_category(code, hashes, labels, fold, buckets, levels))
        else:
            numbers = np.concatenate([table.numbers(place) for table in (members, nonmembers)])
            read.append(_number(code, numbers, levels))
    return read, labels


def _describe(table: _native.Table) -> str:
    return ", ".join(
        f"{name or place} ({'text' if text else 'numbers'})"
        for place, (name, text) in enumerate(table.columns)
    )


def _place(column: str | int, described: list[tuple[str | None, bool]]) -> int:
    names = [name for name, _ in described]
    if isinstance(column, str) and column in names:
        return names.index(column)
    if not isinstance(column, str) and 0 <= column < len(described):
        return column
    raise ValueError(
        f"categorical must contain column names or positions from 0 to {len(described) - 1}, "
        f"not {column!r}"
    )


def thresholds(values: npt.NDArray[np.float32], levels: int) -> npt.NDArray[np.float32]:
    """Return thresholds that split values into at most ``levels`` levels of about equal size.

    NaN is below all thresholds.

    >>> thresholds(np.float32([1, 2, 2, 5]), 3)
    array([1.5, 3.5], dtype=float32)
    """
    known = np.sort(values[np.isfinite(values)])
    distinct = np.unique(known)
    if len(distinct) > levels:
        places = np.linspace(0, len(known), levels + 1)[1:-1].astype(np.intp)
        lower = np.unique(np.searchsorted(distinct, known[places]))
        lower = lower[lower < len(distinct) - 1]
    else:
        lower = np.arange(max(len(distinct) - 1, 0))
    low, high = distinct[lower], distinct[lower + 1]
    middle = (low.astype(np.float64) + (high - low).astype(np.float64) / 2).astype(np.float32)
    return np.unique(np.where((low <= middle) & (middle < high), middle, low))


def _number(name: int, numbers: npt.NDArray[np.float32], levels: int) -> Column:
    cuts = thresholds(numbers, levels)
    return Column(Number(name, cuts), count_exceeded(cuts, numbers))


def count_exceeded(cuts: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Return how many thresholds each value exceeds."""
    return np.where(np.isnan(values), 0, np.searchsorted(cuts, values, side="left"))


def _category(
    name: int,
    hashes: npt.NDArray[np.uint64],
    labels: npt.NDArray[np.float64],
    fold: npt.NDArray[np.intp],
    buckets: int,
    levels: int,
) -> Column:
    # Eight buckets per category keep most of them apart; a power of two, selected by a shift.
    target = min(8 * len(np.unique(hashes)), buckets)
    bits = max(target.bit_length() - 1, 1)
    bucket = (hashes >> np.uint64(64 - bits)).astype(np.intp)
    prior = labels.mean()

    def shares(rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
        all_ = np.bincount(bucket[rows], minlength=1 << bits)
        inside = np.bincount(bucket[rows], weights=labels[rows], minlength=1 << bits)
        return np.asarray((inside + WEIGHT * prior) / (all_ + WEIGHT), dtype=np.float32)

    share = shares(np.ones(len(labels), dtype=bool))
    cuts = thresholds(share[bucket], levels)
    training = np.empty(len(labels), dtype=np.intp)
    for part in range(FOLDS):
        own = fold == part
        training[own] = count_exceeded(cuts, shares(~own)[bucket[own]])
    coded = count_exceeded(cuts, share).astype(np.uint8)
    return Column(Category(name, len(cuts) + 1, coded), training)
