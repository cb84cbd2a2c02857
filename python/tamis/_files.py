"""Atomic writes of files, and reads of regular ones.

A file is written under a temporary name in its own folder, flushed and renamed. The writer holds a
lock on the temporary file, which ends with its process. An unlocked temporary file was left by a
killed save; the next save in the folder deletes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from tamis._checks import check_path
from tamis._types import FilePath

TEMPORARY = re.compile(r"\.tamis-[0-9a-f]{16}\.saving")
"""The names of temporary files."""

_MAX_LISTED = 4096
"""Files of a folder that a save lists to find temporary ones, in about 1 ms."""


def save_atomically(path: FilePath, write: Callable[[int], None]) -> None:
    """Replace a file atomically: ``write`` fills a temporary file, which is flushed and renamed.

    Links are followed. A path that exists and is not a regular file raises `OSError`.
    """
    mode = _mode_of(path)
    target = Path(os.path.realpath(os.fsdecode(path)))
    _sweep(target.parent)
    with name_in_errors(path):
        # Until it has the permissions of the file that it replaces, nobody else may open it.
        temporary, descriptor = _create(target.parent, 0o666 if mode is None else 0o600)
        try:
            try:
                if mode is not None:
                    os.fchmod(descriptor, mode)
                write(descriptor)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, target)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        directory = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextmanager
def name_in_errors(path: FilePath) -> Iterator[None]:
    """Name this file in an `OSError` that names no file, or a temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fsdecode(path)) from error


def open_regular(path: FilePath) -> BinaryIO:
    """Open a regular file to read it. A pipe is refused: opening it would wait for its writer."""
    _mode_of_regular(path)
    return open(os.fspath(path), "rb")


def _mode_of(path: FilePath) -> int | None:
    """Return the permissions of a file that may be replaced, or None if there is no file."""
    try:
        return _mode_of_regular(path)
    except FileNotFoundError:
        return None


def _mode_of_regular(path: FilePath) -> int:
    # `check_path` refuses ints, which would be descriptors of other files.
    mode = os.stat(check_path(path)).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fsdecode(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fsdecode(path))
    return stat.S_IMODE(mode)


def _create(folder: Path, mode: int) -> tuple[Path, int]:
    """Create a temporary file with these permissions, less the umask, and lock it."""
    while True:
        temporary = folder / f".tamis-{secrets.token_hex(8)}.saving"
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        # If the file system has no locks, `_sweep` deletes nothing either.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Another save may have found it before it was locked.
        if os.fstat(descriptor).st_nlink:
            return temporary, descriptor
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Delete the temporary files of this user's killed saves."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, _MAX_LISTED):
            if TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with suppress(OSError):
                    _delete_unlocked(entry)


def _delete_unlocked(entry: os.DirEntry[str]) -> None:
    descriptor = os.open(entry.path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError if it is held
            os.unlink(entry.path)
    finally:
        os.close(descriptor)
