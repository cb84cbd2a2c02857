"""The native kernels: the classes of the contract, and one class per kind.

`tamis.filters` derives the public classes from them; sizes come from `tamis.planning`. Names with
an underscore are for these classes alone: ``_empty``, ``_build`` and ``_join`` create the handle
that a class holds.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Self, final

import numpy as np
import numpy.typing as npt
from typing_extensions import disjoint_base

from tamis._types import Key, Keys, Remote, Time, Times
from tamis.filters.stable_learned import Shares
from tamis.planning import (
    adaptive_cuckoo,
    bloom,
    cuckoo,
    fuse,
    quotient,
    ribbon,
    stable,
    telescoping,
    windowed,
)
from tamis.planning.stable_learned.groups import Group

__all__ = [
    "DEBUG_BUILD",
    "REGIONS",
    "Adapting",
    "AdaptiveCuckoo",
    "AdaptiveQuotient",
    "AdaptiveStacked",
    "AdaptiveState",
    "Assigned",
    "Batch",
    "Bloom",
    "BuiltLayer",
    "Classifier",
    "Cuckoo",
    "Deleting",
    "Distinct",
    "Filter",
    "FilterSizes",
    "Filters",
    "Fingerprints",
    "FrameHeader",
    "FrameSection",
    "Full",
    "Function",
    "Fuse",
    "Gate",
    "Handle",
    "Hashes",
    "Inserting",
    "KindRow",
    "LearnedBloom",
    "Lookup",
    "Negatives",
    "Quotient",
    "Resident",
    "Ribbon",
    "ScoreGroup",
    "ScoreRegion",
    "ScoredKeys",
    "Shard",
    "Sharded",
    "Sliced",
    "Spill",
    "StableBloom",
    "StableLearned",
    "Stacked",
    "Stored",
    "Table",
    "TextGrams",
    "TextOptions",
    "Windowed",
    "__version__",
    "check_file",
    "checksum",
    "column_name",
    "encode_hashes",
    "hash_keys",
    "key_list",
    "kinds",
    "now",
    "open_bytes",
    "open_file",
    "plain_key",
    "plain_keys",
    "split",
    "text_grams",
    "tuple_parts",
    "words",
]

__version__: str
DEBUG_BUILD: bool
REGIONS: int

@final
class FrameSection:
    """A section of a container, as its header lists it."""

    def __new__(cls, kind: int, length: int, checksum: int) -> Self: ...
    @property
    def kind(self) -> int:
        """The section type."""
    @property
    def offset(self) -> int:
        """Its offset in the frame."""
    @property
    def length(self) -> int:
        """Its length in bytes."""
    @property
    def checksum(self) -> int:
        """XXH3-64 of the section, or of the header of the frame that it contains."""
    @property
    def padding(self) -> int:
        """Zeros before it."""

@final
class FrameHeader:
    """The header of a container, see `tamis._frames`."""

    @staticmethod
    def read(start: bytes, length: int) -> FrameHeader:
        """Read the header of a frame of ``length`` bytes from the bytes at its beginning."""
    @staticmethod
    def size(start: bytes) -> int:
        """Return the length of the header that begins with these bytes, at least 56."""
    @staticmethod
    def stated_length(start: bytes) -> int:
        """Return the length of the frame, as the header that begins with these bytes states it."""
    @staticmethod
    def write(kind: str, sections: Sequence[FrameSection]) -> bytes: ...
    @property
    def kind(self) -> str:
        """The name of its kind."""
    @property
    def sections(self) -> list[FrameSection]:
        """The sections that a reader must know."""
    @property
    def optional(self) -> list[FrameSection]:
        """The sections that a reader may skip."""

def checksum(content: bytes) -> int:
    """Return XXH3-64, the checksum of sections."""

def check_file(path: str) -> None:
    """Check every checksum of a file, frames inside it included."""

@final
class Handle:
    """A kernel and its hash, held by a class of its kind."""

    @property
    def kind(self) -> int: ...
    @property
    def size_in_bits(self) -> int: ...

@final
class KindRow:
    """A kind: its number in a file, its name, and what all of its filters support."""

    @property
    def number(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def layer(self) -> bool: ...
    @property
    def inserts(self) -> bool: ...
    @property
    def deletes(self) -> bool: ...
    @property
    def counts(self) -> bool: ...
    @property
    def bounded(self) -> bool: ...
    @property
    def merges(self) -> bool: ...
    @property
    def adapts(self) -> bool: ...
    @property
    def forgets(self) -> bool: ...

def kinds() -> list[KindRow]:
    """List all kinds, by number."""

@final
class Distinct:
    """Distinct keys, as hashes."""

    def __new__(cls, keys: Keys, seed: int = 0, key: bytes | None = None) -> Self: ...
    def __len__(self) -> int: ...
    def without(self, others: Distinct) -> Distinct: ...
    def accepted_by(self, layer: Handle, index: int) -> Distinct: ...
    def at_layer(self, index: int) -> Distinct: ...

@final
class Shard:
    """The keys of parts of one shard."""

    def __new__(cls, parts: Sequence[Any], key: bytes | None = None) -> Self: ...
    @property
    def keys(self) -> Distinct: ...
    @property
    def index(self) -> int: ...
    @property
    def shards(self) -> int: ...

def split(keys: Keys, shards: int, *, seed: int = 0, key: bytes | None = None) -> list[bytes]: ...

_Ints = npt.NDArray[np.int64]

@final
class Full:
    """The full filter of one set."""

    def __new__(
        cls, keys: Distinct, kind: str, hashes: int, bits: int = 0, levels: Sequence[int] = ...
    ) -> Self: ...

@final
class FilterSizes:
    """The sizes of filters: one array per field, one element per filter."""

    @property
    def kinds(self) -> npt.NDArray[np.uint8]: ...
    @property
    def hashes(self) -> _Ints: ...
    @property
    def bits(self) -> _Ints: ...
    @property
    def codes(self) -> _Ints: ...
    @property
    def slots(self) -> _Ints: ...
    @property
    def widths(self) -> _Ints: ...
    @property
    def counts(self) -> _Ints: ...
    @property
    def overhead(self) -> int: ...

@final
class TextOptions:
    """How a text index was built."""

    def __new__(cls, own_tokenizer: bool, stop_words: str, keep_texts: bool) -> Self: ...
    @property
    def own_tokenizer(self) -> bool: ...
    @property
    def stop_words(self) -> str: ...
    @property
    def keep_texts(self) -> bool: ...

@final
class Filters:
    """The full filters of a collection, in files."""

    def __new__(
        cls,
        spill: int,
        seed: int = 0,
        key: bytes | None = None,
        texts: TextOptions | None = None,
    ) -> Self: ...
    @staticmethod
    def bits_offset(start: bytes, length: int) -> int: ...
    @staticmethod
    def open(
        descriptor: int,
        spill: int,
        key: bytes | None = None,
        texts: bool = False,
        offset: int = 0,
        length: int | None = None,
        object: object | None = None,
    ) -> tuple[Filters, npt.NDArray[np.float64]]: ...
    def __len__(self) -> int: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def texts(self) -> TextOptions | None: ...
    def add(self, name: str, full: Full, text: str | None = None) -> None: ...
    def text(self, id: int) -> str | None: ...
    def copy_from(self, other: Filters, ids: Sequence[int], names: Sequence[str]) -> None: ...
    def reorder(self, order: Sequence[int]) -> None: ...
    def without(self, ids: Sequence[int]) -> Filters: ...
    def name(self, id: int) -> str: ...
    def names(self) -> list[str]: ...
    def find(self, name: str) -> int | None: ...
    def sizes(self, parts: int = 1, start: int = 0, stop: int | None = None) -> FilterSizes: ...
    def resident(
        self,
        order: npt.NDArray[np.uint32],
        kept: npt.NDArray[np.uint64],
        loaded: Resident | None = None,
        before: npt.NDArray[np.uint32] | None = None,
    ) -> Resident: ...
    def changed(
        self,
        loaded: Resident,
        ids: npt.NDArray[np.uint32],
        kept: npt.NDArray[np.uint64],
        at: npt.NDArray[np.uint32],
    ) -> Resident: ...
    def sliced(
        self,
        classes: npt.NDArray[np.uint32],
        ids: npt.NDArray[np.uint32],
        segments: npt.NDArray[np.uint8],
        order: npt.NDArray[np.uint32],
    ) -> Sliced: ...
    def size_in_bytes(self, *, saved: bool = False) -> int: ...
    def write(self, descriptor: int, utilities: npt.NDArray[np.float64]) -> None: ...

@final
class Resident:
    """The prefixes of a collection's filters in memory."""

    def candidates(self, key: Key, limit: int, hybrid: bool) -> npt.NDArray[np.uint32]: ...
    def candidates_many(
        self, keys: Keys, limit: int, hybrid: bool
    ) -> tuple[_Ints, npt.NDArray[np.uint32]]: ...
    def kept_into(self, out: _Ints) -> None: ...
    @property
    def bits(self) -> int: ...
    @property
    def overhead(self) -> int: ...
    @property
    def tail_reads(self) -> int: ...

@final
class Sliced:
    """The prefixes of filters in memory, by rows."""

    def candidates(self, key: Key, limit: int, hybrid: bool) -> npt.NDArray[np.uint32]: ...
    def candidates_many(
        self, keys: Keys, limit: int, hybrid: bool
    ) -> tuple[_Ints, npt.NDArray[np.uint32]]: ...
    def search(self, terms: Keys, limit: int) -> npt.NDArray[np.uint32]: ...
    def kept_into(self, out: _Ints) -> None: ...
    @staticmethod
    def max_overhead(classes: Sequence[int], sets: int, segments: int) -> int: ...
    @property
    def bits(self) -> int: ...
    @property
    def overhead(self) -> int: ...
    @property
    def tail_reads(self) -> int: ...

@final
class Spill:
    """Hashes of keys by shard: in memory, or in one file each."""

    def __new__(
        cls,
        partitions: int,
        files: Sequence[str] | None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self: ...
    def add(self, keys: Keys) -> None: ...
    def lengths(self) -> list[int]: ...
    def compact(self) -> None: ...
    def distinct(self, start: int, stop: int, keep: bool = False) -> Distinct: ...

@final
class Negatives:
    """Known negatives that the first layer of a stack accepts."""

    def __new__(cls, first: Handle) -> Self: ...
    def add(self, negatives: Keys) -> None: ...
    @property
    def given(self) -> int: ...
    def by_shard(self, shards: int) -> list[Negatives]: ...
    def distinct(self, keys: Distinct) -> Distinct: ...
    def ranks(self, some: Distinct) -> npt.NDArray[np.uint64]: ...
    def earliest(self, negatives: Distinct, count: int) -> Distinct: ...

@final
class Table:
    """A table of features, read without copying."""

    def __new__(cls, table: object) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def columns(self) -> list[tuple[str | None, bool]]: ...
    def numbers(self, column: int) -> npt.NDArray[np.float32]: ...
    def categories(self, column: int) -> npt.NDArray[np.uint64]: ...

@final
class Assigned:
    """Distinct keys, as hashes, with their values."""

    def __new__(
        cls, keys: Keys, values: npt.NDArray[np.uint32], seed: int = 0, key: bytes | None = None
    ) -> Self: ...
    @staticmethod
    def at_layer(index: int, keys: Distinct, negatives: Distinct) -> Assigned: ...
    def __len__(self) -> int: ...

@disjoint_base
class Stored:
    """An object that holds a kernel: it has a size and can be saved."""

    def __new__(cls, handle: Handle) -> Self: ...
    def __len__(self) -> int:
        """Return the number of keys; some kinds estimate it for many or merged keys."""

    @property
    def capacity(self) -> int:
        """The number of keys that the filter is sized for."""

    @property
    def size_in_bits(self) -> int:
        """The size in bits."""

    @property
    def seed(self) -> int | None:
        """The seed of the hash, or `None` if a secret key is used."""

    def to_bytes(self) -> bytes:
        """Return the filter as bytes, as `save` writes them."""

    @property
    def _handle(self) -> Handle: ...
    def _copied(self) -> Handle: ...
    def _reseeded(self, seed: int) -> Handle: ...
    def _write(self, descriptor: int) -> None: ...

class Filter(Stored):
    """The base of every filter."""

    def __new__(cls, handle: Handle) -> Self: ...
    def __contains__(self, key: Key, /) -> bool:
        """Return whether the key may be in the set; `False` is certain."""

    def contains(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return for each key whether it may be in the set.

        An array or Arrow column of millions of keys is answered with all cores. Most filters that
        are larger than the caches answer it in the order of their memory, which takes up to 23
        bytes per key meanwhile, at most 45 MiB per core.
        """

    @property
    def expected_fpr(self) -> float:
        """The false-positive rate: the probability that an absent key is accepted.

        For filters that know their workload, such as stacks, this is the rate under the workload.
        """

    @property
    def fpr_bound(self) -> float:
        """The false-positive rate of an absent key that is not in the workload."""

class Function(Stored):
    """A map from keys to values; other keys have arbitrary values."""

    def __new__(cls, handle: Handle) -> Self: ...
    @staticmethod
    def _build(size: ribbon.RibbonSize, keys: Assigned) -> Handle: ...
    @property
    def bits(self) -> int:
        """The number of bits of a value (r)."""

    def __getitem__(self, key: Key, /) -> int:
        """Return the value of a key; arbitrary if it was not built from this key."""

    def get(self, keys: Keys) -> npt.NDArray[np.uint32]:
        """Return the value of each key."""

class Inserting(Filter):
    """A filter that supports insertion."""

    def __new__(cls, handle: Handle) -> Self: ...
    def add(self, key: Key) -> None:
        """Insert a key."""

    def update(self, keys: Keys) -> None:
        """Insert many keys; if one is not a valid key, none is inserted."""

class Deleting(Inserting):
    """A filter that supports insertion and deletion."""

    def __new__(cls, handle: Handle) -> Self: ...
    def remove(self, key: Key) -> None:
        """Remove one insertion of the key; raise `KeyError` if it is certainly absent."""

    def remove_many(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Remove one insertion of each key; return for each whether it may have been present."""

class Adapting(Deleting):
    """A filter that moves elements to fix false positives."""

    def __new__(cls, handle: Handle) -> Self: ...
    def add(self, key: Key, remote: Remote | None = None) -> None:
        """Insert a key; with the remote, a full filter grows."""

    def update(self, keys: Keys, remote: Remote | None = None) -> None:
        """Insert many keys; if one is refused, none is inserted, but the filter may have grown."""

    def remove(self, key: Key, remote: Remote | None = None) -> None:
        """Remove one insertion of the key; raise `KeyError` if it is certainly absent."""

    def remove_many(self, keys: Keys, remote: Remote | None = None) -> npt.NDArray[np.bool_]:
        """Remove one insertion of each key; return for each whether it may have been present."""

    def _remove_owned(self, keys: list[Any], remote: Remote) -> None: ...
    def adapt(self, key: Key, remote: Remote) -> bool:
        """Report a false positive; return whether anything changed."""

    def adapt_many(self, keys: Keys, remote: Remote) -> npt.NDArray[np.bool_]:
        """Report false positives; return for each whether anything changed."""

    def _adapt_hashes(
        self, hashes: npt.NDArray[np.uint64], remote: Remote
    ) -> npt.NDArray[np.bool_]: ...
    def grow(self, remote: Remote) -> None:
        """Double the capacity, from the stored hashes."""

@final
class Lookup:
    """A query that a gate did not answer."""

    @property
    def key(self) -> bytes | int: ...
    @property
    def accepted(self) -> bool: ...
    @property
    def hashes(self) -> npt.NDArray[np.uint64]: ...

@final
class Batch:
    """Keys to be written, with their hashes."""

    @property
    def hashes(self) -> npt.NDArray[np.uint64]: ...
    @property
    def regions(self) -> list[int]: ...

@final
class Gate:
    """The filter of a guard, and the time until which its "no" is final."""

    def __new__(cls, filter: Any, seed: int | None = None, key: bytes | None = None) -> Self: ...
    @property
    def filter(self) -> Any: ...
    @property
    def forked(self) -> bool: ...
    @property
    def denied(self) -> int: ...
    @property
    def found(self) -> int: ...
    @property
    def change_checks(self) -> int: ...
    def lookup(self, key: Key) -> Lookup | None: ...
    def accepts(self, lookup: Lookup) -> bool: ...
    def batch(self, keys: list[Any]) -> Batch: ...
    def accepted(self, batch: Batch) -> list[int]: ...
    def current_filter(self) -> Any | None: ...
    def replace(self, filter: Any) -> None: ...
    def open_until(self, seconds: float) -> None: ...
    def close(self) -> None: ...
    def count_denied(self, queries: int) -> None: ...
    def count_found(self, queries: int) -> None: ...
    def count_change_check(self) -> None: ...

def plain_key(key: Key) -> bytes | int:
    """Return the plain form of a key, bytes or an int: what filters hash, and stores take."""

def plain_keys(keys: list[Any]) -> list[bytes | int]:
    """Return the plain form of each key of a list."""

def key_list(keys: Any) -> list[Any]:
    """Return keys as a list of Python objects."""

def tuple_parts(form: bytes) -> tuple[bytes | int, ...] | None:
    """Return the parts of a tuple's plain form, or None if the bytes are not a tuple's."""

def now() -> float:
    """Return seconds since the machine was started, suspended time included."""

def encode_hashes(hashes: npt.NDArray[np.uint64]) -> list[bytes]:
    """Encode each hash as sixteen big-endian bytes, which sort in numeric order."""

@disjoint_base
class Hashes:
    """Sorted hashes, with repetitions: a remote in memory."""

    def __new__(
        cls, keys: Keys | None = None, *, seed: int = 0, key: bytes | None = None
    ) -> Self: ...
    def __len__(self) -> int:
        """Return the number of stored hashes, including repetitions."""

    def add(self, key: Key) -> None:
        """Store the hash of a key, again if it is already stored."""

    def update(self, keys: Keys) -> None:
        """Store the hashes of many keys."""

    def remove(self, key: Key) -> None:
        """Remove the hash of a key once; raise `KeyError` if it is not stored."""

    def run(self, low: int, high: int) -> npt.NDArray[np.uint64]:
        """Return the hashes whose first word is from ``low`` to ``high``, with repetitions."""

    def scan(self) -> Iterator[npt.NDArray[np.uint64]]:
        """Return all hashes, in parts."""

class Bloom(Inserting):
    """A Bloom filter."""

    def __new__(cls, handle: Handle) -> Self: ...
    @staticmethod
    def _empty(
        size: bloom.BloomSize, capacity: int, seed: int = 0, key: bytes | None = None
    ) -> Handle: ...
    @staticmethod
    def _build(size: bloom.BloomSize, keys: Distinct, capacity: int = 0) -> Handle: ...
    @staticmethod
    def _build_any(
        keys: Keys, size: Callable[[int], bloom.BloomSize], seed: int = 0, key: bytes | None = None
    ) -> Handle: ...
    @property
    def layout(self) -> Literal["blocked", "standard", "segmented"]:
        """Where the bits of a key are."""

    @property
    def hashes(self) -> int:
        """The number of bits per key (k)."""

    def cardinality(self) -> float:
        """Estimate the number of distinct keys from the set bits; infinite if all are set."""

    def _union(self, other: Bloom) -> Handle: ...
    def _intersection(self, other: Bloom) -> Handle: ...
    def _truncated(self, bits: int) -> Handle: ...

class Cuckoo(Deleting):
    """A cuckoo filter."""

    def __new__(cls, handle: Handle) -> Self: ...
    @staticmethod
    def _empty(
        size: cuckoo.CuckooSize, capacity: int, seed: int = 0, key: bytes | None = None
    ) -> Handle: ...
    @staticmethod
    def _build(size: cuckoo.CuckooSize, keys: Distinct, capacity: int = 0) -> Handle: ...
    @property
    def fingerprint_bits(self) -> int:
        """The length of a fingerprint in bits (f), after `truncate` if it was called."""

    @property
    def _whole_fingerprint_bits(self) -> int: ...
    @property
    def _chunks(self) -> int: ...
    @property
    def _buckets(self) -> int: ...
    @property
    def _near(self) -> int: ...
    def _truncated(self, bits: int) -> Handle: ...

class Fuse(Filter):
    """A binary fuse filter."""

    def __new__(cls, handle: Handle) -> Self: ...
    @staticmethod
    def _build(size: fuse.FuseSize, keys: Distinct, capacity: int = 0) -> Handle: ...
    @staticmethod
    def _build_any(
        keys: Keys, size: Callable[[int], fuse.FuseSize], seed: int = 0, key: bytes | None = None
    ) -> Handle: ...
    @property
    def arity(self) -> int:
        """The number of slots per key (K)."""

    @property
    def fingerprint_bits(self) -> int:
        """The number of bits per slot (r): the rate is 2^−r."""

    @property
    def _segment_length(self) -> int: ...
    @property
    def _segments(self) -> int: ...
    @property
    def _attempts(self) -> int: ...

class Ribbon(Filter):
    """A ribbon filter."""

    def __new__(cls, handle: Handle) -> Self: ...
    @staticmethod
    def _build(size: ribbon.RibbonSize, keys: Distinct, capacity: int = 0) -> Handle: ...
    @property
    def layout(self) -> Literal["interleaved", "columns"]:
        """The order of the columns."""

    @property
    def _columns(self) -> int: ...
    @property
    def _share(self) -> int: ...
    @property
    def _slots(self) -> int: ...
    @property
    def _kept(self) -> int: ...
    def _truncated(self, bits: int) -> Handle: ...

@final
class Fingerprints:
    """The stored fingerprints, one row each, and how often each was added."""

    @property
    def quotients(self) -> npt.NDArray[np.uint64]: ...
    @property
    def remainders(self) -> npt.NDArray[np.uint64]: ...
    @property
    def counts(self) -> npt.NDArray[np.uint64]: ...

class Quotient(Deleting):
    """A quotient filter."""

    def __new__(cls, handle: Handle) -> Self: ...
    @staticmethod
    def _empty(
        size: quotient.QuotientSize, capacity: int, seed: int = 0, key: bytes | None = None
    ) -> Handle: ...
    @staticmethod
    def _build(size: quotient.QuotientSize, keys: Distinct, capacity: int = 0) -> Handle: ...
    @property
    def quotients(self) -> int:
        """The number of quotients (Q): fingerprints are numbers below Q·2^r."""

    @property
    def remainder_bits(self) -> int:
        """The length of a remainder in bits (r); one less after each doubling."""

    @property
    def load(self) -> float:
        """The fraction of slots in use."""

    def count(self, key: Key) -> int:
        """Return how often the key was added; too high only if another key has its fingerprint."""

    def grow(self) -> None:
        """Double the capacity now: twice the slots, one remainder bit less, the same answers."""

    def _merged(self, other: Quotient) -> Handle: ...
    def _truncated(self, bits: int) -> Handle: ...
    def _fingerprints(self, start: int, stop: int) -> Fingerprints: ...

class Sharded(Filter):
    """A filter in shards."""

    def __new__(cls, handle: Handle) -> Self: ...
    @staticmethod
    def _join(
        shards: Sequence[tuple[int, Handle]], total: int, capacity: int | None = None
    ) -> Handle: ...
    def _present(self) -> list[tuple[int, Handle]]: ...
    @property
    def shards(self) -> int:
        """The number of shards."""

@final
class BuiltLayer:
    """The state of a layer: its kind, its content, and its present size and rate."""

    @property
    def kind(self) -> str: ...
    @property
    def stores(self) -> Literal["keys", "negatives", "both"]: ...
    @property
    def items(self) -> int: ...
    @property
    def bits(self) -> int: ...
    @property
    def rate(self) -> float: ...

class Stacked(Deleting):
    """A stack of filters."""

    def __new__(cls, handle: Handle) -> Self: ...
    @staticmethod
    def _join(
        layers: Sequence[Handle],
        psi: float,
        keys_among_negatives: int,
        exhausted: bool,
        capacity: int,
    ) -> Handle: ...
    @property
    def inserts(self) -> bool:
        """Whether keys can be added: every layer of keys supports insertion."""

    @property
    def deletes(self) -> bool:
        """Whether keys can be removed: every layer of keys supports deletion."""

    @property
    def bounded(self) -> bool:
        """Whether keys beyond the capacity are refused: by a layer of keys that is full."""

    @property
    def psi(self) -> float:
        """The fraction of queries for absent keys that are for known negatives (ψ)."""

    @property
    def keys_among_negatives(self) -> int:
        """The number of keys that were also given as negatives, and were ignored."""

    @property
    def known_fpr(self) -> float:
        """The false-positive rate of known negatives, if removals affect old and new keys alike.

        `expected_fpr` is the mean of this and `fpr_bound` with weights ψ and 1 − ψ.
        """

    @property
    def _layers(self) -> list[BuiltLayer]: ...

@final
class AdaptiveState:
    """The counts and the progress of an adaptive stack."""

    @property
    def version(self) -> int: ...
    @property
    def building(self) -> bool: ...
    @property
    def rebuilds(self) -> int: ...
    @property
    def psi(self) -> float: ...
    @property
    def layers(self) -> int: ...
    @property
    def collected(self) -> int: ...
    @property
    def negatives_capacity(self) -> int: ...
    @property
    def collecting(self) -> int: ...
    @property
    def window_negatives(self) -> int: ...
    @property
    def window_false_positives(self) -> int: ...
    @property
    def strikes(self) -> int: ...
    @property
    def negatives(self) -> int: ...
    @property
    def false_positives(self) -> int: ...
    @property
    def sample_shift(self) -> int: ...

class AdaptiveStacked(Deleting):
    """A stack that grows from its false positives."""

    def __new__(cls, handle: Handle) -> Self: ...
    @staticmethod
    def _begin_with(
        first: Handle, negatives: Handle | None, negatives_capacity: int, plan: bytes, capacity: int
    ) -> Handle: ...
    def _observe(self, keys: Keys) -> npt.NDArray[np.bool_]: ...
    def _observe_hashes(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]: ...
    @property
    def _state(self) -> AdaptiveState: ...
    @property
    def _layers(self) -> list[BuiltLayer]: ...
    @property
    def known_fpr(self) -> float:
        """The false-positive rate of known negatives; see `Stacked.known_fpr`."""

    @property
    def _sample(self) -> npt.NDArray[np.uint64]: ...
    @property
    def _plan(self) -> bytes: ...
    def _begin_layer(self, version: int, layer: Handle, first: bool) -> int | None: ...
    def _fill(self, ticket: int, hashes: npt.NDArray[np.uint64]) -> None: ...
    def _finish(
        self,
        ticket: int,
        psi: float,
        negatives: Handle | None,
        negatives_capacity: int,
        plan: bytes | None,
    ) -> bool: ...
    def _abandon(self, ticket: int) -> None: ...
    def _drop_behind_first(
        self, version: int, negatives: Handle | None, negatives_capacity: int
    ) -> bool: ...
    def _begin_window(self, version: int, psi: float | None = None) -> None: ...

class AdaptiveQuotient(Adapting):
    """An adaptive quotient filter: telescoping or extending."""

    def __new__(cls, handle: Handle) -> Self: ...
    @staticmethod
    def _empty(
        size: telescoping.TelescopingSize,
        extending: bool,
        capacity: int,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Handle: ...
    @staticmethod
    def _build(
        size: telescoping.TelescopingSize, extending: bool, keys: Distinct, capacity: int = 0
    ) -> Handle: ...
    @property
    def selectors(self) -> Literal["growing", "block", "plain"]:
        """How selectors are stored: ``"growing"``, ``"block"`` or ``"plain"``."""

    @property
    def quotients(self) -> int:
        """The number of quotients (Q): the stored hashes of each are one range."""

    @property
    def remainder_bits(self) -> int:
        """The length of a remainder in bits (r)."""

    @property
    def _slots(self) -> int: ...
    @property
    def forgotten(self) -> int:
        """The number of selectors lost because the code of their block was full."""

    @property
    def skipped(self) -> int:
        """How many adaptations were skipped because more than 64 elements share the quotient."""

    @property
    def steps(self) -> npt.NDArray[np.uint64]:
        """The number of elements that have moved 0, 1, 2, … steps."""

    def _merged(self, other: AdaptiveQuotient) -> Handle: ...

class AdaptiveCuckoo(Deleting):
    """An adaptive cuckoo filter."""

    def __new__(cls, handle: Handle) -> Self: ...
    @staticmethod
    def _empty(
        size: adaptive_cuckoo.AdaptiveCuckooSize,
        capacity: int,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Handle: ...
    @staticmethod
    def _build(
        size: adaptive_cuckoo.AdaptiveCuckooSize, keys: Distinct, capacity: int = 0
    ) -> Handle: ...
    @property
    def _motion(self) -> int: ...
    @property
    def fingerprint_bits(self) -> int:
        """The length of a fingerprint in bits (f)."""

    @property
    def _bins(self) -> int: ...
    def _adapt(self, keys: Keys) -> npt.NDArray[np.bool_]: ...
    def _adapt_hashes(
        self, hashes: npt.NDArray[np.uint64], remote: Remote
    ) -> npt.NDArray[np.bool_]: ...

class StableBloom(Inserting):
    """A stable Bloom filter."""

    def __new__(cls, handle: Handle) -> Self: ...
    @staticmethod
    def _empty(
        size: stable.StableSize,
        independent: bool,
        capacity: int,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Handle: ...
    @property
    def _cells(self) -> int: ...
    @property
    def _max(self) -> int: ...
    @property
    def _hashes(self) -> int: ...
    @property
    def _decrements(self) -> int: ...
    @property
    def _independent(self) -> bool: ...
    def seen(self, key: Key) -> bool:
        """Return whether the key was present, and insert it."""

    def seen_many(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Insert keys in order; return for each whether it was present before."""

class Windowed(Inserting):
    """A filter of a window by keys or by time."""

    def __new__(cls, handle: Handle) -> Self: ...
    @staticmethod
    def _empty(
        size: windowed.WindowedSize,
        step: float,
        capacity: int,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Handle: ...
    @property
    def _hashes(self) -> int: ...
    @property
    def _ages(self) -> int: ...
    @property
    def _slice_bits(self) -> int: ...
    @property
    def _generation(self) -> int: ...
    @property
    def _step(self) -> float: ...
    def add(self, key: Key, *, at: Time | None = None) -> None:
        """Insert a key, at a time (seconds or a timestamp) if the window is by time."""

    def update(self, keys: Keys, *, at: Times | None = None) -> None:
        """Insert many keys in order, or none of them if one is not a key."""

    def seen(self, key: Key, *, at: Time | None = None) -> bool:
        """Return whether the key was present, and insert it."""

    def seen_many(self, keys: Keys, *, at: Times | None = None) -> npt.NDArray[np.bool_]:
        """Insert keys in order; return for each whether it was present before."""

    def advance(self, at: Time | None = None) -> None:
        """Forget keys that are too old at this time, without inserting anything."""

@final
class ScoredKeys:
    """Distinct keys, as hashes, with their scores."""

    def __new__(
        cls, keys: Keys, scores: npt.NDArray[np.float32], seed: int = 0, key: bytes | None = None
    ) -> Self: ...
    @property
    def scores(self) -> npt.NDArray[np.float32]: ...
    def in_front(self) -> Distinct: ...
    def by_region(self, borders: Sequence[float], margin: float = 0.0) -> list[Distinct]: ...

@final
class ScoreRegion:
    """A region of scores: its fraction of absent keys, and the rate of its filter."""

    @property
    def share(self) -> float: ...
    @property
    def rate(self) -> float: ...

class LearnedBloom(Filter):
    """A classifier, and filters by region of its scores."""

    def __new__(cls, handle: Handle) -> Self: ...
    @staticmethod
    def _join(
        keys: Distinct,
        model: Handle | None,
        front: Handle | None,
        borders: Sequence[float],
        shares: Sequence[float],
        filters: Sequence[Handle | None],
        accepts: Sequence[bool],
    ) -> Handle: ...
    def _contains_scored(
        self, keys: Keys, scores: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.bool_]: ...
    def _contains_text(self, key: Key) -> bool: ...
    @property
    def _model(self) -> Handle | None: ...
    @property
    def _front(self) -> bool: ...
    @property
    def _borders(self) -> list[float]: ...
    @property
    def _regions(self) -> list[ScoreRegion]: ...

@final
class ScoreGroup:
    """The current state of a group of scores; sizes are None if it has no filter."""

    @property
    def cells(self) -> int | None: ...
    @property
    def max(self) -> int | None: ...
    @property
    def hashes(self) -> int | None: ...
    @property
    def decrements(self) -> int | None: ...
    @property
    def answer(self) -> bool: ...
    @property
    def nonmembers(self) -> float: ...
    @property
    def members(self) -> float: ...
    @property
    def inserted(self) -> int: ...
    @property
    def queried(self) -> int: ...
    @property
    def accepted(self) -> int: ...

class StableLearned(Filter):
    """A classifier, and a stable filter for each group of its scores."""

    def __new__(cls, handle: Handle) -> Self: ...
    @staticmethod
    def _empty(
        model: Handle | None,
        borders: Sequence[float],
        groups: Sequence[Group],
        independent: bool,
        capacity: int,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Handle: ...
    def _swapped(
        self, model: Handle | None, borders: Sequence[float], shares: Sequence[Shares]
    ) -> Handle: ...
    def _lookup_scored(
        self, keys: Keys, scores: npt.NDArray[np.float32], insert: bool
    ) -> npt.NDArray[np.bool_]: ...
    def _lookup_text(self, key: Key, insert: bool) -> bool: ...
    @property
    def _model(self) -> Handle | None: ...
    @property
    def _borders(self) -> list[float]: ...
    @property
    def _groups(self) -> list[ScoreGroup]: ...

class Classifier(Stored):
    """A classifier."""

    def __new__(cls, handle: Handle) -> Self: ...
    @staticmethod
    def _from_flat(
        input: int, head: int, features: int, scale: float, bias: float, rows: int, flat: bytes
    ) -> Handle: ...
    @property
    def _reads_text(self) -> bool: ...
    def scores(self, rows: Any) -> npt.NDArray[np.float32]:
        """Return the score of each row: of keys as text, or of a table of features.

        Text is any column of keys; an integer is read as its decimal digits. A table is a NumPy
        array of numbers or any object that implements the Arrow C data interface; its columns are
        matched by name where it and the training table have names, else by position.
        """

@final
class TextGrams:
    """The n-grams of keys, one key after the other."""

    @property
    def ends(self) -> npt.NDArray[np.int64]: ...
    @property
    def buckets(self) -> npt.NDArray[np.int32]: ...
    @property
    def lengths(self) -> npt.NDArray[np.uint8]: ...

def hash_keys(keys: Keys, *, seed: int = 0, key: bytes | None = None) -> npt.NDArray[np.uint64]:
    """Return the 128-bit hash of each key as a row (high half, low half)."""

def words(text: str) -> list[str]: ...
def column_name(name: str) -> int: ...
def text_grams(keys: Keys, shortest: int, longest: int, buckets: int) -> TextGrams: ...
def open_bytes(frame: bytes | bytearray | memoryview, key: bytes | None = None) -> Handle: ...
def open_file(
    path: str, mmap: bool = False, key: bytes | None = None, offset: int = 0
) -> Handle: ...
