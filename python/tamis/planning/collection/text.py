"""Documents as signatures: how long each is, which share a block, how many rows a block keeps.

A signature is a segmented Bloom filter of a document's distinct words. Documents of about as many
words have segments of one length, so that they can stand side by side, bit-sliced (`src/text.rs`):
a row is one bit of each document of a block, and a block is cut to its first rows. Blocks are
filled in the order of utility, so documents of a block deserve about the same; how many rows each
deserves is the problem of `tamis.planning.collection`, where a row costs as many bits as the block
has documents.
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
"""Words of the largest documents of a class over those of the smallest.

A segment has n/ln 2 bits for the largest, and up to a quarter more than that for the smallest: at
1.8 instead of 1.44 bits per word and segment a rate costs 1.4 % more bits, less in between.
"""

BLOCK = 64
"""Documents of a block: the bits of a word."""


def signature(words: int, fpr: float) -> tuple[int, int]:
    """Size the signature of a document: bits of a segment, and segments for this rate.

    >>> signature(100, 1e-4), signature(90, 1e-4), signature(1, 1e-4)
    ((157, 14), (157, 14), (2, 14))
    """
    if not (isinstance(fpr, float | int) and 2.0**-32 <= fpr < 1):
        raise ValueError(f"fpr is {fpr!r}; a rate from 2**-32 to below 1 is wanted")
    # A hair below, so that a power of the ratio does not fall into the class above.
    number = math.ceil(math.log(max(words, 1), RATIO) - 1e-9)
    return math.ceil(RATIO**number / math.log(2)), max(1, math.ceil(-math.log2(fpr)))


@dataclass(frozen=True)
class Rows(Arrays):
    """Blocks: bits of a segment, segments, words of a document, and documents, hence bits of a row.

    A prefix in bits is one in rows, and what is left over tells nothing.
    """

    length: Ints
    hashes: Ints
    words: Ints
    documents: Ints

    @cached_property
    def _one(self) -> Segmented:
        """A document of each block."""
        return Segmented(self.length * self.hashes, self.hashes, self.words)

    @property
    def bits(self) -> Ints:
        """The bits of each full block."""
        return self._one.bits * self.documents

    def rate(self, kept: Ints) -> Floats:
        """Predict the rate of a document cut to the rows that these bits hold."""
        return self._one.rate(kept // self.documents)

    def worth(self, log_price: float, log_utility: Floats) -> Ints:
        """Whole segments, of rows that cost a bit for each document."""
        return self._one.worth(log_price, log_utility - np.log(self.documents)) * self.documents


@dataclass(frozen=True)
class Arrangement:
    """Documents in blocks, the block with the best document first.

    ``ids`` and ``ranks`` name the documents of block after block, ``documents`` says how many each
    has; ``order`` has the documents by rank.
    """

    order: npt.NDArray[np.uint32]
    ids: npt.NDArray[np.uint32]
    ranks: npt.NDArray[np.uint32]
    documents: npt.NDArray[np.uint8]
    curve: Rows
    utility: Floats

    def allocate(self, budget: int) -> Ints:
        """Give each block rows, with the least weighted rate for a budget in bits."""
        return optimal(self.curve, self.utility, budget) // self.curve.documents


def arrange(words: Ints, bits: Ints, hashes: Ints, utility: Floats) -> Arrangement:
    """Put documents of so many words, bits and segments into blocks; those of no words into none.

    >>> a = arrange(*np.array([[9, 8, 9], [78, 78, 78], [6, 6, 6]]), np.array([1.0, 5.0, 2.0]))
    >>> a.ids.tolist(), a.ranks.tolist(), a.documents.tolist()
    ([1, 2, 0], [0, 1, 2], [3])
    >>> a.allocate(3 * 20).tolist()
    [20]
    """
    order = np.argsort(-utility, kind="stable").astype(np.uint32)
    rank = np.empty(len(order), np.uint32)
    rank[order] = np.arange(len(order), dtype=np.uint32)
    # By class, and in it by rank; then cut where the class or the block ends.
    ids = np.lexsort((rank, hashes, bits))
    ids = ids[words[ids] > 0]
    new = np.ones(len(ids), np.bool_)
    new[1:] = (np.diff(bits[ids]) != 0) | (np.diff(hashes[ids]) != 0)
    starts = np.flatnonzero(new)
    within = np.arange(len(ids)) - np.repeat(starts, np.diff(np.append(starts, len(ids))))
    firsts = np.flatnonzero(within % BLOCK == 0)
    documents = np.diff(np.append(firsts, len(ids)))
    # Blocks by their best document, which is their first.
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
