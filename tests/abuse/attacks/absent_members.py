"""Nodes that attend, send nothing, and attend again, so that a round at pace barrier may wait for them."""

from __future__ import annotations

import threading
from contextlib import suppress

import grpc

from abuse.target import Target
from thinwire_proto.wire import service_pb2 as pb

NODES = 4
ATTENDS_S = 0.5


def absent_members(target: Target) -> None:
    threads = [threading.Thread(target=_attend_again, args=(target,)) for _ in range(NODES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _attend_again(target: Target) -> None:
    with suppress(grpc.RpcError), target.member() as member:
        while not target.stop.is_set():
            attending = member.stub.Attend(pb.AttendRequest())
            target.count("attended")
            target.stop.wait(ATTENDS_S)
            attending.cancel()
