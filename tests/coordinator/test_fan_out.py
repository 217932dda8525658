"""Tests that a subscriber that does not read delays nobody and takes little of the coordinator's memory."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from bench.speed.fanout import process_of, read, receive, serve_updates, subscription
from thinwire_proto.wire.parts import PART_BYTES_MAX

UPDATES, PARTS = 24, 3
CACHE_BYTES = 8 << 20
PATIENCE_S = 60.0


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel for the memory of another process")
def test_a_subscriber_that_does_not_read_delays_nobody_and_takes_little_memory() -> None:
    size = PARTS * PART_BYTES_MAX
    with process_of(serve_updates, size, CACHE_BYTES) as (server, pid):
        port = receive(server, PATIENCE_S)

        async def follow() -> tuple[int, int]:
            slow, *quick = [await subscription(port, joins=True) for _ in range(4)]
            memory = []
            for _ in range(UPDATES):
                server.send(1)  # send the next one when all others have this one
                await asyncio.wait_for(asyncio.gather(*(read(stream, PARTS) for stream in quick)), PATIENCE_S)
                memory.append(resident_bytes(pid))
            await asyncio.wait_for(read(slow, UPDATES * PARTS), PATIENCE_S)  # all updates are still there for it
            return memory[3], max(memory)

        before, most = asyncio.run(follow())
    assert UPDATES * size > 4 * CACHE_BYTES
    assert most - before < CACHE_BYTES + 8 * PART_BYTES_MAX


def resident_bytes(process: int) -> int:
    return 1024 * int(Path(f"/proc/{process}/status").read_text().split("VmRSS:")[1].split()[0])
