"""`tamis.advise`: which filter, how large, and what it saves."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from tamis import _native
from tamis._checks import (
    MAX_BITS_PER_KEY,
    MAX_KEYS,
    check_bits_per_key,
    check_int,
    check_number,
    check_rate,
    check_share,
    check_workload,
    parse_budget,
    parse_duration,
    shown,
)
from tamis.advice.adaptive import adaptive, horizon
from tamis.advice.advice import Advice
from tamis.advice.learned import learned
from tamis.advice.sets import collections, overhead
from tamis.advice.situation import (
    NEEDS,
    Choice,
    Found,
    Gaps,
    RuledOut,
    Situation,
    ranked,
    secret,
    unfit,
)
from tamis.advice.stacked import stacked
from tamis.advice.streams import drawn_gaps, logged_gaps, streams
from tamis.advice.turnover import MAX_TURNOVER
from tamis.collection import Utility
from tamis.planning.kinds import KINDS, REFERENCE, Kind, Option, check_seconds

if TYPE_CHECKING:
    from tamis._types import Keys
    from tamis.workload import Workload

_NO_UTILITY = (
    "All sets are assumed to be queried equally often. Pass utility=, such as the counts of "
    "Collection.record, to give more bits to the sets that are queried more often."
)

_NO_TURNOVER = (
    "No keys are assumed to be replaced before the next rebuild. Pass turnover=, the fraction of "
    "keys replaced: stacked and adaptive filters then lose part of their knowledge of absent keys."
)


def advise(
    keys: Keys | SupportsIndex | Mapping[str, Keys],
    workload: Workload | None = None,
    *,
    fpr: float | None = None,
    bits_per_key: float | None = None,
    budget: int | str | None = None,
    miss_cost: float | str = "1ms",
    denial_cost: float | str | None = None,
    check_cost: float | str | None = None,
    present: float | None = None,
    expected_queries: float | None = None,
    turnover: float | None = None,
    needs: Iterable[str] = (),
    features: Any = None,
    nonmembers: Any = None,
    utility: Utility | None = None,
    log: Keys | None = None,
) -> Advice:
    """Rank all filters that fit a budget by the predicted cost of a query.

    ``keys`` are the keys, or only their number; for a stream, how many of the latest to remember.
    The budget is ``bits_per_key`` (default: 10), or ``budget`` in bytes or as a size such as
    "64MB". With ``fpr`` instead, each filter is the smallest with at most this rate, and the
    smallest is first. Costs are durations in seconds, or text such as "1ms": ``miss_cost`` of a
    wasted read, ``denial_cost`` of rejecting a key that is in the set (default: ``miss_cost``),
    ``check_cost`` of a query of a standard Bloom filter on your machine (default: from
    `tamis.planning.kinds`). ``present`` is the fraction of queries for keys in the set (default:
    from the workload). ``expected_queries`` is the number of queries for absent keys to plan
    for (default: as many as the workload counted). ``turnover`` is how many keys are replaced
    during these queries, before the next rebuild, as a fraction of the keys (default: 0): with
    2,000 of 10,000 keys it is 0.2. It implies the needs "insert" and "delete".

    ``needs`` are any of "insert", "delete", "adversary" (someone repeats false positives), "store"
    (a store reports false positives), "stream" (an endless stream), "false negatives allowed", and
    "classifier" (a model may read the keys). A classifier is trained on a sample of the keys, or
    of their ``features`` with one row per key, and of ``nonmembers``, absent keys or their
    features (default: the values of the workload).

    ``log`` is the queries in order. Unlike a workload, it shows how many later queries are for keys
    not queried before, and in a stream, after how many records values are repeated. Without it,
    queries are assumed to be independent of each other.

    If ``keys`` is a mapping of names to sets, the advice is for a `tamis.Collection`; ``utility``
    is how often each set is queried.

    >>> import tamis
    >>> a = tamis.advise(100_000, bits_per_key=12, needs={"delete"})
    >>> [each.name for each in a.choices]
    ['Quotient', 'Cuckoo']
    """
    check_workload(workload)
    required = _needs(needs)
    counts = [_count(each) for each in keys.values()] if isinstance(keys, Mapping) else None
    n = _count(keys) if counts is None else sum(counts)
    bits = _budget(n, fpr, bits_per_key, budget)
    if fpr is not None and isinstance(keys, Mapping):
        raise ValueError("fpr cannot be combined with a mapping of sets; pass budget=")
    miss = parse_duration("miss_cost", miss_cost)
    denial = miss if denial_cost is None else parse_duration("denial_cost", denial_cost)
    scale = 1.0
    if check_cost is not None:
        base = check_seconds(REFERENCE.check, n, present=False)
        scale = parse_duration("check_cost", check_cost) / base
    queries, counted = horizon(workload, n)
    if expected_queries is not None:
        counted = True
        queries = check_number("expected_queries", expected_queries, "a positive number", above=0)
    replaced = _turnover(turnover, required, keys)
    if replaced:
        required |= {"insert", "delete"}
    gaps = _stream_gaps(workload, log, n) if "stream" in required else None
    present_share = _present(workload, present, gaps, n)
    if log is not None and gaps is None and workload is not None:
        known: Any = None if isinstance(keys, int | np.integer) else keys
        workload = workload.with_log(log, keys=known)
    if workload is not None and workload.present != present_share:
        workload = copy.copy(workload)
        workload.present = present_share
    situation = Situation(
        n,
        bits,
        workload,
        required,
        present_share,
        queries,
        miss,
        denial,
        scale,
        gaps,
        fpr,
        replaced,
    )
    if isinstance(keys, Mapping):
        found = list(collections(situation, np.array(counts), utility, overhead(keys)))
        unknowns = [_NO_UTILITY] if utility is None else []
    else:
        found = list(_single(situation, keys, features, nonmembers))
        unknowns = list(_unknowns(situation, counted, present, log))
        if turnover is None and workload is not None and {"insert", "delete"} <= required:
            unknowns.append(_NO_TURNOVER)
    return Advice(
        situation,
        tuple(ranked(situation, [each for each in found if isinstance(each, Choice)])),
        tuple(each for each in found if isinstance(each, RuledOut)),
        tuple(unknowns),
    )


def _single(situation: Situation, keys: Any, features: Any, nonmembers: Any) -> Iterator[Found]:
    """Yield the choices of every family of filters of one set."""
    alike = list(_plain(situation))
    costs = (situation.cost(each) for each in alike if isinstance(each, Choice))
    yield from alike
    # If choices are ranked by size, a slow stack is not ruled out.
    yield from stacked(
        situation, min(costs, default=math.inf) if situation.fpr is None else math.inf
    )
    yield from adaptive(situation)
    yield learned(situation, keys, features, nonmembers)
    yield from streams(situation)


def _plain(situation: Situation) -> Iterator[Found]:
    """Filters that treat all queries alike: every option that has a reason to be chosen."""
    for kind in KINDS.values():
        for option in kind.options:
            if kind.sizes is not None and option.reason:
                yield _plain_choice(situation, kind, option)


def _plain_choice(situation: Situation, kind: Kind, option: Option) -> Found:
    if reason := unfit(situation, inserts=kind.inserts, deletes=kind.deletes):
        return RuledOut(option.name, reason)
    arguments = {**option.arguments, **situation.sizing}
    assert kind.sizes is not None
    try:
        size = kind.sizes.size(situation.keys, **arguments)
    except ValueError as error:
        return RuledOut(option.name, str(error))
    rate = size.rate(situation.keys)
    return Choice(
        option.name,
        "plain",
        kind.filter,
        arguments,
        expected_fpr=rate,
        fpr_bound=1.0 if "adversary" in situation.needs else rate,
        bits=size.bits,
        keys=situation.keys,
        absent_time=situation.check(option, present=False),
        present_time=situation.check(option, present=True),
        reason=option.reason + secret(situation),
    )


def _needs(needs: Iterable[str]) -> frozenset[str]:
    if not isinstance(needs, Iterable):
        raise TypeError(f"needs must be a set of names, not {shown(needs)}")
    required = frozenset([needs] if isinstance(needs, str) else needs)
    for each in sorted(required, key=str):
        if each not in NEEDS:
            raise ValueError(f"needs must be any of {', '.join(NEEDS)}, not {each!r}")
    return required


def _turnover(turnover: float | None, needs: frozenset[str], keys: Any) -> float:
    if turnover is None:
        return 0.0
    if "stream" in needs or isinstance(keys, Mapping):
        other = "a stream" if "stream" in needs else "a mapping of sets"
        raise ValueError(f"turnover cannot be combined with {other}")
    return check_number(
        "turnover", turnover, "a number from 0 to 10,000", minimum=0, maximum=MAX_TURNOVER
    )


def _count(keys: Any) -> int:
    if isinstance(keys, int | np.integer):
        return check_int("keys", keys, MAX_KEYS)
    return len(_native.Distinct(keys))


def _budget(n: int, fpr: float | None, bits_per_key: float | None, budget: int | str | None) -> int:
    if sum(each is not None for each in (fpr, bits_per_key, budget)) > 1:
        raise ValueError("pass at most one of fpr, bits_per_key and budget")
    if fpr is not None:
        check_rate("fpr", fpr)
        return MAX_BITS_PER_KEY * max(n, 1)
    if budget is not None:
        return 8 * parse_budget(budget)
    bits_per_key = 10.0 if bits_per_key is None else bits_per_key
    return math.floor(check_bits_per_key(bits_per_key) * max(n, 1))


def _stream_gaps(workload: Workload | None, log: Any, keys: int) -> Gaps:
    if log is None:
        return drawn_gaps(workload, keys)
    return logged_gaps(_native.hash_keys(log)[:, 0], keys)


def _present(
    workload: Workload | None, present: float | None, gaps: Gaps | None, keys: int
) -> float:
    if present is not None:
        return check_share("present", present)
    if workload is None and gaps is not None and len(gaps.records) == 1:
        return 0.0  # nothing is known about the stream
    if gaps is not None:
        return min(gaps.within(keys), 1.0)
    return 0.0 if workload is None else workload.present


def _unknowns(
    situation: Situation, counted: bool, present: float | None, log: Any
) -> Iterator[str]:
    w, needs = situation.workload, situation.needs
    if "stream" in needs and log is None:
        known = "how often they occur" if w is not None else "how many are remembered"
        yield (
            f"Unknown: after how many records values are repeated; only {known} is known. Pass "
            "log=, the records in order."
        )
    elif w is None and "stream" not in needs:
        yield (
            "Unknown: which absent keys are queried. Pass a workload, such as "
            "Workload.from_queries(log, keys=keys), to see what stacked and adaptive filters save."
        )
    elif w is not None and w.values is None:
        yield "The workload has no values: pass negatives= to build a stack."
    if present is None and (w is None or w.removed == 0) and "stream" not in needs:
        yield (
            "The fraction of queries for keys in the set is assumed to be 0. Pass present=, or a "
            "workload that was counted with keys=."
        )
    if "store" in needs and not counted:
        yield (
            f"The number of queries for absent keys is assumed to be {situation.queries:,.0f}. "
            "Pass expected_queries=; the more queries repeat, the more adaptive filters save."
        )
    if "classifier" not in needs and "stream" not in needs:
        yield (
            "Not tested: whether a classifier can separate keys from queries. Pass "
            "needs={'classifier'}, the keys, and a workload with values."
        )
    if w is not None and w.values is not None and "stream" not in needs and log is None:
        yield (
            "Unknown: whether later queries resemble the sample. Pass log=, the queries "
            "in order, or run measure(keys, queries) on later ones."
        )
