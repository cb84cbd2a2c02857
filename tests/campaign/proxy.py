"""A proxy on the loopback between guards and their server, which cuts the network on demand."""

import asyncio
from contextlib import suppress


class Proxy:
    """Forwards connections to a port of the loopback while it is `open`.

    Held bytes reach the other side when the network heals, unless `cut` aborted their connection
    first. While `losing_replies`, requests go through and what the server says does not.
    """

    def __init__(self, target: int):
        self.target = target
        self.port = 0
        self.losing_replies = False
        self.refusing = False
        self._server = None
        self._flow = asyncio.Event()
        self._flow.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task] = set()

    async def start(self):
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self):
        if self._server is not None:
            self._server.close()
        self.abort()
        self.resume()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def hold(self):
        """Let no byte through; connections stay open."""
        self._flow.clear()

    def resume(self):
        """Deliver what was held, and what comes."""
        self.losing_replies = self.refusing = False
        self._flow.set()

    def abort(self):
        """Reset all connections; what they held is gone."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def refuse(self):
        """Reset all connections and every new one."""
        self.refusing = True
        self.abort()

    async def _connected(self, reader, writer):
        task = asyncio.current_task()
        self._pumps.add(task)
        self._writers.add(writer)
        other = None
        try:
            if self.refusing:
                return
            with suppress(OSError, asyncio.CancelledError):
                await self._flow.wait()
                there, other = await asyncio.open_connection("127.0.0.1", self.target)
                self._writers.add(other)
                await asyncio.gather(
                    self._pump(reader, other, replies=False),
                    self._pump(there, writer, replies=True),
                )
        finally:
            for each in (writer, other):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()
            self._pumps.discard(task)

    async def _pump(self, reader, writer, *, replies):
        try:
            while data := await reader.read(1 << 16):
                await self._flow.wait()
                if writer.transport.is_closing():
                    return
                if replies and self.losing_replies:
                    continue
                writer.write(data)
                await writer.drain()
            await self._flow.wait()
            writer.write_eof()
        except (OSError, RuntimeError):
            # One side was reset, so the other is, too.
            writer.transport.abort()
