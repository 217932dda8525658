"""Tests that a node of several processes looks ahead in a run on a clock, and what is refused."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from deploy.local_swarm.processes import BIN
from support.real import RealSwarm, ended, run_text, until, without_a_centre
from thinwire_node.cli.options import devices_named


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


def test_a_file_in_the_folder_of_the_shell_is_no_part_of_a_follower(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('a file of the owner')")
    command = [str(BIN / "thinwire-node"), "start", "127.0.0.1:1", "--device", "cpu*2", "--state-dir", "node"]
    done = subprocess.run(
        [*command, "--give-up-after", "0", "--priority", "normal"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "a file of the owner" not in done.stderr
    assert "no coordinator" in done.stderr


def test_a_gossip_run_refuses_several_devices(swarm: RealSwarm) -> None:
    swarm.coordinator(run_text(10, rounds=without_a_centre(2, 4)))
    node = swarm.node("site", "--device", "cpu*2")
    assert ended(node) == 1
    (failed,) = node.events("node.failed")
    assert failed["message"] == "this is a gossip run, in which a node is one process; give one --device"


@pytest.mark.parametrize("devices", ["cpu*0", "cpu,", "all*2", "gpu", "cuda:x", ""])
def test_a_list_of_devices_that_is_none_is_refused(devices: str) -> None:
    with pytest.raises(ValueError, match="is not auto, cuda, cuda:N, xpu, xpu:N, mps or cpu"):
        devices_named(devices)
