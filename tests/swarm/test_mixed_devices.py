"""Tests that nodes which compute in different ways hold the same bits, in a real swarm of 200 rounds."""

from __future__ import annotations

import pytest

from support.real import LONG_MS, RealSwarm, ended, last_fingerprint, run_text, until
from thinwire_node.resources import MOMENTS_ON_HOST, measured_needs
from thinwire_node.training.compute import FOLDER
from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.needs import PROGRAM_BYTES

STEPS = 200
SLOWER_PERCENT = "16"
"""Of the time that a node computes which is six times slower than another."""


def too_little_without_checkpoints(contract: Contract) -> int:
    """The memory of a node that has room for one sample with checkpoints, and not without them."""
    needs = measured_needs(contract)
    held = PROGRAM_BYTES + needs.data + needs.trained + needs.model.frozen
    least, most = (needs.model.activations.peak(1, checkpoints=wanted) for wanted in (True, False))
    assert least < most
    return held + (least + most) // 2


def too_little_for_moments(contract: Contract) -> int:
    """The memory of a card that has room for a sample beside parameters and gradients, and not for momentum and moments
    too."""
    needs = measured_needs(contract)
    found = needs.trained - needs.moments + needs.model.activations.peak(1, checkpoints=False)
    assert found < needs.trained + needs.model.activations.peak(1, checkpoints=True)
    return found


@pytest.mark.timeout(600)  # the compiler takes minutes on a busy machine, and then there are 200 rounds
def test_threads_precisions_checkpoints_compilers_and_speeds_change_no_bit_of_a_replica(swarm: RealSwarm) -> None:
    swarm.coordinator(run_text(STEPS, layers=3, length_ms=LONG_MS), "--wait-for", "7", "--evaluate-every", "20")
    contract = parse_contract((swarm.state / "contract.json").read_bytes())
    memory, card = too_little_without_checkpoints(contract), too_little_for_moments(contract)
    compiled = swarm.node("compiled", "--compile")
    until(
        lambda: "the model is compiled, after" in compiled.text(),
        "a compiled model",
        compiled,
        progress=lambda: sum(1 for _ in (swarm.folder / "compiled" / FOLDER).rglob("*")),
    )
    nodes = {
        "one-thread": swarm.node("one-thread"),
        "two-threads": swarm.node("two-threads", "--threads", "2"),
        "bfloat16": swarm.node("bfloat16", through=("bfloat16_node.py",)),
        "checkpoints": swarm.node("checkpoints", "--max-memory", str(memory)),
        "small-card": swarm.node("small-card", through=("small_card_node.py", str(card))),
        "compiled": compiled,
        "slow": swarm.node("slow", "--max-compute", SLOWER_PERCENT),
    }
    ends = {name: ended(node, progress=lambda: swarm.status().step) for name, node in nodes.items()}
    assert set(ends.values()) == {0}, ends

    assert "training on cpu with 2 threads" in nodes["two-threads"].text()
    alone = "1 samples at once fit into the memory if activations are computed again in the backward pass"
    assert alone in nodes["checkpoints"].text()
    assert MOMENTS_ON_HOST in nodes["small-card"].text()
    status = swarm.status(fingerprint=True)
    assert (status.state, status.step, status.rounds_void) == ("complete", STEPS, 0)
    assert {last_fingerprint(node) for node in nodes.values()} == {(STEPS, status.fingerprint)}
    # the base of each contribution was compared with the coordinator's replica
    assert (status.fingerprints_compared, status.fingerprints_different) == (len(nodes) * STEPS, 0)
    assert [(node.counted, node.not_counted) for node in status.nodes] == [(STEPS, 0)] * len(nodes)
    assert status.loss_newest < status.loss_first - 0.5
    assert f"fingerprint {status.fingerprint:016x}" in swarm.verify()
