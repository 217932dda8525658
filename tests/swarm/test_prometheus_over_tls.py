"""Tests that a real Prometheus reads a coordinator and a node over HTTPS, configured as in deploy/prometheus.

Prometheus is written in Go, whose TLS reads certificates by stricter rules than OpenSSL's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local_swarm.ports import free_addresses
from deploy.local_swarm.prometheus import HOW_TO_INSTALL, PROGRAM
from support.prometheus import Prometheus
from support.real import RESTING, RealSwarm, real_swarm, run_text, until

DEPLOYED = Path(__file__).parents[2] / "deploy" / "prometheus" / "prometheus.yml"


def jobs_at(places: dict[str, tuple[str, Path]]) -> list[dict[str, Any]]:
    """The deployed jobs. places: address and certificate by the name of the job."""
    jobs: list[dict[str, Any]] = yaml.safe_load(DEPLOYED.read_text(encoding="utf-8"))["scrape_configs"]
    found = [job for job in jobs if job["job_name"] in places]
    for job in found:
        address, certificate = places[job["job_name"]]
        job["static_configs"] = [{"targets": [address]}]
        job["tls_config"]["ca_file"] = str(certificate)
        job.pop("dns_sd_configs", None)
    return found


def start_prometheus(swarm: RealSwarm, jobs: list[dict[str, Any]]) -> Prometheus:
    (listen,) = free_addresses(1)
    file = swarm.folder / "prometheus.yml"
    file.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
    data = swarm.folder / "prometheus"
    assert PROGRAM is not None
    options = (f"--config.file={file}", f"--storage.tsdb.path={data}", f"--web.listen-address={listen}")
    swarm.start("prometheus", PROGRAM, *options)
    return Prometheus(f"http://{listen}")


@pytest.mark.skipif(PROGRAM is None, reason=HOW_TO_INSTALL)
def test_prometheus_reads_coordinator_and_node_over_https(tmp_path: Path) -> None:
    page, metrics = (f"0.0.0.0:{address.rpartition(':')[2]}" for address in free_addresses(2))
    authority, folder = tmp_path / "ca.pem", tmp_path / "node-tls"
    with real_swarm(tmp_path) as swarm:
        swarm.coordinator(run_text(100_000), "--http", page, "--tls-ca-file", str(authority))
        swarm.node("ada", *RESTING, "--metrics", metrics, "--metrics-tls", str(folder))
        until((folder / "node.pem").exists, "the node has made its certificate", *swarm.processes)
        jobs = jobs_at({"coordinator": (page, authority), "node": (metrics, folder / "node.pem")})
        assert {job["scheme"] for job in jobs} == {"https"}
        prometheus = start_prometheus(swarm, jobs)
        wanted = {page: "up", metrics: "up"}
        until(lambda: prometheus.targets() == wanted, "Prometheus reads both", *swarm.processes)
