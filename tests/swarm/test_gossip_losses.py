"""Real nodes without a centre measure the held-out loss while they train, and everybody can see it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from deploy.local_swarm.ports import free_addresses
from support.prometheus import read
from support.real import ended, real_swarm, run_text, until, without_a_centre
from thinwire_proto.gossip.consensus import MEASURE_EVERY

STEPS = 300
"""Several beats, also on a fast machine: nodes are asked once reports of 16 iterations are sealed."""
RUN = run_text(STEPS, length_ms=1000, rounds='pace = "clock"')
RUN += without_a_centre(3, 16, topology="complete", codec="sign", gradient_pull=0.5)


def test_three_nodes_measure_the_held_out_loss_on_the_way(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        (here,) = free_addresses(1)
        coordinator = swarm.coordinator(RUN, "--http", here)
        nodes = [swarm.node(name) for name in ("one", "two", "three")]
        until(lambda: swarm.status().measured_step not in (0, STEPS), "a loss on the way", coordinator, *nodes)
        for node in nodes:
            assert ended(node) == 0, node.tail(30)
        until(lambda: swarm.status().measured_step == STEPS, "the loss of the mean", coordinator)
        events = coordinator.events("coordinator.loss_measured")
        first, *between, last = [(event["step"], event["measured_by"]) for event in events]
        assert (first, last) == ((0, "coordinator"), (STEPS, "coordinator"))
        assert between
        assert all(step % MEASURE_EVERY == 0 and by == "nodes" for step, by in between)
        losses = [event["loss"] for event in events]
        assert all(losses[-1] < loss < losses[0] for loss in losses[1:-1])
        held_out = json.loads(read(f"http://{here}/api/history"))["held_out"]
        assert held_out["step"] == [event["step"] for event in events]
        with closing(sqlite3.connect(swarm.state / "ledger.sqlite")) as ledger:
            kept = ledger.execute("SELECT step, measured_by FROM losses ORDER BY step").fetchall()
        assert kept == [(event["step"], event["measured_by"]) for event in events]
