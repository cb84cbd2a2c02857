"""Measure the figures and tables of the papers again, and write the report.

    python -m experiments [--quick] [--only stacked/table2] [--data-free] [--again] [--list]

Writes results, verdicts and the report to build/experiments; what is finished is not run again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.evidence import EXPERIMENTS
from experiments.results import BUILD, ROOT
from rich.console import Console

from experiments import page, runner


def main(arguments: list[str] | None = None) -> int:
    """Run the experiments that were asked for; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="less data: minutes, not hours")
    parser.add_argument("--only", default="", help="names, or how they start, with commas between")
    parser.add_argument("--data-free", action="store_true", help="only those that need no files")
    parser.add_argument("--again", action="store_true", help="also those that are finished")
    parser.add_argument("--list", action="store_true", help="print the names, and run none")
    parser.add_argument("--report", action="store_true", help="write the report, and run none")
    parser.add_argument("--publish", action="store_true", help="also write docs/verdicts.md")
    parser.add_argument("--build", type=Path, default=BUILD, help="the folder for the results")
    options = parser.parse_args(arguments)
    console = Console(highlight=False, soft_wrap=True)
    errors = runner.declare()
    try:
        only = options.only.replace(",", " ").split()
        chosen = runner.select(only, EXPERIMENTS, data_free=options.data_free)
    except KeyError as error:
        print(error.args[0], file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(f"{each.name:32} {each.title}" for each in chosen))
        return 0
    outcome = runner.Outcome(failed=errors)
    try:
        if not options.report:
            ran = runner.run(
                chosen, options.build, quick=options.quick, again=options.again, console=console
            )
            ran.failed |= errors
            outcome = ran
    finally:  # also when interrupted
        experiments = runner.select([], EXPERIMENTS)
        results = page.write(experiments, outcome, options.build)
    if options.publish:
        (ROOT / "docs" / "verdicts.md").write_text(page.markdown(results))
    for name, text in outcome.failed.items():
        print(f"\n{name} failed:\n{text}", file=sys.stderr)
    console.print(
        f"{len(outcome.run)} run, {len(outcome.finished)} finished before, "
        f"{len(outcome.left_out)} left out, {len(outcome.failed)} failed: "
        f"{options.build / 'report.html'}"
    )
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main())
