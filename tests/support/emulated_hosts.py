"""A coordinator and nodes on emulated hosts."""

from __future__ import annotations

from pathlib import Path

from bench.wide_area.hosts import Host, Hosts
from bench.wide_area.programs import START_S, Programs
from deploy.local_swarm.processes import BIN, JSON_LOG, Process

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
