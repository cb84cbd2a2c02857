"""Layers whose rates follow from integer fingerprint lengths: a search over pairs of layers.

A prefix of a stack is pairs of a layer of keys and one of negatives. Let A and B be the shares of
stored negatives and of keys that pass it, and ``accepted`` the share of other negatives that its
layers of negatives have rejected, for which the stack has said "yes". Whatever follows, EFPR is at
least (1 − ψ)·accepted, and the bits only grow. Hence these bounds:

* A layer of keys of rate α sends A·B·α other negatives to the layer of negatives behind it, which
  rejects 1 − α' of them. No layer of rate α' > α_max exists, so EFPR ≥ (1 − ψ)·(accepted +
  A·B·α·(1 − α_max)): once that is no improvement, no shorter fingerprint in this place is.
* A longer fingerprint in the layer of negatives rejects more of them, so once (1 − ψ)·(accepted +
  A·B·α·(1 − α')) is no improvement, no longer one is.
* Let a better stack have a rate below r. Then the layers after the prefix may accept at most
  φ = (r − (1 − ψ)·accepted)/(ψ·A) of the stored negatives that reach them, and must accept all
  keys. For n keys and m negatives, and an acceptance of a share ε of everything, this takes at
  least n·log2(1/ε) + m·d(φ‖ε) bits, d being the relative entropy; the minimum is at
  ε = (n + φ·m)/(n + m).
* Each layer adds checks, so a prefix that takes more than are allowed is not extended.
* If a layer of keys lets hardly any query pass, `SLACK` of the best rate so far, longer
  fingerprints in its place could not lower the rate by more than that.
* A stack that lowers the best cost so far by less than `SLACK` of it is no improvement.

The last layer of keys has the longest fingerprints that fit, or the shortest that keep the rate.

Most of these bounds are multiples of 1 − ψ, so they leave out little where known negatives are
nearly all queries: a few negatives then have hundreds of thousands of stacks that differ by a few
bits. When `PREFIXES` are used up, searches start with the shallow stacks, ignore
larger improvements (`COARSE_SLACK`), and skip lengths that hardly change the size (`thin`,
`dominated`). Where the bounds work, some hundred prefixes are tried for each number of negatives.

Deeds, Hentschel and Idreos 2021, 5.2.3 describe such a search, with its bounds in a report.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple

from tamis.planning.kinds import KINDS, fingerprint_layer
from tamis.planning.stacked.goal import Goal, Stack
from tamis.planning.stacked.predictions import Checks
from tamis.planning.stacked.sweep import Search

MAX_LAYERS = 9
"""Layers of a stack, at most."""

SLACK = 1e-3
"""A stack that was skipped could be better than the best at that time by this fraction."""

COARSE_SLACK = 1e-2
"""The same if there are too many stacks to try them all."""

PREFIXES = 24_000
"""Prefixes that a plan tries, for all kinds and numbers of negatives: about 0.3 seconds."""

COARSE_PREFIXES = 5000
"""Prefixes per kind that a plan tries when `PREFIXES` are used up."""

COARSE_PREFIXES_OF_A_DEPTH = 1000
"""The limit of `COARSE_PREFIXES` per depth and number of negatives."""


class Allowance:
    """How many prefixes the searches of a plan may still try."""

    def __init__(self) -> None:
        self.prefixes_left = PREFIXES


class _Prefix(NamedTuple):
    """Pairs of layers: the fractions that pass them, and their bits and checks."""

    rates: tuple[float, ...] = ()
    lengths: tuple[int, ...] = ()
    negatives_pass: float = 1.0
    keys_pass: float = 1.0
    accepted: float = 0.0
    bits: int = 0
    checks: Checks = Checks(0.0, 0.0, 0.0)


def search_for(kind: str, allowance: Allowance | None = None) -> Search:
    """Return the search for the best stack of layers of this kind, or one layer if that is best.

    Searches of one plan share an ``allowance``.
    """
    shared = allowance or Allowance()
    coarse_left = COARSE_PREFIXES

    def search(goal: Goal, negatives: int, psi: float, cutoff: float = math.inf) -> Stack | None:
        nonlocal coarse_left
        found = _Search(kind, goal, negatives, psi, cutoff)
        if shared.prefixes_left:
            found.prefixes_left = shared.prefixes_left
            found.extend(_Prefix())
            shared.prefixes_left = found.prefixes_left
        if not shared.prefixes_left:
            found.slack = COARSE_SLACK
            for found.deepest in range(3, MAX_LAYERS + 1, 2):
                found.prefixes_left = given = min(coarse_left, COARSE_PREFIXES_OF_A_DEPTH)
                found.extend(_Prefix())
                coarse_left -= given - found.prefixes_left
        return found.best

    return search


@dataclass
class _Search:
    kind: str
    goal: Goal
    negatives: int
    psi: float
    cutoff: float
    best: Stack | None = None
    best_rate: float = field(init=False)
    deepest: int = field(default_factory=lambda: MAX_LAYERS)
    prefixes_left: int = PREFIXES
    slack: float = SLACK

    def __post_init__(self) -> None:
        # The cutoff is the score of the best stack with another number of negatives.
        self.best_rate = self.rate_limit(Checks(0.0, 0.0, 0.0))

    def extend(self, prefix: _Prefix) -> None:
        """Try every way to go on from a prefix: with one layer, and with pairs."""
        self.end(prefix)
        if len(prefix.lengths) + 3 > self.deepest or not self.negatives:
            return
        items = math.ceil(self.goal.keys * prefix.keys_pass)
        coarsest = fingerprint_layer(self.kind, items, self.lengths.start).rate or 1.0
        fitting = self.fitting(items, prefix.bits)
        for length in self.thin(items, fitting) if self.coarse else reversed(fitting):
            bits, rate = fingerprint_layer(self.kind, items, length)
            if prefix.bits + bits > self.limit or self.overlong(prefix, items, length):
                continue
            sent = prefix.negatives_pass * prefix.keys_pass * rate
            if not self.promising(prefix.checks, prefix.accepted + sent * (1 - coarsest)):
                if self.coarse:
                    continue
                return
            passing = prefix.negatives_pass * rate
            stored = (passing, prefix.keys_pass, prefix.accepted, prefix.bits + bits)
            if self.hopeless(prefix.checks, *stored):
                continue
            if not self.prefixes_left:
                return
            self.pairs(prefix, length, rate, prefix.bits + bits)

    def pairs(self, prefix: _Prefix, length: int, rate: float, bits: int) -> None:
        """Try every layer of negatives behind a layer of keys."""
        passing = prefix.negatives_pass * rate
        reach = passing * prefix.keys_pass  # other negatives that come to the layer of negatives
        met = Checks(
            prefix.checks.keys + 2 * prefix.keys_pass,
            prefix.checks.frequent + prefix.negatives_pass + passing,
            prefix.checks.infrequent + prefix.negatives_pass * prefix.keys_pass + reach,
        )
        if self.goal.mean_checks(self.psi, met) > self.goal.max_checks:
            return
        items = math.ceil(self.negatives * passing)
        for other in self.lengths:
            if not self.prefixes_left:
                return
            self.prefixes_left -= 1
            if self.coarse and self.dominated(reach, items, other):
                continue
            more, coarse = fingerprint_layer(self.kind, items, other)
            accepted = prefix.accepted + reach * (1 - coarse)
            if bits + more > self.limit or not self.promising(met, accepted):
                return
            if self.hopeless(met, passing, prefix.keys_pass * coarse, accepted, bits + more):
                continue
            self.extend(
                _Prefix(
                    (*prefix.rates, rate, coarse),
                    (*prefix.lengths, length, other),
                    passing,
                    prefix.keys_pass * coarse,
                    accepted,
                    bits + more,
                    met,
                )
            )

    def end(self, prefix: _Prefix) -> None:
        """Put the last layer of keys behind a prefix."""
        items = math.ceil(self.goal.keys * prefix.keys_pass)
        lengths = self.fitting(items, prefix.bits)
        if not lengths:
            return

        def low_enough(length: int) -> bool:
            bits, rate = fingerprint_layer(self.kind, items, length)
            expected, bound, checks = self.predicted(prefix, rate)
            return bool(self.goal.allowed(expected, bound, self.psi, checks, prefix.bits + bits))

        # A longer fingerprint has a lower rate, and whatever fits has few enough bits.
        smallest = self.goal.minimizes_bits
        first = bisect_left(lengths, True, key=low_enough) if smallest else len(lengths) - 1
        if first < len(lengths):
            bits, rate = fingerprint_layer(self.kind, items, lengths[first])
            self.consider(prefix, lengths[first], rate, prefix.bits + bits)

    def predicted(self, prefix: _Prefix, rate: float) -> tuple[float, float, Checks]:
        """Return the rate, the bound and the checks of a prefix and a last layer of this rate."""
        met, reach = prefix.checks, prefix.negatives_pass * prefix.keys_pass
        checks = Checks(
            met.keys + prefix.keys_pass,
            met.frequent + prefix.negatives_pass,
            met.infrequent + reach,
        )
        bound = prefix.accepted + reach * rate
        expected = self.psi * prefix.negatives_pass * rate + (1 - self.psi) * bound
        return expected, bound, checks

    def consider(self, prefix: _Prefix, length: int, rate: float, bits: int) -> None:
        """Keep the stack of a prefix and a last layer if it is allowed and the best so far."""
        goal = self.goal
        expected, bound, checks = self.predicted(prefix, rate)
        if not goal.allowed(expected, bound, self.psi, checks, bits):
            return
        cost = goal.cost(expected, self.psi, checks, self.kind)
        negatives, psi = (self.negatives, self.psi) if prefix.lengths else (0, 0.0)
        rates, lengths = (*prefix.rates, rate), (*prefix.lengths, length)
        stack = Stack(self.kind, negatives, psi, rates, lengths, False, bits, cost)
        if goal.score(stack) < self.cutoff:
            self.best, self.cutoff = stack, goal.score(stack)
            self.best_rate = min(self.best_rate, goal.fpr, expected)

    def fitting(self, items: int, bits: int) -> range:
        """The lengths of fingerprints that fit behind these bits."""
        kind, lengths, left = self.kind, self.lengths, self.limit - bits
        shortest = fingerprint_layer(kind, items, lengths[0]).bits
        if left < shortest:
            return lengths[:0]
        longest = fingerprint_layer(kind, items, lengths[-1]).bits
        if left >= longest:
            return lengths
        # Bits are close to linear in the length, so a search begins at the right place.
        at = int((left - shortest) / (longest - shortest) * (len(lengths) - 1))
        while fingerprint_layer(kind, items, lengths[at]).bits > left:
            at -= 1
        while fingerprint_layer(kind, items, lengths[at + 1]).bits <= left:
            at += 1
        return lengths[: at + 1]

    def thin(self, items: int, lengths: range) -> list[int]:
        """Leave out lengths that save next to nothing over a longer one; the best guess first."""
        kept: list[int] = []
        last = math.inf
        for length in reversed(lengths):
            bits = fingerprint_layer(self.kind, items, length).bits
            if bits <= last - self.slack * self.limit or not kept:
                kept.append(length)
                last = bits
        return kept[::-1] if self.goal.minimizes_bits else kept

    def dominated(self, reach: float, items: int, length: int) -> bool:
        """Whether one more bit in a layer of negatives costs and changes less than the slack."""
        if length + 1 not in self.lengths:
            return False
        bits, rate = fingerprint_layer(self.kind, items, length)
        more = fingerprint_layer(self.kind, items, length + 1).bits - bits
        return more < self.slack * self.limit / MAX_LAYERS and (1 - self.psi) * reach * rate < (
            self.slack * self.best_rate
        )

    @property
    def coarse(self) -> bool:
        """Whether not all stacks are tried."""
        return self.slack > SLACK

    @property
    def lengths(self) -> range:
        """The lengths that fingerprints may have."""
        lengths = KINDS[self.kind].lengths
        assert lengths is not None
        return lengths

    @property
    def limit(self) -> float:
        """Bits beyond which no stack is of interest."""
        return self.cutoff * (1 - self.slack) if self.goal.minimizes_bits else self.goal.budget

    def rate_limit(self, met: Checks) -> float:
        """A rate that no better stack reaches, if it takes at least this number of checks."""
        goal = self.goal
        if goal.minimizes_bits:
            return goal.fpr
        spent = goal.cost(0.0, self.psi, met, self.kind)
        read = goal.cost(1.0, self.psi, met, self.kind) - spent  # at a rate of 1, without checks
        return min(1.0, (self.cutoff * (1 - self.slack) - spent) / read) if read else 1.0

    def hopeless(
        self, met: Checks, stored: float, keys_pass: float, accepted: float, bits: int
    ) -> bool:
        """Whether the remaining layers cannot fit, by the information-theoretic bound above."""
        if not self.psi:
            return False
        share = (self.rate_limit(met) - (1 - self.psi) * accepted) / (self.psi * stored)
        if share >= 1:
            return False
        if share <= 0:
            return True
        keys, negatives = self.goal.keys * keys_pass, self.negatives * stored
        accepted_share = (keys + share * negatives) / (keys + negatives)
        if accepted_share == 1:  # rounded: too few negatives compared with the keys for a bound
            return False
        entropy = share * math.log2(share / accepted_share) + (1 - share) * math.log2(
            (1 - share) / (1 - accepted_share)
        )
        return bits - keys * math.log2(accepted_share) + negatives * entropy > self.limit

    def promising(self, met: Checks, accepted: float) -> bool:
        """Whether a stack that accepts at least this many other negatives could be the best."""
        rate = (1 - self.psi) * accepted
        if rate > self.goal.fpr or accepted > self.goal.max_fpr_bound:
            return False
        if self.goal.minimizes_bits:
            return True
        cost = self.goal.cost(rate, self.psi, met, self.kind)
        return bool(cost < self.cutoff * (1 - self.slack))

    def overlong(self, prefix: _Prefix, items: int, length: int) -> bool:
        """Whether a shorter fingerprint would already let next to nothing pass."""
        if length == self.lengths.start:
            return False
        rate = fingerprint_layer(self.kind, items, length - 1).rate
        others = (1 - self.psi) * prefix.keys_pass
        return (self.psi + others) * prefix.negatives_pass * rate < self.slack * self.best_rate
