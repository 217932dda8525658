"""A coordinator of a gossip run meets every message of its service, each field at its extremes, from nodes and from
strangers. (`fuzz.wire.attack` attacks one of a star run.)

Calls and fields come from the protobuf descriptors. A new call is sent with extremes of its empty message. Each message
comes from a session of its own, so that none is refused for what an earlier one did.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import grpc
from google.protobuf.message import Message

from fuzz.wire.guest import CALLS, Guest
from support.extremes import extremes
from support.prometheus import parsed, read
from support.raw_gossip_node import RawGossipNode
from support.real import PATIENCE_S, RealSwarm, run_text, until, without_a_centre
from thinwire_coordinator.hall.rpc.request_bounds import FOR_STRANGERS
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

CONNECTIONS, AT_ONCE, JOINS_AT_ONCE = 8, 128, 24
UNFORESEEN = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}
"""Of an error in the coordinator's code, or of its end."""
LAST = ("Join", "Examine")
STREAM_S = 1.0
"""A stream may answer nothing for so long."""
LOG_BURST_BYTES, LOG_BYTES_PER_S = 300_000, 1000
NUMBER_MAX = 1e12
"""Of counts, bytes, and times."""
LARGE = {"term", "fingerprint"}
"""Fields of the status that are no counts."""
GOSSIP = run_text(100_000, length_ms=200, rounds='pace = "clock"') + without_a_centre(2, 4, codec="dense")


class Sender:
    """Sends messages at once over some connections, and notes how the coordinator fails."""

    def __init__(self, address: str) -> None:
        local = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
        self._channels = [grpc.insecure_channel(address, options=local) for _ in range(CONNECTIONS)]
        self._next = itertools.cycle(self._channels)
        self._joining = threading.Semaphore(JOINS_AT_ONCE)
        self.wrong: list[str] = []

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

    def guest(self) -> Guest:
        with self._joining:
            return Guest(next(self._next))

    def everything(self) -> None:
        """Send all messages. Refused joins and examinations come last: after some, strangers of this network wait."""
        example = self.guest()
        counts = {call: 1 + sum(1 for _ in extremes(example.right(call))) for call in CALLS}
        numbered = [(call, number) for call, count in counts.items() if call not in LAST for number in range(count)]
        strange = [(call, found) for call in FOR_STRANGERS for found in extremes(example.right(call))]
        strange += [(call, example.right(call)) for call in CALLS]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda job: self._as_node(self.guest(), job[0], job[1]), numbered))
            enrolled = list(pool.map(lambda _: self.guest(), range(counts["Join"])))
            list(pool.map(lambda job: self._as_node(job[1], "Join", job[0]), enumerate(enrolled)))
            list(pool.map(lambda job: self._send(SwarmStub(next(self._next)), *job), strange))

    def _as_node(self, guest: Guest, call: str, number: int) -> None:
        """Send the message with this number among the extreme ones of a call."""
        right = guest.right(call)
        if call == "Beat":
            first = guest.signed(pb.BeatRequest(number=1, head=bytes(32)))
            self._send(guest.stub, call, first)
        message = next(itertools.islice(itertools.chain([right], extremes(right)), number, None))
        self._send(guest.stub, call, guest.signed(message))

    def _send(self, stub: Any, call: str, message: Message) -> None:
        kind = CALLS[call]
        streams = (kind.client_streaming, kind.server_streaming)
        try:
            request = iter([message]) if streams[0] else message
            reply = getattr(stub, call)(request, timeout=STREAM_S if streams[1] else PATIENCE_S)
            if streams[1]:
                next(iter(reply), None)
                reply.cancel()
        except grpc.RpcError as error:
            found: Any = error
            if found.code() in UNFORESEEN or (found.code() is grpc.StatusCode.DEADLINE_EXCEEDED and not streams[1]):
                self.wrong.append(f"{call}: {found.code().name} {found.details()}: {str(message)[:300]}")


@contextmanager
def working(work: Callable[[], object]) -> Iterator[None]:
    """Do a piece of work again and again in a thread."""
    over, problems = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            while not over.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 - told below
            problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not problems, problems


def numbers(message: Message, path: str = "") -> Iterator[tuple[str, float]]:
    """All numbers in a message."""
    for field, value in message.ListFields():
        for one in value if field.is_repeated else [value]:
            if isinstance(one, Message):
                yield from numbers(one, f"{path}{field.name}.")
            elif isinstance(one, int | float) and field.name not in LARGE:
                yield path + field.name, one


def well(swarm: RealSwarm, began: float) -> None:
    """Check that the coordinator runs, calm, and with sane figures."""
    process = swarm.processes[0]
    assert process.running, process.tail(30)
    text = process.text()
    assert "Traceback" not in text, text[text.index("Traceback") - 500 :][:3000]
    assert not process.events("coordinator.call_failed")
    assert len(text) < LOG_BURST_BYTES + LOG_BYTES_PER_S * (time.monotonic() - began)
    shown = {str(series): value for series, value in parsed(read(f"{swarm.ready['page'].rstrip('/')}/metrics")).items()}
    odd = {name: value for name, value in shown.items() if not (math.isfinite(value) and abs(value) < NUMBER_MAX)}
    odd |= {
        name: value for name, value in numbers(swarm.status()) if not (math.isfinite(value) and abs(value) < NUMBER_MAX)
    }
    assert not odd
    losses = [value for name, value in numbers(swarm.status()) if "loss" in name and "step" not in name]
    assert all(0 <= loss < 100 for loss in losses)


def test_a_coordinator_without_a_centre_withstands_every_message(swarm: RealSwarm) -> None:
    swarm.insecure = True
    swarm.coordinator(GOSSIP)
    nodes = [RawGossipNode(swarm), RawGossipNode(swarm)]
    pause = threading.Event()

    def report() -> None:
        for node in nodes:
            node.train() if node.lease else node.beat()
        pause.wait(0.2)

    with closing(Sender(swarm.address)) as sender:
        began = time.monotonic()
        with working(report):
            until(lambda: swarm.status().gossip.beats > 0, "beats are sealed", *swarm.processes)
            sender.everything()
            beats = swarm.status().gossip.beats
            until(lambda: swarm.status().gossip.beats > beats + 2, "beats go on", *swarm.processes)
        assert not sender.wrong
    well(swarm, began)
