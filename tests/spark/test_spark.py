"""`tamis.spark` in a real Spark, on two local cores, and once with workers in other processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tamis

REQUIRED = os.environ.get("TAMIS_SERVERS") == "required" and sys.version_info < (3, 15)
if not REQUIRED:
    pytest.importorskip("pyspark")
    if shutil.which("java") is None:
        pytest.skip("Spark needs a Java runtime", allow_module_level=True)

# All in one worker of the tests: a session of Spark is one Java process.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.filterwarnings("default")]
SECRET = bytes(range(16))


def secret_source() -> Any:
    """Return a function that makes the key when it is called, pickled by value."""
    return lambda: bytes(range(16))


OPTIONS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[2]")
        for name, value in OPTIONS.items():
            builder = builder.config(name, value)
        folder = tmp_path_factory.mktemp("spark")
        session = builder.config("spark.sql.warehouse.dir", str(folder)).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def users(spark: Any) -> Any:
    """20,000 numbers, some twice, with nulls, as numbers, text and bytes, in five partitions."""
    numbers = spark.range(0, 20_000).union(spark.range(0, 3000)).repartition(5)
    nulls = spark.createDataFrame([(None,)] * 3, "id long")
    everything = numbers.union(nulls)
    return everything.selectExpr(
        "id", "concat('user', id) as name", "cast(concat('b', id) as binary) as raw"
    )


NUMBERS = list(range(20_000))
NAMES = [f"user{i}" for i in NUMBERS]


@pytest.mark.parametrize(
    ("column", "keys"),
    [("id", NUMBERS), ("name", NAMES), ("raw", [f"b{i}".encode() for i in NUMBERS])],
)
def test_a_build_has_the_bytes_of_a_local_one(users: Any, column: str, keys: list[Any]) -> None:
    import tamis.spark

    built = tamis.spark.build(users, column, fpr=0.01, shards=8)
    assert built.to_bytes() == tamis.Sharded.build(keys, fpr=0.01, shards=8).to_bytes()


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("cls", [tamis.Fuse, tamis.Quotient])
def test_other_classes_seeds_and_secret_keys(users: Any, cls: Any, shards: int) -> None:
    import tamis.spark

    hash: dict[str, Any] = {"seed": 5} if cls is tamis.Fuse else {"key": SECRET}
    in_spark = {"seed": 5} if cls is tamis.Fuse else {"key": secret_source()}
    built = tamis.spark.build(users, "id", filter=cls, fpr=0.01, shards=shards, **in_spark)
    if shards == 1:
        local = cls.build(NUMBERS, fpr=0.01, **hash)
    else:
        local = tamis.Sharded.build(NUMBERS, filter=cls, fpr=0.01, shards=shards, **hash)
    assert type(built) is type(local)
    assert built.to_bytes() == local.to_bytes()


def test_a_filter_with_a_capacity_is_merged(users: Any, tmp_path: Path) -> None:
    import tamis.spark

    path = tmp_path / "users.tamis"
    built = tamis.spark.build(
        users, "name", filter=tamis.Bloom, capacity=30_000, fpr=0.01, path=path
    )
    expected = tamis.Bloom(30_000, fpr=0.01)
    expected.update(NAMES)
    assert type(built) is tamis.Bloom
    assert (built.contains(NAMES)).all()
    others = [f"nobody{i}" for i in range(10_000)]
    assert (built.contains(others) == expected.contains(others)).all()
    assert tamis.load(path).to_bytes() == built.to_bytes()
    with pytest.raises(ValueError, match="capacity must be None for a Ribbon filter"):
        tamis.spark.build(users, "name", capacity=10, fpr=0.01)


def test_stacks_are_planned_for_all_shards(users: Any) -> None:
    import tamis.spark

    queries = [f"nobody{i % 1000 if i % 3 else i}" for i in range(30_000)]
    workload = tamis.Workload.from_queries(queries)
    built = tamis.spark.build(
        users, "name", filter=tamis.Stacked, workload=workload, bits_per_key=8, shards=2
    )
    assert built.contains(NAMES).all()
    plain = tamis.Sharded.build(NAMES, bits_per_key=8, shards=2)
    assert built.contains(queries).mean() < plain.contains(queries).mean()


def test_no_rows(spark: Any) -> None:
    import tamis.spark

    for shards in (1, 4):
        built = tamis.spark.build(spark.range(0), "id", fpr=0.01, shards=shards)
        assert len(built) == 0
        assert not built.contains([1, 2, 3]).any()
        assert tamis.spark.keep(spark.range(5), "id", built).count() == 0


def test_keep_gives_the_rows_that_the_filter_accepts(users: Any, tmp_path: Path) -> None:
    import tamis.spark

    some = [f"user{i}" for i in range(0, 20_000, 7)]
    built = tamis.Ribbon.build(some, fpr=0.05)
    accepted = set(built.contains(NAMES).nonzero()[0].tolist())
    path = tmp_path / "some.tamis"
    built.save(path)
    for filter in (built, path, str(path)):
        rows = tamis.spark.keep(users, "name", filter).select("id").distinct().collect()
        assert {row.id for row in rows} == accepted
    keyed = tamis.Ribbon.build(some, fpr=0.001, key=SECRET)
    rows = tamis.spark.keep(users, "name", keyed, key=secret_source()).distinct().collect()
    assert set(some) <= {row.name for row in rows}


def test_a_function_for_sql(spark: Any, users: Any) -> None:
    import tamis.spark

    built = tamis.Ribbon.build(range(100), fpr=0.001)
    tamis.spark.register(spark, "known_user", built)
    users.createOrReplaceTempView("log")
    expected = int(built.contains(NUMBERS).sum() + built.contains(range(3000)).sum())
    assert spark.sql("SELECT count(*) AS n FROM log WHERE known_user(id)").head().n == expected
    nulls = spark.sql("SELECT count(*) AS n FROM log WHERE id IS NULL AND NOT known_user(id)")
    assert nulls.head().n == 3


def test_a_semi_join_is_exact(spark: Any) -> None:
    import tamis.spark

    left = spark.range(0, 5000).selectExpr("concat('k', id % 500) as a", "id % 3 as b", "id as c")
    left = left.union(spark.sql("SELECT CAST(NULL AS string), 1L, 1L"))
    right = spark.range(0, 60).selectExpr("concat('k', id * 10) as a", "id % 3 as b", "1 as d")
    right = right.union(spark.sql("SELECT CAST(NULL AS string), 1L, 1"))
    for on in ("a", ["a", "b"]):
        names = [on] if isinstance(on, str) else on
        expected = left.join(right, names, "left_semi").collect()
        found = tamis.spark.semi_join(left, right, on, fpr=0.1, shards=2).collect()
        assert sorted(found, key=str) == sorted(expected, key=str)
        assert found
    other = right.selectExpr("a", "cast(b as int) as b")
    with pytest.raises(TypeError, match="'b' is bigint on the left and int on the right"):
        tamis.spark.semi_join(left, other, ["a", "b"])
    floats = left.selectExpr("cast(b as double) as b")
    with pytest.raises(TypeError, match="'b' is double"):
        tamis.spark.semi_join(floats, floats, "b")
    with pytest.raises(ValueError, match="on must be"):
        tamis.spark.semi_join(left, right, [])


@pytest.mark.parametrize("drift", [0, 300])
def test_a_workload_equals_that_of_one_process(spark: Any, drift: int) -> None:
    import tamis.spark

    draw = np.random.default_rng(4)
    log = draw.zipf(1.3, 5000) % 3000 + np.arange(5000) // 500 * drift
    keys = np.arange(0, 6000, 20)
    local = tamis.Workload.from_queries(log, keys=keys)
    rows = [(int(value), i) for i, value in enumerate(log)]
    df = spark.createDataFrame([*rows, (None, 5000)], "key long, at long").repartition(3)
    stored = spark.createDataFrame([(int(key),) for key in keys], "key long")
    found = tamis.spark.workload(df, "key", keys=stored, order_by="at")
    assert dict(zip(found.values.to_pylist(), found.counts.tolist(), strict=True)) == dict(
        zip(local.values.tolist(), local.counts.tolist(), strict=True)
    )
    assert (np.diff(found.counts) <= 0).all()
    assert (found.removed, found.present) == (local.removed, local.present)
    assert found.unseen_method == local.unseen_method
    assert found.unseen == pytest.approx(local.unseen, rel=0.02)
    assert found.discount == pytest.approx(local.discount)

    unordered = tamis.spark.workload(df, "key", keys=stored)
    assert unordered.unseen_method == "leave-one-out"
    few = tamis.spark.workload(df, "key", keys=stored, top=10)
    assert len(few) == 10
    total = int(local.counts.sum())
    assert few.unseen == pytest.approx(1 - local.counts[:10].sum() / total, rel=0.01)
    assert few.unseen_method == "not counted"
    empty = tamis.spark.workload(df.where("key < 0"), "key")
    assert (len(empty), empty.unseen) == (0, 1)


def test_names_of_columns_have_no_meaning(spark: Any) -> None:
    """Dots, backticks, and the names that tamis gives to columns of its own."""
    import tamis.spark

    names = [
        "a.b",
        "we`ird",
        "key",
        "value",
        "queries",
        "before",
        "at",
        "name",
        "part",
        "tamis_key",
    ]
    df = spark.range(100).selectExpr(
        *(f"id + {i} AS `{name.replace('`', '``')}`" for i, name in enumerate(names))
    )
    few = df.limit(10).coalesce(1).cache()
    local = tamis.Ribbon.build(range(1, 101), fpr=0.001)
    for column in names[:2]:
        start = names.index(column)
        built = tamis.spark.build(few, column, fpr=0.001, shards=1)
        assert built.contains(range(start, start + 10)).all()
        kept = tamis.spark.keep(df, column, local).count()
        assert kept == local.contains(range(start, start + 100)).sum()
        sets = tamis.spark.build(few, column, by=names[1 - start])
        assert len(sets) == 10
    # Columns that have the names of tamis are kept as they are, and may be joined on.
    for on in ("we`ird", ["tamis_key", "key"]):
        joined = tamis.spark.semi_join(df, few, on, shards=1).collect()
        assert sorted(joined[0].asDict()) == sorted(names)
        rows = {tuple(row.asDict()[name] for name in names) for row in joined}
        assert rows == {tuple(row) for row in few.collect()}
        assert len(joined) == 10
    for column, order_by in (("a.b", "we`ird"), ("queries", "before"), ("value", "value")):
        log = tamis.spark.workload(df, column, keys=few, order_by=order_by)
        assert (len(log), log.removed) == (90, 10)


def refused(error: Any, message: str, call: Any, *arguments: Any, **options: Any) -> None:
    with pytest.raises(error, match=message):
        call(*arguments, **options)


def test_mistakes_are_found_before_a_task_runs(spark: Any, users: Any, tmp_path: Path) -> None:
    import tamis.spark
    from tamis.spark import build, index, keep, register, semi_join, workload

    which = "one of the columns, id, name, raw, not 'nam'"
    refused(ValueError, f"column must be {which}", build, users, "nam", fpr=0.01)
    refused(ValueError, f"column must be {which}", build, users, "nam", by="id")
    refused(ValueError, f"column must be {which}", workload, users, "nam")
    refused(ValueError, f"order_by must be {which}", workload, users, "id", order_by="nam")
    refused(TypeError, "df must be a Spark DataFrame, not a list", build, [1], "id", fpr=0.01)
    floats = users.selectExpr("cast(id as double) as id")
    collated = users.selectExpr("name COLLATE UTF8_LCASE AS id")
    ones = tamis.Ribbon.build([1], fpr=0.01)
    for wrong, kind in ((floats, "double"), (collated, "string collate UTF8_LCASE")):
        refused(TypeError, f"'id' is of type {kind}", build, wrong, "id", fpr=0.01)
        refused(TypeError, f"'id' is of type {kind}", keep, wrong, "id", ones)
        refused(TypeError, f"'id' is of type {kind}", workload, wrong, "id")

    refused(ValueError, "shards must be from 1 to", build, users, "id", fpr=0.01, shards=0)
    bloom: Any = {"filter": tamis.Bloom, "capacity": 10}
    for given in ({}, bloom, {"filter": tamis.Fuse, "shards": 1}):
        refused(ValueError, "^fpr must be", build, users, "id", fpr=7, **given)
    refused(ValueError, "exactly one of fpr or bits_per_key", build, users, "id")
    short = lambda: bytes(range(9, 12))  # noqa: E731
    refused(ValueError, "key must be 16 bytes, not 3", build, users, "id", fpr=0.01, key=short)
    refused(TypeError, "filter must be a class", build, users, "id", fpr=0.01, filter="ribbon")
    learned = tamis.LearnedBloom
    refused(TypeError, "cannot be built from hashes", build, users, "id", fpr=0.01, filter=learned)
    zipf = tamis.Workload.zipf(1.0, universe=1000)
    ignored = "workload must be None for a Ribbon filter"
    refused(ValueError, ignored, build, users, "id", fpr=0.01, workload=zipf)
    refused(TypeError, "'raw' is binary", build, users, "id", by="raw")
    refused(ValueError, "budget must be bytes", build, users, "id", by="id", budget="lots")

    missing = tmp_path / "missing.tamis"
    refused(FileNotFoundError, "missing", keep, users, "id", missing)
    sets = tamis.Collection.build({"a": [1]})
    refused(TypeError, "the path of a saved one, not a Collection", keep, users, "id", sets)
    keyed = tamis.Ribbon.build([1], fpr=0.01, key=SECRET)
    refused(tamis.IncompatibleError, "pass key=", keep, users, "id", keyed)
    refused(
        tamis.IncompatibleError, "key", register, spark, "f", keyed, key=lambda: bytes(range(1, 17))
    )

    numbers, names = users.select("id"), users.selectExpr("name AS id")
    refused(ValueError, "on must be one of the columns of right", semi_join, users, names, "name")
    refused(TypeError, "keys must be a Spark DataFrame", workload, users, "id", keys=[1])
    refused(ValueError, "column must be one of the columns of keys", workload, users, "raw",
            keys=numbers)  # fmt: skip
    refused(TypeError, "'id' is string in keys and bigint in df", workload, users, "id", keys=names)
    refused(TypeError, "'name' is of type string", workload, users, "id", order_by="name")
    narrow = users.selectExpr("cast(id AS int) AS id")  # the same keys as bigint
    assert workload(numbers, "id", keys=narrow).removed == 23_000

    refused(ValueError, "memory must be bytes", index, spark, "*", "id", missing, memory="lots")
    refused(ValueError, "^fpr must be", index, spark, "*", "id", missing, fpr=7)


def test_workers_in_other_processes(tmp_path: Path) -> None:
    """On a cluster of two workers everything that a task needs is pickled and sent."""
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import warnings
            warnings.simplefilter("ignore")
            import tamis, tamis.spark
            from pyspark.sql import SparkSession
            builder = SparkSession.builder.master("local-cluster[2,1,768]")
            for name, value in {OPTIONS!r}.items():
                builder = builder.config(name, value)
            spark = builder.config("spark.executor.memory", "512m").getOrCreate()
            spark.sparkContext.setLogLevel("ERROR")
            key = bytes(range(16))
            source = lambda: bytes(range(16))
            built = tamis.spark.build(spark.range(5000), "id", fpr=0.01, shards=4, key=source)
            local = tamis.Sharded.build(range(5000), fpr=0.01, shards=4, key=key)
            assert built.to_bytes() == local.to_bytes()
            kept = tamis.spark.keep(spark.range(2500, 20000), "id", built, key=source).count()
            assert kept == local.contains(range(2500, 20000)).sum(), kept
            print("as expected")
            """
        )
    )
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    out = subprocess.run(
        [sys.executable, str(script)], env=env, cwd=tmp_path, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert "as expected" in out.stdout, out.stdout + out.stderr


def test_a_secret_key_is_not_pickled(spark: Any, users: Any) -> None:
    import tamis.spark

    refused = pytest.raises(TypeError, match="key must be a function that returns the key")
    with refused:
        tamis.spark.build(users, "id", fpr=0.01, key=SECRET)
    filter = tamis.Ribbon.build([1], fpr=0.01, key=SECRET)
    for use in (
        lambda: tamis.spark.build(users, "id", fpr=0.01, key=lambda: SECRET),
        lambda: tamis.spark.build(users, "id", by="id", key=lambda: SECRET),
        lambda: tamis.spark.keep(users, "id", filter, key=lambda: SECRET),
        lambda: tamis.spark.register(spark, "f", filter, key=lambda: SECRET),
    ):
        with pytest.raises(ValueError, match="this one contains the key"):
            use()


@pytest.mark.parametrize("key", [None, SECRET])
@pytest.mark.parametrize("kind", ["auto", "sliced"])
def test_a_set_for_each_value_of_a_column(
    spark: Any, tmp_path: Path, key: bytes | None, kind: str
) -> None:
    import tamis.spark

    rows = spark.range(0, 6000).selectExpr("concat('user', id % 4000) as name", "id % 7 as day")
    nulls = spark.sql("SELECT 'lost' AS name, CAST(NULL AS long) AS day")
    rows = rows.union(nulls).union(spark.sql("SELECT CAST(NULL AS string), 3L"))
    sets: dict[str, list[str]] = {}
    for i in range(6000):
        sets.setdefault(str(i % 7), []).append(f"user{i % 4000}")
    sets["null"] = ["lost"]
    local = tamis.Collection.build(sets, path=tmp_path / "local", kind=kind, key=key)
    source = secret_source() if key else None
    for partitions in (1, 5):
        built = tamis.spark.build(
            rows.repartition(partitions), "name", by="day", kind=kind, key=source,
            path=tmp_path / "built",
        )  # fmt: skip
        assert (tmp_path / "built").read_bytes() == (tmp_path / "local").read_bytes()
        assert built.candidates("user5") == local.candidates("user5")
        assert built.candidates("lost") == ["null"]
    if kind == "auto":
        weights = {name: 5.0 if name == "3" else 1.0 for name in sets}
        few = tamis.spark.build(rows, "name", by="day", budget="5kB", utility=weights, key=source)
        assert few.size_in_bytes <= 5000
        assert few.candidates("user3")[0] == "3"
        empty = tamis.spark.build(rows.where("day = 9"), "name", by="day", key=source)
        assert len(empty) == 0
        with pytest.raises(ValueError, match="by must be one of the columns, name, day, not 'dya'"):
            tamis.spark.build(rows, "name", by="dya")
        with pytest.raises(ValueError, match="filter must be None with by"):
            tamis.spark.build(rows, "name", by="day", filter=tamis.Fuse)
        with pytest.raises(ValueError, match="fpr"):
            tamis.spark.build(rows, "name", by="day", fpr=7)


@pytest.mark.parametrize("columns", ["user", ["user", "rare"]])
def test_an_index_has_the_bytes_of_a_local_one(spark: Any, tmp_path: Path, columns: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    import tamis.spark

    for day in range(5):
        table = pa.table({"user": [f"u{i % 50 + day * 40}" for i in range(300)], "n": range(300)})
        if day == 3:  # most files lack this column
            table = table.append_column("rare", pa.array(range(300), pa.int16()))
        pq.write_table(table, tmp_path / f"{day}.parquet", row_group_size=100)
    source = tmp_path / "*.parquet"
    local = tamis.parquet.SkippingIndex.build(source, columns=columns, path=tmp_path / "local")
    built = tamis.spark.index(spark, source, columns, tmp_path / "built", memory="100kB")
    assert (tmp_path / "built").read_bytes() == (tmp_path / "local").read_bytes()
    assert built.row_groups({"user": "u90"}) == local.row_groups({"user": "u90"}) != []
    pq.write_table(pa.table({"user": ["later"]}), tmp_path / "later.parquet")
    assert built.scan({"user": "later"}).num_rows == 1
    with pytest.raises(FileNotFoundError, match="matches no files"):
        tamis.spark.index(spark, tmp_path / "none*", "user", tmp_path / "i")
    with pytest.raises(ValueError, match="columns must be among"):
        tamis.spark.index(spark, source, "nobody", tmp_path / "i")
