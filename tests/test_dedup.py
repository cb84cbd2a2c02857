"""De-duplication: what comes through, of any kind of records, and how the estimates hold."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tamis


def firsts(keys, window=None):
    """The positions of keys that were not among the last ``window`` ones, exactly."""
    last, found = {}, []
    for i, key in enumerate(keys):
        if key not in last or (window is not None and i - last[key] > window):
            found.append(i)
        last[key] = i
    return found


def test_misses_nothing_in_the_window():
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 3000, 20_000)
    kept = tamis.dedup([keys[i : i + 777] for i in range(0, len(keys), 777)], window=5000)
    out = np.concatenate(list(kept))
    exact = firsts(keys.tolist(), 5000)
    # All that is dropped was seen, but for the rate; all that was seen lately is dropped.
    assert len(out) <= len(exact)
    assert len(out) >= 0.99 * len(set(keys.tolist()))
    stats = kept.stats
    assert stats.records == 20_000
    assert stats.dropped == 20_000 - len(out)


@pytest.mark.parametrize("kind", ["list", "numpy", "batches", "table", "polars", "pandas"])
def test_output_has_the_type_of_the_input(kind):
    data = {"id": [1, 2, 1, 3, 2, 4], "text": list("abcdef")}
    table = pa.table(data)
    source = {
        "list": [dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)],
        "numpy": [np.array(data["id"])],
        "batches": table.to_batches(max_chunksize=2),
        "table": table,
        "polars": [pl.DataFrame(data)],
        "pandas": [pd.DataFrame(data)],
    }[kind]
    key = None if kind == "numpy" else "id"
    out = list(tamis.dedup(source, window=100, key=key))
    if kind == "list":
        assert [row["text"] for row in out] == ["a", "b", "d", "f"]
    elif kind == "numpy":
        assert out[0].tolist() == [1, 2, 3, 4]
    elif kind in ("batches", "table"):
        assert pa.Table.from_batches(out)["text"].to_pylist() == ["a", "b", "d", "f"]
    else:
        assert list(out[0]["text"]) == ["a", "b", "d", "f"]
        assert type(out[0]) is type(source[0])


def test_lines_of_a_file(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"GET /a\nGET /b\r\nGET /a\nGET /b\nGET /c")
    assert list(tamis.dedup(path, window=100)) == [b"GET /a", b"GET /b", b"GET /c"]
    assert list(tamis.dedup(str(path), window=100, batch=1)) == [b"GET /a", b"GET /b", b"GET /c"]
    with path.open() as lines:
        assert list(tamis.dedup(lines, window=100, key=str.strip))[-1] == "GET /c"


def test_the_last_seconds():
    events = [("a", 0.0), ("a", 50.0), ("b", 50.0), ("a", 100.0), ("b", 200.0)]
    kept = tamis.dedup(
        events, window=100, seconds=60, key=lambda e: e[0], at=lambda e: e[1], batch=2
    )
    assert list(kept) == [("a", 0.0), ("b", 50.0), ("b", 200.0)]


@pytest.mark.parametrize("make", ["stable", "windowed"])
def test_estimates_hold(make):
    """Expected, and measured on the sample, against an exact count of what was missed."""
    rng = np.random.default_rng(7)
    recent = rng.geometric(1 / 3000, 150_000)
    keys = np.arange(150_000)
    again = rng.random(150_000) < 0.4
    for i in np.flatnonzero(again & (recent < np.arange(150_000))):
        keys[i] = keys[i - recent[i]]
    given = {"gap": 3000, "bits": 2**16, "fpr": 0.01} if make == "stable" else {"window": 4000}
    kept = tamis.dedup([keys], **given)
    out = np.concatenate(list(kept))
    stats = kept.stats
    new = len(set(keys.tolist()))
    duplicates = len(keys) - new
    false_drops = new - len(set(out.tolist()))
    missed = (len(out) - (new - false_drops)) / duplicates
    assert 0.02 < missed < 0.9
    assert stats.expected_missed == pytest.approx(missed, abs=0.05)
    assert stats.measured_missed == pytest.approx(missed, abs=0.05)
    assert stats.expected_false_drops >= 0.5 * false_drops / new
    assert sum(stats.gaps.values()) == pytest.approx(duplicates, rel=0.1)


def test_refuses_bad_arguments():
    for given, message in (
        ({}, "pass exactly one of window or gap"),
        ({"window": 5, "gap": 5}, "pass exactly one of window or gap"),
        ({"gap": 5}, "gap requires bits"),
        ({"gap": 5, "bits": 9, "seconds": 1}, "seconds requires window"),
        ({"window": 5, "at": "time"}, "at requires seconds"),
        ({"window": 5, "batch": 0}, "batch must be at least 1, not 0"),
        ({"window": 5, "filter": tamis.Windowed(5, fpr=0.1)}, "filter cannot be combined"),
    ):
        with pytest.raises(ValueError, match=message):
            tamis.dedup([1], **given)
    assert list(tamis.dedup([], window=10)) == []
    assert list(tamis.dedup([1, 1], filter=tamis.Windowed(5, fpr=0.1))) == [1]
