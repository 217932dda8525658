"""Tests that torchrun starts the processes of a node, that a run on a clock looks ahead, and what is refused."""

from __future__ import annotations

import signal

import pytest

from deploy.local_swarm.ports import free_addresses
from deploy.local_swarm.processes import BIN, JSON_LOG, Process
from support.real import RealSwarm, ended, run_text, until, without_a_centre


def by_torchrun(swarm: RealSwarm, ranks: int, *more: str) -> Process:
    command = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["-m", "thinwire_node", "start", swarm.invitation, "--name", "site", "--threads", "1"]
    command += ["--state-dir", str(swarm.folder / "site"), *JSON_LOG, *more]
    return swarm.start("site", *command)


def test_torchrun_starts_the_processes_of_one_node(swarm: RealSwarm) -> None:
    swarm.coordinator(run_text(100_000, samples=8))
    node = by_torchrun(swarm, 3, "--device", "cpu", "--rounds", "4")
    assert ended(node) == 0
    assert [(one.name, one.counted) for one in swarm.status().nodes] == [("site", 4)]
    alone = swarm.node("site")
    until(lambda: swarm.counted("site") >= 6, "a node of one process goes on", alone)
    assert len(alone.events("node.momentum_taken_up")) == 1
    alone.tell(signal.SIGTERM)
    assert ended(alone) == 0
    status = swarm.status(fingerprint=True)
    assert status.fingerprints_different == 0
    assert f"fingerprint {status.fingerprint:016x}" in swarm.verify()


def test_a_node_that_torchrun_has_started_leaves_when_torchrun_is_told_to(swarm: RealSwarm) -> None:
    swarm.coordinator(run_text(100_000, samples=8))
    node = by_torchrun(swarm, 2, "--device", "cpu")
    until(lambda: swarm.counted("site") >= 2, "it is counted", node)
    node.tell(signal.SIGTERM)
    ended(node)
    assert len(node.events("node.left")) == 1


def test_updates_between_micro_batches_and_looking_ahead(swarm: RealSwarm) -> None:
    text = run_text(100_000, samples=64, length_ms=800, rounds='pace = "clock"\n')
    swarm.coordinator(text, "--wait-for", "2", "--evaluate-every", "2")
    nodes = [swarm.node("alone"), swarm.node("site", "--device", "cpu*2")]
    until(lambda: swarm.status().measured_step >= 6, "the loss is measured", *nodes)
    until(lambda: swarm.counted("site") >= 6, "the site is counted", *nodes)
    for node in nodes:
        node.tell(signal.SIGTERM)
    assert [ended(node) for node in nodes] == [0, 0]
    status = swarm.status(fingerprint=True)
    assert status.fingerprints_compared > 0
    assert status.fingerprints_different == 0
    assert f"fingerprint {status.fingerprint:016x}" in swarm.verify()


def test_the_process_with_the_least_memory_decides(swarm: RealSwarm) -> None:
    """The second one has its host's memory with a thousand others."""
    swarm.coordinator(run_text(10))
    port = free_addresses(1)[0].rpartition(":")[2]
    nodes = []
    for rank, here in enumerate((1, 1000)):
        launched = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": here, "MASTER_PORT": port}
        launched |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
        command = ["/usr/bin/env", *(f"{name}={value}" for name, value in launched.items())]
        command += [str(BIN / "python"), "-m", "thinwire_node", "start", swarm.invitation, "--device", "cpu"]
        folder = ["--state-dir", str(swarm.folder / f"of-{rank}")]
        nodes.append(swarm.start(f"rank-{rank}", *command, *folder, *JSON_LOG))
    assert [ended(node) for node in nodes] == [1, 0]
    (failed,) = nodes[0].events("node.failed")
    assert "(of process 1, which has the least)" in failed["message"]


def test_a_gossip_run_refuses_several_devices(swarm: RealSwarm) -> None:
    swarm.coordinator(run_text(10, rounds=without_a_centre(2, 4)))
    node = swarm.node("site", "--device", "cpu*2")
    assert ended(node) == 1
    (failed,) = node.events("node.failed")
    assert failed["message"] == "this is a gossip run, in which a node is one process; give one --device"


@pytest.mark.parametrize("device", ["cpu*0", "cpu,", "all*2", "gpu", "cuda:x", ""])
def test_a_list_of_devices_that_is_none_is_refused(swarm: RealSwarm, device: str) -> None:
    node = swarm.node("site", "--device", device)
    assert ended(node) == 2
    assert "is not auto, cuda, cuda:N, xpu, xpu:N, mps or cpu" in node.text()
