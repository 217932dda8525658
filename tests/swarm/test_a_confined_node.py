"""A node works where the system lets it open connections only, as the services in deploy/systemd do."""

from __future__ import annotations

import platform
import sys

import pytest

from support.node_without_listen import LISTEN
from support.real import RealSwarm, run_text, until

THROUGH = ("node_without_listen.py",)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in LISTEN, reason="filters system calls of Linux"
)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_node_that_must_not_listen_contributes(swarm: RealSwarm, host: str) -> None:
    swarm.address = f"{host}:0"
    swarm.coordinator(run_text(10_000))
    node = swarm.node("ada", through=THROUGH)
    until(lambda: swarm.counted("ada") > 0, "a contribution is counted", node, *swarm.processes)
