"""Files that lie, through everything Python offers: python fuzz/frames.py [SECONDS [SEED]].

Takes the golden files and `seeds/` apart, changes a field of a frame, of a frame within it or of a
JSON document, and puts it together with right checksums (`mutate.py`). What comes out must be
refused with an error of tamis, or be safe to use, within a minute of processor time and some
memory. It reaches what the native fuzzer does not: classifiers, collections, text, and the
containers of `documents.py`. A failure prints the seed that repeats it; after a crash it is in
fuzz/artifacts/seed.
"""

import faulthandler
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

import documents  # noqa: E402
from mutate import change_frame, number_of  # noqa: E402

import tamis  # noqa: E402
from tamis.learned import Model  # noqa: E402

COLLECTION, TEXT, RUNS, SKIPPING, SNAPSHOT = 16, 18, 20, 21, 22
MEMORY = 300 << 10  # kilobytes that one input may take; the largest file of the corpus has 12
KEYS = [*range(60), "ada", "\x00", "x" * 300]
ROWS = np.arange(-20, 20).reshape(20, 2)


def use_filter(f):
    assert len(f) >= 0
    repr(f)
    assert f.size_in_bits >= 0
    twin = tamis.from_bytes(f.to_bytes())
    assert twin.to_bytes() == f.to_bytes()
    if isinstance(f, Model):
        f.scores(KEYS if f.reads == "text" else ROWS)
        return
    if isinstance(f, tamis.StaticFunction):
        f.get(range(60))
        return
    assert f.expected_fpr >= 0
    assert f.fpr_bound >= 0
    answers = f.contains(range(60))
    assert (twin.contains(range(60)) == answers).all()
    assert [key in f for key in range(60)] == answers.tolist()
    if f.inserts:
        with suppress(ValueError):  # it may be full, or truncated
            twin.update(range(100))
            assert not f.one_sided or twin.contains(range(100)).all()
    if f.deletes:
        with suppress(KeyError, ValueError):
            for key in range(100):
                twin.remove(key)
    if hasattr(twin, "adapt_many"):
        mistakes = [key for key in range(1000, 1200) if key in twin]
        remote = () if isinstance(f, tamis.AdaptiveCuckoo) else (tamis.stores.Hashes([], seed=0),)
        twin.adapt_many(mistakes, *remote)


def use_collection(path, again):
    c = tamis.Collection.open(path)
    repr(c)
    assert c.expected_fpr >= 0
    c.candidates_many(range(60))
    c.candidates("ada")
    c.save(again)
    c.allocate(budget=max(c.min_budget, 100))
    c.candidates_many(range(60))


def use_text(path, again):
    own = int.from_bytes(path.read_bytes()[64:72], "little") == 0  # the parameter says which
    index = tamis.text.SearchIndex.open(path, tokenizer=str.split if own else None)
    repr(index)
    for query in ("sieve", "a drum", ""):
        index.search(query)
    index.save(again)
    index.allocate(budget="1MB")
    index.search("sieve")


def use_frame(data, folder):
    kind = number_of(data)
    if kind in (COLLECTION, TEXT):
        path = folder / "frame"
        path.write_bytes(data)
        (use_collection if kind == COLLECTION else use_text)(path, folder / "again")
    elif kind in CONTAINERS:
        CONTAINERS[kind](data, folder)
    else:
        use_filter(tamis.from_bytes(data))


CONTAINERS = {
    RUNS: documents.use_runs, SKIPPING: documents.use_index, SNAPSHOT: documents.use_snapshot
}  # fmt: skip


def result(use, data, folder):
    """Use a file and return how that ended; an error that is not of tamis is raised."""
    try:
        use(data, folder)
    except tamis.TamisError as error:
        return type(error).__name__
    except ValueError:
        if use is documents.use_plan:  # it comes from text, not from a file of tamis
            return "ValueError"
        raise
    return "used"


def memory():
    """The most memory that this process had, in kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def fuzz(seconds, seed):
    warnings.simplefilter("ignore", tamis.CapacityWarning)
    golden = [path.read_bytes() for path in sorted((ROOT / "tests" / "golden").glob("*.tamis"))]
    ends, until = Counter(), time.monotonic() + seconds
    (ROOT / "fuzz" / "artifacts").mkdir(exist_ok=True)
    note = os.open(ROOT / "fuzz" / "artifacts" / "seed", os.O_WRONLY | os.O_CREAT)
    with tempfile.TemporaryDirectory() as name:
        more = list(documents.more_frames(Path(name)))
        corpus = [(data, change_frame, use_frame) for data in golden + more]
        corpus += documents.corpus(golden, Path(name))
        for data, _, use in corpus:  # unchanged, which loads all that is loaded when it is used
            result(use, data, Path(name))
        while time.monotonic() < until or seconds == 0:
            rng = random.Random(seed)
            data, change, use = rng.choice(corpus)
            for _ in range(rng.choice((1, 1, 1, 2, 4))):
                data = change(rng, data)
            signal.setitimer(signal.ITIMER_PROF, 60)  # nothing of this size takes so long
            os.pwrite(note, b"%d\n" % seed, 0)  # for a crash that ends the process
            before = memory()
            try:
                ends[use.__name__.removeprefix("use_"), result(use, data, Path(name))] += 1
                assert memory() - before < MEMORY, f"it took {memory() - before:,} kilobytes"
            except BaseException:
                traceback.print_exc()
                print(f"fuzz/frames.py 0 {seed} repeats this", file=sys.stderr)
                raise SystemExit(1) from None
            signal.setitimer(signal.ITIMER_PROF, 0)
            seed += 1
            if seconds == 0:
                break
    for what in dict.fromkeys(what for what, _ in sorted(ends)):
        own = {end: n for (kind, end), n in ends.most_common() if kind == what}
        print(f"{what}: {sum(own.values()):,}:", ", ".join(f"{n:,} {e}" for e, n in own.items()))


if __name__ == "__main__":
    faulthandler.enable()
    signal.signal(signal.SIGPROF, lambda *_: (_ for _ in ()).throw(TimeoutError("it hangs")))
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))
    arguments = [*sys.argv[1:], "60"][:1] + sys.argv[2:]
    first = int(arguments[1]) if len(arguments) > 1 else time.time_ns() // 1000
    fuzz(float(arguments[0]), first)
