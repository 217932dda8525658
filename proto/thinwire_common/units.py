"""Formats numbers with a unit for people, and reads sizes that they write."""

from __future__ import annotations

import re

_SIZES = {"": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("KMGT", 1)
    for suffix, base in (("", 1000), ("B", 1000), ("IB", 1024))
}
SIZE_MAX = 1 << 63
"""Bytes. A larger size is a mistake, and no float may hold it."""


def read_bytes_size(text: str) -> int:
    """Bytes of a size such as 500M, 8GB (decimal), 8GiB (binary) or 4294967296. Raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?(?:I?B)?)", text.strip().upper())
    unit = found[2] if found and found[2] != "B" else ""
    if found is None or unit not in _SIZES or not 1 <= (size := float(found[1]) * _SIZES[unit]) < SIZE_MAX:
        raise ValueError(f"{text!r} is not a size such as 500M, 8GB or 8GiB")
    return int(size)


def human_bytes(count: float) -> str:
    """Format bytes in decimal units: 3.5 MB."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def human_seconds(seconds: float) -> str:
    """Format a duration, for example 0.4 ms, 35 s or 9 days."""
    if seconds < 0.1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, unit_s in (("s", 1), ("minutes", 60), ("hours", 3600)):
        if seconds < 120 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def human_count(count: float) -> str:
    """Format a number of parameters or tokens with three digits: 1.05M."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= 0.9995 * size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.0f}"


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
"""Seconds in each unit of a duration."""
DURATION_MAX_DAYS = 3650


def parse_seconds(text: str) -> float:
    """Read a duration such as 90s, 30m, 24h, 7d or 2w. Raises ValueError."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdecimal() and unit in UNITS):
        raise ValueError(f"{text!r} is not a duration, as in 30m, 24h or 7d")
    seconds = int(number) * UNITS[unit]
    if not 0 < seconds <= DURATION_MAX_DAYS * UNITS["d"]:
        raise ValueError(f"{text!r} must be more than nothing, and at most ten years")
    return float(seconds)
