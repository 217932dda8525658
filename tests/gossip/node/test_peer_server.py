"""The port on which a node listens for its peers: who gets a line there, and what strangers cost."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.relayed import CONTRACT, HERE
from thinwire_common.reach.hosts import split_address
from thinwire_common.reach.preflight import find_way
from thinwire_node.__main__ import main
from thinwire_node.gossip.lines.dialler import METHOD, DialFailed, dial
from thinwire_node.gossip.lines.server import STRANGER, STRANGERS_MAX, PeerCertificate, PeerServer
from thinwire_node.gossip.lines.stream import (
    PARCEL_BYTES_MAX,
    PROOF_BYTES_MAX,
    Wire,
    challenge_parcel,
    parse,
    proof_parcel,
)
from thinwire_node.peer_settings import check_free
from thinwire_proto.errors import PayloadError
from thinwire_proto.identity.authority import PEER
from thinwire_proto.identity.certificates import RENEW_BEFORE
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.wire import service_pb2 as pb

assert HERE.refusal is not None
REFUSAL = HERE.refusal
SERVER = SecretKey()
BEGINS = pb.Parcel(begins=True, acknowledged=0).SerializeToString()


class Echo:
    """Accepts the keys that it knows, and sends back what it gets."""

    def __init__(self, *keys: SecretKey) -> None:
        self.known = {key.public.data for key in keys}
        self.failure: Exception | None = None

    async def accept(self, key: PublicKey, wire: Wire) -> bool:
        if self.failure is not None:
            raise self.failure
        if key.data not in self.known:
            return False
        await wire.write(BEGINS)
        while (data := await wire.read()) is not None:
            await wire.write(data)
        return True


@asynccontextmanager
async def serving(echo: Echo, handshake_s: float = 20.0, peers_max: int = 1) -> AsyncIterator[PeerServer]:
    server = PeerServer(SERVER, CONTRACT, peers_max, handshake_s, refusal_pause_s=0.0)
    server.accept = echo.accept
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def channel_to(server: PeerServer) -> AsyncIterator[grpc.aio.Channel]:
    """A connection that trusts the server's certificate, as a peer's does."""
    address = f"127.0.0.1:{server.port}"
    way = await find_way(*split_address(address), SERVER.public.fingerprint, public_tls=False, party=PEER)
    options = [("grpc.ssl_target_name_override", way.name), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(way.roots), options=options) as channel:
        yield channel


async def have(server: PeerServer, key: SecretKey, opened: Callable[[Wire, pb.Parcel], Awaitable[str]]) -> str:
    return await dial(f"127.0.0.1:{server.port}", SERVER.public, key, CONTRACT, REFUSAL, opened)


async def echoes(wire: Wire, first: pb.Parcel) -> str:
    assert first.begins
    await wire.write(b"hello")
    return (await wire.read() or b"").decode()


async def test_a_stranger_is_told_why_he_gets_none() -> None:
    async with serving(Echo()) as server:
        with pytest.raises(DialFailed) as caught:
            await have(server, SecretKey(), echoes)
        assert str(caught.value) == STRANGER


def other_contract(key: SecretKey, challenge: pb.Parcel) -> pb.Parcel:
    return proof_parcel(key, b"d" * 32, SERVER.public, challenge)


def other_server(key: SecretKey, challenge: pb.Parcel) -> pb.Parcel:
    return proof_parcel(key, CONTRACT, SecretKey().public, challenge)


def older_challenge(key: SecretKey, challenge: pb.Parcel) -> pb.Parcel:
    return proof_parcel(key, CONTRACT, SERVER.public, challenge_parcel())


def key_of_another(key: SecretKey, challenge: pb.Parcel) -> pb.Parcel:
    answer = proof_parcel(SecretKey(), CONTRACT, SERVER.public, challenge)
    answer.proof.public_key = key.public.data
    return answer


def nothing(key: SecretKey, challenge: pb.Parcel) -> pb.Parcel:
    return pb.Parcel()


def too_much(key: SecretKey, challenge: pb.Parcel) -> pb.Parcel:
    return pb.Parcel(data=bytes(PROOF_BYTES_MAX))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (other_contract, "is not signed by that key, for this node and this run"),
        (other_server, "is not signed by that key, for this node and this run"),
        (older_challenge, "is not signed by that key, for this node and this run"),
        (key_of_another, "is not signed by that key, for this node and this run"),
        (nothing, "has a public key and a signature"),
        (too_much, f"at most {PROOF_BYTES_MAX} may come here"),
    ],
)
async def test_whoever_does_not_prove_his_key_gets_no_line(
    answer: Callable[[SecretKey, pb.Parcel], pb.Parcel], why: str
) -> None:
    key = SecretKey()
    async with serving(Echo(key)) as server, channel_to(server) as channel:
        call: Any = channel.stream_stream(METHOD)()
        challenge = parse(await call.read())
        await call.write(answer(key, challenge).SerializeToString())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert why in str(caught.value.details())


async def test_a_parcel_beyond_the_bound_or_of_nonsense_is_none() -> None:
    with pytest.raises(PayloadError, match=f"at most {PARCEL_BYTES_MAX}"):
        parse(bytes(PARCEL_BYTES_MAX + 1))
    with pytest.raises(PayloadError, match="no parcel"):
        parse(b"\xff\xff\xff")


async def test_silent_strangers_give_way_and_hold_nobody_up() -> None:
    key = SecretKey()
    async with serving(Echo(key), peers_max=STRANGERS_MAX) as server, contextlib.AsyncExitStack() as held:
        calls = []
        for _ in range(STRANGERS_MAX + 3):
            channel = await held.enter_async_context(channel_to(server))
            call: Any = channel.stream_stream(METHOD)()
            await call.read()  # the challenge, which stays without an answer
            calls.append(call)
        assert server.strangers == STRANGERS_MAX
        for gone in calls[:3]:
            with pytest.raises(grpc.aio.AioRpcError, match="has to come at once"):
                await gone.read()
        assert await have(server, key, echoes) == "hello"
        assert server.strangers == STRANGERS_MAX - 1


async def test_connections_beyond_the_bound_are_closed_and_lines_hold() -> None:
    key = SecretKey()
    async with serving(Echo(key)) as server:
        beyond = 10
        flood: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

        async def opened(wire: Wire, first: pb.Parcel) -> str:
            for _ in range(server.connections_max + beyond):
                flood.append(await asyncio.open_connection("127.0.0.1", server.port))
            within = [asyncio.ensure_future(reader.read()) for reader, _ in flood[:beyond]]
            assert await asyncio.gather(*(reader.read() for reader, _ in flood[-beyond:])) == [b""] * beyond
            assert not any(one.done() for one in within)  # so it was not the end of all
            for one in within:
                one.cancel()
            await wire.write(b"still here")
            return (await wire.read() or b"").decode()

        try:
            assert await have(server, key, opened) == "still here"
        finally:
            for _, writer in flood:
                writer.transport.abort()


async def test_a_fault_of_the_node_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    key, echo = SecretKey(), Echo()
    echo.failure = ZeroDivisionError("a secret of this machine")
    async with serving(echo) as server:
        with pytest.raises(DialFailed, match="its log says why") as caught:
            await have(server, key, echoes)
    assert "secret" not in str(caught.value)
    assert "a secret of this machine" in caplog.text


@pytest.mark.parametrize("host", ["", "127.0.0.1:", "node.example:"])
async def test_a_port_in_use_ends_the_command_before_the_node_joins(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(Echo()) as server:
        state_dir, peers = tmp_path / "node", f"{host}{server.port}"
        monkeypatch.setattr(sys, "argv", ["thinwire-node", "start", "--state-dir", str(state_dir), "--peers", peers])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1
    assert f":{server.port}: the port is in use" in capsys.readouterr().err
    assert not state_dir.exists()
    check_free(host.rstrip(":"), server.port)  # the one that was in use has ended


def test_the_certificate_is_renewed_before_it_ends() -> None:
    now = [datetime(2026, 1, 1, tzinfo=timezone.utc)]
    made = PeerCertificate(SERVER, lambda: now[0])
    first = made.current()
    assert made.current() is first
    now[0] = first.parsed.not_valid_after_utc - RENEW_BEFORE
    assert made.current().parsed.not_valid_after_utc > first.parsed.not_valid_after_utc
    now[0] = datetime(2025, 1, 1, tzinfo=timezone.utc)  # the clock was ahead
    assert made.current().parsed.not_valid_before_utc < now[0]
