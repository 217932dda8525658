"""Compressed edges: each end keeps public copies, and sends what its copy does not know yet.

A message is C(x − h), with h what the edge knows of the sender, and both ends add the decoded message to their h in
operations that IEEE 754 rounds alike everywhere. So both ends hold the same h, to the bit. What C drops stays in x − h
and is sent later.

The copies are those of `thinwire_proto.gossip.copies`, with their fingerprints: a device that computes otherwise, or a
broken memory, is found within `FINGERPRINT_PARTS` messages. `copies.Edge` itself is not used. It numbers, repeats and
acknowledges messages and heals copies by snapshots, because a line of a swarm loses messages and its ends come and go.
A line of gloo brings each message once and in order, or it is broken for good, and all ranks belong to one run: there,
a copy that differs is a reason to stop. And an edge keeps the messages since its oldest open turn and replays them;
`pending.py` needs both copies of a turn only until it is mixed.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from thinwire.gossip.consensus_control import ConsensusControl
from thinwire.gossip.flat import FlatLayout
from thinwire_proto.contract import Parameter
from thinwire_proto.errors import ConfigError, PayloadError, RemoteError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.codec import make_codec
from thinwire_proto.gossip.consensus import LEVELS
from thinwire_proto.gossip.message import PublicCopy

DENSE = "dense"


class EdgeCodec(Protocol):
    """Turns parameters into messages, and messages into what mixing needs.

    Mixing moves x by the weight of the edge times (theirs − own): what the edge knows of the peer, and of this rank, in
    the same iteration. Both ends hold the same two, so they move by opposite amounts, and the mean stays where it is.
    """

    message_bytes_max: int

    def encode(self, peer: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """(own, the message) for a peer. x: this rank's parameters, uint8 [layout.bytes], as own is; the codec changes
        neither afterwards. Each message reaches the peer, or the peer is gone."""

    def decode(self, peer: int, message: Tensor) -> Tensor:
        """theirs, uint8 [layout.bytes]; the caller may change it. Called for each message of a peer, in order, also if
        it is not mixed. The message itself stays as it is until theirs was used."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class DenseCodec:
    """The parameters themselves: 4 bytes a float32 parameter."""

    def __init__(self, layout: FlatLayout) -> None:
        self._device = layout.device
        self.message_bytes_max = layout.bytes

    def encode(self, peer: int, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x

    def decode(self, peer: int, message: Tensor) -> Tensor:
        return message.to(self._device)

    def state_dict(self) -> Mapping[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


HEAD = struct.Struct("<BQ")
"""Before each body: the number of its codec, and the fingerprint of a part of the sender's copy."""
HEAD_BYTES = HEAD.size


class CompressedCodec:
    """Codecs of `thinwire_proto.gossip.codecs` behind the interface of `EdgeCodec`.

    layout: of float32 parameters, which all ranks must have alike when the codec is made: the copies begin there.
    names: alike on all ranks. Each message says which of them it has; `used` is that of the next ones.
    Raises ConfigError for other dtypes, and for a codec that does not exist."""

    def __init__(self, layout: FlatLayout, *names: str) -> None:
        self._layout = layout
        self._tiles = tiles_of(layout, f"codec {names[0]!r}")
        self._codecs = {name: make_codec(name, self._tiles) for name in names}
        self._numbers = dict(enumerate(self._codecs))
        self.used = names[0]
        start = layout.empty()
        layout.read(start)
        self._start = self._values(start)
        self._copies: dict[str, dict[int, PublicCopy]] = {"own": {}, "theirs": {}}  # by peer
        self.message_bytes_max = HEAD_BYTES + max(codec.bytes_max for codec in self._codecs.values())

    def encode(self, peer: int, x: Tensor) -> tuple[Tensor, Tensor]:
        copy = self._copy("own", peer)
        codec = self._codecs[self.used]
        body = codec.encode(self._values(x) - copy.flat)
        copy.advance(codec.decode(body, copy.flat.device))
        number = list(self._codecs).index(self.used)
        message = bytearray(HEAD.pack(number, copy.fingerprint()) + body)
        return self._buffer(copy), torch.frombuffer(message, dtype=torch.uint8).clone()

    def decode(self, peer: int, message: Tensor) -> Tensor:
        data = message.numpy().data
        copy = self._copy("theirs", peer)
        if len(data) < HEAD_BYTES or (head := HEAD.unpack_from(data))[0] not in self._numbers:
            raise PayloadError(f"this is no message of {', '.join(self._codecs)}")
        codec = self._codecs[self._numbers[head[0]]]
        copy.advance(codec.decode(bytes(data[HEAD_BYTES:]), copy.flat.device))
        if copy.fingerprint() != head[1]:
            raise RemoteError(
                f"the copies of rank {peer}'s parameters differ after {copy.sequence} messages: a memory is broken, or "
                "a device computes otherwise. Find out which, and start again from a checkpoint"
            )
        return self._buffer(copy)

    def copies_of_peers(self, left_out: Collection[int]) -> list[Tensor]:
        """What this rank knows of its peers, float32 [parameters] each, by rank, without a copy."""
        return [copy.flat for peer, copy in sorted(self._copies["theirs"].items()) if peer not in left_out]

    def state_dict(self) -> Mapping[str, Any]:
        state: dict[str, Any] = {"sequences": {}}
        for name, copies in self._copies.items():
            state[name] = {peer: copy.flat.clone() for peer, copy in copies.items()}
            state["sequences"][name] = {peer: copy.sequence for peer, copy in copies.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, copies in self._copies.items():
            copies.clear()
            for peer, flat in state[name].items():
                copies[peer] = PublicCopy(self._tiles, flat.to(self._layout.device))
                copies[peer].sequence = state["sequences"][name][peer]

    def _copy(self, name: str, peer: int) -> PublicCopy:
        copies = self._copies[name]
        if peer not in copies:
            copies[peer] = PublicCopy(self._tiles, self._start)
        return copies[peer]

    def _buffer(self, copy: PublicCopy) -> Tensor:
        buffer = self._layout.empty()
        self._values(buffer).copy_(copy.flat)
        return buffer

    def _values(self, buffer: Tensor) -> Tensor:
        """The parameters in a buffer, float32 [parameters]."""
        return self._layout.values(buffer)[0]


def tiles_of(layout: FlatLayout, what: str) -> TileLayout:
    """The tiles of all parameters. Raises ConfigError, which says what needs them, if one is not float32."""
    if [bucket.dtype for bucket in layout.buckets] != [torch.float32]:
        raise ConfigError(f"{what} takes float32 parameters; for others, use codec 'dense' and edges with both ends")
    parameters = [held for held in layout.buckets[0].held if held.numel()]  # a rank may hold nothing of a small one
    return TileLayout([Parameter(name=str(number), shape=_shape(tensor)) for number, tensor in enumerate(parameters)])


def _shape(tensor: Tensor) -> tuple[int, ...]:
    """In one or two dimensions: of more, the first and the rest."""
    if tensor.dim() > 2:
        return tensor.shape[0], tensor[0].numel()
    return tuple(tensor.shape) or (1,)


def codec_of(name: str, layout: FlatLayout, control: ConsensusControl | None) -> EdgeCodec:
    """The codec of edges with both ends. control: chooses among several."""
    if control is not None:
        codec = CompressedCodec(layout, *dict.fromkeys(level.codec for level in LEVELS))
        codec.used = control.level.codec
        return codec
    return DenseCodec(layout) if name == DENSE else CompressedCodec(layout, name)
