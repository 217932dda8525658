"""A node behind an emulated thin line up is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.wide_area.hosts import Host, Hosts, LinkSpec, hosts_behind
from bench.wide_area.line import LineQuality
from bench.wide_area.needs import check_emulation
from bench.wide_area.programs import START_S, Programs
from deploy.local_swarm.processes import BIN, JSON_LOG, Process
from support.real import LONG_MS, ended, run_text
from thinwire_proto.limits import FIRST_MESSAGE_S

MACHINE = check_emulation()
THIN_MBIT = 0.04
"""The rate of the thin line up."""
INVITE = "invite"


def coordinator_of(text: str, hosts: Hosts, programs: Programs, folder: Path) -> Process:
    """A coordinator that is ready, with its invite in a file of the folder."""
    (folder / "RUN.toml").write_text(text)
    command = [str(BIN / "thinwire-coordinator"), "serve", "--run", str(folder / "RUN.toml")]
    command += ["--listen", f"{hosts.coordinator.address}:7700", "--state-dir", str(folder / "coordinator")]
    coordinator = programs.start(
        "coordinator", hosts.coordinator.inside(*command, "--invite-file", str(folder / INVITE))
    )
    coordinator.wait_until_ready(folder / "coordinator", START_S)
    return coordinator


def node_on(host: Host, name: str, programs: Programs, folder: Path, *more: str) -> Process:
    command = [str(BIN / "thinwire-node"), "start", f"@{folder / INVITE}", "--name", name, *JSON_LOG, *more]
    return programs.start(name, host.inside(*command, "--threads", "1", "--state-dir", str(folder / name)))


@pytest.mark.skipif(bool(MACHINE.missing), reason=f"emulating links needs {MACHINE.missing}")
def test_a_contribution_that_takes_longer_than_a_call_s_first_message_may_is_counted(tmp_path: Path) -> None:
    """The answers to pings come behind the contribution."""
    text = run_text(1_000_000, width=256, hidden=512, samples=1, length_ms=LONG_MS)
    thin = LineQuality(rate_mbit=THIN_MBIT, delay_ms=25, loss=0.0, queue_bytes=32_000)
    link = LinkSpec(10, 100, 0.0)
    with hosts_behind(link, 1, False, 1, tmp_path, last_up=thin) as hosts, Programs(tmp_path) as programs:
        coordinator_of(f"{text}[demo]\nk = 500\n", hosts, programs, tmp_path)
        node = node_on(hosts.nodes[0], "thin", programs, tmp_path, "--rounds", "1")
        assert ended(node) == 0, node.tail(20)
        (totals,) = node.events("node.totals")
        assert totals["counted"] == 1
        assert 8 * totals["sent_bytes"] / (1e6 * THIN_MBIT) > FIRST_MESSAGE_S
        assert not node.events("node.no_session")
