"""Programs that are started for a while: each with a log, and all ended when the `with` block is left."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from deploy.local_swarm.processes import Process, SwarmError, uninterrupted

START_S = 60.0
END_S = 8.0
POLL_S = 0.05
ROOT = Path(__file__).resolve().parents[2]


class Programs:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.all: list[Process] = []

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *exception: object) -> None:
        with uninterrupted():
            for process in self.all:
                process.tell(signal.SIGTERM)
            for process in self.all:
                process.end(END_S)

    def start(self, name: str, command: list[str]) -> Process:
        with uninterrupted():  # or it could run without being known here
            process = Process(name, command, self._folder / f"{name}.log")
            self.all.append(process)
        return process

    def check(self) -> None:
        """Raise SwarmError if one has ended in bad order."""
        for process in self.all:
            if process.popen.poll():
                raise SwarmError(f"{process.name} has ended:\n{process.tail(20)}")

    def wait_for(self, process: Process, text: str) -> None:
        """Until a program that is not a daemon has said something. Raises SwarmError."""
        deadline_s = time.monotonic() + START_S
        while text not in process.text():
            if not process.running or time.monotonic() > deadline_s:
                raise SwarmError(f"{process.name} did not say {text!r}:\n{process.tail(20)}")
            time.sleep(POLL_S)


def module(name: str) -> list[str]:
    """The command that runs a module of ours, wherever it is run from; `env` is replaced by it."""
    return ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", name]


def cpu_s(pid: int) -> float:
    """Processor time that a process has used; 0 for no process."""
    if pid == 0:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
