"""Runs Debian's Prometheus on a local swarm, with its data in the run's folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

PROGRAM = shutil.which("prometheus")
HOW_TO_INSTALL = "Prometheus is not installed, so metrics are not scraped: apt-get install -y prometheus"
RULES = Path(__file__).resolve().parents[1] / "prometheus" / "rules.yml"
SCRAPE_EVERY = "1s"


def command(folder: Path, listen: str, targets: dict[str, list[str]], *, scrape_every: str = SCRAPE_EVERY) -> list[str]:
    """Write Prometheus' configuration, and return the command that starts it.

    folder: for configuration and data. targets: addresses by job name.
    """
    jobs = [{"job_name": job, "static_configs": [{"targets": found}]} for job, found in targets.items()]
    configuration = {
        "global": {"scrape_interval": scrape_every, "evaluation_interval": scrape_every},
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
