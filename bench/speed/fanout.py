"""Fan-out: the coordinator's stream of updates to many subscribers, compared with raw gRPC streaming of the same bytes.

Both servers run in their own processes and serve the same clients over loopback. The clients join (or not), read bytes
and count them. The difference is the coordinator's own work besides passing bytes to gRPC: finding the member, waiting
for the seal, building messages, counting. Nothing is trained, and nothing is written to disk.
"""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc

from bench.joining import Everybody, Metadata, join
from bench.speed.row import BenchRow
from thinwire_coordinator.hall.access.transport import plain_transport
from thinwire_coordinator.hall.hall import open_hall
from thinwire_coordinator.star.calls import StarService
from thinwire_coordinator.star.feed import CACHE_BYTES_MAX
from thinwire_coordinator.star.messages import UpdateMessages, encode_update_parts
from thinwire_coordinator.star.star import Star
from thinwire_proto.identity.keys import SIGNATURE_BYTES, SecretKey
from thinwire_proto.wire.parts import MESSAGE_BYTES_MAX, split_for_download
from thinwire_proto.wire.service_pb2 import DESCRIPTOR
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

CLIENT_PROCESSES = 2
REPEATS = 9
TOPIC = "fan-out"
SHARE_WANTED = 0.7
SUBSCRIBERS = ((10, 4 << 20, 15), (50, 2 << 20, 8), (200, 1 << 20, 6))
"""Number of subscribers, bytes of an update, and number of updates."""
SMALLEST = {"width": 2, "layers": 1, "heads": 1, "hidden": 2, "context": 8}
"""The model of the coordinator, which trains nothing."""
START_S = 60.0
DONE_S = 300.0
SERVICE = DESCRIPTOR.services_by_name["Swarm"].full_name
RAW = "/raw.Raw/Stream"
UPDATES = f"/{SERVICE}/Updates"
CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # a connection for each subscriber
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
)


def rows(subscribers: tuple[tuple[int, int, int], ...] = SUBSCRIBERS) -> Iterator[BenchRow]:
    for number, size, updates in subscribers:
        ours, raw = (bytes_s / 1e6 for bytes_s in fan_out(number, size, updates))
        what = f"{number} subscribers, {size / 1e6:.2g} MB each"
        wanted = SHARE_WANTED * raw
        yield BenchRow(TOPIC, what, ours, raw, "MB/s", "raw gRPC streaming", better="more", wanted=wanted)


def fan_out(subscribers: int, bytes: int, updates: int) -> tuple[float, float]:
    """Total bytes per second to all subscribers, for the coordinator and for raw gRPC: medians of alternating runs.

    Each run sends `updates` updates of `bytes` bytes. Together they must fit the coordinator's cache of recent updates.
    """
    if bytes * updates > CACHE_BYTES_MAX:
        raise ValueError("the updates do not fit the cache, so this would measure the disk")
    messages = updates * len(list(split_for_download(b"x" * bytes)))
    shares = [len(range(first, subscribers, CLIENT_PROCESSES)) for first in range(CLIENT_PROCESSES)]
    rates: tuple[list[float], list[float]] = ([], [])
    with started(serve_updates, bytes) as ours, started(serve_raw, bytes) as raw:
        servers = (ours, raw)
        ports = tuple(receive(server, START_S) for server in servers)
        with _all_started(subscribe, [(ports, share, messages) for share in shares if share]) as clients:
            for client in clients:
                receive(client, START_S)  # all clients are connected
            for run in range(2 * (1 + REPEATS)):
                which = run % 2
                for client in clients:
                    client.send(which)
                began = time.perf_counter()
                servers[which].send(updates)
                for client in clients:
                    receive(client, DONE_S)
                rates[which].append(subscribers * bytes * updates / (time.perf_counter() - began))
    return statistics.median(rates[0][1:]), statistics.median(rates[1][1:])  # the first run of each is the warm-up


# processes


@contextmanager
def started(target: Callable[..., Awaitable[None]], *arguments: Any) -> Iterator[Connection]:
    """Start a process that runs this coroutine, and yield the pipe to it. The process ends with the block."""
    with process_of(target, *arguments) as (pipe, _):
        yield pipe


@contextmanager
def process_of(target: Callable[..., Awaitable[None]], *arguments: Any) -> Iterator[tuple[Connection, int]]:
    """Like `started`, but also yields the process id."""
    ours, theirs = mp.get_context("spawn").Pipe()
    process = mp.get_context("spawn").Process(target=_run, args=(target, theirs, *arguments), daemon=True)
    process.start()
    assert process.pid is not None
    try:
        yield ours, process.pid
    finally:
        process.kill()
        process.join()
        ours.close()


@contextmanager
def _all_started(target: Callable[..., Awaitable[None]], each: list[tuple[Any, ...]]) -> Iterator[list[Connection]]:
    if not each:
        yield []
        return
    with started(target, *each[0]) as first, _all_started(target, each[1:]) as others:
        yield [first, *others]


def _run(target: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    async def whole() -> None:
        await target(*arguments)

    asyncio.run(whole())


def receive(pipe: Connection, patience_s: float) -> Any:
    """The next object from the pipe. Raises TimeoutError or EOFError."""
    if not pipe.poll(patience_s):
        raise TimeoutError(f"no message within {patience_s:g} s")
    return pipe.recv()


async def _next_command(pipe: Connection) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, pipe.recv)


# servers: each sends its port, then reads numbers from its pipe, and publishes that many updates for each number


async def serve_updates(pipe: Connection, size: int, cache_bytes_max: int = CACHE_BYTES_MAX) -> None:
    """Serve synthetic updates with a coordinator's service, feed and server.

    A follower that lags behind the cache reads the same synthetic update again. cache_bytes_max: see
    `feed.CACHE_BYTES_MAX`.
    """
    # imported here because they import torch, which would slow down the start of the other processes
    from thinwire_coordinator.hall.ledger.creation import create_state  # noqa: PLC0415
    from thinwire_coordinator.hall.ledger.state_directory import open_state  # noqa: PLC0415
    from thinwire_coordinator.hall.rpc.server import Server  # noqa: PLC0415
    from thinwire_coordinator.hall.workers import Job, Workers  # noqa: PLC0415
    from thinwire_coordinator.star.replay import replica_at_head  # noqa: PLC0415
    from thinwire_proto.contract import RunSpec  # noqa: PLC0415

    body, row, signature, workers = os.urandom(size), b"a row" * 40, bytes(SIGNATURE_BYTES), Workers()

    def encode(step: int) -> UpdateMessages:
        return encode_update_parts(step, row, body if step else b"", signature)

    with tempfile.TemporaryDirectory() as scratch:
        create_state(Path(scratch), RunSpec.model_validate({"model": SMALLEST}))
        state = open_state(Path(scratch))
        wait_for = state.contract.round.nodes_max  # so that no round opens
        hall = open_hall(state, replica_at_head(state), workers)
        swarm = Star(hall, wait_for, read=encode, cache_bytes_max=cache_bytes_max)
        feed, server = swarm.feed, Server(swarm, StarService, hall.door(Everybody()), plain_transport())
        pipe.send(await server.start("127.0.0.1:0"))
        await feed.publish(encode(0))  # tells subscribers that their stream is open
        while True:
            for _ in range(await _next_command(pipe)):
                await feed.publish(await workers.submit(Job.WRITE_UPDATE, encode, feed.step))


async def serve_raw(pipe: Connection, size: int) -> None:
    """Serve the same bytes with gRPC alone."""
    parts, sealed, moved = list(split_for_download(os.urandom(size))), 0, asyncio.Condition()

    async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"there"
        sent = 0
        while True:
            async with moved:
                while sealed == sent:
                    await moved.wait()
            for part in parts:
                yield part
            sent += 1

    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    handler: Any = grpc.unary_stream_rpc_method_handler(stream)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(RAW.split("/")[1], {"Stream": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    pipe.send(port)
    while True:
        updates = await _next_command(pipe)
        async with moved:
            sealed += updates
            moved.notify_all()


# subscribers


async def subscribe(pipe: Connection, ports: tuple[int, int], subscribers: int, messages: int) -> None:
    """Open `subscribers` streams to each server, each on its own connection, and report when all are open.

    Then, for each server index received, read `messages` messages from each of its streams, and report completion.
    """
    streams = [
        await asyncio.gather(*(subscription(port, joins=joins) for _ in range(subscribers)))
        for port, joins in zip(ports, (True, False), strict=True)
    ]
    pipe.send("all streams are open")
    while True:
        which = await _next_command(pipe)
        await asyncio.gather(*(read(stream, messages) for stream in streams[which]))
        pipe.send("all messages have arrived")


async def subscription(port: int, *, joins: bool) -> Any:
    """A stream whose first message has arrived. Messages stay serialized."""
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS)
    method = RAW
    metadata: Metadata = ()
    if joins:
        _, metadata = await join(SwarmStub(channel), SecretKey(), None)
        method = UPDATES
    call: Any = channel.unary_stream(method)
    stream: Any = call(b"", metadata=metadata)
    stream.channel = channel  # keep the channel alive
    await stream.read()
    return stream


async def read(stream: Any, messages: int) -> None:
    for _ in range(messages):
        if await stream.read() is grpc.aio.EOF:
            raise ConnectionError("the stream has ended")
