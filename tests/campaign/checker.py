"""Checks a history: a `get` that begins after a `put` returned finds the key until a delete begins.

For one key, *evidence* is an interval during which the key was in the store at some moment: a put
that returned, a get that found the key, or a read of the store by the supervisor. A *removal* is
an interval during which the key may have left it: a delete, whether it returned or not, or a loss
of the server. A get that finds nothing is denied a stored key if there is evidence that ended
before the get began (at least ``max_staleness`` before, for a guard that allows it) and no removal
that can come after the evidence and before the end of the get.

Of all evidence that ended in time, the one that began last leaves the fewest removals as an excuse,
so each get needs two lookups in sorted lists.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from campaign.history import Operation


class Violation(NamedTuple):
    """An answer that no order of the operations explains.

    ``denied``: a guard did not find a key that was stored. ``lost``: the store itself did not have
    it. ``invented``: a guard returned a value that nobody had put.
    """

    kind: str
    key: object
    operation: Operation
    reason: Operation | None


class _Intervals:
    """Intervals of one key, sorted by one end, with the latest other end so far."""

    def __init__(self, by: str, other: str):
        self._by, self._other = by, other
        self._operations: list[Operation] = []

    def add(self, operation: Operation):
        self._operations.append(operation)

    def sort(self):
        self._operations.sort(key=lambda each: getattr(each, self._by))
        self._ends = [getattr(each, self._by) for each in self._operations]
        later = lambda one, two: max(one, two, key=lambda each: getattr(each, self._other))  # noqa: E731
        self._latest = list(accumulate(self._operations, later))

    def latest(self, until: float, *, inclusive: bool) -> Operation | None:
        """Among the intervals up to a time, by one end, return the one with the latest other."""
        count = (bisect_right if inclusive else bisect_left)(self._ends, until)
        return self._latest[count - 1] if count else None


class _Key:
    """What happened to one key."""

    def __init__(self):
        self.evidence = _Intervals("end", "begin")
        self.own_puts: dict[str, _Intervals] = defaultdict(lambda: _Intervals("end", "begin"))
        self.removals = _Intervals("begin", "end")
        self.missed: list[Operation] = []
        self.first_put: dict[object, float] = {}
        self.found: list[tuple[Operation, object]] = []

    def sort(self):
        for intervals in (self.evidence, self.removals, *self.own_puts.values()):
            intervals.sort()

    def violations(self, key):
        self.sort()
        for get in self.missed:
            evidence = self.evidence.latest(get.begin - get.staleness, inclusive=True)
            if get.staleness and get.process in self.own_puts:
                # What a guard has put itself, it finds at once.
                own = self.own_puts[get.process].latest(get.begin, inclusive=True)
                if own and (evidence is None or own.begin > evidence.begin):
                    evidence = own
            if evidence is None:
                continue
            removal = self.removals.latest(get.end, inclusive=False)
            if removal is None or removal.end <= evidence.begin:
                yield Violation("lost" if get.kind == "seen" else "denied", key, get, evidence)
        for get, value in self.found:
            if self.first_put.get(value, get.end) >= get.end:
                yield Violation("invented", key, get, None)


def check(operations: Iterable[Operation]) -> list[Violation]:
    """Return every answer of the history that is wrong."""
    keys: dict[object, _Key] = defaultdict(_Key)
    for each in operations:
        if each.kind in ("delete", "lost", "rolled back"):
            if each.outcome != "refused":
                for key in each.keys:
                    keys[key].removals.add(each)
        elif each.kind == "put":
            for key, value in zip(each.keys, each.values, strict=True):
                first = keys[key].first_put
                first[value] = min(each.begin, first.get(value, each.begin))
                if each.outcome == "ok":
                    keys[key].evidence.add(each)
                    keys[key].own_puts[each.process].add(each)
        elif each.outcome == "ok":
            absent = set(each.absent)
            for i, key in enumerate(each.keys):
                if i in absent:
                    keys[key].missed.append(each)
                else:
                    keys[key].evidence.add(each)
                    if each.values is not None:
                        keys[key].found.append((each, each.values[i]))
    found = [one for key, state in keys.items() for one in state.violations(key)]
    return sorted(found, key=lambda one: one.operation.begin)
