"""Runs programs, each with its own log, and ends all of them at the end of a `with` block."""

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
    """Starts programs with logs in `folder`; a context manager."""

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
        with uninterrupted():  # otherwise an interrupt could leave it running
            process = Process(name, command, self._folder / f"{name}.log")
            self.all.append(process)
        return process

    def check(self) -> None:
        """Raise SwarmError if a program has failed."""
        for process in self.all:
            if process.popen.poll():
                raise SwarmError(f"{process.name} has ended:\n{process.tail(20)}")

    def wait_until_all_end(self, what: str, patience_s: float) -> None:
        """Wait until all programs have ended. Raises SwarmError if one fails, or after so long."""
        deadline_s = time.monotonic() + patience_s
        while any(process.running for process in self.all):
            self.check()
            if time.monotonic() > deadline_s:
                raise SwarmError(f"{what} did not end within {patience_s:,.0f} s")
            time.sleep(POLL_S)
        self.check()

    def wait_for(self, process: Process, text: str) -> None:
        """Wait until a program that is not a daemon has printed `text`. Raises SwarmError."""
        deadline_s = time.monotonic() + START_S
        while text not in process.text():
            if not process.running or time.monotonic() > deadline_s:
                raise SwarmError(f"{process.name} did not print {text!r}:\n{process.tail(20)}")
            time.sleep(POLL_S)


def module(name: str) -> list[str]:
    """The command that runs one of our modules from any working directory. `env` execs it."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return ["/usr/bin/env", f"PYTHONPATH={path}", sys.executable, "-m", name]


def cpu_s(pid: int) -> float:
    """Processor time of a process in seconds; 0 for pid 0."""
    if pid == 0:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
