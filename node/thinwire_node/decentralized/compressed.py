"""Compressed edges: each end keeps public copies, and sends what its copy does not know yet.

A message is C(x − h), with h what the edge knows of the sender, and both ends add the decoded message to their h in
operations that IEEE 754 rounds alike everywhere. So both ends hold the same h, to the bit. What C drops stays in x − h
and is sent later. A line brings each message once and in order, or it is broken. So messages need no numbers here, and
only a state that is loaded sends one again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thinwire_node.decentralized.flat import FlatLayout
from thinwire_proto.contract import Parameter
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.apply import flush_subnormals
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.codec import make_codec

SIZE_BYTES = 8
"""Before each body: its size, little-endian, because a message of gloo does not say its own."""


class CompressedCodec:
    """A codec of `thinwire_proto.gossip.codecs` behind the interface of `edge_codec.EdgeCodec`.

    layout: of float32 parameters, which all ranks must have alike when the codec is made: the copies begin there.
    Raises ConfigError for other dtypes, and for a codec that does not exist.
    """

    def __init__(self, layout: FlatLayout, name: str) -> None:
        if [bucket.dtype for bucket in layout.buckets] != [torch.float32]:
            raise ConfigError(f"codec {name!r} takes float32 parameters; for others, use 'dense'")
        parameters = layout.buckets[0].parameters
        self._layout = layout
        self._codec = make_codec(name, TileLayout(_described(parameters)))
        self._start = layout.empty()
        layout.read(self._start)
        self._own: dict[int, Tensor] = {}  # by peer, uint8 [layout.bytes]
        self._theirs: dict[int, Tensor] = {}
        self.message_bytes_max = SIZE_BYTES + self._codec.bytes_max

    def encode(self, peer: int, x: Tensor) -> tuple[Tensor, Tensor]:
        if peer not in self._own:
            self._own[peer] = self._start.clone()
        copy = self._own[peer]
        body = self._codec.encode(self._values(x) - self._values(copy))
        self._advance(copy, body)
        framed = bytearray(len(body).to_bytes(SIZE_BYTES, "little") + body)
        return copy.clone(), torch.frombuffer(framed, dtype=torch.uint8).clone()

    def decode(self, peer: int, message: Tensor) -> Tensor:
        framed = message.numpy().data
        end = SIZE_BYTES + int.from_bytes(framed[:SIZE_BYTES], "little")
        if peer not in self._theirs:
            self._theirs[peer] = self._start.clone()
        copy = self._theirs[peer]
        self._advance(copy, bytes(framed[SIZE_BYTES:end]))
        return copy.clone()

    def state_dict(self) -> Mapping[str, Any]:
        return {name: {peer: copy.clone() for peer, copy in copies.items()} for name, copies in self._copies().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, copies in self._copies().items():
            copies.clear()
            copies.update({peer: copy.to(self._layout.device, copy=True) for peer, copy in state[name].items()})

    def _copies(self) -> dict[str, dict[int, Tensor]]:
        return {"own": self._own, "theirs": self._theirs}

    def _values(self, buffer: Tensor) -> Tensor:
        """The parameters in a buffer, float32 [parameters]."""
        return self._layout.values(buffer)[0]

    def _advance(self, copy: Tensor, body: bytes) -> None:
        values = self._values(copy)
        values.add_(self._codec.decode(body, values.device))
        flush_subnormals(values)


def _described(parameters: tuple[Tensor, ...]) -> list[Parameter]:
    return [Parameter(name=str(number), shape=_shape(tensor)) for number, tensor in enumerate(parameters)]


def _shape(tensor: Tensor) -> tuple[int, ...]:
    """In one or two dimensions: of more, the first and the rest."""
    if tensor.dim() > 2:
        return tensor.shape[0], tensor[0].numel()
    return tuple(tensor.shape) or (1,)
