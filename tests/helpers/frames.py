"""Golden files, and frames with right checksums and wrong content."""

import json
from pathlib import Path

from hypothesis import strategies as st
from reference import CONTAINED, frame, parts

JSON = 8
"""The section type of a JSON document."""

GOLDEN = Path(__file__).parents[1] / "golden"


def lie(data, honest):
    """Draw a frame with right checksums that is like this one but for something."""
    kind, hash_id, tag, count, capacity, values, contents = parts(honest)
    number = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**31, 2**32, 2**63]))
    which = data.draw(st.integers(-2, len(contents) - 1))
    if which == -2:
        values = data.draw(st.lists(number, max_size=4))
    elif which == -1:
        count, capacity = data.draw(number), data.draw(number)
    else:
        type_, piece, content = contents[which]
        content = bytearray(content)
        for _ in range(data.draw(st.integers(1, 3))):
            if content:
                at = data.draw(st.integers(0, len(content) - 1))
                content[at] = data.draw(st.integers(0, 255))
        cut = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
        contents[which] = (type_, piece, bytes(content[:cut]))
    return frame(kind, hash_id, tag, count, capacity, values, contents)


def with_documents(data, change):
    """A container whose JSON documents, also those of containers inside it, are changed.

    ``change`` gets and returns bytes. All checksums are right.
    """
    *head, sections = parts(data)
    changed = []
    for type_, piece, content in sections:
        if type_ == JSON:
            content = change(content)
        elif type_ == CONTAINED and any(inner[0] == JSON for inner in parts(content)[-1]):
            content = with_documents(content, change)
        changed.append((type_, piece, content))
    return frame(*head, changed)


def with_values(data, change):
    """`with_documents`, with the values of the documents."""
    return with_documents(data, lambda text: json.dumps(change(json.loads(text))).encode())
