"""A coordinator process of a run without a centre, and nodes of bare calls that report and deposit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from support.raw_gossip_node import RawGossipNode
from support.real import RealSwarm, real_swarm, run_text, until
from thinwire_proto.exact.replica import load_replica
from thinwire_proto.gossip.final_mean import final_mean, in_integers
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.metadata import REASON

TRAINING, WAITING = pb.BeatReply.STATE_TRAINING, pb.BeatReply.STATE_WAITING
DEPOSIT, COMPLETE = pb.BeatReply.STATE_DEPOSIT, pb.BeatReply.STATE_COMPLETE
BEAT_MS = 200
RUN = run_text(12).replace("length_ms = 5000", f'length_ms = {BEAT_MS}\npace = "clock"')
RUN += """
min_contributions = 2
[exchange]
kind = "gossip"
codec = "dense"
[rule]
kind = "adamw"
samples = 4
"""


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[RealSwarm]:
    with real_swarm(tmp_path) as made:
        yield made


def training(swarm: RealSwarm, count: int = 2) -> list[RawGossipNode]:
    """Nodes in the first topology, with leases."""
    nodes = [RawGossipNode(swarm) for _ in range(count)]
    for node in nodes:
        node.beat()
    for node in nodes:
        if node.assignment is None:
            assert node.beat().state == TRAINING
    return nodes


def positions(node: RawGossipNode) -> set[int]:
    return {run.start + place for run in node.lease for place in range(run.count)}


def refused(call: Callable[[], object]) -> tuple[str, str]:
    """The reason and the text of a refused call."""
    with pytest.raises(grpc.RpcError) as error:
        call()
    found: Any = error.value
    return str(dict(found.trailing_metadata()).get(REASON)), str(found.details())


def test_nodes_train_and_the_mean_of_their_parameters_is_the_model(swarm: RealSwarm) -> None:
    process = swarm.coordinator(RUN)
    first = RawGossipNode(swarm)
    reply = first.beat()
    assert (reply.state, reply.assignment.topology) == (WAITING, 0)
    assert "1 more node" in reply.text
    second = RawGossipNode(swarm)
    assert second.beat().state == TRAINING
    assert first.beat().state == TRAINING
    nodes = [first, second]
    for node in nodes:
        assert node.assignment is not None
        assert (node.assignment.start, node.assignment.adopts) == (0, False)
    assert [node.assignment.member for node in nodes if node.assignment] == [0, 1]
    assert first.assignment is not None
    (peer,) = first.assignment.peers
    assert (peer.member, peer.public_key, peer.since) == (1, second.key.public.data, 1)
    assert not positions(first) & positions(second)
    for _ in range(3):
        for node in nodes:
            before = positions(node)
            reply = node.train(4)
            assert len(before - positions(node)) == 16
            assert not positions(first) & positions(second)
    assert reply.state == DEPOSIT
    assert first.deposit() == ""
    assert "in the mean already" in first.deposit()
    assert second.deposit() == ""
    until(lambda: first.beat().state == COMPLETE, "the mean is sealed", process)
    path = next(path for path in (swarm.state / "snapshots").glob("*.safetensors") if path.stem != "0")
    mean = load_replica(first.contract, path)
    flat = torch.cat([tensor.flatten() for tensor in mean.tensors.values()])
    expected = final_mean(in_integers(torch.from_numpy(node.x())) for node in nodes)
    np.testing.assert_array_equal(flat.numpy(), expected.numpy())
