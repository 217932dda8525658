"""A real coordinator process to attack, and what its memory, its log and three honest nodes say afterwards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.local_swarm.processes import Process
from support.real import RealSwarm, real_swarm, run_text

NODES_MAX = 96
CONTRIBUTING, SILENT = 32, 4
"""Sessions of the fuzzer that attend. A round opens when all of them attend, and needs more contributions than those of
the ones that contribute, so that every round is void, and all inputs meet the same parameters. Rounds end by the clock,
so that few contributions are late, and leases are large, so that a session contributes often in each."""
ROUNDS = f"""
pace = "clock"
nodes_max = {NODES_MAX}
min_contributions = {CONTRIBUTING + SILENT}
momentum_age_max = 1000000
"""
LENGTH_MS = 1000
LEASE = 64
BUG = re.compile("this is a bug|Traceback")
SAID_MAX = 20


@dataclass
class Victim:
    """A coordinator, and where it listens. bound_bytes: the bound on its memory that it printed."""

    swarm: RealSwarm
    process: Process
    host: str
    port: int
    http_port: int
    token: bytes
    bound_bytes: int

    @property
    def alive(self) -> bool:
        return self.process.running

    def rss_bytes(self) -> int:
        """Memory of the process that is in use now."""
        return _status_bytes(self.process, "VmRSS")

    def peak_rss_bytes(self) -> int:
        return _status_bytes(self.process, "VmHWM")

    def complaints(self) -> list[str]:
        """Lines of its log that a stranger must not be able to cause: errors, and what calls itself a bug."""
        found = []
        with self.process.log.open(errors="replace") as file:
            for line in file:
                if BUG.search(line) or _level(line) in ("error", "critical"):
                    found.append(line[:3000])
        return list(dict.fromkeys(found))[:SAID_MAX]


def _level(line: str) -> str:
    try:
        return str(json.loads(line).get("level", ""))
    except (ValueError, AttributeError):
        return "error" if line.strip() else ""


def _status_bytes(process: Process, key: str) -> int:
    text = Path(f"/proc/{process.popen.pid}/status").read_text()
    found = re.search(rf"{key}:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


@contextmanager
def victim(folder: Path, *, limited: bool) -> Iterator[Victim]:
    """Start a coordinator of a tiny model, and its page, both with TLS. It ends with the context.

    limited: whether its rates hold, as everywhere else; without them, more inputs reach the code behind them."""
    with real_swarm(folder) as swarm:
        text = run_text(1000, rounds=ROUNDS, samples=LEASE, length_ms=LENGTH_MS)
        through = () if limited else ("unlimited_coordinator.py",)
        process = swarm.coordinator(text, "--http", "0.0.0.0:0", through=through)
        host, _, port = swarm.address.rpartition(":")
        http = str(swarm.ready["page"]).rpartition(":")[2]
        bound = int(process.events("coordinator.memory_bound")[0]["memory_bytes"])
        yield Victim(swarm, process, host, int(port), int(http), swarm.token, bound)
