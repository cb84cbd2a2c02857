"""An asynchronous guard with the methods of `tamis.Guard`, so that the same tests run on both.

Its event loop runs in a thread, one for all guards of the process.
"""

import asyncio
import os
import threading

import tamis

_loops = {}
_starting = threading.Lock()


def _loop():
    """The loop of this process: a forked child has none of its parent's threads."""
    with _starting:
        if os.getpid() not in _loops:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="test loop", daemon=True).start()
        return _loops[os.getpid()]


def run(coroutine):
    return asyncio.run_coroutine_threadsafe(coroutine, _loop()).result()


class BlockingGuard:
    """Calls a `tamis.AsyncGuard` and waits; other attributes are read from its guard."""

    def __init__(self, store, filter=None, **options):
        self.asynchronous = tamis.AsyncGuard(store, filter, **options)
        run(self.asynchronous.open())

    def get(self, key):
        return run(self.asynchronous.get(key))

    def get_many(self, keys):
        return run(self.asynchronous.get_many(keys))

    def maybe(self, key):
        return run(self.asynchronous.maybe(key))

    def maybe_many(self, keys):
        return run(self.asynchronous.maybe_many(keys))

    def put(self, key, value):
        return run(self.asynchronous.put(key, value))

    def put_many(self, items):
        return run(self.asynchronous.put_many(items))

    def delete(self, key):
        return run(self.asynchronous.delete(key))

    def delete_many(self, keys):
        return run(self.asynchronous.delete_many(keys))

    def rebuild(self):
        return run(self.asynchronous.rebuild())

    def save(self):
        return run(self.asynchronous.save())

    def close(self):
        return run(self.asynchronous.close())

    def __contains__(self, key):
        return run(self.asynchronous.contains(key))

    def __iter__(self):
        async def all_keys():
            return [key async for key in self.asynchronous]

        return iter(run(all_keys()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __getattr__(self, name):
        return getattr(self.asynchronous.guard, name)
