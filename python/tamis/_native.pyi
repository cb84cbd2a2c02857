"""The native kernels: handles, the classes of the contract, and functions from sizes to handles.

`tamis.filters` makes the public classes of them; sizes come from `tamis.planning`.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, Self, final

import numpy as np
import numpy.typing as npt
from typing_extensions import disjoint_base

from tamis._types import Key, Keys, Remote

__all__ = [
    "DEBUG_BUILD",
    "Adapting",
    "Aging",
    "Assigned",
    "Deleting",
    "Distinct",
    "Filter",
    "Filters",
    "Full",
    "Function",
    "Hashes",
    "Inserting",
    "Kernel",
    "KindRow",
    "Negatives",
    "Remembering",
    "Resident",
    "Sliced",
    "Spill",
    "Stored",
    "Table",
    "__version__",
    "adaptive_cuckoo",
    "adaptive_cuckoo_adapt",
    "adaptive_cuckoo_build",
    "adaptive_cuckoo_shape",
    "adaptive_stacked",
    "adaptive_stacked_abandon",
    "adaptive_stacked_begin",
    "adaptive_stacked_content",
    "adaptive_stacked_drop",
    "adaptive_stacked_fill",
    "adaptive_stacked_finish",
    "adaptive_stacked_known_rate",
    "adaptive_stacked_layers",
    "adaptive_stacked_observe",
    "adaptive_stacked_plan",
    "adaptive_stacked_sample",
    "adaptive_stacked_state",
    "bloom",
    "bloom_build",
    "bloom_cardinality",
    "bloom_intersection",
    "bloom_shape",
    "bloom_truncated",
    "bloom_union",
    "cuckoo",
    "cuckoo_build",
    "cuckoo_shape",
    "cuckoo_truncated",
    "function_bits",
    "function_build",
    "fuse_build",
    "fuse_shape",
    "hash_keys",
    "kinds",
    "learned",
    "learned_contains",
    "learned_contains_one",
    "learned_model",
    "learned_scores",
    "learned_shape",
    "learned_split",
    "model",
    "model_name",
    "model_scores",
    "model_shape",
    "open_bytes",
    "open_file",
    "quotient",
    "quotient_build",
    "quotient_count",
    "quotient_fingerprints",
    "quotient_grow",
    "quotient_merge",
    "quotient_shape",
    "quotient_truncated",
    "ribbon_build",
    "ribbon_shape",
    "ribbon_truncated",
    "sharded",
    "sharded_shape",
    "stable",
    "stable_learned",
    "stable_learned_model",
    "stable_learned_pass",
    "stable_learned_pass_one",
    "stable_learned_shape",
    "stable_learned_swapped",
    "stable_shape",
    "stacked",
    "stacked_assigned",
    "stacked_facts",
    "stacked_known_rate",
    "stacked_layers",
    "stacked_seen",
    "stacked_survivors",
    "telescoping",
    "telescoping_build",
    "telescoping_merge",
    "telescoping_shape",
    "telescoping_steps",
    "text_grams",
    "windowed",
    "windowed_shape",
    "words",
]

__version__: str
DEBUG_BUILD: bool

@final
class Kernel:
    """A handle on a structure and the hash it was built with."""

    @property
    def kind(self) -> int: ...

@final
class KindRow:
    """A kind of structure: its number in a file, its name, and what every filter of it can do."""

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
    def bounded(self) -> bool: ...

def kinds() -> list[KindRow]:
    """List every kind, by rising numbers."""

@final
class Distinct:
    """Distinct keys, as hashes."""

    def __new__(cls, keys: Keys, seed: int = 0, key: bytes | None = None) -> Self: ...
    def __len__(self) -> int: ...

_Ints = npt.NDArray[np.int64]

@final
class Full:
    """The full filter of one set."""

    def __new__(cls, size: tuple[str, int, int, Sequence[int]], keys: Distinct) -> Self: ...

@final
class Filters:
    """The full filters of a collection, in files."""

    def __new__(
        cls,
        spill: int,
        seed: int = 0,
        key: bytes | None = None,
        texts: tuple[bool, str, bool] | None = None,
    ) -> Self: ...
    @staticmethod
    def open(
        path: str,
        spill: int,
        key: bytes | None = None,
        texts: bool = False,
        length: int | None = None,
    ) -> tuple[Filters, npt.NDArray[np.float64]]: ...
    def __len__(self) -> int: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def texts(self) -> tuple[bool, str, bool] | None: ...
    def add(self, name: str, full: Full, text: str | None = None) -> None: ...
    def text(self, id: int) -> str | None: ...
    def without(self, ids: Sequence[int]) -> Filters: ...
    def name(self, id: int) -> str: ...
    def find(self, name: str) -> int | None: ...
    def tables(
        self,
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], _Ints, _Ints, _Ints, _Ints, _Ints]: ...
    def resident(self, order: npt.NDArray[np.uint32], kept: npt.NDArray[np.uint64]) -> Resident: ...
    def sliced(
        self,
        documents: npt.NDArray[np.uint8],
        rows: npt.NDArray[np.uint32],
        ids: npt.NDArray[np.uint32],
        ranks: npt.NDArray[np.uint32],
    ) -> Sliced: ...
    def size_in_bytes(self, blocks: int | None = None) -> int: ...
    def write(self, descriptor: int, utilities: npt.NDArray[np.float64]) -> None: ...

@final
class Resident:
    """The prefixes of a collection's filters in memory."""

    def candidates(self, key: Key, limit: int, hybrid: bool) -> npt.NDArray[np.uint32]: ...
    def candidates_many(
        self, keys: Keys, limit: int, hybrid: bool
    ) -> tuple[_Ints, npt.NDArray[np.uint32]]: ...
    @property
    def bits(self) -> int: ...
    @property
    def tail_reads(self) -> int: ...

@final
class Sliced:
    """The signatures of documents in memory, 64 to a block."""

    def search(self, terms: Keys, limit: int) -> npt.NDArray[np.uint32]: ...
    @property
    def bits(self) -> int: ...

@final
class Spill:
    """Keys by shard, as hashes: in memory, or in a file each."""

    def __new__(
        cls,
        partitions: int,
        files: Sequence[str] | None,
        seed: int = 0,
        key: bytes | None = None,
    ) -> Self: ...
    def add(self, keys: Keys) -> None: ...
    def lengths(self) -> list[int]: ...
    def distinct(self, start: int, stop: int, keep: bool = False) -> Distinct: ...

@final
class Negatives:
    """Known negatives that the first layer of a stack takes for keys."""

    def __new__(cls, first: Kernel) -> Self: ...
    def add(self, negatives: Keys) -> None: ...
    @property
    def given(self) -> int: ...
    def by_shard(self, shards: int) -> list[Negatives]: ...
    def distinct(self, keys: Distinct) -> tuple[Distinct, int]: ...
    def earliest(self, negatives: Distinct, count: int) -> Distinct: ...

@final
class Table:
    """A table of features, read where it lies."""

    def __new__(cls, table: object) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def columns(self) -> list[tuple[str | None, bool]]: ...
    def numbers(self, column: int) -> npt.NDArray[np.float32]: ...
    def categories(self, column: int) -> npt.NDArray[np.uint64]: ...

@final
class Assigned:
    """Distinct keys, as hashes, each with its value."""

    def __new__(
        cls, keys: Keys, values: npt.NDArray[np.uint32], seed: int = 0, key: bytes | None = None
    ) -> Self: ...
    def __len__(self) -> int: ...

@disjoint_base
class Stored:
    """Has a size and can be saved; the base of everything that holds a kernel."""

    def __new__(cls, kernel: Kernel) -> Self: ...
    def __len__(self) -> int:
        """Tell how many keys the filter holds."""

    @property
    def capacity(self) -> int:
        """How many keys the filter was made for."""

    @property
    def size_in_bits(self) -> int:
        """The memory of the structure."""

    @property
    def seed(self) -> int | None:
        """The seed of the hash, or `None` where a secret key took its place."""

    def to_bytes(self) -> bytes:
        """Return the filter as the bytes that `save` writes."""

    @property
    def _kernel(self) -> Kernel: ...
    def _copied(self) -> Kernel: ...
    def _write(self, descriptor: int) -> None: ...

class Filter(Stored):
    """Answers questions; the base of every filter."""

    def __new__(cls, kernel: Kernel) -> Self: ...
    def __contains__(self, key: Key, /) -> bool:
        """Tell whether the key may be in the set; `False` is certain."""

    def contains(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Tell for each key whether it may be in the set."""

    @property
    def expected_fpr(self) -> float:
        """The probability that an absent key is answered `True`, given what is stored.

        A random one; or where the filter knows its questions, as a stack does, one of those.
        """

    @property
    def fpr_bound(self) -> float:
        """The same for an absent key that the filter knows nothing of."""

class Function(Stored):
    """Tells the value of each of its keys, and anything for others."""

    def __new__(cls, kernel: Kernel) -> Self: ...
    def __getitem__(self, key: Key, /) -> int:
        """Return the value of a key; of one it was not built from, any."""

    def get(self, keys: Keys) -> npt.NDArray[np.uint32]:
        """Return the value of each key."""

class Inserting(Filter):
    """A filter that takes keys in one by one."""

    def __new__(cls, kernel: Kernel) -> Self: ...
    def add(self, key: Key) -> None:
        """Insert a key."""

    def update(self, keys: Keys) -> None:
        """Insert many keys, or none of them if one is not a key."""

class Deleting(Inserting):
    """A filter that also gives keys back."""

    def __new__(cls, kernel: Kernel) -> Self: ...
    def remove(self, key: Key) -> None:
        """Take one insertion of the key back; `KeyError` if it is surely absent."""

class Adapting(Deleting):
    """A filter that moves its elements away from the keys they were taken for."""

    def __new__(cls, kernel: Kernel) -> Self: ...
    def add(self, key: Key, remote: Remote | None = None) -> None:
        """Insert a key; with the remote, the filter grows where it is full."""

    def update(self, keys: Keys, remote: Remote | None = None) -> None:
        """Insert many keys, or none of them."""

    def remove(self, key: Key, remote: Remote | None = None) -> None:
        """Take one insertion of the key back; `KeyError` if it is surely absent."""

    def adapt(self, key: Key, remote: Remote) -> bool:
        """Tell an absent key apart that was taken for a stored one; whether anything changed."""

    def adapt_many(self, keys: Keys, remote: Remote) -> npt.NDArray[np.bool_]:
        """Tell many absent keys apart; for each, whether anything changed."""

    def grow(self, remote: Remote) -> None:
        """Make room for as many keys again, from the stored hashes."""

@disjoint_base
class Hashes:
    """Hashes in order, with repetitions: a remote in memory."""

    def __new__(
        cls, keys: Keys | None = None, *, seed: int = 0, key: bytes | None = None
    ) -> Self: ...
    def __len__(self) -> int:
        """Tell how many hashes are stored, repetitions included."""

    def add(self, key: Key) -> None:
        """Store the hash of a key, once more if it is there already."""

    def update(self, keys: Keys) -> None:
        """Store the hashes of many keys."""

    def remove(self, key: Key) -> None:
        """Take the hash of a key away once; `KeyError` if it is not there."""

    def run(self, low: int, high: int) -> npt.NDArray[np.uint64]:
        """Return the hashes whose first word is from ``low`` to ``high``, with repetitions."""

    def scan(self) -> Iterator[npt.NDArray[np.uint64]]:
        """Return all hashes, in parts."""

class Remembering(Inserting):
    """A filter that also answers and inserts in one step."""

    def __new__(cls, kernel: Kernel) -> Self: ...
    def seen(self, key: Key) -> bool:
        """Tell whether the key was there, and insert it."""

    def seen_many(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Tell for each key whether it was there just before it came, and insert it."""

class Aging(Inserting):
    """A filter of a window, which a clock may move."""

    def __new__(cls, kernel: Kernel) -> Self: ...
    def add(self, key: Key, *, at: float | None = None) -> None:
        """Insert a key, at a time in seconds if the window is one of time."""

    def update(self, keys: Keys, *, at: npt.ArrayLike | None = None) -> None:
        """Insert many keys in their order, or none of them if one is not a key."""

    def seen(self, key: Key, *, at: float | None = None) -> bool:
        """Tell whether the key was there, and insert it."""

    def seen_many(self, keys: Keys, *, at: npt.ArrayLike | None = None) -> npt.NDArray[np.bool_]:
        """Tell for each key whether it was there just before it came, and insert it."""

    def advance(self, at: float | None = None) -> None:
        """Forget what is too old at this time, without inserting anything."""

_Layout = Literal["blocked", "standard", "segmented"]
_RibbonLayout = Literal["interleaved", "columns"]

def hash_keys(keys: Keys, *, seed: int = 0, key: bytes | None = None) -> npt.NDArray[np.uint64]:
    """Return the 128-bit hash of each key as a row (high half, low half)."""

def bloom(
    layout: str, bits: int, hashes: int, capacity: int, seed: int = 0, key: bytes | None = None
) -> Kernel: ...
def bloom_build(layout: str, bits: int, hashes: int, keys: Distinct) -> Kernel: ...
def bloom_union(a: Kernel, b: Kernel) -> Kernel: ...
def bloom_intersection(a: Kernel, b: Kernel) -> Kernel: ...
def bloom_cardinality(kernel: Kernel) -> float: ...
def bloom_truncated(kernel: Kernel, bits: int) -> Kernel: ...
def bloom_shape(kernel: Kernel) -> tuple[_Layout, int, int, int]: ...
def cuckoo(
    chunks: int,
    buckets: int,
    fingerprint_bits: int,
    near: int,
    capacity: int,
    seed: int = 0,
    key: bytes | None = None,
) -> Kernel: ...
def cuckoo_build(
    chunks: int, buckets: int, fingerprint_bits: int, near: int, keys: Distinct
) -> Kernel: ...
def cuckoo_shape(kernel: Kernel) -> tuple[int, int, int, int, int]: ...
def cuckoo_truncated(kernel: Kernel, bits: int) -> Kernel: ...
def fuse_build(
    arity: int, fingerprint_bits: int, segment_length: int, segments: int, keys: Distinct
) -> Kernel: ...
def fuse_shape(kernel: Kernel) -> tuple[int, int, int, int, int]: ...
def quotient(
    quotients: int, remainder_bits: int, capacity: int, seed: int = 0, key: bytes | None = None
) -> Kernel: ...
def quotient_build(
    quotients: int, remainder_bits: int, keys: Distinct, capacity: int = 0
) -> Kernel: ...
def quotient_merge(a: Kernel, b: Kernel) -> Kernel: ...
def quotient_truncated(kernel: Kernel, bits: int) -> Kernel: ...
def quotient_grow(kernel: Kernel) -> None: ...
def quotient_count(kernel: Kernel, key: Key) -> int: ...
def quotient_shape(kernel: Kernel) -> tuple[int, int, int, int]: ...
def quotient_fingerprints(
    kernel: Kernel, start: int, stop: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]: ...
def sharded(shards: Sequence[Kernel]) -> Kernel: ...
def sharded_shape(kernel: Kernel) -> tuple[int, int]: ...
def stacked(
    layers: Sequence[Kernel], psi: float, overlap: int, exhausted: bool, capacity: int
) -> Kernel: ...
def stacked_assigned(index: int, keys: Distinct, negatives: Distinct) -> Assigned: ...
def stacked_facts(kernel: Kernel) -> tuple[bool, bool, float, int]: ...
def stacked_layers(kernel: Kernel) -> list[tuple[int, int, int, float]]: ...
def stacked_known_rate(kernel: Kernel) -> float: ...
def stacked_seen(index: int, keys: Distinct) -> Distinct: ...
def stacked_survivors(layer: Kernel, index: int, keys: Distinct) -> Distinct: ...
def stable(
    cells: int,
    most: int,
    hashes: int,
    decrements: int,
    independent: bool,
    capacity: int,
    seed: int = 0,
    key: bytes | None = None,
) -> Kernel: ...
def stable_shape(kernel: Kernel) -> tuple[int, int, int, int, bool]: ...

_StableGroup = tuple[tuple[int, int, int, int] | None, bool, float, float]

def stable_learned(
    model: Kernel | None,
    borders: Sequence[float],
    groups: Sequence[_StableGroup],
    independent: bool,
    capacity: int,
    seed: int = 0,
    key: bytes | None = None,
) -> Kernel: ...
def stable_learned_swapped(
    kernel: Kernel,
    model: Kernel | None,
    borders: Sequence[float],
    shares: Sequence[tuple[float, float]],
) -> Kernel: ...
def stable_learned_pass(
    kernel: Kernel, keys: Keys, scores: npt.NDArray[np.float32], insert: bool
) -> npt.NDArray[np.bool_]: ...
def stable_learned_pass_one(kernel: Kernel, key: Key, insert: bool) -> bool: ...
def stable_learned_model(kernel: Kernel) -> Kernel | None: ...
def stable_learned_shape(kernel: Kernel) -> tuple[list[float], list[_StableGroup], list[int]]: ...
def windowed(
    hashes: int,
    ages: int,
    slice_bits: int,
    generation: int,
    step: float,
    capacity: int,
    seed: int = 0,
    key: bytes | None = None,
) -> Kernel: ...
def windowed_shape(kernel: Kernel) -> tuple[int, int, int, int, float]: ...
def words(text: str) -> list[str]: ...
def ribbon_build(layout: str, columns: int, levels: Sequence[int], keys: Distinct) -> Kernel: ...
def ribbon_truncated(kernel: Kernel, bits: int) -> Kernel: ...
def ribbon_shape(kernel: Kernel) -> tuple[_RibbonLayout, int, int, int]: ...
def function_build(bits: int, levels: Sequence[int], keys: Assigned) -> Kernel: ...
def function_bits(kernel: Kernel) -> int: ...
def learned_scores(
    keys: Keys, scores: npt.NDArray[np.float32], seed: int = 0, key: bytes | None = None
) -> npt.NDArray[np.float32]: ...
def learned_split(
    keys: Keys,
    scores: npt.NDArray[np.float32],
    borders: Sequence[float],
    seed: int = 0,
    key: bytes | None = None,
) -> tuple[Distinct, list[Distinct]]: ...
def learned(
    keys: Distinct,
    model: Kernel | None,
    front: Kernel | None,
    borders: Sequence[float],
    shares: Sequence[float],
    filters: Sequence[Kernel | None],
    accepts: Sequence[bool],
) -> Kernel: ...
def learned_contains(
    kernel: Kernel, keys: Keys, scores: npt.NDArray[np.float32]
) -> npt.NDArray[np.bool_]: ...
def learned_contains_one(kernel: Kernel, key: Key) -> bool: ...
def learned_model(kernel: Kernel) -> Kernel | None: ...
def learned_shape(kernel: Kernel) -> tuple[bool, list[float], list[tuple[float, float]]]: ...
def model(form: Sequence[int], link: tuple[float, float], rows: int, flat: bytes) -> Kernel: ...
def model_name(name: str) -> int: ...
def model_shape(kernel: Kernel) -> tuple[bool, int]: ...
def model_scores(kernel: Kernel, rows: object) -> npt.NDArray[np.float32]: ...
def text_grams(
    keys: Keys, shortest: int, longest: int, buckets: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.uint8]]: ...
def adaptive_cuckoo(
    number: int,
    fingerprint_bits: int,
    bins: int,
    capacity: int,
    seed: int = 0,
    key: bytes | None = None,
) -> Kernel: ...
def adaptive_cuckoo_build(
    number: int, fingerprint_bits: int, bins: int, keys: Distinct
) -> Kernel: ...
def adaptive_cuckoo_adapt(kernel: Kernel, keys: Keys) -> npt.NDArray[np.bool_]: ...
def adaptive_cuckoo_shape(kernel: Kernel) -> tuple[int, int, int, int]: ...
def adaptive_stacked(
    first: Kernel, negatives: Kernel | None, room: int, plan: bytes, capacity: int
) -> Kernel: ...
def adaptive_stacked_observe(kernel: Kernel, keys: Keys) -> npt.NDArray[np.bool_]: ...
def adaptive_stacked_state(
    kernel: Kernel,
) -> tuple[tuple[int, bool, int, float, int], list[int], list[int]]: ...
def adaptive_stacked_layers(kernel: Kernel) -> list[tuple[int, int, int, float]]: ...
def adaptive_stacked_known_rate(kernel: Kernel) -> float: ...
def adaptive_stacked_sample(kernel: Kernel) -> npt.NDArray[np.uint64]: ...
def adaptive_stacked_plan(kernel: Kernel) -> bytes: ...
def adaptive_stacked_begin(
    kernel: Kernel, version: int, layer: Kernel, first: bool
) -> int | None: ...
def adaptive_stacked_fill(kernel: Kernel, ticket: int, hashes: npt.NDArray[np.uint64]) -> None: ...
def adaptive_stacked_finish(
    kernel: Kernel,
    ticket: int,
    psi: float,
    negatives: Kernel | None,
    room: int,
    plan: bytes | None,
) -> bool: ...
def adaptive_stacked_abandon(kernel: Kernel, ticket: int) -> None: ...
def adaptive_stacked_drop(
    kernel: Kernel, version: int, negatives: Kernel | None, room: int
) -> bool: ...
def adaptive_stacked_content(kernel: Kernel, version: int, psi: float | None = None) -> None: ...

_Selectors = Literal["block", "growing", "plain"]

def telescoping(
    extending: bool,
    selectors: str,
    quotients: int,
    remainder_bits: int,
    capacity: int,
    seed: int = 0,
    key: bytes | None = None,
) -> Kernel: ...
def telescoping_build(
    extending: bool, selectors: str, quotients: int, remainder_bits: int, keys: Distinct
) -> Kernel: ...
def telescoping_merge(a: Kernel, b: Kernel) -> Kernel: ...
def telescoping_shape(kernel: Kernel) -> tuple[_Selectors, int, int, int, int]: ...
def telescoping_steps(kernel: Kernel) -> npt.NDArray[np.uint64]: ...
def open_bytes(frame: bytes | bytearray | memoryview, key: bytes | None = None) -> Kernel: ...
def open_file(path: str, mmap: bool = False, key: bytes | None = None) -> Kernel: ...
