"""The table of kinds: the names, abilities and query times of each kind of filter.

The number, name and abilities of a kind come from its row in native code (``KIND`` in its module,
listed in ``src/kinds.rs``). This table adds its public class, its planning module, the options to
build it, and the times of queries. Stacks, advice, files and the command line iterate over it.
CONTRIBUTING lists the edits for a new kind.

Times were printed by ``benches/checks.py`` on one machine (two virtual cores of an AMD EPYC,
one thread, batches of integers, including hashing). On another machine, only their ratios are
meaningful; ``check_cost`` of `tamis.advise` scales them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, Protocol, cast, get_args

import numpy as np

from tamis import _native
from tamis.planning import adaptive_cuckoo, bloom, cuckoo, fuse, quotient, ribbon, telescoping

LayerKind = Literal["auto", "bloom", "cuckoo", "quotient", "fuse", "ribbon"]
"""Values of ``layer`` in `tamis.plan`: the kinds that have a `Kind.layer`, or the best of them."""


class FilterSize(Protocol):
    """The size of a filter of some kind, such as `BloomSize`."""

    @property
    def bits(self) -> int:
        """The size in bits."""

    def rate(self, keys: int) -> float:
        """Predict the rate of a filter of this size that holds ``keys`` keys."""

    def coarser(self, keys: int) -> Any:
        """Return the next coarser size for these keys, or None if this is the coarsest."""


class PlanningModule(Protocol):
    """The planning module of a kind: it finds a `FilterSize` for a rate or a budget."""

    @property
    def size(self) -> Any:
        """``size(keys, *, fpr=None, bits_per_key=None, **arguments)``."""


class AnyRateModule(PlanningModule, Protocol):
    """The planning module of a kind whose layers can have any rate."""

    @property
    def OVERHEAD(self) -> float:  # noqa: N802  a constant of the module
        """Bits of a layer per bit of information, log2(1/α) per item."""

    @property
    def bits_per_item(self) -> Callable[[Any], Any]:
        """Bits per item of a large layer of a rate, or of an array of rates."""

    @property
    def rate_of_bits(self) -> Callable[[float], float]:
        """About the rate of a large layer with these bits per item."""


class FractionalLengths(NamedTuple):
    """How a kind rates fingerprints of any length, where some items have one bit more than others.

    ``shortest`` is the shortest length, ``rate`` the rate of a length, and ``length`` the shortest
    length with at most a rate.
    """

    shortest: float
    rate: Callable[[float], float]
    length: Callable[[float], float]


SIZES = (10_000, 1_000_000)
"""Keys of the filters that were timed: one fits in the cache of a core, one does not."""


class Check(NamedTuple):
    """Nanoseconds of a query for an absent and for a present key, at each of `SIZES`."""

    absent: tuple[float, float]
    present: tuple[float, float]


def check_seconds(check: Check, keys: float, present: bool, scale: float = 1.0) -> float:
    """Interpolate the time of one query between the sizes that were timed, by log of the keys.

    >>> f"{check_seconds(Check((7, 15), (7, 10)), 10**5, present=False) * 1e9:.0f} ns"
    '11 ns'
    """
    times = check.present if present else check.absent
    nanoseconds = np.interp(math.log(max(keys, 1)), np.log(SIZES), times)
    return scale * 1e-9 * float(nanoseconds)


class Option(NamedTuple):
    """A way to build a kind: its name in tables, arguments of ``build``, time of a query.

    ``reason`` says when to choose it; the advice ranks only options that have one.
    """

    name: str
    check: Check
    arguments: Mapping[str, Any] = {}
    reason: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of filter, or of another object that is saved in a file.

    The first fields are its native row, explained in ``src/kernel.rs``. ``filter`` is the name of
    its public class. ``sizes`` is the planning module of a kind that is built from keys and a rate
    alone. ``layer`` is the option used as a layer of a stack, if the kind can be chosen for it;
    ``lengths`` are then the possible lengths of its fingerprints in bits, None if any rate is
    possible. A kind that also supports lengths in between has ``fractional``.
    """

    number: int
    name: str
    inserts: bool
    deletes: bool
    counts: bool
    bounded: bool
    merges: bool
    adapts: bool
    forgets: bool
    filter: str
    sizes: PlanningModule | None = None
    options: tuple[Option, ...] = ()
    layer: Option | None = None
    lengths: range | None = None
    fractional: FractionalLengths | None = None

    @property
    def coarsest(self) -> float:
        """The shortest fingerprint length of a layer."""
        assert self.lengths is not None
        return self.fractional.shortest if self.fractional else self.lengths.start

    @property
    def finest(self) -> int:
        """The longest fingerprint length of a layer."""
        assert self.lengths is not None
        return self.lengths[-1]

    @property
    def continuous(self) -> bool:
        """Whether a layer can have any rate."""
        return self.lengths is None

    @cached_property
    def layout(self) -> str | None:
        """The layout of a layer, for kinds that have several."""
        return None if self.layer is None else self.layer.arguments.get("layout")

    def bits_per_item(self, rate: Any) -> Any:
        """Return the bits per item of a large layer, for a rate or an array of rates."""
        return self._any_rate.bits_per_item(rate)

    def rate_of_bits(self, bits: float) -> float:
        """Return the approximate rate of a large layer with these bits per item."""
        return self._any_rate.rate_of_bits(bits)

    @property
    def overhead(self) -> float:
        """Bits of a layer per bit of information."""
        return self._any_rate.OVERHEAD

    @property
    def _any_rate(self) -> AnyRateModule:
        assert self.continuous
        return cast(AnyRateModule, self.sizes)

    def layer_size(self, items: int, **fineness: Any) -> Any:
        """Find the `FilterSize` of a layer, for a ``fpr`` or ``fingerprint_bits``."""
        assert self.sizes is not None
        assert self.layer is not None
        return self.sizes.size(items, **{**self.layer.arguments, **fineness})


@lru_cache(maxsize=4096)
def layer_check(kind: str, keys: int) -> float:
    """Return the time of a query of a layer of this kind, relative to `REFERENCE`.

    >>> layer_check("bloom", 10**6), round(layer_check("cuckoo", 10**6), 2)
    (1.0, 0.63)
    """
    layer = KINDS[kind].layer
    assert layer is not None
    own = check_seconds(layer.check, keys, present=False)
    return own / check_seconds(REFERENCE.check, keys, present=False)


class LayerSize(NamedTuple):
    """Bits and rate of a layer."""

    bits: int
    rate: float


@lru_cache(maxsize=65536)
def fingerprint_layer(kind: str, items: int, length: float) -> LayerSize:
    """Return the bits and rate of a layer of ``items`` with fingerprints of this length.

    >>> fingerprint_layer("ribbon", 1000, 8), fingerprint_layer("quotient", 0, 8)
    (LayerSize(bits=8128, rate=0.00390625), LayerSize(bits=0, rate=0.0))
    """
    if items == 0:
        return LayerSize(0, 0.0)
    size = KINDS[kind].layer_size(items, fingerprint_bits=length)
    return LayerSize(size.bits, size.rate(items))


_ROWS = {row.name: row for row in _native.kinds()}


def _kind(name: str, filter: str, **planning: Any) -> Kind:
    """Join the native row of a kind with its public class and how it is planned."""
    row = _ROWS[name]
    return Kind(
        row.number, row.name, row.inserts, row.deletes, row.counts, row.bounded, row.merges,
        row.adapts, row.forgets, filter, **planning,
    )  # fmt: skip


# Nanoseconds of a query: the minimum of several runs of ``benches/checks.py``, which prints them.
_BLOOM_STANDARD = Option(
    "Bloom",
    Check((23, 43), (20, 37)),
    {"layout": "standard"},
    "Any rate, insertions, and unions; nothing to tune.",
)
_CUCKOO = Option("Cuckoo", Check((12, 27), (11, 17)), reason="Deletes, and is fast to query.")
_QUOTIENT = Option(
    "Quotient", Check((18, 38), (27, 32)), reason="Deletes, counts, grows and merges."
)
_FUSE_4 = Option(
    "Fuse, 4-wise",
    Check((9, 20), (9, 20)),
    {"arity": 4},
    "Static; fast, and smaller than the 3-wise.",
)
_RIBBON = Option(
    "Ribbon",
    Check((18, 26), (27, 22)),
    {"layout": "interleaved"},
    "Static; within a few percent of the fewest bits for its rate.",
)

_BLOOM = _kind(
    "bloom",
    "Bloom",
    sizes=bloom,
    options=(
        Option(
            "Bloom, blocked",
            Check((7, 15), (7, 10)),
            {"layout": "blocked"},
            "The fastest to query: one cache line per query.",
        ),
        _BLOOM_STANDARD,
        Option("Bloom, segmented", _BLOOM_STANDARD.check, {"layout": "segmented"}),
    ),
    layer=_BLOOM_STANDARD,
)

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        _BLOOM,
        _kind(
            "quotient",
            "Quotient",
            sizes=quotient,
            options=(_QUOTIENT,),
            layer=_QUOTIENT,
            lengths=range(1, 33),
        ),
        _kind(
            "cuckoo",
            "Cuckoo",
            sizes=cuckoo,
            options=(_CUCKOO,),
            layer=_CUCKOO,
            lengths=range(cuckoo.MIN_FINGERPRINT_BITS, 33),
        ),
        _kind(
            "fuse",
            "Fuse",
            sizes=fuse,
            options=(
                Option(
                    "Fuse, 3-wise",
                    Check((8, 15), (8, 11)),
                    {"arity": 3},
                    "Static; as fast as a blocked Bloom filter, and smaller.",
                ),
                _FUSE_4,
            ),
            layer=_FUSE_4,
            lengths=range(1, 33),
        ),
        _kind(
            "ribbon",
            "Ribbon",
            sizes=ribbon,
            options=(_RIBBON, Option("Ribbon, columns", _RIBBON.check, {"layout": "columns"})),
            layer=_RIBBON,
            lengths=range(1, 33),
            fractional=FractionalLengths(
                ribbon.MIN_SHARE / ribbon.UNIT, ribbon.column_rate, ribbon.columns_for
            ),
        ),
        _kind("function", "StaticFunction", lengths=range(1, 2)),
        _kind("sharded", "Sharded"),
        _kind("stacked", "Stacked"),
        _kind(
            "telescoping",
            "Telescoping",
            sizes=telescoping,
            options=(Option("Telescoping", Check((19, 38), (20, 24))),),
        ),
        _kind(
            "adaptive_cuckoo",
            "AdaptiveCuckoo",
            sizes=adaptive_cuckoo,
            options=(Option("AdaptiveCuckoo", Check((37, 53), (33, 37))),),
        ),
        _kind("adaptive_stacked", "AdaptiveStacked"),
        _kind(
            "stable",
            "StableBloom",
            options=(Option("StableBloom", Check((14, 35), (22, 45))),),
        ),
        _kind(
            "windowed",
            "Windowed",
            options=(Option("Windowed", Check((47, 112), (36, 52))),),
        ),
        _kind("learned", "LearnedBloom"),
        _kind("stable_learned", "StableLearned"),
        _kind("collection", "Collection"),
        _kind("model", "Model"),
        _kind("text", "SearchIndex"),
        _kind(
            "extending",
            "Extending",
            sizes=telescoping,
            options=(Option("Extending", Check((19, 38), (20, 24))),),
        ),
        _kind("runs", "Runs"),
        _kind("skipping", "SkippingIndex"),
        _kind("snapshot", "Guard"),
    )
}

BY_NUMBER = {kind.number: kind for kind in KINDS.values()}

FUNCTION = KINDS["function"]
"""The kind of the last layer of an exact stack."""

SMALLEST = KINDS["ribbon"]
"""The kind for sets that are built once and whose filters only need to be small."""

REFERENCE = _BLOOM_STANDARD
"""The option whose query takes ``check_cost``: times of others are relative to it."""

LAYERS = tuple(KINDS[name] for name in get_args(LayerKind) if name != "auto")
"""The kinds that can be layers of a stack."""
