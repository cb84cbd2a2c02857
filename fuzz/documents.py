"""Containers (snapshots of guards, indexes, runs), parts of `tamis.split`, plans and workloads."""

import json
import math
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from mutate import change_frame, change_json, number_of

import tamis
from tamis.guard import snapshot
from tamis.parquet import SkippingIndex
from tamis.planning.plan import Plan

SEEDS = Path(__file__).parent / "seeds"
LAKE = {"user": [f"user {i % 7}" for i in range(60)], "n": range(60)}
KNOWN = tamis.Workload.from_queries([-1, -1, -2, -3] * 50)
SMALL = 1e7  # bits of a plan that is built
FILTERS = set(range(1, 16)) - {6}  # the numbers of kinds
SEEDED = 1  # the number of the hash without a secret key


def change_text(rng, data):
    return json.dumps(change_json(rng, json.loads(data))).encode()


def use_plan(data, _):
    plan = Plan.from_json(data.decode())
    assert Plan.from_json(plan.to_json()) == plan
    str(plan)
    assert plan.bits >= 0
    assert plan.rate_at(0.5) >= 0
    for layer in plan.layers:
        layer.coarser()
    if plan.bits < SMALL:
        built = plan.build(range(50), negatives=range(100, 300))
        assert built.contains(range(50)).all()


def use_workload(data, folder):
    columns = {"value": [5, 6, 7], "count": [3, 2, 1]}
    table = pa.table(columns).replace_schema_metadata({"tamis": data})
    pq.write_table(table, folder / "workload")
    workload = tamis.Workload.load(folder / "workload")
    str(workload)
    tamis.plan(100, workload, bits_per_key=10, layer="bloom", rates="equal")
    workload.save(folder / "again")


def seed_snapshot(frame, folder):
    snapshot.save(folder / "snapshot", tamis.from_bytes(frame), b"store", "7")
    return (folder / "snapshot").read_bytes()


def use_snapshot(data, folder):
    (folder / "snapshot").write_bytes(data)
    f, store, position = snapshot.load(folder / "snapshot", None)
    assert isinstance(store, bytes)
    assert isinstance(position, str)
    f.contains(range(60))


def seed_index(folder):
    """An index over two files in a folder of its own, of which one is removed."""
    lake = folder / "lake"
    lake.mkdir()
    for name in "ab":
        pq.write_table(pa.table(LAKE), lake / f"{name}.parquet", row_group_size=20)
    SkippingIndex.build(lake, columns=["user", "n"], path=lake / "index").remove(lake / "b.parquet")
    return (lake / "index").read_bytes()


def use_index(data, folder):
    path = folder / "lake" / "index"
    path.write_bytes(data)
    try:
        exercise(SkippingIndex.open(path, threads=1))
    except ValueError as error:  # which says what to do about another file or another column
        if not str(error).startswith(("source must be given: ", "utility must name a column")):
            raise


def exercise(index):
    query(index)
    assert index.size_in_bytes >= 0
    assert 0 <= index.expected_fpr <= 1
    assert math.isfinite(index.utility.sum())
    index.allocate(memory=10**6, utility="accesses")
    index.refresh()
    query(index)


def query(index):
    for where in [{name: None} for name in index.columns] + [{"n": 7}]:
        with suppress(TypeError if "n" in index.columns else ValueError):  # forged columns
            index.row_groups(where)
            assert index.scan(where, on_error="skip").num_rows >= 0


def seed_runs(folder):
    """A collection of kind "stacked"."""
    sets = {"old": range(200), "new": range(100, 150), "": range(3)}
    tamis.Collection.build(sets, kind="stacked", budget=2000, workload=KNOWN, path=folder / "runs")
    return (folder / "runs").read_bytes()


def use_runs(data, folder):
    path = folder / "runs"
    path.write_bytes(data)
    c = tamis.Collection.open(path)
    repr(c)
    assert c.expected_fpr >= 0
    c.candidates_many(range(60))
    c.candidates("ada")
    c.save(folder / "again")
    c.allocate(budget=max(c.min_budget, 5000), workload=KNOWN)
    assert c.size_in_bytes >= 0


def use_part(data, _):
    """Hashes that `tamis.split` made, for one shard of two."""
    shard = tamis.Ribbon.from_hashes(data, fpr=0.01)
    assert shard.to_bytes() == tamis.from_bytes(shard.to_bytes()).to_bytes()
    if isinstance(shard, tamis.Sharded):
        assert shard.contains([key for key in range(60) if key in shard]).all()


def seed_collections(folder):
    """Collections of kinds that no golden file has, and one that was merged."""
    sets = {f"set {i}": range(20 * i, 25 * i + 10) for i in range(6)}
    for kind in ("sliced", "ribbon", "segmented", "truncated"):
        tamis.Collection.build(sets, kind=kind, path=folder / "collection")
        yield (folder / "collection").read_bytes()
    parts = [tamis.Collection.build({name: keys}) for name, keys in sets.items()]
    tamis.Collection.merge(*parts, path=folder / "collection")
    yield (folder / "collection").read_bytes()


def more_frames(folder):
    """Frames that no golden file has."""
    yield from seed_collections(folder)
    shards = [tamis.Fuse.from_hashes(part, fpr=0.01) for part in tamis.split(range(100), 4)]
    yield tamis.Sharded.join(shards[1:3], partial=True).to_bytes()


def corpus(frames, folder):
    """Return what is changed, how, and how it is used then."""
    texts = [(path.name, path.read_bytes()) for path in sorted(SEEDS.iterdir())]
    found = [
        (text, change_text, use_plan if name.startswith("plan") else use_workload)
        for name, text in texts
    ]
    filters = [frame for frame in frames if number_of(frame) in FILTERS and frame[12] == SEEDED]
    found += [(seed_snapshot(each, folder), change_frame, use_snapshot) for each in filters[::8]]
    found += [(part, change_frame, use_part) for part in tamis.split(range(60), 2)]
    found += 4 * [(seed_runs(folder), change_frame, use_runs)]
    return [*found, *3 * [(seed_index(folder), change_frame, use_index)]]
