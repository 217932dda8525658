"""Measures the share of a node's CPU time that its reports, metrics and live view take.

    python -m bench.costs.node_monitor [--seconds 60]

Runs a coordinator and one node that trains the byte model. The node has its own terminal and is scraped every five
seconds. The node itself counts the CPU time of its monitoring. The exit status is 1 if the share is 1% or more.
"""

from __future__ import annotations

import argparse
import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from deploy.local_swarm.processes import BIN, Process, SwarmError
from thinwire_common.ready_file import READY_FILE, read_ready

SHARE_MAX = 0.01
SCRAPE_EVERY_S = 5.0
START_S = 120.0
RUN = '[model]\npreset = "byte-1m"\n[schedule]\nsteps = 1000000\n'
WATCHING, ALL = "thinwire_node_watching_cpu_seconds_total", "process_cpu_seconds_total"


class NodeOnATerminal:
    """`thinwire-node start` on a pty. A thread reads and keeps all terminal output."""

    def __init__(self, invite_file: Path, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._ours, theirs = pty.openpty()
        command = [str(BIN / "thinwire-node"), "start", f"@{invite_file}", "--metrics", "0"]
        command += ["--state-dir", str(state_dir)]
        self.popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm"},
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                self.shown += os.read(self._ours, 65536)
            except OSError:  # the node has ended
                return

    def metrics_url(self) -> str:
        deadline = time.monotonic() + START_S
        while self.popen.poll() is None and time.monotonic() < deadline:
            if ready := read_ready(self._state_dir / READY_FILE, self.popen.pid):
                return str(ready["metrics"])
            time.sleep(0.1)
        raise SwarmError(f"the node did not start:\n{self.shown.decode(errors='replace')}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as name:
        watching_s, all_s, frames = _measure(Path(name), seconds)
    share = watching_s / all_s
    print(
        f"monitoring took {watching_s:.3f} s of the node's {all_s:.1f} s of CPU time in {seconds:.0f} s: {share:.2%} "
        f"({frames} frames of the live view, one scrape every {SCRAPE_EVERY_S:.0f} s)"
    )
    sys.exit(share >= SHARE_MAX)


def _measure(folder: Path, seconds: float) -> tuple[float, float, int]:
    """Returns (CPU seconds of monitoring, CPU seconds of the process, frames drawn), from the first tokens on."""
    (folder / "run.toml").write_text(RUN)
    command = ["thinwire-coordinator", "serve", "--run", str(folder / "run.toml"), "--listen", "127.0.0.1:0"]
    command += ["--state-dir", str(folder / "coordinator"), "--http", "off"]
    command += ["--invite-file", str(folder / "invite")]
    coordinator = Process("coordinator", command, folder / "coordinator.log")
    node = None
    try:
        coordinator.wait_until_ready(folder / "coordinator")
        node = NodeOnATerminal(folder / "invite", folder / "node")
        url = node.metrics_url()
        while not _scrape(url)["thinwire_node_tokens_total"]:
            time.sleep(0.5)
        before, frames = _scrape(url), node.shown.count(b"\x1b[J")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(min(SCRAPE_EVERY_S, max(0.0, end - time.monotonic())))
            after = _scrape(url)
        frames = node.shown.count(b"\x1b[J") - frames
        return after[WATCHING] - before[WATCHING], after[ALL] - before[ALL], frames
    finally:
        if node is not None:
            node.popen.send_signal(signal.SIGTERM)
            node.popen.wait()
        coordinator.end(10)


def _scrape(url: str) -> dict[str, float]:
    """Values of the metrics without labels, by name."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {s.name: s.value for family in families for s in family.samples if not s.labels}


if __name__ == "__main__":
    main()
