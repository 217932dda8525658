"""Real coordinators and nodes with each kind of TLS: their own, the organizer's, a proxy's, and none."""

from __future__ import annotations

import json
import socket
import ssl
import urllib.request
from datetime import datetime, timezone
from pathlib import Path

import grpc
import pytest

from support.real import RealSwarm, run_text, until
from thinwire_node.exchange.coordinator.dial import prove
from thinwire_proto.identity.certificates import Certificate, new_authority, new_leaf
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.negotiation import PROTOCOL
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

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


@pytest.mark.parametrize("more", [("--listen", "0.0.0.0:0"), ("--http", "0.0.0.0:0")])
def test_plain_text_is_refused_beyond_this_machine(swarm: RealSwarm, more: tuple[str, ...]) -> None:
    command = ("thinwire-coordinator", "serve", "--state-dir", str(swarm.state), "--insecure", *more)
    process = swarm.start("coordinator", *command)
    until(lambda: not process.running, "it ends", process)
    assert f"--insecure is for this machine only, and {more[0]} 0.0.0.0:0 is open to others" in process.text()


def test_the_page_is_encrypted_beyond_this_machine(swarm: RealSwarm) -> None:
    authority = swarm.folder / "handed-over" / "ca.pem"
    authority.parent.mkdir()
    swarm.coordinator(RUN, "--http", "0.0.0.0:0", "--tls-ca-file", str(authority))
    page = str(swarm.ready["page"])
    assert page.startswith("https://")
    context = ssl.create_default_context(cafile=str(authority))
    with urllib.request.urlopen(page.replace("0.0.0.0", "127.0.0.1") + "/livez", timeout=10, context=context) as answer:
        assert answer.status == 200


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


@pytest.mark.parametrize("forwards", [False, True])
def test_the_address_of_a_node_behind_a_proxy(swarm: RealSwarm, forwards: bool) -> None:
    """The test is the proxy: it calls in plain text, and says whom it passes on."""
    more = ("--tls-proxy-forwards",) if forwards else ()
    coordinator = swarm.coordinator(RUN, "--tls-proxy", "127.0.0.1", *more)
    assert [told["forwards"] for told in coordinator.events("coordinator.proxy")] == [forwards]
    metadata = (("x-forwarded-for", "198.51.100.1, 192.0.2.7"),)
    with grpc.insecure_channel(swarm.address) as channel:
        stub, key = SwarmStub(channel), SecretKey()
        greeting = stub.Hello(pb.HelloRequest(nonce=bytes(32)), timeout=10, metadata=metadata)
        proof = prove(key, swarm.token, greeting)
        stub.Join(pb.JoinRequest(protocol=PROTOCOL, name="ada", **proof), timeout=10, metadata=metadata)
    (listed,) = json.loads(swarm.command("nodes", "--json").stdout)
    assert listed["address"] == ("192.0.2.7" if forwards else "127.0.0.1")


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
