"""A signal ends long calls, and no thread that has the interpreter waits for a writer."""

import itertools
import signal
import subprocess
import sys
import threading
import unittest.mock
import warnings

import numpy as np
import pytest

import tamis

MANY = np.arange(4_000_000)


class Interrupted(Exception):
    pass


@pytest.fixture
def alarm():
    """Raises after a while, in the main thread."""

    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def forever(call):
    while True:
        call()


BUILDS = [tamis.Bloom, tamis.Fuse, tamis.Ribbon, tamis.Quotient, tamis.Cuckoo, tamis.Telescoping]


@pytest.mark.parametrize("cls", BUILDS, ids=lambda cls: cls.__name__)
def test_a_build_ends_within_its_native_calls(cls, alarm):
    """The signal comes early in the build: 20 million keys take the fastest kind longer."""
    keys = np.tile(MANY, 5)
    alarm(0.02)
    with pytest.raises(Interrupted):
        cls.build(keys, fpr=0.01)


@pytest.mark.parametrize("cls", [tamis.Cuckoo, tamis.Quotient, tamis.Telescoping, tamis.Bloom])
def test_an_update_that_is_interrupted_leaves_a_prefix(cls, alarm):
    f = cls(capacity=len(MANY) + 1, fpr=0.01)
    alarm(0.15)
    with pytest.raises(Interrupted):
        forever(lambda: f.update(MANY) if len(f) == 0 else f.contains(MANY))
    alarm(0)
    added = len(f) if cls is not tamis.Bloom else int(0.9 * len(f))
    assert f.contains(MANY[:added]).all()
    f.add(-1)
    assert -1 in f


LONG_CALLS = {
    "Windowed.update": lambda: tamis.Windowed(10**8, fpr=0.01).update,
    "Windowed.seen_many": lambda: tamis.Windowed(10**8, fpr=0.01).seen_many,
    "StableBloom.seen_many": lambda: tamis.StableBloom(10**7, fpr=0.01, fnr=0.1).seen_many,
    "Hashes.update": lambda: tamis.stores.Hashes().update,
}


@pytest.mark.parametrize("call", LONG_CALLS)
def test_a_long_insertion_ends_before_its_last_key(call):
    insert, keys = LONG_CALLS[call](), np.tile(MANY, 2)

    def interrupt(*_):
        if len(insert.__self__) > 0:  # the keys are hashed, and some are inserted
            raise Interrupted
        signal.setitimer(signal.ITIMER_REAL, 0.02)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        interrupt()
        with pytest.raises(Interrupted):
            insert(keys)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(insert.__self__) < len(keys)


def test_other_threads_run_while_a_stream_is_deduplicated():
    f, keys, counts = tamis.StableBloom(10**6, fpr=0.01, fnr=0.1), MANY[:2_000_000], set()
    writer = threading.Thread(target=f.seen_many, args=(keys,))
    writer.start()
    while writer.is_alive():
        counts.add(len(f))
    writer.join()
    assert len(counts - {0, len(keys)}) > 0


@pytest.mark.parametrize("cls", [tamis.Cuckoo, tamis.Telescoping, tamis.Quotient])
def test_readers_answer_while_a_batch_is_written(cls):
    """A thread that waited for the whole batch would see all of its keys, or none."""
    f = cls(capacity=3_000_000, fpr=0.01)
    keys, counts = np.arange(2_000_000), set()
    writer = threading.Thread(target=f.update, args=(keys,))
    writer.start()
    while writer.is_alive():
        counts.add(len(f))
        assert f.contains([1, 2]).shape == (2,)
    writer.join()
    assert len(f) == len(keys)
    assert len(counts - {0, len(keys)}) > 0


class Counted(str):
    """Knows how many of its kind there are, and how many there were at most."""

    alive = most = 0

    def __new__(cls, value):
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)
        return super().__new__(cls, value)

    def __del__(self):
        Counted.alive -= 1


ITERATOR_CALLS = {
    "Bloom.build": lambda keys: tamis.Bloom.build(keys, fpr=0.01),
    "Fuse.build": lambda keys: tamis.Fuse.build(keys, fpr=0.01),
    "Cuckoo.build": lambda keys: tamis.Cuckoo.build(keys, fpr=0.01),
    "contains": lambda keys: tamis.Bloom(10, fpr=0.01).contains(keys),
    "update": lambda keys: tamis.Quotient(10**6, fpr=0.01).update(keys),
    "Windowed.update": lambda keys: tamis.Windowed(10**5, fpr=0.01).update(keys),
    "Windowed.seen_many": lambda keys: tamis.Windowed(10**5, fpr=0.01).seen_many(keys),
    "StableBloom.seen_many": lambda keys: tamis.StableBloom(9, fpr=0.1, fnr=0.1).seen_many(keys),
    "Telescoping.update": lambda keys: tamis.Telescoping(10**6, fpr=0.01, seed=0).update(keys),
    "Hashes.update": lambda keys: tamis.stores.Hashes().update(keys),
    "hash_keys": tamis.hash_keys,
    "split": lambda keys: tamis.split(keys, 3),
}


@pytest.mark.parametrize("call", ITERATOR_CALLS)
def test_keys_of_an_iterator_are_not_kept(call):
    Counted.alive = Counted.most = 0
    ITERATOR_CALLS[call](Counted(i) for i in range(100_000))
    assert Counted.most < 10


def test_queries_of_an_iterator_are_counted_in_pieces():
    """Pieces and the distinct queries are held, not the whole log."""
    Counted.alive = Counted.most = 0
    w = tamis.Workload.from_queries(Counted(i % 1000) for i in range(300_000))
    assert Counted.most < 150_000  # the last piece and the next one
    whole = tamis.Workload.from_queries([str(i % 1000) for i in range(300_000)])
    assert w.head(10) == whole.head(10)
    assert (w.unseen, w.psi(100)) == (whole.unseen, whole.psi(100))


def unread(keys):
    yield from keys
    pytest.fail("the iterator was read to its end")


@pytest.mark.parametrize("cls", [tamis.Cuckoo, tamis.Telescoping])
def test_an_endless_iterator_ends_where_it_no_longer_fits(cls):
    """Each piece is inserted before the next one is read; pieces that were inserted stay."""
    f = cls(100_000, fpr=0.01)
    with pytest.raises(tamis.CapacityError):
        f.update(unread(range(1_000_000)))
    assert f.contains(range(len(f))).all()
    assert 50_000 < len(f) < 200_000


def test_an_iterator_with_a_wrong_key_leaves_whole_pieces():
    f, piece = tamis.Quotient(10**6, fpr=1e-6), 1 << 16
    with pytest.raises(TypeError, match=rf"keys\[{piece + 5}\] is None"):
        f.update(iter([*range(piece + 5), None]))
    assert len(f) == piece
    with pytest.raises(TypeError, match=rf"keys\[{piece}\] is 'a', text"):
        f.update(iter([*range(piece), "a"]))
    for keys in ([*range(piece + 5), None], (*range(piece + 5), None)):
        before = f.to_bytes()
        with pytest.raises(TypeError):
            f.update(keys)
        assert f.to_bytes() == before


class Itself:
    """Has every method by which a batch is recognized, and each returns the object."""

    mask = None

    def filled(self, *_):
        return self

    def tolist(self):
        return self

    def __iter__(self):
        return iter(self.tolist())


class Endless:
    """Has items without end, none of which is a key."""

    def __getitem__(self, index):
        return self


def test_odd_batches_are_refused_at_their_first_item():
    f, g = tamis.Bloom(100, fpr=0.01), tamis.Guard(tamis.stores.Memory())
    odd = [unittest.mock.Mock(), Endless(), itertools.repeat(None), itertools.repeat(1.5), Itself()]
    for keys in odd:
        for use in (f.contains, f.update, tamis.hash_keys, g.get_many):
            with pytest.raises((TypeError, RecursionError)):
                use(keys)
    with pytest.raises(TypeError, match=r"keys\[0\] is None"):
        f.contains(itertools.repeat(None))
    g.close()


def test_kinds_that_never_match_are_reported_once_and_mixed_keys_are_not():
    text, numbers = [f"host-{i}" for i in range(2000)], list(range(5000))
    with pytest.warns(tamis.KeyKindWarning, match="keys are text and the queries are numbers"):
        w = tamis.Workload.from_queries(numbers * 3, keys=text)
    with pytest.warns(tamis.KeyKindWarning, match="values of the workload are numbers") as warned:
        tamis.Stacked.build(text, w, bits_per_key=10)
    assert len(warned) == 1
    plan = tamis.plan(len(text), w, bits_per_key=10)
    with pytest.warns(tamis.KeyKindWarning):
        plan.build(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = tamis.Workload.from_queries(np.array(numbers * 3), keys=np.array([-1], np.int8))
        tamis.Stacked.build([-1, -2], same, bits_per_key=10)
        plan.build(iter(text), negatives=["a"])
        f = tamis.Bloom(10, fpr=1e-9)
        f.add(1)
        f.add("1")
        assert 1 in f
        assert "1" in f


def test_no_native_call_runs_python_code_of_numpy_first():
    """A signal in it would be a panic, so its functions are looked up when tamis is imported."""
    code = (
        "import numpy.lib, tamis\n"
        "def interrupted(*_): raise KeyboardInterrupt\n"
        "numpy.lib.NumpyVersion.__init__ = interrupted\n"
        "print(tamis.Bloom(10, fpr=0.1).contains([1]))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("[False]\n", "")
