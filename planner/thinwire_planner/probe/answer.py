"""Answers the probes of other machines: `thinwire plan --answer`.

Whoever reaches the port can make this machine send or take a mebibyte a connection. So it listens only while the
command runs, at most CONNECTIONS_MAX are answered at a time, others are closed at once, and each has a time limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from thinwire_common.within import Within
from thinwire_planner.probe.messages import DONE, PIECE_BYTES, REQUEST, Direction, Request
from thinwire_proto.errors import PayloadError
from thinwire_proto.limits import PLAN_PROBE_S

CONNECTIONS_MAX = 8
log = logging.getLogger("thinwire.planner")


@asynccontextmanager
async def answering(host: str, port: int) -> AsyncIterator[tuple[str, int]]:
    """Answer probes inside the block. Yields the address that it listens on. Raises OSError if it cannot."""
    open_connections: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(open_connections) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        open_connections.add(writer)
        try:
            async with Within(PLAN_PROBE_S):
                await _answer(reader, writer)
        except (PayloadError, OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
            log.info("a probe was not answered: %r", error)
        finally:
            open_connections.discard(writer)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    server = await asyncio.start_server(serve, host, port, limit=PIECE_BYTES)
    try:
        found = server.sockets[0].getsockname()
        yield found[0], found[1]
    finally:
        server.close()
        for writer in open_connections:
            writer.transport.abort()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = Request.decode(await reader.readexactly(REQUEST.size))
    left = request.size_bytes
    while left:
        piece = min(left, PIECE_BYTES)
        if request.direction is Direction.UP:
            await reader.readexactly(piece)
        else:
            writer.write(bytes(piece))
            await writer.drain()
        left -= piece
    if request.direction is Direction.UP:
        writer.write(DONE)
        await writer.drain()
    else:
        await reader.read(1)  # the asker closes when it has all; closing first could drop what is on its way
