"""How a stack grows while keys come and go, as a small model.

Layers are sets that accept whatever shares a few bits with a member, so that everything collides.
Puts, deletes, adaptations and the steps of a scan advance one at a time in any order, and any of
them may die between two steps. Hypothesis looks for a stored hash that the stack denies.

`src/adaptive_stack/` follows this model; what it may and may not do is said here first.
"""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

ALL = range(24)
PARTS = (range(0, 8), range(8, 16), range(16, 24))
ROOM = 2


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
    """The layers that answer, the one that is filled, the one that is built. Methods are atomic."""

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
        """Nothing is collected from here on, and what is inserted comes to the new layer too."""
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
        self.under_way, self.running, self.scanning = [], [], False

    def put(self, hash):
        self.under_way.append(hash)
        yield
        self.stack.insert(hash)
        yield
        self.under_way.remove(hash)
        self.committed[hash] += 1

    def delete(self, hash):
        """Not while a scan goes on, which a guard's locks see to."""
        if self.scanning or not self.committed[hash]:
            return
        self.committed[hash] -= 1
        self.stack.remove(hash)
        yield

    def scan(self, first):
        if self.scanning or (not first and sum(self.stack.filling.held.values()) < ROOM):
            return
        self.scanning = True
        self.stack.begin(first)
        for part in PARTS:
            yield
            for hash in [*self.committed.elements(), *self.under_way]:
                if hash in part:
                    self.stack.bring(hash)
        yield
        self.stack.finish()
        self.scanning = False

    def step(self, action, choice):
        """Begin something or let somebody advance; what, and who, is for Hypothesis to choose."""
        there = sorted(self.committed.elements())
        if action == "put":
            self.running.append(self.put(ALL[choice % len(ALL)]))
        elif action == "delete" and there:
            self.running.append(self.delete(there[choice % len(there)]))
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
        elif action == "crash" and choice == 0:  # everybody dies; the store and the stack stay
            self.running.clear()
            self.under_way.clear()
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
    stack.insert(2)  # its part of the scan is over
    stack.finish()
    assert 2 in stack
    assert len(stack.layers) == 3


def test_a_removal_leaves_the_layers_above():
    """What was removed from the store before the scan is not in them: another's place would go."""
    twins = next(
        (a, b) for a in ALL for b in ALL if a != b and Layer(2).seen(a) == Layer(2).seen(b)
    )
    gone, stays = twins
    stack = grown(twins)
    stack.bring(stays)
    stack.finish()
    stack.remove(gone)
    assert stays in stack
