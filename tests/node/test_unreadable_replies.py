"""Replies that are no messages end a session with an error of thinwire's own, and without a traceback in the log."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from thinwire_common.traffic import Traffic
from thinwire_node.exchange.coordinator.link import Link
from thinwire_node.exchange.coordinator.traffic import CountedChannel
from thinwire_proto.errors import PayloadError
from thinwire_proto.wire.service_pb2_grpc import SwarmStub


class Junk(grpc.GenericRpcHandler):
    """Answers every call with bytes that are no message."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def answer(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            yield b"\xff\xff"

        return grpc.stream_stream_rpc_method_handler(answer)


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Junk(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    stub: Any = SwarmStub(CountedChannel(channel, Traffic()))  # type: ignore[call-overload]
    yield Link(stub, channel.close)
    await channel.close()
    await server.stop(0)


async def test_a_reply_and_a_stream_that_are_no_messages(link: Link, caplog: pytest.LogCaptureFixture) -> None:
    """A fuzzer's find: gRPC gave None for the reply, and the node ended with an AttributeError."""
    with caplog.at_level(logging.INFO):
        with pytest.raises(PayloadError, match="bytes that are no message"):
            await link.probe()
        with pytest.raises(PayloadError, match="bytes that are no message"):
            await anext(link.announcements())
    assert not caplog.records
