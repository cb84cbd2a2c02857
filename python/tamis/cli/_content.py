"""Open any file that tamis writes, for commands that describe or check it."""

from __future__ import annotations

from typing import Any, NamedTuple

import tamis
from tamis import _native
from tamis._files import open_regular
from tamis._frames import Frame


class IndexContent(NamedTuple):
    """The file of a skipping index: its manifest and its filters."""

    manifest: Any
    filters: tamis.Collection


def open_content(path: str, key: bytes | None) -> Any:
    """Check every checksum of a file and return its content.

    The content is a filter (of a file or a guard's snapshot), static function, classifier,
    `Collection`, `Runs`, `SearchIndex` or `IndexContent`. A damaged file raises `FormatError`.
    """
    kind = _kind(path)
    if kind in _OPEN:
        try:
            _native.check_file(path)
        except tamis.FormatError as error:
            raise tamis.FormatError(f"{path}: {error}") from None
        return _OPEN[kind](path, key)
    return tamis.load(path, mmap=True, key=key)


def _kind(path: str) -> str | None:
    """Return the kind of a file, or None if it is not a file of tamis."""
    try:
        with open_regular(path) as file:
            return Frame.of_file(file).kind
    except tamis.FormatError:
        return None


def _open_collection(path: str, key: bytes | None) -> Any:
    return tamis.Collection.open(path, key=key)


def _open_text(path: str, key: bytes | None) -> Any:
    from tamis.text import SearchIndex

    try:
        return SearchIndex.open(path, key=key)
    except ValueError as error:
        if isinstance(error, tamis.FormatError):
            raise
        return SearchIndex.open(path, key=key, tokenizer=str.split)  # the content is not searched


def _open_index(path: str, key: bytes | None) -> IndexContent:
    from tamis.parquet import manifest

    opened = manifest.read(path)
    if opened.manifest is None or opened.frame is None or not opened.intact:
        raise tamis.FormatError(f"{path}: the manifest of the index is damaged")
    place = opened.frame
    filters = tamis.Collection.open(
        path, offset=place.offset, length=place.length, parts=len(opened.manifest.columns)
    )
    return IndexContent(opened.manifest, filters)


def _open_snapshot(path: str, key: bytes | None) -> Any:
    from tamis.guard import snapshot

    return snapshot.load(path, key)[0]


_OPEN = {
    "collection": _open_collection,
    "runs": _open_collection,
    "text": _open_text,
    "skipping": _open_index,
    "snapshot": _open_snapshot,
}
"""How to open kinds that `tamis.load` does not open."""
