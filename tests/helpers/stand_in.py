"""Filters that adapt, to test guards with: a slow one, prefixes of hashes; and a tiny stack."""

import threading
from collections import Counter

import numpy as np

import tamis
from tamis import _native
from tamis.filters.adaptive_stacked import _started
from tamis.planning import bloom, quotient
from tamis.planning.adaptive_stacked import AdaptivePlan, PlanRequest
from tamis.planning.kinds import KINDS
from tamis.planning.plan import Layer, Plan
from tamis.planning.stacked.lifetime import shape
from tamis.planning.stacked.predictions import Checks

BITS = 128


class Prefixes:
    """A multiset of prefixes, each of the hash of one key and at first ``bits`` long.

    A prefix that fooled the filter is replaced by a longer one of the stored hash that owns it,
    found by content in the remote; what no stored hash owns (a put that never came) is left alone.
    """

    inserts = deletes = adapts = True
    _seed_is_random = False
    __class__ = property(lambda self: tamis.Filter)  # for guards, which take nothing else

    def __init__(self, bits=6, seed=7):
        self.bits, self.seed, self.capacity = bits, seed, 1000
        self._slots = Counter()
        self._lock = threading.RLock()

    def __len__(self):
        return self._slots.total()

    @property
    def expected_fpr(self):
        return min(1.0, len(self._slots) * 2.0**-self.bits)

    @property
    def size_in_bits(self):
        return len(self._slots) * self.bits

    def to_bytes(self):
        # Guards keep the bytes of an empty filter to rebuild it; this one has none.
        return tamis.Bloom(capacity=1, fpr=0.5).to_bytes()

    def __contains__(self, key):
        return bool(self.contains([key])[0])

    def contains(self, keys):
        hashes = self._hashes(keys)
        with self._lock:
            return np.array([bool(self._matches(h)) for h in hashes], dtype=bool)

    def add(self, key, remote=None):
        self.update([key], remote)

    def update(self, keys, remote=None):
        hashes = self._hashes(keys)
        with self._lock:
            for h in hashes:
                self._slots[self.bits, h >> (BITS - self.bits)] += 1

    def remove_many(self, keys, remote=None):
        removed = []
        for key in keys:
            try:
                self.remove(key, remote)
                removed.append(True)
            except KeyError:
                removed.append(False)
        return np.array(removed, dtype=bool)

    def remove(self, key, remote=None):
        with self._lock:
            matches = self._matches(self._hashes([key])[0])
            if not matches:
                raise KeyError(key)
            # The owner of the longest also has every shorter one, so the others stay covered.
            self._drop(max(matches))

    def adapt_many(self, keys, remote):
        hashes = self._hashes(keys)
        with self._lock:
            return np.array([self._adapt(h, remote) for h in hashes], dtype=bool)

    def _adapt(self, wrong, remote):
        first = wrong >> (BITS - self.bits) << (BITS - self.bits)
        last = first | ((1 << (BITS - self.bits)) - 1)
        stored = [a << 64 | b for a, b in remote.run(first >> 64, last >> 64).tolist()]
        if wrong in stored:
            return False
        fixed = False
        for slot in self._matches(wrong):
            for owner in [h for h in stored if h >> (BITS - slot[0]) == slot[1]]:
                fixed |= self._lengthen(slot, owner, wrong, stored)
        return fixed

    def _lengthen(self, slot, owner, wrong, stored):
        """Replace a slot by a longer prefix of this owner, if each hash keeps one of its own."""
        if slot not in self._slots:
            return False
        bits = BITS - (owner ^ wrong).bit_length() + 1
        longer = bits, owner >> (BITS - bits)
        self._drop(slot)
        self._slots[longer] += 1
        if self._covers(stored):
            return True
        self._drop(longer)
        self._slots[slot] += 1
        return False

    def _covers(self, stored):
        """Tell whether each hash has a slot of its own: the longest slots choose first."""
        left = list(stored)
        for (length, prefix), count in sorted(self._slots.items(), reverse=True):
            own = [h for h in left if h >> (BITS - length) == prefix][:count]
            left = [h for h in left if h not in own]
        return not left

    def _drop(self, slot):
        self._slots[slot] -= 1
        if not self._slots[slot]:
            del self._slots[slot]

    def _matches(self, h):
        lengths = {length for length, _ in self._slots}
        return [(n, h >> (BITS - n)) for n in lengths if (n, h >> (BITS - n)) in self._slots]

    def _hashes(self, keys):
        words = tamis.hash_keys(list(keys), seed=self.seed).tolist()
        return [a << 64 | b for a, b in words]


def tiny(kind, depth=5, fine=2, capacity=30, seed=0, keys=()):
    """An adaptive stack of layers so small that everything collides; it grows by a few mistakes."""
    stores = ("keys", "negatives")
    layers = tuple(
        Layer(kind, stores[i % 2], 2.0**-fine, capacity, 3 * capacity, fine, KINDS[kind].layout)
        for i in range(depth)
    )
    nothing = dict.fromkeys(("expected_fpr", "fpr_bound", "bits_per_key", "expected_checks"), 0.0)
    stack = Plan(
        n_keys=200, layers=layers, negatives=10**9, psi=0.5, last="alternating",
        checks=Checks(1.0, 1.0, 1.0), **nothing,
    )  # fmt: skip
    curve = shape(tamis.Workload.zipf(1.0, universe=20_000).curve)
    plan = AdaptivePlan(stack, 10**9, 0.1, PlanRequest(200, bits_per_key=8.0), curve)
    distinct = _native.Distinct(list(keys), seed)
    if kind == "bloom":
        first = _native.Bloom._build(bloom.BloomSize("standard", 400, 2), distinct)
    else:
        first = _native.Quotient._build(quotient.QuotientSize(256, fine), distinct, 200)
    return tamis.AdaptiveStacked._of(_started(first, plan, 200))
