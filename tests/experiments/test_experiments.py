"""The runner of the experiments, with small ones, and the list of those there must be."""

import csv
import dataclasses
import io
import json
import re

import numpy as np
import pytest

import tamis

pytest.importorskip("matplotlib")
runner = pytest.importorskip("experiments.runner", reason="not part of the package")
from experiments.evidence import PAPERS, Evidence, Experiment, Verdict  # noqa: E402
from rich.console import Console  # noqa: E402

from experiments import __main__ as command  # noqa: E402
from experiments import data, evidence, page, results  # noqa: E402

FIGURES = {
    "stacked": """table2 figure2a figure2b figure2c figure3 figure4
        figure5a figure5b figure5c figure5d figure6a figure6b figure6c
        early_figure4 early_figure5 early_figure6 early_figure7 early_figure8 early_figure9
        early_figure10 early_lsm1 early_lsm2""",
    "collections": """figure2 figure3 figure4 figure5 figure6 figure7 figure8
        figure9_left figure9_right table1""",
    "streams": """figure2 figure3 figure6 figure7 figure8 figure9 figure10 figure11 figure13
        figure14 table2 table3 table4""",
    "adaptive": "figure2 figure3 figure4 figure5 theorem4 corollary3",
    "arena": """one_pass uniform zipf15 zipf10 adversarial dynamic training advice
        published_stack""",
}
"""Every figure and table of the papers that is measured again, and the workloads of the arena.

An item may have several experiments: figure3 is figure3_urls and others."""


@pytest.mark.parametrize("paper", PAPERS)
def test_every_figure_and_table_has_an_experiment(paper):
    assert not runner.declare([paper])
    declared = [name.partition("/")[2] for name in evidence.EXPERIMENTS if name.startswith(paper)]
    missing = [
        item
        for item in FIGURES[paper].split()
        if not any(name == item or name.startswith(f"{item}_") for name in declared)
    ]
    assert not missing


AGREES = Verdict("Rates fall by 10 %.", "10 %", "9.9 %", "20 %", "agrees", "Seeded | exact.")


def found(quick):
    def draw(figure):
        ax = figure.subplots()
        ax.plot([1, 2], [0.1, 0.2], label="rate")
        ax.legend()

    return Evidence([{"x": 1, "rate": 0.1}, {"x": 2, "rate": 0.2}], [AGREES], draw)


def fails(quick):
    raise RuntimeError("no <luck>")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A tree with two modules, one of which imports the other, and a folder for data."""
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(data, "FOLDER", tmp_path / "data")
    (tmp_path / "experiments/stacked").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    source = "from experiments.stacked import part\nfrom experiments.evidence import Evidence\n"
    (tmp_path / "experiments/stacked/fake.py").write_text(source)
    (tmp_path / "experiments/stacked/part.py").write_text("from . import deep\nRATE = 0.1\n")
    (tmp_path / "experiments/stacked/deep.py").write_text("")
    (tmp_path / "experiments/evidence.py").write_text("Evidence = 1\n")
    return tmp_path


def fake(name="stacked/table2", run=found, **options):
    return Experiment(
        name, f"The title of {name}", run, module="experiments.stacked.fake", **options
    )


def run(root, *chosen, **options):
    quiet = Console(file=io.StringIO(), width=200)
    outcome = runner.run(chosen, root / "build", console=quiet, **options)
    return outcome, quiet.file.getvalue()


def test_a_finished_experiment_is_not_run_again(root):
    first, shown = run(root, fake())
    assert first.run == ["stacked/table2"]
    assert re.search(r"1 of 1 +stacked/table2 +[\d.]+ s +agrees", shown)
    second, _ = run(root, fake(run=fails))
    assert second.finished == ["stacked/table2"]
    assert not second.failed
    assert run(root, fake(), again=True)[0].run


@pytest.mark.parametrize("name", ["fake", "part", "deep"])
def test_it_is_run_again_if_its_code_changed(root, name):
    run(root, fake())
    path = root / f"experiments/stacked/{name}.py"
    path.write_text(path.read_text() + "RATE = 0.2\n")
    assert run(root, fake())[0].run


def test_code_that_changes_during_a_run_is_not_that_of_the_result(root):
    def edits(quick):
        (root / "experiments/stacked/deep.py").write_text("RATE = 0.2\n")
        return found(quick)

    assert run(root, fake(run=edits))[0].run
    assert run(root, fake())[0].run


def test_what_it_does_not_import_makes_no_difference(root):
    run(root, fake())
    (root / "experiments/stacked/other.py").write_text("RATE = 0.2\n")
    (root / "experiments/evidence.py").write_text("Evidence = 2\n")
    assert run(root, fake())[0].finished


def test_it_is_run_again_if_its_data_changed_and_left_out_without_them(root):
    each = fake(data=("trace", "list"))
    (root / "data/trace.parquet").write_text("a")
    outcome, shown = run(root, each)
    assert outcome.left_out == {"stacked/table2": "list"}
    assert "list missing" in shown
    (root / "data/list.parquet").write_text("b")
    assert run(root, each)[0].run
    assert run(root, each)[0].finished
    (root / "data/list.parquet").write_text("bc")
    assert run(root, each)[0].run


def test_an_unfinished_experiment_is_run_again(root):
    run(root, fake())
    (root / "build/stacked/table2.json").write_text("{")
    assert run(root, fake())[0].run


def test_quick_results_are_apart_and_marked(root):
    run(root, fake(), quick=True)
    assert not (root / "build/stacked/table2.json").exists()
    (quick,) = page.write([fake()], runner.Outcome(), root / "build")
    assert quick.quick
    assert "stacked/table2 (quick)" in (root / "build/report.html").read_text()
    assert "Quick run" in (root / "build/verdicts.csv").read_text()
    assert run(root, fake(), quick=True)[0].finished
    assert run(root, fake())[0].run  # it is not finished in full
    (full,) = page.write([fake()], runner.Outcome(), root / "build")
    assert not full.quick
    assert "uick" not in (root / "build/report.html").read_text()
    (root / "build/quick/stacked/table2.json").unlink()
    assert run(root, fake(), quick=True)[0].finished  # in full, which is better


def test_a_result_of_older_code_is_shown_as_such(root):
    run(root, fake())
    (root / "experiments/stacked/deep.py").write_text("1\n")
    page.write([fake()], runner.Outcome(), root / "build")
    assert "changed since" in (root / "build/report.html").read_text()
    run(root, fake(), quick=True)
    (result,) = page.write([fake()], runner.Outcome(), root / "build")
    assert result.quick  # rather than one of older code


def test_a_failing_experiment_does_not_stop_the_others(root):
    outcome, shown = run(root, fake("stacked/a", fails), fake("stacked/b"))
    assert outcome.run == ["stacked/b"]
    assert "RuntimeError: no <luck>" in outcome.failed["stacked/a"]
    assert "no <luck>" in shown
    page.write([fake("stacked/a"), fake("stacked/b")], outcome, root / "build")
    assert (
        "stacked/a: failed, RuntimeError: no &lt;luck&gt;"
        in (root / "build/report.html").read_text()
    )
    assert run(root, fake("stacked/a"))[0].run  # it was not recorded


@pytest.mark.parametrize("evidence", [Evidence([], [AGREES]), Evidence([{"x": 1}], [])])
def test_an_experiment_must_find_something(root, evidence):
    outcome, _ = run(root, fake(run=lambda quick: evidence))
    assert "at least one row and one verdict" in outcome.failed["stacked/table2"]


def test_a_verdict_is_one_of_three(root):
    other = dataclasses.replace(AGREES, verdict="wins")
    outcome, _ = run(root, fake(run=lambda quick: Evidence([{"x": 1}], [other])))
    assert "not 'wins': stacked/table2" in outcome.failed["stacked/table2"]
    assert not run(root, fake())[0].failed
    record = root / "build/stacked/table2.json"
    record.write_text(record.read_text().replace('"seconds"', '"minutes"'))
    assert run(root, fake())[0].run  # of an older runner


def test_the_files_of_a_run(root):
    table = fake("arena/uniform", lambda quick: Evidence([{"bits": 8}], [AGREES, AGREES]))
    experiments = [fake(), table]
    run(root, *experiments)
    build = root / "build"
    page.write(experiments, runner.Outcome(), build)
    assert (build / "stacked/table2.csv").read_text() == "x,rate\n1,0.1\n2,0.2\n"
    assert (build / "stacked/table2.png").read_bytes().startswith(b"\x89PNG")
    assert "#ffffff" not in (build / "stacked/table2.svg").read_text()  # on a dark page
    assert not (build / "arena/uniform.svg").exists()
    record = json.loads((build / "stacked/table2.json").read_text())
    assert record["title"] == "The title of stacked/table2"
    assert record["made_with"].startswith("tamis ")
    with (build / "verdicts.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(page.COLUMNS)
    assert ",".join(page.COLUMNS) == "paper,item,claim,theirs,ours,best,verdict,reason"
    assert [(row["paper"], row["item"]) for row in rows] == [
        ("stacked", "table2"),
        ("arena", "uniform"),
        ("arena", "uniform"),
    ]
    lines = (build / "verdicts.md").read_text().splitlines()
    lengths = {line.count("|") for line in lines if line.startswith("|")}
    assert lengths == {6}
    assert len([line for line in lines if line.startswith("|")]) == 2 + 3


def test_the_report_needs_nothing_else(root):
    experiments = [fake(), fake("arena/uniform")]
    run(root, *experiments)
    experiments += [fake("stacked/a", data=("trace",)), fake("stacked/b")]
    page.write(experiments, runner.Outcome(), root / "build")
    text = (root / "build/report.html").read_text()
    assert "stacked/a: left out, without trace" in text
    assert "stacked/b: not run yet" in text
    assert text.count("<svg") == 2
    assert {each for each in re.findall(r"https?://[^\s\"'<>]+", text) if "w3.org" not in each} == (
        set()
    )
    assert not re.findall(r"<(?:script|link|iframe)|src=(?!\"data:)", text)
    assert "prefers-color-scheme: dark" in text
    anchors = set(re.findall(r'id="([^"]+)"', text))
    links = set(re.findall(r'<a href="#([^"]+)"', text))
    assert {"verdicts", "stacked", "arena", "stacked-table2", "missing"} <= links <= anchors
    assert text.index('id="verdicts"') < text.index('id="stacked"') < text.index('id="arena"')


def test_a_large_drawing_is_embedded_as_png(root, monkeypatch):
    monkeypatch.setattr(results, "LARGE", 100)
    run(root, fake())
    page.write([fake()], runner.Outcome(), root / "build")
    text = (root / "build/report.html").read_text()
    assert '<img alt="" src="data:image/png;base64,iVBOR' in text


def test_selecting_by_name():
    names = ("streams/figure10", "stacked/table2", "streams/figure1", "stacked/figure3_urls")
    every = {name: fake(name, data=("trace",) if "url" in name else ()) for name in names}

    def chosen(*only, **options):
        return [each.name for each in runner.select(only, every, **options)]

    in_order = ["stacked/figure3_urls", "stacked/table2", "streams/figure1", "streams/figure10"]
    assert chosen() == in_order
    assert chosen("streams/figure1") == ["streams/figure1"]  # not also 10
    assert chosen("stacked/figure3") == ["stacked/figure3_urls"]
    assert chosen("stacked", data_free=True) == ["stacked/table2"]
    assert chosen("stacked/table2", "streams/figure10") == ["stacked/table2", "streams/figure10"]
    with pytest.raises(KeyError, match="no experiment is named 'stacked/tabel2'; near: stacked/t"):
        chosen("stacked/tabel2")


def test_the_command(root, monkeypatch, capsys):
    monkeypatch.setattr(runner, "declare", lambda: {})
    every = {"stacked/a": fake("stacked/a", fails), "stacked/b": fake("stacked/b")}
    monkeypatch.setattr(command, "EXPERIMENTS", every)
    build = ["--build", str(root / "build")]
    assert command.main([*build, "--only", "stacked/c"]) == 2
    assert "near: stacked/" in capsys.readouterr().err
    assert command.main([*build, "--only", "stacked/b"]) == 0
    assert command.main(build) == 1
    printed = capsys.readouterr()
    assert "1 finished before" in printed.out
    assert "no <luck>" in printed.err
    (root / "docs").mkdir()
    monkeypatch.setattr(command, "ROOT", root)
    assert command.main([*build, "--report", "--publish"]) == 0
    assert (root / "docs/verdicts.md").read_text() == (root / "build/verdicts.md").read_text()


def test_a_module_that_cannot_be_imported_is_a_failure(root, monkeypatch):
    (root / "experiments/stacked/fake.py").write_text("from experiments.evidence import Nothing\n")
    monkeypatch.setattr(runner, "HERE", root / "experiments")
    monkeypatch.setattr(runner, "PAPERS", {"stacked": ""})
    (error,) = runner.declare(["stacked"]).values()
    assert "Error" in error


def test_every_name_says_which_paper():
    for name in ("table2", "stacked", "other/table2"):
        with pytest.raises(ValueError, match="'<paper>/<item>'"):
            results.of_paper(name)


@pytest.mark.parametrize("name", ["TAF", "Telescoping, growing", "Swapping ACF"])
def test_adaptive_filters_are_queried_as_if_one_by_one(name):
    """A false positive that is repeated in a batch is counted once, as it is fixed in between."""
    from experiments.adaptive.filters import Filter

    keys = tamis.traces.ranked(range(2**40, 2**40 + 2000), seed=1)
    absent = tamis.traces.ranked(range(5000), seed=1)
    wrong = int(Filter(name, keys).filter.contains(absent).sum())
    assert wrong > 5
    assert abs(Filter(name, keys).replay(np.repeat(absent, 10)) - wrong) <= 2
    single = Filter(name, keys).replay(absent, batch=1)
    assert abs(single - wrong) <= 2
