"""Tests a node whose processes divide the model, because it does not fit into each of them, in a real swarm."""

from __future__ import annotations

import os
import signal

import pytest

from deploy.local_swarm.processes import Process
from star.site.test_site_restarts import LOCAL, MUON, checked, counted_more, followers
from support.fork_server import run
from support.real import LONG_MS, RealSwarm, ended, last_fingerprint, run_text, until
from thinwire_node.observe import status as node_status
from thinwire_node.resources import measured_needs
from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.needs import PROGRAM_BYTES

RULES = {"demo": "", "local_adamw": LOCAL.format("local_adamw"), "local_muon": LOCAL.format("local_muon")}
SITES = {"demo": (2, 200), "local_adamw": (2, 25), "local_muon": (3, 25)}
"""The number of processes, and the steps, by rule."""


def text_of(steps: int, samples: int, rounds: str = "", *, width: int = 128, layers: int = 8) -> str:
    return run_text(
        steps, length_ms=LONG_MS, samples=samples, rounds=rounds, width=width, layers=layers, hidden=4 * width
    )


def too_little_for_each(contract: Contract, ranks: int) -> int:
    """The memory of a node in which each of its processes has room for its part of the model, and not for the whole."""
    needs = measured_needs(contract)
    held = PROGRAM_BYTES + needs.data + needs.model.activations.peak(1, checkpoints=True)
    whole = needs.trained
    shard = needs.trained // ranks + needs.gathered + (needs.parameters + needs.trained // 2) // ranks
    assert shard < whole
    return ranks * (held + (whole + shard) // 2)


@pytest.mark.parametrize("rule", SITES)
def test_a_site_of_shards_and_a_node_of_one_process_hold_the_same_replica(swarm: RealSwarm, rule: str) -> None:
    ranks, steps = SITES[rule]
    swarm.coordinator(text_of(steps, 2, RULES[rule], width=64, layers=6), "--wait-for", "2", "--evaluate-every", "25")
    alone = swarm.node("alone")
    divided = begin_in_shards(swarm, ranks)
    assert [ended(node, lambda: swarm.status().step) for node in (alone, divided)] == [0, 0]

    assert "none holds the whole model" in divided.text()
    status = swarm.status(fingerprint=True)
    assert (status.state, status.step, status.rounds_void) == ("complete", steps, 0)
    assert {last_fingerprint(node) for node in (alone, divided)} == {(steps, status.fingerprint)}
    assert (status.fingerprints_compared, status.fingerprints_different) == (2 * steps, 0)
    assert [(node.counted, node.not_counted) for node in status.nodes] == [(steps, 0)] * 2
    assert status.loss_newest < status.loss_first - 0.2


def begin_in_shards(swarm: RealSwarm, ranks: int) -> Process:
    contract = parse_contract((swarm.state / "contract.json").read_bytes())
    memory = too_little_for_each(contract, ranks)
    return swarm.node("site", "--device", f"cpu*{ranks}", "--max-memory", str(memory))


@pytest.mark.parametrize("rule", ["demo", "local_muon"])
def test_shards_rest_die_and_come_back_as_another_number_or_as_a_whole(swarm: RealSwarm, rule: str) -> None:
    swarm.coordinator(text_of(100_000, 8, RULES[rule]))
    node = begin_in_shards(swarm, 2)
    counted_more(swarm, 2, node)
    for command in ("pause", "resume"):
        done = run(["thinwire-node", command, "--state-dir", str(swarm.folder / "site")], swarm.folder)
        assert done.returncode == 0, done.stderr
        if command == "pause":
            until(lambda: "paused" in node_status.read(swarm.folder / "site").words, "it rests", node)
    counted_more(swarm, 2, node)
    os.kill(followers(node)[0], signal.SIGKILL)
    assert ended(node) == 1
    assert "another one has ended" in node.events("node.failed")[0]["message"]
    for ranks in (3, 1, 2):
        node = begin_in_shards(swarm, ranks) if ranks > 1 else swarm.node("site")
        counted_more(swarm, 3, node)
        node.tell(signal.SIGTERM)
        assert ended(node) == 0
        if ranks != 3:  # what the first one left may hold what was counted
            assert len(node.events("node.momentum_taken_up")) == 1
        assert not node.events("node.resync")
    checked(swarm)


def test_shards_refuse_a_rule_that_needs_the_whole_model(swarm: RealSwarm) -> None:
    swarm.coordinator(text_of(10, 2, MUON))
    node = begin_in_shards(swarm, 2)
    assert ended(node) == 1
    (failed,) = node.events("node.failed")
    assert failed["message"].startswith(
        'rule.kind = "merged_muon" steps with whole matrices, so each of this node\'s 2 processes must hold the whole '
        "model; give --device larger cards, or fewer processes on the processor: this run needs "
    )
