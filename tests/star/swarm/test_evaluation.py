"""Tests that nodes measure the held-out loss: real processes, one of which lies and one of which dies."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sysconfig
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from deploy.local_swarm.processes import BIN
from support.raw_calls import in_session, join
from support.real import PATIENCE_S, RealSwarm, ended, last_fingerprint, run_text, until
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.hall.measurement import TOLERANCE
from thinwire_coordinator.hall.measuring import HeldOut
from thinwire_coordinator.star.replay import replay
from thinwire_coordinator.star.trust.weights import FULL_AFTER
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire.service_pb2 import EvaluatedRequest, EvaluationPart
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

STEPS, EVERY = 40, 4
SETS = ("json", "email")
"""Sources of the training data, which are packages of the standard library, and their held-out sets."""


def prepared(swarm: RealSwarm) -> Path:
    """Data with one held-out set for each source, in shards that nodes fetch."""
    folder, library = swarm.folder / "prepared", Path(sysconfig.get_paths()["stdlib"])
    sources = [f"{name}={library / name}/*.py" for name in SETS]
    command = [str(BIN / "thinwire-coordinator"), "prepare", *sources, "--out", str(folder), "--held-out", "30%"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return folder


def refused(swarm: RealSwarm, part: EvaluationPart, loss: float) -> grpc.Call:
    """The answer to a report of a node that was given no part."""
    with swarm.channel() as channel:
        key = SecretKey()
        secret = join(SwarmStub(channel), key, swarm.token, name="foreign").session
        where = (part.step, part.name, part.start, part.count, part.spread)
        statement = statements.evaluated(statements.session_of(secret), *where, loss)
        request = EvaluatedRequest(part=part, loss=loss, signature=key.sign(statement))
        with pytest.raises(grpc.RpcError) as error:
            in_session(channel, secret).Evaluated(request, timeout=10)
        answer: grpc.Call = error.value  # type: ignore[assignment]
        return answer


def test_nodes_measure_the_loss_find_out_a_liar_and_replace_a_dead_node(swarm: RealSwarm) -> None:
    run = run_text(STEPS, model="vocabulary = 256") + f'[data]\nkind = "tokens"\nfolder = "{prepared(swarm)}"\n'
    coordinator = swarm.coordinator(
        run, "--wait-for", "4", "--evaluate", "nodes", "--evaluate-every", str(EVERY), "--http", "off"
    )
    honest = [swarm.node(f"honest-{number}") for number in range(2)]
    liar = swarm.node("liar", through=("measuring_node.py", "lies"))
    dies = swarm.node("dies", through=("measuring_node.py", "dies"))
    part = EvaluationPart(step=0, name=SETS[0], spread=64, start=0, count=8)
    until(lambda: swarm.status().round > 0, "the first round", *swarm.processes)
    answer = refused(swarm, part, 5.0)
    assert answer.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "is not assigned to this session" in answer.details() or "no measurement" in answer.details()
    assert [ended(node) for node in [*honest, liar]] == [0, 0, 0]
    assert ended(dies) == -9
    until(lambda: swarm.status().measured_step == STEPS, "the last loss is measured", coordinator)

    assert {event["name"] for event in coordinator.events("coordinator.evaluation_differs")} == {"liar"}
    changed = coordinator.events("coordinator.trust_changed")
    assert {(event["name"], event["cause"], event["verdict"]) for event in changed if event["cause"] == "held_out"} == {
        ("liar", "held_out", "lowered")
    }
    status = swarm.status(fingerprint=True)
    assert (status.step, status.rounds_void, status.fingerprints_different) == (STEPS, 0, 0)
    assert {last_fingerprint(node) for node in [*honest, liar]} == {(STEPS, status.fingerprint)}
    assert [(found.name, found.step) for found in status.held_out] == [(name, STEPS) for name in SETS]
    for found in status.held_out:  # a token is a byte
        assert found.bits_per_byte == pytest.approx(found.loss / math.log(2), rel=1e-2)
    assert status.held_out[0].loss == status.loss_newest

    with closing(sqlite3.connect(swarm.state / "ledger.sqlite")) as db:
        rows = db.execute("SELECT name, step, loss, measured_by FROM losses").fetchall()
    by = {(name, step): measured_by for name, step, _, measured_by in rows}
    assert {(name, step) for name in SETS for step in (0, STEPS)} <= by.keys()
    # nobody has earned trust before, and nodes leave after the last step
    assert {by[key] for key in by if key[1] < FULL_AFTER or key[1] == STEPS} == {"coordinator"}
    assert any(by[key] == "nodes" for key in by if FULL_AFTER <= key[1] < STEPS)
    state = open_state(swarm.state, read_only=True)
    held_out, replica = HeldOut(state.contract, state.data, state.blobs), state.load_snapshot(0)
    sets = {found.name: found for found in state.held_out_sets}
    for name, step, loss, _ in sorted(rows, key=lambda row: row[1]):
        for _ in replay(state, replica, step):
            pass
        assert loss == pytest.approx(held_out.measure(replica, sets[name]), rel=TOLERANCE), (name, step)
    state.close()
