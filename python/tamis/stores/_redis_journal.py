"""Answers of the scripts of `tamis.stores.Redis`: journal entries and pages of the index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tamis.stores._keyvalue import entry_keys, epoch_number
from tamis.stores.contract import PlainKey


class Change(NamedTuple):
    """An entry of the journal: a key that was added or removed, or the first epoch of all."""

    number: int
    epoch: str
    added: bool
    entry: bytes
    """The index entry of the key; empty for the first epoch."""

    @classmethod
    def read(cls, id: bytes, fields: dict[bytes, bytes]) -> Change:
        """Read an entry of the stream."""
        number = int(id.partition(b"-")[0])
        entry = fields.get(b"+", fields.get(b"-", b""))
        return cls(number, f"{number}.{fields[b't'].decode()}", b"+" in fields, entry)


class Page(NamedTuple):
    """A page of the index, and the changes since the previous page."""

    epoch: str | None
    index_name: bytes | None
    complete: bool
    """Whether the index has as many entries as there are keys."""
    entries: list[bytes]
    changes: list[Change]

    @classmethod
    def read(cls, answer: list[Any]) -> Page:
        """Read the answer of the script."""
        epoch, index, complete, entries, changes = answer
        rows = [
            Change.read(id, dict(zip(fields[::2], fields[1::2], strict=True)))
            for id, fields in changes
        ]
        return cls(epoch and epoch.decode(), index, bool(complete), entries, rows)


class ChangedError(LookupError):
    """Keys were read while unknown changes were written."""


def keys_at(page: Page, next_page: Callable[[bytes, int], Page]) -> Iterator[list[PlainKey]]:
    """Iterate over the keys at the epoch of the first page, regardless of concurrent writes.

    The first change of a key since then says whether it was there: a key that was added was not,
    and one that was removed was. ``next_page`` takes the last entry that was read, and the number
    of the journal to read on from.
    """
    index, epoch = page.index_name, page.epoch or ""
    changed: set[bytes] = set()
    removed_unread: list[bytes] = []
    while page.entries:
        yield entry_keys([entry for entry in page.entries if entry not in changed])
        last, number = page.entries[-1], epoch_number(epoch)
        page = next_page(last, number + 1)
        epochs = [epoch, *(change.epoch for change in page.changes)]
        if (page.index_name, page.epoch, page.complete) != (index, epochs[-1], True) or [
            change.number for change in page.changes
        ] != [*range(number + 1, number + len(epochs))]:
            raise ChangedError("the keys changed while they were read")
        epoch = epochs[-1]
        for change in page.changes:
            if change.entry not in changed:
                changed.add(change.entry)
                if not change.added and change.entry > last:
                    removed_unread.append(change.entry)
    yield entry_keys(removed_unread)
