"""The processes under test: guards that do what the supervisor says.

Started once as a process that has tamis loaded; it reads a configuration per line and forks a
worker for each, which connects to the supervisor's socket. Commands and answers are lines of JSON.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from blocking import BlockingGuard

import tamis
from tamis import stores

FILTERS = {
    "quotient": lambda seed: tamis.Quotient(capacity=8000, fpr=2**-5, seed=seed),
    "telescoping": lambda seed: tamis.Telescoping(capacity=2000, fpr=2**-4, seed=seed),
    "cuckoo": lambda seed: tamis.Cuckoo(capacity=16000, fpr=2**-5, seed=seed),
    "bloom": lambda seed: tamis.Bloom(capacity=8000, fpr=0.05, seed=seed),
}


class Closed(Exception):
    """The guards were closed while a command was carried out."""


class NotOpen(Exception):
    """A call before the guards are open."""


class Worker:
    """One process: a store, one or more guards before it, and the supervisor's socket."""

    def __init__(self, config):
        self.config = config
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(config["socket"])
        self.sending = threading.Lock()
        self.guards = []
        self.store = None
        self.armed = None
        self.attaching = threading.local()
        self.send(hello=config["name"], pid=os.getpid())

    def send(self, **answer):
        with self.sending:
            self.socket.sendall(json.dumps(answer).encode() + b"\n")

    def serve(self):
        # Whatever hangs, a supervisor that is gone ends the worker.
        commands = self.socket.makefile("rb")
        pool = ThreadPoolExecutor(16)
        pool.submit(self.open)
        for line in commands:
            pool.submit(self.answer, json.loads(line))
        os._exit(0)

    # Opening, with hooks to stop at.

    def open(self):
        while True:
            try:
                self.open_once()
                break
            except Exception as error:
                self.send(failed=f"{type(error).__name__}: {error}")
                time.sleep(0.05)
        self.send(opened=True)

    def open_once(self):
        # Guards have a store each, if its keys are not in this process alone.
        shared = self.config["store"] in ("Memory", "RocksDB")
        store, guards = self.store, []
        try:
            for options in self.config["guards"]:
                if store is None or not shared:
                    store = self.make_store()
                guards.append(make_guard(store, options, self.config["lease"]))
        except BaseException:
            for guard in guards:
                guard.close()
            if store is not None:
                store.close()
            raise
        if self.config["store"] == "Memory":
            self.store = store
        self.guards = guards

    def make_store(self):
        store = getattr(stores, self.config["store"])(
            *self.config["arguments"], **self.config["options"]
        )
        for name in ("put_many", "delete_many", "contents", "attach"):
            setattr(store, name, getattr(self, name)(getattr(store, name)))
        return store

    def pause_at(self, place):
        """Say that the process is at this place and give the supervisor time to stop it there."""
        if self.armed == place:
            self.armed = None
            self.send(inside=place)
            time.sleep(0.3)

    def put_many(self, then):
        def put_many(*arguments, **options):
            self.pause_at("put")
            done = then(*arguments, **options)
            self.pause_at("committed put")
            return done

        return put_many

    delete_many = put_many

    def contents(self, then):
        def contents():
            position, parts = then()

            def read():
                try:
                    for part in parts:
                        yield part
                        self.pause_at("rebuild")
                finally:
                    if hasattr(parts, "close"):
                        parts.close()

            return position, read()

        return contents

    def attach(self, then):
        def attach(owner, hasher, *rest):
            def hashes(keys):
                if getattr(self.attaching, "now", False):
                    self.pause_at("attach")
                return hasher(keys)

            self.attaching.now = True
            try:
                return then(owner, hashes, *rest)
            finally:
                self.attaching.now = False

        return attach

    # Commands.

    def answer(self, command):
        number, guards = command.pop("id"), self.guards
        try:
            answer = {"answer": getattr(self, "do_" + command.pop("do"))(**command)}
        except Exception as error:
            if str(error).endswith("is closed") and self.guards is not guards:
                # By `do_reopen` in another thread, perhaps after a write was sent.
                error = Closed(str(error))
            kinds = [kind.__name__ for kind in type(error).__mro__]
            answer = {"error": type(error).__name__, "kinds": kinds, "message": str(error)[:300]}
        self.send(id=number, **answer)

    def guard(self, number):
        guards = self.guards
        if not guards:
            raise NotOpen("the guards are being opened")
        return guards[number]

    def do_put(self, guard, keys, values):
        if len(keys) == 1:
            self.guard(guard).put(keys[0], values[0])
        else:
            self.guard(guard).put_many(dict(zip(keys, values, strict=True)))

    def do_delete(self, guard, keys):
        if len(keys) == 1:
            return [self.guard(guard).delete(keys[0])]
        return self.guard(guard).delete_many(keys)

    def do_get(self, guard, keys):
        if len(keys) == 1:
            return [self.guard(guard).get(keys[0])]
        return self.guard(guard).get_many(keys)

    def do_absent(self, guard, keys):
        """Return which keys `get_many` does not find."""
        values = self.guard(guard).get_many(keys)
        return [i for i, value in enumerate(values) if value is None]

    def do_raw(self, keys):
        """Read the store past the guard."""
        return self.guard(0).store.get_many(
            [key.encode() if isinstance(key, str) else key for key in keys]
        )

    def do_stats(self):
        return [
            {"saved": stats.reads_saved, "passed": stats.passed, "rebuilds": stats.rebuilds}
            for stats in (guard.stats for guard in self.guards)
        ]

    def do_rebuild(self, guard):
        self.guard(guard).rebuild()

    def do_save(self, guard):
        self.guard(guard).save()

    def do_reopen(self, fresh=False):
        """Close and open the guards, ``fresh`` with new hashes and without their snapshots."""
        guards, self.guards = self.guards, []
        try:
            for guard in guards:
                guard.close()
        finally:
            for options in self.config["guards"] if fresh else ():
                Path(options["snapshot"]).unlink(missing_ok=True)
                options["seed"] += 1
            self.open()

    def do_arm(self, place):
        self.armed = place


def make_guard(store, options, lease):
    more = {"max_staleness": options["staleness"]} if options["staleness"] else {}
    filter = FILTERS[options["filter"]](options["seed"])
    guard = BlockingGuard if options.get("asynchronous") else tamis.Guard
    return guard(store, filter, snapshot=options["snapshot"], lease=lease, **more)


def main():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork():
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        Worker(json.loads(line)).serve()


if __name__ == "__main__":
    main()
