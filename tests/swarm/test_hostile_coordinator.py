"""A real node meets a coordinator that floods it, or announces what it cannot use. It stays well, calm and quiet."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from random import Random

import grpc
from google.protobuf.message import Message

from deploy.local_swarm.processes import Process
from fuzz.wire.hostile import Liar, NodeSummary
from support.real import PATIENCE_S, RealSwarm
from thinwire_proto.wire import service_pb2 as pb

WINDOW_S = 3.0
"""Over which the node's work is counted."""
CORES_MAX = 0.1
"""More than idle."""
SETTLES_WITHIN = 5
"""Windows."""
LOG_BYTES_PER_S_MAX = 1000
BURST_BYTES = 300_000
"""What one kind of line may write at once, see `thinwire_common.log_bound`."""

ROUND, WAITING = pb.Announcement.STATE_ROUND, pb.Announcement.STATE_WAITING


def a_round(**fields: object) -> pb.Announcement:
    now_us = round(time.monotonic() * 1e6)
    usual: dict[str, object] = {"term": 1, "round": 1, "k": 8, "nonces": [1], "time_left_ms": 300, "clock_us": now_us}
    return pb.Announcement(state=ROUND, **usual | fields)  # type: ignore[arg-type]


def everything_at_once() -> Iterator[pb.Announcement]:
    """Texts that change, the same round again and again, and new rounds."""
    for number in itertools.count(1):
        yield pb.Announcement(state=WAITING, text=f"text {number} " + "x" * 800)
        yield a_round()
        yield a_round(round=number, term=number)


REFUSED: dict[str, dict[str, object]] = {
    "k": {"k": 0},
    "number of nonces": {"nonces": []},
    "clock": {"clock_us": 1 << 63},
}


class Flooding(Liar):
    """Answers all calls well, and sends in `Attend` what the test wants.

    flood: goes on without an end; refused: is sent once in each session. odd_probes: the clock jumps each time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Random(1), folder, NodeSummary())
        self.flood: Iterator[pb.Announcement] | None = None
        self.refused: pb.Announcement | None = None
        self.odd_probes = False
        self.calls: Counter[str] = Counter()

    def _begin_session(self) -> None:
        self._lies = "none"

    async def _messages(self, name: str, request: bytes) -> AsyncIterator[Message]:
        self.calls[name] += 1
        if name == "Updates":
            await asyncio.Event().wait()
        if name == "Probe" and self.odd_probes:
            now_us = 10**9 * self.calls[name]
            yield pb.ProbeReply(term=1, received_us=now_us, answered_us=now_us)
            return
        if name != "Attend":
            async for message in super()._messages(name, request):
                yield message
            return
        yield pb.Announcement(state=WAITING, text="for more nodes")
        if self.refused is not None:
            yield self.refused
        while True:
            if self.flood is None:
                await asyncio.sleep(0.05)
            else:
                yield next(self.flood)


async def cores(process: Process) -> float:
    """The cores that the process takes during a window in which it must not end."""
    before, began = cpu_s(process), time.monotonic()
    await asyncio.sleep(WINDOW_S)
    assert process.running, process.tail(30)
    return (cpu_s(process) - before) / (time.monotonic() - began)


def cpu_s(process: Process) -> float:
    fields = Path(f"/proc/{process.popen.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def reached(is_so: Callable[[], bool], process: Process) -> None:
    async def wait() -> None:
        while not is_so():
            assert process.running, process.tail(30)
            await asyncio.sleep(0.05)

    await asyncio.wait_for(wait(), PATIENCE_S)


async def settles(node: Process, idle: float) -> bool:
    """Whether a node takes little after a while: some messages at once, which last longer on a busy machine."""
    for _ in range(SETTLES_WITHIN):
        if await cores(node) - idle < CORES_MAX:
            return True
    return False


async def test_a_node_is_neither_ended_nor_burdened_by_what_its_coordinator_sends(tmp_path: Path) -> None:
    hostile = Flooding(tmp_path)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((hostile,))
    swarm = RealSwarm(tmp_path)
    swarm.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    node = swarm.node("node", "--max-compute", "20")
    try:
        await reached(lambda: hostile.calls["Attend"] > 0, node)
        await cores(node)  # it settles
        idle = await cores(node)
        log_bytes, began = len(node.text()), time.monotonic()
        hostile.odd_probes = True
        assert await cores(node) - idle < CORES_MAX, "odd answers to probes"
        hostile.odd_probes = False
        for what, fields in REFUSED.items():
            hostile.refused = a_round(**fields)
            hostile.flood = itertools.repeat(hostile.refused)  # it begins in the session that goes on
            await reached(lambda what=what: f"impossible {what}" in node.text(), node)  # type: ignore[misc]
        assert await cores(node) - idle < CORES_MAX, "refused announcements"
        hostile.refused, hostile.flood, sessions = None, None, hostile.calls["Attend"]
        await reached(lambda: hostile.calls["Attend"] > sessions, node)
        hostile.flood = everything_at_once()
        assert await settles(node, idle), "a flood"
        assert hostile.calls["Attend"] == sessions + 1
        written = len(node.text()) - log_bytes
        assert written < BURST_BYTES + LOG_BYTES_PER_S_MAX * (time.monotonic() - began)
        assert "Traceback" not in node.text()
        assert hostile.calls["Probe"] < 100
    finally:
        for process in swarm.processes:
            process.popen.kill()
            process.popen.wait()
        await server.stop(0)
