"""A node runs without what only POSIX has, and keeps Windows' rules for files (support/other_systems.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support import other_systems
from support.other_systems import REPORT, Rules
from support.real import LONG_MS, RealSwarm, ended, last_fingerprint, run_text

STEPS = 8


def windows_node(swarm: RealSwarm, room: Path, *more: str) -> list[str]:
    """The command of a node whose state directory is in `room`."""
    command = [sys.executable, other_systems.__file__, str(room), "start", swarm.invitation, "--name", "windows"]
    return [*command, "--state-dir", str(room / "Node"), "--threads", "1", "--log-format", "json", *more]


def test_a_node_under_the_rules_of_windows_is_counted_and_goes_on_from_its_disk(swarm: RealSwarm) -> None:
    room = swarm.folder / "room"
    room.mkdir()
    swarm.coordinator(run_text(STEPS, length_ms=LONG_MS, rounds="min_contributions = 2"), "--wait-for", "2")
    first = swarm.start("windows", *windows_node(swarm, room, "--rounds", "3"))
    other = swarm.node("linux")
    assert ended(first) == 0, first.tail(20)
    again = swarm.start("windows", *windows_node(swarm, room))
    assert [ended(again), ended(other)] == [0, 0], again.tail(20)

    status = swarm.status(fingerprint=True)
    assert {node.name: node.counted for node in status.nodes} == {"windows": STEPS, "linux": STEPS}
    assert {last_fingerprint(again), last_fingerprint(other)} == {(STEPS, status.fingerprint)}
    assert (room / REPORT).read_text().splitlines() == []


@pytest.mark.parametrize("event", ["os.rename", "os.remove"])
def test_the_rules_refuse_what_windows_refuses(event: str, tmp_path: Path) -> None:
    rules, path = Rules(str(tmp_path)), tmp_path / "a"
    path.write_text("text")
    arguments = (tmp_path / "b", path) if event == "os.rename" else (path,)
    rules.hear(event, arguments)
    with path.open(), pytest.raises(PermissionError, match="Permission denied"):
        rules.hear(event, arguments)
    assert "that is open" in (tmp_path / REPORT).read_text()


@pytest.mark.parametrize("name", ["A", "con", "nul.txt", "what?", "ends."])
def test_the_rules_refuse_names(name: str, tmp_path: Path) -> None:
    rules = Rules(str(tmp_path))
    (tmp_path / "a").touch()
    with pytest.raises(OSError, match=r"Invalid argument|File exists"):
        rules.hear("os.mkdir", (tmp_path / name, 0o777, -1))
