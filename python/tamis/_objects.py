"""Objects in object stores: named by a URL, or by a path in a file system of fsspec or pyarrow.

URLs are opened by obstore, with ``storage_options`` as Polars and deltalake take them. The key of
an object is taken as it is, never decoded. File systems are opened by pyarrow. Writing replaces an
object as a whole or not at all; only obstore can make a write conditional on the object that is
there. Reading in parts is in `tamis._ranges`. No message contains credentials.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeGuard

from tamis._types import FilePath

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")
"""The schemes of object stores."""

MAX_CONDITIONAL = 64 << 20
"""Bytes of the largest object that is written by one request, which can be conditional."""

_CLIENT_OPTIONS = {
    "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type",
    "http1_only", "http2_keep_alive_interval", "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle", "http2_max_frame_size", "http2_only", "pool_idle_timeout",
    "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url",
    "randomize_addresses", "read_timeout", "root_certificate", "timeout", "user_agent",
}  # fmt: skip
"""Storage options for the HTTP client, which obstore takes apart from the options of the store."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_UNADDRESSABLE = re.compile(r"(^|/)(\.{0,2})(/|$)|[\x00-\x1f\x7f]")


class Info(NamedTuple):
    """The size of an object, and its ETag, or anything else that changes with its content."""

    size: int
    tag: str | None


Ranges = Sequence[tuple[int, int]]
"""Starts and ends of parts of an object."""

Read = Callable[[Ranges], list[bytes]]


class Object(Protocol):
    """An object of a store."""

    @property
    def name(self) -> str:
        """The URL or path."""
        ...

    @property
    def path(self) -> str:
        """The bucket and the key, or the path in a file system."""
        ...

    def info(self) -> Info | None:
        """Return size and ETag, or None if there is no object."""
        ...

    def open(self) -> tuple[Info, Read]:
        """Return size and ETag, and a function that reads ranges and may be called by threads."""
        ...

    def upload(self, file: str, tag: str | None = None) -> str | None:
        """Replace the object by a file, and return its ETag.

        With ``tag``, only an object that has this ETag is replaced, otherwise `OSError` is raised.
        """
        ...


@dataclass(frozen=True)
class StorageOptions:
    """Options of obstore for the store of a URL; they may be credentials."""

    values: Mapping[str, str] = field(repr=False)


def storage_of(filesystem: Any, storage_options: Mapping[str, str] | None) -> Any:
    """Return the file system or the `StorageOptions` that a caller gave; None for neither."""
    if storage_options is None:
        return filesystem
    if filesystem is not None:
        raise ValueError("pass at most one of filesystem and storage_options")
    strings = isinstance(storage_options, Mapping) and all(
        isinstance(each, str) for pair in storage_options.items() for each in pair
    )
    if not strings:  # the values are not shown: they may be secrets
        kind = type(storage_options).__name__
        raise TypeError(f"storage_options must be a dict of strings, not a {kind}")
    return StorageOptions(dict(storage_options))


def is_object(path: object, filesystem: Any = None) -> TypeGuard[str]:
    """Whether a path is a URL, or in a file system that is given."""
    given = filesystem is not None and not isinstance(filesystem, StorageOptions)
    return isinstance(path, str) and (given or _URL.match(path) is not None)


def split_url(url: str, argument: str) -> tuple[str, str, str]:
    """Return scheme, bucket and key of a URL; the key may be empty or a pattern."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    scheme = scheme.lower()
    if scheme not in SCHEMES:
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise ValueError(f"{argument} must be a path, or a URL that begins with one of {known}")
    # An Azure URL may be abfss://container@account.dfs.core.windows.net/key.
    if ":" in bucket or ("@" in bucket and not scheme.startswith("abfs")):
        raise ValueError(
            f"{argument} must not contain credentials; pass them as storage_options, or set them "
            "in the environment"
        )
    return scheme, bucket, key


def open_bucket(scheme: str, bucket: str, filesystem: Any = None) -> Any:
    """Return the obstore client of a bucket."""
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise ImportError(f"{scheme}:// needs obstore: pip install tamis[cloud]") from None
    options: dict[str, Any] = {}
    if isinstance(filesystem, StorageOptions):
        options = dict(filesystem.values)
    given: dict[str, Any] = {}
    for name in list(options):
        own = re.sub("^(aws|google|azure)_", "", name.lower())
        if own in _CLIENT_OPTIONS:
            given.setdefault("client_options", {})[own] = options.pop(name)
        elif own == "max_retries":
            given["retry_config"] = {"max_retries": int(options.pop(name))}
    try:
        opener: Any = from_url  # whose types differ from store to store
        return opener(f"{scheme}://{bucket}", config=options, **given)
    except (BaseError, ValueError, TypeError) as error:
        raise ValueError(
            f"storage_options or environment are not valid for {scheme}://{bucket}: "
            f"{_message(error)}"
        ) from None


def locate(path: str, filesystem: Any = None) -> Object:
    """Find an object by its URL, or by its path in a file system of fsspec or pyarrow."""
    if filesystem is not None and not isinstance(filesystem, StorageOptions):
        if not path or path.endswith("/"):
            raise IsADirectoryError(errno.EISDIR, "not the name of an object", path)
        return FileObject(as_filesystem(filesystem), path)
    scheme, bucket, key = split_url(path, "path")
    if not key or key.endswith("/"):  # clients drop the slash, and would write another object
        raise IsADirectoryError(errno.EISDIR, "not the name of an object", path)
    check_key(key, path)
    return CloudObject(open_bucket(scheme, bucket, filesystem), bucket, key, path)


def check_key(key: str, name: str) -> None:
    """Raise if obstore cannot address a key."""
    if _UNADDRESSABLE.search(key):
        raise ValueError(
            f"{name!r} cannot be opened: the parts of a key between slashes must not be empty, "
            "'.' or '..', nor contain control characters"
        )


def as_filesystem(given: Any) -> Any:
    """Return a pyarrow file system, given one of pyarrow or fsspec."""
    try:
        from pyarrow import fs
    except ImportError:
        raise ImportError("filesystem= needs pyarrow: pip install tamis[arrow]") from None
    if isinstance(given, fs.FileSystem):
        return given
    if hasattr(given, "protocol") and hasattr(given, "open"):
        return fs.PyFileSystem(fs.FSSpecHandler(given))
    kind = type(given).__name__
    raise TypeError(f"filesystem must be a file system of fsspec or pyarrow.fs, not a {kind}")


@dataclass(frozen=True)
class CloudObject:
    """An object in a bucket, read and written by obstore."""

    store: Any
    bucket: str
    key: str
    name: str

    @property
    def path(self) -> str:
        """The bucket and the key."""
        return f"{self.bucket}/{self.key}"

    def info(self) -> Info | None:
        """Return size and ETag, or None if there is no object."""
        try:
            return self._head()
        except FileNotFoundError:
            return None

    def _head(self) -> Info:
        with named_errors(self.name):
            found = self.store.head(self.key)
        return Info(int(found["size"]), found["e_tag"])

    def open(self) -> tuple[Info, Read]:
        """Return size and ETag, and a function that reads ranges in parallel."""

        def read(ranges: Ranges) -> list[bytes]:
            starts, ends = [start for start, _ in ranges], [end for _, end in ranges]
            with named_errors(self.name):
                found = self.store.get_ranges(self.key, starts=starts, ends=ends, coalesce=0)
            return [bytes(each) for each in found]

        return self._head(), read

    def upload(self, file: str, tag: str | None = None) -> str | None:
        """Replace the object by a file; see `Object.upload`."""
        options: dict[str, Any] = {}
        if tag is not None and os.path.getsize(file) <= MAX_CONDITIONAL:
            options = {"mode": {"e_tag": tag}, "use_multipart": False}
        elif tag is not None:  # larger ones are uploaded in parts, which leaves a moment for a race
            now = self.info()
            if now is None or now.tag != tag:
                raise replaced(self.name)
        with named_errors(self.name):
            written = self.store.put(self.key, Path(file), **options)
        etag: str | None = written["e_tag"]
        return etag


@dataclass(frozen=True)
class FileObject:
    """A file in a file system of pyarrow, or of fsspec through pyarrow's handler.

    Writes are not conditional.
    """

    filesystem: Any
    path: str

    @property
    def name(self) -> str:
        """The path."""
        return self.path

    def info(self) -> Info | None:
        """Return size and ETag or time, or None if there is no file."""
        try:
            return self.open()[0]
        except FileNotFoundError:
            return None

    def open(self) -> tuple[Info, Read]:
        """Return size and ETag or time, and a function that reads ranges."""
        with named_errors(self.path):
            file = self.filesystem.open_input_file(self.path)
            size = file.size()
            described: dict[Any, bytes] = {}
            with suppress(NotImplementedError, OSError, ValueError):
                described = file.metadata() or {}
            tag = described.get(b"ETag") or described.get("ETag")
            text = None if tag is None else tag.decode()
            if text is None:
                time = self.filesystem.get_file_info(self.path).mtime_ns
                text = None if time is None else str(time)

        def read(ranges: Ranges) -> list[bytes]:
            with named_errors(self.path):
                return [file.read_at(end - start, start) for start, end in ranges]

        return Info(size, text), read

    def upload(self, file: str, tag: str | None = None) -> str | None:
        """Replace the file; a check of ``tag`` comes first, and leaves a moment for a race."""
        if tag is not None:
            now = self.info()
            if now is None or now.tag != tag:
                raise replaced(self.path)
        with named_errors(self.path):
            self._write(file)
        after = self.info()
        size = os.path.getsize(file)
        if after is None or after.size != size:
            found = "does not exist" if after is None else f"has {after.size} bytes"
            text = f"the object {found} after an upload of {size} bytes"
            raise OSError(errno.EIO, text, self.path)
        return after.tag

    def _write(self, file: str) -> None:
        import pyarrow as pa

        kind = self.filesystem
        while hasattr(kind, "base_fs"):
            kind = kind.base_fs
        # Elsewhere a file is written in steps, so it is renamed when it is complete.
        direct = kind.type_name.rpartition("+")[2] in ("s3", "gcs", "gs", "abfs", "az")
        target = self.path if direct else f"{self.path}.{secrets.token_hex(8)}.saving"
        try:
            with pa.memory_map(file) as source:
                content = source.read_buffer()
                # One call: closing after an error would complete the upload of a part.
                stream = self.filesystem.open_output_stream(target, compression=None)
                stream.write(content)
                stream.close()
            if not direct:
                self.filesystem.move(target, self.path)
        except BaseException:
            if not direct:
                with suppress(Exception):
                    self.filesystem.delete_file(target)
            raise


@contextmanager
def named_errors(name: str) -> Iterator[None]:
    """Raise the errors of a client as an `OSError` that names the object, but no credentials."""
    # `from None`: the message of a client may contain credentials.
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None
    except Exception as error:
        raise _failure(name, error) from None


def _failure(name: str, error: Exception) -> OSError:
    kind = type(error).__name__
    if kind in ("PreconditionError", "AlreadyExistsError"):
        return replaced(name)
    if kind in ("PermissionDeniedError", "UnauthenticatedError", "PermissionError"):
        return PermissionError(errno.EACCES, f"{kind}: {_message(error)}", name)
    number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
    if isinstance(error, TimeoutError) or re.search(r"Time(d)?[Oo]ut", str(error)):
        return TimeoutError(errno.ETIMEDOUT, f"timed out: {_message(error)}", name)
    return OSError(number, f"{kind}: {_message(error)}", name)


def _message(error: Exception) -> str:
    """Return the first line of a message, without the body of an answer and options of a URL."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    text = re.sub(r"(\w+://)[^/\s@]*@", r"\1", re.sub(r"\?\S*", "", text.partition("\n")[0]))
    return text.partition("<")[0].rstrip(" :")


def replaced(name: str) -> OSError:
    """Return the error for an object that is no longer the one that was opened."""
    text = "another process replaced it since it was opened: open it again"
    return OSError(errno.ESTALE, text, name)


def save_path(path: FilePath, write: Callable[[int], None], filesystem: Any = None) -> None:
    """Replace a file or an object as a whole: ``write`` fills a temporary file."""
    if is_object(path, filesystem):
        target = locate(path, filesystem)
        with tempfile.NamedTemporaryFile(prefix=".tamis-") as file:
            write(file.fileno())
            target.upload(file.name)
        return
    check_local(path, filesystem)
    from tamis._files import save_atomically

    save_atomically(path, write)


def check_local(path: FilePath, filesystem: Any, argument: str = "filesystem") -> None:
    """Raise if a file system is given with a path that is not a str."""
    if filesystem is not None and not isinstance(filesystem, StorageOptions):
        raise TypeError(f"path must be a str with {argument}, not {path!r}")
