"""The shell sessions of the documents, run: ```console blocks, one folder for each page.

What follows a ``$`` is run by the shell; what is printed must be what the page shows, where ``...``
stands for anything. A block that shows nothing under its commands is only run. An exit code other
than 0 is shown as ``exit code N``.
"""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = sorted(
    page
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    if BLOCK.search(page.read_text())
)


def sessions(text):
    """The commands of a page, and what each shows."""
    for block in BLOCK.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.split("\n")
            end = next(i for i, line in enumerate(lines) if not line.endswith("\\"))
            yield "\n".join(lines[: end + 1]), "\n".join(lines[end + 1 :])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shell_sessions(page, tmp_path):
    pytest.importorskip("pyarrow")
    shim = tmp_path / "bin" / "tamis"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m tamis "$@"\n')
    shim.chmod(0o755)
    folder = tmp_path / "here"
    folder.mkdir()
    path = f"{shim.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    for command, shown in sessions(page.read_text()):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=os.environ | {"PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        printed = done.stdout + (f"exit code {done.returncode}\n" if done.returncode else "")
        if shown.strip() or done.returncode:
            same = doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS)
            assert same, f"{page.name}: {command}\nshown:\n{shown}\nprinted:\n{printed}"
