"""The CPU time of ``import tamis``, and of its first filter, relative to ``import numpy``.

    python benches/imports.py

Each statement runs in new processes, which take turns; the time that the interpreter itself takes
to start is not included. Files are read from the system's cache, as in every run but the first.
"""

import argparse
import statistics
import subprocess
import sys

YARDSTICK = "import numpy"
STATEMENTS = [
    YARDSTICK,
    "import tamis",
    "from tamis import Bloom",
    "from tamis import Guard",
    "from tamis import *",
]


def cpu_seconds(statement):
    code = f"import time; t = time.process_time(); {statement}; print(time.process_time() - t)"
    return float(subprocess.check_output([sys.executable, "-c", code]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    times = [[cpu_seconds(statement) for statement in STATEMENTS] for _ in range(rounds)]
    print(f"{'':<28} {'CPU ms':>8} {'over numpy':>12}")
    for statement, column in zip(STATEMENTS, zip(*times, strict=True), strict=True):
        ratio = statistics.median(here / row[0] for here, row in zip(column, times, strict=True))
        print(f"{statement:<28} {1000 * statistics.median(column):>8.0f} {ratio:>12.2f}")


if __name__ == "__main__":
    main()
