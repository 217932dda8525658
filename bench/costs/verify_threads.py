"""Measures the processor time of `thinwire-coordinator verify` on one and on two threads, on a busy machine.

The run has 200 small updates. Another process keeps each core busy.

PYTHONPATH=tests python -m bench.costs.verify_threads
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.speed.neighbours import busy_cores
from support.sealed_run import make_run

UPDATES = 200


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="thinwire-bench-") as name:
        make_run(Path(name), UPDATES)
        with busy_cores():
            for threads in (1, 2):
                print(f"{threads} thread(s): {measure(Path(name), threads)}", flush=True)


def measure(folder: Path, threads: int) -> str:
    """Processor time and wall-clock time of one verify, as text."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "thinwire_coordinator", "verify", "--threads", str(threads)]
    subprocess.run([*command, "--state-dir", str(folder)], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return f"{spent_s:.1f} s of processor time in {time.monotonic() - began:.1f} s"


if __name__ == "__main__":
    main()
