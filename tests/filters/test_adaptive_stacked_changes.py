"""What adaptive stacks never do, keep and refuse."""

import operator
import threading

import numpy as np
import pytest
from adaptive_stacks import KINDS, SHAPE, UNIVERSE, _quotient, _version
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from reference import Stacked as Twin
from reference import frame, hash_key, parts
from stand_in import tiny

import tamis
from tamis import _native
from tamis.planning import bloom
from tamis.planning.adaptive_stacked import (
    AdaptivePlan,
)
from tamis.planning.stacked.frequencies import Steps, Zipf
from tamis.planning.stacked.lifetime import (
    shape,
)
from tamis.stores import Hashes


class Against(RuleBasedStateMachine):
    """Any mix of changes, with so coarse layers that everything collides, against a set."""

    @initialize(
        kind=st.sampled_from(KINDS), fine=st.sampled_from([1, 2, 3]), seed=st.integers(0, 9)
    )
    def begin(self, kind, fine, seed):
        self.f, self.seed = tiny(kind, fine=fine, seed=seed), seed
        self.remote, self.held = Hashes(seed=seed), set()

    @rule(keys=st.sets(st.integers(0, 150), max_size=12))
    def put(self, keys):
        new = sorted(keys - self.held)
        self.f.update(new)
        self.remote.update(new)
        self.held |= keys

    @rule(key=st.integers(0, 150))
    def delete(self, key):
        if key in self.held and self.f.deletes:
            self.held.remove(key)
            self.remote.remove(key)
            self.f.remove(key, self.remote)

    @rule(start=st.integers(200, 4000))
    def ask(self, start):
        wrong = [key for key in range(start, start + 150) if key in self.f]
        self.f.adapt_many(wrong, self.remote)

    @rule(start=st.integers(200, 4000), keys=st.sets(st.integers(0, 150), max_size=6))
    def ask_while_keys_come(self, start, keys):
        """The scan is under way when they do; the store lists them then, or does not."""
        machine = self

        class Slow:
            def scan(self):
                for part in machine.remote.scan():
                    half = len(part) // 2
                    yield part[:half]
                    machine.put(set(sorted(keys)[::2]))
                    yield part[half:]
                machine.put(set(sorted(keys)[1::2]))

        self.f.adapt_many(range(start, start + 150), Slow())

    @rule(start=st.integers(200, 4000))
    def a_scan_that_fails(self, start):
        class Broken:
            def scan(self):
                yield np.zeros((1, 2), np.uint64)
                raise OSError("gone")

        before = len(self.f.layers)
        try:
            self.f.adapt_many(range(start, start + 150), Broken())
        except OSError:
            assert len(self.f.layers) == before

    @rule()
    def adapt_to_keys_that_are_there(self):
        self.f.adapt_many(np.array(sorted(self.held), dtype=int), self.remote)

    @rule(again=st.booleans())
    def give_up_layers(self, again):
        version = _version(self.f)
        layer = _bloom(60, 0)
        assert self.f._drop_behind_first(version, layer, 6)
        assert not self.f._drop_behind_first(version, layer, 6)

    @rule()
    def take_another_first_layer(self):
        version = _version(self.f)
        first = _quotient(128, 2, 100) if self.f.deletes else _bloom(300, 100)
        plan = self.f.plan.to_json()
        filling = _bloom(60, 0)
        self.f._fill_from_scan(version, first, self.remote, 0.0, filling, 6, plan)
        assert len(self.f.layers) == 1

    @rule(how=st.sampled_from(["bytes", "copy"]))
    def save_and_load(self, how):
        data = self.f.to_bytes()
        self.f = tamis.from_bytes(data) if how == "bytes" else self.f.copy()
        assert self.f.to_bytes() == data

    @invariant()
    def denies_no_key(self):
        if hasattr(self, "f"):
            held = sorted(self.held)
            assert self.f.contains(held).all()
            assert all(key in self.f for key in held[:5])


Against.TestCase.settings = settings(
    max_examples=settings.default.max_examples, stateful_step_count=30, deadline=None
)


TestAgainst = Against.TestCase


@pytest.mark.parametrize("kind", KINDS)
def test_the_twin_answers_alike(kind):
    """In every generation: the twin is a stack of the same keys and collected negatives."""
    keys = range(80)
    f, remote = tiny(kind, depth=3, keys=keys), Hashes(keys)
    for generation in range(3):
        asked = np.arange(1000 * generation + 1000, 1000 * generation + 2000)
        fooled = asked[f.contains(asked)]
        collected = []
        for key in fooled.tolist():
            if f.adapt(key, remote):
                collected.append(key)
            if len(f.layers) == 3:
                break
        assert len(f.layers) == 3
        twin = Twin.like(parts(f.to_bytes())[6][0][2])
        twin.generation = generation
        twin.build(map(hash_key, keys), map(hash_key, collected))
        every = range(5000)
        assert f.contains(every).tolist() == [twin.contains(hash_key(key)) for key in every]
        version = _version(f)
        layer = f.plan.stack.layers[1]
        filling = tamis.filters.adaptive_stacked._empty(layer, layer.items)
        assert f._drop_behind_first(version, filling, 30)
    assert f.rebuilds == 3


@pytest.mark.parametrize("kind", KINDS)
def test_threads_ask_put_and_adapt(kind):
    n = 6000
    f = tamis.AdaptiveStacked(
        n, SHAPE, bits_per_key=6, sizing="lifetime", lifetime=4000, layer=kind, seed=1
    )
    remote, lock = Hashes(seed=1), threading.Lock()
    put, failures, done = [0], [], threading.Event()

    def check():
        while not done.is_set():
            known = put[0]
            if not f.contains(np.arange(known)).all() or (known and known - 1 not in f):
                failures.append(known)
            if not tamis.from_bytes(f.to_bytes()).contains(np.arange(known)).all():
                failures.append(-known)

    def learn(seed):
        queries = tamis.traces.phase_shift(60_000, universe=UNIVERSE, seed=seed)
        for start in range(0, len(queries), 100):
            part = queries[start : start + 100]
            f.adapt_many(part[f.contains(part)], remote)

    threads = [threading.Thread(target=check) for _ in range(2)]
    learners = [threading.Thread(target=learn, args=(seed,)) for seed in (3, 4)]
    for thread in threads + learners:
        thread.start()
    for start in range(0, n, 100):
        keys = np.arange(start, start + 100)
        with lock:
            remote.update(keys)  # as a put under way, which a scan lists
            f.update(keys)
        put[0] = start + 100
    for thread in learners:
        thread.join()
    done.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(f.layers) > 1 or f.rebuilds > 0  # it did learn, while the others went on
    assert f.contains(np.arange(n)).all()


def test_all_it_learnt_is_saved(tmp_path):
    keys = range(100)
    f, remote = tiny("quotient", fine=1, keys=keys), Hashes(keys)
    for start in range(1000, 9000, 400):
        f.adapt_many(range(start, start + 400), remote)
        f.save(tmp_path / "f")
        twin = tamis.load(tmp_path / "f", mmap=True)
        for fact in ("psi", "known_fpr", "observed", "rebuilds"):
            assert getattr(twin, fact) == getattr(f, fact)
        describe = operator.attrgetter("kind", "stores", "items")
        assert list(map(describe, twin.layers)) == list(map(describe, f.layers))
        if len(f.layers) == 5:
            break
        assert twin.to_bytes() == f.to_bytes()
    assert len(f.layers) == 5
    twin.adapt_many(range(5000, 6000), remote)
    twin.add(10**6)
    assert twin.contains([*keys, 10**6]).all()


def test_a_layer_without_room_is_given_up():
    """Fingerprints of one bit cannot get shorter: the insertion counts, not the layer."""
    f, remote = tiny("quotient", depth=3, fine=1, keys=range(60)), Hashes(range(60))
    f.adapt_many(range(1000, 3000), remote)
    assert len(f.layers) == 3
    keys = np.arange(10**6, 10**6 + 20_000)
    first = _quotient(1024, 8, 900)
    f._fill_from_scan(_version(f), first, remote, 0.0, _quotient(64, 1, 30), 5, f.plan.to_json())
    f.adapt_many(np.arange(10**5, 10**5 + 800_000), remote)
    assert len(f.layers) == 3
    with pytest.warns(tamis.CapacityWarning):
        f.update(keys)
    assert len(f.layers) == 1
    assert f.contains([*range(60), *keys]).all()
    f.adapt_many(range(10**5), remote)
    assert f.collecting is None  # it observes first


def _bloom(bits, capacity):
    return _native.Bloom._empty(bloom.BloomSize("standard", bits, 2), capacity)


def test_only_adaptations_count():
    """Questions are counted when the next adaptation comes, so that asking changes no bytes."""
    f, remote = tiny("bloom", keys=range(100)), Hashes(range(100))
    before = f.to_bytes()
    denied = int((~f.contains(range(1000, 2000))).sum())
    assert f.to_bytes() == before
    assert f.observed == (0, 0)
    assert f.observed.fpr == 0
    wrong = next(key for key in range(1000, 2000) if key in f)
    denied += sum(key not in f for key in range(1000, wrong))
    denied += sum(key not in f for key in range(1000, wrong))
    assert f.adapt(wrong, remote)
    assert f.observed.false_positives == 1
    assert f.observed.negatives > denied
    assert not f.adapt(next(k for k in range(1000, 2000) if k not in f), remote)
    assert f.observed.false_positives == 1


def test_damaged_plans_are_refused():
    f = tiny("quotient", keys=range(10))
    *head, sections = parts(f.to_bytes())
    text = sections[-1][2]
    assert AdaptivePlan.from_json(text).observations == 10**9
    for old, new in (
        (b'"observations": 1000000000', b'"observations": -1'),
        (b'"observations": 1000000000', b'"observations": "x"'),
        (b'"kind": "quotient"', b'"kind": "ribbon"'),
        (b'"fingerprint": 2', b'"fingerprint": 99'),
        (b'"items": 30', b'"items": -6'),
        (b'"items": 30', b'"items": 6.5'),
        (b'"sizing": "eventual"', b'"sizing": "x"'),
        (b'"ranks": [0.0', b'"ranks": [5.0'),
        (b'"mass": [0.0', b'"mass": [NaN'),
        (b'"stack": {', b'"stacks": {'),
        (text, b""),
        (text, b"[]"),
        (text, b"\xff"),
        (text, b"[" * 100_000),
    ):
        assert old in text
        wrong = [*sections[:-1], (*sections[-1][:2], text.replace(old, new))]
        with pytest.raises(tamis.FormatError):
            tamis.from_bytes(frame(*head, wrong))


def test_damaged_samples_are_refused():
    f = tiny("bloom", keys=range(100), capacity=50)
    f.adapt_many(range(200, 400), Hashes(range(100)))
    *head, sections = parts(f.to_bytes())
    at = len(sections) - 2
    type_, piece, pairs = sections[at]
    assert len(pairs) >= 32
    for wrong in (pairs[:-1], pairs[::-1], pairs + pairs[:16], pairs[:8] + bytes(8) + pairs[16:]):
        changed = [*sections]
        changed[at] = (type_, piece, wrong)
        with pytest.raises(tamis.FormatError):
            tamis.from_bytes(frame(*head, changed))
    for changed in (sections[:-1], sections[::-1], sections[1:], sections + sections[-1:]):
        with pytest.raises(tamis.FormatError):
            tamis.from_bytes(frame(*head, changed))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="sizing must be 'eventual' or 'lifetime', not 'x'"):
        tamis.AdaptiveStacked(10, SHAPE, fpr=0.1, sizing="x")
    with pytest.raises(ValueError, match="layer must be 'auto', 'bloom' or 'quotient'"):
        tamis.AdaptiveStacked(10, SHAPE, fpr=0.1, layer="ribbon")
    for arguments in ({"sizing": "lifetime"}, {"lifetime": 5}):
        with pytest.raises(
            ValueError, match="lifetime, a number of queries for absent keys, must be given with"
        ):
            tamis.AdaptiveStacked(10, SHAPE, fpr=0.1, **arguments)
    with pytest.raises(ValueError, match=r"lifetime must be from 1 to .* not 0"):
        tamis.AdaptiveStacked(10, SHAPE, fpr=0.1, sizing="lifetime", lifetime=0)
    with pytest.raises(ValueError, match=r"no quotient layer fits .*bits_per_key=0\.1"):
        tamis.AdaptiveStacked(1000, SHAPE, bits_per_key=0.1, layer="quotient")
    f = tiny("bloom", keys=[1])
    with pytest.raises(ValueError, match="keys cannot be removed"):
        f.remove(1)
    with pytest.raises(ValueError, match="a layer is of kind 3"):
        _native.AdaptiveStacked._begin_with(tamis.Cuckoo(5, fpr=0.1)._handle, None, 0, b"", 5)

    class Wrong:
        def scan(self):
            return [[1, 2]]

    with pytest.raises(TypeError, match=r"remote.scan\(\) returned list"):
        tiny("bloom", keys=range(100)).adapt_many(range(1000, 3000), Wrong())
    with pytest.raises(ValueError, match="another kind"):
        _native.AdaptiveStacked(tamis.Bloom(5, fpr=0.1)._handle)


def test_shapes_are_short_and_below_the_curve():
    curve = Zipf(1.1, 10**7, 10**6)
    short = shape(curve)
    assert len(short.ranks) <= 128
    ranks = np.geomspace(1, 10**6, 1000).astype(int)
    assert (short.psi(ranks) <= curve.psi(ranks) + 1e-12).all()
    assert short.psi(ranks) == pytest.approx(curve.psi(ranks), rel=0.01)
    few = Steps.of(np.array([3, 2, 1]))
    assert shape(few) is few
    assert shape(Zipf(1.0, 1, 0)).size == 0


def test_a_workload_is_required():
    with pytest.raises(TypeError, match=r"workload must be a tamis.Workload, .*, not NoneType"):
        tamis.AdaptiveStacked(100, None, fpr=0.01)
