"""A machine tells of its power supplies, and leaves things out."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from thinwire_node.limits import machine_load
from thinwire_node.limits.machine_load import on_battery

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
