"""How a stack grows while keys are added and deleted, as a small model.

Layers are sets that accept whatever shares a few bits with a member, so that everything collides.
Puts, deletes, adaptations and the steps of a scan advance one at a time in any order, and any of
them may crash between two steps. Hypothesis searches for a stored hash that the stack denies.

This model is the specification of `src/adaptive_stack/`.
"""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

ALL = range(24)
PARTS = (range(0, 8), range(8, 16), range(16, 24))
CAPACITY = 2


class Layer:
    """A multiset of fingerprints: one of five, each shared by several hashes, by the salt."""

    def __init__(self, salt):
        self.salt, self.held = salt, Counter()

    def seen(self, hash):
        return (hash * (2 * self.salt + 3) + self.salt) // 3 % 5

    def add(self, hash):
        self.held[self.seen(hash)] += 1

    def remove(self, hash):
        self.held[self.seen(hash)] -= 1

    def __contains__(self, hash):
        return self.held[self.seen(hash)] > 0


class Stack:
    """The layers that answer, one that collects and one being built. Methods are atomic."""

    def __init__(self):
        self.layers, self.filling, self.building = [Layer(0)], Layer(1), None
        self.generation = 0

    def __contains__(self, hash):
        for index, layer in enumerate(self.layers):
            if hash not in layer:
                return index % 2 == 1
        return True

    def insert(self, hash):
        for index, layer in enumerate(self.layers):
            if index % 2 == 0:
                layer.add(hash)
            elif hash not in layer:
                break
        if self.building is not None:
            self.bring(hash)

    def remove(self, hash):
        self.layers[0].remove(hash)

    def adapt(self, hash):
        if self.building is None and all(hash in layer for layer in self.layers):
            self.filling.add(hash)

    def begin(self, first):
        """From now on nothing is collected, and insertions also go to the new layer."""
        salt = len(self.layers) + 1 + 7 * self.generation
        self.building = (Layer(0 if first else salt), first)

    def bring(self, hash):
        layer, first = self.building
        reached = all(hash in negatives for negatives in [*self.layers[1::2], self.filling])
        if first or reached:
            layer.add(hash)

    def finish(self):
        layer, first = self.building
        if first:
            self.drop(layer)
        else:
            self.layers += [self.filling, layer]
        self.filling = Layer(len(self.layers) + 7 * self.generation)
        self.building = None

    def drop(self, first=None):
        self.layers = [first or self.layers[0]]
        self.generation += 1
        self.filling = Layer(1 + 7 * self.generation)


class World:
    """Many clients of one store and one stack."""

    def __init__(self):
        self.stack, self.committed = Stack(), Counter()
        self.pending, self.running, self.scanning = [], [], False

    def put(self, hash):
        self.pending.append(hash)
        yield
        self.stack.insert(hash)
        yield
        self.pending.remove(hash)
        self.committed[hash] += 1

    def delete(self, hash):
        """Not during a scan, which the guard's locks ensure."""
        if self.scanning or not self.committed[hash]:
            return
        self.committed[hash] -= 1
        self.stack.remove(hash)
        yield

    def scan(self, first):
        if self.scanning or (not first and sum(self.stack.filling.held.values()) < CAPACITY):
            return
        self.scanning = True
        self.stack.begin(first)
        for part in PARTS:
            yield
            for hash in [*self.committed.elements(), *self.pending]:
                if hash in part:
                    self.stack.bring(hash)
        yield
        self.stack.finish()
        self.scanning = False

    def step(self, action, choice):
        """Start an operation or advance one; Hypothesis chooses which."""
        stored = sorted(self.committed.elements())
        if action == "put":
            self.running.append(self.put(ALL[choice % len(ALL)]))
        elif action == "delete" and stored:
            self.running.append(self.delete(stored[choice % len(stored)]))
        elif action == "adapt":
            hash = ALL[choice % len(ALL)]
            if not self.committed[hash]:
                self.stack.adapt(hash)
        elif action == "scan":
            self.running.append(self.scan(first=choice % 5 == 0))
        elif action == "drop" and not self.scanning and choice < 6:
            self.stack.drop()
        elif action == "advance" and self.running:
            client = self.running[choice % len(self.running)]
            if next(client, client) is client:
                self.running.remove(client)
        elif action == "crash" and choice == 0:  # of all clients, not of store and stack
            self.running.clear()
            self.pending.clear()
            self.scanning, self.stack.building = False, None

    def check(self):
        assert all(hash in self.stack for hash in self.committed.elements())


ACTIONS = st.sampled_from(
    ["put"] * 3 + ["adapt"] * 3 + ["delete", "scan", "drop", "crash"] + ["advance"] * 9
)


@given(st.lists(st.tuples(ACTIONS, st.integers(0, 23)), min_size=40, max_size=100))
def test_no_stored_hash_is_denied(steps):
    world = World()
    for action, choice in steps:
        world.step(action, choice)
        world.check()


def grown(stored):
    """A stack that knows two negatives, after a scan of these hashes."""
    stack = Stack()
    for hash in stored:
        stack.insert(hash)
    for hash in ALL:
        stack.adapt(hash)
    stack.begin(first=False)
    return stack


def test_an_insertion_during_a_scan_is_brought_to_the_layer():
    stack = grown([1])
    for hash in (1,):
        stack.bring(hash)
    stack.insert(2)  # the scan has passed it
    stack.finish()
    assert 2 in stack
    assert len(stack.layers) == 3


def test_a_removal_leaves_the_layers_above():
    """A hash deleted before the scan is not in them: removing it would remove another hash."""
    twins = next(
        (a, b) for a in ALL for b in ALL if a != b and Layer(2).seen(a) == Layer(2).seen(b)
    )
    gone, stays = twins
    stack = grown(twins)
    stack.bring(stays)
    stack.finish()
    stack.remove(gone)
    assert stays in stack
