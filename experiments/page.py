"""What is written about all experiments: ``verdicts.csv``, ``verdicts.md``, ``report.html``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.evidence import PAPERS, Experiment, Verdict
from experiments.results import Result, as_csv, fingerprint, of_paper, shown
from experiments.runner import Outcome, missing_data

from tamis.report import Report

COLUMNS = ("paper", "item", "claim", "theirs", "ours", "best", "verdict", "reason")
MARKS = {  # without breaks: the last column of the table is narrow
    "agrees": "✓\N{NO-BREAK SPACE}agrees",
    "differs": "✗\N{NO-BREAK SPACE}differs",
    "goes further": "▲\N{NO-BREAK SPACE}goes\N{NO-BREAK SPACE}further",
}
MAX_ROWS = 60
BAR = "&#124;"  # in a cell of Markdown
INTRODUCTION = (
    "Each figure and table of five papers, and an arena, measured again: what the paper claims, "
    "what was found here for its method (ours) and for the best method of tamis (best), and why."
)


def write(experiments: Sequence[Experiment], outcome: Outcome, build: Path) -> list[Result]:
    """Write all three from the results there are; return these results."""
    results = [result for each in experiments if (result := shown(each, build))]
    build.mkdir(parents=True, exist_ok=True)
    (build / "verdicts.csv").write_text(as_csv(COLUMNS, verdict_rows(results)))
    (build / "verdicts.md").write_text(markdown(results))
    page(experiments, results, outcome).save(build / "report.html")
    return results


def verdict_rows(results: Sequence[Result]) -> list[dict[str, str]]:
    """Return a row for each verdict; those of quick runs say so."""
    return [
        dict(zip(COLUMNS, (*of_paper(result.name), *_cells(result, verdict)), strict=True))
        for result in results
        for verdict in result.verdicts
    ]


def _cells(result: Result, verdict: Verdict) -> tuple[str, ...]:
    reason = verdict.reason + (" (Quick run: less data.)" if result.quick else "")
    return (
        verdict.claim, verdict.theirs, verdict.ours, verdict.best, verdict.verdict, reason
    )  # fmt: skip


def markdown(results: Sequence[Result]) -> str:
    """Return the page of the documentation: one table, with the reason below each claim."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(' '.join(each.split()).replace('|', BAR) for each in cells)} |"

    rows = [
        line([f"{_marked(result)}", f"{claim.rstrip('.')}.<br>*{verdict}*: {reason}", *numbers])
        for result in results
        for each in result.verdicts
        for claim, *numbers, verdict, reason in [_cells(result, each)]
    ]
    made = sorted({f"{result.made_with}, {result.made_on}" for result in results})
    return "\n".join(
        [
            "---",
            "hide: [navigation, toc]",
            "---",
            "",
            "# Verdicts on the papers",
            "",
            INTRODUCTION,
            "",
            '<div class="verdicts" markdown>',
            "",
            line(["item", "claim, and verdict", "theirs", "ours", "best"]),
            line(["---"] * 5),
            *rows,
            "",
            "</div>",
            "",
            f"Made with {'; '.join(made)}." if made else "No experiment has been run.",
            "Written by `make verdicts` from what `make experiments` measured: do not edit.",
            "",
        ]
    )


def page(experiments: Sequence[Experiment], results: Sequence[Result], outcome: Outcome) -> Report:
    """Return the report: contents, verdicts, then a section per paper."""
    report = Report("The papers, measured again", wide=True).text(INTRODUCTION)
    report.text(_summary(experiments, results), note=True)
    papers = [p for p in PAPERS if any(of_paper(each.name)[0] == p for each in experiments)]
    missing = list(_missing(experiments, results, outcome))
    entries = [("Verdicts", "verdicts"), *((PAPERS[paper], paper) for paper in papers)]
    report.contents([*entries, *([("Not shown", "missing")] if missing else [])])
    report.heading("Verdicts", anchor="verdicts")
    lines = [(result, verdict) for result in results for verdict in result.verdicts]
    report.table(
        ["item", *COLUMNS[2:7]],
        [
            [_marked(result), *_cells(result, verdict)[:4], MARKS[verdict.verdict]]
            for result, verdict in lines
        ],
        prose=True,
        anchors=[_anchor(result.name) for result, _ in lines],
    )
    by_name = {each.name: each for each in experiments}
    for paper in papers:
        report.heading(PAPERS[paper], anchor=paper)
        for result in results:
            if of_paper(result.name)[0] == paper:
                _section(report, result, fingerprint(by_name[result.name]))
    if missing:
        report.heading("Not shown", anchor="missing").bullets(missing)
    return report


def _missing(
    experiments: Sequence[Experiment], results: Sequence[Result], outcome: Outcome
) -> Iterator[str]:
    """Yield what the report does not show, and why."""
    for name, text in outcome.failed.items():
        yield f"{name}: failed, {text.strip().splitlines()[-1]}"
    shown = {result.name for result in results} | outcome.failed.keys()
    for each in experiments:
        if each.name not in shown:
            lacking = ", ".join(missing_data(each))
            yield f"{each.name}: " + (f"left out, without {lacking}" if lacking else "not run yet")


def _summary(experiments: Sequence[Experiment], results: Sequence[Result]) -> str:
    verdicts = [verdict.verdict for result in results for verdict in result.verdicts]
    counts = ", ".join(
        f"{verdicts.count(kind)} {text}"
        for kind, text in (
            ("agrees", "agree"),
            ("differs", "differ"),
            ("goes further", "go further"),
        )
    )
    quick = sum(result.quick for result in results)
    text = f"{len(results)} of {len(experiments)} experiments have been run. Verdicts: {counts}."
    if quick:
        text += f" From quick runs, with less data than the papers, and marked as such: {quick}."
    return text


def _section(report: Report, result: Result, current: str) -> None:
    """Add an experiment: verdicts, picture, or the rows of a table."""
    report.heading(f"{_marked(result)}: {result.title}", level=3, anchor=_anchor(result.name))
    for verdict in result.verdicts:
        report.text(f"{verdict.claim.rstrip('.')}. {verdict.reason}")
        report.table(
            ["verdict", "paper", "its method here", "best of tamis"],
            [[MARKS[verdict.verdict], verdict.theirs, verdict.ours, verdict.best]],
            prose=True,
        )
    if (picture := result.picture) is not None:
        report.image(picture)
    else:
        rows = result.rows
        report.table(
            list(rows[0]), [[_short(each) for each in row.values()] for row in rows[:MAX_ROWS]]
        )
        if len(rows) > MAX_ROWS:
            report.text(f"The first {MAX_ROWS} of {len(rows)} rows.", note=True)
    stale = "" if result.fingerprint == current else " The code or the data have changed since."
    report.text(
        f"{result.name}.csv; {result.made_with}, {result.made_on}, {result.seconds:.0f} s."
        f"{' Quick run.' if result.quick else ''}{stale}",
        note=True,
    )


def _short(cell: str) -> str:
    """Return a cell of a CSV file with four digits.

    >>> _short("0.123456789"), _short("1234567"), _short("A/S")
    ('0.1235', '1234567', 'A/S')
    """
    try:
        return cell if cell.lstrip("-").isdigit() else f"{float(cell):.4g}"
    except ValueError:
        return cell


def _marked(result: Result) -> str:
    return result.name + (" (quick)" if result.quick else "")


def _anchor(name: str) -> str:
    return name.replace("/", "-")
