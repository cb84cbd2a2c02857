"""Frames that lie, through everything Python offers: python fuzz/frames.py [SECONDS [SEED]].

Takes the golden files apart, changes a field of the frame or of a frame within it, and puts it
together with right checksums. What comes out must be refused with an error of tamis, or be safe to
use. It reaches what the native fuzzer does not: collections, text, classifiers, plans. A failure
prints the seed that repeats it; after a crash it is in fuzz/artifacts/seed.
"""

import faulthandler
import os
import random
import resource
import signal
import struct
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
sys.path.insert(0, str(ROOT / "tests"))

import tamis  # noqa: E402
from reference import frame, parts  # noqa: E402
from tamis.learned import Model  # noqa: E402

FRAME, COLLECTION, TEXT = 3, 16, 18
REFUSED = (tamis.TamisError, MemoryError)
KEYS = [*range(60), "ada", "\x00", "x" * 300]
ROWS = np.arange(-20, 20).reshape(20, 2)


def number(rng, near):
    """A number near another, or where arithmetic ends."""
    choices = (near + 1, near - 1, near ^ 1 << rng.randrange(64), rng.randrange(100))
    edges = (0, 2**31, 2**32 - 1, 2**48, 2**63, 2**64 - 1, 1 << rng.randrange(64))
    return rng.choice((*choices, *edges)) % 2**64


def change_bytes(rng, content):
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            del changed[at : at + rng.choice((1, 8, 64))]
        elif kind == 1:
            changed[at:at] = rng.randbytes(rng.choice((1, 8, 64)))
        elif at < len(changed):
            changed[at] = rng.choice((0, 255, changed[at] ^ 1 << rng.randrange(8)))
    return bytes(changed)


def is_frame(content):
    try:
        return frame(*parts(content)) == content
    except struct.error:
        return False


def change(rng, data):
    """A frame with something changed, and right checksums."""
    kind, hash_id, tag, count, capacity, values, contents = parts(data)
    contents = [tuple(section) for section in contents]
    choice = rng.randrange(10)
    if choice == 0:
        count, capacity = number(rng, count), rng.choice((capacity, number(rng, capacity)))
    elif choice == 1:
        kind = rng.choice((kind, rng.randrange(1, 20)))
        hash_id = rng.choice((hash_id, rng.randrange(4)))
    elif choice in (2, 3, 4) and values:
        at = rng.randrange(len(values))
        values[at] = number(rng, values[at])
    elif choice == 5:
        values = values[:-1] if rng.random() < 0.5 else [*values, number(rng, 0)]
    elif contents:
        at = rng.randrange(len(contents))
        type_, piece, content = contents[at]
        if choice == 6:
            contents[at] = rng.choice(((rng.randrange(1, 12), piece), (type_, rng.randrange(16))))
            contents[at] += (content,)
        elif choice == 7 and rng.random() < 0.5:
            del contents[at]
        elif choice == 7:
            contents.insert(rng.randrange(len(contents)), contents[at])
        elif type_ == FRAME and is_frame(content):
            contents[at] = type_, piece, change(rng, content)
        else:
            contents[at] = type_, piece, change_bytes(rng, content)
    return frame(kind, hash_id, tag, count, capacity, values, contents)


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
    c.allocate(budget=max(c.least_budget, 100))
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


def use(data, folder):
    """Open a frame and use it; return how that ended."""
    kind = int.from_bytes(data[10:12], "little")
    try:
        if kind in (COLLECTION, TEXT):
            path = folder / "frame"
            path.write_bytes(data)
            (use_collection if kind == COLLECTION else use_text)(path, folder / "again")
        else:
            use_filter(tamis.from_bytes(data))
    except REFUSED as error:
        return type(error).__name__
    return "used"


def fuzz(seconds, seed):
    warnings.simplefilter("ignore", tamis.CapacityWarning)
    corpus = [path.read_bytes() for path in sorted((ROOT / "tests" / "golden").glob("*.tamis"))]
    corpus = [data for data in corpus if is_frame(data)]  # an index is more than a frame
    ends, until = Counter(), time.monotonic() + seconds
    (ROOT / "fuzz" / "artifacts").mkdir(exist_ok=True)
    note = os.open(ROOT / "fuzz" / "artifacts" / "seed", os.O_WRONLY | os.O_CREAT)
    with tempfile.TemporaryDirectory() as name:
        while time.monotonic() < until:
            rng = random.Random(seed)
            data = rng.choice(corpus)
            for _ in range(rng.choice((1, 1, 1, 2, 4))):
                data = change(rng, data)
            signal.alarm(60)  # nothing of this size takes so long
            os.pwrite(note, b"%d\n" % seed, 0)  # for a crash that ends the process
            try:
                ends[use(data, Path(name))] += 1
            except BaseException:
                traceback.print_exc()
                print(f"fuzz/frames.py 0 {seed} repeats this", file=sys.stderr)
                raise SystemExit(1) from None
            seed += 1
            if seconds == 0:
                break
    print(f"{sum(ends.values()):,} frames:", ", ".join(f"{n:,} {e}" for e, n in ends.items()))


if __name__ == "__main__":
    faulthandler.enable()
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("it hangs")))
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))
    arguments = [*sys.argv[1:], "60"][:1] + sys.argv[2:]
    first = int(arguments[1]) if len(arguments) > 1 else time.time_ns() // 1000
    fuzz(float(arguments[0]), first)
