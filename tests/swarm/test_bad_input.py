"""Tests that bad input is reported to the party that caused it, and that nothing crashes."""

from __future__ import annotations

import math
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from deploy.local_swarm.processes import BIN
from support.raw_calls import in_session
from support.raw_node import RawNode, opened
from support.real import END_S, PATIENCE_S, RealSwarm, ended, ends_in_s, last_fingerprint, real_swarm, run_text, until
from support.small import random_sized_votes, random_votes
from thinwire_common.ready_file import READY_FILE
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.codec import contribution_bytes_max, encode_votes
from thinwire_proto.wire.negotiation import OLDEST_SERVED, PROTOCOL
from thinwire_proto.wire.parts import MESSAGE_BYTES_MAX

LARGEST = {"dropped": (1 << 32) - 1, "skipped": (1 << 32) - 1, "compute_ms": (1 << 64) - 1}


RUN = run_text(50, rounds="nodes_max = 2\n")


@pytest.fixture
def raw(swarm: RealSwarm) -> Iterator[RawNode]:
    swarm.coordinator(RUN)
    node = RawNode(swarm)
    yield node
    node.channel.close()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawNode]:
    """A node that several tests share, of which nothing is counted."""
    with real_swarm(tmp_path_factory.mktemp("calm")) as swarm:
        swarm.coordinator(RUN)
        node = RawNode(swarm)
        yield node
        node.channel.close()


def test_wrong_contributions_are_not_counted_and_the_coordinator_survives(swarm: RealSwarm, raw: RawNode) -> None:
    announcements = raw.attend()
    bound = contribution_bytes_max(raw.replica.layout, raw.contract.demo.k)
    good = encode_votes(random_votes(raw.replica.layout, 32, 1), raw.replica.layout)
    wrong: list[tuple[bytes, dict[str, Any], Any]] = [
        (b"", {}, pb.Receipt.REASON_MALFORMED),
        (good[:-3], {}, pb.Receipt.REASON_MALFORMED),
        (os.urandom(500), {}, pb.Receipt.REASON_MALFORMED),
        (b"\0" * 100_000, {}, pb.Receipt.REASON_MALFORMED),
        (
            encode_votes(random_sized_votes(raw.replica.layout, 32, 1), raw.replica.layout),
            {},
            pb.Receipt.REASON_MALFORMED,
        ),
        (good, {"payload_bytes": bound + 1}, pb.Receipt.REASON_MALFORMED),
        (good, {"payload_bytes": 1 << 62}, pb.Receipt.REASON_MALFORMED),
        (good, {"payload_bytes": len(good) - 1}, pb.Receipt.REASON_MALFORMED),
        (good, {"payload_bytes": len(good) + 1}, pb.Receipt.REASON_MALFORMED),
        (good, {"round": 10_000}, pb.Receipt.REASON_FUTURE_ROUND),
        (good, {"term": 7}, pb.Receipt.REASON_FUTURE_ROUND),
        (good, {"step": 3, "base_step": 3}, pb.Receipt.REASON_BASE_AGE),
        (good, {"samples": 5}, pb.Receipt.REASON_OVER_LEASE),
        (good, {"loss": math.nan, **LARGEST}, pb.Receipt.REASON_MALFORMED),
        (good, {"loss": -math.inf}, pb.Receipt.REASON_MALFORMED),
        (good, {"loss": 3e38}, pb.Receipt.REASON_MALFORMED),
        (good, {"trained_through": (1 << 64) - 1, **LARGEST}, pb.Receipt.REASON_OVER_LEASE),
        (good, {"samples": 0}, pb.Receipt.REASON_NOTHING_TRAINED),
        (good, {"fingerprint": 1}, pb.Receipt.REASON_REPLICA_DIFFERS),
    ]
    for payload, fields, reason in wrong:
        current = opened(announcements)
        assert current.step == 0  # nothing has been counted yet
        receipt = raw.contribute(current, payload, **fields)
        assert (receipt.outcome, receipt.reason) == (pb.Receipt.OUTCOME_NOT_COUNTED, reason), receipt.text
        assert receipt.text
    # a contribution to another term is late, but the node is alive, so the open round still waits for it
    current = opened(announcements)
    assert raw.contribute(current, good, term=0, trained_through=None).reason == pb.Receipt.REASON_LATE
    receipt = raw.contribute(current, good)
    assert receipt.outcome == pb.Receipt.OUTCOME_COUNTED
    stale = raw.contribute(pb.Announcement(term=1, round=0), good)
    assert stale.reason == pb.Receipt.REASON_LATE
    status = swarm.status()
    assert status.step == 1
    (node,) = status.nodes
    assert node.dropped <= len(wrong) * 4  # at most the samples of each lease
    assert node.compute_s < PATIENCE_S
    assert math.isfinite(status.loss_training)
    for told in swarm.processes[0].events("coordinator.samples_skipped"):
        assert told["samples"] <= 4


def test_invalid_calls_get_a_status_and_the_coordinator_survives(calm: RawNode) -> None:
    def code(call: Callable[..., Any], request: object) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as error:
            list(call(request, timeout=10))
        return error.value.code(), error.value.details() or ""

    stub = calm.stub
    for protocol, said in (
        (OLDEST_SERVED - 1, "the node is the older one; update the node"),
        (PROTOCOL + 1, "the coordinator is the older one"),
    ):
        refused, text = code(stub.Join, pb.JoinRequest(protocol=protocol))
        assert refused == grpc.StatusCode.FAILED_PRECONDITION
        assert said in text
    stranger = in_session(calm.channel, "?")
    assert code(stranger.Hello, pb.HelloRequest(nonce=b"short"))[0] == grpc.StatusCode.INVALID_ARGUMENT
    assert code(stranger.Join, pb.JoinRequest(protocol=PROTOCOL))[0] == grpc.StatusCode.PERMISSION_DENIED
    assert code(stranger.Attend, pb.AttendRequest())[0] == grpc.StatusCode.NOT_FOUND
    assert code(stranger.Contribute, iter([]))[0] == grpc.StatusCode.NOT_FOUND
    ahead = pb.UpdatesRequest(from_step=9)
    assert "there is no step 9 yet" in code(stub.Updates, ahead)[1]
    huge = pb.ContributionPart(data=b"\0" * (MESSAGE_BYTES_MAX + 1))
    assert code(stub.Contribute, iter([huge]))[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
    attending = calm.attend()
    next(attending)
    twice = pb.AttendRequest()
    assert code(stub.Attend, twice) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "one Attend at a time in a session")
    unknown = stub.AskReceipt(pb.ReceiptRequest(contribution=b"x" * 32), timeout=10)
    assert unknown.reason == pb.Receipt.REASON_UNKNOWN
    assert calm.swarm.status().step == 0


def test_a_snapshot_download_resumes_at_any_byte_but_not_beyond_its_end(calm: RawNode) -> None:
    whole = (calm.swarm.state / "snapshots" / "0.safetensors").read_bytes()

    def snapshot(step: int, offset: int) -> tuple[pb.FilePart, bytes]:
        request = pb.SnapshotRequest(step=step, offset=offset)
        parts = list(calm.stub.Snapshot(request, timeout=10))
        return parts[0], b"".join(part.data for part in parts)

    for offset in (0, 1, 100_000, len(whole)):
        first, data = snapshot(0, offset)
        assert (first.size, first.step, first.offset) == (len(whole), 0, offset)
        assert data == whole[offset:]
    first, data = snapshot(3, 1 << 63)  # for another step, the newest snapshot is sent from its beginning
    assert (first.step, first.offset, data) == (0, 0, whole)
    for offset in (len(whole) + 1, (1 << 64) - 1):
        with pytest.raises(grpc.RpcError) as error:
            snapshot(0, offset)
        assert error.value.code() == grpc.StatusCode.OUT_OF_RANGE
        assert f"has {len(whole)} bytes, but byte {offset} was requested" in (error.value.details() or "")


def test_a_node_with_counted_rounds_takes_the_place_of_one_without(swarm: RealSwarm, raw: RawNode) -> None:
    """Also after the coordinator has started again: it knows from the ledger whose contributions were counted."""
    assert raw.contribute(opened(raw.attend()), raw.good_payload()).outcome == pb.Receipt.OUTCOME_COUNTED
    raw.channel.close()
    swarm.processes[0].end(END_S)
    coordinator = swarm.coordinator()
    idle = [RawNode(swarm) for _ in range(2)]
    streams = [node.attend() for node in idle]
    for stream in streams:
        next(stream)
    with pytest.raises(grpc.RpcError) as error:
        RawNode(swarm)
    assert "the swarm is full, with 2 nodes" in (error.value.details() or "")
    back = RawNode(swarm, raw.key)
    again = RawNode(swarm, raw.key)  # the same identity twice has one place
    (ended_one,) = coordinator.events("coordinator.session_ended")
    ids = [node.key.public.node_id for node in idle]
    with pytest.raises(grpc.RpcError) as error:
        list(streams[ids.index(ended_one["node_id"])])
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "a node with counted rounds has come back, and nothing of this one was counted" in (
        error.value.details() or ""
    )
    assert sorted(node.node_id for node in swarm.status().nodes) == sorted(
        [raw.key.public.node_id, *(node for node in ids if node != ended_one["node_id"])]
    )
    for node in (*idle, back, again):
        node.channel.close()


def test_a_port_or_a_state_directory_in_use_is_reported(swarm: RealSwarm) -> None:
    swarm.coordinator(run_text(5))
    command = ("thinwire-coordinator", "serve", "--listen", swarm.address, "--state-dir")
    second = swarm.start("second", *command, str(swarm.folder / "second"))
    third = swarm.start("third", *command, str(swarm.state))
    assert ended(second) == ended(third) == 1
    assert f"cannot listen on {swarm.address}: the port is in use" in second.text()
    assert "another coordinator runs on this state directory" in third.text()
    assert "Traceback" not in second.text() + third.text()


def test_without_a_coordinator_a_node_gives_up_after_the_given_time(swarm: RealSwarm) -> None:
    swarm.address = "127.0.0.1:9"  # no program listens on this port
    node = swarm.node("alone", "--give-up-after", "5")
    assert ended(node) == 1
    assert [told["joined"] for told in node.events("node.no_session")] == [False]  # told once
    assert "no coordinator at 127.0.0.1:9" in node.text()
    assert node.events("node.retrying")
    assert "for 5 s (--give-up-after)" in node.text()
    command = (BIN / "thinwire-node", "status", "--state-dir", swarm.folder / "alone")
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    assert said.startswith("the node is not running; an error ended it ")
    assert "ago: no coordinator at 127.0.0.1:9 for 5 s (--give-up-after)" in said
    nonsense = swarm.start("nonsense", "thinwire-node", "start", "localhost")
    assert ended(nonsense) == 2
    assert "'localhost' is neither an invite (twi1_…), nor @FILE with one, nor HOST:PORT" in nonsense.text()


def test_node_and_coordinator_leave_cleanly_within_five_seconds(swarm: RealSwarm) -> None:
    coordinator = swarm.coordinator(run_text(100_000))
    nodes = [swarm.node("a"), swarm.node("b")]
    # each has trained on step 3 once it is counted a fourth time
    until(lambda: [node.counted > 3 for node in swarm.status().nodes] == [True, True], "both count", *nodes)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGINT)
    for process, number in zip((*nodes, coordinator), numbers, strict=True):
        assert ends_in_s(process, number) < 5
        assert ended(process) == 0, process.text()
        assert "Traceback" not in process.text()
    for node in nodes:
        assert last_fingerprint(node)[0] > 2
        assert not (swarm.folder / node.name / READY_FILE).exists()
    assert not (swarm.state / READY_FILE).exists()
    swarm.verify()
    # the node restores its momentum, and its parameters without fetching a snapshot
    swarm.coordinator()
    again = swarm.node("b", "--rounds", "2")  # the last that left, so that no rounds have passed since
    assert ended(again) == 0
    assert again.events("node.momentum_taken_up")
    assert not again.events("node.snapshot_fetched")


def test_a_node_in_the_middle_of_a_long_micro_batch_leaves_within_five_seconds(swarm: RealSwarm) -> None:
    """The micro-batch takes 20 s, and the signal comes in the first second."""
    swarm.coordinator(run_text(100, width=256, layers=24, hidden=512, samples=400, length_ms=100_000))
    node = swarm.node("a", "--micro-batch", "400")
    until(lambda: swarm.status().nodes and swarm.status().nodes[0].active, "the node is active", node)
    assert ends_in_s(node, signal.SIGTERM) < 5
    assert ended(node) == 0, node.text()
    assert last_fingerprint(node)[0] == 0
    assert [totals["counted"] for totals in node.events("node.totals")] == [0]
