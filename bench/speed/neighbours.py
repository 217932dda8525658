"""Keeps the cores busy with other processes, to measure a speed on a busy machine too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from bench.speed.row import BenchRow
from bench.speed.timing import typical_turns

BUSY = "beside a busy process on each core"
PROGRAM = "while True: pass"
BYTES = ("B", "kB", "bytes", "B/param")
"""Units that busy neighbours do not change."""


@contextmanager
def busy_cores() -> Iterator[int]:
    """Keep as many processes busy as there are cores, at this process's priority. Yields their number."""
    processes = [subprocess.Popen([sys.executable, "-c", PROGRAM]) for _ in range(os.cpu_count() or 1)]
    try:
        with typical_turns():
            yield len(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def beside_busy_cores(rows: Iterable[BenchRow]) -> Iterator[BenchRow]:
    """Measure rows lazily beside busy processes. Drops those in bytes, which would be the same."""
    with busy_cores():
        for row in rows:
            if row.unit not in BYTES:
                yield replace(row, topic=f"{row.topic}, {BUSY}")
