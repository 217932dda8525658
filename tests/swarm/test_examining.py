"""Examine: a node that has not joined learns the contract and measures its line, within bounds, and is not enrolled."""

from __future__ import annotations

import secrets
import time
from typing import Any

import grpc
import pytest

from support.raw_calls import hello
from support.raw_node import RawNode
from support.real import RealSwarm, run_text
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.rpc.calls import CallRefused
from thinwire_coordinator.hall.rpc.examining import MESSAGES_MAX, OPEN_MAX, Examinations
from thinwire_node.exchange.coordinator.dial import prove
from thinwire_proto import limits
from thinwire_proto.contract import parse_contract
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.metadata import REASON
from thinwire_proto.wire.parts import EXAMINE_BYTES, EXAMINE_PART_BYTES
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

DENIED, WAIT = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture
def stub(swarm: RealSwarm) -> SwarmStub:
    swarm.coordinator(run_text(3))
    return SwarmStub(RawNode(swarm).channel)


def proven(stub: SwarmStub, key: SecretKey, token: bytes) -> pb.ExamineRequest:
    return pb.ExamineRequest(**prove(key, token, hello(stub), statements.examine))


def refused(stub: SwarmStub, *requests: pb.ExamineRequest) -> tuple[grpc.StatusCode, str]:
    """The code and the reason with which a call ends."""
    with pytest.raises(grpc.RpcError) as found:
        list(stub.Examine(iter(requests), timeout=20))
    error: Any = found.value
    return error.code(), dict(error.trailing_metadata() or ()).get(REASON, "")


def test_only_who_could_join_is_told_the_contract(swarm: RealSwarm, stub: SwarmStub) -> None:
    key = SecretKey()
    assert refused(stub, proven(stub, key, b"x" * 16)) == (DENIED, "unknown_token")
    for_join = pb.ExamineRequest(**prove(key, swarm.token, hello(stub)))
    assert refused(stub, for_join) == (DENIED, "bad_signature")
    assert refused(stub) == (DENIED, "bad_signature")
    store = AccessStore(swarm.state)
    store.bans.ban(key.public.node_id, None, "for this test", "organizer", time.time())
    assert refused(stub, proven(stub, key, swarm.token)) == (WAIT, "banned")

    other = SecretKey()
    sent = [proven(stub, other, swarm.token), pb.ExamineRequest(padding=b"x" * 1000), pb.ExamineRequest(wanted_bytes=9)]
    told, dropped, padded = stub.Examine(iter(sent), timeout=20)
    assert parse_contract(told.contract).schedule.steps == 3
    assert told.received_us <= told.answered_us <= dropped.received_us
    assert (len(dropped.padding), len(padded.padding)) == (0, 9)
    assert store.nodes.of(other.public.node_id) is None
    # the pause of this network is not over
    assert refused(stub, proven(stub, other, swarm.token)) == (WAIT, "rate")
    store.close()


@pytest.mark.parametrize(
    "more",
    [
        [pb.ExamineRequest(wanted_bytes=EXAMINE_PART_BYTES + 1)],
        [pb.ExamineRequest(wanted_bytes=EXAMINE_PART_BYTES)] * (EXAMINE_BYTES // EXAMINE_PART_BYTES + 1),
        [pb.ExamineRequest(padding=secrets.token_bytes(EXAMINE_PART_BYTES))]
        * (EXAMINE_BYTES // EXAMINE_PART_BYTES + 1),
        [pb.ExamineRequest()] * (MESSAGES_MAX + 1),
    ],
    ids=["a large message", "many bytes down", "many bytes up", "many messages"],
)
def test_bytes_and_messages_are_bounded(swarm: RealSwarm, stub: SwarmStub, more: list[pb.ExamineRequest]) -> None:
    assert refused(stub, proven(stub, SecretKey(), swarm.token), *more) == (DENIED, "too_large")


def test_a_network_has_one_examination_at_a_time_and_all_have_few() -> None:
    found = Examinations()
    places = [found.place(f"network {number}") for number in range(OPEN_MAX)]
    for place in places:
        place.__enter__()
    for network in ("network 0", "another"):
        with pytest.raises(CallRefused), found.place(network):
            pass
    places[0].__exit__(None, None, None)
    with found.place("another"):
        pass
    found.take("another", 100.0)
    with pytest.raises(CallRefused):
        found.take("another", 99.0 + limits.EXAMINE_EVERY_S)
    found.take("another", 100.0 + limits.EXAMINE_EVERY_S)
