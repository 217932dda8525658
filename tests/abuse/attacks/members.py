"""Attacks of nodes that have joined."""

from __future__ import annotations

import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import grpc
import zstandard

from abuse.target import Target, rounds
from support.http2_client import WINDOW_DEFAULT, WINDOW_MAX, Header, Http2Client
from support.raw_node import JoinedNode
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.codec import VERSION, contribution_bytes_max
from thinwire_proto.wire.metadata import SESSION
from thinwire_proto.wire.packing import EMPTY, pack_array

ABSENT, ATTENDS_S = 4, 0.5
OFFERS, OFFERS_AT_A_TIME, OFFER_BYTES = 100, 8, 1000
READERS = 40
READ = {"Snapshot": pb.SnapshotRequest(), "Corpus": pb.CorpusRequest(), "Updates": pb.UpdatesRequest()}
STRANGERS, WRITERS, BYTE_S = 100, 10, 0.5
BOMB_BYTES = 16 << 20
SINGLE_SEGMENT = 1 << 5
"""Flag in a frame's descriptor: no byte of a window stands before the stated size (RFC 8878)."""


def absent_members(target: Target) -> None:
    """Nodes that attend, send nothing, and attend again, so that a round at pace barrier may wait for them."""

    def attend_again() -> None:
        with suppress(grpc.RpcError), target.member() as member:
            while not target.stop.is_set():
                attending = member.stub.Attend(pb.AttendRequest())
                target.count("attended")
                target.stop.wait(ATTENDS_S)
                attending.cancel()

    with ThreadPoolExecutor(ABSENT) as pool:
        for _ in range(ABSENT):
            pool.submit(attend_again)


def many_contributions(target: Target) -> None:
    """A node that offers a hundred contributions in each round, eight at a time."""

    def offer(member: JoinedNode, announcement: pb.Announcement) -> None:
        try:
            receipt = member.contribute(announcement, bytes(OFFER_BYTES), fingerprint=0)
            target.count(f"not counted: {pb.Receipt.Reason.Name(receipt.reason).lower()}")
        except grpc.RpcError as error:
            target.count(f"refused: {error.code().name.lower()}")

    with suppress(grpc.RpcError), target.member() as member, ThreadPoolExecutor(OFFERS_AT_A_TIME) as pool:
        for announcement in rounds(member):
            for _ in range(OFFERS):
                pool.submit(offer, member, announcement)
            if target.stop.is_set():
                pool.shutdown(cancel_futures=True)
                return


def slow_readers(target: Target) -> None:
    """Nodes that ask for all they may get, on a window of any size, and read none of it."""
    with suppress(grpc.RpcError), ExitStack() as kept:  # it may end while a node waits until it may join
        for number in range(READERS):
            member = kept.enter_context(target.member())
            client = kept.enter_context(target.raw(WINDOW_MAX if number % 2 else WINDOW_DEFAULT))
            for call, request in READ.items():
                client.send(client.open(call, _session(member)), request.SerializeToString())
                target.count("streams")
        target.stop.wait()


def slow_writers(target: Target) -> None:
    """Strangers that open Contribute and send nothing, and nodes that send their contribution a byte at a time."""
    writers = [threading.Thread(target=_trickle, args=(target,)) for _ in range(WRITERS)]
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
        size = contribution_bytes_max(TileLayout(member.contract.parameters), member.contract.demo.k)
        for announcement in rounds(member):
            with suppress(OSError), target.raw() as client:
                _send_bytes(target, member, client, announcement, size)
            if target.stop.is_set():
                return


def _send_bytes(
    target: Target, member: JoinedNode, client: Http2Client, announcement: pb.Announcement, size: int
) -> None:
    stream = client.open("Contribute", _session(member))
    part = member.part(announcement, b"\0", fingerprint=0, payload_bytes=size)
    client.send(stream, part.SerializeToString(), last=False)
    target.count("contributions a byte at a time")
    client.send_raw(stream, b"\0" + struct.pack(">I", size))
    for _ in range(5):
        if target.stop.wait(BYTE_S):
            return
        client.send_raw(stream, b"\0")


def _session(member: JoinedNode) -> Header:
    return SESSION.encode(), member.secret.encode()


def bombs() -> list[bytes]:
    """Payloads of the shape of a contribution: the frame states its size, none, or one that is allowed."""
    frames = [
        zstandard.ZstdCompressor(level=1, write_content_size=stated).compress(bytes(BOMB_BYTES))
        for stated in (True, False, True)
    ]
    frames[2] = _with_size(frames[2], 1)
    return [pack_array([VERSION, frame, EMPTY, b""]) for frame in frames]


def _with_size(frame: bytes, size: int) -> bytes:
    """The frame with another stated size, of four bytes."""
    at = 5 if frame[4] & SINGLE_SEGMENT else 6
    changed = frame[:at] + size.to_bytes(4, "little") + frame[at + 4 :]
    assert zstandard.get_frame_parameters(changed).content_size == size
    return changed


def zstd_bomb(target: Target) -> None:
    """A node whose contributions are zstandard frames of half a kilobyte that become 16 MiB, whatever they state. Its
    replica is right, so that they pass every check before."""
    payloads = bombs()
    with suppress(grpc.RpcError), target.member() as member:
        for number, announcement in enumerate(rounds(member)):
            member.follow(announcement.step)
            with suppress(grpc.RpcError):
                receipt = member.contribute(announcement, payloads[number % len(payloads)])
                target.count(f"bombs: {pb.Receipt.Reason.Name(receipt.reason).lower()}")
            if target.stop.is_set():
                return
