"""Public calls with little memory, in a process that ends there: `test_low_memory.py` starts it.

Each call of each kind runs under falling limits of address space (RLIMIT_AS). A call returns, or
raises an error that is honest; the process never ends by a signal and nothing panics.

Small allocations of a fixed size (messages, handles, objects of the interpreter) are exempt: a
few megabytes stay free in the heap for them, and only blocks from 64 KiB on come from the system.
"""

import gc
import io
import os
import pickle
import resource
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

import tamis
from tamis.filters import CLASSES
from tamis.planning.kinds import KINDS

# Blocks below glibc's threshold come from the heap, which keeps what was freed.
SETTINGS = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 16),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "OPENBLAS_NUM_THREADS": "1",
}
KEYS = 200_000
# Free pieces of the heap for small allocations, and their size: none is large enough for others.
PIECES, PIECE = 2000, 1 << 15
HONEST = (MemoryError, OSError, tamis.BuildError, tamis.CapacityError)


def kinds():
    """A filter of each kind that is built from keys and a rate, and of each kind made of others."""
    for kind in KINDS.values():
        if kind.sizes:
            for option in kind.options:
                arguments = dict(option.arguments)
                named = "-".join(str(value) for value in (kind.name, *arguments.values()))
                seed = {"seed": 0} if kind.adapts else {}
                yield named, CLASSES[kind.name], {"fpr": 0.01, **arguments, **seed}
    shape = tamis.Workload.zipf(1.0, universe=10**6, sample=10**5)
    known = {"workload": shape, "negatives": np.arange(10**9, 10**9 + 100_000), "fpr": 0.01}
    yield "sharded", tamis.Sharded, {"filter": tamis.Bloom, "shards": 5, "fpr": 0.01}
    yield "sharded-ribbon", tamis.Sharded, {"filter": tamis.Ribbon, "shards": 3, "fpr": 0.01}
    yield "stacked", tamis.Stacked, {**known, "layer": "bloom", "last": "alternating"}
    yield "stacked-exact", tamis.Stacked, {**known, "layer": "ribbon", "last": "exact"}
    yield "adaptive-stacked", tamis.AdaptiveStacked, {"workload": shape, "fpr": 0.01, "seed": 0}
    yield "windowed", tamis.Windowed, {"fpr": 0.01}
    yield "stable", tamis.StableBloom, {"fpr": 0.01, "fnr": 1e-4}


def filter_calls(build, keys, folder):
    """Every public call of a filter, by name; `made` is built before memory is scarce."""
    made = build()
    frame, path = made.to_bytes(), os.path.join(folder, "filter.tamis")
    listed, text = keys[:50_000].tolist(), keys[:50_000].astype("U12")
    pickled = pickle.dumps(made)
    made.save(path)
    yield "build", build
    yield "contains", lambda: made.contains(keys)
    yield "contains-list", lambda: made.contains(listed)
    yield "contains-text", lambda: made.contains(text)
    yield "to_bytes", made.to_bytes
    yield "from_bytes", lambda: tamis.from_bytes(frame)
    yield "from_bytearray", lambda: tamis.from_bytes(bytearray(frame))
    yield "save", lambda: made.save(os.path.join(folder, "saved.tamis"))
    yield "load", lambda: tamis.load(path)
    yield "load-mmap", lambda: tamis.load(path, mmap=True)
    yield "dumps", lambda: pickle.dumps(made)
    yield "loads", lambda: pickle.loads(pickled)
    for name in ("copy", "clear"):
        if hasattr(made, name):
            yield name, getattr(made, name)
    for name in ("update", "seen_many", "remove_many"):
        if hasattr(made, name):
            own = tamis.from_bytes(frame)
            yield name, lambda own=own, name=name: getattr(own, name)(keys)
    if hasattr(made, "__or__"):
        yield "merge", lambda: made | made


def other_calls(keys, folder):
    """Public calls that are not of one kind."""
    sets = {f"set-{i}": keys[i::20] for i in range(20)}
    made = tamis.Collection.build(sets, budget=1 << 20)
    path = os.path.join(folder, "collection.tamis")
    made.save(path)
    words = [f"word-{i}" for i in range(3000)]
    texts = {str(i): " ".join(words[i % 50 :: 1 + i % 7]) for i in range(300)}
    index = tamis.text.SearchIndex.build(texts)
    queries = np.repeat(np.arange(10**9, 10**9 + keys.size // 4), 2)
    parts = tamis.split(keys, 3)
    yield "hash_keys", lambda: tamis.hash_keys(keys)
    yield "split", lambda: tamis.split(keys, 3)
    yield "from_hashes", lambda: tamis.Ribbon.from_hashes(parts[0], fpr=0.01)
    yield "collection-build", lambda: tamis.Collection.build(sets, budget=1 << 20)
    yield "collection-open", lambda: tamis.Collection.open(path, budget=1 << 20)
    yield "collection-save", lambda: made.save(os.path.join(folder, "again.tamis"))
    yield "collection-many", lambda: made.candidates_many(keys[:50_000])
    yield "collection-candidates", lambda: made.candidates(keys[0])
    yield "text-build", lambda: tamis.text.SearchIndex.build(texts)
    yield "text-search", lambda: index.search("word-1 word-2")
    yield "text-save", lambda: index.save(os.path.join(folder, "text.tamis"))
    yield "text-texts", lambda: [index.text(str(i)) for i in range(300)]
    yield "text-open", lambda: tamis.text.SearchIndex.open(os.path.join(folder, "text.tamis"))
    yield "workload", lambda: tamis.Workload.from_queries(queries, keys=keys)
    yield "workload-generator", lambda: tamis.Workload.from_queries(map(int, queries), keys=keys)
    yield "dedup", lambda: list(tamis.dedup(keys[:20_000].tolist(), window=10_000))
    yield "update-generator", lambda: tamis.Bloom(KEYS, fpr=0.01).update(map(int, keys))
    yield "contains-wide-text", lambda: tamis.Bloom(9, fpr=0.01).contains(WIDE)
    yield from hashes_calls(keys)
    yield from learned_calls(folder)
    yield from lake_calls(folder)
    yield "guard-close", lambda: guard_with_snapshot(keys[:50_000], folder)


# One key of many characters, which has to be copied to be hashed.
WIDE = np.array(["x" * 300_000, "y"])


def hashes_calls(keys):
    """Calls of a table of hashes."""
    stored = tamis.stores.Hashes(keys)
    own = tamis.stores.Hashes()
    yield "hashes-build", lambda: tamis.stores.Hashes(keys)
    yield "hashes-update", lambda: own.update(keys)
    yield "hashes-run", lambda: stored.run(0, 2**62)
    yield "hashes-scan", lambda: list(stored.scan())


def learned_calls(folder):
    """Calls of filters that have a classifier of text."""
    rng = np.random.default_rng(1)
    letters = np.array(list("abcdefghijkl"))
    keys, others, few = (
        ["".join(row) for row in rng.choice(letters[part], (n, 12))]
        for part, n in ((slice(8), 20_000), (slice(4, 12), 20_000), (slice(4, 12), 2000))
    )
    model = tamis.learned.train(keys[:1000], few, kind="logistic", buckets=64)
    plan = tamis.StableLearned.plan(
        model.scores(keys[1000:3000]), model.scores(few), bits=2**20, fpr=0.05, gap=10_000
    )
    builds = {
        "learned": lambda: tamis.LearnedBloom.build(keys, nonmembers=others, model=model, fpr=0.01),
        "stable-learned": lambda: tamis.StableLearned(model, plan),
    }
    for name, build in builds.items():
        made = build()
        frame, pickled = made.to_bytes(), pickle.dumps(made)
        yield f"{name}-build", build
        yield f"{name}-contains", lambda made=made: made.contains(keys)
        yield f"{name}-to_bytes", made.to_bytes
        yield f"{name}-from_bytes", lambda frame=frame: tamis.from_bytes(frame)
        yield f"{name}-save", lambda made=made: made.save(os.path.join(folder, "learned.tamis"))
        yield f"{name}-loads", lambda pickled=pickled: pickle.loads(pickled)
        if hasattr(made, "seen_many"):
            yield f"{name}-seen_many", lambda made=made: made.seen_many(keys)
    yield "model-scores", lambda: model.scores(keys)
    yield "grams", lambda: tamis.learned.train(keys[:5000], few, kind="logistic", buckets=64)


def lake_calls(folder):
    """Calls of an index of Parquet files, if pyarrow is there; its own memory is not tamis's."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return
    from tamis.parquet import SkippingIndex

    lake = Path(folder) / "lake"
    lake.mkdir()
    for i in range(3):
        column = np.arange(i * 20_000, (i + 1) * 20_000)
        pq.write_table(pa.table({"k": column}), lake / f"{i}.parquet", row_group_size=5000)
    path = lake / "index.tamis"
    index = SkippingIndex.build(lake / "*.parquet", columns=["k"], path=path)
    yield "lake-open", lambda: SkippingIndex.open(path)
    yield "lake-row_groups", lambda: index.row_groups({"k": list(range(0, 60_000, 7))})


def guard_with_snapshot(keys, folder):
    """Fill a guard, and close it, which writes its snapshot."""
    guard = tamis.Guard(tamis.stores.Memory(), snapshot=os.path.join(folder, "guard.tamis"))
    guard.put_many(dict.fromkeys(keys.tolist(), b""))
    guard.close()


def limited(bytes_):
    """Allow this much more address space than the process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + bytes_
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def outcome(call, bytes_):
    gc.collect()
    limited(bytes_)
    try:
        call()
        return "ok"
    except HONEST as error:
        return type(error).__name__
    except BaseException as error:  # a panic is not an Exception
        return f"WRONG {type(error).__module__}.{type(error).__name__}: {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)


def main(wanted, steps):
    warnings.simplefilter("ignore")
    keys = np.arange(KEYS)
    with tempfile.TemporaryDirectory() as folder:
        for name, calls in cases(keys, folder):
            if wanted not in (name, "filters" if name != "others" else None):
                continue
            for call, run in calls:
                try:  # once with enough memory, so that imports and caches are not in the way
                    run()
                except ValueError:
                    continue  # this kind cannot, or it is full
                kept = in_pieces()
                for step in steps:
                    print(name, call, step, flush=True, end=" ")
                    print(outcome(run, step), flush=True)
                del kept


def in_pieces():
    """Fill the heap, then leave every other piece of it free for small allocations."""
    return [bytearray(PIECE) for _ in range(PIECES)][::2]


def cases(keys, folder):
    for name, cls, arguments in kinds():
        build = lambda cls=cls, arguments=arguments: cls.build(keys, **arguments)  # noqa: E731
        yield name, filter_calls(build, keys, folder)
    yield "others", other_calls(keys, folder)


if __name__ == "__main__":
    sys.stdout = io.TextIOWrapper(sys.stdout.buffer, line_buffering=True)
    main(sys.argv[1], [int(step) for step in sys.argv[2:]])
