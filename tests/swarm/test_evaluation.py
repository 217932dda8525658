"""Tests that nodes measure the held-out loss: real processes, one of which lies and one of which dies."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import grpc
import pytest

from support.measuring_node import DIES_AT
from support.real import RealSwarm, ended, last_fingerprint, run_text, until
from thinwire_coordinator.evaluation import HeldOut
from thinwire_coordinator.ledger.state_directory import open_state, replay
from thinwire_coordinator.round.measurement import TOLERANCE
from thinwire_proto.data.text import HELD_OUT
from thinwire_proto.wire.negotiation import PROTOCOL
from thinwire_proto.wire.service_pb2 import EvaluatedRequest, EvaluationPart, JoinRequest
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

STEPS, EVERY = 20, 4


def refused(swarm: RealSwarm, part: EvaluationPart, loss: float) -> grpc.Call:
    """The answer to a report of a node that was given no part."""
    with grpc.insecure_channel(swarm.address) as channel:
        stub = SwarmStub(channel)
        session = stub.Join(JoinRequest(protocol=PROTOCOL, node_id="f" * 32, name="foreign"), timeout=10).session
        with pytest.raises(grpc.RpcError) as error:
            stub.Evaluated(EvaluatedRequest(session=session, part=part, loss=loss), timeout=10)
        answer: grpc.Call = error.value  # type: ignore[assignment]
        return answer


def test_nodes_measure_the_loss_find_out_a_liar_and_replace_a_dead_node(swarm: RealSwarm) -> None:
    coordinator = swarm.coordinator(
        run_text(STEPS), "--wait-for", "4", "--evaluate", "nodes", "--evaluate-every", str(EVERY), "--http", "off"
    )
    honest = [swarm.node(f"honest-{number}") for number in range(2)]
    liar = swarm.node("liar", through=("measuring_node.py", "lies"))
    dies = swarm.node("dies", through=("measuring_node.py", "dies"))
    part = EvaluationPart(step=0, name=HELD_OUT, spread=64, start=0, count=8)
    until(lambda: swarm.status().round > 0, "the first round", *swarm.processes)
    answer = refused(swarm, part, 5.0)
    assert answer.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "is not assigned to this session" in answer.details() or "no measurement" in answer.details()
    assert [ended(node) for node in [*honest, liar]] == [0, 0, 0]
    assert ended(dies) == -9
    until(lambda: swarm.status().measured_step == STEPS, "the last loss is measured", coordinator)

    assert {event["name"] for event in coordinator.events("coordinator.evaluation_differs")} == {"liar"}
    status = swarm.status(fingerprint=True)
    assert (status.step, status.rounds_void, status.fingerprints_different) == (STEPS, 0, 0)
    assert {last_fingerprint(node) for node in [*honest, liar]} == {(STEPS, status.fingerprint)}
    (found,) = status.held_out
    assert (found.name, found.step, found.loss) == (HELD_OUT, STEPS, status.loss_newest)

    with closing(sqlite3.connect(swarm.state / "ledger.sqlite")) as db:
        measured = {step: (loss, by) for step, loss, by in db.execute("SELECT step, loss, measured_by FROM losses")}
    # nodes leave after the last step
    assert {step: by for step, (_, by) in measured.items()} == {
        **dict.fromkeys(range(0, STEPS, EVERY), "nodes"),
        STEPS: "coordinator",
    }
    assert DIES_AT in measured
    state = open_state(swarm.state, read_only=True)
    held_out, replica, (found_set,) = (
        HeldOut(state.contract, state.data, state.blobs),
        state.load_snapshot(0),
        state.held_out_sets,
    )
    for step, (loss, _) in sorted(measured.items()):
        for _ in replay(state, replica, step):
            pass
        assert loss == pytest.approx(held_out.measure(replica, found_set), rel=TOLERANCE), step
    state.close()
