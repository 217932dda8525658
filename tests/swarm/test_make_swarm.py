"""Tests `make swarm` with fewer nodes and rounds."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.local_swarm.processes import HOW_TO_INSTALL, PROGRAM
from support.real import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


def from_the_root() -> dict[str, str]:
    """An environment in which `deploy` can be imported from any directory."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}


@contextmanager
def local_swarm(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the launcher in its own process. If it still runs at the end of the test, it gets SIGTERM."""
    environment = from_the_root() | {"COLUMNS": "120"}
    process = subprocess.Popen(
        [sys.executable, "-m", "deploy.local_swarm", *arguments],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)


def test_the_summary_shows_equal_replicas_and_a_lower_loss(tmp_path: Path) -> None:
    with local_swarm(tmp_path, "--nodes", "2", "--rounds", "6", "--metrics") as process:
        text, _ = process.communicate(timeout=2 * PATIENCE_S)
    assert process.returncode == 0, text
    assert "all 3 replicas are bitwise equal" in text
    assert len(set(re.findall(r"\b[0-9a-f]{16}\b", text))) == 1  # one fingerprint, three times
    first, last = re.search(r"held-out loss +(\S+) → (\S+) nats", text).groups()  # type: ignore[union-attr]
    assert float(last) < float(first)
    assert "fp32 all-reduce" in text
    assert "verify: replayed 6 updates" in text
    assert "a sample from the model:" in text
    assert str(tmp_path) in text
    assert re.search(r"^metrics: http://127\.0\.0\.1:\d+/metrics$", text, re.MULTILINE)
    prometheus = list(tmp_path.glob("runs/*/prometheus.log"))
    assert [HOW_TO_INSTALL in text, not prometheus] == [PROGRAM is None] * 2
    assert all("Server is ready" in log.read_text() for log in prometheus)
    assert running_below(tmp_path) == []


def test_without_a_centre_the_summary_shows_lines_bytes_and_what_export_gives(tmp_path: Path) -> None:
    with local_swarm(tmp_path, "--nodes", "2", "--rounds", "6", "--exchange", "gossip") as process:
        text, _ = process.communicate(timeout=2 * PATIENCE_S)
    assert process.returncode == 0, text
    first, last = re.search(r"held-out loss +(\S+) → (\S+) nats", text).groups()  # type: ignore[union-attr]
    assert float(last) < float(first)
    assert "6 iterations of each node" in text
    assert re.search(r"^iteration 6/6 ", text, re.MULTILINE)
    assert "replicas" not in text
    assert "disagreement" in text
    assert re.search(r"sign.*; topology", text)
    assert re.search(r"node-1 .+ 0 B +[1-9][0-9.]* [kM]B +0\.\d{4} B", text)  # nothing direct, all through the relay
    assert "fp32 all-reduce" in text
    assert "the exact mean of the parameters of 2 nodes" in text
    assert "verify: the final mean of 2 nodes" in text
    assert "a sample from the model:" in text
    assert running_below(tmp_path) == []


def running_below(folder: Path) -> list[str]:
    """Command lines of the processes that use a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


def test_closing_the_terminal_ends_all_processes(tmp_path: Path) -> None:
    """make does not pass SIGHUP on, so the launcher must notice by itself."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "deploy.local_swarm", "--nodes", "2", "--rounds", "100000"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=from_the_root() | {"TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    while b"waiting for" not in shown and b"training" not in shown:  # the live view is up
        shown += os.read(ours, 1000)
    os.close(ours)
    process.wait(PATIENCE_S)
    assert running_below(tmp_path) == []
