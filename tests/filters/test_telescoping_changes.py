"""Telescoping filters that grow, merge and are used by many threads."""

import threading
from collections import Counter

import numpy as np
import pytest
from reference import hash_key
from telescopes import SHAPES, ask, shapes

import tamis
from tamis.stores import Hashes


def test_a_long_random_run():
    """Against a set: keys come, go and are asked for, in a filter that is always nearly full."""
    random = np.random.default_rng(11)
    for cls, selectors in SHAPES:
        f = cls(4000, fpr=2**-5, selectors=selectors, seed=9)
        remote, held = Hashes(seed=9), set()
        for step in range(60):
            new = {int(k) for k in random.integers(0, 50_000, 400)} - held
            keys = np.array(sorted(new))
            f.update(keys, remote)
            remote.update(keys)
            held |= new
            asked = random.integers(0, 50_000, 6000)
            ask(f, remote, asked[~np.isin(asked, np.array(sorted(held)))])
            while len(held) > 3900:
                key = held.pop()
                remote.remove(key)
                f.remove(key, remote)
            if step % 20 == 19:
                f = tamis.from_bytes(f.to_bytes())
            assert f.contains(np.array(sorted(held))).all(), (cls, selectors, step)
            assert len(f) == len(held) == len(remote)


def test_growth_keeps_keys_fixes_and_rate():
    n = 4000
    f = tamis.Telescoping.build(range(n), fpr=2**-8, seed=6)
    remote = Hashes(range(n), seed=6)
    asked = np.arange(n, 60 * n)
    for _ in range(3):
        ask(f, remote, asked)
    bits, moved = f.remainder_bits, f.steps[1:].sum()
    fixed = asked[~f.contains(asked)]
    f.grow(remote)
    assert (f.capacity, f.remainder_bits, f.steps[1:].sum()) == (2 * n, bits, moved)
    assert f.contains(range(n)).all()
    assert f.contains(fixed).mean() < 0.0005
    f.update(range(10**6, 10**6 + n), remote)
    assert f.expected_fpr < 2**-8
    with pytest.raises(tamis.CapacityError, match="9000 more keys exceed its capacity"):
        f.update(range(9000))
    f.update(range(9000), remote)
    assert f.capacity == 4 * 2 * n // 2


@shapes
def test_growth_while_others_insert_takes_no_slot_from_a_key(cls, selectors):
    """Whoever inserts lists it first: what is listed and not yet inserted must take no slot."""
    for seed in range(12):
        f, remote = cls(60, fpr=0.3, selectors=selectors, seed=seed), Hashes(seed=seed)
        f.update(range(60))
        remote.update(range(60))
        for _ in range(2):
            ask(f, remote, np.arange(100, 400))
        coming = np.arange(1000, 1060)
        remote.update(coming)
        f.grow(remote)
        assert f.contains(range(60)).all()
        f.update(coming, remote)
        assert f.contains(coming).all()
        # A ghost is left of a coming key that fitted another's slot and no other.
        assert len(remote) <= len(f) < len(remote) + len(coming)
        for key in range(60):
            remote.remove(key)
            f.remove(key, remote)
        assert f.contains(coming).all()


def test_ghosts_are_left_alone_and_harm_nobody():
    """Puts that were never committed stay as slots; what is stored still adapts around them."""
    n = 3000
    f = tamis.Telescoping(n, fpr=2**-4, seed=8)
    f.update(range(n))
    stored = np.arange(0, n, 2)
    remote = Hashes(stored, seed=8)
    asked = np.arange(n, 20 * n)
    for _ in range(5):
        ask(f, remote, asked)
    assert f.contains(stored).all()
    assert len(f) == n
    ghosts = np.arange(1, n, 2)
    assert f.contains(ghosts).mean() > 0.9


def test_a_key_that_fits_two_slots_is_removed_with_the_remote():
    f = tamis.Telescoping.build(range(2000), fpr=0.3, seed=1)
    remote = Hashes(range(2000), seed=1)
    for _ in range(4):
        ask(f, remote, np.arange(2000, 8000))
    ambiguous = 0
    for key in range(0, 1000):
        remote.remove(key)
        try:
            f.remove(key)
        except ValueError:
            ambiguous += 1
            with pytest.raises(ValueError, match="pass remote="):
                f.remove(key)
            f.remove(key, remote)
    assert ambiguous > 0
    assert f.contains(range(1000, 2000)).all()
    assert len(f) == 1000
    with pytest.raises(KeyError):
        f.remove(1500, remote)  # the store still has it
    with pytest.raises(KeyError):
        tamis.Telescoping(10, fpr=0.1).remove("nothing", remote)


def test_many_threads_on_one_filter():
    """Whoever inserts lists it first, so that nobody who adapts takes its slot for another's."""
    n = 20_000
    f = tamis.Telescoping(n, fpr=2**-4, seed=2)
    denied, done = [], threading.Event()
    remote = Hashes(seed=2)

    def adapt(start):
        while not done.is_set():
            ask(f, remote, np.arange(start, start + 20_000), batch=2000)

    askers = [threading.Thread(target=adapt, args=(10**6 * (i + 1),)) for i in range(2)]
    for asker in askers:
        asker.start()
    for start in range(0, n, 200):
        keys = np.arange(start, start + 200)
        remote.update(keys)
        f.update(keys)
        if not f.contains(np.arange(start + 200)).all():
            denied.append(start)
    done.set()
    for asker in askers:
        asker.join()
    assert not denied
    assert f.contains(np.arange(n)).all()
    assert f.steps[1:].sum() > 0


def test_secret_by_default():
    one, two = tamis.Telescoping(10, fpr=0.1), tamis.Telescoping(10, fpr=0.1)
    assert one.seed != two.seed
    assert tamis.Telescoping(10, fpr=0.1, key=bytes(16)).seed is None


def test_bad_arguments_and_bad_remotes():
    with pytest.raises(
        ValueError, match="selectors must be 'growing', 'block' or 'plain', not 'some'"
    ):
        tamis.Telescoping(10, fpr=0.1, selectors="some")
    with pytest.raises(ValueError, match="selectors must be 'growing' or 'block', not 'plain'"):
        tamis.Extending.build([1], fpr=0.1, selectors="plain")
    with pytest.raises(
        ValueError,
        match=r"bits_per_key must be at least 11\.84 .* not 9",
    ):
        tamis.Telescoping(10_000, bits_per_key=9, selectors="plain")
    f = tamis.Telescoping.build(range(1000), fpr=0.3, seed=1)
    wrong = next(key for key in range(1000, 2000) if key in f)

    class Bad:
        def __init__(self, answer):
            self.answer = answer

        def run(self, low, high):
            assert 0 <= low <= high < 2**64
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        def scan(self):
            yield self.run(0, 1)

    before = f.to_bytes()
    for answer in ([], np.zeros((2, 3), np.uint64), np.zeros((1, 2)), None):
        for call in (
            lambda bad: f.adapt(wrong, bad),
            lambda bad: f.adapt_many([wrong], bad),
            lambda bad: f.remove(3, bad),
            lambda bad: f.grow(bad),
        ):
            with pytest.raises(
                TypeError,
                match=r"must return an array of uint64 of shape \(n, 2\)",
            ):
                call(Bad(answer))
    with pytest.raises(OSError, match="away"):
        f.adapt(wrong, Bad(OSError("away")))
    with pytest.raises(OSError, match="away"):
        f.update(range(5000), Bad(OSError("away")))
    with pytest.raises(TypeError, match="remote must have the methods run and scan"):
        f.adapt(wrong, None)
    assert f.to_bytes() == before
    assert not f.adapt(wrong, Bad(np.zeros((0, 2), np.uint64)))  # a slot that nobody owns
    assert f.to_bytes() == before
    backwards = Hashes(range(1000), seed=1).run(0, 2**64 - 1)[::-1]
    assert f.adapt(wrong, Bad(backwards))
    assert f.contains(range(1000)).all()


def test_hashes_as_a_remote():
    random, held = np.random.default_rng(3), Counter()
    table = Hashes(seed=4)
    for _ in range(40):
        for key in random.integers(0, 300, 60).tolist():
            if held[key] and random.random() < 0.5:
                table.remove(key)
                held[key] -= 1
            else:
                table.add(key)
                held[key] += 1
        expected = sorted(hash_key(key, 4) for key in held.elements())
        assert len(table) == len(expected)
        low, high = sorted(random.integers(0, 2**64, 2, dtype=np.uint64).tolist())
        run = sorted(map(tuple, table.run(low, high).tolist()))
        assert run == [hash for hash in expected if low <= hash[0] <= high]
    assert sorted(tuple(row) for part in table.scan() for row in part.tolist()) == expected
    with pytest.raises(KeyError):
        table.remove("not there")


@pytest.mark.parametrize("cls", [tamis.Telescoping, tamis.Extending])
def test_a_filter_merges_with_itself_while_it_grows(cls):
    keys = np.arange(3000)
    remote, small = Hashes(keys, seed=1), cls.build(keys, fpr=2**-6, seed=1)
    growing, failures, done = [small.copy()], [], threading.Event()

    def merge():
        while not done.is_set():
            f = growing[0]
            try:
                f | f
            except tamis.CapacityError:
                continue  # twice its keys do not fit
            except tamis.IncompatibleError as error:
                failures.append(error)

    merging = threading.Thread(target=merge)
    merging.start()
    for _ in range(60):
        growing[0] = small.copy()
        for _ in range(4):
            growing[0].grow(remote)
    done.set()
    merging.join()
    assert not failures


def test_a_remote_has_run_and_scan():
    f = tamis.Telescoping.build(range(100), fpr=0.1)
    wrong = next(key for key in range(1000, 10**6) if key in f)
    for call in (lambda: f.adapt(wrong, 5), lambda: f.adapt_many([wrong], "hashes")):
        with pytest.raises(TypeError, match=r"remote must have the methods run and scan, .*, not "):
            call()
