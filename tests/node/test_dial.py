"""From an invite to a gRPC call: real servers, real TLS, and a real proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import grpc
import pytest

from thinwire_node.exchange.coordinator.dial import check_coordinator, dial
from thinwire_node.exchange.port import Refused
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity import statements
from thinwire_proto.identity.certificates import Certificate, new_authority, new_leaf
from thinwire_proto.identity.invite import Invite
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb

KEY = SecretKey(bytes(range(32)))
NOW = datetime.now(timezone.utc)
AUTHORITY = new_authority(NOW)
LEAF = new_leaf(AUTHORITY, KEY, ["coordinator.invalid"], NOW)
PATIENCE_S = 10.0


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


class Echo(grpc.GenericRpcHandler):
    """Answers each call with its authority."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            return b"here"

        return grpc.unary_unary_rpc_method_handler(answer)


def test_a_coordinator_proves_that_it_holds_the_key_that_the_invite_names() -> None:
    """A certificate of a browser's authority, which a proxy has, proves nothing about the coordinator."""

    def reply(key: SecretKey, nonce: bytes = b"n", shows: SecretKey = KEY) -> pb.HelloReply:
        signature = key.sign(statements.hello(nonce, b"c"))
        return pb.HelloReply(public_key=shows.public.data, challenge=b"c", signature=signature)

    invited, other = invite("coordinator.invalid:7700", public_tls=True), SecretKey()
    assert check_coordinator(invited, b"n", reply(KEY)) == KEY.public
    for wrong in (reply(other), reply(KEY, b"an earlier nonce")):
        with pytest.raises(Refused, match="did not prove that it holds the key"):
            check_coordinator(invited, b"n", wrong)
    with pytest.raises(Refused, match="not the one that the invite names"):
        check_coordinator(invited, b"n", reply(other, shows=other))


@asynccontextmanager
async def server(certificate: Callable[[], Certificate] | None, host: str = "127.0.0.1") -> AsyncIterator[int]:
    own = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    own.add_generic_rpc_handlers((Echo(),))
    if certificate is None:
        port = own.add_insecure_port(f"{host}:0")
    else:

        def configuration() -> grpc.ServerCertificateConfiguration:
            found = certificate()
            return grpc.ssl_server_certificate_configuration([(found.key, found.chain)])

        port = own.add_secure_port(f"{host}:0", grpc.dynamic_ssl_server_credentials(configuration(), configuration))
    await own.start()
    try:
        yield port
    finally:
        await own.stop(None)


def invite(address: str, *, public_tls: bool = False, key: SecretKey = KEY) -> Invite:
    return Invite(address, key.public.fingerprint, bytes(16), public_tls)


async def call_on(channel: grpc.aio.Channel) -> bytes:
    call: Any = channel.unary_unary("/a/b")  # the stubs cannot tell its types without serializers
    reply: bytes = await call(b"", timeout=PATIENCE_S)
    return reply


async def answer(address: str, invited: Invite | None) -> bytes:
    dialled = await dial(address, invited, ())
    try:
        return await call_on(dialled.channel)
    finally:
        await dialled.channel.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_an_invite_leads_to_its_coordinator(host: str) -> None:
    async def main() -> None:
        async with server(lambda: LEAF, "[::1]" if host == "[::1]" else "127.0.0.1") as port:
            assert await answer("", invite(f"{host}:{port}")) == b"here"

    asyncio.run(main())


def test_whoever_answers_in_place_of_the_coordinator_later_gets_no_call() -> None:
    """The first connection may have been the coordinator's, and the second one somebody else's."""
    served = [LEAF]

    async def main() -> None:
        async with server(lambda: served[0]) as port:
            dialled = await dial("", invite(f"127.0.0.1:{port}"), ())
            served[0] = new_leaf(new_authority(NOW), KEY, [], NOW)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call_on(dialled.channel)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            await dialled.channel.close()

    asyncio.run(main())


def test_a_renewal_drops_no_connection() -> None:
    served = [LEAF]

    async def main() -> None:
        async with server(lambda: served[0]) as port:
            old = await dial("", invite(f"127.0.0.1:{port}"), ())
            assert await call_on(old.channel) == b"here"
            served[0] = new_leaf(AUTHORITY, KEY, [], NOW + timedelta(hours=1))
            assert await call_on(old.channel) == b"here"
            assert await answer("", invite(f"127.0.0.1:{port}")) == b"here"
            await old.channel.close()

    asyncio.run(main())


@pytest.mark.parametrize("address", ["localhost:{}", "127.0.0.1:{}"])
def test_plain_text_goes_to_this_machine_only(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # gRPC would use it

    async def main() -> None:
        async with server(None) as port:
            assert await answer(address.format(port), None) == b"here"

    asyncio.run(main())


@pytest.mark.parametrize("address", ["192.0.2.1:7700", "localhost.example:7700", "[2001:db8::1]:7700", "0.0.0.0:7700"])
def test_another_machine_needs_an_invite(address: str) -> None:
    with pytest.raises(ConfigError, match="start the node with an invite"):
        asyncio.run(answer(address, None))
