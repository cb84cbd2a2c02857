"""Objects in object stores: found by a URI or in a file system of fsspec or pyarrow.

Writing replaces an object as a whole or not at all: everything is written to a temporary file,
which is then uploaded by one request, or by a multipart upload that takes effect when it is
complete. Reading is in `tamis._ranges`. Messages name an object without the credentials of its URI.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeGuard
from urllib.parse import parse_qsl, unquote, urlsplit

from tamis._types import FilePath

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")

EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "az"),
}
"""The extra of tamis that installs the client of each scheme."""

_ARROW = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "file")
"""The schemes that pyarrow has clients for."""

SINGLE = 64 << 20
"""Most bytes that are uploaded by one request, which can be conditional."""


PART = 16 << 20
"""Bytes of a part of a larger upload."""


class Info(NamedTuple):
    """The size of an object, and its ETag, or anything else that changes with its content."""

    size: int
    tag: str | None


class Store(Protocol):
    """What is needed of a client of an object store."""

    def info(self, path: str) -> Info:
        """Return size and tag; `FileNotFoundError` if there is no object."""
        ...

    def reader(self, path: str) -> tuple[Info, Callable[[int, int], bytes]]:
        """Return size and tag, and a function of an offset and a length that reads by threads."""
        ...

    def upload(self, file: str, path: str, tag: str | None) -> None:
        """Replace an object by a file; if ``tag`` is given, only the object that has this tag."""
        ...


@dataclass(frozen=True)
class Object:
    """An object in a store. ``name`` is for messages."""

    store: Store
    path: str
    name: str

    def info(self) -> Info | None:
        """Return size and tag, or None if there is no object."""
        try:
            return self.store.info(self.path)
        except FileNotFoundError:
            return None
        except Exception as error:
            raise failure(self.name, error) from None


def is_object(path: object, filesystem: Any = None) -> TypeGuard[str]:
    """Whether a path is a URI, or in a file system that is given."""
    return isinstance(path, str) and (filesystem is not None or _URI.match(path) is not None)


def has_credentials(path: str) -> bool:
    """Whether a URI has a user, a password or options."""
    return public_name(path) != path


def public_name(path: object) -> str:
    """Return a URI without user, password and options, for messages; other paths as they are."""
    text = os.fsdecode(path) if isinstance(path, bytes | os.PathLike) else str(path)
    if _URI.match(text) is None:
        return text
    scheme, _, rest = text.partition("://")
    rest = rest.partition("?")[0]
    if _is_cut(scheme, rest):
        rest = rest.rpartition("@")[2] if "@" in rest else "***"
    authority, slash, key = rest.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{key}"


def _is_cut(scheme: str, rest: str) -> bool:
    """Whether a secret in a URI has a slash, which ends it: no name of a bucket has a colon."""
    authority = rest.partition("/")[0]
    return scheme.lower() in EXTRAS and "@" not in authority and ":" in authority


def check_secret(uri: str, argument: str) -> None:
    """Refuse a URI whose secret has a slash: the rest would be the name of an object."""
    if _is_cut(*uri.partition("://")[::2]):
        name = public_name(uri)
        raise ValueError(f"{argument} must have %2F for a '/' in the secret of its URI: {name!r}")


def failure(name: str, error: BaseException) -> OSError:
    """Return an error of a client as an `OSError` that names the object, but no credentials."""
    # `from None` where it is raised: the message of a client may contain what it was given.
    number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
    if isinstance(error, TimeoutError):
        number = errno.ETIMEDOUT
    if isinstance(error, PermissionError):
        number = errno.EACCES
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return OSError(number, f"{type(error).__name__}: {_without_secrets(text)}", name)


_SECRET = re.compile(
    r"(\w+://)[^/\s@]+(?=@)|([?&;](?:[\w-]*(?:key|secret|token|sig\w*)[\w-]*)=)[^&\s]+"
)


def _without_secrets(text: str) -> str:
    text = _SECRET.sub(lambda found: (found[1] or found[2]) + "***", text)
    for name, value in os.environ.items():
        if re.search("SECRET|TOKEN|PASSWORD|ACCESS_KEY|ACCOUNT_KEY", name) and len(value) >= 8:
            text = text.replace(value, "***")
    return text


def locate(path: str, filesystem: Any = None) -> Object:
    """Find an object by its URI, or by its path in a file system of fsspec or pyarrow."""
    name = public_name(path)
    if filesystem is None:
        check_secret(path, "path")
    scheme, _, rest = name.rpartition("://")
    in_bucket = scheme.lower() in EXTRAS
    # Clients drop a slash at the end, and would write another object.
    if name.endswith("/") or not (rest.partition("/")[2] if in_bucket else rest):
        raise IsADirectoryError(errno.EISDIR, "not the name of an object", name)
    if filesystem is not None:
        return Object(store_of(filesystem), path, name)
    try:
        filesystem, inner = open_uri(path)
    except (ImportError, OSError):
        raise
    except Exception as error:
        raise ValueError(
            f"path must be a URI that fsspec or pyarrow opens, not {name!r}: "
            f"{_without_secrets(str(error))}"
        ) from None
    return Object(store_of(filesystem), inner, name)


def open_uri(uri: str) -> tuple[Any, str]:
    """Return the file system of a URI, of fsspec if its client is installed, and the path in it."""
    scheme, _, rest = uri.partition("://")
    scheme = scheme.lower()  # clients take S3:// for the name of a bucket
    uri = f"{scheme}://{rest}"
    try:
        return open_fsspec(uri)
    except (ImportError, ValueError) as error:
        if scheme in _ARROW:
            with suppress(ImportError):
                from pyarrow import fs

                found: tuple[Any, str] = fs.FileSystem.from_uri(uri)
                return found
        if scheme in EXTRAS:
            message = f"{scheme}:// needs a client: pip install tamis[{EXTRAS[scheme]}]"
            raise ImportError(message) from None
        if isinstance(error, ImportError):
            raise ImportError(f"{scheme}:// needs fsspec and a client for it: {error}") from None
        raise


def open_fsspec(uri: str) -> tuple[Any, str]:
    """Return the file system of fsspec for a URI, and the path in it."""
    from fsspec import get_filesystem_class

    scheme = uri.partition("://")[0].lower()
    cls = get_filesystem_class(scheme)
    options: dict[str, Any] = {}
    if scheme in ("s3", "s3a"):
        options, uri = s3_options(uri)
    else:
        options = cls._get_kwargs_from_urls(uri)
    return cls(**options), cls._strip_protocol(uri)


def s3_options(uri: str) -> tuple[dict[str, Any], str]:
    """Return the arguments of s3fs for a URI as pyarrow reads it, and the URI without them."""
    parts = urlsplit(uri)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = given.keys() - {"endpoint_override", "scheme", "region"}
    if unknown:
        raise ValueError(
            f"the options of a URI, after '?', must be endpoint_override, scheme or region, not "
            f"{', '.join(sorted(unknown))}"
        )
    # A listing that is cached would hide new objects.
    options: dict[str, Any] = {"use_listings_cache": False}
    if "endpoint_override" in given:
        endpoint = given["endpoint_override"]
        options["endpoint_url"] = f"{given.get('scheme', 'https')}://{endpoint}"
    if "region" in given:
        options["client_kwargs"] = {"region_name": given["region"]}
    if parts.username:
        options["key"] = unquote(parts.username)
        options["secret"] = unquote(parts.password or "")
    return options, public_name(uri)


def store_of(filesystem: Any) -> Store:
    """Return the store of a file system of fsspec or pyarrow."""
    if hasattr(filesystem, "cat_file") and hasattr(filesystem, "protocol"):
        return FsspecStore(filesystem)
    inner = getattr(getattr(filesystem, "handler", None), "fs", None)
    if hasattr(inner, "cat_file"):  # fsspec within pyarrow
        return FsspecStore(inner)
    if hasattr(filesystem, "open_input_file") and hasattr(filesystem, "get_file_info"):
        return ArrowStore(filesystem)
    kind = type(filesystem).__name__
    raise TypeError(f"filesystem must be a file system of fsspec or pyarrow.fs, not a {kind}")


def listed_tag(info: dict[str, Any]) -> str | None:
    """Return the tag of a file in a listing of fsspec, or None if there is none."""
    for name in ("ETag", "etag", "generation", "md5Hash", "content_md5"):
        if info.get(name):
            return f"{info[name]}".strip('"')
    return None


def protocols(filesystem: Any) -> set[str]:
    """Return the schemes of a file system of fsspec."""
    found = getattr(filesystem, "protocol", ())
    return {found} if isinstance(found, str) else set(found)


class FsspecStore:
    """A file system of fsspec."""

    def __init__(self, filesystem: Any) -> None:
        self.filesystem = filesystem
        self._protocols = protocols(filesystem)

    def info(self, path: str) -> Info:
        """Return size and tag."""
        self.filesystem.invalidate_cache(self.filesystem._parent(path))
        found = self.filesystem.info(path)
        if found["type"] != "file":
            raise FileNotFoundError(path)
        if found["size"] is None:
            raise OSError(errno.ENOTSUP, "its size is unknown", path)
        tag = listed_tag(found)
        if tag is None:
            times = (found.get(name) for name in ("mtime", "LastModified", "created"))
            tag = next((str(time) for time in times if time), None)
        return Info(int(found["size"]), tag)

    def reader(self, path: str) -> tuple[Info, Callable[[int, int], bytes]]:
        """Return size and tag, and a function that reads."""

        def read(offset: int, length: int) -> bytes:
            return bytes(self.filesystem.cat_file(path, start=offset, end=offset + length))

        return self.info(path), read

    def upload(self, file: str, path: str, tag: str | None) -> None:
        """Replace an object by a file."""
        filesystem = self.filesystem
        if not self._protocols & EXTRAS.keys():
            # Not an object store: a file is written in steps, and then renamed.
            temporary = f"{path}.{secrets.token_hex(8)}.saving"
            try:
                filesystem.put_file(file, temporary)
                filesystem.mv(temporary, path)
            except BaseException:
                with suppress(Exception):
                    filesystem.rm_file(temporary)
                raise
            return
        options: dict[str, Any] = {}
        if self._protocols & {"s3", "s3a"}:
            single = os.path.getsize(file) <= SINGLE
            options["chunksize"] = SINGLE if single else PART
            if single and tag is not None:
                options["IfMatch"] = tag
        try:
            filesystem.put_file(file, path, **options)
        except OSError as error:
            # As s3fs reports status 412, and 409 if two conditional requests meet.
            if "IfMatch" in options and re.search("pre-?condition|Conflict", str(error), re.I):
                raise _changed(path) from None
            raise
        filesystem.invalidate_cache(filesystem._parent(path))


class ArrowStore:
    """A file system of pyarrow."""

    def __init__(self, filesystem: Any) -> None:
        self.filesystem = filesystem

    def info(self, path: str) -> Info:
        """Return size and tag."""
        return self.reader(path)[0]

    def reader(self, path: str) -> tuple[Info, Callable[[int, int], bytes]]:
        """Return size and tag, and a function that reads."""
        file = self.filesystem.open_input_file(path)
        described: dict[str, bytes] = {}
        with suppress(NotImplementedError, OSError, ValueError):
            described = file.metadata() or {}
        tag = described.get("ETag") or described.get("Last-Modified")
        name = None if tag is None else tag.decode().strip('"')
        if name is None:
            time = self.filesystem.get_file_info(path).mtime_ns
            name = None if time is None else str(time)

        def read(offset: int, length: int) -> bytes:
            content: bytes = file.read_at(length, offset)
            return content

        return Info(file.size(), name), read

    def upload(self, file: str, path: str, tag: str | None) -> None:
        """Replace an object by a file."""
        import pyarrow as pa

        filesystem, kind = self.filesystem, self.filesystem
        while hasattr(kind, "base_fs"):
            kind = kind.base_fs
        direct = kind.type_name in ("s3", "gcs", "abfs")
        target = path if direct else f"{path}.{secrets.token_hex(8)}.saving"
        try:
            with pa.memory_map(file) as source:
                whole = source.read_buffer()
                # One call: closing after an error would complete the upload of what was written.
                stream = filesystem.open_output_stream(target, compression=None)
                stream.write(whole)
                stream.close()
            if not direct:
                filesystem.move(target, path)
        except BaseException:
            if not direct:
                with suppress(Exception):
                    filesystem.delete_file(target)
            raise


def _changed(name: str) -> OSError:
    text = "another process replaced it since it was opened: open it again"
    return OSError(errno.ESTALE, text, name)


def save_object(target: Object, write: Callable[[int], None], tag: str | None = None) -> None:
    """Replace an object as a whole: ``write`` fills a temporary file, which is uploaded.

    With ``tag``, an object that has another one now is not replaced; that raises `OSError`.
    """
    with tempfile.NamedTemporaryFile(prefix=".tamis-") as file:
        write(file.fileno())
        upload(file.name, target, tag)


def upload(file: str, target: Object, tag: str | None = None) -> None:
    """Replace an object by a file, see `save_object`."""
    if tag is not None:
        # Stores without conditional requests cannot tell; they leave a moment for a race.
        now = target.info()
        if now is None or now.tag != tag:
            raise _changed(target.name)
    try:
        target.store.upload(file, target.path, tag)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ESTALE:
            raise _changed(target.name) from None
        raise failure(target.name, error) from None
    size, now = os.path.getsize(file), target.info()
    if now is None or now.size != size:
        found = "does not exist" if now is None else f"has {now.size} bytes"
        raise OSError(errno.EIO, f"the object {found} after an upload of {size} bytes", target.name)


def save_path(path: FilePath, write: Callable[[int], None], filesystem: Any = None) -> None:
    """Replace a file or an object as a whole."""
    if is_object(path, filesystem):
        save_object(locate(path, filesystem), write)
        return
    if filesystem is not None:
        raise TypeError(f"path must be a str with filesystem, not {path!r}")
    from tamis._files import save_whole

    save_whole(path, write)
