"""Gives each node its own part of the machine's cores, with the cpu controller of control groups.

The problem: nodes, coordinator and the line in Python share this machine's cores. In the emulated world the coordinator
is a machine of its own, and the line is nobody's work. So nodes get four fifths of the cores, in equal parts, and the
others the rest. A part is a quota and not a weight: a node that waits leaves nothing to the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.local_swarm.processes import uninterrupted

NODES_SHARE = 0.8
"""Share of the machine's cores that all nodes together may use."""
PERIOD_US = 20_000
"""A node that has used its part of a period stands still until the next one: short, so that its event loops answer."""
ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class CpuController:
    """Where control groups with quotas can be made. version: of the interface, 1 or 2."""

    folder: Path
    version: int

    def limit(self, group: Path, cores: float) -> None:
        quota_us = round(cores * PERIOD_US)
        # what a node could not use in one period because others ran, it may use in the next
        if self.version == 1:
            settings = {"cfs_period_us": f"{PERIOD_US}", "cfs_quota_us": f"{quota_us}", "cfs_burst_us": f"{quota_us}"}
        else:
            settings = {"max": f"{quota_us} {PERIOD_US}", "max.burst": f"{quota_us}"}
        for name, value in settings.items():
            (group / f"cpu.{name}").write_text(value)


def cpu_controller() -> CpuController | None:
    """The controller that this process may use; None if there is none."""
    if (ROOT / "cpu" / "cpu.cfs_quota_us").exists():
        return CpuController(ROOT / "cpu", 1) if os.access(ROOT / "cpu", os.W_OK) else None
    enabled = ROOT / "cgroup.subtree_control"  # enabling it there would change the whole machine
    if enabled.exists() and "cpu" in enabled.read_text().split() and os.access(ROOT, os.W_OK):
        return CpuController(ROOT, 2)
    return None


@contextmanager
def groups_for(controller: CpuController | None, nodes: int) -> Iterator[list[Path]]:
    """A group for each node, with an equal part of `NODES_SHARE` of the cores; none without a controller. All processes
    in them must have ended when the block ends."""
    if controller is None:
        yield []
        return
    groups = [controller.folder / f"thinwire-{os.getpid()}-node-{number}" for number in range(1, nodes + 1)]
    try:
        for group in groups:
            group.mkdir()
            controller.limit(group, NODES_SHARE * (os.cpu_count() or 1) / nodes)
        yield groups
    finally:
        with uninterrupted():
            for group in groups:
                if group.exists():
                    group.rmdir()


def in_group(group: Path | None, command: Sequence[str]) -> list[str]:
    """The command that runs another one in a group. The started process is the other command itself."""
    if group is None:
        return list(command)
    return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"), *command]
