"""The contract of a saved filter: it comes back as it was, or is refused."""

from __future__ import annotations

import copy
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import tamis
from tamis.errors import FormatError, IncompatibleError
from tamis.testing.filters import FilterCase, of_tamis, raises


def comes_back_from_a_pickle(case: FilterCase) -> None:
    """A pickled filter, as another process gets it, gives the same answers."""
    f = case.build(range(300), fpr=0.05)
    twin = pickle.loads(pickle.dumps(f))
    assert (twin.contains(range(3000)) == f.contains(range(3000))).all()
    assert len(twin) == len(f)


@of_tamis
def comes_back_from_bytes(case: FilterCase) -> None:
    """Bytes, files, mappings, pickles and copies give the same filter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keys, asked = range(300), range(3000)
        f = case.build(keys, fpr=0.05, seed=3)
        path = folder / "filter.tamis"
        f.save(os.fsencode(path))
        assert [p.name for p in folder.iterdir()] == ["filter.tamis"]
        assert path.read_bytes() == f.to_bytes()
        for twin in (
            tamis.from_bytes(f.to_bytes()),
            tamis.from_bytes(memoryview(f.to_bytes())),
            tamis.load(path),
            tamis.load(str(path), mmap=True),
            pickle.loads(pickle.dumps(f)),
            copy.copy(f),
            copy.deepcopy(f),
            f.copy(),
        ):
            assert type(twin) is type(f)
            assert twin.to_bytes() == f.to_bytes()
            assert (twin.contains(asked) == f.contains(asked)).all()
            facts = ("capacity", "size_in_bits", "bits_per_key", "expected_fpr", "seed")
            assert all(getattr(twin, fact) == getattr(f, fact) for fact in facts)
            assert len(twin) == len(f)
            assert repr(twin) == repr(f)


@of_tamis
def copies_are_apart(case: FilterCase) -> None:
    """A change of a copy, or of a mapped file, changes nothing else."""
    if not case.inserts:
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        f = case.make(200, fpr=0.01)
        f.update(range(100))
        before = f.to_bytes()
        f.save(folder / "f")
        mapped: Any = tamis.load(folder / "f", mmap=True)
        twin: Any
        for twin in (f.copy(), tamis.from_bytes(before), mapped):
            twin.add("another")
            assert "another" in twin
            assert f.to_bytes() == before
        assert (folder / "f").read_bytes() == before


@of_tamis
def replaces_a_file_under_a_mapping(case: FilterCase) -> None:
    """A file is replaced, not changed, so a mapping keeps its content."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "f"
        case.build(range(500), fpr=0.01).save(path)
        mapped = tamis.load(path, mmap=True)
        case.build(range(1000, 1010), fpr=0.01).save(path)
        assert mapped.contains(range(500)).all()
        assert tamis.load(path).contains(range(1000, 1010)).all()


@of_tamis
def refuses_every_flip_and_truncation(case: FilterCase) -> None:
    """Every changed byte and every missing one is noticed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = case.build(range(20), fpr=0.05).to_bytes()
        path = folder / "f"
        for at in range(len(data)):
            for bad in (data[:at], data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]):
                with raises(FormatError):
                    tamis.from_bytes(bad)
        for at in range(0, len(data), 37):
            path.write_bytes(data[:at])
            with raises(FormatError):
                tamis.load(path, mmap=True)
        with raises(FormatError):
            tamis.from_bytes(data + b"\0")


@of_tamis
def keeps_a_secret_key_secret(case: FilterCase) -> None:
    """A secret key is needed to open a filter, and stands in no file or pickle."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        secret = bytes(range(50, 66))
        f = case.build(range(1000), fpr=0.01, key=secret)
        assert f.seed is None
        assert f.contains(range(1000)).all()
        data = f.to_bytes()
        assert secret not in data
        assert tamis.from_bytes(data, key=secret).contains(range(1000)).all()
        f.save(folder / "f")
        assert tamis.load(folder / "f", key=secret, mmap=True).contains(range(1000)).all()
        with raises(IncompatibleError, match="secret key"):
            tamis.from_bytes(data)
        with raises(IncompatibleError, match="key is not the one"):
            tamis.from_bytes(data, key=bytes(16))
        with raises(IncompatibleError, match="seed 0"):
            tamis.from_bytes(case.build([1], fpr=0.01).to_bytes(), key=secret)
        with raises(TypeError, match="to_bytes"):
            pickle.dumps(f)
        with raises(ValueError, match="key must be 16 bytes, not 3"):
            case.build([1], fpr=0.01, key=b"abc")
        with raises(ValueError, match="pass either seed or key"):
            case.build([1], fpr=0.01, key=secret, seed=7)
        assert f.copy().contains(range(1000)).all()


CHECKS = (
    comes_back_from_a_pickle,
    comes_back_from_bytes,
    copies_are_apart,
    replaces_a_file_under_a_mapping,
    refuses_every_flip_and_truncation,
    keeps_a_secret_key_secret,
)
