"""De-duplication: what comes through, of any kind of records, and how the estimates hold."""

import bz2
import datetime
import gzip
import itertools
import lzma

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tamis
from tamis import deduplication


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
    assert list(tamis.dedup(str(path), window=100)) == [b"GET /a", b"GET /b", b"GET /c"]
    with path.open() as lines:
        assert list(tamis.dedup(lines, window=100, key=str.strip))[-1] == "GET /c"


def test_the_last_seconds():
    events = [("a", 0.0), ("a", 50.0), ("b", 50.0), ("a", 100.0), ("b", 200.0)]
    kept = tamis.dedup(events, window=100, seconds=60, key=lambda e: e[0], at=lambda e: e[1])
    assert list(kept) == [("a", 0.0), ("b", 50.0), ("b", 200.0)]


UTC = datetime.UTC
ZONE = datetime.timezone(datetime.timedelta(hours=2))
TIMES = [
    datetime.datetime(2024, 3, 1, tzinfo=UTC) + datetime.timedelta(seconds=s) for s in (0, 100, 300)
]
NAIVE = [time.replace(tzinfo=None) for time in TIMES]

TIME_COLUMNS = {
    "seconds": [time.timestamp() for time in TIMES],
    "integers": np.array([int(time.timestamp()) for time in TIMES]),
    "durations": pa.array([datetime.timedelta(seconds=s) for s in (0, 100, 300)]),
    "datetimes": NAIVE,
    "datetimes of a zone": [time.astimezone(ZONE) for time in TIMES],
    "Timestamps": [pd.Timestamp(time) for time in TIMES],
    "datetime64 scalars": [np.datetime64(time) for time in NAIVE],
}
for unit in ("s", "ms", "us", "ns"):
    zoned = pa.array(TIMES, pa.timestamp(unit, tz="Europe/Paris"))
    TIME_COLUMNS |= {
        f"NumPy {unit}": np.array(NAIVE, dtype=f"datetime64[{unit}]"),
        f"Arrow {unit}": pa.array(NAIVE, pa.timestamp(unit)),
        f"Arrow {unit} of a zone": zoned,
        f"pandas {unit}": pd.Series(np.array(NAIVE, dtype=f"datetime64[{unit}]")),
        f"pandas {unit} of a zone": pd.Series(TIMES).astype(f"datetime64[{unit}, Europe/Paris]"),
        f"pandas {unit} over Arrow": pd.Series(TIMES).astype(pd.ArrowDtype(zoned.type)),
    }
    if unit != "s":
        TIME_COLUMNS[f"Polars {unit}"] = pl.Series(NAIVE, dtype=pl.Datetime(unit))
        TIME_COLUMNS[f"Polars {unit} of a zone"] = pl.Series(zoned)


@pytest.mark.parametrize("name", TIME_COLUMNS)
@pytest.mark.parametrize("single", [False, True])
def test_times_of_any_type(name, single):
    """One key at 0, 100 and 300 seconds: with a window of 150, the second is a duplicate."""
    times = TIME_COLUMNS[name]
    if single:
        times = times.to_pylist() if isinstance(times, pa.Array) else times
        source = [{"id": 7, "ts": time} for time in times]
    elif isinstance(times, pd.Series):
        source = [pd.DataFrame({"id": 7, "ts": times})]
    elif isinstance(times, pl.Series):
        source = [pl.DataFrame({"id": [7, 7, 7], "ts": times})]
    elif isinstance(times, pa.Array):
        source = pa.table({"id": [7, 7, 7], "ts": times})
    elif isinstance(times, np.ndarray):
        source = [np.rec.fromarrays([np.full(3, 7), times], names=["id", "ts"])]
    else:
        source = [[{"id": 7, "ts": time} for time in times]]
    kept = tamis.dedup(source, key="id", window=100, seconds=150, at="ts")
    list(kept)
    assert (kept.stats.records, kept.stats.dropped) == (3, 1)
    assert [gap // 100 for gap in kept.stats.gaps] == [1, 2]  # seconds, whatever the unit


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (["noon"], "column 'ts' has type str"),
        ([datetime.time(12)], "column 'ts' has type time"),
        ([True], "column 'ts' has type bool"),
        ([None], "column 'ts' has a null"),
        ([datetime.datetime(2024, 1, 1), None], "column 'ts' has a null or NaN at index 1"),
    ],
)
def test_what_is_not_a_time_is_refused_by_name(times, message):
    table = pa.table({"id": list(range(len(times))), "ts": times})
    rows = table.to_pylist()
    for source in (table, [table.to_pandas()], rows):
        with pytest.raises((TypeError, ValueError), match=message.partition(" at index")[0]):
            list(tamis.dedup(source, key="id", window=100, seconds=150, at="ts"))
    with pytest.raises((TypeError, ValueError), match=message):
        list(tamis.dedup(table, key="id", window=100, seconds=150, at="ts"))


@pytest.mark.parametrize("given", [{"window": 2000}, {"gap": 500, "bits": 2**14}])
@pytest.mark.parametrize("taken", [1, 10, 777])
def test_resumes_after_any_record(given, taken, tmp_path):
    """What is marked as seen was handed out: nothing is lost, nothing comes twice."""
    keys = np.random.default_rng(3).integers(0, 3000, 10_000).tolist()
    whole = list(tamis.dedup(keys, **given))
    source = iter(keys)
    first = tamis.dedup(source, **given)
    begun = list(itertools.islice(first, taken))
    first.filter.save(tmp_path / "filter.tamis")
    saved = tamis.load(tmp_path / "filter.tamis")
    assert begun + list(tamis.dedup(keys[first.stats.records :], filter=saved)) == whole
    # Nor is anything read ahead from the source.
    assert begun + list(tamis.dedup(source, filter=first.filter)) == whole


def test_resumes_after_any_batch():
    keys = np.random.default_rng(4).integers(0, 3000, 10_000)
    batches = [keys[i : i + 500] for i in range(0, len(keys), 500)]
    whole = np.concatenate(list(tamis.dedup(batches, window=2000)))
    first = tamis.dedup(batches, window=2000)
    begun = [next(first) for _ in range(3)]
    rest = list(tamis.dedup([keys[first.stats.records :]], filter=first.filter))
    assert np.concatenate(begun + rest).tolist() == whole.tolist()


def test_keys_of_both_families_one_by_one():
    kept = tamis.dedup([1, "a", 1, b"a", "b"], window=100)
    assert list(kept) == [1, "a", "b"]
    assert kept.stats.measured_missed == 0


def zstd(data):
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as file:
        file.write(data)
    return out.getvalue().to_pybytes()


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst"])
def test_lines_of_a_compressed_file(tmp_path, suffix):
    lines = [f"GET /{i % 500}".encode() for i in range(5000)]
    path = tmp_path / f"log.{suffix}"
    compress = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}[suffix]
    path.write_bytes(compress(b"\n".join(lines)))
    assert list(tamis.dedup(path, window=1000)) == lines[:500]
    (tmp_path / "renamed").write_bytes(path.read_bytes())
    assert list(tamis.dedup(tmp_path / "renamed", window=1000)) == lines[:500]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises((ValueError, OSError)):
        list(tamis.dedup(path, window=1000))


def repeating(records, gap):
    """Keys of which four in ten repeat one that came about ``gap`` records before."""
    rng = np.random.default_rng(7)
    recent = rng.geometric(1 / gap, records)
    keys = np.arange(records)
    again = rng.random(records) < 0.4
    for i in np.flatnonzero(again & (recent < np.arange(records))):
        keys[i] = keys[i - recent[i]]
    return keys


def test_estimates_hold():
    """Expected, and measured on the sample, against an exact count of what was missed."""
    keys = repeating(150_000, 3000)
    kept = tamis.dedup([keys], gap=3000, bits=2**16, fpr=0.01)
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
    assert stats.outside_window == 0


@pytest.mark.parametrize("timed", [False, True])
def test_duplicates_outside_the_window_are_not_missed(timed):
    """They are kept by request: they are counted apart."""
    keys = repeating(150_000, 3000)
    table = pa.table({"k": keys, "at": np.arange(150_000) / 10})
    given = {"seconds": 400, "at": "at"} if timed else {}
    kept = tamis.dedup(table, window=4000, key="k", **given)
    list(kept)
    stats = kept.stats
    new = len(set(keys.tolist()))
    outside = len(firsts(keys.tolist(), 4000)) - new
    assert outside > 10_000
    assert stats.outside_window == pytest.approx(outside, rel=0.1)
    assert stats.expected_missed == stats.measured_missed == 0
    assert sum(stats.gaps.values()) == pytest.approx(len(keys) - new, rel=0.1)


def test_refuses_bad_arguments():
    for given, message in (
        ({}, "pass exactly one of window or gap"),
        ({"window": 5, "gap": 5}, "pass exactly one of window or gap"),
        ({"gap": 5}, "gap requires bits"),
        ({"gap": 5, "bits": 9, "seconds": 1}, "seconds requires window"),
        ({"window": 5, "at": "time"}, "at requires seconds"),
        ({"window": 0}, "window must be from 1 to"),
        ({"window": 5, "filter": tamis.Windowed(5, fpr=0.1)}, "filter cannot be combined"),
    ):
        with pytest.raises(ValueError, match=message):
            tamis.dedup([1], **given)
    assert list(tamis.dedup([], window=10)) == []
    assert list(tamis.dedup([1, 1], filter=tamis.Windowed(5, fpr=0.1))) == [1]


def test_a_batch_that_cannot_be_filtered_is_not_marked():
    """pyarrow has no filter for some types; the keys are in another column."""
    batch = pa.record_batch(
        {"key": [1, 2], "more": pa.array([["a"], []], pa.list_(pa.string_view()))}
    )
    f = tamis.Windowed(1000, fpr=1e-9)
    with pytest.raises(NotImplementedError):
        list(tamis.dedup([batch], key="key", filter=f))
    assert not f.seen(1)


def test_a_line_of_any_length_is_refused(tmp_path, monkeypatch):
    """A small file can decompress to one that does not fit into memory."""
    monkeypatch.setattr(deduplication, "MAX_LINE", 1000)
    path = tmp_path / "log.gz"
    for line, said in ((b"x" * 1000, None), (b"x" * 10**6, "it has a line longer than")):
        path.write_bytes(gzip.compress(b"a\nb\n" + line))
        if said is None:
            assert list(tamis.dedup(path, window=10, fpr=0.01)) == [b"a", b"b", line]
            continue
        with pytest.raises(ValueError, match=said):
            list(tamis.dedup(path, window=10, fpr=0.01))


@pytest.mark.parametrize("key", [["tenant", "id"], ("tenant", "id"), [0, 1], ["tenant", 1]])
def test_several_columns_are_one_key(key):
    pa, pl, pd = (pytest.importorskip(name) for name in ("pyarrow", "polars", "pandas"))
    table = pa.table({"tenant": ["a", "a", "b", "a", "ab"], "id": [1, 1, 1, 2, 1], "v": [1] * 5})
    rows = list(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))
    frame = pd.DataFrame({name: table[name].to_pylist() for name in table.column_names})
    frame.index = list("vwxyz")
    fields = np.array(rows, [("tenant", "U2"), ("id", "i4"), ("v", "i4")])
    for batch in (table, table.to_batches()[0], pl.from_arrow(table), frame, fields):
        assert [len(kept) for kept in tamis.dedup([batch, batch], key=key, window=100)] == [4]
    if key == [0, 1]:
        assert list(tamis.dedup(rows, key=key, window=100)) == [rows[0], *rows[2:]]
    f = tamis.Windowed(100, fpr=1e-9)
    list(tamis.dedup([table], key=key, filter=f))
    assert ("ab", 1) in f
    assert ("a", "b1") not in f


def test_a_list_of_one_column_is_that_column():
    f = tamis.Windowed(100, fpr=1e-9)
    list(tamis.dedup([{"id": 7}], key=["id"], filter=f))
    assert 7 in f


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (1.5, TypeError, "key must be a column, a list of columns or a function, not 1.5"),
        ([], TypeError, r"key must be a column, a list of columns or a function, not \[\]"),
        (["a", True], TypeError, "key must contain names or positions of columns, not True"),
        ([0, 7], ValueError, "key has position 7, but the records have 2 columns"),
    ],
)
def test_wrong_keys_are_named(key, error, message):
    pa = pytest.importorskip("pyarrow")
    with pytest.raises(error, match=message):
        list(tamis.dedup([pa.table({"a": [1], "b": [2]})], key=key, window=10))


def timed(times, keys, *, batch=0, seconds=60):
    """Return the indexes that come through, and the statistics."""
    records = [
        {"i": i, "key": key, "at": at} for i, (key, at) in enumerate(zip(keys, times, strict=True))
    ]
    source = [records[i : i + batch] for i in range(0, len(records), batch)] if batch else records
    kept = tamis.dedup(source, window=100_000, seconds=seconds, key="key", at="at", fpr=1e-6)
    out = [row["i"] for part in kept for row in (part if batch else [part])]
    return out, kept.stats


@pytest.mark.parametrize("batch", [0, 7, 5000])
def test_one_time_in_the_far_future_does_not_end_the_stream(batch):
    times = np.linspace(1.7e9, 1.7e9 + 600, 20_000)
    times[1000] *= 1000  # milliseconds taken for seconds
    out, stats = timed(times.tolist(), range(20_000), batch=batch)
    assert len(out) >= 19_999
    assert (stats.early, stats.late) == (1, 0)
    keys = np.arange(20_000)
    keys[10_000:] -= 1000  # 1000 keys come again after 30 seconds
    times[9500] *= 1000
    assert len(timed(times.tolist(), keys.tolist(), batch=batch)[0]) == 19_000


@pytest.mark.parametrize("batch", [0, 7, 5000])
def test_the_first_time_may_be_the_wrong_one(batch):
    times = np.append(1.7e12, np.linspace(1.7e9, 1.7e9 + 6000, 20_000))
    out, stats = timed(times.tolist(), range(20_001), batch=batch)
    assert len(out) >= 20_000
    assert stats.late == 16


@pytest.mark.parametrize("batch", [0, 1, 3, 5000])
def test_after_a_quiet_night_nothing_is_dropped_by_the_clock(batch):
    evening, morning = np.linspace(0, 50, 100), np.linspace(40_000, 40_050, 100)
    keys = [*range(100), *range(50), *range(50)]  # those of the evening, then duplicates
    out, stats = timed([*evening, *morning], keys, batch=batch)
    assert out == [*range(150)]
    assert stats.early == 16


@pytest.mark.parametrize("batch", [0, 1, 3, 5000])
def test_records_farther_apart_than_the_window(batch):
    times = [61.0 * i for i in range(300)]
    assert timed(times, [7] * 300, batch=batch)[0] == list(range(300))
    times = [float(time) for i in range(100) for time in (100 * i, 100 * i + 1)]
    assert timed(times, [7] * 200, batch=batch)[0] == list(range(0, 200, 2))


def test_a_wrong_time_is_logged_once(caplog):
    timed([0, 1e9, 1, 1e9, 2], range(5))
    assert [record.name for record in caplog.records] == ["tamis.dedup"]


def test_one_data_frame_stays_one_and_keeps_nanoseconds_of_objects():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    fine = pd.Timestamp("2024-01-01 00:00:00.123456789")
    frame = pd.DataFrame({"t": pd.Series([fine, fine + pd.Timedelta(1), fine], dtype=object)})
    (kept,) = tamis.dedup(frame, window=100, key="t")
    assert isinstance(kept, pd.DataFrame)
    assert kept["t"].tolist() == [fine, fine + pd.Timedelta(1)]
    (kept,) = tamis.dedup(pl.DataFrame({"n": [1, 2, 1]}), window=100, key="n")
    assert kept["n"].to_list() == [1, 2]
