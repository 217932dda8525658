"""Peak memory of a node and of a coordinator, in bytes per parameter.

Real processes train a small and a larger model for a few steps. Memory that does not depend on the model (interpreter,
torch, corpus) cancels in the difference.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.speed.peaks import status_bytes
from bench.speed.row import BenchRow
from bench.speed.synthetic import model_parameters
from bench.wide_area.programs import POLL_S, module
from deploy.local_swarm.processes import Processes, SwarmError
from thinwire_coordinator.planning.problems import read_run
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.models import PRESETS
from thinwire_proto.task import task_of

TOPIC = "peak memory"
WIDTHS = 384, 640
STEPS = 4
RUN = """
[model]
{model}
context = 16
[schedule]
steps = {steps}
warmup_steps = 1
[round]
samples = 1
length_ms = 600000
"""
"""The context is short and there is one sample, so that parameters and their companions dominate the memory."""
SHAPE = "width = {width}\nlayers = 6\nheads = {heads}\nhidden = {hidden}"
WHOLE_TIME_MAX_S = 3600.0
SERVER_BYTES, MERGE_WANTED, SUM_BYTES, AUDIT_BYTES = 8, 3, 4, 8
TIME_MAX_S = 180.0
HEAD_WIDTH = 64


def run_file(folder: Path, width: int) -> Path:
    path = folder / f"{width}.toml"
    hidden = 8 * width // 3 // 64 * 64
    shape = SHAPE.format(width=width, heads=width // HEAD_WIDTH, hidden=hidden)
    path.write_text(RUN.format(model=shape, steps=STEPS))
    return path


def swarm_peaks(folder: Path, run: Path, time_max_s: float = TIME_MAX_S) -> tuple[int, int]:
    """Peaks (node, coordinator) in bytes, from the initial state to the last snapshot."""
    folder.mkdir()
    with Processes(folder, 1) as processes:
        processes.start_coordinator(run)
        processes.start_nodes()
        coordinator, node = processes.coordinator, processes.nodes[0]
        assert coordinator is not None
        peak, give_up_s = 0, time.monotonic() + time_max_s
        while not any(found["step"] == STEPS for found in coordinator.events("coordinator.snapshot_written")):
            if not coordinator.running or time.monotonic() > give_up_s:
                raise SwarmError(f"the run did not finish:\n{coordinator.tail()}\n{node.tail()}")
            peak = max(peak, status_bytes("VmHWM", node.popen.pid))
            time.sleep(POLL_S)
        return peak, status_bytes("VmHWM", coordinator.popen.pid)


def peak_of(task: str, run: Path) -> int:
    """Peak in bytes of a task of `bench.speed.peaks`."""
    return int(subprocess.run([*module("bench.speed.peaks"), task, str(run)], check=True, capture_output=True).stdout)


def _parameters(run: Path) -> int:
    return layout_of(model_parameters(read_run(run).model)).parameters


def rows() -> Iterator[BenchRow]:
    if not Path("/proc/self/clear_refs").exists():
        print("peak memory is measured only on Linux", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(prefix="thinwire-bench-") as name:
        folder = Path(name)
        small, large = (run_file(folder, width) for width in WIDTHS)
        counts = _parameters(small), _parameters(large)

        def slope(peaks: tuple[int, int]) -> float:
            """Bytes per parameter."""
            return (peaks[1] - peaks[0]) / (counts[1] - counts[0])

        node, coordinator = zip(*(swarm_peaks(folder / run.stem, run) for run in (small, large)), strict=True)
        adamw = peak_of("adamw", small), peak_of("adamw", large)
        merge = peak_of("merge", small), peak_of("merge", large)
        audit = peak_of("audit", small), peak_of("audit", large)
    sizes = f"{counts[0] / 1e6:.0f}M to {counts[1] / 1e6:.0f}M"
    yield BenchRow(TOPIC, f"a node, {sizes}", slope(node), slope(adamw), "B/param", "torch AdamW alone")
    yield BenchRow(
        TOPIC, f"the coordinator, {sizes}", slope(coordinator), SERVER_BYTES, "B/param", "fp32 parameters and sum"
    )
    merged = "the merge, payloads not included"
    yield BenchRow(TOPIC, merged, slope(merge), SUM_BYTES, "B/param", "fp32 sum", wanted=MERGE_WANTED)
    beside = "an audit of one sample a lease, beside the replica"
    yield BenchRow(TOPIC, beside, slope(audit), AUDIT_BYTES, "B/param", "two fp32 gradients")


def main() -> None:
    """Print the peaks of a node and of the coordinator beside it that train a preset for a few steps."""
    parser = argparse.ArgumentParser("python -m bench.speed.memory", description=main.__doc__)
    parser.add_argument("model", choices=PRESETS)
    model = parser.parse_args().model
    parameters = layout_of(task_of(PRESETS[model]).manifest()).parameters
    with tempfile.TemporaryDirectory(prefix="thinwire-bench-") as name:
        run = Path(name) / "run.toml"
        run.write_text(RUN.format(model=f'preset = "{model}"', steps=STEPS))
        node, coordinator = swarm_peaks(Path(name) / "swarm", run, WHOLE_TIME_MAX_S)
    for what, peak in (("node", node), ("coordinator", coordinator), ("both", node + coordinator)):
        print(f"{what}: peak {peak / (1 << 30):.1f} GiB, {peak / parameters:.1f} bytes a parameter")


if __name__ == "__main__":
    main()
