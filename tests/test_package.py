"""The package as it is installed."""

import importlib
import importlib.metadata
from pathlib import Path

import pytest

import tamis
from tamis import _native


def test_version_is_one():
    assert tamis.__version__ == _native.__version__ == importlib.metadata.version("tamis")


def test_is_typed_and_of_the_stable_abi():
    assert (Path(tamis.__file__).parent / "py.typed").exists()
    assert Path(_native.__file__).name == "_native.abi3.so"
    assert Path(_native.__file__).with_name("_native.pyi").exists()


def test_public_names_are_there():
    assert all(hasattr(tamis, name) for name in tamis.__all__)
    assert sorted(tamis.__all__) == tamis.__all__


def test_a_debug_build_warns(monkeypatch):
    monkeypatch.setattr(_native, "DEBUG_BUILD", True)
    with pytest.warns(RuntimeWarning, match="built without optimizations"):
        importlib.reload(tamis)


def test_errors_are_also_what_they_are():
    for error in (
        tamis.FormatError,
        tamis.IncompatibleError,
        tamis.CapacityError,
        tamis.BuildError,
    ):
        assert issubclass(error, tamis.TamisError)
        assert issubclass(error, ValueError)
    assert issubclass(tamis.CapacityWarning, UserWarning)
