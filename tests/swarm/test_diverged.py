"""The alert of a run that has diverged, from a real coordinator and a real Prometheus with the deployed rules.

The run begins from weights that overflow, because one that trains does not diverge when it is told to.
"""

from __future__ import annotations

import math
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from deploy.local_swarm.ports import free_addresses
from deploy.local_swarm.processes import HOW_TO_INSTALL, PROGRAM, prometheus_command
from support.prometheus import Prometheus
from support.real import ended, real_swarm, run_text, until
from thinwire_proto.models.weights_folder import WEIGHTS

FIRING = "ALERTS{alertname='RunDiverged', alertstate='firing'}"


@pytest.mark.skipif(PROGRAM is None, reason=HOW_TO_INSTALL)
def test_the_alert_fires(tmp_path: Path) -> None:
    page, listen = free_addresses(2)
    with real_swarm(tmp_path) as swarm:
        healthy = swarm.coordinator(run_text(10), "--http", page)
        swarm.start("prometheus", *prometheus_command(tmp_path, listen, {"coordinator": [page]}))
        prometheus = Prometheus(f"http://{listen}")
        until(lambda: prometheus.value("thinwire_coordinator_held_out_loss") > 0, "a loss", *swarm.processes)
        assert math.isnan(prometheus.value(FIRING))

        model = tmp_path / "model"
        assert swarm.command("export", "--out", str(model)).returncode == 0
        weights = load_file(model / WEIGHTS)
        overflowing = {name: tensor if "embed" in name else 1e38 * tensor for name, tensor in weights.items()}
        save_file(overflowing, model / WEIGHTS)
        healthy.tell(signal.SIGTERM)
        assert ended(healthy) == 0
        swarm.state = tmp_path / "diverged"
        done = swarm.command("import", str(model), "--run", str(tmp_path / "RUN.toml"))
        assert done.returncode == 0, done.stderr
        coordinator = swarm.coordinator(None, "--http", page)
        until(lambda: prometheus.value(FIRING) == 1, "the alert fires", *swarm.processes)
        assert coordinator.events("coordinator.diverged")
