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
    """Less than one build is done when the signal comes, or the test takes very long."""
    keys = np.tile(MANY, 5)
    alarm(0.15)
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
