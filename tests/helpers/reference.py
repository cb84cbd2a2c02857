"""Slow, obvious twins of the native code: the same answers from sets, lists and Python integers."""

import datetime
import decimal
import fractions
import math
import struct
import uuid
from collections import Counter
from dataclasses import dataclass, field
from math import comb

import numpy as np
import xxhash

import tamis

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def moremur(x):
    x ^= x >> 27
    x = x * 0x3C79AC492BA7B653 & MASK
    x ^= x >> 33
    x = x * 0x1C69B3F74AC4AE35 & MASK
    return x ^ x >> 27


def mix13(x):
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


EPOCH = datetime.datetime(1970, 1, 1)


def plain(value):
    """The plain form of a key, bytes or an int (`docs/keys.md`)."""
    scale = 0
    match value:
        case str():
            return value.encode()
        case bytes():
            return value
        case uuid.UUID():  # as a column of Arrow holds it
            return value.bytes
        case (only,):
            return plain(only)
        case tuple():
            return b"".join(tuple_part(plain(part)) for part in value)
        case datetime.datetime():
            utc = value.astimezone(datetime.UTC).replace(tzinfo=None) if value.tzinfo else value
            value = (utc - EPOCH) // datetime.timedelta(microseconds=1) * 1000
        case np.datetime64():
            value = int(value.astype("M8[ns]").astype(np.int64))
        case datetime.date():
            value = (value - EPOCH.date()).days
        case decimal.Decimal():
            exact = fractions.Fraction(value)
            while (exact * 10**scale).denominator != 1:
                scale += 1
            value = int(exact * 10**scale)
    if scale == 0 and -(2**63) <= value < 2**64:
        return value
    wide = value.to_bytes(16, "little", signed=True)
    return wide + bytes([scale]) if scale else wide


def tuple_part(part):
    if isinstance(part, bytes):
        return b"b" + struct.pack("<Q", len(part)) + part
    return (b"-" if part < 0 else b"+") + struct.pack("<Q", part & MASK)


def hash_key(key, seed=0):
    """The seeded hash of one key as (hi, lo)."""
    key = plain(key)
    if isinstance(key, int):
        return hash_int(key, seed)
    wide = xxhash.xxh3_128_intdigest(key, seed)
    return wide >> 64, wide & MASK


def hash_int(value, seed=0):
    """The seeded hash of an integer; beyond 64 bits and a sign, that of its bytes."""
    if not -(2**63) <= value < 2**64:
        return hash_key(value.to_bytes(16, "little", signed=True), seed)
    constants = [moremur(mix13(seed) + GOLDEN * i & MASK) for i in (1, 2, 3, 4)]
    hi, lo = constants[2:] if value < 0 else constants[:2]
    return moremur(value & MASK ^ hi), mix13(value & MASK ^ lo)


def reduce(hash, n):
    return hash * n >> 64


@dataclass
class Bloom:
    """A Bloom filter as a set of bit positions."""

    layout: str
    bits: int
    hashes: int
    ones: set = field(default_factory=set)

    def positions(self, hash):
        hi, lo = hash
        if self.layout == "blocked":
            block = 512 * reduce(hi, self.bits // 512)
            rounds, first = (self.hashes + 7) // 8, lo >> 61
            for round in range(rounds):
                source = mix13(lo + round & MASK) if round else lo
                count = 8 if round < rounds - 1 else self.hashes - 8 * (rounds - 1)
                for word in [(first + j) % 8 for j in range(count)] if count < 8 else range(8):
                    yield block + 64 * word + (source >> 6 * word & 63)
            return
        start = 0
        for j in range(self.hashes):
            probe = mix13(hi + j * lo & MASK)
            if self.layout == "standard":
                yield reduce(probe, self.bits)
            else:
                length = self.bits // self.hashes + (j < self.bits % self.hashes)
                yield start + reduce(probe, length)
                start += length

    def add(self, hash):
        self.ones.update(self.positions(hash))

    def contains(self, hash, kept=None):
        kept = self.bits if kept is None else kept
        return all(p in self.ones or p >= kept for p in self.positions(hash))

    def words(self):
        out = bytearray((self.bits + 63) // 64 * 8)
        for p in self.ones:
            out[p // 8] |= 1 << p % 8
        return bytes(out)


@dataclass
class Quotient:
    """A quotient filter as a multiset of fingerprints."""

    quotients: int
    remainder_bits: int
    counts: Counter = field(default_factory=Counter)

    def fingerprint(self, hash):
        hi, lo = hash
        wide = hi << 64 | lo
        return wide * self.quotients << self.remainder_bits >> 128

    def add(self, hash):
        self.counts[self.fingerprint(hash)] += 1

    def remove(self, hash):
        fingerprint = self.fingerprint(hash)
        self.counts[fingerprint] -= 1
        if not self.counts[fingerprint]:
            del self.counts[fingerprint]

    def contains(self, hash):
        return self.fingerprint(hash) in self.counts

    def double(self):
        self.quotients *= 2
        self.remainder_bits -= 1


@dataclass
class Telescoping:
    """An adaptive quotient filter as lists of (remainder, steps, extension) by quotient."""

    quotients: int
    remainder_bits: int
    extending: bool
    slots: dict = field(default_factory=dict)

    @classmethod
    def from_frame(cls, kind, parameters, slots, selectors):
        """Read the sections of a frame as `docs/format.md` describes them."""
        quotients, r, layout, _, _ = parameters
        self = cls(quotients, r, kind == 19)
        stride = 17 + 8 * r
        blocks = len(slots) // stride
        codes = self.codes(layout, blocks, selectors)
        occupieds, runends, contents = [], [], []
        for b in range(blocks):
            block = slots[stride * b : stride * (b + 1)]
            numbers = int.from_bytes(block[17:], "little")
            steps = decode_selectors(codes[b], self.extending) if layout < 2 else list(codes[b])
            for i in range(64):
                occupieds.append(block[i // 8] >> i % 8 & 1)
                runends.append(block[8 + i // 8] >> i % 8 & 1)
                held = numbers >> r * i & 2**r - 1
                selector = steps[i] if self.extending else (steps[i], 0)
                contents.append((held, *selector))
        at = 0
        for quotient in range(quotients):
            if occupieds[quotient]:
                at = max(at, quotient)
                end = runends.index(1, at) + 1
                self.slots[quotient] = contents[at:end]
                at = end
        return self

    @staticmethod
    def codes(layout, blocks, selectors):
        if layout != 1:
            width = {0: 7, 2: 64}[layout]
            return [selectors[width * b : width * (b + 1)] for b in range(blocks)]
        lengths, rest = struct.unpack_from(f"<{blocks}H", selectors), selectors[2 * blocks :]
        ends = [sum(lengths[: b + 1]) for b in range(blocks)]
        return [rest[end - length : end] for end, length in zip(ends, lengths, strict=True)]

    def bits(self, hash, at, width):
        """Bits of the hash behind its quotient, and of as many mixes of it as it takes."""
        hi, lo = hash
        stream = ((hi << 64 | lo) * self.quotients >> 64) & MASK
        words = (at + width + 63) // 64
        for j in range(1, words):
            stream = stream << 64 | mix13(lo + GOLDEN * j & MASK)
        return stream >> 64 * max(words, 1) - at - width & 2**width - 1

    def contains(self, hash):
        hi, lo = hash
        r = self.remainder_bits
        for held, steps, extension in self.slots.get((hi << 64 | lo) * self.quotients >> 128, []):
            at = 0 if self.extending else r * steps
            if self.bits(hash, at, r) == held and (
                not self.extending or self.bits(hash, r, steps) == extension
            ):
                return True
        return False


def decode_selectors(code, extending):
    """The steps of 64 slots, each with its extension if there are any: sets within sets."""
    number, steps, members = int.from_bytes(code, "little"), [0] * 64, list(range(64))

    def take(width):
        nonlocal number
        value, number = number & 2**width - 1, number >> width
        return value

    while members and (size := take(len(members).bit_length())):
        rank, chosen = take((comb(len(members), size) - 1).bit_length()), []
        for k in range(size, 0, -1):
            p = max(p for p in range(len(members)) if comb(p, k) <= rank)
            rank -= comb(p, k)
            chosen.insert(0, members[p])
        members = chosen
        for slot in members:
            steps[slot] += 1
    return [(n, take(n)) for n in steps] if extending else steps


@dataclass
class Cuckoo:
    """A cuckoo filter as a multiset of fingerprints, each with its two buckets."""

    chunks: int
    buckets: int
    fingerprint_bits: int
    near: int
    counts: Counter = field(default_factory=Counter)

    def identity(self, hash):
        hi, lo = hash
        wide = hi * self.chunks
        bucket = reduce(wide & MASK, self.buckets)
        fingerprint = 1 + reduce(lo, 2**self.fingerprint_bits - 1)
        pair = frozenset({bucket, self.other(bucket, fingerprint)})
        return wide >> 64, pair, fingerprint

    def add(self, hash):
        self.counts[self.identity(hash)] += 1

    def remove(self, hash):
        self.counts -= Counter([self.identity(hash)])

    def contains(self, hash):
        return self.identity(hash) in self.counts

    def other(self, bucket, fingerprint):
        start, size = 0, self.buckets
        if fingerprint % 2 == 0:
            last = max(self.buckets >> self.near, 1) - 1
            range_ = min(bucket >> self.near, last)
            start = range_ << self.near
            size = self.buckets - start if range_ == last else 1 << self.near
        spread = fingerprint * 0x9E3779B9 % 2**32
        sum_ = 2 * (spread * (size // 2) >> 32) + 1
        return start + (sum_ - (bucket - start)) % size

    def fits(self):
        """Whether an arrangement exists with four in a bucket, by augmenting paths."""
        keys = [key for key, count in self.counts.items() for _ in range(count)]
        holds = {}

        def place(i, tried):
            chunk, pair, _ = keys[i]
            for bucket in pair:
                held = holds.setdefault((chunk, bucket), [])
                if (chunk, bucket) in tried:
                    continue
                tried.add((chunk, bucket))
                if len(held) < 4:
                    held.append(i)
                    return True
                for slot, j in enumerate(held):
                    if place(j, tried):
                        held[slot] = i
                        return True
            return False

        return all(place(i, set()) for i in range(len(keys)))


class TruncatedCuckoo:
    """A cuckoo filter that keeps a part of each fingerprint, read from its frame."""

    def __init__(self, parameters, content):
        *sizes, self.kept = parameters
        self.whole = Cuckoo(*sizes)
        number, slot = int.from_bytes(content, "little"), (1 << self.kept) - 1
        slots = range(4 * self.whole.chunks * self.whole.buckets)
        self.slots = [number >> self.kept * i & slot for i in slots]

    def bucket(self, chunk, bucket):
        first = 4 * (chunk * self.whole.buckets + bucket)
        return self.slots[first : first + 4]

    def says(self, chunk, pair, fingerprint):
        held = max(1, fingerprint >> (self.whole.fingerprint_bits - self.kept))
        return any(held in self.bucket(chunk, bucket) for bucket in pair)

    def contains(self, hash):
        return self.says(*self.whole.identity(hash))

    def rate(self):
        """The share of all first buckets and fingerprints that are answered yes."""
        chunks, buckets = range(self.whole.chunks), range(self.whole.buckets)
        prints = range(1, 2**self.whole.fingerprint_bits)
        yes = sum(
            self.says(chunk, (bucket, self.whole.other(bucket, value)), value)
            for chunk in chunks
            for bucket in buckets
            for value in prints
        )
        return yes / (len(chunks) * len(buckets) * len(prints))


@dataclass
class AdaptiveCuckoo:
    """An adaptive cuckoo filter as lists of what its slots hold and of whose they are."""

    motion: int
    fingerprint_bits: int
    bins: int
    slots: list
    owners: list

    @classmethod
    def from_frame(cls, parameters, slots, owners):
        motion, bits, bins = parameters
        width = bits + (motion if motion < 4 else 0)
        number, count = int.from_bytes(slots, "little"), bins * (4 if motion == 0 else 1)
        held = [number >> width * i & 2**width - 1 for i in range(count)]
        return cls(motion, bits, bins, held, list(struct.iter_unpack("<QQ", owners)))

    def contains(self, hash):
        hi, lo = hash
        ways, size = (2, 4) if self.motion == 0 else (4, 1)
        for j in range(ways):
            first = size * reduce(mix13(hi ^ GOLDEN * j & MASK) if j else hi, self.bins)
            for place in range(size):
                held = self.slots[first + place]
                selector, fingerprint = held >> self.fingerprint_bits, held
                fingerprint &= 2**self.fingerprint_bits - 1
                i = {0: place, 4: j}.get(self.motion, selector)
                mixed = mix13(lo + GOLDEN * i & MASK) if i else lo
                if fingerprint == 1 + reduce(mixed, 2**self.fingerprint_bits - 1):
                    return True
        return False


@dataclass
class Fuse:
    """A binary fuse filter as a list of slots, read from its frame."""

    arity: int
    fingerprint_bits: int
    length: int
    segments: int
    domain: int
    slots: list

    @classmethod
    def of(cls, data):
        arity, bits, length, segments, domain = struct.unpack_from("<5Q", data, 56)
        (offset,) = struct.unpack_from("<Q", data, 56 + 40 + 8)
        table = int.from_bytes(data[offset:], "little")
        slots = [table >> i * bits & 2**bits - 1 for i in range(length * segments)]
        return cls(arity, bits, length, segments, domain, slots)

    def contains(self, hash):
        hi, lo = hash
        if self.domain:
            whitening = GOLDEN * (self.domain + 1) & MASK
            lo = mix13(lo ^ moremur(whitening))
            hi = moremur(hi ^ mix13(whitening)) ^ lo
        first, rest = divmod(hi * (self.segments - self.arity + 1), 2**64)
        parts = [rest >> 32]
        for j in range(self.arity - 1):
            twice = (hi & 2**32 - 1) * (2**32 + 1)
            parts.append(twice >> (32 - 11 * j) & 2**32 - 1)
        answer = hi * GOLDEN % 2**64 >> 32
        for j, part in enumerate(parts):
            answer ^= self.slots[(first + j) * self.length + (part * self.length >> 32)]
        return answer % 2**self.fingerprint_bits == 0


def remix(hash, domain):
    whitening = GOLDEN * (domain + 1) & MASK
    return moremur(hash[0] ^ mix13(whitening)), mix13(hash[1] ^ moremur(whitening))


@dataclass
class Ribbon:
    """A ribbon as `docs/format.md` describes it, read bit by bit."""

    layout: int
    columns: int
    kept: int
    attempt: int
    last: int
    levels: list
    bits: bytes
    share: int = 0
    extra_attempt: int = 0
    extra: int = 0

    @classmethod
    def of(cls, values, bits):
        """The ribbon with the parameters of a frame."""
        layout, columns, kept, *rest = values
        share, extra_attempt, extra, *rest = rest if layout & 2 else [0, 0, 0, *rest]
        attempt, last, *levels = rest
        return cls(
            layout & 1, columns, kept, attempt, last, levels, bits, share, extra_attempt, extra
        )

    def __post_init__(self):
        self.codes, at = [], 0
        words = struct.unpack(f"<{len(self.bits) // 8}Q", self.bits)
        for slots in self.levels:
            buckets = -(-(slots - 64) // 128)
            codes = [words[at + b // 32] >> 2 * (b % 32) & 3 for b in range(buckets)]
            self.codes.append([(0, 16, 40, 128)[code] for code in codes])
            at += -(-buckets // 32)
        self.solution = self.bits[-(-at // 8) * 64 :]
        self.wide = [
            64 * (1 + -(-(slots // 64 - 1) * self.share // 2**32)) if self.share else 0
            for slots in self.levels
        ]
        self.slots = sum(self.levels) + self.last

    def equation(self, hash):
        """The level of a hash (the last is -1), its start there, its row, and its hash there."""
        for level, slots in enumerate(self.levels):
            if level:
                hash = remix(hash, 0x7269_6262_6F6E_0000 + level)
            start = reduce(hash[0], slots - 64)
            if start % 128 >= self.codes[level][start // 128]:
                row = hash[1] | 1
                return level, start, [row >> i & 1 for i in range(64)], hash
        hash = crossed(remix(hash, 0x7269_6262_6F6E_0100 + self.attempt))
        return -1, *wide_equation(hash, self.last), hash

    def positions(self, level, start, width, column):
        """Where in the solution the slots of a row in a column lie; none without that column."""
        before = sum(self.levels if level < 0 else self.levels[:level])
        for slot in range(start, start + width):
            if column == self.columns:
                first = self.levels[level] - self.wide[level] if level >= 0 else math.inf
                if start < first:
                    return
                if self.layout == 1:
                    yield column * self.slots + sum(self.wide[:level]) + slot - first
                    continue
            if self.layout == 1:
                yield column * self.slots + before + slot
            elif level < 0:
                yield self.columns * before + sum(self.wide) + column * self.last + slot
            else:
                block, narrow = slot // 64, (self.levels[level] - self.wide[level]) // 64
                words = self.columns * (before // 64 + block) + sum(self.wide[:level]) // 64
                yield 64 * (words + max(block - narrow, 0) + column) + slot % 64

    def agrees(self, row, positions, wanted):
        """Whether the slots of a row add up to a bit; they do where not all of them are kept."""
        positions = list(positions)
        if len(positions) < len(row) or positions[-1] >= self.kept:
            return True
        met = (self.solution[p // 8] >> p % 8 & bit for p, bit in zip(positions, row, strict=True))
        return sum(bit & 1 for bit in met) & 1 == wanted & 1

    def contains(self, hash):
        fingerprint = hash[0]
        level, start, row, hash = self.equation(hash)
        if not row:
            return False
        for column in range(self.columns + (self.share > 0)):
            positions = self.positions(level, start, len(row), column)
            if not self.agrees(row, positions, fingerprint >> column):
                return False
        whole = self.columns * self.slots
        if level >= 0 or (hash[0] >> 32) + self.share < 2**32 or self.kept < whole:
            return True
        start, row = wide_equation(
            crossed(remix(hash, 0x7269_6262_6F6E_8000 + self.extra_attempt)), self.extra
        )
        positions = range(whole + sum(self.wide) + start, whole + sum(self.wide) + start + len(row))
        return bool(row) and self.agrees(row, positions, fingerprint >> self.columns)


def crossed(hash):
    hi, lo = hash
    return mix13(hi + lo & MASK), hi ^ (lo << 32 & MASK | lo >> 32)


def wide_equation(hash, slots):
    """The start of a hash in a system of this number of slots, and its row, at most 256 wide."""
    width = min(slots, 256)
    row = sum(mix13(hash[1] + i & MASK) << 64 * i for i in range(4))
    return reduce(hash[0], slots - width + 1), [row >> i & 1 for i in range(width)]


@dataclass
class Stacked:
    """A stack as a list of twins; see `docs/format.md`. ``generation`` is an adaptive stack's."""

    layers: list
    generation: int = 0

    @classmethod
    def like(cls, data):
        """The empty stack with the sizes of the one in a frame."""
        layers = []
        for _, _, content in parts(data)[6]:
            kind, *_, sizes, _ = parts(content)
            if kind == 1:
                layers.append(Bloom(("blocked", "standard", "segmented")[sizes[0]], *sizes[1:3]))
            else:
                layers.append({2: Quotient, 3: Cuckoo}[kind](*sizes[: {2: 2, 3: 4}[kind]]))
        return cls(layers)

    def build(self, keys, negatives):
        keys, negatives = set(keys), set(negatives) - set(keys)
        for index, layer in enumerate(self.layers):
            stored, others = (negatives, keys) if index % 2 else (keys, negatives)
            for hash in stored:
                layer.add(self.seen(hash, index))
            accepted = {h for h in others if layer.contains(self.seen(h, index))}
            keys, negatives = (accepted, negatives) if index % 2 else (keys, accepted)

    def seen(self, hash, index):
        return remix(hash, 0x7374_6163_6B00 + 64 * self.generation + index) if index else hash

    def contains(self, hash):
        for index, layer in enumerate(self.layers):
            if not layer.contains(self.seen(hash, index)):
                return index % 2 == 1
        return True

    def way(self, hash):
        """The layers of keys that a key is in."""
        for index, layer in enumerate(self.layers):
            if index % 2 == 0:
                yield layer, self.seen(hash, index)
            elif not layer.contains(self.seen(hash, index)):
                return

    def add(self, hash):
        for layer, seen in self.way(hash):
            layer.add(seen)

    def remove(self, hash):
        for layer, seen in list(self.way(hash)):
            layer.remove(seen)


@dataclass
class Stable:
    """A stable Bloom filter as a list of counters."""

    cells: int
    most: int
    hashes: int
    decrements: int
    independent: bool
    seed: int

    def __post_init__(self):
        self.values = [0] * self.cells
        self.random = mix13(self.seed ^ GOLDEN)

    def next(self):
        self.random = self.random + GOLDEN & MASK
        return reduce(mix13(self.random), self.cells)

    def positions(self, hash):
        hi, lo = hash
        return [reduce(mix13(hi + j * lo & MASK), self.cells) for j in range(self.hashes)]

    def contains(self, hash):
        return all(self.values[cell] for cell in self.positions(hash))

    def seen(self, hash):
        answer = self.contains(hash)
        if self.independent:
            lowered = [self.next() for _ in range(self.decrements)]
        else:
            first = self.next()
            lowered = [(first + i) % self.cells for i in range(self.decrements)]
        for cell in lowered:
            self.values[cell] = max(0, self.values[cell] - 1)
        for cell in self.positions(hash):
            self.values[cell] = self.most
        return answer

    def words(self):
        """The counters as a frame holds them: per 64 cells, one word for each bit."""
        out = b""
        for start in range(0, self.cells, 64):
            block = self.values[start : start + 64]
            for plane in range(self.most.bit_length()):
                word = sum((value >> plane & 1) << i for i, value in enumerate(block))
                out += struct.pack("<Q", word)
        return out


@dataclass
class Windowed:
    """An age-partitioned Bloom filter as sets of bits, each with its own number for hashing."""

    hashes: int
    ages: int
    slice_bits: int
    generation: int

    def __post_init__(self):
        count = self.hashes + self.ages
        self.slices = [(number, set()) for number in range(count)]
        self.filled = 0

    def position(self, hash, number):
        hi, lo = hash
        return reduce(mix13(hi + number * lo & MASK), self.slice_bits)

    def contains(self, hash):
        answers = [self.position(hash, number) in bits for number, bits in self.slices]
        k = self.hashes
        return any(all(answers[age : age + k]) for age in range(self.ages + 1))

    def shift(self):
        number, _ = self.slices.pop()
        self.slices.insert(0, (number, set()))
        self.filled = 0

    def seen(self, hash):
        if self.filled == self.generation:
            self.shift()
        answer = self.contains(hash)
        for number, bits in self.slices[: self.hashes]:
            bits.add(self.position(hash, number))
        self.filled += 1
        return answer


def hyperloglog(low):
    """Estimate how many distinct low halves there are, from 2^17 registers (Ertl 2017)."""
    m, bits = 2**17, 47
    low = np.asarray(low, np.uint64)
    rest = low & np.uint64(2**bits - 1) | np.uint64(2**bits)
    ranks = np.log2(rest & (~rest + np.uint64(1))).astype(int) + 1
    registers = np.zeros(m, int)
    np.maximum.at(registers, (low >> np.uint64(bits)).astype(int), ranks)
    counts = np.bincount(registers, minlength=bits + 2) / m
    assert counts[-1] == 0, "registers at the highest rank have a term of their own"
    zeros = sum(counts[0] ** 2**k * max(2.0 ** (k - 1), 1) for k in range(60))
    return m / (2 * np.log(2) * (zeros + sum(counts[k] * 2.0**-k for k in range(1, bits + 1))))


CONTAINED = 7
"""The section type of a frame in a container, of which the table has the checksum of the header."""


def header_size(data):
    """The length of the header of a frame, or of all bytes if they are none."""
    if data[:10] != b"\x89tamis\r\n\x01\0" or len(data) < 56:
        return len(data)
    (sections,), (parameters,) = (
        struct.unpack_from("<H", data, 14),
        struct.unpack_from("<Q", data, 48),
    )
    return min(56 + 8 * parameters + 32 * sections + 8, len(data))


def frame(kind, hash_id, tag, count, capacity, parameters, sections):
    """A frame as `docs/format.md` has it, with right checksums whatever it says.

    ``sections`` are (type, piece, bytes) without the lists of piece checksums.
    """
    entries = []
    for type_, piece, content in sections:
        if piece:
            size = 1 << piece
            pieces = b"".join(
                struct.pack("<Q", xxhash.xxh3_64_intdigest(content[i : i + size]))
                for i in range(0, len(content), size)
            )
            entries.append((2, 0, pieces, pieces))
            entries.append((type_, piece, content, pieces))
        else:
            checked = content[: header_size(content)] if type_ == CONTAINED else content
            entries.append((type_, 0, content, checked))
    header = 56 + 8 * len(parameters) + 32 * len(entries) + 8
    end, table, body = header, b"", b""
    for type_, piece, content, checked in entries:
        offset = (end + 63) // 64 * 64
        body += bytes(offset - end) + content
        end = offset + len(content)
        checksum = xxhash.xxh3_64_intdigest(checked)
        table += struct.pack("<IIQQQ", type_, piece, offset, len(content), checksum)
    head = b"\x89tamis\r\n" + struct.pack("<HHHH", 1, kind, hash_id, len(entries))
    head += struct.pack("<QQQQQ", tag, count, capacity, end, len(parameters))
    head += struct.pack(f"<{len(parameters)}Q", *parameters) + table
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + body


def grams(text, shortest, longest, buckets):
    """The buckets of the n-grams of a text between its marks."""
    marked = b"\x02" + text + b"\x03"
    for at in range(len(marked)):
        for n in range(shortest, min(longest, len(marked) - at) + 1):
            value = int.from_bytes(marked[at : at + n], "little")
            yield reduce(mix13(value + n * GOLDEN & MASK), buckets)


def leaf_of(tree, levels):
    """The leaf that a row comes to in a tree of (nodes, leaves)."""
    nodes, leaves = tree
    place = 0 if nodes else 255
    while place < 128:
        feature, level, left, right = nodes[place]
        place = right if levels[feature] > level else left
    return leaves[255 - place]


def oblivious_leaf_of(tree, levels):
    """The leaf that a row comes to in an oblivious tree of (splits, leaves)."""
    splits, leaves = tree
    answers = [levels[feature] > level for feature, level in splits]
    return leaves[sum(2**depth for depth, answer in enumerate(answers) if answer)]


def parts(data):
    """What a frame says, as the arguments of `reference.frame`."""
    kind, hash_id, sections = struct.unpack_from("<HHH", data, 10)
    tag, count, capacity, _, parameters = struct.unpack_from("<QQQQQ", data, 16)
    values = list(struct.unpack_from(f"<{parameters}Q", data, 56))
    table = [
        struct.unpack_from("<IIQQQ", data, 56 + 8 * parameters + 32 * i) for i in range(sections)
    ]
    contents = [(t, p, data[o : o + n]) for t, p, o, n, _ in table if t != 2]
    return kind, hash_id, tag, count, capacity, values, contents


def of_one_quotient(count, others, quotients, seed):
    """Keys of one quotient, as whoever knows the seed can find them, and as many of another."""
    found = np.arange(count * quotients * 2)
    words = tamis.hash_keys(found, seed=seed)[:, 0]
    own = (words >> np.uint64(32)) * np.uint64(quotients) >> np.uint64(32)
    return found[own == 7][:count], found[own == 9][:others]
