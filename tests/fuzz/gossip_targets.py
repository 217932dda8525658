"""Targets: the codecs of differences, each over any bytes, and an edge over any messages of its peer."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import numpy as np
import torch

from fuzz.mutations import damage_bytes, damage_msgpack
from fuzz.target import Target
from thinwire_proto.contract import Parameter
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.codec import STEP_MAX, Codec, codec_names, make_codec
from thinwire_proto.gossip.edge import Edge
from thinwire_proto.gossip.message import Message
from thinwire_proto.gossip.push_sum import WEIGHT_MAX, Incoming, Push, PushSumNode
from thinwire_proto.gossip.receiver import HELD_MAX

LAYOUT = TileLayout([Parameter(name="m", shape=(70, 90)), Parameter(name="v", shape=(130,))])
SMALL = TileLayout([Parameter(name="m", shape=(9, 5)), Parameter(name="v", shape=(6,))])
BYTES_A_COMPONENT = 40
"""Memory of Python and numpy that a reader may use for each component, as in `payload_targets`."""
BYTES_OVERHEAD = 1 << 14
SENT = 3
"""Messages of the honest peer that are damaged."""
CPU = torch.device("cpu")


def gossip_targets() -> list[Target]:
    """One target for each codec, one for an edge, and one for an arc of push-sum."""
    names = [name for name in codec_names() if not name.startswith("test-")]
    return [*(_codec_target(make_codec(name, LAYOUT), name) for name in names), _edge_target(), _arc_target()]


def _codec_target(codec: Codec, name: str) -> Target:
    generator = torch.Generator().manual_seed(1)
    differences = [
        torch.zeros(LAYOUT.parameters),
        torch.randn(LAYOUT.parameters, generator=generator) * 1e-3,
        torch.randn(LAYOUT.parameters, generator=generator) * 1e6,
    ]

    def check(found: object) -> None:
        assert isinstance(found, torch.Tensor)
        assert found.dtype == torch.float32, "dtype"
        assert found.shape == (LAYOUT.parameters,), "shape"
        assert bool(found.isfinite().all()), "a number is not finite"
        assert float(found.abs().max()) <= STEP_MAX, "a number is too large"
        codec.encode(found)  # what was read can be sent on

    return Target(
        f"difference {name}",
        codec.decode,
        [codec.encode(difference) for difference in differences],
        damage_bytes,
        check,
        (PayloadError,),
        BYTES_A_COMPONENT * LAYOUT.components + codec.bytes_max + BYTES_OVERHEAD,
    )


def _edge_target() -> Target:
    """A peer's messages, as a list of all their fields. An edge that has sent some itself takes them in turn, mixes
    what is ready, and sends on."""
    start = torch.zeros(SMALL.parameters)
    peer = Edge(SMALL, start, CPU)
    sent = [peer.send((0, 2 * number), small_difference(number), "int8") for number in range(SENT)]
    sent.append(peer.skip((0, 2 * SENT)))
    valid = [sent, sent[::-1], [*sent, *sent], [replace(sent[0], wants_snapshot=True), *sent[1:]]]

    def read(data: bytes) -> object:
        edge = Edge(SMALL, start, CPU)
        for iteration in range(SENT):
            edge.send((0, iteration), small_difference(9 + iteration), "sign")
        for message in messages_of(data):
            for arrived in edge.receive(message):
                if edge.may_mix(arrived.when):
                    edge.difference(arrived.when)
            edge.acknowledge(min(message.acknowledged, edge.own.sequence))
        edge.send((1, 0), small_difference(20), "int8")
        return edge

    def check(found: object) -> None:
        assert isinstance(found, Edge)
        assert found.waiting <= HELD_MAX, "messages that wait"
        assert bool(found.theirs.flat.isfinite().all()), "a copy is not finite"

    return Target("edge", read, [packed(one) for one in valid], damage_msgpack, check, (PayloadError,))


def packed(messages: list[Message]) -> bytes:
    return bytes(msgpack.packb([field for message in messages for field in vars(message).values()]))


def messages_of(data: bytes) -> list[Message]:
    """Messages whose fields have the types that a wire guarantees. Raises PayloadError for others."""
    kinds = [int, int, int, int, str, int, bool, bytes]
    try:
        fields = msgpack.unpackb(data, raw=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise PayloadError(str(error)) from None
    if not isinstance(fields, list) or len(fields) % len(kinds):
        raise PayloadError("no messages")
    rows = [fields[start : start + len(kinds)] for start in range(0, len(fields), len(kinds))]
    if any(type(field) is not kind for row in rows for field, kind in zip(row, kinds, strict=True)):
        raise PayloadError("a field has another type")
    return [Message(*row) for row in rows]


def _arc_target() -> Target:
    """Messages of an arc of push-sum, as (sequence, weight, body) in a list."""
    codec = make_codec("int8", SMALL)
    bodies = [codec.encode(small_difference(number)) for number in range(SENT)]
    valid = [[1, 5, bodies[0]], [1, 5, bodies[0], 2, 1 << 40, bodies[1]]]

    def read(data: bytes) -> object:
        try:
            fields = msgpack.unpackb(data, raw=False)
        except (ValueError, msgpack.UnpackException) as error:
            raise PayloadError(str(error)) from None
        if not isinstance(fields, list) or len(fields) % 3:
            raise PayloadError("no messages")
        node, incoming = PushSumNode(small_difference(5)), Incoming()
        for start in range(0, len(fields), 3):
            sequence, weight, body = fields[start : start + 3]
            if type(sequence) is not int or type(weight) is not int or type(body) is not bytes:
                raise PayloadError("a field has another type")
            incoming.receive(Push(sequence, weight, body), codec, node)
        return node

    def check(found: object) -> None:
        assert isinstance(found, PushSumNode)
        assert 0 < found.weight <= WEIGHT_MAX, "weight"
        assert bool(found.x.isfinite().all()), "a parameter is not finite"

    return Target(
        "arc", read, [bytes(msgpack.packb(fields)) for fields in valid], damage_msgpack, check, (PayloadError,)
    )


def small_difference(seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=SMALL.parameters).astype(np.float32))
