"""A call that only runs of another exchange have is refused, with a reason that the node can read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from bench.joining import Everybody
from support.gossip_coordinator import gossip_coordinator
from support.small import small_contract
from support.swarm_bench import Bench, key_of
from thinwire_coordinator.gossip.calls import GossipService
from thinwire_coordinator.hall.access.door import DoorReason
from thinwire_coordinator.hall.access.transport import plain_transport
from thinwire_coordinator.hall.rpc.server import Server
from thinwire_coordinator.hall.run import Run
from thinwire_coordinator.star.calls import StarService
from thinwire_proto.contract.exchanges.gossip import GossipSpec
from thinwire_proto.contract.rules.adamw import AdamWSpec
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.metadata import REASON, SESSION
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

OF_STAR = {"Attend", "Contribute", "AskReceipt", "Updates"}
OF_GOSSIP = {"Beat", "Deposit", "Relay"}


async def refused_calls(run: Run, make_service: Any, calls: set[str]) -> set[str]:
    """Those of the calls that a run refuses to a node that has joined, because only another exchange has them."""
    joined = run.members.join(key_of("a").public, "a")
    assert joined is not None
    server, found = Server(run, make_service, run.hall.door(Everybody()), plain_transport()), set()
    port = await server.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = SwarmStub(channel)
        for method in pb.DESCRIPTOR.services_by_name["Swarm"].methods:
            if method.name in calls:
                request = getattr(pb, method.input_type.name)()
                given = _one(request) if method.client_streaming else request
                call = getattr(stub, method.name)(given, metadata=((SESSION, joined[1]),))
                try:
                    await (anext(aiter(call)) if method.server_streaming else call)
                except grpc.aio.AioRpcError as error:
                    reason = dict(error.trailing_metadata() or ()).get(REASON)
                    if reason == DoorReason.OTHER_EXCHANGE.value and method.name in str(error.details()):
                        found.add(method.name)
    await server.stop(0)
    return found


async def _one(request: Any) -> AsyncIterator[Any]:
    yield request


async def test_a_star_run_refuses_the_calls_of_gossip(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert await refused_calls(bench.swarm, StarService, OF_GOSSIP) == OF_GOSSIP
    bench.swarm.stop()
    await bench.close()


async def test_a_gossip_run_refuses_the_calls_of_star(tmp_path: Path) -> None:
    contract = small_contract(exchange=GossipSpec(), rule=AdamWSpec(samples=1))
    with gossip_coordinator(tmp_path, contract) as coordinator:
        assert await refused_calls(coordinator.run, GossipService, OF_STAR) == OF_STAR


@pytest.mark.parametrize("name", sorted(OF_STAR | OF_GOSSIP))
def test_each_call_belongs_to_one_exchange(name: str) -> None:
    defined = [service for service in (StarService, GossipService) if name in vars(service)]
    assert len(defined) == 1
