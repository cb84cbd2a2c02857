"""Notebooks: short reprs, tables, progress bars; and the example notebooks."""

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import get_overloads

import pytest
from installed import EXTRAS

import tamis
from tamis import _progress
from tamis.filters import from_bytes, load

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))

LOG = tamis.Workload.from_queries([f"<{i % 7}>" for i in range(100)], keys=["k"])

SHOWN = {
    "a filter": lambda: tamis.Bloom.build(["k"], fpr=0.01),
    "a stack": lambda: tamis.Stacked.build(["k"], LOG, fpr=0.01),
    "a secret": lambda: tamis.Ribbon.build(["k"], fpr=0.01, key=bytes(16)),
    "a function": lambda: tamis.StaticFunction.build(["k"], [1]),
    "a plan": lambda: tamis.plan(1000, LOG, fpr=0.01),
    "advice": lambda: tamis.advise(1000, LOG),
    "no advice": lambda: tamis.advise(1000, needs={"stream", "delete"}),
    "a choice": lambda: tamis.advise(1000).best,
    "a workload": lambda: LOG,
    "a shape": lambda: tamis.Workload.zipf(1.0, 10**6),
    "a collection": lambda: tamis.Collection.build({"a": ["k"]}, budget="1kB"),
    "a guard": lambda: tamis.Guard(tamis.stores.Memory(), tamis.Bloom(10, fpr=0.01)),
}


@pytest.mark.parametrize("make", SHOWN.values(), ids=SHOWN)
def test_reprs_are_short_and_of_one_line(make):
    text = repr(make())
    assert text.startswith("<")
    assert text.endswith(">")
    assert "\n" not in text
    assert len(text) <= 130


@pytest.mark.parametrize("make", SHOWN.values(), ids=SHOWN)
def test_notebooks_show_tables(make):
    shown = make()
    if not hasattr(shown, "_repr_html_"):
        assert type(shown).__name__ == "Choice"
        return
    page = shown._repr_html_()
    assert page.startswith("<table>")
    assert page.count("<table>") == page.count("</table>")
    assert page.count("<tr>") == page.count("</tr>") > 1 or type(shown).__name__ == "Advice"
    assert "<0>" not in page, "keys are escaped"


def test_a_table_has_the_numbers():
    f = tamis.Ribbon.build(range(1000), fpr=0.01)
    page = f._repr_html_()
    assert ">1,000 of 1,000</td>" in page
    assert f"{f.bits_per_key:.2f} bits per key" in page
    assert "secret key" in SHOWN["a secret"]()._repr_html_()
    advice = tamis.advise(1000)
    assert all(f">{each.name}</td>" in advice._repr_html_() for each in advice.choices)
    assert "&lt;0&gt;" in LOG._repr_html_()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_advice_is_a_frame(library):
    module = pytest.importorskip(library)
    advice = tamis.advise(range(100), bits_per_key=12)
    frame = advice.to_frame(library)
    assert isinstance(frame, module.DataFrame)
    assert list(frame["name"]) == [each.name for each in advice.choices]
    assert list(frame["expected_fpr"]) == [each.expected_fpr for each in advice.choices]
    assert not [name for name in frame.columns if name.startswith("measured")]
    measured = advice.measure(range(100), range(100, 1000)).to_frame(library)
    assert "measured_fpr" in measured.columns


def test_the_frame_is_of_what_is_there(monkeypatch):
    pytest.importorskip("polars")
    advice = tamis.advise(100)
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert type(advice.to_frame()).__module__.startswith("polars")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match="a data frame needs pandas or polars: pip install"):
        advice.to_frame()
    with pytest.raises(ImportError, match="needs polars: pip install polars"):
        advice.to_frame("polars")
    with pytest.raises(ValueError, match="library must be 'pandas' or 'polars', not 'arrow'"):
        advice.to_frame("arrow")


@pytest.fixture
def notebook(monkeypatch):
    """A stand-in for IPython in a notebook; returns what it displays."""
    shown = []
    handle = SimpleNamespace(update=shown.append)

    def display(first, display_id):
        shown.append(first)
        return handle

    ipython, module = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    ipython.display, module.HTML, module.display = module, str, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return shown


def test_progress_in_a_notebook(notebook, monkeypatch):
    monkeypatch.setattr(_progress, "_SECONDS", 0)
    with _progress.progress_bar("reading <x>", 10) as advance:
        advance(3)
        advance(4)
    assert notebook == [
        "reading &lt;x&gt; <progress max=10 value=0></progress> 0 of 10",
        "reading &lt;x&gt; <progress max=10 value=3></progress> 3 of 10",
        "reading &lt;x&gt; <progress max=10 value=7></progress> 7 of 10",
        "",
    ]
    with _progress.progress_bar("reading", None, show=False) as advance:
        advance(1)
    assert len(notebook) == 4
    with _progress.progress_bar("reading", None) as advance:
        advance(5)
    assert notebook[-2] == "reading <progress max=1></progress> 5"


def test_ipython_on_a_terminal_is_no_notebook(notebook, monkeypatch, capfd):
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace())
    with _progress.progress_bar("reading", 10) as advance:
        advance(3)
    assert notebook == []
    assert capfd.readouterr() == ("", "")


def test_versions_are_shown(capsys):
    tamis.show_versions()
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["tamis"].startswith(tamis.__version__)
    assert lines["python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert lines["numpy"] == importlib.metadata.version("numpy")
    assert {"system", *EXTRAS.values()} <= lines.keys()


def test_what_is_opened_has_a_type(tmp_path):
    assert issubclass(tamis.Ribbon, tamis.Filter)
    assert not issubclass(tamis.StaticFunction, tamis.Filter)
    for opened in (load, from_bytes, type(tamis.advise(10).best).build):
        returned = [each.__annotations__["return"] for each in get_overloads(opened)]
        assert len(returned) == 2
        assert "Any" not in returned
    for cls in (tamis.Plan, tamis.Ribbon, tamis.Stacked, tamis.Sharded):
        assert cls.build.__annotations__["return"] in ("Self", "Stacked")
    f = tamis.Ribbon.build(["a"], fpr=0.01)
    f.save(tmp_path / "f")
    assert type(tamis.load(tmp_path / "f", expect=tamis.Filter)) is tamis.Ribbon
    with pytest.raises(tamis.FormatError, match=r"f: expected StaticFunction, not Ribbon"):
        tamis.load(tmp_path / "f", expect=tamis.StaticFunction)
    with pytest.raises(tamis.FormatError, match="expected Bloom, not Ribbon"):
        tamis.from_bytes(f.to_bytes(), expect=tamis.Bloom)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path, tmp_path):
    for name in ("matplotlib", "pandas", "pyarrow"):
        pytest.importorskip(name)
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    client = nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [each for cell in notebook.cells for each in cell.get("outputs", [])]
    assert not [each for each in outputs if each.get("name") == "stderr"], "no warnings"
    assert any("text/html" in each.get("data", {}) for each in outputs)


def test_there_are_three_notebooks():
    assert [path.stem for path in NOTEBOOKS] == [
        "guard_a_database",
        "ship_a_blocklist",
        "skip_row_groups",
    ]
