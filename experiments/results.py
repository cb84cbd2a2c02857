"""What an experiment leaves behind: a CSV file, a picture, and a record that says what made them.

``<item>.json`` is written last: an experiment without it is not finished. Quick results have a
folder of their own, so that they never pass for full ones.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import io
import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from experiments.evidence import PAPERS, Evidence, Experiment, Verdict

import tamis
from experiments import data

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "experiments"
VERDICTS = ("agrees", "differs", "goes further")
LARGE = 400_000
"""Characters of a drawing from which on the page embeds the PNG file instead."""


@dataclass(frozen=True)
class Result:
    """A finished experiment, as read from its record."""

    name: str
    title: str
    quick: bool
    fingerprint: str
    """Of the code and the data that made it."""
    made_with: str
    """The version and the commit of tamis."""
    made_on: str
    seconds: float
    verdicts: tuple[Verdict, ...]
    folder: Path
    """Of its files: the record, the rows, the picture."""

    @property
    def rows(self) -> list[dict[str, str]]:
        """The rows of the CSV file."""
        with self.file("csv").open(newline="") as file:
            return list(csv.DictReader(file))

    @property
    def picture(self) -> bytes | str | None:
        """The drawing, or the PNG file if that is smaller; tables have none."""
        if not self.file("svg").exists():
            return None
        drawn = self.file("svg").read_text()
        return self.file("png").read_bytes() if len(drawn) > LARGE else drawn

    def file(self, suffix: str) -> Path:
        """Return one of its files."""
        return self.folder / f"{self.name}.{suffix}"


def folder_of(quick: bool, build: Path) -> Path:
    """Return the folder of quick, or of full, results."""
    return build / "quick" if quick else build


def load(each: Experiment, quick: bool, build: Path) -> Result | None:
    """Return what an earlier run found, if it finished."""
    folder = folder_of(quick, build)
    try:
        record = json.loads((folder / f"{each.name}.json").read_text())
        record["verdicts"] = tuple(Verdict(**verdict) for verdict in record["verdicts"])
        return Result(**record, folder=folder)
    except (FileNotFoundError, ValueError, LookupError, TypeError):  # none, or of an older runner
        return None


def shown(each: Experiment, build: Path) -> Result | None:
    """Return the best result there is: of this code rather than older, full rather than quick."""
    found = [result for quick in (False, True) if (result := load(each, quick, build))]
    current = fingerprint(each)
    return min(found, key=lambda result: result.fingerprint != current, default=None)


def save(
    each: Experiment, found: Evidence, quick: bool, seconds: float, made_by: str, build: Path
) -> Result:
    """Write what an experiment found, the record last; ``made_by`` is its fingerprint."""
    if not found.rows or not found.verdicts:
        raise ValueError(f"{each.name} must return at least one row and one verdict")
    for verdict in found.verdicts:
        if verdict.verdict not in VERDICTS:
            known = "', '".join(VERDICTS)
            raise ValueError(f"a verdict must be '{known}', not {verdict.verdict!r}: {each.name}")
    result = Result(
        each.name,
        each.title,
        quick,
        made_by,
        made_with(),
        datetime.now(UTC).date().isoformat(),
        round(seconds, 2),
        tuple(found.verdicts),
        folder_of(quick, build),
    )
    result.file("csv").parent.mkdir(parents=True, exist_ok=True)
    for suffix in ("json", "csv", "svg", "png"):
        result.file(suffix).unlink(missing_ok=True)
    result.file("csv").write_text(as_csv(list(found.rows[0]), found.rows))
    if found.draw:
        _draw(found.draw, result)
    record = asdict(result)
    del record["folder"]
    result.file("json").write_text(json.dumps(record, indent=1, ensure_ascii=False))
    return result


def as_csv(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    """Return a CSV file with these columns, in this order."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _draw(draw: Any, result: Result) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from tamis.plotting import svg

    # The frame of a legend would be white on a dark page.
    style = {"legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False}
    with rc_context(style):
        figure = Figure(figsize=(6.4, 4), layout="constrained")
        draw(figure)
        figure.savefig(result.file("png"), dpi=120)
        result.file("svg").write_text(svg(figure.axes[0]))


def fingerprint(each: Experiment) -> str:
    """Return a hash of the code of an experiment, and of the sizes and times of its data files."""
    digest = hashlib.sha256()
    for module in sorted(modules(each.module)):
        digest.update(f"{module}\0".encode() + _source(module).read_bytes() + b"\0")
    for name in each.data:
        file = data.FOLDER / f"{name}.parquet"
        status = file.stat() if file.exists() else None
        digest.update(f"{name}\0{status and (status.st_size, status.st_mtime_ns)}\0".encode())
    return digest.hexdigest()[:16]


def modules(module: str) -> set[str]:
    """Return a module of the experiments and those that it imports, and so on."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        # What declares experiments has no part in what they measure.
        if name in found or name == "experiments.evidence" or not _source(name).exists():
            continue
        found.add(name)
        waiting += _imports(name, _source(name).read_text())
    return found


def _source(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _imports(module: str, text: str) -> list[str]:
    """Return the modules of the experiments that a source text may import."""
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*package, *([node.module] if node.module else [])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.startswith("experiments.")]


@cache
def made_with() -> str:
    """Return the version of tamis and the commit."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        commit, changed = (
            git("rev-parse", "--short", "HEAD"),
            git(
                "status", "--porcelain", "-uno", "--", "python", "src", "Cargo.lock", "experiments"
            ),
        )
    except FileNotFoundError:  # git is not installed
        commit = changed = ""
    version = f"tamis {tamis.__version__}"
    return f"{version}, commit {commit}{' and changes' if changed else ''}" if commit else version


def of_paper(name: str) -> tuple[str, str]:
    """Split the name of an experiment into the paper and the item.

    >>> of_paper("stacked/figure2a")
    ('stacked', 'figure2a')
    """
    paper, _, item = name.partition("/")
    if paper not in PAPERS or not item:
        raise ValueError(f"an experiment must be named '<paper>/<item>', not {name!r}")
    return paper, item
