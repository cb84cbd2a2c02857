"""Every benchmark can be imported; `make bench` runs them."""

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHES = sorted((Path(__file__).parents[2] / "benches").glob("*.py"))


@pytest.mark.parametrize("path", BENCHES, ids=lambda path: path.stem)
def test_a_benchmark_imports_what_exists(path, monkeypatch):
    monkeypatch.syspath_prepend(path.parent)
    spec = importlib.util.spec_from_file_location(f"benches_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        if error.name.startswith("tamis"):
            raise
        pytest.skip(f"{error.name} is not installed: it is in the group `bench`")
    assert callable(getattr(module, "main", None)) or path.stem == "measure"
