"""A coordinator process of a gossip run, and nodes of bare calls that report and deposit."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from deploy.local_swarm.processes import Process
from support.raw_gossip_node import RawGossipNode
from support.real import PATIENCE_S, RealSwarm, ended, run_text, until, without_a_centre
from support.swarm_parameters import counted_samples, sealed_mean
from thinwire_coordinator.hall.counts import DIRECT_RATE_BYTES_MAX
from thinwire_proto.gossip.final_mean import final_mean, in_integers
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.metadata import REASON

TRAINING, WAITING = pb.BeatReply.STATE_TRAINING, pb.BeatReply.STATE_WAITING
DEPOSIT, COMPLETE = pb.BeatReply.STATE_DEPOSIT, pb.BeatReply.STATE_COMPLETE
BEAT_MS = 200
RUN = run_text(12, length_ms=BEAT_MS, rounds='pace = "clock"')
RUN += without_a_centre(2, 4, codec="dense")


def training(swarm: RealSwarm, count: int = 2) -> list[RawGossipNode]:
    """Nodes in the first topology, with leases."""
    nodes = [RawGossipNode(swarm) for _ in range(count)]
    for node in nodes:
        node.beat()
    for node in nodes:
        if node.assignment is None:
            assert node.beat().state == TRAINING
    return nodes


def killed(process: Process) -> None:
    process.tell(signal.SIGKILL)
    ended(process)


def positions(node: RawGossipNode) -> set[int]:
    return {run.start + place for run in node.lease for place in range(run.count)}


def check_mean(swarm: RealSwarm, nodes: list[RawGossipNode]) -> None:
    """The run's last snapshot is the mean of what the nodes have deposited."""
    expected = final_mean(in_integers(torch.from_numpy(node.x())) for node in nodes)
    assert sealed_mean(swarm, nodes[0].contract).equal(expected)


def refused(call: Callable[[], object]) -> tuple[str, str]:
    """The reason and the text of a refused call."""
    with pytest.raises(grpc.RpcError) as error:
        call()
    found: Any = error.value
    return str(dict(found.trailing_metadata()).get(REASON)), str(found.details())


def test_bad_reports_are_refused_with_their_reason_and_change_nothing(swarm: RealSwarm) -> None:
    swarm.coordinator(RUN)
    node, other = training(swarm)
    node.train(4)
    before = positions(node)
    forged = node.request()
    forged.iteration += 1
    assert refused(lambda: node.send(forged))[0] == "bad_signature"
    assert refused(lambda: node.beat(iteration=3))[0] == "iteration_back"
    impossible: tuple[dict[str, Any], ...] = (
        {"iteration": 13},
        {"topology": 9},
        {"head": b"short"},
        {"listens_at": "no address"},
    )
    for fields in impossible:
        assert refused(partial(node.beat, **fields))[0] == "malformed"
    assert refused(lambda: node.beat(missed=range(65)))[0] == "malformed"
    large = node.request()
    large.sketch, large.sketch_iteration = bytes(4097), 1
    assert refused(lambda: node.send(large))[0] == "malformed"
    stranger = node.request()
    stranger.signature = SecretKey().sign(b"")
    assert refused(lambda: node.send(stranger))[0] == "bad_signature"
    assert "no parameters are asked for" in node.deposit()
    assert node.beat().state == TRAINING
    assert positions(node) == before
    assert not positions(other) & before


def test_samples_that_are_not_in_the_nodes_lease_count_nothing(swarm: RealSwarm) -> None:
    """Its lease may have gone to others while it was away, so a report that names them is no reason to refuse it."""
    coordinator = swarm.coordinator(RUN)
    node, other = training(swarm)

    def counted(one: RawGossipNode) -> int:
        return next(seen.counted for seen in swarm.status().nodes if seen.node_id == one.key.public.node_id)

    of_other = positions(other)
    node.iteration += 1
    assert node.beat(trained_through=min(of_other), samples=4, loss=2.5).state == TRAINING
    own = min(positions(node))
    node.iteration += 1
    assert node.beat(trained_through=own, samples=4, loss=2.5).state == TRAINING
    until(lambda: counted(node) == 2, "its reports are sealed", coordinator)
    assert positions(other) == of_other
    other.train()
    until(lambda: counted(other) == 1, "so is a later one", coordinator)
    assert counted_samples(swarm) == 1  # without the last row


def test_bad_deposits_are_refused_and_change_nothing(swarm: RealSwarm) -> None:
    process = swarm.coordinator(RUN)
    nodes = training(swarm)
    for node in nodes:
        node.train(12)
    node = nodes[0]
    body = node.x().tobytes()
    assert "match their hash" in node.deposit(body[:-4] + b"\0\0\0\1", **signed_hash(node, body))
    assert "bytes; 8 are announced" in node.deposit(bytes(8))
    assert "end after" in node.deposit(body[:-4], **signed_hash(node, body), body_bytes=len(body))
    assert "of iteration 11" in node.deposit(iteration=11)
    infinite = node.x()
    infinite[-1] = np.inf
    assert "must lie within" in node.deposit(infinite.tobytes())
    assert refused(lambda: node.deposit(signature=bytes(64)))[0] == "bad_signature"
    for one in nodes:
        assert one.deposit() == ""
    until(lambda: node.beat().state == COMPLETE, "the mean is sealed", process)
    check_mean(swarm, nodes)
    until(lambda: "final mean of 2 nodes" in swarm.verify(), "verify finds the mean", process)
    assert "2 reports" in swarm.verify()  # one of each node and training step; those that say nothing new are in no row


def signed_hash(node: RawGossipNode, body: bytes) -> dict[str, Any]:
    """Hash and signature of another body."""
    header = node.header(body)
    return {"hash": header.hash, "signature": header.signature}


def test_the_largest_numbers_that_a_report_can_name_show_in_no_figure(swarm: RealSwarm) -> None:
    swarm.coordinator(RUN)
    liar, honest = training(swarm)
    largest = (1 << 64) - 1
    edge = pb.EdgeReport(member=(1 << 32) - 1, line=pb.EdgeReport.LINE_DIRECT, iteration=largest)
    lines = pb.LinesReport(direct_sent=largest, direct_received=largest, edges=[edge])
    for loss in (math.nan, math.inf, 3e38):
        liar.train(loss=loss, compute_ms=largest, lines=lines, step_norm=3e38)
    honest.train()
    until(lambda: swarm.status().loss_training == 2.5, "the loss of a beat", *swarm.processes)
    status = swarm.status()
    by_id = {node.node_id: node for node in status.nodes}
    told = by_id[liar.key.public.node_id]
    assert not told.HasField("loss")
    assert told.compute_s < PATIENCE_S
    assert told.bytes_up <= DIRECT_RATE_BYTES_MAX * PATIENCE_S
    assert status.gossip.iteration_most <= 12


def test_a_node_with_reported_samples_takes_the_place_of_one_without(swarm: RealSwarm) -> None:
    coordinator = swarm.coordinator(RUN.replace("min_contributions", "nodes_max = 2\nmin_contributions"))
    nodes = training(swarm)
    for node in nodes:
        node.train()
    until(lambda: sum(node.counted for node in swarm.status().nodes) == 2, "their reports are sealed", coordinator)
    killed(coordinator)
    again = swarm.coordinator()
    idle = [RawGossipNode(swarm) for _ in range(2)]
    for stranger in idle:
        stranger.beat()
    reason, text = refused(lambda: RawGossipNode(swarm))
    assert reason == "full"
    assert "the swarm is full, with 2 nodes" in text
    nodes[0].join()
    assert nodes[0].train().state == TRAINING
    (gone,) = again.events("coordinator.session_ended")
    assert "a node with counted rounds has come back" in gone["reason"]
    assert gone["node_id"] in {stranger.key.public.node_id for stranger in idle}
