"""A TCP proxy on this machine that cuts its connections when it is told to, or in the middle of what they carry."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

CHUNK_BYTES = 16 << 10


class CuttingProxy:
    """Passes connections on to a port of this machine.

    cut_after: bytes towards the port after which the next connection is cut, once; None: none. cuts: how many were."""

    def __init__(self, port: int) -> None:
        self.cut_after: int | None = None
        self.cuts = 0
        self.address = ""
        self._port = port
        self._near: set[asyncio.StreamWriter] = set()
        self._refuses = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._passing: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Cut all connections."""
        for writer in self._writers:
            writer.transport.abort()

    def shut(self) -> None:
        """Cut all connections, and refuse new ones until `open`."""
        self._refuses = True
        self.cut()

    def open(self) -> None:
        """Take connections again."""
        self._refuses = False

    def stall(self) -> None:
        """Pass nothing on any more, in either direction, and keep the connections."""
        self._flows.clear()

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection."""
        task = asyncio.ensure_future(self._pass_on(reader, writer))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def close(self) -> None:
        """Cut all connections, and wait for their end."""
        self.cut()
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, far_writer}
        self._writers |= ends
        self._near.add(writer)
        try:
            await asyncio.gather(self._copy(reader, far_writer, counts=True), self._copy(far_reader, writer))
        finally:
            self._writers -= ends
            self._near.discard(writer)
            for end in ends:
                end.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counts: bool = False) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._flows.wait()
                passed += len(data)
                if counts and self.cut_after is not None and passed > self.cut_after:
                    self.cut_after = None
                    self.cuts += 1
                    self.cut()
                    return
                writer.write(data)
                await writer.drain()
        if self._refuses:
            await asyncio.Event().wait()  # until the proxy ends
        writer.transport.abort()


@asynccontextmanager
async def cutting_proxy(address: str, *, same_port: bool = False) -> AsyncIterator[CuttingProxy]:
    """A proxy to an address of this machine. same_port: it listens on that port, of another address: a page on loopback
    answers no request for another port."""
    port = int(address.rpartition(":")[2])
    proxy, host = CuttingProxy(port), "127.0.0.2" if same_port else "127.0.0.1"
    server = await asyncio.start_server(proxy.begin, host, port if same_port else 0)
    proxy.address = f"{host}:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
