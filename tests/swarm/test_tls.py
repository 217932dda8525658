"""Real coordinators and nodes with each kind of TLS: their own, the organizer's, a proxy's, and none."""

from __future__ import annotations

import socket
from datetime import datetime, timezone
from pathlib import Path

import pytest

from support.real import RealSwarm, run_text, until
from thinwire_proto.identity.certificates import Certificate, new_authority, new_leaf
from thinwire_proto.identity.keys import SecretKey

RUN = run_text(100_000)
NOW = datetime.now(timezone.utc)
ROOT = new_authority(NOW)


@pytest.fixture
def public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Certificate:
    """A certificate for `localhost` of an authority that this system trusts."""
    (tmp_path / "roots.pem").write_bytes(ROOT.chain)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "roots.pem"))
    return new_leaf(ROOT, SecretKey(), ["localhost"], NOW)


def contributes(swarm: RealSwarm) -> None:
    node = swarm.node("ada")
    until(lambda: swarm.counted("ada") > 0, "a contribution is counted", node, *swarm.processes)


def test_the_organizers_own_certificate(swarm: RealSwarm, public: Certificate) -> None:
    files = swarm.folder / "chain.pem", swarm.folder / "key.pem"
    files[0].write_bytes(public.chain)
    files[1].write_bytes(public.key)
    swarm.address = "localhost:0"
    swarm.coordinator(RUN, "--tls-certificate", str(files[0]), "--tls-key", str(files[1]))
    assert swarm.invite.public_tls
    assert not (swarm.state / "tls").exists()
    node = swarm.node("ada")
    until(lambda: node.events("node.joined"), "the node has joined", node, *swarm.processes)


def test_a_proxy_that_terminates_tls(swarm: RealSwarm, public: Certificate) -> None:
    (swarm.folder / "proxy.pem").write_bytes(public.chain + public.key)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    swarm.address = f"127.0.0.1:{port}"
    proxy = swarm.start("proxy", "python", "-m", "support.tls_proxy", "0", str(port), str(swarm.folder / "proxy.pem"))
    until(lambda: proxy.text().endswith("\n"), "the proxy listens", proxy)
    public_port = int(proxy.text().split()[-1])
    swarm.coordinator(RUN, "--tls-proxy", "127.0.0.1", "--address", f"localhost:{public_port}")
    assert swarm.invite.public_tls
    contributes(swarm)
