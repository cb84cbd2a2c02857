"""Filters that treat all questions alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tamis.advice.situation import Choice, Found, RuledOut, Situation, secret, unfit
from tamis.planning import bloom, cuckoo, fuse, quotient, ribbon
from tamis.planning.layers import KINDS, fingerprints

_PLAIN = {
    "Bloom, blocked": "The fastest to ask: one cache line per question.",
    "Bloom": "Any rate, insertions, and unions; nothing to tune.",
    "Cuckoo": "Deletes, and is quick to ask.",
    "Quotient": "Deletes, counts, grows and merges.",
    "Fuse, 3-wise": "Static; as quick as a blocked Bloom filter, and smaller.",
    "Fuse, 4-wise": "Static; quick, and smaller than the 3-wise.",
    "Ribbon": "Static; within a few percent of the least bits for its rate.",
}


def plain(situation: Situation) -> Iterator[Found]:
    """Filters that treat all questions alike."""
    for name, kind, filter, arguments, size in _plain_sizes(situation):
        able = KINDS[kind.split(",")[0]]
        if reason := unfit(situation, inserts=able.inserts, deletes=able.deletes):
            yield RuledOut(name, reason)
            continue
        try:
            bits, rate = size()
        except ValueError as error:
            yield RuledOut(name, str(error))
            continue
        yield Choice(
            name,
            "plain",
            filter,
            {**arguments, "bits_per_key": situation.bits_per_key},
            expected_fpr=rate,
            fpr_bound=1.0 if "adversary" in situation.needs else rate,
            bits=bits,
            keys=situation.keys,
            absent_time=situation.check(kind, present=False),
            present_time=situation.check(kind, present=True),
            reason=_PLAIN[name] + secret(situation),
        )


def _plain_sizes(situation: Situation) -> Iterator[tuple[str, str, str, dict[str, Any], Any]]:
    """Name, kind in the table of checks, class, arguments, and the function of bits and rate."""
    n, budget = situation.keys, situation.bits_per_key
    layouts = {"Bloom, blocked": "blocked", "Bloom": "standard"}
    for name, layout in layouts.items():

        def bloom_size(layout: str = layout) -> tuple[int, float]:
            size = bloom.size(layout, n, bits_per_key=budget)
            return size.bits, bloom.rate(layout, n, size)

        yield name, f"bloom, {layout}", "Bloom", {"layout": layout}, bloom_size

    def cuckoo_size() -> tuple[int, float]:
        size = cuckoo.size(n, bits_per_key=budget)
        return size.bits, cuckoo.rate(n, size)

    def quotient_size() -> tuple[int, float]:
        return fingerprints("quotient", n, quotient.size(n, bits_per_key=budget).remainder_bits)

    def ribbon_size() -> tuple[int, float]:
        size = ribbon.size(n, bits_per_key=budget)
        return ribbon.most_bits(n, size), ribbon.rate(size.columns)

    yield "Cuckoo", "cuckoo", "Cuckoo", {}, cuckoo_size
    yield "Quotient", "quotient", "Quotient", {}, quotient_size
    for arity in fuse.FITS:

        def fuse_size(arity: int = arity) -> tuple[int, float]:
            size = fuse.size(arity, n, bits_per_key=budget)
            return size.slots * size.fingerprint_bits, fuse.rate(size)

        yield f"Fuse, {arity}-wise", f"fuse, {arity}-wise", "Fuse", {"arity": arity}, fuse_size
    yield "Ribbon", "ribbon", "Ribbon", {}, ribbon_size
