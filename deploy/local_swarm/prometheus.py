"""A real Prometheus that looks at a local swarm: Debian's, with its data in the run's folder."""

from __future__ import annotations

import json
import shutil
import socket
from contextlib import ExitStack
from pathlib import Path

PROGRAM = shutil.which("prometheus")
HOW_TO_INSTALL = "Prometheus is not installed, so nobody scrapes: apt-get install -y prometheus"
RULES = Path(__file__).resolve().parents[1] / "prometheus" / "rules.yml"
SCRAPE_EVERY = "1s"
HOST = "127.0.0.1"


def free_addresses(count: int) -> list[str]:
    """HOST:PORT of ports that nobody uses now, all different."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [f"{HOST}:{found.getsockname()[1]}" for found in sockets]


def command(folder: Path, listen: str, targets: dict[str, list[str]]) -> list[str]:
    """What starts Prometheus. folder: for its configuration and its data. targets: addresses by the name of the job."""
    jobs = [{"job_name": job, "static_configs": [{"targets": found}]} for job, found in targets.items()]
    configuration = {
        "global": {"scrape_interval": SCRAPE_EVERY, "evaluation_interval": SCRAPE_EVERY},
        "rule_files": [str(RULES)] if RULES.exists() else [],
        "scrape_configs": jobs,
    }
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(configuration, indent=2))  # which is YAML, too
    return [
        PROGRAM or "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={listen}",
    ]
