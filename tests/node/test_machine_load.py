"""A machine tells of its power supplies and its load, and leaves things out."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from thinwire_node.limits import machine_load
from thinwire_node.limits.limits import check
from thinwire_node.limits.machine_load import AUTOGROUP, NICE, SEEN_EVERY_S, SEEN_OVER_S, MachineLoad, on_battery

DISCHARGING = {"type": "Battery", "status": "Discharging"}
MOUSE = {"hidpp_battery_0": {**DISCHARGING, "scope": "Device"}}


@pytest.mark.parametrize(
    ("supplies", "expected"),
    [
        ({"BAT0": DISCHARGING, "AC": {"type": "Mains", "online": "0"}}, True),
        ({"BAT0": DISCHARGING}, True),
        ({"BAT1": DISCHARGING, "BAT0": {"type": "Battery", "status": "Unknown"}}, True),
        ({"BAT0": DISCHARGING, "ucsi-source-psy-1": {"type": "USB", "online": "1"}}, False),
        ({"BAT0": {"type": "Battery", "status": "Not charging"}}, False),
        ({"BAT0": {}}, False),
        ({"BAT0": {"type": "Battery", "status": "\xff" * 5000}}, False),
        (MOUSE, False),
        ({**MOUSE, "BAT0": DISCHARGING}, True),
        ({"BAT0": DISCHARGING, "wacom": {"type": "USB", "online": "1", "scope": "Device"}}, True),
        ({}, False),
    ],
)
def test_a_machine_is_on_battery_if_its_own_battery_discharges(
    tmp_path: Path, supplies: dict[str, dict[str, str]], expected: bool
) -> None:
    for name, files in supplies.items():
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_bytes(text.encode("latin-1") + b"\n")
    assert on_battery(tmp_path) is expected


def test_a_machine_without_power_supplies_is_on_none(tmp_path: Path) -> None:
    assert not on_battery(tmp_path / "missing")
    (tmp_path / "BAT0" / "type").mkdir(parents=True)  # reading it fails
    (tmp_path / "AC").write_text("")
    assert not on_battery(tmp_path)


@pytest.mark.parametrize("refusal", [PermissionError(), psutil.AccessDenied()])
def test_a_system_that_lets_no_priority_rise_costs_a_warning_alone(
    refusal: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Linux says the first, and psutil on macOS the second."""

    def refuse(value: int) -> None:
        raise refusal

    monkeypatch.setattr(machine_load, "_nice", refuse)
    machine_load.set_priority("normal")
    assert "does not let the node rise to priority normal" in caplog.text


Times = namedtuple("Times", "user nice system idle")
CORES = 4


@pytest.mark.parametrize(("system", "field"), [("linux", "nice"), ("darwin", "user")])
def test_a_node_alone_on_a_machine_does_not_take_it_for_busy(
    system: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux counts its time at a low priority apart; macOS has the field, and leaves it at 0."""
    now, limits = [1000.0], check({"while_busy": "pause"})
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(machine_load, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(psutil, "cpu_count", lambda: CORES)
    monkeypatch.setattr(psutil, "cpu_times", lambda: Times(0.0, 0.0, 0.0, 0.0)._replace(**{field: CORES * now[0]}))
    load = MachineLoad()
    monkeypatch.setattr(load._own, "cpu_times", lambda: Times(CORES * now[0], 0.0, 0.0, 0.0))
    monkeypatch.setattr(load._own, "nice", lambda: NICE["idle"])
    for question in (load._idle_s, load._screen, load._card):
        monkeypatch.setattr(question, "_ask", lambda: None)
    for _ in range(int(SEEN_OVER_S / SEEN_EVERY_S) + 1):
        found = load.surroundings(0.0, limits)
        now[0] += SEEN_EVERY_S
    assert found.others_share == 0.0


TERMINAL = 'cat /proc/self/autogroup; "$0" -c "$1"; cat /proc/self/autogroup'
RANKED = """
import time
from thinwire_node.limits.machine_load import AUTOGROUP, set_priority
for _ in range(100):
    set_priority("idle")
    if AUTOGROUP.read_text().endswith(" 19\\n"):
        break
    time.sleep(0.1)  # the kernel refuses while others change theirs
print(AUTOGROUP.read_text(), end="")
"""


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="the system ranks no sessions")
def test_the_other_programs_of_a_terminal_get_their_rank_back_when_the_node_has_ended() -> None:
    command = ["sh", "-c", TERMINAL, sys.executable, RANKED]
    said = subprocess.run(command, start_new_session=True, capture_output=True, check=True, text=True).stdout
    assert [line.split()[-1] for line in said.splitlines()] == ["0", "19", "0"]
