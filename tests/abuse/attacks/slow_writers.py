"""Strangers that open Contribute and send nothing, and nodes that send their contribution a byte at a time."""

from __future__ import annotations

import struct
import threading
from contextlib import suppress

import grpc

from abuse.target import Target
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.wire.codec import contribution_bytes_max

STRANGERS = 100
NODES = 10
BYTE_S = 0.5


def slow_writers(target: Target) -> None:
    writers = [threading.Thread(target=_trickle, args=(target,)) for _ in range(NODES)]
    for writer in writers:
        writer.start()
    clients = [target.raw() for _ in range(STRANGERS)]
    while not target.stop.wait(BYTE_S):
        for number, client in enumerate(clients):
            try:
                client.open("Contribute")
                target.count("streams without a message")
            except OSError:
                client.close()
                clients[number] = target.raw()
    for client in clients:
        client.close()
    for writer in writers:
        writer.join()


def _trickle(target: Target) -> None:
    with suppress(grpc.RpcError), target.member() as member:
        layout = TileLayout(member.contract.parameters)
        size = contribution_bytes_max(layout, member.contract.demo.k)
        for announcement in member.rounds():
            with suppress(OSError), target.raw() as client:
                stream = client.open("Contribute", member.header)
                part = member.part(announcement, b"\0", payload_bytes=size).SerializeToString()
                client.send(stream, part, last=False)
                target.count("contributions a byte at a time")
                client.send_raw(stream, b"\0" + struct.pack(">I", size))
                for _ in range(5):
                    if target.stop.wait(BYTE_S):
                        return
                    client.send_raw(stream, b"\0")
            if target.stop.is_set():
                return
