"""Real nodes compute in no more of the time than their owners lend, with a centre and without."""

from __future__ import annotations

import signal
import time

import pytest

from deploy.local_swarm.prometheus import free_addresses
from support.prometheus import parsed, read, value
from support.real import RealSwarm, ended, run_text, until

LENT_PERCENT = 10
SECONDS = 4.0
WITH_A_CENTRE = run_text(100_000, rounds='pace = "clock"\n').replace("length_ms = 5000", "length_ms = 500")
WITH_A_CENTRE = WITH_A_CENTRE.replace("samples = 4", "samples = 1000")  # a lease that never ends
GOSSIP = """
min_contributions = 2
[exchange]
kind = "gossip"
topology = "complete"
codec = "int8"
[rule]
kind = "adamw"
samples = 16
"""


@pytest.mark.parametrize("run", [WITH_A_CENTRE, WITH_A_CENTRE + GOSSIP], ids=["star", "gossip"])
def test_a_node_rests_for_the_time_that_its_owner_keeps(swarm: RealSwarm, run: str) -> None:
    coordinator = swarm.coordinator(run)
    other, at = swarm.node("other", "--compute-max", "50"), free_addresses(1)[0]
    began = time.monotonic()
    node = swarm.node("resting", "--compute-max", str(LENT_PERCENT), "--metrics", at)

    def computed_s() -> float:
        return value(parsed(read(f"http://{at}/metrics")), "thinwire_node_phase_seconds_sum", phase="compute")

    until(lambda: node.ready(swarm.folder / "resting"), "the node joins", coordinator, node)
    until(lambda: computed_s() > LENT_PERCENT / 100 * SECONDS / 2, "the node computes", coordinator, node, other)
    begun, first_s = time.monotonic(), computed_s()
    until(lambda: time.monotonic() > begun + SECONDS, "some seconds", node)
    now_s, elapsed_s = computed_s(), time.monotonic() - began
    assert now_s > first_s
    assert now_s < 2 * LENT_PERCENT / 100 * elapsed_s  # without its rests, at pace clock it is nearly all of the time
    until(lambda: swarm.counted("resting") > 2, "the node is counted", coordinator, node)
    assert swarm.status().fingerprints_different == 0
    for one in (node, other):
        one.tell(signal.SIGTERM)
        assert ended(one) == 0
