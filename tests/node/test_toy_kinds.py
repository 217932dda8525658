"""One file adds a kind of model and a kind of data, and a swarm of real processes trains and verifies them."""

from __future__ import annotations

import math
import signal
import sqlite3
from pathlib import Path

from support.fork_server import run
from support.real import ended, last_fingerprint, real_swarm

RUN = """
[model]
kind = "line"
[data]
kind = "slopes"
[schedule]
steps = 30
warmup_steps = 2
learning_rate = 0.1
[round]
samples = 8
weight_max = 4
"""
TOY = str(Path(__file__).parents[1] / "support" / "toy_kinds.py")


def test_a_swarm_trains_and_verifies_a_toy_model_on_toy_data(tmp_path: Path) -> None:
    with real_swarm(tmp_path) as swarm:
        swarm.coordinator(RUN, "--wait-for", "2", "--evaluate-every", "10", through=("toy_kinds.py", "coordinator"))
        nodes = [swarm.node(name, through=("toy_kinds.py", "node")) for name in ("a", "b")]
        assert [ended(node) for node in nodes] == [0, 0]
        status = swarm.status(fingerprint=True)
        assert (status.step, status.state) == (30, "complete")
        assert {last_fingerprint(node) for node in nodes} == {(30, status.fingerprint)}
        swarm.processes[0].tell(signal.SIGTERM)
        assert ended(swarm.processes[0]) == 0
        verified = run(["python", TOY, "coordinator", "verify", "--state-dir", str(swarm.state)], tmp_path).stdout
        assert "slopes without end" in verified
        assert f"fingerprint {status.fingerprint:016x}" in verified
        assert not (swarm.state / "corpus.zst").exists()
        with sqlite3.connect(swarm.state / "ledger.sqlite") as ledger:
            losses = [loss for (loss,) in ledger.execute("SELECT loss FROM losses ORDER BY step")]
        assert all(math.isfinite(loss) for loss in losses)
        assert losses[-1] < losses[0] / 4
