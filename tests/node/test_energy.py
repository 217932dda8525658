"""The energy of the processor and of a card, as the system counts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from thinwire_node.observe.reporter import SLEPT_OVER_S, EnergyMeter, power_of


def zone(folder: Path, name: str, used_uj: int, range_uj: int = 1_000_000_000) -> Path:
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "energy_uj").write_text(f"{used_uj}\n")
    (path / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return path


def test_the_packages_are_added_up_and_their_parts_are_not(tmp_path: Path) -> None:
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        zone(tmp_path, name, 5_000_000)
    meter = EnergyMeter(lambda: 0.0, folder=tmp_path)
    assert meter.look() == 0
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        zone(tmp_path, name, 7_000_000)
    assert meter.look() == pytest.approx(4.0)
    zone(tmp_path, "intel-rapl:0", 1_000_000)  # the counter has begun anew at 1,000 J
    assert meter.look() == pytest.approx(4.0 + 994.0)
    (tmp_path / "intel-rapl:1" / "energy_uj").unlink()
    assert meter.look() == pytest.approx(998.0)


def test_the_power_of_a_card_counts_for_the_time_between_two_looks(tmp_path: Path) -> None:
    at = [100.0]
    meter = EnergyMeter(lambda: at[0], lambda: 50.0, tmp_path)
    at[0] += 2.0
    assert meter.look() == 100.0
    at[0] += SLEPT_OVER_S + 1  # the machine slept
    assert meter.look() == 100.0


def test_a_processor_has_no_power_of_its_own() -> None:
    assert power_of("cpu") is None
    assert EnergyMeter(lambda: 0.0, folder=Path("/nowhere")).look() == 0
