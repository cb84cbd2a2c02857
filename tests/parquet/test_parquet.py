"""`tamis.parquet.SkippingIndex`: no row is missed, whatever changes, is damaged or is cut."""

import datetime
import decimal

import numpy as np
import pytest
from edge_values import arrow, scaled
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import SOAK

import tamis
from tamis.parquet import RowGroup, SkippingIndex
from tamis.parquet.column_types import ACCEPTED, column_type
from tamis.parquet.predicate import Predicate

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from lakes import TYPES, UTC, agrees, build  # noqa: E402

pc = pytest.importorskip("pyarrow.compute")


def test_rows_are_found_and_row_groups_skipped(lake):
    ix = build(lake)
    for where in ({"user": "user 5"}, {"user": ["user 5", "user 6"]}, {"user": "nobody"}):
        agrees(ix, lake, where)
    assert ix.row_groups({"user": "nobody"}) == []
    assert ix.row_groups({"user": []}) == []
    assert 0.0 < ix.stats.skip_rate < 1.0
    first = ix.row_groups({"user": "user 5"})[0]
    assert isinstance(first, RowGroup)
    assert first.path.endswith(".parquet")
    assert len(ix) == 30
    assert repr(ix) == "<tamis.parquet.SkippingIndex: 3 files, 30 row groups, columns user>"


def test_a_null_never_prunes(lake):
    ix = build(lake)
    assert len(ix.row_groups({"user": None})) == 30
    assert len(ix.row_groups({"user": ["user 5", None]})) == 30
    agrees(ix, lake, {"user": None})
    agrees(ix, lake, {"user": ["user 5", None]})


def test_columns_are_queried_together(lake):
    ix = build(lake, columns=["user", "n"])
    for where in ({"user": "user 5", "n": 5}, {"user": "user 5", "n": [102, 6, 7]}, {"n": 2999}):
        agrees(ix, lake, where)
    assert len(ix.row_groups({"n": 2999})) == 1  # the zones know
    assert ix.row_groups({"user": "nobody", "n": 6}) == []


@pytest.mark.parametrize("name", TYPES)
def test_every_type_finds_its_rows(tmp_path, name):
    kind, values = TYPES[name]
    column, nothing = arrow(values, kind), pa.nulls(1, kind)
    groups = [[column[i : i + 1], nothing, column[i : i + 1]] for i in range(len(values))]
    rows = [each for group in [*groups, [nothing] * 3] for each in group]
    numbers = [10 * i + j for i in range(len(groups) + 1) for j in range(3)]
    table = pa.table({"c": pa.chunked_array(rows), "n": numbers})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    ix = SkippingIndex.build(tmp_path, columns=["c"], path=tmp_path / "index.tamis")
    ix = SkippingIndex.open(tmp_path / "index.tamis")
    for i, value in enumerate(values):
        assert RowGroup(str(tmp_path / "a.parquet"), i) in ix.row_groups({"c": value})
        found = ix.scan({"c": value}, columns=["n"])["n"].to_pylist()
        assert found == [10 * i, 10 * i + 2]
        assert ix.dataset({"c": [value]}).to_table(columns=["n"])["n"].to_pylist() == found
    every = sorted(ix.scan({"c": values}, columns=["n"])["n"].to_pylist())
    assert every == [n for i in range(len(values)) for n in (10 * i, 10 * i + 2)]


@pytest.mark.parametrize("first", ["nulls", "values"])
@pytest.mark.parametrize("name", TYPES)
def test_a_file_may_have_nothing_but_nulls(tmp_path, name, first):
    """Writers that infer types, such as pandas, have no type for such a column."""
    kind, values = TYPES[name]
    paths = {each: tmp_path / f"{int(each != first)}.parquet" for each in ("nulls", "values")}
    pq.write_table(pa.table({"c": pa.nulls(3), "n": [0, 1, 2]}), paths["nulls"])
    pq.write_table(pa.table({"c": arrow(values, kind), "n": range(len(values))}), paths["values"])
    with pytest.raises(TypeError, match="but 'c' is null"):
        SkippingIndex.build(paths["nulls"], columns=["c"])
    ix = build(tmp_path, columns=["c"])
    # A file that is not indexed yet.
    pq.write_table(pa.table({"c": pa.nulls(2), "n": [8, 9]}), tmp_path / "new.parquet")
    for index in (ix, SkippingIndex.open(tmp_path / "index.tamis")):
        for refreshed in (False, True):
            assert sorted(index.scan({"c": None})["n"].to_pylist()) == [0, 1, 2, 8, 9]
            for i, value in enumerate(values):
                assert index.scan({"c": value})["n"].to_pylist() == [i]
                assert index.dataset({"c": [value]}).to_table()["n"].to_pylist() == [i]
            assert index.refresh() == int(not refreshed)


@pytest.mark.parametrize("name", TYPES)
def test_a_value_has_the_key_of_its_column(name):
    kind, values = TYPES[name]
    column = arrow(values, kind)
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
    for i, value in enumerate(values):
        scalar = column[i]
        for equal in (*equal_values(value), *([scalar] if scalar.as_py() == value else [])):
            [[key]] = Predicate.of("c", column_type(kind), equal).keys
            assert (tamis.hash_keys([key]) == tamis.hash_keys(column[i : i + 1])).all()


def equal_values(value):
    """The same value in other forms."""
    yield value
    if isinstance(value, decimal.Decimal):
        sign, digits, exponent = value.as_tuple()
        for zeros in (1, 2, 7, 200):
            yield decimal.Decimal((sign, digits + zeros * (0,), exponent - zeros))
        if not value:
            yield from map(
                decimal.Decimal, ("0", "-0", "0.00", "-0.0", "0E+9", "0E-200", "0E+99999")
            )
    if isinstance(value, datetime.datetime) and value.tzinfo and 1 < value.year < 9999:
        yield value.astimezone(UTC)
        yield value.astimezone(datetime.timezone(datetime.timedelta(hours=14)))


@settings(max_examples=1000 if SOAK else 100)
@given(st.integers(1, 38), st.data())
def test_a_decimal_has_the_key_of_its_column(digits, data):
    kind = pa.decimal128(digits, data.draw(st.integers(0, digits)))
    unscaled = data.draw(st.integers(1 - 10**digits, 10**digits - 1))
    value = scaled(unscaled, kind.scale)
    [[key]] = Predicate.of("c", "decimal", value).keys
    assert (tamis.hash_keys([key]) == tamis.hash_keys(pa.array([value], kind))).all()


@pytest.mark.parametrize("text", ["0.00", "0", "-0.0", "0E+9", "0E-100"])
def test_a_decimal_zero_is_found(tmp_path, text):
    table = pa.table({"a": pa.array(map(decimal.Decimal, ("0.00", "1.50")), pa.decimal128(9, 2))})
    pq.write_table(table, tmp_path / "a.parquet")
    ix = SkippingIndex.build(tmp_path, columns=["a"])
    where = {"a": decimal.Decimal(text)}
    assert len(ix.row_groups(where)) == 1
    assert ix.scan(where).num_rows == ix.dataset(where).count_rows() == 1


@pytest.mark.parametrize("text", ["1E+2000000", "-1E+2000000", "1E-2000000", "1E+999999999999"])
def test_a_decimal_of_millions_of_digits_matches_nothing(tmp_path, text):
    table = pa.table({"a": pa.array([decimal.Decimal("9e6"), None], pa.decimal128(9, 2))})
    pq.write_table(table, tmp_path / "a.parquet")
    ix = SkippingIndex.build(tmp_path, columns=["a"])
    value = decimal.Decimal(text)
    assert ix.row_groups({"a": value}) == []
    assert ix.scan({"a": [value, 9_000_000]}).num_rows == 1
    assert ix.dataset({"a": value}).count_rows() == 0
    assert ix.dataset({"a": [value, None]}).count_rows() == 1


WRONG = {
    "text": [1, b"a", 1.5, True],
    "binary": ["a", 1, bytearray(b"a")],
    "integer": ["1", True, 1.0, decimal.Decimal(1)],
    "date": [datetime.datetime(2024, 1, 1), "2024-01-01", 5],
    "timestamp": [datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 1, tzinfo=UTC), 5],
    "timestamp with zone": [datetime.datetime(2024, 1, 1), "now", np.datetime64("2024-01-01")],
    "decimal": [1.5, "1", decimal.Decimal("nan"), True],
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_a_value_of_another_type_is_refused(kind):
    for value in WRONG[kind]:
        with pytest.raises(TypeError) as raised:
            Predicate.of("amount", kind, [value])
        for part in ("amount", repr(value), ACCEPTED[kind]):
            assert part in str(raised.value)


def test_values_that_no_column_can_hold_match_nothing(tmp_path):
    table = pa.table(
        {
            "i": pa.array([1, 2], pa.int8()),
            "d": pa.array([1, 2], pa.decimal128(5, 1)),
            "t": pa.array([0, 1], pa.timestamp("s")),
            "n": [0, 1],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    ix = SkippingIndex.build(tmp_path, columns=["i", "d", "t"])
    late = datetime.datetime(1970, 1, 1, 0, 0, 0, 1)
    for where in (
        {"i": 2**70},
        {"i": 300},
        {"d": decimal.Decimal("1.05")},
        {"d": 10**60},
        {"d": decimal.Decimal("1e2000000")},
        {"d": decimal.Decimal("-1e999999")},
        {"d": decimal.Decimal("1e-999999")},
        {"d": decimal.Decimal("1." + "0" * 5000 + "1")},
        {"t": late},
        {"t": np.datetime64(2**62, "D")},
    ):
        assert ix.scan(where).num_rows == 0
        assert ix.dataset(where).to_table().num_rows == 0
    assert ix.scan({"d": decimal.Decimal("1." + "0" * 5000)}).num_rows == 1
    assert ix.scan({"i": [300, 1]}).num_rows == 1
    assert ix.scan({"t": np.datetime64("1970-01-01T00:00:01")}).num_rows == 1
    for unit in ("D", "h", "m", "ms", "us", "ns"):
        assert ix.scan({"t": np.datetime64("1970-01-01", unit)}).num_rows == 1
    assert ix.scan({"d": decimal.Decimal("1.000")}).num_rows == 1


def test_zero_is_one_value_whatever_its_scale(tmp_path):
    rows = pa.table({"d": pa.array([0, 1, 2, 3], pa.decimal128(9, 2))})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=1)
    ix = SkippingIndex.build(tmp_path, columns=["d"])
    for zero in ("0", "0.00", "-0.0", "0e50", "0e-999999"):
        assert ix.scan({"d": decimal.Decimal(zero)}).num_rows == 1


def test_bad_arguments_are_named(lake):
    ix = build(lake)
    with pytest.raises(ValueError, match="indexed columns 'user', not 'nobody'"):
        ix.row_groups({"nobody": 1})
    with pytest.raises(TypeError, match="where must be a dict of columns"):
        ix.row_groups("user")
    with pytest.raises(ValueError, match=r"limit must be .* not -1"):
        ix.scan({"user": "user 5"}, limit=-1)
    with pytest.raises(ValueError, match="for 3 files with 30 row groups, not 10"):
        ix.allocate(memory=10)
    with pytest.raises(FileNotFoundError, match="source matches no files"):
        SkippingIndex.build(lake / "*.nothing", columns="user")
    with pytest.raises(ValueError, match="columns must be among user, n, not 'x'"):
        SkippingIndex.build(lake, columns="x")
    with pytest.raises(ValueError, match="distinct names"):
        SkippingIndex.build(lake, columns=["n", "n"])
    pq.write_table(pa.table({"f": [1.5]}), lake / "floats.pq")
    with pytest.raises(TypeError, match=r"of type text, binary.*'f' is double"):
        SkippingIndex.build(lake / "floats.pq", columns=["f"])
    pq.write_table(pa.table({"user": [5]}), lake / "other.parquet")
    with pytest.raises(TypeError, match=r"column user must be text .* is int64 in .*other.parquet"):
        build(lake)
