"""Telescoping and extending filters: sizes, and the memory that adapting takes.

The slots are laid out as in a quotient filter (``planning.quotient``). In addition, each block of
64 slots has a code of its selectors: 56 bits (``"block"``), as long as necessary (``"growing"``),
or one byte per slot (``"plain"``).

The predictions follow Lee, McCauley, Singh and Stein 2021. ``queries`` (c) is the number of
distinct absent keys that are queried, per key in the set; ``fpr`` (ε) is 2^−r.
"""

import math
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tamis._checks import one_of, rate_or_budget
from tamis.planning import quotient

SELECTORS = ("growing", "block", "plain")
"""The ways to store selectors."""

_BLOCK = 64
# From `src/telescoping/store.rs`: the codes of 64 blocks share a piece of memory of 152 bytes plus
# the codes; a fixed code has 7 bytes, a plain one 64.
_SHARING = 64
_PIECE_BITS = 8 * 152
_FIXED_BITS = {"block": 56, "plain": 512}


def selector_bits(quotients: int, selectors: str) -> int:
    """Return the bits of the selectors before any element has moved.

    >>> selector_bits(64_000, "block") / 64_000
    0.875
    """
    blocks = math.ceil(quotients / _BLOCK)
    if selectors == "growing":
        return math.ceil(blocks / _SHARING) * _PIECE_BITS
    return blocks * _FIXED_BITS[selectors]


class TelescopingSize(NamedTuple):
    """A telescoping or extending filter's size: type of selectors, quotients, remainder bits."""

    selectors: str
    quotients: int
    remainder_bits: int

    @property
    def _table(self) -> quotient.QuotientSize:
        return quotient.QuotientSize(self.quotients, self.remainder_bits)

    @property
    def bits(self) -> int:
        """The size in bits before any element has moved."""
        return self._table.bits + selector_bits(self.quotients, self.selectors)

    def rate(self, keys: int) -> float:
        """Predict the rate of the first query of each key."""
        return self._table.rate(keys)

    def coarser(self, keys: int) -> Self | None:
        """Return the size with remainders one bit shorter, or None if they have one bit."""
        coarser = self._table.coarser(keys)
        return None if coarser is None else self._replace(remainder_bits=coarser.remainder_bits)


def size(
    keys: int,
    *,
    fpr: float | None = None,
    bits_per_key: float | None = None,
    selectors: str = "growing",
) -> TelescopingSize:
    """Find the shortest remainders with at most this rate, or the longest within this budget.

    The budget is the size before any adaptation.

    >>> size(1_000_000, fpr=2**-8)
    TelescopingSize(selectors='growing', quotients=1052480, remainder_bits=8)
    >>> size(1_000_000, bits_per_key=12, selectors="block")
    TelescopingSize(selectors='block', quotients=1052480, remainder_bits=8)
    """
    one_of("selectors", selectors, SELECTORS)
    fpr, bits_per_key = rate_or_budget(fpr, bits_per_key)
    if bits_per_key is None:
        return TelescopingSize(selectors, *quotient.size(keys, fpr=fpr))
    quotients = quotient.quotients(keys)
    if quotients == _BLOCK:  # the smallest filter, regardless of the budget
        selectors_per_key = 1.0 if selectors == "growing" else _FIXED_BITS[selectors] / _BLOCK
    else:
        selectors_per_key = (selector_bits(quotients, selectors) + 8 * 128) / max(keys, 1)
    try:
        found = quotient.size(keys, bits_per_key=max(bits_per_key - selectors_per_key, 1e-9))
    except ValueError:
        needed = selectors_per_key + (quotient.METADATA_BITS + 1) / quotient.LOAD
        raise ValueError(
            f"bits_per_key must be at least {needed:.2f} for a filter of {keys} keys with "
            f"{selectors!r} selectors, not {bits_per_key}"
        ) from None
    return TelescopingSize(selectors, *found)


def selector_bound(
    queries: float, fpr: float, max_selector: int = 16, *, keys: int | None = None
) -> npt.NDArray[np.float64]:
    """Bound the share of elements with selector 0, and with selector k or more.

    The bound holds for any order and repetition of the queries, as long as they do not depend on
    the hashes. An element has selector k or more only if each of its first k remainders matches one
    of the D queries with its quotient. A query matches a remainder with probability ε, and
    remainders are independent:

        P(selector ≥ k) ≤ E[(1 − (1 − ε)^D)^k],    D ~ Poisson(c),  or Binomial(c·n, 1/n) for n keys

    with equality if there are as many quotients as keys and queries are repeated until none is a
    false positive. Lemma 2 and Corollary 3 of the paper claim less; see `selector_bound_printed`.

    >>> selector_bound(20, 2**-8, 2).round(4)
    array([0.9248, 0.0752, 0.0059])
    """
    if not queries > 0:
        raise ValueError(f"queries must be positive, not {queries}")
    from scipy import special  # slow to import, and rarely needed

    # Beyond these counts the probabilities are below 1e-30.
    low = max(0, math.floor(queries - 12 * math.sqrt(queries)))
    met = np.arange(low, math.ceil(queries + 12 * math.sqrt(queries)) + 40, dtype=float)
    if keys is None:
        logs = met * math.log(queries) - queries - special.gammaln(met + 1)
    else:
        total = max(queries * keys, 1.0)
        met = met[met <= total]
        ways = special.gammaln(total + 1) - special.gammaln(met + 1)
        ways -= special.gammaln(total - met + 1)
        logs = ways - met * math.log(keys) + special.xlog1py(total - met, -1 / keys)
    hit = -np.expm1(met * math.log1p(-fpr))
    bounds = np.exp(logs) @ hit[:, None] ** np.arange(max_selector + 1)
    bounds[0] -= bounds[1]  # exact: all other elements moved
    return np.asarray(np.minimum(bounds, 1.0))


def selector_bound_printed(
    queries: float, fpr: float, max_selector: int = 16, *, keys: int | None = None
) -> npt.NDArray[np.float64]:
    """Lemma 2 for ``keys`` (n), or Corollary 3, its limit for many keys, as printed.

    Both are claimed for any repetitions of fewer than 1/ε − 1 queries per key. They count sets of
    queries, but it also matters which of them is repeated after an element has moved: with
    repetitions, more elements reach selector 2 (0.0050 against 0.0033 here). From selector 3 on,
    they are too low even if no query is repeated, since k steps can be distributed over i queries
    in several ways. `selector_bound` holds.

    >>> selector_bound_printed(20, 2**-8, 2).round(3)
    array([0.925, 0.078, 0.003])
    """
    if not 0 < queries < 1 / fpr - 1:
        raise ValueError(f"queries must be between 0 and {1 / fpr - 1:.6g}, not {queries}")
    k = np.arange(1, max_selector + 1)
    # C(cn, k)/n^k, or c^k/k! in the limit: a product of one factor per step.
    if keys is None:
        none, last, factors = math.exp(-queries * fpr), 1.0, queries / k
    else:
        none, last = (1 - fpr / keys) ** (queries * keys), 1 - fpr
        factors = np.maximum(queries - (k - 1) / keys, 0) / k
    bounds = np.empty(max_selector + 1)
    bounds[0] = none
    bounds[1:] = last * fpr**k * np.cumsum(np.cumprod(factors))
    return np.minimum(bounds, 1.0)


def selector_share(
    queries: float, fpr: float, max_selector: int = 16, *, load: float = quotient.LOAD
) -> npt.NDArray[np.float64]:
    """Predict the fraction of elements with each selector, if queries are repeated.

    An element stays where it is with probability 1 − s = e^(−load·c·ε). Wherever it moves, all
    queries of its quotient meet it again, so it moves again with the same probability s: the
    selectors are nearly geometric. (Elements with more queries of their quotient move farther;
    `selector_bound` takes that into account.)

    >>> selector_share(20, 2**-8, 2).round(3)
    array([0.928, 0.066, 0.005])
    """
    moved = -math.expm1(-load * queries * fpr)
    return np.float64(1 - moved) * np.power(np.float64(moved), np.arange(max_selector + 1))


def selector_entropy(queries: float, fpr: float, *, load: float = quotient.LOAD) -> float:
    """Predict the bits per element of the best code of `selector_share`: h(s)/(1 − s).

    >>> [round(selector_entropy(c, 2**-8), 2) for c in (20, 50, 100)]
    [0.4, 0.79, 1.29]
    """
    moved = -math.expm1(-load * queries * fpr)
    bits = -moved * math.log2(moved) - (1 - moved) * math.log2(1 - moved)
    return bits / (1 - moved)


def rounding_bits(queries: float, fpr: float) -> float:
    """Predict the bits per element that growing selectors take beyond their entropy.

    The code of a block of 64 slots has whole bytes, on average half a byte more than its bits, and
    takes none while no element has moved.

    >>> round(rounding_bits(20, 2**-8), 3)
    0.062
    """
    return 4 / _BLOCK * -math.expm1(-_BLOCK * queries * fpr)


def queries_within(bits_per_element: float, fpr: float) -> float:
    """Return a lower bound of the queries per key that these bits suffice for: Theorem 4.

    1/e + b/(b−1)² bits per element, for any b ≥ 2, suffice for 1/(b·√ε) distinct queries per key.

    >>> round(queries_within(0.812, 2**-8), 1)
    4.0
    """
    beyond = bits_per_element - 1 / math.e
    if beyond <= 0:
        return 0.0
    # b/(b−1)² = t is a quadratic equation in b; the larger root falls as t rises.
    b = max(2.0, (2 * beyond + 1 + math.sqrt(4 * beyond + 1)) / (2 * beyond))
    return 1 / (b * math.sqrt(fpr))
