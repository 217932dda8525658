"""The rows of the fan-out of updates, measured by `fanout`."""

from __future__ import annotations

from collections.abc import Iterator

from bench.speed.fanout import fan_out
from bench.speed.row import BenchRow

TOPIC = "fan-out"
SHARE_WANTED = 0.7
SUBSCRIBERS = ((10, 4 << 20, 15), (50, 2 << 20, 8), (200, 1 << 20, 6))
"""Number of subscribers, bytes of an update, and number of updates."""


def fan_out_rows(subscribers: tuple[tuple[int, int, int], ...] = SUBSCRIBERS) -> Iterator[BenchRow]:
    for number, size, updates in subscribers:
        ours, raw = (bytes_s / 1e6 for bytes_s in fan_out(number, size, updates))
        what = f"{number} subscribers, {size / 1e6:.2g} MB each"
        wanted = SHARE_WANTED * raw
        yield BenchRow(TOPIC, what, ours, raw, "MB/s", "raw gRPC streaming", better="more", wanted=wanted)


def rows(full: bool = False) -> Iterator[BenchRow]:
    yield from fan_out_rows()
