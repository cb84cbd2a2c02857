"""Calls of the operating system that fail, and calls that must return."""

import errno
import os
import threading


def fail_at(monkeypatch, name, count):
    """Let the count-th call of a function of `os` fail as on a full disk; later ones work."""
    true, calls = getattr(os, name), []

    def called(*args, **kwargs):
        calls.append(args)
        if len(calls) == count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return true(*args, **kwargs)

    monkeypatch.setattr(os, name, called)
    return calls


def in_thread(work, *arguments):
    """Run a function in a thread, and fail if it does not return."""
    result = []
    thread = threading.Thread(target=lambda: result.append(work(*arguments)), daemon=True)
    thread.start()
    thread.join(20)
    assert result, "it waits"
    return result[0]
