"""Tests that nodes whose frozen bases have 16, 8 and 4 bits train one adapter, equal to the bit, in real processes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import torch

from support.adapters import base_folder
from support.file_server import serving
from support.real import RealSwarm, ended, last_fingerprint, totals
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.star.replay import replica_at_head
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import task_of

ROUNDS = 200
BITS = (16, 8, 4)
CONFIG = {
    **{"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"num_key_value_heads": 2, "intermediate_size": 128, "max_position_embeddings": 64},
}


def run_of(base: Path) -> str:
    return f"""
[model]
kind = "lora"
base = "{base}"
rank = 8
[schedule]
steps = {ROUNDS}
warmup_steps = 10
learning_rate = 0.005
[round]
samples = 2
weight_max = 2
length_ms = 60000
"""


def test_adapters_are_equal_over_200_rounds_whatever_the_bits_of_the_bases(swarm: RealSwarm) -> None:
    base = base_folder(swarm.folder / "base", config=CONFIG, scale=1)
    options = ("--wait-for", "3", "--evaluate", "nodes", "--evaluate-every", "100", "--http", "off")
    coordinator = swarm.coordinator(run_of(base), *options)
    nodes = [swarm.node(f"of-{bits}-bits", "--base-bits", str(bits)) for bits in BITS]
    assert [ended(node, lambda: swarm.status().step) for node in nodes] == [0, 0, 0]
    for node, bits in zip(nodes, BITS, strict=True):
        assert f"in {bits} bits a parameter" in node.text()
        assert totals(node) == (ROUNDS, 0)
    assert len({last_fingerprint(node) for node in nodes}) == 1
    status = swarm.status(fingerprint=True)
    assert (status.step, status.fingerprints_compared, status.fingerprints_different) == (ROUNDS, 3 * ROUNDS, 0)
    assert last_fingerprint(nodes[0])[0] == ROUNDS
    assert f"fingerprint {status.fingerprint:016x}" in swarm.verify()
    assert not coordinator.events("coordinator.evaluation_differs")

    with closing(open_state(swarm.state, read_only=True)) as state:
        replica, task, data = replica_at_head(state), task_of(state.contract.model), state.data
        (held_out,) = data.held_out_sets()
        batch = data.held_out(held_out.name, held_out.spread(32))
        losses, outputs = {}, set()
        for bits in task.base_bits:
            with torch.no_grad():
                model = Stateless(task.in_bits(bits).model("cpu", state.blobs))
                losses[bits] = float(model.loss(replica.tensors, batch))
                outputs.add(tuple(model.next_logits(replica.tensors, batch[0][0]).tolist()))
    assert len(outputs) == len(losses)  # two mean losses may be equal
    assert all(abs(loss - losses[32]) < 0.05 * losses[32] for loss in losses.values()), losses


def test_the_nodes_of_a_machine_fetch_the_base_once_and_not_from_the_coordinator(swarm: RealSwarm) -> None:
    base = base_folder(swarm.folder / "base", config=CONFIG, scale=1, parts=2)
    with serving(base) as mirror:
        run = run_of(base).replace("rank = 8", f'rank = 8\nbase_urls = ["{mirror.url}/mirror"]')
        swarm.coordinator(run.replace(f"steps = {ROUNDS}", "steps = 12"), "--wait-for", "2", "--http", "off")
        nodes = [swarm.node(name, "--data-networks", "loopback") for name in "ab"]
        assert [ended(node, lambda: swarm.status().step) for node in nodes] == [0, 0]
        asked = sorted(name for name, _ in mirror.asked)
    assert asked == ["model-0.safetensors", "model-1.safetensors"]
    first, second = ({path.stat().st_ino for path in (swarm.folder / name / "blobs").iterdir()} for name in "ab")
    assert first == second
    assert len({last_fingerprint(node) for node in nodes}) == 1
