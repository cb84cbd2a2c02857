"""The supervisor's end of the processes under test, and the clocks that they see."""

import asyncio
import json
import os
import signal
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

HUNG = 30.0
"""Seconds after which a call that nothing holds up any more counts as hung."""


class Gone(Exception):
    """The worker died before it answered."""


class Failed(Exception):
    """The worker answered with an error."""

    def __init__(self, answer):
        super().__init__(f"{answer['error']}: {answer['message']}")
        self.error, self.kinds = answer["error"], answer["kinds"]


class Clock:
    """The wall clock of some processes, which can step if `clock.c` could be compiled."""

    def __init__(self, path: Path, preload: Path | None):
        self._path = path
        self.step(0)
        self.env = dict(os.environ)
        if preload is not None:
            self.env |= {"LD_PRELOAD": str(preload), "CAMPAIGN_CLOCK": str(path)}

    def step(self, seconds: int):
        """Set how far the clock is off."""
        # In place: processes have the file mapped.
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT)
        os.write(file, struct.pack("=q", seconds))
        os.close(file)


class Zygote:
    """A process with tamis loaded, of which workers are forked; they share its clock."""

    def __init__(self, clock: Clock, log: Path):
        self.clock = clock
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("worker.py"))],
                stdin=subprocess.PIPE,
                stderr=file,
                env=clock.env,
            )

    def fork(self, config: dict):
        self._process.stdin.write(json.dumps(config).encode() + b"\n")
        self._process.stdin.flush()

    def close(self):
        self._process.stdin.close()
        self._process.wait()


class Worker:
    """The supervisor's end of a worker: one name, and one process after the other."""

    def __init__(self, scene, name: str, zygote: Zygote, config: dict):
        self.scene, self.name, self.zygote, self.config = scene, name, zygote, config
        self.generation = 0
        self.pid = None
        self.writer = None
        self.saved = 0
        """Reads saved by the processes that ended, as of the last time they were asked."""
        self._saved_now = 0
        self._answers: dict[int, asyncio.Future] = {}
        self._number = 0
        self.inside: asyncio.Future | None = None

    @property
    def process(self):
        return f"{self.name}.{self.generation}"

    async def start(self):
        """Fork a new process; it opens its guards when it can."""
        self.generation += 1
        self.saved, self._saved_now = self.saved + self._saved_now, 0
        self.connected = asyncio.get_running_loop().create_future()
        self.opened = asyncio.get_running_loop().create_future()
        self.failures: list[str] = []
        self.zygote.fork({**self.config, "name": self.process, "socket": self.scene.socket})
        await asyncio.wait_for(self.connected, HUNG)

    async def serve(self, reader, writer, hello):
        """Read what a process says until it is gone."""
        self.pid, self.writer = hello["pid"], writer
        opened, answers = self.opened, self._answers
        self.connected.set_result(None)
        with suppress(OSError):
            while line := await reader.readline():
                said = json.loads(line)
                if "id" in said:
                    if not (waiting := answers.pop(said["id"])).done():
                        waiting.set_result(said)
                elif "opened" in said:
                    if not opened.done():
                        opened.set_result(None)
                elif "failed" in said:
                    self.failures.append(said["failed"])
                elif self.inside and not self.inside.done():
                    self.inside.set_result(said["inside"])
        writer.close()
        if not opened.done():
            opened.set_exception(Gone())
            opened.exception()
        for waiting in answers.values():
            if not waiting.done():
                waiting.set_exception(Gone())
                waiting.exception()
        if self._answers is answers:
            self._answers = {}

    async def call(self, **command):
        self._number += 1
        waiting = asyncio.get_running_loop().create_future()
        self._answers[self._number] = waiting
        if self.writer is None or self.writer.is_closing():
            raise Gone()
        self.writer.write(json.dumps({"id": self._number, **command}).encode() + b"\n")
        said = await waiting
        if "error" in said:
            raise Failed(said)
        return said["answer"]

    def start_call(self, **command):
        """Make a call that is not part of the history, in the background."""

        async def call():
            try:
                await self.call(**command)
            except Gone:
                pass
            except Failed as failed:
                self.scene.count_error(failed)

        return asyncio.create_task(call())

    async def note_saved(self):
        with suppress(Gone, Failed):
            self._saved_now = sum(each["saved"] for each in await self.call(do="stats"))

    # Faults.

    def signal(self, number):
        os.kill(self.pid, number)

    async def kill(self):
        """Kill the process and wait until its locks are gone with it."""
        pid, self.killed_at = self.pid, time.monotonic()
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        while Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0.002)
        self.writer.close()

    async def restart(self):
        """Start a new process; a store that lived in the killed one has lost its keys."""
        await self.start()
        if self.scene.backend.store == "Memory":
            await asyncio.wait_for(self.opened, HUNG)
            self.scene.record_loss(self.killed_at, {})

    async def replace(self, generation):
        """Kill a process that does not work, unless somebody did, and start another."""
        if self.generation == generation:
            self.generation += 1
            await self.kill()
            await self.restart()

    async def reach(self, place, seconds):
        """Wait until the process is inside a put, say, and return whether it got there."""
        self.inside = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self.call(do="arm", place=place)
                await self.inside
        except (TimeoutError, Gone):
            return False
        finally:
            self.inside = None
        return True
