"""Parses numbers with units in scenarios."""

from __future__ import annotations

import re

UNITS = {
    "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "%": 0.01, "ppm": 1e-6, "kbit": 125.0, "Mbit": 125_000.0, "": 1.0,
}  # fmt: skip


class BadScenario(Exception):
    """The text is not a valid scenario. The message names the line and the problem."""


def number(text: str) -> float:
    found = re.fullmatch(r"(-?[\d.]+)([A-Za-z%]*)", text)
    if found is None or found[2] not in UNITS:
        raise BadScenario(f"{text!r} is not a number with one of the units {', '.join(UNITS)}")
    return float(found[1]) * UNITS[found[2]]
