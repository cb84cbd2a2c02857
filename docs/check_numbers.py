"""Run the commands behind the numbers of README and docs, and compare: ``numbers.toml`` lists them.

    python docs/check_numbers.py [--list]

Every number that a page shows is printed by a command. Those that take less than a minute are run
here; the others are listed with what to run. `--list` runs none.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Number:
    """Numbers of a page, and the command that prints them."""

    page: str
    command: str
    text: list[str]
    prints: list[str]
    slow: str = ""

    def problems(self) -> list[str]:
        """Return what does not fit together before anything is run."""
        page = (ROOT / self.page).read_text()
        found = [f"{self.page} has no {line!r} any more" for line in self.text if line not in page]
        if bool(self.prints) == bool(self.slow):
            found.append(f"{self.page}: {self.command} must have `prints`, or a reason in `slow`")
        scripts = [word for word in shlex.split(self.command) if word.endswith(".py")]
        found += [f"{name} does not exist" for name in scripts if not (ROOT / name).exists()]
        return found


def numbers(path: Path = ROOT / "docs" / "numbers.toml") -> list[Number]:
    """Read the list."""
    entries = tomllib.loads(path.read_text())["number"]
    return [Number(**{"prints": []} | entry) for entry in entries]


@cache
def output(command: str) -> str:
    """Run a command from the root of the repository; return what it printed, spaces joined."""
    folder = Path(sys.executable).parent
    path = [str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    words = shlex.split(command)
    if words[0] == "tamis":
        words = ["python", "-m", *words]
    words[0] = str(folder / words[0]) if words[0] == "python" else words[0]
    done = subprocess.run(
        words,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return " ".join(done.stdout.split())


def main() -> int:
    """Compare; return the number of problems."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the commands, and run none")
    listed = parser.parse_args().list
    problems = []
    for each in numbers():
        problems += each.problems()
        shown = " ".join(each.command.split())[:72]
        if each.slow or listed:
            print(f"{each.page:26} {shown}  ({each.slow or 'run by default'})")
            continue
        start = time.perf_counter()
        printed = output(each.command)
        missing = [line for line in each.prints if " ".join(line.split()) not in printed]
        problems += [f"{each.page}: {each.command} does not print {line!r}" for line in missing]
        seconds = time.perf_counter() - start
        state = f"{len(missing)} of {len(each.prints)} differ" if missing else "as printed"
        print(f"{each.page:26} {shown}  {state}, {seconds:.1f} s", flush=True)
    print(*problems, sep="\n", file=sys.stderr)
    return min(len(problems), 1)


if __name__ == "__main__":
    sys.exit(main())
