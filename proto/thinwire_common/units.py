"""Formats numbers with a unit for people."""

from __future__ import annotations


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
