"""Runs the experiments that are due, one after the other, and shows how far it is."""

from __future__ import annotations

import difflib
import importlib
import re
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.evidence import EXPERIMENTS, PAPERS, Experiment
from experiments.results import fingerprint, load, of_paper, save
from rich.console import Console
from rich.markup import escape

from experiments import data

HERE = Path(__file__).parent


@dataclass
class Outcome:
    """What a run did with each experiment that was asked for."""

    run: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    """Found finished, by an earlier run."""
    left_out: dict[str, str] = field(default_factory=dict)
    """By name: the data that are missing."""
    failed: dict[str, str] = field(default_factory=dict)
    """By name: the error."""


def declare(papers: Sequence[str] = tuple(PAPERS)) -> dict[str, str]:
    """Import the modules that declare experiments; return the errors, by module."""
    errors = {}
    for paper in papers:
        for path in sorted((HERE / paper).glob("*.py")):
            module = f"experiments.{paper}.{path.stem}"
            if "from experiments.evidence import" not in path.read_text():
                continue
            try:
                importlib.import_module(module)
            except Exception:
                errors[f"{paper}/{path.name}"] = traceback.format_exc()
    for name in EXPERIMENTS:
        of_paper(name)
    return errors


def _place(name: str) -> tuple[int, list[tuple[str, int]]]:
    """Order names by paper, then as a reader would: figure2 before figure10."""
    paper, item = of_paper(name)
    parts = re.findall(r"(\D*)(\d*)", item)
    return list(PAPERS).index(paper), [(text, int(number or 0)) for text, number in parts]


def select(
    only: Sequence[str], experiments: dict[str, Experiment], *, data_free: bool = False
) -> list[Experiment]:
    """Return the experiments of these names, or that start with them; all of them without names.

    `KeyError` with the nearest names for one that does not exist.
    """
    order = sorted(experiments, key=_place)
    chosen = set()
    for wanted in only or [""]:
        found = [wanted] if wanted in experiments else [n for n in order if n.startswith(wanted)]
        if wanted and not found:
            near = difflib.get_close_matches(wanted, order, n=5, cutoff=0.4) or list(PAPERS)
            raise KeyError(f"no experiment is named {wanted!r}; near: {', '.join(near)}")
        chosen.update(found)
    return [
        experiments[n] for n in order if n in chosen and not (data_free and experiments[n].data)
    ]


def run(
    chosen: Sequence[Experiment],
    build: Path,
    *,
    quick: bool = False,
    again: bool = False,
    console: Console | None = None,
) -> Outcome:
    """Run the experiments that are due; those that fail do not stop the others."""
    console = console or Console(highlight=False, soft_wrap=True)
    outcome, begun = Outcome(), time.perf_counter()
    # Now: who edits a file while experiments run has changed what was imported.
    current = {each.name: fingerprint(each) for each in chosen}
    for index, each in enumerate(chosen, 1):
        line = f"{index:>3} of {len(chosen)}  {each.name:32}"
        if missing := ", ".join(missing_data(each)):
            outcome.left_out[each.name] = missing
            console.print(f"{line} left out: {missing} missing in {data.FOLDER}")
            continue
        if not again and is_finished(each, current[each.name], quick, build):
            outcome.finished.append(each.name)
            console.print(f"{line} finished before")
            continue
        start = time.perf_counter()
        try:
            with console.status(f"{line} {escape(each.title)}; {start - begun:.0f} s so far"):
                found = each.run(quick)
                seconds = time.perf_counter() - start
                result = save(each, found, quick, seconds, current[each.name], build)
        except Exception as error:
            outcome.failed[each.name] = traceback.format_exc()
            console.print(f"{line} [red]failed:[/] {escape(f'{type(error).__name__}: {error}')}")
            continue
        outcome.run.append(each.name)
        verdicts = ", ".join(verdict.verdict for verdict in result.verdicts)
        console.print(f"{line} {seconds:7.1f} s  {verdicts}")
    return outcome


def missing_data(each: Experiment) -> list[str]:
    """Return the data sets that an experiment needs and that are not there."""
    return [name for name in each.data if not (data.FOLDER / f"{name}.parquet").exists()]


def is_finished(each: Experiment, current: str, quick: bool, build: Path) -> bool:
    """Whether an earlier run had this code and data; a full run counts as a quick one, too."""
    return any(
        (result := load(each, mode, build)) is not None and result.fingerprint == current
        for mode in {False, quick}
    )
