"""Messages between nodes through the relay of a real coordinator, whose connections are cut in the middle of one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.cutting_proxy import CuttingProxy, cutting_proxy
from support.raw_gossip_node import RawGossipNode
from support.real import RealSwarm, real_swarm, run_text, without_a_centre
from support.relayed import Node, message
from thinwire_proto.wire.parts import PART_BYTES_MAX

LARGE = 3 * PART_BYTES_MAX + 17
RUN = run_text(12, length_ms=60000, rounds='pace = "clock"')  # nobody reports, and is not missed
RUN += without_a_centre(2, 4, codec="dense")


@asynccontextmanager
async def two_nodes(swarm: RealSwarm) -> AsyncIterator[tuple[Node, Node, CuttingProxy]]:
    """Two nodes with sessions, and the proxy between the first one and the coordinator."""
    async with cutting_proxy(swarm.address) as proxy:
        joined = [RawGossipNode(swarm), RawGossipNode(swarm)]
        one, two = (
            Node(address, node.key) for address, node in zip((proxy.address, swarm.address), joined, strict=True)
        )
        for node, raw in zip((one, two), joined, strict=True):
            node.session = raw.secret
        one.knows(n2=two)
        two.knows(n1=one)
        try:
            yield one, two, proxy
        finally:
            await one.leave()
            await two.leave()
            for raw in joined:
                raw.channel.close()


async def test_a_message_that_is_cut_off_at_the_relay_arrives_once_whole(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        swarm.insecure = True  # the proxy counts bytes of messages
        swarm.coordinator(RUN)
        async with two_nodes(swarm) as (one, two, proxy):
            await one.start()
            await two.start()
            await one.until(lambda: one.lines.present == (2,))
            await two.until(lambda: two.lines.present == (1,))
            proxy.cut_after = PART_BYTES_MAX + PART_BYTES_MAX // 2  # in the second part
            one.send(2, message(1, LARGE))
            await one.until(lambda: (2, "the relay is away") in one.absences)
            assert proxy.cuts == 1
            assert not two.taken
            two.send(1, message(1))
            await one.stop()
            await one.start()
            await two.until(lambda: bool(two.taken))
            await one.until(lambda: bool(one.taken))
            one.send(2, message(2))
            await two.until(lambda: len(two.taken) == 2)
            assert two.taken == [message(1, LARGE), message(2)]
            assert one.taken == [message(1)]
