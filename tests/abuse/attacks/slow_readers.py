"""Nodes that ask for all they may get, on a window of any size, and read none of it."""

from __future__ import annotations

from contextlib import ExitStack

from abuse.target import Joined, Target
from support.http2_client import WINDOW_DEFAULT, WINDOW_MAX, Http2Client
from thinwire_proto.wire import service_pb2 as pb

READERS = 40
CALLS = {
    "Snapshot": pb.SnapshotRequest(),
    "Corpus": pb.CorpusRequest(),
    "Updates": pb.UpdatesRequest(),
}
LOOK_S = 1.0


def slow_readers(target: Target) -> None:
    with ExitStack() as kept:
        members = [kept.enter_context(target.member()) for _ in range(READERS)]
        clients: list[Http2Client] = []
        try:
            for number, member in enumerate(members):
                clients.append(_read_nothing(target, member, WINDOW_MAX if number % 2 else WINDOW_DEFAULT))
            while not target.stop.wait(LOOK_S):
                pass
        finally:
            for client in clients:
                client.close()


def _read_nothing(target: Target, member: Joined, window: int) -> Http2Client:
    client = target.raw(window)
    for call, request in CALLS.items():
        client.send(client.open(call, member.header), request.SerializeToString())
        target.count("streams")
    return client
