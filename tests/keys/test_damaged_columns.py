"""Arrow columns whose lengths, offsets, views or indices lie are refused, never read elsewhere."""

import ctypes
import subprocess
import sys

import numpy as np
import pytest

import tamis

pa = pytest.importorskip("pyarrow")


def text(offsets, kind=None, data=b"abcdefgh"):
    """Return a column of text with these offsets into 8 bytes."""
    kind = kind or pa.string()
    wide = kind in (pa.large_string(), pa.large_binary())
    buffer = np.array(offsets, np.int64 if wide else np.int32).tobytes()
    buffers = [None, pa.py_buffer(buffer), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def view(length, buffer, offset):
    return np.array([length, 0, buffer, offset], np.int32).tobytes()


def views(*rows, kind=None):
    """Return a column of views into a buffer of 20 bytes."""
    buffers = [None, pa.py_buffer(b"".join(rows)), pa.py_buffer(b"x" * 20)]
    return pa.Array.from_buffers(kind or pa.string_view(), len(rows), buffers)


def dictionary(indices, values):
    return pa.DictionaryArray.from_arrays(pa.array(indices), values, safe=False)


def good_view():
    return view(20, 0, 0)


DAMAGED = {
    "offset below zero": (lambda: text([0, 2, -(2**30), 8]), 1),
    "first offset below zero": (lambda: text([0, -(2**30), 2, 8]).slice(1), None),
    "last offset past the end": (lambda: text([0, 2, 2**30, 8]).slice(0, 2), None),
    "offsets decrease": (lambda: text([0, 8, 4, 8]), 1),
    "offset past the end": (lambda: text([0, 2, 2**30, 8]), 1),
    "binary": (lambda: text([0, 2, -(2**30), 8], pa.binary()), 1),
    "large_string": (lambda: text([0, 2, 2**40, 8], pa.large_string()), 1),
    "large_string below zero": (lambda: text([0, 2, -(2**40), 8], pa.large_string()), 1),
    "large_binary": (lambda: text([0, 2, 2**62, 8], pa.large_binary()), 1),
    "sliced": (lambda: text([0, 1, 2, -(2**30), 8]).slice(1, 3), 1),
    "second chunk": (lambda: pa.chunked_array([text([0, 1, 8]), text([0, -(2**30), 8])]), 2),
    "table": (lambda: pa.table({"k": text([0, 2, -(2**30), 8])}), 1),
    "record batch": (lambda: pa.record_batch({"k": text([0, 2, -(2**30), 8])}), 1),
    "view past the end": (lambda: views(good_view(), view(20, 0, 1)), 1),
    "view far past the end": (lambda: views(good_view(), view(20, 0, 2**31 - 1)), 1),
    "view of a buffer that is not there": (lambda: views(good_view(), view(20, 7, 0)), 1),
    "view of buffer -1": (lambda: views(good_view(), view(20, -1, 0)), 1),
    "view of length -1": (lambda: views(good_view(), view(-1, 0, 0)), 1),
    "binary_view": (lambda: views(good_view(), view(20, 0, 1), kind=pa.binary_view()), 1),
    "index past the dictionary": (lambda: dictionary([0, 1, 2**30], pa.array(["a", "b"])), 2),
    "index below zero": (lambda: dictionary([0, -1], pa.array(["a", "b"])), 1),
    "value of a dictionary": (lambda: dictionary([0, 0, 1], text([0, 2, -(2**30), 8])), 2),
    "value of a small dictionary": (
        lambda: dictionary([0] * 99 + [1], text([0, 2, -(2**30), 8])),
        99,
    ),
}
"""By name: a column, and the index of its first key that cannot be read, where pyarrow
does not see it first."""


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_columns_are_refused(name):
    make, index = DAMAGED[name]
    said = rf"keys\[{index}\] is .*: the column is damaged"
    said = "keys is a damaged Arrow column" if index is None else said
    f = tamis.Bloom(100, fpr=0.01)
    for use in (tamis.hash_keys, lambda k: tamis.Bloom.build(k, fpr=0.01), f.contains, f.update):
        with pytest.raises(ValueError, match=said):
            use(make())
    assert len(f) == 0  # update takes all keys or none


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_features_are_refused(name):
    make, _ = DAMAGED[name]
    with pytest.raises(ValueError, match=r"column ('k'|0) is .* at row |features is a damaged"):
        tamis._native.Table(make()).categories(0)


class Struct(ctypes.Structure):
    """The struct ArrowArray of the C data interface."""


Struct._fields_ = [
    *[(name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers")],
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(Struct))),
    ("dictionary", ctypes.POINTER(Struct)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class Lying:
    """A column whose struct was written to after its producer made it."""

    def __init__(self, column, lie):
        self.column, self.lie = column, lie

    def __arrow_c_array__(self, requested_schema=None):
        schema, array = self.column.__arrow_c_array__()
        self.lie(Struct.from_address(_pointer(array, b"arrow_array")))
        return schema, array


def setting(**fields):
    return lambda struct: [setattr(struct, name, value) for name, value in fields.items()]


def clear_buffer(index):
    return lambda struct: struct.buffers.__setitem__(index, None)


LIES = {
    "length -1": ("text", setting(length=-1)),
    "length beyond any memory": ("text", setting(length=2**62)),
    "offset -1": ("text", setting(offset=-1)),
    "length and offset overflow": ("ints", setting(length=2**62, offset=2**62)),
    "too few buffers": ("text", setting(n_buffers=2)),
    "no buffers": ("ints", setting(n_buffers=0)),
    "too many buffers": ("ints", setting(n_buffers=9)),
    "-1 buffers": ("views", setting(n_buffers=-1)),
    "no list of buffers": ("ints", setting(buffers=None)),
    "no offsets": ("text", clear_buffer(1)),
    "no values": ("ints", clear_buffer(1)),
    "no sizes of views": ("views", clear_buffer(3)),
    "no dictionary": ("dictionary", setting(dictionary=None)),
    "no children": ("batch", setting(n_children=0)),
    "longer than its column": ("batch", setting(length=9)),
    "column of length -1": ("batch", lambda s: setattr(s.children[0].contents, "length", -1)),
    "dictionary of length -1": (
        "dictionary",
        lambda s: setattr(s.dictionary.contents, "length", -1),
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_lying_structs_are_refused(name):
    kind, lie = LIES[name]
    columns = {
        "text": pa.array(["ab", "c"]),
        "ints": pa.array([1, 2]),
        "views": pa.array(["a", "long enough to be in a buffer"], pa.string_view()),
        "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
        "batch": pa.record_batch({"k": ["a", "b"]}),
    }
    with pytest.raises(ValueError, match="keys is a damaged Arrow column: "):
        tamis.hash_keys(Lying(columns[kind], lie))
    with pytest.raises(ValueError, match="features is a damaged Arrow column: "):
        tamis._native.Table(Lying(columns[kind], lie))


def test_nulls_are_counted_not_believed():
    column = pa.array([0, None, 2])
    for each, lie in (
        (column, setting(null_count=0)),
        (
            pa.record_batch({"k": column}),
            lambda s: setattr(s.children[0].contents, "null_count", 0),
        ),
        (pa.array(["a", None, "b"]).dictionary_encode(), setting(null_count=0)),
    ):
        with pytest.raises(TypeError, match=r"keys\[1\] is null"):
            tamis.hash_keys(Lying(each, lie))


def test_a_column_that_was_read_is_refused():
    once = Once(pa.array(["a", "b"]))
    assert len(tamis.hash_keys(once)) == 2
    with pytest.raises(TypeError, match="keys is an Arrow column that was read or released before"):
        tamis.hash_keys(once)
    stream = OnceStreamed(pa.chunked_array([["a", "b"]]))
    assert len(tamis.hash_keys(stream)) == 2
    with pytest.raises(TypeError, match="keys is an Arrow column that was read or released before"):
        tamis.hash_keys(stream)


class Once:
    """A column that hands out the same capsules again."""

    def __init__(self, column):
        self.capsules = column.__arrow_c_array__()

    def __arrow_c_array__(self, requested_schema=None):
        return self.capsules


class OnceStreamed:
    """Likewise, of a stream."""

    def __init__(self, column):
        self.capsule = column.__arrow_c_stream__()

    def __arrow_c_stream__(self, requested_schema=None):
        return self.capsule


def test_pieces_of_good_columns_are_read():
    """What damaged columns have in common with good ones is not refused."""
    keys = ["a", "", "long enough to lie in a buffer of its own", "d"] * 9
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.binary_view()):
        column = pa.array(keys).cast(kind)
        for start, stop in ((0, 36), (5, 30), (36, 36), (35, 36)):
            expected = tamis.hash_keys(keys[start:stop] or np.array([], np.int64)).tolist()
            assert tamis.hash_keys(column[start:stop]).tolist() == expected
            assert tamis.hash_keys(column.dictionary_encode()[start:stop]).tolist() == expected
    assert tamis.hash_keys(text([3, 5, 8])).tolist() == tamis.hash_keys(["de", "fgh"]).tolist()


def test_a_damaged_file_is_refused(tmp_path):
    """The command line checks an Arrow file before pyarrow computes with its columns."""
    for i, offsets in enumerate(([0, 2, -(2**30), 8], [0, 8, 4, 8])):
        column = text(offsets)
        path = tmp_path / f"{i}.arrow"
        with pa.ipc.new_file(path, pa.schema([("k", pa.string())])) as out:
            out.write(pa.record_batch({"k": column}))
        command = [sys.executable, "-m", "tamis", "build", str(path), "-o", str(tmp_path / "out")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode in (1, 2), done.stderr
        assert f"{path} is damaged" in done.stderr
