"""Changes to frames and to JSON that keep every checksum right."""

import json
import struct
from contextlib import suppress

from reference import frame, parts

FRAMES = (3, 7)
"""The types of sections that are frames."""


def number(rng, near):
    """A number near another, or where arithmetic ends."""
    choices = (near + 1, near - 1, near ^ 1 << rng.randrange(64), rng.randrange(100))
    edges = (0, 2**31, 2**32 - 1, 2**48, 2**63, 2**64 - 1, 1 << rng.randrange(64))
    return rng.choice((*choices, *edges)) % 2**64


def change_bytes(rng, content):
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            del changed[at : at + rng.choice((1, 8, 64))]
        elif kind == 1:
            changed[at:at] = rng.randbytes(rng.choice((1, 8, 64)))
        elif at < len(changed):
            changed[at] = rng.choice((0, 255, changed[at] ^ 1 << rng.randrange(8)))
    return bytes(changed)


def is_frame(content):
    try:
        return frame(*parts(content)) == content
    except struct.error:
        return False


def number_of(data):
    """The number of the kind of a frame."""
    return struct.unpack_from("<H", data, 10)[0]


def change_frame(rng, data):
    """A frame with something changed, and right checksums."""
    kind, hash_id, tag, count, capacity, values, contents = parts(data)
    contents = [tuple(section) for section in contents]
    choice = rng.randrange(10)
    if choice == 0:
        count, capacity = number(rng, count), rng.choice((capacity, number(rng, capacity)))
    elif choice == 1:
        kind = rng.choice((kind, rng.randrange(1, 23)))
        hash_id = rng.choice((hash_id, rng.randrange(4)))
    elif choice in (2, 3, 4) and values:
        at = rng.randrange(len(values))
        values[at] = number(rng, values[at])
    elif choice == 5:
        values = values[:-1] if rng.random() < 0.5 else [*values, number(rng, 0)]
    elif contents:
        at = rng.randrange(len(contents))
        type_, piece, content = contents[at]
        if choice == 6:
            contents[at] = rng.choice(((rng.randrange(1, 12), piece), (type_, rng.randrange(16))))
            contents[at] += (content,)
        elif choice == 7 and rng.random() < 0.5:
            del contents[at]
        elif choice == 7:
            contents.insert(rng.randrange(len(contents)), contents[at])
        else:
            contents[at] = type_, piece, change_content(rng, type_, content)
    return frame(kind, hash_id, tag, count, capacity, values, contents)


def change_content(rng, type_, content):
    if type_ in FRAMES and is_frame(content):
        return change_frame(rng, content)
    if content[:1] == b"{" and rng.random() < 0.9:  # a plan, a directory or a manifest
        with suppress(ValueError):  # damaged by a change before this one
            return written(change_json(rng, json.loads(content)))
    return change_bytes(rng, content)


STRANGE = (
    None, True, 0, 1, -1, 0.5, 64, 2**31, 2**63, 2**64, -(2**63), 10**400, 1e308, 1e-320,
    float("nan"), float("inf"), "", "\0", "\ud800", "..", "/", "**/*", "[z-a]", "x" * 5000,
    "bloom", "ribbon", "exact", "text", "decimal", "AAAA", "1", [], {}, [[]], [0, 1], {"kind": 0},
)  # fmt: skip


def places(node, path=()):
    """Every place in a JSON document."""
    yield path
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from places(value, (*path, key))


def change_json(rng, document):
    """A document with one value replaced, removed, added, doubled or moved."""
    document = json.loads(json.dumps(document))
    everywhere = [path for path in places(document) if path]
    if not everywhere:
        return rng.choice(STRANGE)
    *above, last = rng.choice(everywhere)
    parent = document
    for key in above:
        parent = parent[key]
    value, choice = parent[last], rng.randrange(8)
    if choice == 0:
        del parent[last]
    elif choice == 1 and isinstance(parent, list):
        parent.insert(rng.randrange(len(parent)), value)
    elif choice == 1:
        parent[rng.choice(("workload", "more", last.upper()))] = rng.choice(STRANGE)
    elif choice == 2:  # what stands elsewhere
        found = document
        for key in rng.choice(everywhere):
            found = found[key]
        parent[last] = json.loads(json.dumps(found))
    elif choice in (3, 4) and isinstance(value, int) and not isinstance(value, bool):
        parent[last] = number(rng, value)
    elif choice in (3, 4) and isinstance(value, float):
        parent[last] = value * rng.choice((-1, 0, 0.5, 2, 1e9, 1e-9, 1e300))
    elif choice in (3, 4) and isinstance(value, str) and value:
        at = rng.randrange(len(value))
        parent[last] = value[:at] + rng.choice(("", "A", "0", "/", "\0")) + value[at + 1 :]
    else:
        parent[last] = rng.choice(STRANGE)
    return document


def written(document):
    """JSON as manifests have it."""
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
