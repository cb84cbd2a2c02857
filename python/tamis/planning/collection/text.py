"""Signatures of documents: their lengths, their blocks, and how many rows each block keeps.

A signature is a segmented Bloom filter of a document's distinct words. Documents with about as many
words have segments of the same length, so that they can be stored bit-sliced (`src/text.rs`): a row
is one bit of each document of a block, and a block keeps its first rows. Blocks are filled in order
of utility, so the documents of a block have similar utilities. How many rows each block keeps is
the problem of `tamis.planning.collection`, where a row costs one bit per document of the block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tamis.planning.collection.curves import Arrays, Floats, Ints, Segmented
from tamis.planning.collection.prices import optimal

RATIO = 1.25
"""Words of the largest document of a class over those of the smallest.

A segment has n/ln 2 bits for the n words of the largest document, and up to a quarter more per word
for the smallest. At 1.8 instead of 1.44 bits per word and segment, a rate costs 1.4 % more bits.
"""

BLOCK = 64
"""Documents per block: the bits of a word."""


def signature(words: int, fpr: float) -> tuple[int, int]:
    """Size the signature of a document: bits per segment, and number of segments.

    >>> signature(100, 1e-4), signature(90, 1e-4), signature(1, 1e-4)
    ((157, 14), (157, 14), (2, 14))
    """
    if not (isinstance(fpr, float | int) and 2.0**-32 <= fpr < 1):
        raise ValueError(f"fpr must be a rate from 2**-32 to below 1, not {fpr!r}")
    # Rounding must not put a power of the ratio into the next class.
    number = math.ceil(math.log(max(words, 1), RATIO) - 1e-9)
    return math.ceil(RATIO**number / math.log(2)), max(1, math.ceil(-math.log2(fpr)))


@dataclass(frozen=True)
class Rows(Arrays):
    """Blocks: bits per segment, segments, words per document, and documents, hence bits per row.

    A prefix in bits is rounded down to whole rows.
    """

    length: Ints
    hashes: Ints
    words: Ints
    documents: Ints

    @cached_property
    def _one(self) -> Segmented:
        """One document of each block."""
        return Segmented(self.length * self.hashes, self.hashes, self.words)

    @property
    def bits(self) -> Ints:
        """Bits of each full block."""
        return self._one.bits * self.documents

    def rate(self, kept: Ints) -> Floats:
        """Predict the rate of a document cut to the rows in these bits."""
        return self._one.rate(kept // self.documents)

    def worth(self, log_price: float, log_utility: Floats) -> Ints:
        """Whole segments, of rows that cost one bit per document."""
        return self._one.worth(log_price, log_utility - np.log(self.documents)) * self.documents


@dataclass(frozen=True)
class Arrangement:
    """Documents in blocks, sorted by the best document of each block.

    ``ids`` and ``ranks`` list the documents block by block, ``documents`` has the size of each
    block, and ``order`` has the documents by rank.
    """

    order: npt.NDArray[np.uint32]
    ids: npt.NDArray[np.uint32]
    ranks: npt.NDArray[np.uint32]
    documents: npt.NDArray[np.uint8]
    curve: Rows
    utility: Floats

    def allocate(self, budget: int) -> Ints:
        """Return the rows of each block that minimize the weighted rate for a budget in bits."""
        return optimal(self.curve, self.utility, budget) // self.curve.documents


def arrange(words: Ints, bits: Ints, hashes: Ints, utility: Floats) -> Arrangement:
    """Arrange documents with these words, bits and segments in blocks; skip those without words.

    >>> a = arrange(*np.array([[9, 8, 9], [78, 78, 78], [6, 6, 6]]), np.array([1.0, 5.0, 2.0]))
    >>> a.ids.tolist(), a.ranks.tolist(), a.documents.tolist()
    ([1, 2, 0], [0, 1, 2], [3])
    >>> a.allocate(3 * 20).tolist()
    [20]
    """
    order = np.argsort(-utility, kind="stable").astype(np.uint32)
    rank = np.empty(len(order), np.uint32)
    rank[order] = np.arange(len(order), dtype=np.uint32)
    # Sort by class, then by rank; cut where a class or a block ends.
    ids = np.lexsort((rank, hashes, bits))
    ids = ids[words[ids] > 0]
    new = np.ones(len(ids), np.bool_)
    new[1:] = (np.diff(bits[ids]) != 0) | (np.diff(hashes[ids]) != 0)
    starts = np.flatnonzero(new)
    within = np.arange(len(ids)) - np.repeat(starts, np.diff(np.append(starts, len(ids))))
    firsts = np.flatnonzero(within % BLOCK == 0)
    documents = np.diff(np.append(firsts, len(ids)))
    # Sort blocks by their best document, which is their first.
    by_best = np.argsort(rank[ids[firsts]], kind="stable")
    firsts, documents = firsts[by_best], documents[by_best]
    ends = np.cumsum(documents)
    ids = ids[np.arange(len(ids)) - np.repeat(ends - documents - firsts, documents)]
    block = np.repeat(np.arange(len(documents)), documents)
    total = np.bincount(block, words[ids], len(documents))
    lead = ids[ends - documents]
    curve = Rows(
        bits[lead] // np.maximum(hashes[lead], 1),
        hashes[lead],
        np.rint(total / np.maximum(documents, 1)).astype(np.int64),
        documents.astype(np.int64),
    )
    return Arrangement(
        order,
        ids.astype(np.uint32),
        rank[ids],
        documents.astype(np.uint8),
        curve,
        np.bincount(block, utility[ids], len(documents)).astype(np.float64),
    )
