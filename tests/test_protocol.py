"""The protocol between an adaptive filter and its store, as a small model.

One run of a telescoping filter: slots of (selector, remainder), and a store of hashes that is the
truth. Puts, deletes and adaptations advance by one atomic step at a time, in any order, and any of
them may die between two steps. Remainders have two bits, so that everything collides; Hypothesis
looks for a stored hash that the filter denies.

`src/telescoping` follows this model; what it may and may not do is said here first.
"""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

BITS = 2
SLIDES = 4
HASHES = st.integers(0, 2 ** (BITS * SLIDES) - 1)


def remainder(hash, selector):
    return hash >> BITS * (selector % SLIDES) & 2**BITS - 1


def fits(hash, slot):
    selector, held = slot
    return remainder(hash, selector) == held


def match(hashes, slots):
    """Give as many hashes as can be a slot of their own, by content: slots by hash, as indices."""
    owner = {}

    def place(i, tried):
        for j, slot in enumerate(slots):
            if fits(hashes[i], slot) and j not in tried:
                tried.add(j)
                if j not in owner or place(owner[j], tried):
                    owner[j] = i
                    return True
        return False

    for i in range(len(hashes)):
        place(i, set())
    return {i: j for j, i in owner.items()}


class Filter:
    """One run. Every method is atomic; `version` tells whether another came between."""

    def __init__(self):
        self.slots = []
        self.version = 0

    def __contains__(self, hash):
        return any(fits(hash, slot) for slot in self.slots)

    def insert(self, hash):
        self.slots.append((0, remainder(hash, 0)))
        self.version += 1

    def remove(self, hash, stored, version):
        """Take a slot of the hash away that no stored hash needs; False to be asked again."""
        if version != self.version:
            return False
        own = match([*stored, hash], self.slots)
        whole = all(i in own for i in range(len(stored)))
        contents = {slot for slot in self.slots if fits(hash, slot)}
        if whole and len(stored) in own:
            del self.slots[own[len(stored)]]
        elif not whole and len(contents) == 1:
            # A stored hash without a slot is a put that has not come here yet. The hash that goes
            # has one somewhere, and slots of one content are as good as each other.
            self.slots.remove(contents.pop())
        self.version += 1
        return True

    def adapt(self, asked, stored, version):
        """Slide the slots that the asked hash fits, where their owners are known."""
        if version != self.version or asked in stored:
            return False
        own = match(stored, self.slots)
        if len(own) < len(stored):
            return False
        for i, j in own.items():
            selector, _ = self.slots[j]
            if fits(asked, self.slots[j]):
                for further in range(selector + 1, selector + SLIDES):
                    if remainder(stored[i], further) != remainder(asked, further):
                        self.slots[j] = (further, remainder(stored[i], further))
                        break
        return True


class World(RuleBasedStateMachine):
    """Many clients of one store and one filter."""

    def __init__(self):
        super().__init__()
        self.filter = Filter()
        self.committed = Counter()
        self.under_way = []
        self.running = []

    def stored(self):
        return sorted([*self.committed.elements(), *self.under_way])

    def put(self, hash):
        self.under_way.append(hash)
        yield
        self.filter.insert(hash)
        yield
        self.under_way.remove(hash)
        self.committed[hash] += 1

    def delete(self, hash):
        if self.committed[hash]:
            self.committed[hash] -= 1
            done = False
            while not done:
                yield
                version, stored = self.filter.version, self.stored()
                yield
                done = self.filter.remove(hash, stored, version)

    def ask(self, hash):
        if hash in self.filter and not self.committed[hash]:
            yield
            version = self.filter.version
            yield
            stored = self.stored()
            yield
            self.filter.adapt(hash, stored, version)

    @rule(hash=HASHES, what=st.sampled_from(["put", "put", "delete", "ask", "ask"]))
    def begin(self, hash, what):
        self.running.append(getattr(self, what)(hash))

    @rule(data=st.data())
    def delete_one_that_is_there(self, data):
        there = sorted(self.committed.elements())
        if there:
            self.running.append(self.delete(data.draw(st.sampled_from(there))))

    @rule(choice=st.integers(0, 10), steps=st.integers(1, 4))
    def advance(self, choice, steps):
        for _ in range(steps):
            if self.running:
                client = self.running[choice % len(self.running)]
                if next(client, client) is client:
                    self.running.remove(client)

    @rule()
    def crash(self):
        """All clients die where they are. The store and the filter stay."""
        self.running.clear()
        self.under_way.clear()

    @invariant()
    def no_stored_hash_is_denied(self):
        held = sorted(self.committed.elements())
        assert all(hash in self.filter for hash in held)
        assert len(match(held, self.filter.slots)) == len(held)


World.TestCase.settings = settings(
    max_examples=settings().max_examples, stateful_step_count=50, deadline=None
)
TestProtocol = World.TestCase
