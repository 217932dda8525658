"""Measures the seconds from an owner's order to pause until the node uses no processor time any more.

`python -m bench.speed.pause` prints a line for each size of micro-batch and number of busy neighbours: the median and
the worst of several pauses of a real node, from the moment at which `thinwire-node pause` has written the order.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psutil

from bench.speed.timing import PROGRAM
from bench.wide_area.programs import Programs, module
from deploy.local_swarm.processes import JSON_LOG
from thinwire_node.limits.resting import ORDERS_FILE

RUN = """
[model]
width = 256
layers = 4
heads = 4
hidden = 1024
context = 128
[schedule]
steps = 100000
warmup_steps = 2
learning_rate = 0.002
[round]
samples = 1024
weight_max = 4
length_ms = 60000
"""
MICRO_BATCHES = (1, 64)
NEIGHBOURS = (0, 1, 2)
PAUSES = 3
TRAIN_S = 4.0
"""A node trains for so long before each pause, and longer each time, so that it meets other parts of a pass."""
STILL_S = 1.5
"""Without processor time for so long, the node rests."""
LOOK_EVERY_S = 0.05
IDLE_SHARE = 0.05
"""Of a core. A node that rests reads its files and draws its view."""
PATIENCE_S = 60.0


def used_s(node: psutil.Process) -> float:
    """Processor time of the node so far."""
    found = node.cpu_times()
    return float(found.user + found.system)


def stops_at(node: psutil.Process) -> float:
    """Wait until a node uses no processor time any more. Returns the time of day at which it last did."""
    last_s, before = time.time(), used_s(node)
    deadline_s = last_s + PATIENCE_S
    while (now_s := time.time()) < last_s + STILL_S:
        if now_s > deadline_s:
            sys.exit(f"the node has not rested within {PATIENCE_S:.0f} s")
        time.sleep(LOOK_EVERY_S)
        if (used := used_s(node)) - before > IDLE_SHARE * (time.time() - now_s) + 0.01:  # the clock's resolution
            last_s = time.time()
        before = used
    return last_s


def pauses(micro_batch: int, folder: Path, programs: Programs) -> list[float]:
    """Seconds of each pause of one node."""
    state, invite = folder / f"node-{micro_batch}", f"@{folder / 'invite'}"
    options = ["--state-dir", str(state), "--micro-batch", str(micro_batch), *JSON_LOG]
    process = programs.start(f"node-{micro_batch}", [*module("thinwire_node"), "start", invite, *options])
    found = []
    for number in range(PAUSES):
        while len(process.events("node.joined")) <= number:
            programs.check()
            time.sleep(LOOK_EVERY_S)
        time.sleep(TRAIN_S + number * 0.37)
        order("pause", state)
        ordered_s = (state / ORDERS_FILE).stat().st_mtime
        found.append(max(0.0, stops_at(psutil.Process(process.popen.pid)) - ordered_s))
        order("resume", state)
    order("stop", state)
    process.popen.wait()
    return found


def order(command: str, state: Path) -> None:
    """Give an order by its command."""
    subprocess.run(
        [*module("thinwire_node"), command, "--state-dir", str(state)], check=True, stdout=subprocess.DEVNULL
    )


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.speed.pause", description=__doc__)
    parser.parse_args()
    for neighbours in NEIGHBOURS:
        for micro_batch in MICRO_BATCHES:
            with tempfile.TemporaryDirectory() as name, Programs(Path(name)) as programs, ExitStack() as busy:
                folder = Path(name)
                (folder / "run.toml").write_text(RUN)
                command = [*module("thinwire_coordinator"), "serve", "--run", str(folder / "run.toml"), *JSON_LOG]
                command += ["--state-dir", str(folder / "coordinator"), "--listen", "127.0.0.1:0"]
                coordinator = programs.start("coordinator", [*command, "--invite-file", str(folder / "invite")])
                coordinator.wait_until_ready(folder / "coordinator", PATIENCE_S)
                for _ in range(neighbours):
                    neighbour = busy.enter_context(subprocess.Popen([sys.executable, "-c", PROGRAM]))
                    busy.callback(neighbour.kill)
                found = pauses(micro_batch, folder, programs)
            print(
                f"micro-batch of {micro_batch:2}, {neighbours} busy neighbours: {statistics.median(found):.2f} s, "
                f"at worst {max(found):.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
