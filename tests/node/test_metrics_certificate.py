"""Metrics that leave the machine are encrypted, with a certificate that all nodes of a folder share."""

from __future__ import annotations

import asyncio
import ssl
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from thinwire_node.observe.web import MetricsServer, metrics_tls

HEALTHY = Path(__file__).parents[2] / "deploy" / "healthy.py"


class Waiting:
    state, words = "waiting", "no round is open"


def server(folder: Path | None, host: str = "0.0.0.0") -> MetricsServer:
    report: Any = Waiting
    return MetricsServer(host, 0, lambda: b"a 1\n", report, folder)


async def test_a_scraper_checks_the_nodes_certificate(tmp_path: Path) -> None:
    found = server(tmp_path)
    found.start()
    port = int(found.address.rpartition(":")[2])
    assert found.address == f"https://0.0.0.0:{port}"
    context = ssl.create_default_context(cafile=str(tmp_path / "node.pem"))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="thinwire-node")
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).endswith(b"\r\n\r\na 1\n")
    command = (sys.executable, "-IS", str(HEALTHY), str(port), "/livez", str(tmp_path / "node.pem"))
    for name, status in (("thinwire-node", 0), ("thinwire-coordinator", 1)):
        process = await asyncio.create_subprocess_exec(*command, name, stdout=subprocess.DEVNULL)
        assert await process.wait() == status
    await found.stop()


@pytest.mark.parametrize(("host", "status"), [("localhost", b"200"), ("evil.example", b"421")])
async def test_plain_metrics_are_for_this_machine_alone(host: str, status: bytes) -> None:
    """A site that leads its own name to 127.0.0.1 must not read what this node does (DNS rebinding)."""
    found = server(None, "127.0.0.1")
    found.start()
    port = int(found.address.rpartition(":")[2])
    for path in ("/metrics", "/livez"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        assert (await reader.read()).split(b" ")[1] == status
        writer.close()
    await found.stop()


def test_only_the_owner_reads_the_key_and_everybody_the_certificate(tmp_path: Path) -> None:
    metrics_tls(tmp_path)
    assert stat.S_IMODE((tmp_path / "node.key.pem").stat().st_mode) == 0o600
    assert b"PRIVATE" not in (tmp_path / "node.pem").read_bytes()


def test_nodes_that_start_together_share_one_certificate(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(metrics_tls, [tmp_path] * 8))
    certificate = (tmp_path / "node.pem").read_bytes()
    assert (tmp_path / "node.key.pem").read_bytes().startswith(certificate)
    metrics_tls(tmp_path)
    assert (tmp_path / "node.pem").read_bytes() == certificate
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node.key.pem", "node.pem"]
