import math

import numpy as np
import pytest
from contract import SPECIMENS

import tamis
from tamis.testing import FILTER_CHECKS, check_filter


@pytest.mark.parametrize("specimen", SPECIMENS, ids=str)
@pytest.mark.parametrize("check", FILTER_CHECKS, ids=lambda check: check.__name__)
def test_contract(check, specimen):
    check(specimen)


def distinct(keys):
    return list(dict.fromkeys(keys.tolist() if isinstance(keys, np.ndarray) else keys))


class Outsider:
    """A Bloom filter that is no filter of tamis, with no more than `check_filter` asks for."""

    inserts = merges = True

    def __init__(self, capacity, fpr):
        self.hashes = math.ceil(-math.log2(fpr))
        self.bits = np.zeros(max(math.ceil(capacity * self.hashes / math.log(2)), 64), bool)
        self.keys = 0

    @classmethod
    def build(cls, keys, *, fpr):
        f = cls(len(distinct(keys)), fpr)
        f.update(keys)
        return f

    def places(self, keys):
        size = np.uint64(len(self.bits))
        return [tamis.hash_keys(keys, seed=i)[:, 0] % size for i in range(self.hashes)]

    def contains(self, keys):
        if not len(keys):
            return np.zeros(0, bool)
        return np.logical_and.reduce([self.bits[at] for at in self.places(keys)])

    def __contains__(self, key):
        return bool(self.contains([key])[0])

    def update(self, keys):
        keys = distinct(keys)
        if keys:
            self.keys += len(keys)
            for at in self.places(keys):
                self.bits[at] = True

    def add(self, key):
        self.update([key])

    def __len__(self):
        return self.keys

    def __or__(self, other):
        both = type(self)(1, 0.5)
        both.hashes, both.bits = self.hashes, self.bits | other.bits
        return both

    @property
    def size_in_bits(self):
        return len(self.bits)

    @property
    def bits_per_key(self):
        return self.size_in_bits / max(self.keys, 1)

    @property
    def expected_fpr(self):
        return self.bits.mean() ** self.hashes


class Counting(Outsider):
    """Counts instead of bits, so that keys can be removed."""

    deletes, merges = True, False

    def __init__(self, capacity, fpr):
        super().__init__(capacity, fpr)
        self.counts = np.zeros(len(self.bits), np.int64)

    def change(self, keys, by):
        for at in self.places(keys):
            np.add.at(self.counts, at, by)
        self.bits = self.counts > 0
        self.keys += by * len(keys)

    def update(self, keys):
        if keys := distinct(keys):
            self.change(keys, 1)

    def remove(self, key):
        if key not in self:
            raise KeyError(key)
        self.change([key], -1)


@pytest.mark.parametrize("cls", [Outsider, Counting])
def test_an_outsiders_filter_is_held_to_the_contract(cls):
    check_filter(cls)


class Denying(Outsider):
    """Loses a key now and then."""

    def update(self, keys):
        super().update([key for key in keys if key != 4711])


class Unpickled(Outsider):
    """Forgets its keys on the way to another process."""

    def __setstate__(self, state):
        self.__dict__ = {**state, "bits": np.zeros_like(state["bits"])}


class Unlike(Outsider):
    """Answers single keys otherwise than batches."""

    def __contains__(self, key):
        return True


class Boasting(Outsider):
    """Claims half of its rate."""

    expected_fpr = property(lambda self: super().expected_fpr / 2)


class Unmerged(Outsider):
    """Drops the keys of one side."""

    def __or__(self, other):
        return self


class Small(Outsider):
    """Forgets the keys above a number that fits 16 bits."""

    def update(self, keys):
        before, keys = self.keys, distinct(keys)
        super().update(keys[: max(2**16 - before, 0)])
        self.keys = before + len(keys)


class SmallSteps(Outsider):
    """Forgets the keys that are added above a number that fits 16 bits."""

    def update(self, keys):
        full = 0 < len(keys) <= 20_000 and self.keys >= 2**16
        super().update([] if full else keys)


class Toggling(Outsider):
    """Drops a key that is added again."""

    def update(self, keys):
        known = [key for key in distinct(keys) if self.keys == 2000 and key in self]
        super().update(keys)
        for at in self.places(known) if known else ():
            self.bits[at] = False


class Single(Counting):
    """Stores a key once, however often it is added."""

    def __init__(self, capacity, fpr):
        super().__init__(capacity, fpr)
        self.held = {}

    def __getstate__(self):
        return {**self.__dict__, "held": dict.fromkeys(sorted(self.held, key=repr))}

    def update(self, keys):
        new = [key for key in distinct(keys) if key not in self.held]
        self.held |= dict.fromkeys(new)
        super().update(new)

    def remove(self, key):
        super().remove(key)
        self.held.pop(key, None)


class Overeager(Counting):
    """Removes bits of an absent key before it notices that the key is absent."""

    def remove(self, key):
        known = key in self
        if known or self.keys:
            self.change([key], -1)
        if not known:
            raise KeyError(key)


@pytest.mark.parametrize(
    ("cls", "check"),
    [
        (Small, "holds_many_keys"),
        (SmallSteps, "many_keys_are_added"),
        (Toggling, "keys_are_added_again"),
        (Single, "a_key_is_removed_as_often_as_it_was_added"),
        (Overeager, "an_absent_key_is_not_removed"),
        (Denying, "denies_no_key"),
        (Unlike, "answers_alike_one_by_one"),
        (Unpickled, "comes_back_from_a_pickle"),
        (Boasting, "errs_as_expected"),
        (Unmerged, "merges_what_it_says"),
    ],
)
def test_a_filter_that_breaks_the_contract_is_named(cls, check):
    with pytest.raises(AssertionError) as raised:
        check_filter(cls)
    assert raised.value.__notes__[-1].startswith(f"{cls.__name__} failed the check {check}: ")
