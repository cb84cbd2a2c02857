"""Mapped files, and bytes that change while they are read."""

import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tamis
import tamis.text


def test_sections_are_aligned_for_mapping(tmp_path):
    f = tamis.Bloom.build(np.arange(10_000), fpr=0.01, layout="segmented")
    f.save(tmp_path / "f")
    data = (tmp_path / "f").read_bytes()
    sections, parameters = (
        struct.unpack_from("<H", data, 14)[0],
        struct.unpack_from("<Q", data, 48)[0],
    )
    for i in range(sections):
        offset = struct.unpack_from("<IIQQQ", data, 56 + 8 * parameters + 32 * i)[2]
        assert offset % 64 == 0


@pytest.mark.parametrize("kind", ["bytearray", "memoryview", "read-only array"])
def test_bytes_that_change_while_they_are_read(kind):
    """What another thread writes after the checksums were compared is not in the filter."""
    good = tamis.Bloom.build(np.arange(1_000_000), fpr=2**-8).to_bytes()
    written = bytearray(good)
    array = np.frombuffer(written, np.uint8)
    array.flags.writeable = False  # but its memory is another's
    data = {"bytearray": written, "memoryview": memoryview(written), "read-only array": array}[kind]
    done = threading.Event()

    def write():
        while not done.is_set():
            written[-100] ^= 0xFF

    writer = threading.Thread(target=write)
    writer.start()
    opened = 0
    try:
        while opened < 20:
            try:
                f = tamis.from_bytes(data)
            except tamis.FormatError:
                continue
            opened += 1
            assert f.to_bytes() == good
    finally:
        done.set()
        writer.join()


def test_mapped_files_that_are_written_to(tmp_path):
    """Answers may be wrong, but nothing crashes, hangs or panics."""
    command = [sys.executable, "scribble_worker.py", str(tmp_path)]
    tests = Path(__file__).parents[1] / "helpers"
    done = subprocess.run(command, cwd=tests, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout.split("\n")[-2:]) == (0, ["good", ""]), done.stderr[-2000:]


def test_a_mapped_filter_is_checked_again_before_it_is_written_to(tmp_path):
    """Insertions would follow what is wrong in the file to anywhere."""
    path = tmp_path / "f"
    for cls in (tamis.Quotient, tamis.Telescoping):
        cls.build(range(1000), fpr=2**-8).save(path)
        f = tamis.load(path, mmap=True)
        f.add("not in the file")
        assert "not in the file" in f
        f = tamis.load(path, mmap=True)
        damaged = bytearray(path.read_bytes())
        middle = len(damaged) // 2
        damaged[middle : middle + 64] = bytes(64)
        with path.open("r+b") as file:
            file.write(damaged)
        for change in (lambda f=f: f.add(1), lambda f=f: f.update([1]), lambda f=f: f.remove(1)):
            with pytest.raises(tamis.FormatError):
                change()
