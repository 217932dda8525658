"""The energy that the machine uses while a node runs on it, where the machine tells it.

Of the processor, Linux counts it in /sys/class/powercap (Intel's and AMD's RAPL), for those who may read that. Of an
NVIDIA or AMD card, torch asks the driver for the power. Both are of the whole processor or card, whoever uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

POWERCAP = Path("/sys/class/powercap")
SLEPT_OVER_S = 60.0
"""After a longer time without a look, such as a sleep, the power in between is not known."""


class EnergyMeter:
    """Counts from its construction on. power_w: of the card; None: there is none. now: seconds on a monotonic clock."""

    def __init__(
        self, now: Callable[[], float], power_w: Callable[[], float] | None = None, folder: Path = POWERCAP
    ) -> None:
        self._now = now
        self._power_w = power_w
        self._zones = {zone: _read(zone / "energy_uj") for zone in sorted(folder.glob("*-rapl:[0-9]"))}
        self._at_s = now()
        self.joules = 0.0

    def look(self) -> float:
        """Joules up to now. Call it every few seconds."""
        elapsed_s, self._at_s = self._now() - self._at_s, self._now()
        for zone, before in self._zones.items():
            after = self._zones[zone] = _read(zone / "energy_uj")
            if before is None or after is None:
                continue
            begun_anew_uj = (_read(zone / "max_energy_range_uj") or before) if after < before else 0
            self.joules += (after - before + begun_anew_uj) / 1e6
        if self._power_w is not None and elapsed_s <= SLEPT_OVER_S:
            self.joules += self._power_w() * elapsed_s
        return self.joules


def power_of(device: str) -> Callable[[], float] | None:
    """Reads the power of a card in watts; None: this device does not tell it."""
    if not device.startswith("cuda"):
        return None

    def read() -> float:
        try:
            return torch.cuda.power_draw(torch.device(device)) / 1000
        except Exception:  # noqa: BLE001 - no library of the driver, no sensor, a lost card: each raises another
            return 0.0

    return read if read() else None


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
