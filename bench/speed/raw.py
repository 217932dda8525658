"""A minimal gRPC server that streams the same bytes to many subscribers: the baseline of a broadcast.

    python -m bench.speed.raw BYTES SUBSCRIBERS

Once all subscribers are connected, it sends each of them that many bytes in parts, at regular intervals. The first part
begins with the time of sending as a double, in seconds of the machine's monotonic clock. Prints its port.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from thinwire_proto.wire.parts import MESSAGE_BYTES_MAX, split_for_download

METHOD = "/raw/Stream"
EVERY_S = 0.5
SENT_AT = struct.Struct("d")
OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX))


async def receive(channel: Any, size: int, times: int) -> AsyncIterator[tuple[float, float]]:
    """Yield (time sent, time fully received) for each broadcast, on the subscriber's side."""
    stream = channel.unary_stream(METHOD)(b"")
    for _ in range(times):
        first = await stream.read()
        length = len(first)
        while length < size:
            length += len(await stream.read())
        yield SENT_AT.unpack_from(first)[0], time.monotonic()
    stream.cancel()


class _RawStream(grpc.GenericRpcHandler):
    def __init__(self, size: int, subscribers: int) -> None:
        self._size = size
        self._missing = subscribers
        self._sent = asyncio.Condition()
        self._number = 0
        self._parts: list[bytes] = []

    def service(self, handler_call_details: Any) -> Any:
        return grpc.unary_stream_rpc_method_handler(self._follow)

    async def _follow(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        self._missing -= 1
        number = self._number
        while True:
            async with self._sent:
                await self._sent.wait_for(lambda number=number: self._number > number)  # type: ignore[misc]
            number = self._number
            for part in self._parts:
                yield part

    async def send(self) -> None:
        """Broadcast forever."""
        content = bytes(self._size - SENT_AT.size)
        while True:
            await asyncio.sleep(EVERY_S)
            if self._missing <= 0:
                async with self._sent:
                    self._parts = list(split_for_download(SENT_AT.pack(time.monotonic()) + content))
                    self._number += 1
                    self._sent.notify_all()


async def _serve(size: int, subscribers: int) -> None:
    server = grpc.aio.server(options=OPTIONS)
    stream = _RawStream(size, subscribers)
    server.add_generic_rpc_handlers((stream,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await stream.send()


if __name__ == "__main__":
    uvloop.run(_serve(*map(int, sys.argv[1:])))
