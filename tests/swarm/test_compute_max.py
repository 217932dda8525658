"""Real nodes of a gossip run compute in no more of the time than their owners lend. A scenario plays a star run."""

from __future__ import annotations

import signal
import time

from deploy.local_swarm.ports import free_addresses
from support.prometheus import parsed, read, value
from support.real import RealSwarm, ended, run_text, until, without_a_centre

LENT_PERCENT = 10
SECONDS = 10.0
"""So long that a second without a core is a small part of it."""
A_LEASE_WITHOUT_END = 1000
GOSSIP = run_text(100_000, samples=A_LEASE_WITHOUT_END, length_ms=500, rounds='pace = "clock"')
GOSSIP += without_a_centre(2, 16, topology="complete", codec="int8")


def test_a_node_rests_for_the_time_that_its_owner_keeps(swarm: RealSwarm) -> None:
    coordinator = swarm.coordinator(GOSSIP)
    other, at = swarm.node("other", "--max-compute", "50"), free_addresses(1)[0]
    node = swarm.node("resting", "--max-compute", str(LENT_PERCENT), "--metrics", at)

    def computed_s() -> float:
        return value(parsed(read(f"http://{at}/metrics")), "thinwire_node_phase_seconds_sum", phase="compute")

    until(lambda: node.ready(swarm.folder / "resting"), "the node joins", coordinator, node)
    until(lambda: computed_s() > 0, "the node computes", coordinator, node, other)
    began, first_s = time.monotonic(), computed_s()
    until(lambda: computed_s() > first_s and time.monotonic() > began + SECONDS, "it computes again", node)
    # without its rests, it would compute for nearly all of the time; the piece that ended last has its rest before it
    assert computed_s() - first_s < 3 * LENT_PERCENT / 100 * (time.monotonic() - began)
    until(lambda: swarm.counted("resting") > 2, "the node is counted", coordinator, node)
    assert swarm.status().fingerprints_different == 0
    for one in (node, other):
        one.tell(signal.SIGTERM)
        assert ended(one) == 0
