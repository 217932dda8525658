"""Measures TLS when a node connects, beside the same in plain text: time and bytes until the first answer.

A node connects twice: once to find the way and to check the certificate, and once by gRPC. Both are in the figures.
Loopback has no round trips to speak of; each costs its own time on a real link, and TLS needs three more of them.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc

from bench.speed.row import BenchRow
from thinwire_common.grpc_server import following
from thinwire_coordinator.hall.access.transport import OwnCertificates, utc_now
from thinwire_node.exchange.coordinator.dial import dial
from thinwire_proto.identity.invite import TOKEN_BYTES, Invite
from thinwire_proto.identity.keys import SecretKey

TOPIC = "handshake"
TIMES = 30
MESSAGE_BYTES = 1 << 20
PLAIN = "plain text"
Connect = Callable[[int], Awaitable[grpc.aio.Channel]]
"""Opens a channel to this port of loopback."""


class Echo(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            return request

        return grpc.unary_unary_rpc_method_handler(answer)


class Relay:
    """Passes connections on to a port and counts their bytes, both ways."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.bytes = 0

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):  # at the end of the measurement; asyncio would print it
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
            await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                self.bytes += len(data)
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def serving(server_credentials: grpc.ServerCredentials | None) -> AsyncIterator[int]:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 2 * MESSAGE_BYTES)])
    server.add_generic_rpc_handlers((Echo(),))
    where = "127.0.0.1:0"
    if server_credentials is None:
        port = server.add_insecure_port(where)
    else:
        port = server.add_secure_port(where, server_credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def first_answer(connect: Connect, port: int, message: bytes = b"") -> float:
    """Seconds from nothing to the answer to the first message."""
    began = time.perf_counter()
    channel = await connect(port)
    call: Any = channel.unary_unary("/bench/Echo")
    await call(message)
    taken_s = time.perf_counter() - began
    await channel.close()
    return taken_s


async def measured(connect: Connect, server_credentials: grpc.ServerCredentials | None) -> tuple[float, int, int]:
    """Median seconds until the first answer, and the bytes for it; and the bytes for MESSAGE_BYTES there and back."""
    async with serving(server_credentials) as port:
        taken_s = statistics.median([await first_answer(connect, port) for _ in range(TIMES)])
        sizes = []
        for message in (b"", bytes(MESSAGE_BYTES)):
            relay = Relay(port)
            async with await asyncio.start_server(relay.pass_on, "127.0.0.1", 0) as listening:
                await first_answer(connect, listening.sockets[0].getsockname()[1], message)
            sizes.append(relay.bytes)
    return taken_s, sizes[0], sizes[1]


async def _compare(folder: Path) -> list[BenchRow]:
    key = SecretKey()
    certificates = OwnCertificates(folder / "tls", key, (), utc_now())
    options = (("grpc.max_receive_message_length", 2 * MESSAGE_BYTES),)

    async def by_invite(port: int) -> grpc.aio.Channel:
        invite = Invite(f"127.0.0.1:{port}", key.public.fingerprint, bytes(TOKEN_BYTES))
        return (await dial(invite.address, invite, options)).channel

    async def plainly(port: int) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)

    ours_s, ours_bytes, ours_large = await measured(by_invite, following(lambda: certificates.current))
    plain_s, plain_bytes, plain_large = await measured(plainly, None)
    return [
        BenchRow(TOPIC, "until the first answer", 1000 * ours_s, 1000 * plain_s, "ms", PLAIN),
        BenchRow(TOPIC, "until the first answer, both ways", ours_bytes, plain_bytes, "bytes", PLAIN),
        BenchRow(
            TOPIC,
            "a message of 1 MiB there and back, without that",
            ours_large - ours_bytes,
            plain_large - plain_bytes,
            "bytes",
            PLAIN,
        ),
    ]


def rows() -> Iterable[BenchRow]:
    with tempfile.TemporaryDirectory(prefix="thinwire-handshake-") as folder:
        yield from asyncio.run(_compare(Path(folder)))
