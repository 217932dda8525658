"""The HTTP port of a node, which is not there unless it is asked for: `/metrics` and `/healthz`.

It runs in the node's own event loop: what it shows belongs to that loop, and an answer from there says that the loop
lives. Two paths to read, one answer a connection: that needs no framework.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from http import HTTPStatus

from thinwire_proto import limits
from thinwire_proto.errors import ConfigError

REQUEST_BYTES_MAX = 16 << 10
CONNECTIONS_MAX = 16
"""A scraper needs one at a time."""

Page = Callable[[], tuple[str, bytes]]
"""Makes a page, on the event loop: its content type and its body."""


class Web:
    """`port`: 0 for a free one. `pages`: by path."""

    def __init__(self, host: str, port: int, pages: dict[str, Page]) -> None:
        self._host = host
        self._port = port
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._connections = 0

    async def start(self) -> str:
        """Listen; returns the address. Raises ConfigError if that cannot be."""
        where = f"{self._host}:{self._port}"
        try:
            self._server = await asyncio.start_server(
                self._serve, self._host.strip("[]"), self._port, limit=REQUEST_BYTES_MAX
            )
        except OSError as error:
            reason = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror or error
            raise ConfigError(f"cannot listen on {where}: {reason}; give another with --metrics") from None
        return f"http://{self._host}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                asked = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), limits.HTTP_REQUEST_S)
                writer.write(self._answer(asked))
                await asyncio.wait_for(writer.drain(), limits.HTTP_REQUEST_S)
        except (OSError, EOFError, asyncio.LimitOverrunError, asyncio.TimeoutError):
            pass  # whoever asked has gone, or asks for nothing that is here
        finally:
            self._connections -= 1
            writer.close()

    def _answer(self, asked: bytes) -> bytes:
        """A whole answer to the head of a request."""
        method, _, rest = asked.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        page = self._pages.get(path)
        if method not in (b"GET", b"HEAD"):
            return _answer(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"only GET\n", with_body=True)
        if page is None:
            there = f"here are {' and '.join(self._pages)}\n".encode()
            return _answer(HTTPStatus.NOT_FOUND, "text/plain", there, with_body=method == b"GET")
        return _answer(HTTPStatus.OK, *page(), with_body=method == b"GET")


def _answer(status: HTTPStatus, kind: str, body: bytes, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (body if with_body else b"")
