"""A coordinator that proves its identity as it should, and then sends what a test wants, over real gRPC."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.negotiation import PROTOCOL
from thinwire_proto.wire.service_pb2_grpc import SwarmServicer, add_SwarmServicer_to_server

Servicer: Any = SwarmServicer  # a test needs few of its calls, and the others answer UNIMPLEMENTED


class HostileCoordinator(Servicer):  # type: ignore[misc]
    """contract: its bytes. files: what Corpus, Snapshot, Blob and Updates stream, as parts. calls: how often each was
    asked. refusal: refuses every Join with this text."""

    def __init__(self, contract: bytes, files: dict[str, list[Any]] | None = None, refusal: str = "") -> None:
        self.contract = contract
        self.files = files or {}
        self.refusal = refusal
        self.calls: Counter[str] = Counter()
        self.address = ""
        self._key = SecretKey()

    async def Hello(self, request: pb.HelloRequest, context: Any) -> pb.HelloReply:
        challenge = bytes(32)
        signature = self._key.sign(statements.hello(request.nonce, challenge))
        return pb.HelloReply(public_key=self._key.public.data, challenge=challenge, signature=signature)

    async def Join(self, request: pb.JoinRequest, context: Any) -> pb.JoinReply:
        self.calls["Join"] += 1
        if self.refusal:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, self.refusal)
        return pb.JoinReply(protocol=PROTOCOL, contract=self.contract, session="s" * 32)

    async def _file(self, name: str) -> AsyncIterator[Any]:
        self.calls[name] += 1
        for part in self.files.get(name, []):
            yield part


def _streaming(name: str) -> Any:
    async def stream(self: HostileCoordinator, request: Any, context: Any) -> AsyncIterator[Any]:
        async for part in self._file(name):
            yield part

    return stream


for call in ("Corpus", "Snapshot", "Blob", "Updates"):
    setattr(HostileCoordinator, call, _streaming(call))


@asynccontextmanager
async def serving(hostile: HostileCoordinator) -> AsyncIterator[HostileCoordinator]:
    server = grpc.aio.server()
    add_SwarmServicer_to_server(hostile, server)
    hostile.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield hostile
    finally:
        await server.stop(0)
