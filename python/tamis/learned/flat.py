"""The serialized form of a model, as documented in ``docs/format.md``."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tamis import _native

TABLE, TEXT = 0, 1
LINEAR, TREES, OBLIVIOUS = 0, 1, 2
LAST_PLACE = 255
MAX_LEAVES = 128
MAX_LEVELS = 128


@dataclass(frozen=True)
class Number:
    """A column of numbers: the level is how many of the thresholds a number exceeds."""

    name: int
    thresholds: npt.NDArray[np.float32]

    @property
    def count(self) -> int:
        """The number of levels."""
        return len(self.thresholds) + 1

    def to_bytes(self) -> bytes:
        """Return the bytes that describe this input in a saved model."""
        head = struct.pack("<IBB", self.name, 0, len(self.thresholds))
        return head + self.thresholds.astype("<f4").tobytes()


@dataclass(frozen=True)
class Category:
    """A column of categories: the hash selects a bucket, which holds the level."""

    name: int
    count: int
    buckets: npt.NDArray[np.uint8]

    def to_bytes(self) -> bytes:
        """Return the bytes that describe this input in a saved model."""
        head = struct.pack("<IBIB", self.name, 1, len(self.buckets), self.count)
        return head + self.buckets.tobytes()


Feature: TypeAlias = Number | Category


@dataclass(frozen=True)
class Grams:
    """Text: n-grams of these lengths, hashed to ``buckets`` buckets."""

    shortest: int
    longest: int
    buckets: int

    def to_bytes(self) -> bytes:
        """Return the bytes that describe this input in a saved model."""
        return struct.pack("<BBI", self.shortest, self.longest, self.buckets)


@dataclass
class Tree:
    """A tree: its nodes, and the value of each leaf.

    A node is (feature, level, left place, right place). Node i has place i, and leaf i has place
    255 − i; children come after their parents. In an oblivious tree, node i is the (feature, level)
    of depth i, and its answer is bit i of the leaf's number.
    """

    nodes: list[tuple[int, ...]]
    leaves: list[float]


@dataclass
class Forest:
    """Trees, the bias added to their sum, and whether they are oblivious."""

    trees: list[Tree]
    bias: float = 0.0
    oblivious: bool = False


def quantize(weights: npt.NDArray[np.float64], limit: int) -> tuple[npt.NDArray[np.float64], float]:
    """Round weights to integers from −``limit`` to ``limit``; return them and their scale.

    >>> quantize(np.array([-1.0, 0.26, 0.5]), 127)
    (array([-127.,   33.,   64.]), 0.007874015748031496)
    """
    largest = float(np.abs(weights).max(initial=0.0))
    scale = largest / limit if largest else 1.0
    return np.round(weights / scale), scale


def linear(
    features: list[Feature] | Grams,
    weights: npt.NDArray[np.float64],
    bias: float,
    rows: int,
    slope: float = 1.0,
) -> _native.Handle:
    """Return the model with a weight for each level of each feature, or for each bucket of text."""
    quantized, scale = quantize(weights, 127)
    flat = _input(features) + quantized.astype(np.int8).tobytes()
    count = 0 if isinstance(features, Grams) else len(features)
    reads = TEXT if isinstance(features, Grams) else TABLE
    return _native.Classifier._from_flat(reads, LINEAR, count, scale * slope, bias, rows, flat)


def forest(
    features: list[Feature] | Grams,
    used: npt.NDArray[Any],
    forest: Forest,
    rows: int,
) -> _native.Handle:
    """Return the model of trees over features, or over the used buckets of text."""
    leaves = np.array([leaf for tree in forest.trees for leaf in tree.leaves], dtype=np.float64)
    quantized, scale = quantize(leaves, 32_767)
    parts = [_input(features)]
    text = isinstance(features, Grams)
    if text:
        parts.append(used.astype("<u4").tobytes())
    parts.append(struct.pack("<I", len(forest.trees)))
    node = "<HB" if forest.oblivious else "<HBBB"
    start = 0
    for tree in forest.trees:
        parts.append(struct.pack("<B", len(tree.nodes)))
        parts += [struct.pack(node, *fields) for fields in tree.nodes]
        stop = start + len(tree.leaves)
        parts.append(quantized[start:stop].astype("<i2").tobytes())
        start = stop
    count = len(used) if isinstance(features, Grams) else len(features)
    reads, head = TEXT if text else TABLE, OBLIVIOUS if forest.oblivious else TREES
    flat = b"".join(parts)
    return _native.Classifier._from_flat(reads, head, count, scale, forest.bias, rows, flat)


def _input(features: list[Feature] | Grams) -> bytes:
    if isinstance(features, Grams):
        return features.to_bytes()
    return b"".join(feature.to_bytes() for feature in features)
