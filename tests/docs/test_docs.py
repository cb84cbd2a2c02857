"""The shell sessions of the documents, run: ```console blocks, one folder for each page.

What follows a ``$`` is run by the shell; what is printed must be what the page shows, where ``...``
stands for anything. A block that shows nothing under its commands is only run. An exit code other
than 0 is shown as ``exit code N``.
"""

import doctest
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest

import tamis
from tamis import cli

ROOT = Path(__file__).parents[2]
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
            end = lines.index("END") if lines[0].endswith("<<'END'") else 0
            yield "\n".join(lines[: end + 1]), "\n".join(lines[end + 1 :])


def printed_here(command):
    """Run a command of tamis in this process, which is quicker."""
    out = io.TextIOWrapper(io.BytesIO(), write_through=True)
    with redirect_stdout(out), redirect_stderr(out), pytest.raises(SystemExit) as end:
        cli.main(shlex.split(command)[1:])
    return out.buffer.getvalue().decode(), end.value.code


def printed_by_shell(command, shims):
    path = os.pathsep.join([str(shims), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", command],
        env=os.environ | {"PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout, done.returncode


@pytest.fixture(scope="module")
def shims(tmp_path_factory):
    """A folder with a program named tamis."""
    folder = tmp_path_factory.mktemp("shims")
    (folder / "tamis").write_text(f'#!/bin/sh\nexec {sys.executable} -m tamis "$@"\n')
    (folder / "tamis").chmod(0o755)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shell_sessions(page, shims, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    for command, shown in sessions(page.read_text()):
        if command.startswith("tamis ") and not set(command) & set("|<>&;$"):
            printed, code = printed_here(command)
        else:
            printed, code = printed_by_shell(command, shims)
        printed += f"exit code {code}\n" if code else ""
        if shown.strip() or code:
            same = doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS)
            assert same, f"{page.name}: {command}\nshown:\n{shown}\nprinted:\n{printed}"


def hook(name):
    """Import a hook of the site, which is not part of the package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["bloom", "ribbon", "stacked", "stable_learned", "learned"])
def test_the_page_of_a_filter_shows_its_rate_by_its_size(kind):
    pytest.importorskip("matplotlib")
    rates = hook("rates")
    page = SimpleNamespace(file=SimpleNamespace(src_uri=f"{kind}.md"))
    text = rates.on_page_markdown((ROOT / f"docs/{kind}.md").read_text(), page)
    before, _, after = text.partition('<figure class="plot"><svg')
    assert before.startswith("# ")
    assert after.count("\n") > 20
    figure = after.partition("</figure>")[0]
    assert "\n" not in figure
    assert "bits per key" in figure
    assert ("bound" in figure) == (kind != "stable_learned")


def test_every_filter_has_a_picture():
    rates = hook("rates")
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} & tamis.planning.kinds.KINDS.keys()
    assert pages - {"collection", "text"} <= set(rates.PAGES)
    page = SimpleNamespace(file=SimpleNamespace(src_uri="guard.md"))
    assert rates.on_page_markdown("as it is", page) == "as it is"


def test_the_line_of_a_kind_is_that_of_its_filters():
    """The points are predictions of the sizes that are built."""
    rates = hook("rates")
    line = dict(rates.plain("quotient")["Quotient"])
    bits, rate = next((bits, rate) for bits, rate in line.items() if rate < 0.01)
    f = tamis.Quotient.build(range(200_000), fpr=rate * 1.01)
    assert f.bits_per_key == pytest.approx(bits, rel=0.02)
    assert f.expected_fpr == pytest.approx(rate, rel=0.02)


def test_the_reference_has_every_public_name():
    """The strict build of the site checks that the links lead somewhere."""
    filled = hook("nav").on_page_markdown
    reference = filled((ROOT / "docs/reference.md").read_text())
    linked = set(re.findall(r"\]\[tamis\.([\w.]+)\]", reference))
    names = {each.rpartition(".")[2] for each in linked}
    assert "errors" in names
    assert set(tamis.__all__) - names - {"__version__"} == {
        name for name in tamis.__all__ if name in vars(tamis.errors)
    }
    pages = "".join(filled(path.read_text()) for path in ROOT.glob("docs/reference/*.md"))
    documented = re.findall(r"^::: tamis\.([\w.]+)|[\[ ](\w+)(?=[,\]])", pages, re.MULTILINE)
    assert names <= {(module or name).rpartition(".")[2] for module, name in documented}


def test_the_site_loads_nothing_from_elsewhere():
    if not (ROOT / "mkdocs.yml").exists():
        pytest.skip("tests of an installed package have no site")
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in settings  # else from Google
    assert "custom_dir: docs/theme" in settings
    source = (ROOT / "docs/theme/partials/source.html").read_text()
    assert "data-md-component" not in source  # else a script asks GitHub for stars
    assert not re.findall(r"(?:src=|url\()[\"']?https?:", (ROOT / "docs/style.css").read_text())
    for page in ROOT.glob("docs/**/*.md"):
        assert not re.findall(r"(?:src=\"|!\[[^\]]*\]\()https?:", page.read_text()), page


HOME = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
RAW = HOME.replace("//github.com", "//raw.githubusercontent.com")


def test_links_of_the_readme_work_on_a_package_index():
    """A package index shows the README alone, so that its links must be absolute, and lead home."""
    text = (ROOT / "README.md").read_text()
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", text)
    assert len(links) > 20
    for image, link in links:
        start = f"{RAW}/main/" if image else rf"{HOME}/(blob|tree)/main/"
        found = re.match(start, link)
        assert found, f"{link} is not below {start}"
        path, _, anchor = link[found.end() :].partition("#")
        if (ROOT / "src").exists():  # else these are the tests of an installed package
            assert (ROOT / path).exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings]
            assert anchor in slugs, link


def test_the_home_is_in_one_place():
    for name in ("CITATION.cff", "mkdocs.yml"):
        if (ROOT / name).exists():
            assert set(
                re.findall(r"https://github.com/[\w-]+/[\w-]+", (ROOT / name).read_text())
            ) <= {HOME}
    version = (
        re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
        if (ROOT / "CITATION.cff").exists()
        else None
    )
    assert version is None or version[1] == tamis.__version__


COMMAND = re.compile(
    r"(?:benches|experiments)/[\w/]+\.py|(?:ONLY=|experiments --only )[\w/]+"
    r"|cargo bench|tamis bench|tamis demo"
)


def pages():
    return [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]


def test_every_command_of_a_page_exists():
    runner = pytest.importorskip("experiments.runner", reason="not part of the package")
    from experiments.evidence import EXPERIMENTS

    runner.declare()
    for page in pages():
        for command in COMMAND.findall(page.read_text()):
            if "only" in command.lower():
                assert runner.select([re.split("[= ]", command)[-1]], EXPERIMENTS), page.name
            elif command.endswith(".py"):
                assert (ROOT / command).exists(), f"{page.name}: {command}"


def test_what_was_measured_names_its_command():
    """Blocks of code are run; other numbers come from a command that the section names."""
    for page in pages():
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for section in text.split("**Measured.**")[1:]:
            section = re.split(r"^(?:\*\*|#)", section, flags=re.MULTILINE)[0]
            assert not re.search(r"\d\.\d", section) or COMMAND.search(section), page.name


def test_numbers_are_those_of_the_list():
    """`make numbers` runs the commands, too."""
    if not (ROOT / "benches").exists():
        pytest.skip("these are the tests of an installed package")
    listed = hook("check_numbers").numbers()
    assert len(listed) > 10
    assert not [problem for each in listed for problem in each.problems()]


def test_a_number_that_is_not_printed_is_a_problem(monkeypatch, capsys):
    numbers = hook("check_numbers")
    prints = "python -c 'print(6 * 7)'"
    good = numbers.Number("README.md", prints, ["# tamis"], ["42"])
    monkeypatch.setattr(numbers, "numbers", lambda: [good])
    monkeypatch.setattr("sys.argv", ["check_numbers.py"])
    assert numbers.main() == 0
    wrong = numbers.Number("README.md", prints, ["# sieve"], ["43"])
    monkeypatch.setattr(numbers, "numbers", lambda: [good, wrong])
    assert numbers.main() == 1
    printed = capsys.readouterr().err
    assert "does not print '43'" in printed
    assert "has no '# sieve' any more" in printed
    assert numbers.Number("README.md", "python none.py", [], []).problems()[1:] == [
        "none.py does not exist"
    ]


def test_the_map_of_the_repository_names_what_exists():
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    named = re.findall(r"`([\w/]+(?:\.py|\.rs|/))`(?: `([\w.]+)`)?", text)
    assert len(named) > 40
    for name, function in named:
        places = [ROOT / name, ROOT / "python" / "tamis" / name]
        found = [place for place in places if place.exists()]
        assert found, f"ARCHITECTURE.md names {name}, which does not exist"
        if function:
            last = function.split(".")[-1]
            assert re.search(rf"\b(?:def|fn|class) {last}\b", found[0].read_text("utf-8")), (
                f"{name} has no {last}"
            )
