"""Peak memory of a node and of a coordinator, a parameter: real processes that train a few steps of a small and of a
larger model. What does not grow with the model (the interpreter, torch, the corpus) drops out of the difference.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.speed.peaks import status_bytes
from bench.speed.programs import program
from bench.speed.row import BenchRow
from bench.speed.synthetic import model_parameters
from bench.wide_area.programs import POLL_S
from deploy.local_swarm.processes import Processes, SwarmError
from thinwire_coordinator.cli.run_file import read_run
from thinwire_proto.exact.tiles import layout_of

TOPIC = "peak memory"
WIDTHS, WIDTHS_FULL = (384, 640), (640, 960)
STEPS = 4
RUN = """
[model]
width = {width}
layers = 6
heads = {heads}
hidden = {hidden}
context = 16
[schedule]
steps = {steps}
warmup_steps = 1
[round]
samples = 1
"""
"""A short context and one sample: what is left are parameters, and what is kept beside them."""
SERVER_BYTES, MERGE_WANTED, SUM_BYTES = 8, 3, 4
TIME_MAX_S = 180.0
COUNT_A_WIDTH = 64  # of a head


def run_file(folder: Path, width: int) -> Path:
    path = folder / f"{width}.toml"
    hidden = 8 * width // 3 // 64 * 64
    path.write_text(RUN.format(width=width, heads=width // COUNT_A_WIDTH, hidden=hidden, steps=STEPS))
    return path


def swarm_peaks(folder: Path, run: Path) -> tuple[int, int]:
    """(node's, coordinator's) in bytes, over a run from its first state to its last snapshot."""
    folder.mkdir()
    with Processes(folder, 1) as processes:
        processes.start_nodes(processes.start_coordinator(run))
        coordinator, node = processes.coordinator, processes.nodes[0]
        assert coordinator is not None
        peak, give_up_s = 0, time.monotonic() + TIME_MAX_S
        while not any(found["step"] == STEPS for found in coordinator.events("coordinator.snapshot_written")):
            if not coordinator.running or time.monotonic() > give_up_s:
                raise SwarmError(f"the run did not end:\n{coordinator.tail()}\n{node.tail()}")
            peak = max(peak, status_bytes("VmHWM", node.popen.pid))
            time.sleep(POLL_S)
        return peak, status_bytes("VmHWM", coordinator.popen.pid)


def peak_of(what: str, run: Path) -> int:
    """Bytes; see `peaks`."""
    return int(subprocess.run([*program("bench.speed.peaks"), what, str(run)], check=True, capture_output=True).stdout)


def _parameters(run: Path) -> int:
    return layout_of(model_parameters(read_run(run).model)).parameters


def rows(full: bool = False) -> Iterator[BenchRow]:
    if not Path("/proc/self/clear_refs").exists():
        print("peak memory is measured on Linux alone", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(prefix="thinwire-bench-") as name:
        folder = Path(name)
        small, large = (run_file(folder, width) for width in (WIDTHS_FULL if full else WIDTHS))
        counts = _parameters(small), _parameters(large)

        def slope(peaks: tuple[int, int]) -> float:
            """Bytes a parameter."""
            return (peaks[1] - peaks[0]) / (counts[1] - counts[0])

        node, coordinator = zip(*(swarm_peaks(folder / run.stem, run) for run in (small, large)), strict=True)
        adamw = peak_of("adamw", small), peak_of("adamw", large)
        merge = peak_of("merge", small), peak_of("merge", large)
    of = f"{counts[0] / 1e6:.0f}M to {counts[1] / 1e6:.0f}M"
    yield BenchRow(TOPIC, f"a node, {of}", slope(node), slope(adamw), "B/param", "torch AdamW alone")
    yield BenchRow(TOPIC, f"the coordinator, {of}", slope(coordinator), SERVER_BYTES, "B/param", "fp32 parameters and sum")
    merged = "the merge, payloads not included"
    yield BenchRow(TOPIC, merged, slope(merge), SUM_BYTES, "B/param", "fp32 sum", wanted=MERGE_WANTED)
