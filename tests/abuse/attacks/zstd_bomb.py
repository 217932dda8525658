"""A node whose contributions are zstandard frames of half a kilobyte that become 16 MiB, whatever they state."""

from __future__ import annotations

from contextlib import suppress

import grpc
import zstandard

from abuse.follower import Follower
from abuse.target import Target
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.codec import VERSION
from thinwire_proto.wire.packing import EMPTY, pack_array

BOMB_BYTES = 16 << 20
SINGLE_SEGMENT = 1 << 5
"""Flag in a frame's descriptor: no byte of a window stands before the stated size (RFC 8878)."""


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
    payloads = bombs()
    with suppress(grpc.RpcError), target.member() as member:
        follower = Follower(member)
        for number, announcement in enumerate(member.rounds()):
            payload = payloads[number % len(payloads)]
            part = member.part(announcement, payload, fingerprint=follower.fingerprint(announcement))
            with suppress(grpc.RpcError):
                receipt = member.stub.Contribute(iter([part]), timeout=30)
                target.count(f"bombs: {pb.Receipt.Reason.Name(receipt.reason).lower()}")
            if target.stop.is_set():
                return
