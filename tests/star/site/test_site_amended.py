"""Tests that a node of several processes follows what the organizer changes in a run while it lives."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from deploy.local_swarm.processes import Process
from star.site.test_ranks import played
from star.site.test_sharded_site import begin_in_shards
from support.real import LONG_MS, RealSwarm, ended, last_fingerprint, run_text, until
from support.small import CPU, random_replica, small_contract, small_corpus
from thinwire_node.star.site.follower import Follower
from thinwire_node.star.site.leader import LeaderReplica, LeaderTrainer, ShardedLeaderReplica
from thinwire_node.star.site.sharded_compute import ShardedCompute
from thinwire_node.star.site.shares import Shares
from thinwire_node.training.compute import TorchCompute
from thinwire_node.training.micro_batch import MicroBatch
from thinwire_node.training.ranks import Ranks
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.data.text import CorpusText
from thinwire_proto.exact.amendments import amended
from thinwire_proto.task import task_of

BACK = 3
MORE = 40
"""Steps to the end, of which the last order takes some."""


@pytest.mark.parametrize(
    ("is_sharded", "of_branch"),
    [(False, "rule.kind=local_adamw"), (True, "schedule.floor=0.5")],
    ids=["whole, and a branch with another rule", "sharded"],
)
def test_a_site_follows_amendments_rewinds_and_a_branch(swarm: RealSwarm, is_sharded: bool, of_branch: str) -> None:
    text = run_text(100_000, length_ms=LONG_MS, samples=2, layers=6 if is_sharded else 1)
    coordinator = swarm.coordinator(text, "--wait-for", "2", "--evaluate-every", "10")
    site = begin_in_shards(swarm, 2) if is_sharded else swarm.node("site", "--device", "cpu*2")
    nodes = [swarm.node("alone"), site]
    swarm.reached(BACK + 2)
    command(swarm, nodes, "amend", "--set", "schedule.learning_rate=0.001", "--set", "demo.k=16")
    command(swarm, nodes, "amend", "--set", "round.samples=8")
    command(swarm, nodes, "rewind", str(BACK), "--because", "a spike")

    coordinator.tell(signal.SIGTERM)
    assert ended(coordinator) == 0
    parent, aside = swarm.state, swarm.folder / "aside"
    done = swarm.command("branch", "--from", str(BACK), "--to", str(aside), "--set", of_branch)
    assert done.returncode == 0, done.stderr
    swarm.state = aside
    swarm.coordinator(None, "--wait-for", "2")
    swarm.reached(BACK + 2)
    command(swarm, nodes, "amend", "--set", "schedule.learning_rate=0.0005", "--set", "demo.k=24")
    command(swarm, nodes, "rewind", str(BACK))
    done = swarm.command("amend", "--set", f"schedule.steps={swarm.status().step + MORE}")
    assert done.returncode == 0, done.stderr

    assert [ended(node, lambda: swarm.status().step) for node in nodes] == [0, 0]
    status = swarm.status(fingerprint=True)
    assert status.state == "complete"
    assert {last_fingerprint(node) for node in nodes} == {(status.step, status.fingerprint)}
    assert status.fingerprints_compared > 0
    assert status.fingerprints_different == 0
    for node in nodes:
        assert f"goes on as a branch from step {BACK}" in node.text()
        assert len(node.events("node.snapshot_fetched")) == 4
        assert not node.events("node.resync")
        assert "Fatal" not in node.text()
    assert ("none holds the whole model" in site.text()) == is_sharded
    swarm.verify()
    swarm.state = parent
    assert "a spike" in swarm.verify()


def test_votes_get_more_levels_and_fewer_while_nodes_train(swarm: RealSwarm) -> None:
    """Also across a death of the coordinator, whose next process goes on from the amended contract."""
    text = run_text(100_000, length_ms=LONG_MS, samples=4, rounds='nodes_max = 64\n[rule]\nkind = "merged_muon"')
    coordinator = swarm.coordinator(text, "--wait-for", "2")
    nodes = [swarm.node("alone"), swarm.node("site", "--device", "cpu*2")]
    swarm.reached(BACK)
    for votes, update, step in ((9, 15, 0.5), (1, 3, 2.0)):
        levels = (f"demo.vote_levels={votes}", f"demo.update_levels={update}", f"demo.vote_step={step}")
        command(swarm, nodes, "amend", *(word for one in levels for word in ("--set", one)))
        coordinator.tell(signal.SIGKILL)
        ended(coordinator)
        coordinator = swarm.coordinator(text, "--wait-for", "2")
        swarm.reached(swarm.status().step + BACK)
    status = swarm.status(fingerprint=True)
    assert status.fingerprints_compared > 0
    assert status.fingerprints_different == 0
    assert not any(node.events(kind) for node in nodes for kind in ("node.momentum_dropped", "node.resync"))
    assert "demo.vote_levels = 9" in swarm.verify()


def command(swarm: RealSwarm, nodes: list[Process], *words: str) -> None:
    """Give an order, and wait until the nodes are told and counted again."""
    told = [len(node.events("node.amended")) for node in nodes]
    done = swarm.command(*words)
    assert done.returncode == 0, done.stderr
    for node, before in zip(nodes, told, strict=True):
        until(lambda: len(node.events("node.amended")) > before, "it is told", *swarm.processes)  # noqa: B023
    goals = {node.name: swarm.counted(node.name) + 3 for node in nodes}
    until(lambda: all(swarm.counted(name) >= goal for name, goal in goals.items()), "all count", *swarm.processes)


def changing(ranks: Ranks, *, is_sharded: bool) -> Any:
    """The leader begins a run, then a branch of it, and amends that. Returns of a follower whether it held a model when
    each began, and the rate and the samples of a pass at the end."""
    if ranks.rank:
        follower, held = Follower(ranks, CPU), list[bool]()
        adopt = follower._adopt

        def adopting(head: dict[str, Any], tensors: list[Tensor]) -> None:
            held.append(follower._compute is not None)
            adopt(head, tensors)

        follower._adopt = adopting  # type: ignore[method-assign]
        follower.run()
        assert follower._compute is not None
        assert follower._rank is not None
        return held, follower._rank.trainer._contract.schedule.learning_rate, follower._compute.micro_batch.samples
    contract, at_once = small_contract(), MicroBatch(4)
    task, data = task_of(contract.model), CorpusText(small_corpus(), contract)
    for _ in range(2):
        replica = random_replica(contract)
        shares = Shares(replica.layout, ranks)
        if is_sharded:
            compute: Any = ShardedCompute(task, CPU, shares, at_once)
            led: Any = ShardedLeaderReplica(replica, shares, CPU)
        else:
            compute, led = TorchCompute(task, CPU, micro_batch=at_once), LeaderReplica(replica, shares)
        trainer = LeaderTrainer(contract, data, led, compute, Path())
    at_once.fit(2)
    trainer.amend(amended(contract, Amendment(0, {"schedule.learning_rate": 0.125})))
    return None


@pytest.mark.parametrize("is_sharded", [False, True], ids=["whole", "sharded"])
def test_followers_take_what_is_amended_and_keep_nothing_of_a_run_that_branched(
    tmp_path: Path, is_sharded: bool
) -> None:
    assert played(tmp_path, partial(changing, is_sharded=is_sharded), 2)[1] == ([False, False], 0.125, 2)
