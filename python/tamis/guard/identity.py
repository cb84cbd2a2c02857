"""How filters, stores and snapshots are matched: by hash, secret key and identifier."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

from tamis._types import FilePath
from tamis.errors import FormatError
from tamis.filters import from_bytes
from tamis.guard import snapshot as snapshots
from tamis.guard.log import Log
from tamis.stores.contract import Store


def find_key(store: Store, filter: Any, key: bytes | None) -> bytes | None:
    """Return the filter's secret key: the one passed in, or the one that the store keeps."""
    if filter.seed is not None:
        if key is not None:
            raise ValueError("key must be None for a filter with a seed instead of a secret key")
        return None
    if key is None:
        key = store.metadata("key")
    if key is None:
        raise ValueError(
            "key must be the filter's secret key, not None: the store does not have the key yet"
        )
    from_bytes(filter.to_bytes(), key=key)  # IncompatibleError if it is another key
    return store.metadata("key", key)


def index_name(filter: Any, key: bytes | None) -> bytes:
    """Return the name of the filter's hash, by which a store indexes its keys."""
    if key is not None:
        return b"key " + hashlib.blake2b(key, digest_size=16).digest()
    return b"seed %d" % filter.seed


def index_seed(store: Store) -> int | None:
    """Return the seed of the hash by which a store indexes its keys, if it has one."""
    name, _, seed = (store.metadata("index") or b"").partition(b" ")
    return int(seed) if name == b"seed" and seed.isdigit() else None


def store_identity(store: Store) -> bytes:
    """Return the random identifier of a store, by which a snapshot is matched to it."""
    known = store.metadata("identity")
    return known or store.metadata("identity", secrets.token_bytes(16)) or b""


def load_snapshot(
    path: FilePath | None, store: Store, filter: Any, key: bytes | None, log: Log, *, mapped: bool
) -> tuple[Any, str] | None:
    """Return the filter of a snapshot and its epoch, if it is valid and of this store."""
    if path is None:
        return None
    try:
        try:
            loaded, identity, epoch = snapshots.load(path, key, mapped=mapped)
        except FormatError:
            if filter is not None or key is None:
                raise
            # The store has the key of another filter.
            loaded, identity, epoch = snapshots.load(path, None, mapped=mapped)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("ignoring the snapshot: %s", error)
        return None
    if (filter is not None and type(loaded) is not type(filter)) or identity != store_identity(
        store
    ):
        log.warning("ignoring the snapshot: it belongs to another filter or store")
        return None
    return loaded, epoch
