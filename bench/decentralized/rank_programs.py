"""Runs one program on each host, as the ranks of a process group, and reads the result that rank 0 prints."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.decentralized.rank import RESULT
from bench.wide_area.hosts import Host
from bench.wide_area.programs import POLL_S, Programs, module
from deploy.local_swarm.processes import SwarmError


def run_ranks(
    hosts: Sequence[Host], name: str, store_port: int, options: Sequence[str], folder: Path, patience_s: float
) -> dict[str, Any]:
    """The result of rank 0, once all ranks have ended.

    name: of the module, which takes --rank, --ranks and --store. options: its others. Raises SwarmError.
    """
    with Programs(folder) as programs:
        for rank, host in enumerate(hosts):
            command = [*module(name), "--rank", str(rank), "--ranks", str(len(hosts))]
            command += ["--store", f"{hosts[0].address}:{store_port}", *options]
            programs.start(f"rank-{rank}", host.inside(*command))
        deadline_s = time.monotonic() + patience_s
        while any(process.running for process in programs.all):
            programs.check()
            if time.monotonic() > deadline_s:
                raise SwarmError(f"the ranks did not end within {patience_s:g} s")
            time.sleep(POLL_S)
        programs.check()
        for line in programs.all[0].text().splitlines():
            if line.startswith(RESULT):
                found: dict[str, Any] = json.loads(line.removeprefix(RESULT))
                return found
    raise SwarmError("rank 0 ended without a result")
