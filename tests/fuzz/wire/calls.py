"""gRPC calls as bytes, right ones and damaged ones."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from random import Random

from google.protobuf.message import Message

from fuzz.messages import damage_of, varint
from fuzz.mutations import NUMBERS, damage_bytes
from fuzz.wire.frames import Header, block
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.metadata import SESSION

SERVICE = "/thinwire.v1.Swarm/"
REQUESTS: dict[str, type[Message]] = {
    "Hello": pb.HelloRequest,
    "Join": pb.JoinRequest,
    "Attend": pb.AttendRequest,
    "Contribute": pb.ContributionPart,
    "AskReceipt": pb.ReceiptRequest,
    "Updates": pb.UpdatesRequest,
    "Snapshot": pb.SnapshotRequest,
    "Probe": pb.ProbeRequest,
    "Leave": pb.LeaveRequest,
    "Corpus": pb.CorpusRequest,
    "Blob": pb.BlobRequest,
    "Evaluated": pb.EvaluatedRequest,
    "Status": pb.StatusRequest,
}
LONG = frozenset({"Attend", "Updates", "Snapshot", "Corpus", "Blob", "Watch", "ServerReflectionInfo"})
"""Calls whose answer may never end, or is large: they are cancelled."""
STRANGE = (
    "/thinwire.v1.Swarm/Nothing",
    "/thinwire.v1.Swarm/",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.channelz.v1.Channelz/GetServers",
    "/",
    "",
    "*",
    "thinwire.v1.Swarm/Status",
    "/thinwire.v1.Swarm/Status/../Join",
    "/thinwire.v1.Swarm/\xff",
    "/" + "a" * 3000,
)
VALUES = (
    b"",
    b"0",
    b"-1",
    b"99999999S",
    b"1n",
    b"1H",
    b"\xff",
    b"a" * 200,
    b"\0",
    b"gzip",
    b"identity,deflate",
    b"%00",
)
NAMES = (b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding", b"content-type", b"te", b"user-agent", b"x-bin")


@dataclass(frozen=True)
class Call:
    """A call as it will be sent. body: payloads of DATA frames. label: what it is counted as."""

    label: str
    headers: bytes
    body: list[bytes]
    ends: bool = True
    long: bool = False


def prefixed(data: bytes, flag: int = 0) -> bytes:
    """A message as gRPC sends it."""
    return struct.pack(">BI", flag, len(data)) + data


def messages_in(data: bytes) -> list[bytes]:
    """The complete messages in an answer."""
    found, at = [], 0
    while at + 5 <= len(data):
        (size,) = struct.unpack_from(">I", data, at + 1)
        if at + 5 + size > len(data):
            break
        found.append(data[at + 5 : at + 5 + size])
        at += 5 + size
    return found


def headers_of(path: str, secret: str = "", scheme: bytes = b"http") -> list[Header]:
    found = [
        (b":method", b"POST"),
        (b":scheme", scheme),
        (b":path", path.encode("latin-1")),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
    return [*found, (SESSION.encode(), secret.encode())] if secret else found


def right(method: str, message: bytes, secret: str = "", scheme: bytes = b"http") -> Call:
    headers = block(headers_of(SERVICE + method, secret, scheme))
    return Call(method, headers, [prefixed(message)], long=method in LONG)


def damaged_message(rng: Random, method: str, message: bytes) -> bytes:
    kind = REQUESTS[method]
    return damage_of(kind)(rng, message, [message])


def damaged_call(rng: Random, call: Call, path: str, secret: str, scheme: bytes) -> Call:
    """Change the call around its messages: headers, path, frames."""
    kind = rng.randrange(5)
    headers, body = headers_of(path, secret, scheme), b"".join(call.body)
    if kind == 0:
        return replace(call, label="headers", headers=block(_damaged_headers(rng, headers)), long=True)
    if kind == 1:
        strange = rng.choice(STRANGE)
        return Call("path", block(headers_of(strange, secret, scheme)), [body], long=True)
    if kind == 2:
        return replace(call, label="prefix", body=[_damaged_prefix(rng, body)], long=True)
    if kind == 3:
        cuts = sorted(rng.randrange(len(body) + 1) for _ in range(rng.randrange(1, 6)))
        pieces = [body[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        return replace(call, label="pieces", body=pieces, ends=rng.random() < 0.8, long=True)
    several = [*call.body, *rng.choice(([b""], call.body, [prefixed(b"")] * 20, [prefixed(rng.randbytes(9))]))]
    return replace(call, label="several", body=several, long=True)


def _damaged_prefix(rng: Random, body: bytes) -> bytes:
    size = rng.choice((*NUMBERS, len(body) - 6, len(body) - 4)) % 2**32
    flag = rng.choice((0, 1, 1, 2, 255))
    return rng.choice((struct.pack(">BI", flag, size) + body[5:], body[: rng.randrange(6)], varint(size) + body))


def _damaged_headers(rng: Random, headers: list[Header]) -> list[Header]:
    found, kind = list(headers), rng.randrange(6)
    place = rng.randrange(len(found))
    name, value = found[place]
    if kind == 0:
        del found[place]
    elif kind == 1:
        found.insert(rng.randrange(len(found) + 1), found[place])
    elif kind == 2:
        found[place] = (name, rng.choice((*VALUES, damage_bytes(rng, value, [value]))))
    elif kind == 3:
        found[place] = (rng.choice((name.upper(), b"", b":odd", b"\xff", name + b"-bin")), value)
    elif kind == 4:
        found += [(rng.choice(NAMES), rng.choice(VALUES)) for _ in range(rng.choice((1, 2, 60)))]
    else:
        rng.shuffle(found)
    return found
