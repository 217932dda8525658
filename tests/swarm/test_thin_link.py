"""A node behind an emulated thin line up is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.wide_area.hosts import LinkSpec, hosts_behind
from bench.wide_area.line import LineQuality
from bench.wide_area.needs import check_emulation
from bench.wide_area.programs import Programs
from support.emulated_hosts import coordinator_of, node_on
from support.real import LONG_MS, ended, run_text
from thinwire_proto.limits import FIRST_MESSAGE_S

MACHINE = check_emulation()
THIN_MBIT = 0.04
"""The rate of the thin line up."""


@pytest.mark.skipif(bool(MACHINE.missing), reason=f"emulating links needs {MACHINE.missing}")
def test_a_contribution_that_takes_longer_than_a_call_s_first_message_may_is_counted(tmp_path: Path) -> None:
    """The answers to pings come behind the contribution."""
    text = run_text(1_000_000, width=256, hidden=512, samples=1, length_ms=LONG_MS)
    thin = LineQuality(rate_mbit=THIN_MBIT, delay_ms=25, loss=0.0, queue_bytes=32_000)
    link = LinkSpec(10, 100, 0.0)
    with hosts_behind(link, 1, 1, tmp_path, last_up=thin) as hosts, Programs(tmp_path) as programs:
        coordinator_of(f"{text}[demo]\nk = 500\n", hosts, programs, tmp_path)
        node = node_on(hosts.nodes[0], "thin", programs, tmp_path, "--rounds", "1")
        assert ended(node) == 0, node.tail(20)
        (totals,) = node.events("node.totals")
        assert totals["counted"] == 1
        assert 8 * totals["sent_bytes"] / (1e6 * THIN_MBIT) > FIRST_MESSAGE_S
        assert not node.events("node.no_session")
