"""A small real HTTP proxy that knows CONNECT only, as the proxies of companies do.

`python -m support.connect_proxy HOST:PORT [USER:PASSWORD]` runs one by itself; it prints each connection it makes."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress


class ConnectProxy:
    """user: USER:PASSWORD that clients must give. refuses: the status line for all requests, instead of connecting.
    hosts: addresses of names that only the proxy knows."""

    def __init__(self, user: str = "", refuses: str = "", hosts: Mapping[str, str] | None = None) -> None:
        self._hosts = hosts or {}
        self._wanted = b"Basic " + base64.b64encode(user.encode()) if user else None
        self._refuses = refuses
        self.passed: list[str] = []
        """HOST:PORT of each connection that it made."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head.split(b"\r\n")
            method, target, _ = first.split(b" ")
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
            if self._refuses or method != b"CONNECT":
                await _answer(writer, self._refuses or "405 Method Not Allowed")
            elif self._wanted is not None and fields.get(b"proxy-authorization") != self._wanted:
                await _answer(writer, "407 Proxy Authentication Required")
            else:
                host, _, port = target.decode().rpartition(":")
                far_reader, far_writer = await asyncio.open_connection(
                    self._hosts.get(host, host.strip("[]")), int(port)
                )
                self.passed.append(target.decode())
                print("passed", target.decode(), flush=True)
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                try:
                    await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))
                finally:
                    far_writer.close()


async def _answer(writer: asyncio.StreamWriter, status: str) -> None:
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
    await writer.drain()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()  # also where the loop ends before the other end does


@asynccontextmanager
async def proxy_at(proxy: ConnectProxy, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """Run a proxy; yields its port."""
    server = await asyncio.start_server(proxy.serve, host, port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _main(address: str, user: str = "") -> None:
    host, _, port = address.rpartition(":")
    async with proxy_at(ConnectProxy(user), host.strip("[]"), int(port)):
        print("listening", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
