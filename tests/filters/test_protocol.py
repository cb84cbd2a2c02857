"""The protocol between an adaptive filter and its store, as a small model.

One run of a telescoping filter: slots of (selector, remainder), and a store of hashes that is the
source of truth. Puts, deletes and adaptations advance one atomic step at a time, in any order, and
any of them may crash between two steps. Remainders have one bit, so that everything collides;
Hypothesis searches for a stored hash that the filter denies.

This model is the specification of `src/telescoping`.
"""

from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st

BITS = 1
SLIDES = 3
ALL = range(2 ** (BITS * SLIDES))


def remainder(hash, selector):
    return hash >> BITS * (selector % SLIDES) & 2**BITS - 1


def fits(hash, slot):
    selector, held = slot
    return remainder(hash, selector) == held


def match(hashes, slots):
    """Match hashes to slots by content, as many as possible; return slot indices by hash index."""
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
    """One run. Every method is atomic; `version` shows whether another came in between."""

    def __init__(self):
        self.slots = []
        self.version = 0

    def __contains__(self, hash):
        return any(fits(hash, slot) for slot in self.slots)

    def insert(self, hash):
        self.slots.append((0, remainder(hash, 0)))
        self.version += 1

    def remove(self, hash, stored, version):
        """Remove a slot of the hash that no stored hash needs; return False to be called again."""
        if version != self.version:
            return False
        own = match([*stored, hash], self.slots)
        # A stored hash without a slot is a put that has not been inserted yet. Then no slot is
        # removed: that of the hash may be gone already, to another delete that is half done.
        if all(i in own for i in range(len(stored) + 1)):
            del self.slots[own[len(stored)]]
        self.version += 1
        return True

    def adapt(self, queried, stored, version):
        """Change the slots that the queried hash fits, where their owners are known."""
        if version != self.version or queried in stored:
            return False
        own = match(stored, self.slots)
        if len(own) < len(stored):
            return False
        for i, j in own.items():
            selector, _ = self.slots[j]
            if fits(queried, self.slots[j]):
                for further in range(selector + 1, selector + SLIDES):
                    if remainder(stored[i], further) != remainder(queried, further):
                        self.slots[j] = (further, remainder(stored[i], further))
                        break
        return True


class World:
    """Many clients of one store and one filter."""

    def __init__(self):
        self.filter = Filter()
        self.committed = Counter()
        self.pending = []
        self.running = []

    def stored(self):
        return sorted([*self.committed.elements(), *self.pending])

    def put(self, hash):
        self.pending.append(hash)
        yield
        self.filter.insert(hash)
        yield
        self.pending.remove(hash)
        self.committed[hash] += 1

    def delete(self, hash):
        done = not self.committed[hash]  # another client may have deleted it
        self.committed[hash] -= not done
        while not done:
            yield
            version, stored = self.filter.version, self.stored()
            yield
            done = self.filter.remove(hash, stored, version)

    def query(self, hash):
        version = self.filter.version
        yield
        stored = self.stored()
        yield
        self.filter.adapt(hash, stored, version)

    def false_positives(self):
        """The hashes that the filter accepts and the store does not have."""
        return [hash for hash in ALL if hash in self.filter and not self.committed[hash]]

    def step(self, action, choice):
        """Start an operation or advance one; Hypothesis chooses which."""
        stored, wrong = sorted(self.committed.elements()), self.false_positives()
        if action == "put":
            self.running.append(self.put(ALL[choice % len(ALL)]))
        elif action == "delete" and stored:
            self.running.append(self.delete(stored[choice % len(stored)]))
        elif action == "query" and wrong:
            self.running.append(self.query(wrong[choice % len(wrong)]))
        elif action == "advance" and self.running:
            client = self.running[choice % len(self.running)]
            if next(client, client) is client:
                self.running.remove(client)
        elif action == "crash" and choice == 0:  # of all clients, not of store and filter
            self.running.clear()
            self.pending.clear()

    def check(self):
        held = sorted(self.committed.elements())
        assert all(hash in self.filter for hash in held)
        assert len(match(held, self.filter.slots)) == len(held)


ACTIONS = st.sampled_from(["put", "put", "delete", "query", "crash"] + ["advance"] * 9)


def trace(text):
    """Steps from a text such as ``"put0 advance0×3"``."""
    steps = []
    for word in text.split():
        step, _, times = word.partition("×")
        action = step.rstrip("0123456789")
        steps += [(action, int(step.removeprefix(action)))] * int(times or 1)
    return steps


# Two half-done deletes on one run, of which the second takes the slot of the first, and new puts.
TWO_DELETES = (
    "put0 put1 advance0×3 query0 advance0×4 delete0 delete1 advance0×2 put0×3 "
    "advance0 advance1×7 advance2×2 advance0×2 advance1"
)


@settings(max_examples=4 * settings().max_examples)
@example(trace(TWO_DELETES))
@given(st.lists(st.tuples(ACTIONS, st.integers(0, 15)), min_size=30, max_size=100))
def test_no_stored_hash_is_denied(steps):
    world = World()
    for action, choice in steps:
        world.step(action, choice)
        world.check()


def test_what_was_read_before_an_insertion_is_not_used():
    """A hash inserted since may own the slot that an older read gives to another."""
    x, k, y = 0b000, 0b010, 0b110  # x and k share their first bit, and y fits k's slot too
    filter = Filter()
    filter.slots = [(1, remainder(x, 1))]
    version, stored = filter.version, [x]
    filter.insert(k)
    before = list(filter.slots)
    assert not filter.adapt(y, stored, version)
    assert filter.slots == before
    assert filter.adapt(y, [x, k], filter.version)
    assert x in filter
    assert k in filter


def test_a_put_that_has_no_slot_yet_owns_none():
    """It is listed before it is inserted, and may fit the slot of a stored hash."""
    x, k, y = 0b000, 0b010, 0b110
    filter = Filter()
    filter.insert(x)
    assert not filter.adapt(y, [k, x], filter.version)
    assert x in filter
    assert filter.slots == [(0, 0)]


def test_a_slot_that_might_be_needed_stays():
    """With a pending put the owners are uncertain, so neither of two different slots is removed."""
    x, z, k = 0b010, 0b000, 0b111
    filter = Filter()
    filter.slots = [(0, remainder(x, 0)), (1, remainder(z, 1))]  # z fits both, x only the first
    assert filter.remove(z, [x, k], filter.version)
    assert x in filter
    assert len(filter.slots) == 2


def test_a_hash_must_be_listed_before_it_is_inserted():
    """Otherwise its slot may be taken for that of a stored hash, and moved away from it."""
    x, k, y = 0b000, 0b010, 0b110
    for listed in ([x, k], [x]):
        filter = Filter()
        filter.slots = [(0, remainder(k, 0)), (1, remainder(x, 1))]  # x fits both
        filter.adapt(y, listed, filter.version)
        assert (k in filter) == (k in listed)
        assert x in filter
