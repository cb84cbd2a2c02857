"""`tamis.advise`: which filter, how big, and what it will gain."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from tamis import _native
from tamis.advice.adaptive import adaptive, horizon
from tamis.advice.learned import learned
from tamis.advice.measuring import measured
from tamis.advice.page import page
from tamis.advice.plain import plain
from tamis.advice.sets import collections, overhead
from tamis.advice.situation import (
    NEEDS,
    Choice,
    Found,
    Gaps,
    RuledOut,
    Situation,
    ranked,
)
from tamis.advice.stacked import stacked
from tamis.advice.streams import drawn_gaps, logged_gaps, streams
from tamis.advice.text import explained, table
from tamis.collection import Utility
from tamis.pictures import draw_costs
from tamis.planning.arguments import MOST_KEYS, check_rate_or_budget, parse_budget, whole
from tamis.planning.costs import check_seconds, duration
from tamis.planning.kinds import KINDS
from tamis.planning.stacked.frequencies import Steps

if TYPE_CHECKING:
    from tamis._types import FilePath, Keys
    from tamis.workload import Workload

_ASKED_ALIKE = (
    "All sets are taken to be asked equally often: utility=, such as what Collection.record has "
    "counted, would tell which filters deserve more bits."
)


@dataclass(frozen=True)
class Advice:
    """Ranked choices: ``choices`` from the cheapest question on, ``best`` the first of them.

    Each `Choice` has a ``name``, ``family``, ``expected_fpr``, ``fpr_bound``, ``expected_fnr``,
    ``bits_per_key``, ``cost`` of a question in seconds, one sentence of ``reason``, and `build`.
    ``ruled_out`` has a ``name`` and ``reason`` each; ``unjudged`` are sentences on what could not
    be judged and which sample would tell. `explain` derives the numbers, `measure` holds them
    against a sample, `to_json` is for programs, `str` a table.

    >>> import tamis
    >>> w = tamis.Workload.zipf(exponent=1.0, universe=10**8, sample=5 * 10**7)
    >>> a = tamis.advise(1_000_000, w, bits_per_key=10, miss_cost="1ms")
    >>> a.best.family, a.best.expected_fpr < 1e-4
    ('stacked', True)
    """

    situation: Situation
    choices: tuple[Choice, ...]
    ruled_out: tuple[RuledOut, ...]
    unjudged: tuple[str, ...]

    @property
    def best(self) -> Choice:
        """The choice whose questions are predicted to cost least."""
        if not self.choices:
            reasons = "; ".join(f"{each.name}: {each.reason}" for each in self.ruled_out)
            raise ValueError(f"no filter fits: {reasons}")
        return self.choices[0]

    def explain(self) -> str:
        """Derive the numbers: what was given, what the papers say of it, and each cost as a sum."""
        return "\n".join(explained(self))

    def measure(
        self, keys: Keys | SupportsIndex | Mapping[str, Keys], queries: Keys, *, seeds: int = 1
    ) -> Advice:
        """Build every choice, ask it these questions, and return the advice with what came out.

        A filter errs per key: where few keys make most questions, a rate is that of a few coins,
        so each choice is built with ``seeds`` seeds, and ``measured_error`` is the standard error
        of the mean. The order stays as predicted; ``measured_fpr``, ``measured_fnr``,
        ``measured_bits``, ``measured_time`` and ``measured_cost`` of each choice are filled, and
        `str` shows both. Filters that adapt do so as they are asked; for a stream, ``keys`` are
        the records that came before, or only how many to remember. Times are of this machine, now.

        >>> import tamis
        >>> a = tamis.advise(range(1000), bits_per_key=12, needs={"delete"})
        >>> told = a.measure(range(1000), range(1000, 50_000))
        >>> bool(abs(told.best.measured_fpr / told.best.expected_fpr - 1) < 0.5)
        True
        """
        if seeds < 1:
            raise ValueError(f"seeds is {seeds}; at least 1 is wanted")
        found = measured(self.situation, self.choices, keys, queries, seeds)
        return replace(self, choices=tuple(found))

    def to_json(self) -> str:
        """Return the advice as JSON text: the situation, choices, what was ruled out and left open.

        >>> import tamis
        >>> json.loads(tamis.advise(1000).to_json())["choices"][0]["family"]
        'plain'
        """
        s = self.situation
        given = {
            "keys": s.keys,
            "budget_bits": s.budget,
            "needs": sorted(s.needs),
            "present": s.present,
            "questions": s.questions,
            "miss_cost": s.miss_cost,
            "denial_cost": s.denial_cost,
        }
        return json.dumps(
            {
                "situation": given,
                "choices": [_plain_fields(each) for each in self.choices],
                "ruled_out": [asdict(each) for each in self.ruled_out],
                "unjudged": list(self.unjudged),
            }
        )

    def plot(self, ax: Any = None) -> Any:
        """Draw what a question costs with each choice, the best at the top; return the axes."""
        return draw_costs(self.choices, ax)

    def report(self, path: FilePath) -> None:
        """Write all of it as one HTML page with pictures, which needs nothing else to be read."""
        page(self).save(path)

    def __str__(self) -> str:
        return "\n".join(table(self))


def advise(
    keys: Keys | SupportsIndex | Mapping[str, Keys],
    workload: Workload | None = None,
    *,
    bits_per_key: float | None = None,
    budget: int | str | None = None,
    miss_cost: float | str = "1ms",
    denial_cost: float | str | None = None,
    check_cost: float | str | None = None,
    present: float | None = None,
    questions: float | None = None,
    needs: Iterable[str] = (),
    features: Any = None,
    nonmembers: Any = None,
    utility: Utility | None = None,
    log: Keys | None = None,
) -> Advice:
    """Rank all filters that fit a budget by what a question is predicted to cost.

    ``keys`` are the keys, or only how many; for a stream, how many of the latest are to be
    remembered. The budget is ``bits_per_key`` (10 unless given) or ``budget`` in bytes, also as
    "64MB". Durations are seconds or text such as "1ms": ``miss_cost`` is a read in vain,
    ``denial_cost`` a key that is denied (the same unless given), ``check_cost`` one check of a
    standard Bloom filter on your machine (that of the table in `tamis.planning.costs` unless
    given). ``present`` is the share of questions for keys that are there (the workload's unless
    given), ``questions`` how many for absent keys are to come (as many as the workload has seen).

    ``needs`` are of: "insert", "delete", "adversary" (who repeats what was wrong), "store" (one is
    at hand and tells of mistakes), "stream" (without end), "false negatives allowed", "classifier"
    (a model may read the keys). A classifier is trained on a sample of the keys, or of their
    ``features``, one row for each, and of ``nonmembers``: what is read of absent keys, the values
    of the workload unless given.

    A ``log``, the questions in the order that they came, tells what a workload cannot: how many
    later ones ask for what earlier ones did not; of a stream, after how many records values come
    again. Without one, questions are taken as drawn independently of each other.

    Many sets, as a mapping of names to keys, are advised on as a `tamis.Collection`; ``utility``
    is how often each is asked.

    >>> import tamis
    >>> a = tamis.advise(100_000, bits_per_key=12, needs={"delete"})
    >>> [each.name for each in a.choices]
    ['Quotient', 'Cuckoo']
    """
    wanted = _needs(needs)
    counts = [_count(each) for each in keys.values()] if isinstance(keys, Mapping) else None
    n = _count(keys) if counts is None else sum(counts)
    bits = _budget(n, bits_per_key, budget)
    miss = duration("miss_cost", miss_cost)
    denial = miss if denial_cost is None else duration("denial_cost", denial_cost)
    scale = 1.0
    if check_cost is not None:
        base = check_seconds(KINDS["bloom"].options[1].check, n, present=False)
        scale = duration("check_cost", check_cost) / base
    asked, told_by_log = horizon(workload, n)
    if questions is not None:
        asked, told_by_log = _positive("questions", questions), True
    gaps = _stream_gaps(workload, log, n) if "stream" in wanted else None
    there = _present(workload, present, gaps, n)
    if log is not None and gaps is None and workload is not None:
        workload = _drifting(workload, keys, log)
    if workload is not None and workload.present != there:
        workload = copy.copy(workload)
        workload.present = there
    situation = Situation(n, bits, workload, wanted, there, asked, miss, denial, scale, gaps)
    if isinstance(keys, Mapping):
        found = list(collections(situation, np.array(counts), utility, overhead(keys)))
        open_questions = [_ASKED_ALIKE] if utility is None else []
    else:
        found = list(_single(situation, keys, features, nonmembers))
        open_questions = list(_unjudged(situation, told_by_log, present, log))
    return Advice(
        situation,
        tuple(ranked(situation, [each for each in found if isinstance(each, Choice)])),
        tuple(each for each in found if isinstance(each, RuledOut)),
        tuple(open_questions),
    )


def _single(situation: Situation, keys: Any, features: Any, nonmembers: Any) -> Iterator[Found]:
    """What every family of filters of one set says."""
    alike = list(plain(situation))
    costs = (situation.cost(each) for each in alike if isinstance(each, Choice))
    yield from alike
    yield from stacked(situation, min(costs, default=math.inf))
    yield from adaptive(situation)
    yield learned(situation, keys, features, nonmembers)
    yield from streams(situation)


def _needs(needs: Iterable[str]) -> frozenset[str]:
    wanted = frozenset([needs] if isinstance(needs, str) else needs)
    for each in sorted(wanted, key=str):
        if each not in NEEDS:
            raise ValueError(f"needs has {each!r}; {', '.join(NEEDS)} are possible")
    return wanted


def _count(keys: Any) -> int:
    if isinstance(keys, int | np.integer):
        return whole("keys", keys, MOST_KEYS)
    return len(_native.Distinct(keys))


def _budget(n: int, bits_per_key: float | None, budget: int | str | None) -> int:
    if bits_per_key is not None and budget is not None:
        raise ValueError("both of bits_per_key and budget given; at most one is wanted")
    if budget is not None:
        return 8 * parse_budget(budget)
    bits_per_key = 10.0 if bits_per_key is None else bits_per_key
    check_rate_or_budget(None, bits_per_key)
    return math.floor(bits_per_key * max(n, 1))


def _positive(name: str, value: float) -> float:
    if not value > 0 or math.isinf(value):
        raise ValueError(f"{name} is {value}; a positive number is wanted")
    return float(value)


def _stream_gaps(workload: Workload | None, log: Any, keys: int) -> Gaps:
    if log is None:
        return drawn_gaps(workload, keys)
    return logged_gaps(_native.hash_keys(log)[:, 0], keys)


def _drifting(workload: Workload, keys: Any, log: Any) -> Workload:
    """Return the workload with the share of unseen values that the log's second half has.

    Counted by leaving one question out, that share is right for questions in any order; as time
    passes others are asked for, and there are more unseen ones.
    """
    asked = _native.hash_keys(log)[:, 0]
    if not isinstance(keys, int | np.integer):
        asked = asked[~np.isin(asked, _native.hash_keys(keys)[:, 0])]
    before, after = np.array_split(asked, 2)
    unseen = float(1 - np.isin(after, before).mean()) if len(after) else 0.0
    if workload.counts is None or unseen <= workload.unseen:
        return workload
    workload = copy.copy(workload)
    assert workload.counts is not None
    workload.curve = Steps.of(workload.counts, total=1 - unseen)
    return workload


def _present(
    workload: Workload | None, present: float | None, gaps: Gaps | None, keys: int
) -> float:
    if present is not None:
        if not 0 <= present <= 1:
            raise ValueError(f"present is {present}; a share from 0 to 1 is wanted")
        return float(present)
    if workload is None and gaps is not None and len(gaps.records) == 1:
        return 0.0  # nothing is known of the stream
    if gaps is not None:
        return min(gaps.within(keys), 1.0)
    return 0.0 if workload is None else workload.present


def _unjudged(
    situation: Situation, told_by_log: bool, present: float | None, log: Any
) -> Iterator[str]:
    w, needs = situation.workload, situation.needs
    if "stream" in needs and log is None:
        yield (
            "After how many records values come again is not known, only "
            f"{'how often they come' if w is not None else 'how many are remembered'}: log=, the "
            "records in their order, would tell."
        )
    elif w is None and "stream" not in needs:
        yield (
            "Which absent keys are asked for is not known: a log of questions, as "
            "Workload.from_queries, would tell what stacked and adaptive filters gain."
        )
    elif w is not None and w.values is None:
        yield "The workload is a shape without values: to build a stack, give its negatives."
    if present is None and (w is None or w.removed == 0) and "stream" not in needs:
        yield (
            "The share of questions for keys that are there is taken to be 0: present=, or a "
            "workload counted with keys=, would tell."
        )
    if "store" in needs and not told_by_log:
        yield (
            f"How many questions will come is taken to be {situation.questions:,.0f}: questions= "
            "would tell; the more repeat, the more adaptive filters gain."
        )
    if "classifier" not in needs and "stream" not in needs:
        yield (
            "Whether members look unlike what is asked for was not tried: needs={'classifier'}, "
            "with the keys and a workload that has values, would tell what LearnedBloom gains."
        )
    if w is not None and w.values is not None and "stream" not in needs and log is None:
        yield (
            "Whether the questions stay as they were in the sample: log=, the questions in their "
            "order, would tell, and measure(keys, queries) with later ones."
        )


def _plain_fields(choice: Choice) -> dict[str, Any]:
    fields: dict[str, Any] = {
        name: value
        for name, value in vars(choice).items()
        if name not in ("plan", "arguments") and value is not None
    }
    fields["bits_per_key"] = choice.bits_per_key
    fields["plan"] = None if choice.plan is None else json.loads(choice.plan.to_json())
    return fields
