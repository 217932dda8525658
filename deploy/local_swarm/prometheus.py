"""Runs Debian's Prometheus on a local swarm, with its data in the run's folder."""

from __future__ import annotations

import json
import random
import shutil
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

PROGRAM = shutil.which("prometheus")
HOW_TO_INSTALL = "Prometheus is not installed, so metrics are not scraped: apt-get install -y prometheus"
RULES = Path(__file__).resolve().parents[1] / "prometheus" / "rules.yml"
SCRAPE_EVERY = "1s"
HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
"""Below those that the system gives to connections."""


def free_addresses(count: int) -> list[str]:
    """HOST:PORT of different ports that are free now. They stay free, unless another program asks for just them."""
    found: list[str] = []
    with ExitStack() as held:
        while len(found) < count:
            port = random.SystemRandom().choice(PORTS)  # not by a seed, which two processes may share
            with suppress(OSError):
                held.enter_context(socket.create_server((HOST, port)))
                found.append(f"{HOST}:{port}")
    return found


def command(folder: Path, listen: str, targets: dict[str, list[str]]) -> list[str]:
    """Write Prometheus' configuration, and return the command that starts it.

    folder: for configuration and data. targets: addresses by job name.
    """
    jobs = [{"job_name": job, "static_configs": [{"targets": found}]} for job, found in targets.items()]
    configuration = {
        "global": {"scrape_interval": SCRAPE_EVERY, "evaluation_interval": SCRAPE_EVERY},
        "rule_files": [str(RULES)] if RULES.exists() else [],
        "scrape_configs": jobs,
    }
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(configuration, indent=2))  # JSON is valid YAML
    return [
        PROGRAM or "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={listen}",
    ]
