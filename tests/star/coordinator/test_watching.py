"""Tests observation of a swarm: counts of messages and TCP segments, health, readiness and metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from starlette.requests import Request

from bench.joining import Everybody
from support.new_state import make_state
from support.prometheus import parsed, value
from support.small import small_contract
from thinwire_coordinator.hall.access.transport import plain_transport
from thinwire_coordinator.hall.hall import open_hall
from thinwire_coordinator.hall.observe.cpu_budget import CpuBudget
from thinwire_coordinator.hall.observe.exposition import Exposition
from thinwire_coordinator.hall.observe.readiness import Readiness
from thinwire_coordinator.hall.rpc.request_bounds import SERVICE
from thinwire_coordinator.hall.rpc.server import Server
from thinwire_coordinator.hall.workers import Workers
from thinwire_coordinator.star.calls import StarService
from thinwire_coordinator.star.star import Star
from thinwire_node.exchange.coordinator.dial import NONCE_BYTES, prove
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire.metadata import SESSION
from thinwire_proto.wire.negotiation import PROTOCOL
from thinwire_proto.wire.service_pb2 import ContributionPart, HelloRequest, JoinRequest, StatusRequest
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

REQUEST = Request({"type": "http", "method": "GET", "path": "/", "headers": []})


class Served:
    """A swarm without nodes on a real port, with its answers to `/metrics` and `/readyz`."""

    def __init__(self, folder: Path) -> None:
        state = make_state(folder, small_contract())

        self.workers = Workers()
        replica = state.load_snapshot(0)
        self.swarm = Star(open_hall(state, replica, self.workers))
        self.readiness = Readiness()
        self.exposition = Exposition(self.readiness, self.workers)
        self.server = Server(self.swarm, StarService, self.swarm.hall.door(Everybody()), plain_transport())

    async def start(self) -> str:
        self.exposition.begin(self.swarm, list, [], {"held_out": (0, 5.5)})
        port = await self.server.start("127.0.0.1:0")
        self.exposition.listening(port)
        self.readiness.swarm = self.swarm.view
        return f"127.0.0.1:{port}"

    async def told(self, name: str, **labels: str) -> float:
        answer = await self.exposition.answer(REQUEST)
        return value(parsed(bytes(answer.body).decode()), f"thinwire_coordinator_{name}", **labels)

    async def readyz(self) -> tuple[int, bool]:
        answer = await self.readiness.readyz(REQUEST)
        return answer.status_code, json.loads(bytes(answer.body))["ready"]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    found = Served(tmp_path)
    try:
        yield found
    finally:
        await found.server.stop(0)
        found.workers.close()
        found.swarm.state.close()


async def test_every_message_is_counted_by_kind_and_direction(served: Served) -> None:
    async with grpc.aio.insecure_channel(await served.start()) as channel:
        stub = SwarmStub(channel)
        greeting = await stub.Hello(HelloRequest(nonce=bytes(NONCE_BYTES)))
        join = JoinRequest(protocol=PROTOCOL, name="x", **prove(SecretKey(), b"", greeting))
        reply = await stub.Join(join)
        parts = [ContributionPart(data=b"x" * 1000)]  # refused, but its bytes count
        await stub.Contribute(iter(parts), metadata=((SESSION, reply.session),))
        status = await stub.Status(StatusRequest())
        assert await served.told("payload_bytes_total", direction="received", kind="join") == join.ByteSize()
        assert await served.told("payload_bytes_total", direction="sent", kind="join") == reply.ByteSize()
        contributed = await served.told("payload_bytes_total", direction="received", kind="contribution")
        assert contributed == parts[0].ByteSize() == status.bytes_up
        assert await served.told("messages_total", direction="sent", kind="status") == 1
        assert await served.told("messages_total", direction="sent", kind="receipt") == 1


async def test_standard_health_and_reflection_services_answer(served: Served) -> None:
    async with grpc.aio.insecure_channel(await served.start()) as channel:
        health: Any = HealthStub(channel)
        for name in ("", SERVICE):
            assert (await health.Check(HealthCheckRequest(service=name))).status == HealthCheckResponse.SERVING
        watch = health.Watch(HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == HealthCheckResponse.SERVING
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        question: Any = reflection_pb2.ServerReflectionRequest  # type: ignore[attr-defined, unused-ignore]
        (answer,) = [answer async for answer in reflection.ServerReflectionInfo(iter([question(list_services="")]))]
        assert SERVICE in [service.name for service in answer.list_services_response.service]
        _, told = await asyncio.gather(served.server.stop(1), watch.read())
        assert told.status == HealthCheckResponse.NOT_SERVING


async def test_only_a_serving_coordinator_is_ready(served: Served) -> None:
    assert await served.readyz() == (503, False)
    assert await served.told("state", state="starting") == 1
    await served.start()
    assert await served.readyz() == (200, True)
    assert await served.told("state", state="waiting") == 1
    served.readiness.ending = True
    assert await served.readyz() == (503, False)
    served.readiness.ending = False
    served.swarm.tasks.fail(OSError("no space left"))
    assert await served.readyz() == (503, False)
    assert await served.told("state", state="failed") == 1
    assert isinstance(served.swarm.tasks.failed.exception(), OSError)


def test_the_cpu_budget_limits_expensive_measurements() -> None:
    budget = CpuBudget(least_s=1.0)
    assert budget.due(10.0)
    assert not budget.due(20.0)  # the measurement is still running
    budget.took(20.0, 0.001)
    assert not budget.due(20.9)
    assert budget.due(21.0)
    budget.took(21.0, 0.1)
    assert not budget.due(40.9)
    assert budget.due(41.0)
