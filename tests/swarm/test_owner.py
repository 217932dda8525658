"""An owner limits real nodes while they run: a pause, hours, and the end after a round."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from deploy.local_swarm.ports import free_addresses
from deploy.local_swarm.processes import Process
from support.fork_server import run
from support.prometheus import parsed, read, value
from support.real import LONG_MS, RealSwarm, ended, last_fingerprint, run_text, totals, until, without_a_centre

GOSSIP = run_text(100_000, samples=1000, length_ms=500, rounds='pace = "clock"')
GOSSIP += without_a_centre(2, 16, topology="complete", codec="int8")
PAUSE_WITHIN_S = 2.0


def own(swarm: RealSwarm, command: str, *more: str, node: str = "lent") -> str:
    done = run(["thinwire-node", command, "--state-dir", str(swarm.folder / node), *more], swarm.folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rests(node: Process) -> list[str]:
    return [event["reason"] for event in node.events("node.waiting")]


def computed_s(at: str) -> float:
    return value(parsed(read(f"http://{at}/metrics")), "thinwire_node_phase_seconds_sum", phase="compute")


def test_a_pause_stops_computing_and_outlives_a_restart(swarm: RealSwarm) -> None:
    coordinator, at = swarm.coordinator(GOSSIP), free_addresses(1)[0]
    other = swarm.node("other")
    node = swarm.node("lent", "--metrics", at)
    until(lambda: swarm.counted("lent") > 2, "the node is counted", coordinator, node, other)
    began = time.monotonic()
    assert own(swarm, "pause") == "paused until `thinwire-node resume`\n"
    until(lambda: rests(node)[-1:] == ["paused"], "the node rests", node)
    within_s = time.monotonic() - began
    computed = computed_s(at)
    until(lambda: time.monotonic() > began + within_s + PAUSE_WITHIN_S, "a while", node)
    assert computed_s(at) == computed
    assert swarm.active() == ["other"]
    assert "paused" in own(swarm, "status")

    node.tell(signal.SIGKILL)
    until(lambda: not node.running, "the node ends", node)
    node = swarm.node("lent")
    until(lambda: rests(node) == ["paused"], "the node still rests", node)
    own(swarm, "resume")
    counted = swarm.counted("lent")
    until(lambda: swarm.counted("lent") > counted, "the node is counted again", coordinator, node, other)
    assert not node.events("node.momentum_dropped")
    assert swarm.status().fingerprints_different == 0
    assert own(swarm, "stop", "--after-round") == "the node stops after its round\n"
    assert ended(node) == 0


def test_what_was_trained_before_a_pause_is_kept(swarm: RealSwarm) -> None:
    """Rounds last until all have contributed, so the first node's gradient is in none when it is told to pause."""
    coordinator = swarm.coordinator(run_text(1000, samples=1 << 16, length_ms=LONG_MS))
    node = swarm.node("lent")
    until(lambda: _samples(swarm) > 0, "the node trains", coordinator, node)
    own(swarm, "pause", "1h")
    until(lambda: rests(node)[-1].startswith("paused until "), "the node rests", node)
    sent = json.loads((swarm.folder / "lent" / "sent.json").read_text())
    assert sent == []  # nothing was sent, and what was trained is in the momentum on disk
    assert (swarm.folder / "lent" / "momentum.safetensors").exists()
    own(swarm, "resume")
    until(lambda: len(node.events("node.joined")) == 2, "the node joins again", coordinator, node)
    assert not node.events("node.momentum_dropped")
    node.tell(signal.SIGTERM)
    assert ended(node) == 0


def test_a_node_stops_after_its_round(swarm: RealSwarm) -> None:
    coordinator = swarm.coordinator(run_text(1000, length_ms=LONG_MS))
    node, other = swarm.node("lent"), swarm.node("other")
    until(lambda: min(swarm.counted("lent"), swarm.counted("other")) > 2, "both are counted", coordinator, node, other)
    own(swarm, "stop", "--after-round")
    assert ended(node) == 0
    other.tell(signal.SIGTERM)
    assert ended(other) == 0
    assert totals(node)[0] == swarm.counted("lent")  # it has learned what became of its last contribution too
    assert last_fingerprint(other)[0] >= last_fingerprint(node)[0]
    refused = run(["thinwire-node", "stop", "--state-dir", str(swarm.folder / "lent")], swarm.folder)
    assert refused.returncode == 1
    assert refused.stderr.strip().endswith("no node runs here")


def test_a_node_rests_while_the_line_is_metered(
    swarm: RealSwarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a program in the place of systemd's, which prints what NetworkManager says."""
    (tmp_path / "busctl").write_text("#!/bin/sh\necho u 1\n")
    (tmp_path / "busctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    coordinator = swarm.coordinator(run_text(100_000, length_ms=500, rounds='pace = "clock"'))
    node = swarm.node("lent", "--on-metered", "pause")
    until(lambda: rests(node)[-1:] == ["resting: the line is metered"], "the node rests", node)
    own(swarm, "set", "on-metered=run")
    counted = swarm.counted("lent")
    until(lambda: swarm.counted("lent") > counted, "the node is counted", coordinator, node)


def _samples(swarm: RealSwarm) -> int:
    report = json.loads(own(swarm, "status", "--json")) if (swarm.folder / "lent" / "status.json").exists() else None
    return report["given"]["samples"] if report else 0
