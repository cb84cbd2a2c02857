"""`tamis.Advice`: ranked choices, as text, JSON, a data frame, a plot or a page."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

from tamis._checks import check_int, one_of
from tamis._format import table_html
from tamis.advice.measurement import measured
from tamis.advice.rendering import cells, explain, head, page, table
from tamis.advice.situation import Choice, RuledOut, Situation

if TYPE_CHECKING:
    from tamis._types import FilePath, Keys

_FIRST_COLUMNS = (
    "name",
    "family",
    "bits_per_key",
    "expected_fpr",
    "fpr_bound",
    "expected_fnr",
    "cost",
)
_LAST_COLUMNS = ("absent_time", "present_time", "bits", "keys", "filter", "reason")
_FRAME_LIBRARIES = ("pandas", "polars")


@dataclass(frozen=True, repr=False)
class Advice:
    """Ranked choices: ``choices`` by the cost of a query, ``best`` the first of them.

    Each `Choice` has a ``name``, ``family``, ``expected_fpr``, ``fpr_bound``, ``expected_fnr``,
    ``bits_per_key``, the ``cost`` of a query in seconds, a ``reason`` in one sentence, and `build`.
    With ``fpr``, the smallest is first. ``ruled_out`` lists the filters that do not fit, each with
    a ``name`` and ``reason``; ``unknowns`` lists missing facts, and which argument supplies each.
    `str` is a table, `explain` derives the numbers, `measure` compares them with a sample,
    `to_frame` is a data frame, and `to_json` is for programs.

    >>> import tamis
    >>> w = tamis.Workload.zipf(exponent=1.0, universe=10**8, sample=5 * 10**7)
    >>> a = tamis.advise(1_000_000, w, bits_per_key=10, miss_cost="1ms")
    >>> a.best.family, a.best.expected_fpr < 1e-4
    ('exact', True)
    """

    situation: Situation
    choices: tuple[Choice, ...]
    ruled_out: tuple[RuledOut, ...]
    unknowns: tuple[str, ...]

    @property
    def best(self) -> Choice:
        """The first choice: the lowest cost of a query, or with ``fpr`` the smallest."""
        if not self.choices:
            reasons = "; ".join(f"{each.name}: {each.reason}" for each in self.ruled_out)
            raise ValueError(f"no filter fits: {reasons}")
        return self.choices[0]

    def explain(self) -> str:
        """Derive the numbers: the inputs, the rules of the papers, and each cost as a sum."""
        return "\n".join(explain(self))

    def measure(
        self, keys: Keys | SupportsIndex | Mapping[str, Keys], queries: Keys, *, seeds: int = 1
    ) -> Advice:
        """Build every choice, run these queries on it, and return the advice with the results.

        A false positive belongs to a key: if a few keys make up most queries, the measured rate
        depends on a few random outcomes. So each choice is built with ``seeds`` seeds, and
        ``measured_error`` is the standard error of the mean. The order stays as predicted;
        ``measured_fpr``, ``measured_fnr``, ``measured_bits``, ``measured_time`` and
        ``measured_cost`` of each choice are set, and `str` shows both. Adaptive filters adapt
        during the queries. For a stream, ``keys`` are the records before the queries, or only how
        many to remember. Times are measured on this machine.

        >>> import tamis
        >>> a = tamis.advise(range(1000), bits_per_key=12, needs={"delete"})
        >>> best = a.measure(range(1000), range(1000, 50_000)).best
        >>> bool(abs(best.measured_fpr / best.expected_fpr - 1) < 0.5)
        True
        """
        seeds = check_int("seeds", seeds, 10**6, minimum=1)
        found = measured(self.situation, self.choices, keys, queries, seeds)
        return replace(self, choices=tuple(found))

    def to_json(self) -> str:
        """Return the advice as JSON: situation, choices, filters ruled out, and missing facts.

        >>> import tamis
        >>> json.loads(tamis.advise(1000).to_json())["choices"][0]["family"]
        'plain'
        """
        s = self.situation
        given = {
            "keys": s.keys,
            "fpr": s.fpr,
            "budget_bits": s.budget if s.fpr is None else None,
            "needs": sorted(s.needs),
            "present": s.present,
            "queries": s.queries,
            "turnover": s.turnover,
            "miss_cost": s.miss_cost,
            "denial_cost": s.denial_cost,
        }
        return json.dumps(
            {
                "situation": given,
                "choices": [_json_fields(each) for each in self.choices],
                "ruled_out": [asdict(each) for each in self.ruled_out],
                "unknowns": list(self.unknowns),
            }
        )

    def plot(self, ax: Any = None) -> Any:
        """Plot the cost of a query with each choice, the best at the top; return the axes."""
        from tamis.plotting import draw_costs

        return draw_costs(self.choices, ax)

    def report(self, path: FilePath) -> None:
        """Write a self-contained HTML report with charts."""
        page(self).save(path)

    def to_frame(self, library: Literal["pandas", "polars"] | None = None) -> Any:
        """Return the choices as a pandas or Polars data frame, one row per choice.

        By default, the library is the one that is already imported, or else installed.

        >>> import tamis
        >>> frame = tamis.advise(1000).to_frame()
        >>> list(frame.columns)[:4], frame["name"][0]
        (['name', 'family', 'bits_per_key', 'expected_fpr'], 'Ribbon')
        """
        return _frame(self.choices, library)

    def __str__(self) -> str:
        return "\n".join(table(self))

    def __repr__(self) -> str:
        first = f"{self.choices[0].name} first of " if self.choices else ""
        return (
            f"<tamis.Advice: {first}{len(self.choices)} choices for {self.situation.keys:,} keys>"
        )

    def _repr_html_(self) -> str:
        columns, *rows = cells(self)
        reason = f"<p>{escape(self.best.reason)}</p>" if self.choices else ""
        return table_html(head(self), columns, rows) + reason


def _json_fields(choice: Choice) -> dict[str, Any]:
    fields: dict[str, Any] = {
        name: value
        for name, value in vars(choice).items()
        if name not in ("plan", "arguments") and value is not None
    }
    fields["bits_per_key"] = choice.bits_per_key
    fields["plan"] = None if choice.plan is None else json.loads(choice.plan.to_json())
    return fields


def _frame(choices: Sequence[Choice], library: Literal["pandas", "polars"] | None) -> Any:
    """Return one row per choice; columns of measurements only if there are any."""
    measured = tuple(
        name
        for name in Choice.__dataclass_fields__
        if name.startswith("measured_") and any(getattr(each, name) is not None for each in choices)
    )
    columns = {
        name: [getattr(each, name) for each in choices]
        for name in (*_FIRST_COLUMNS, *measured, *_LAST_COLUMNS)
    }
    return _frame_library(library).DataFrame(columns)


def _frame_library(name: str | None) -> Any:
    if name is not None:
        one_of("library", name, _FRAME_LIBRARIES)
    # Prefer the library that the caller has imported.
    names = (name,) if name else sorted(_FRAME_LIBRARIES, key=lambda each: each not in sys.modules)
    for each in names:
        try:
            return importlib.import_module(each)
        except ImportError:
            continue
    raise ImportError(f"a data frame needs {' or '.join(names)}: pip install {names[0]}")
