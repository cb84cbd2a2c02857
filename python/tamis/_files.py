"""Atomic writes of files."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from tamis._types import FilePath


def save_whole(path: FilePath, write: Callable[[int], None]) -> None:
    """Replace a file atomically: ``write`` fills a temporary file, which is flushed and renamed."""
    target = Path(os.path.realpath(os.fsdecode(path)))
    temporary = target.with_name(f".tamis-{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            if target.exists():
                os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
            write(descriptor)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
