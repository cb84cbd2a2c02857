"""Runs one scene: workers under load, one fault after the other, and the history of it all."""

import asyncio
import json
import random
import time
from collections import Counter, deque
from contextlib import suppress

from campaign.history import Fault, Operation
from campaign.processes import HUNG, Failed, Gone, Worker

RECOVERY = 20.0
"""Seconds after a fault within which a guard has to answer again, on a busy machine; below HUNG."""

REFUSED = {"NotOpen", "LeaseError", "CapacityError"}
"""Errors that say that nothing was written."""


MOODS = {
    "mixed": (25, 20, 45, 9, 1),
    "writes": (40, 35, 20, 5, 0),
    "reads": (1, 0, 90, 9, 0),
}
"""Weights of put, delete, get, get of an absent key, and save: most puts are of absent keys."""


class Scene:
    """A backend, its workers, the load on them, and the history."""

    def __init__(self, name, backend, zygotes, guards, *, server_clock, folder, seed, lease, base):
        self.name, self.backend, self.zygotes, self.lease = name, backend, zygotes, lease
        self.server_clock, self.folder = server_clock, folder
        self.socket = str(folder / "supervisor.sock")
        self.random = random.Random(f"{seed} {name} load")
        texts = backend.options != {}  # a table of text keys
        self.base = [f"base {i}" for i in range(base)]
        self.hot = [f"hot {i}" if texts or i % 2 else i for i in range(120)]
        self.operations: list[Operation] = []
        self.faults: list[Fault] = []
        self.errors: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        """The first message of each error."""
        self.hung: list[str] = []
        self.unavailable: list[str] = []
        self.recent: deque[list] = deque(maxlen=8)
        """The keys of the latest puts."""
        self.values = 0
        self._settled = 0
        self._server = None
        self._load: list[asyncio.Task] = []
        self._open_gate = asyncio.Event()
        self._busy = 0
        self.workers = []
        for i, options in enumerate(guards):
            config = {
                "store": backend.store,
                "arguments": backend.arguments,
                "options": backend.options | backend.limits,
                "guards": options,
                "lease": lease,
            }
            letter = "abc"[i]
            self.workers.append(Worker(self, letter, zygotes[i % len(zygotes)], config))
        self.guards = [(w, guard) for w in self.workers for guard in range(len(w.config["guards"]))]
        self.draw_moods(self.random)
        self.strangers = hasattr(backend, "write") and backend.shared

    @property
    def keys(self):
        return self.base + self.hot

    async def start(self):
        self._server = await asyncio.start_unix_server(self._connected, self.socket, limit=1 << 24)
        for worker in self.workers:
            await worker.start()
            await asyncio.wait_for(worker.opened, HUNG)
        first = self.workers[0]
        for i in range(0, len(self.base), 500):
            await self.put(first, 0, self.base[i : i + 500])
        self._load = [
            asyncio.create_task(self._drive(worker)) for worker in self.workers for _ in range(3)
        ]
        if self.strangers:
            self._load.append(asyncio.create_task(self._drive_stranger()))
        self.resume()

    async def close(self):
        for task in self._load:
            task.cancel()
        await asyncio.gather(*self._load, return_exceptions=True)
        for worker in self.workers:
            if worker.writer is not None:
                await worker.kill()
        if self._server is not None:
            self._server.close()

    async def _connected(self, reader, writer):
        hello = json.loads(await reader.readline())
        name, generation = hello["hello"].split(".")
        worker = next(each for each in self.workers if each.name == name)
        if worker.generation == int(generation):
            with suppress(asyncio.CancelledError):
                await worker.serve(reader, writer, hello)

    # The load.

    def pause(self):
        self._open_gate.clear()

    def resume(self):
        self._open_gate.set()

    async def idle(self):
        """Wait until the calls under way have returned; count those that do not as hung."""
        until = time.monotonic() + HUNG
        while self._busy and time.monotonic() < until:
            await asyncio.sleep(0.005)
        if self._busy:
            for worker in self.workers:
                if worker._answers:
                    self.hung.append(f"{worker.process}: {len(worker._answers)} calls")
                    await worker.replace(worker.generation)

    def draw_moods(self, chance):
        """Draw which guards mostly read and which mostly write.

        A guard that writes soon hears that its lease is gone. So often one only reads what the
        others write.
        """
        guards = self.guards
        if chance.random() < 0.6:
            self.moods = dict.fromkeys(guards, "writes") | {chance.choice(guards): "reads"}
        else:
            self.moods = {guard: chance.choice(list(MOODS)) for guard in guards}

    async def _drive(self, worker):
        chance = self.random
        while True:
            await self._open_gate.wait()
            self._busy += 1
            try:
                await self._act(worker, chance)
            except Gone:
                await asyncio.sleep(0.02)
            finally:
                self._busy -= 1
            await asyncio.sleep(chance.uniform(0, 0.006))

    async def _act(self, worker, chance):
        guard = chance.randrange(len(worker.config["guards"]))
        hot = chance.sample(self.hot, chance.choice([1, 1, 1, 3, 8]))
        mood = MOODS[self.moods[worker, guard]]
        action = chance.choices(["put", "delete", "get", "absent", "save"], mood)[0]
        if action == "put":
            await self.put(worker, guard, hot)
        elif action == "delete":
            await self.delete(worker, guard, hot)
        elif action == "get" and self.recent and chance.random() < 0.6:
            # What was put a moment ago is what a stale filter denies.
            await self.get(worker, guard, chance.choice(self.recent))
        elif action == "get":
            some = chance.sample(self.base, min(len(self.base), chance.choice([0, 20])))
            await self.get(worker, guard, hot + some)
        elif action == "absent":
            await self.get(worker, guard, [f"absent {chance.randrange(10**6)}"])
        else:
            await worker.start_call(do="save", guard=guard)

    async def _drive_stranger(self):
        chance = self.random
        while True:
            await self._open_gate.wait()
            self._busy += 1
            try:
                await self.write_as_stranger(chance.choice(self.hot), chance.random() < 0.6)
            finally:
                self._busy -= 1
            await asyncio.sleep(chance.uniform(0, 0.03))

    # Recorded operations.

    def new_values(self, keys):
        self.values += 1
        return [f"v{self.values}.{i}" for i in range(len(keys))]

    def begin(self, process, kind, keys, **more):
        operation = Operation(process, kind, keys, time.monotonic(), **more)
        self.operations.append(operation)
        return operation

    async def put(self, worker, guard, keys):
        values = self.new_values(keys)
        process = f"{worker.process} guard {guard}"
        operation = self.begin(process, "put", keys, values=values)
        await self._finish(operation, worker, do="put", guard=guard, keys=keys, values=values)
        if operation.outcome == "ok" and len(keys) <= 8:
            self.recent.append(keys)

    async def delete(self, worker, guard, keys):
        operation = self.begin(f"{worker.process} guard {guard}", "delete", keys)
        await self._finish(operation, worker, do="delete", guard=guard, keys=keys)

    async def get(self, worker, guard, keys):
        operation = self._begin_get(worker, guard, keys)
        found = await self._finish(operation, worker, do="get", guard=guard, keys=keys)
        if operation.outcome == "ok":
            operation.values = found
            operation.absent = [i for i, value in enumerate(found) if value is None]

    async def sweep(self, worker, guard):
        """Get every key through a guard."""
        operation = self._begin_get(worker, guard, self.keys)
        absent = await self._finish(operation, worker, do="absent", guard=guard, keys=self.keys)
        if operation.outcome == "ok":
            operation.absent = absent
        return operation

    def _begin_get(self, worker, guard, keys):
        staleness = worker.config["guards"][guard]["staleness"]
        return self.begin(f"{worker.process} guard {guard}", "get", keys, staleness=staleness)

    async def _finish(self, operation, worker, **command):
        try:
            answer = await worker.call(**command)
        except Failed as failed:
            self.count_error(failed)
            operation.error = str(failed)
            if failed.error in REFUSED:
                operation.outcome, operation.end = "refused", time.monotonic()
            return None
        operation.outcome, operation.end = "ok", time.monotonic()
        return answer

    def count_error(self, failed):
        self.errors[failed.error] += 1
        self.examples.setdefault(failed.error, str(failed))

    async def write_as_stranger(self, key, put, seconds=0.0):
        kind = "put" if put else "delete"
        values = self.new_values([key]) if put else None
        operation = self.begin("stranger", kind, [key], values=values)
        try:
            if put:
                await asyncio.to_thread(self.backend.write, key, values[0], seconds)
            else:
                await asyncio.to_thread(self.backend.remove, key)
        except Exception as error:
            operation.error = f"{type(error).__name__}: {error}"
            await asyncio.sleep(0.05)
        else:
            operation.outcome, operation.end = "ok", time.monotonic()

    # After a fault.

    async def change_token(self):
        """Read the store itself, and note what it holds."""
        begin = time.monotonic()
        if hasattr(self.backend, "read"):
            found = await asyncio.to_thread(self.backend.read)
        else:
            values = await self.workers[0].call(do="raw", keys=self.keys)
            found = {k: v for k, v in zip(self.keys, values, strict=True) if v is not None}
        keys = self.keys
        absent = [i for i, key in enumerate(keys) if key not in found]
        operation = Operation("store", "seen", keys, begin, time.monotonic(), "ok", absent=absent)
        self.operations.append(operation)
        return found

    def record_loss(self, begin, found):
        """Note that the server may have lost keys since ``begin``; ``found`` is what it has now."""
        lost = [key for key in self.keys if key not in found]
        now = time.monotonic()
        self.operations.append(Operation("server", "lost", lost, begin, now, "ok"))
        if getattr(self.backend, "rolls_back", False):
            # A key that was deleted is back. A guard that holds its lease cannot know before it
            # renews it, and none promised to: the delete began.
            back = [key for key in self.hot if key in found]
            until = now + 1.5 * self.lease
            self.operations.append(Operation("server", "rolled back", back, begin, until, "ok"))

    async def settle(self):
        """Let calls end and leases expire, compare store and guards, and continue the load."""
        self.pause()
        await self.idle()
        for worker in self.workers:
            await self._within(HUNG, worker, asyncio.shield(worker.opened))
        await asyncio.sleep(self.lease)
        await self._wait_for_transactions()
        # A write that failed, or whose process died, has no connection left to take effect through.
        now = time.monotonic()
        for operation in self.operations[self._settled :]:
            operation.end = min(operation.end, now)
        self._settled = len(self.operations)
        await self.change_token()
        await asyncio.sleep(max(w.config["guards"][g]["staleness"] for w, g in self.guards))
        await asyncio.gather(
            *(self._within(HUNG, w, self._sweep_until_ok(w, g)) for w, g in self.guards)
        )
        for worker in self.workers:
            await self._within(HUNG, worker, worker.note_saved())
        self.resume()

    async def _wait_for_transactions(self):
        """Wait until the server has ended the transactions of clients, also of those killed."""
        until = time.monotonic() + RECOVERY
        while hasattr(self.backend, "busy") and (
            busy := await asyncio.to_thread(self.backend.busy)
        ):
            if time.monotonic() > until:
                self.hung.append(f"transactions left open: {busy}")
                return
            await asyncio.sleep(0.02)

    async def _sweep_until_ok(self, worker, guard):
        """Get every key through a guard, which may need some calls to find its server again."""
        until, generation = time.monotonic() + RECOVERY, worker.generation
        while (operation := await self.sweep(worker, guard)).outcome != "ok":
            if time.monotonic() > until:
                self.unavailable.append(f"{operation.process}: {operation.error}")
                return await worker.replace(generation)
            await asyncio.sleep(0.1)

    async def _within(self, seconds, worker, waiting):
        """Wait for a worker; one that does not answer counts as hung and is replaced."""
        generation = worker.generation
        try:
            await asyncio.wait_for(waiting, seconds)
        except Gone:
            pass
        except TimeoutError:
            self.hung.append(f"{worker.process}: {worker.failures[-1:]}")
            await worker.replace(generation)
