"""Batches of keys as callers give them, also of text and integers, which no column can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tamis._native import hash_keys
from tamis.stores.contract import GivenKey, GivenKeys, Value


def split_by_type(keys: Sequence[Any]) -> list[Sequence[int]]:
    """Return the indices of the integer keys and of the text keys, without empty lists."""
    if len({*map(type, keys)}) == 1:
        return [range(len(keys))]
    parts: tuple[list[int], list[int]] = ([], [])
    for i, key in enumerate(keys):
        parts[isinstance(key, (str, bytes))].append(i)
    return [part for part in parts if part]


def apply_by_type(function: Callable[[Sequence[Any]], Any], keys: Sequence[Any]) -> Any:
    """Call a function that takes keys of one type, once per type if the keys are mixed."""
    try:
        return function(keys)
    except TypeError:
        if len(parts := split_by_type(keys)) < 2:
            raise
    answers = [function([keys[i] for i in part]) for part in parts]
    return np.concatenate(answers)[np.argsort(np.concatenate(parts))]


def to_list(keys: GivenKeys) -> list[Any]:
    """Return keys as a list of Python objects; raise the error of a filter for anything else."""
    if isinstance(keys, (str, bytes)) or not hasattr(keys, "__iter__"):
        hash_keys(keys)
    for name in ("tolist", "to_pylist", "to_list"):
        if hasattr(keys, name):
            objects: list[Any] = getattr(keys, name)()
            return objects
    return list(keys)  # type: ignore[arg-type]


def read_pairs(items: Any) -> tuple[list[GivenKey], list[Value]]:
    """Return keys and values, given as a mapping or as pairs."""
    pairs = items.items() if hasattr(items, "items") else items
    wrong = items
    if isinstance(pairs, Iterable):
        keys, values = [], []
        for wrong in pairs:
            try:
                key, value = wrong
            except (TypeError, ValueError):
                break
            keys.append(key)
            values.append(value)
        else:
            return keys, values
    raise TypeError(
        f"items must be a mapping of keys to values, or pairs of a key and a value, not {wrong!r}"
    )
