"""Control groups that give each emulated node its part of this machine's cores."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from bench.wide_area.cores import NODES_SHARE, PERIOD_US, cpu_controller, groups_for, in_group

NODES = 8 * (os.cpu_count() or 1)
"""So many that each has a tenth of a core."""
BUSY = """
import os, sys, time
end = time.monotonic() + 1
while time.monotonic() < end:
    pass
print(os.getpid(), time.process_time())
"""
CONTROLLER = cpu_controller() if sys.platform == "linux" and os.geteuid() == 0 else None
needs_controller = pytest.mark.skipif(CONTROLLER is None, reason="needs root and the cpu controller of control groups")


@needs_controller
def test_a_node_uses_no_more_than_its_part_of_the_cores() -> None:
    with groups_for(CONTROLLER, NODES) as groups:
        began = time.monotonic()
        command = in_group(groups[0], [sys.executable, "-c", BUSY])
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            said, _ = process.communicate()
        seconds = time.monotonic() - began
        pid, used_s = said.split()
        assert int(pid) == process.pid  # so that a signal to it reaches the command itself
        part = NODES_SHARE * (os.cpu_count() or 1) / NODES
        assert float(used_s) <= part * seconds + 2 * PERIOD_US / 1e6
    assert not any(group.exists() for group in groups)


def test_without_a_controller_nodes_have_no_groups_and_commands_stay_as_they_are() -> None:
    with groups_for(None, 4) as groups:
        assert groups == []
    assert in_group(None, ["ip", "link"]) == ["ip", "link"]
